//! The namespace as the file commands see it: paths, listing, walking, making folders.

use crate::context::credentials;
use tidemill_client::{Error, Server};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Entries asked for at once.
const PAGE: u32 = 4096;

/// A path of the array as a user may write it: relative ones start at the root, `.` and empty parts go.
///
/// # Errors
/// If it has `..`, whose meaning would depend on symbolic links.
pub(crate) fn path(text: &str) -> anyhow::Result<String> {
    let mut clean = String::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                anyhow::bail!("bad path: {text}; `..` is not followed, give the full path from /")
            }
            part => {
                clean.push('/');
                clean.push_str(part);
            }
        }
    }
    Ok(if clean.is_empty() { "/".into() } else { clean })
}

/// Appends a name to a folder's path.
pub(crate) fn join(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// The folder and the last component of a path that [`path`] made.
///
/// # Errors
/// If it is the root.
pub(crate) fn split(path: &str) -> anyhow::Result<(&str, &str)> {
    match path.rsplit_once('/') {
        Some((_, "")) | None => anyhow::bail!("bad path: {path}; the root has no name of its own"),
        Some(("", name)) => Ok(("/", name)),
        Some((folder, name)) => Ok((folder, name)),
    }
}

/// Looks a path up that should be there.
///
/// # Errors
/// If nothing is there; with what may have been meant.
pub(crate) async fn resolve(server: &Server, path: &str, follow: bool) -> Result<v1::Entry, Error> {
    look_up(server, path, follow, true).await
}

/// Looks a path up that need not be there.
///
/// # Errors
/// If nothing is there.
pub(crate) async fn find(server: &Server, path: &str, follow: bool) -> Result<v1::Entry, Error> {
    look_up(server, path, follow, false).await
}

async fn look_up(
    server: &Server,
    path: &str,
    follow: bool,
    advise: bool,
) -> Result<v1::Entry, Error> {
    let resolve = v1::Resolve {
        path: path.as_bytes().to_vec(),
        follow,
        advise,
    };
    match server.one(&credentials(), Op::Resolve(resolve)).await? {
        Answer::Entry(entry) => Ok(entry),
        _ => Err(Error::Answer("Resolve")),
    }
}

/// The inode a path names.
///
/// # Errors
/// If nothing is there.
pub(crate) async fn inode(server: &Server, path: &str) -> Result<u64, Error> {
    let entry = resolve(server, path, true).await?;
    Ok(entry.attr.ok_or(Error::Answer("Resolve"))?.ino)
}

/// All entries of a folder but `.` and `..`, by name.
///
/// # Errors
/// If it is no folder or may not be read.
pub(crate) async fn list(server: &Server, ino: u64) -> Result<Vec<v1::Entry>, Error> {
    let mut all: Vec<v1::Entry> = Vec::new();
    loop {
        let after = all
            .last()
            .map(|entry| entry.name.clone())
            .unwrap_or_default();
        let read = v1::ReadDir {
            ino,
            after,
            limit: PAGE,
        };
        let Answer::Entries(page) = server.one(&credentials(), Op::ReadDir(read)).await? else {
            return Err(Error::Answer("ReadDir"));
        };
        let stop = page.end || page.entries.is_empty();
        all.extend(page.entries);
        if stop {
            break;
        }
    }
    all.retain(|entry| entry.name != b"." && entry.name != b"..");
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Makes a folder. With `parents`, one that is there already is fine, and those above it are made.
///
/// # Errors
/// If it is there, or may not be made.
pub(crate) async fn make_folder(server: &Server, path: &str, parents: bool) -> anyhow::Result<()> {
    if parents && let Ok(entry) = find(server, path, true).await {
        let is_folder = entry
            .attr
            .is_some_and(|attr| attr.kind() == v1::Kind::Directory);
        anyhow::ensure!(is_folder, "not a folder: {path}; remove or rename it first");
        return Ok(());
    }
    // Few enough of them that one reservation each does no harm.
    let (ino, _) = server.reserve(1, 0).await?;
    let me = credentials();
    let create = v1::Create {
        name: path.as_bytes().to_vec(),
        kind: v1::Kind::Directory.into(),
        mode: 0o777 & !umask(),
        ino: ino.0,
        uid: me.uid,
        gid: me.gid,
        make_parents: parents,
        ..v1::Create::default()
    };
    server.one(&me, Op::Create(create)).await?;
    Ok(())
}

/// The caller's file mode creation mask.
pub(crate) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o022)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_root_and_do_not_climb() {
        for (text, clean) in [("a/b", "/a/b"), ("/a//./b/", "/a/b"), ("/", "/"), ("", "/")] {
            assert_eq!(path(text).unwrap(), clean);
        }
        assert!(path("/a/../b").unwrap_err().to_string().contains("/a/../b"));
        assert_eq!(split("/a/b").unwrap(), ("/a", "b"));
        assert_eq!(split("/a").unwrap(), ("/", "a"));
        assert!(split("/").is_err());
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/a", "b"), "/a/b");
    }
}
