//! The namespace as the file commands see it: paths, listing, walking, making directories.

use crate::context::credentials;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use tidemill_client::{Error, Server};
use tidemill_model::display;
use tidemill_wire::v1::{self, name_op::Op};

/// A path of the cluster: bytes, as the names in it. It is printed in one line, with a mark for bytes that are not UTF-8;
/// JSON output uses [`display::escaped`].
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClusterPath(Vec<u8>);

impl ClusterPath {
    /// Returns the path of an entry of this directory.
    pub(crate) fn join(&self, name: impl AsRef<[u8]>) -> Self {
        let directory = self.0.strip_suffix(b"/").unwrap_or(&self.0);
        Self([directory, b"/", name.as_ref()].concat())
    }

    /// Splits the path into its directory and its last component.
    ///
    /// # Errors
    /// If the path is the root.
    pub(crate) fn split(&self) -> anyhow::Result<(Self, &[u8])> {
        let slash = self.0.iter().rposition(|&byte| byte == b'/');
        let (directory, name) = slash.map_or((&[][..], &self.0[..]), |at| {
            (&self.0[..at], &self.0[at + 1..])
        });
        anyhow::ensure!(
            !name.is_empty(),
            "bad path: {self}; the root has no name of its own"
        );
        let directory = if directory.is_empty() {
            b"/"
        } else {
            directory
        };
        Ok((Self(directory.to_vec()), name))
    }

    /// Returns the bytes, as in requests to the server.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Returns the path as text.
    ///
    /// # Errors
    /// If the path is not UTF-8; `what` names the feature that needs UTF-8.
    pub(crate) fn text(&self, what: &str) -> anyhow::Result<&str> {
        std::str::from_utf8(&self.0)
            .map_err(|_| anyhow::anyhow!("bad path: {self}: {what} needs a path in UTF-8"))
    }
}

impl AsRef<[u8]> for ClusterPath {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ClusterPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&display::line(&String::from_utf8_lossy(&self.0)))
    }
}

impl fmt::Debug for ClusterPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", display::escaped(&self.0))
    }
}

impl From<Vec<u8>> for ClusterPath {
    fn from(path: Vec<u8>) -> Self {
        Self(path)
    }
}

impl schemars::JsonSchema for ClusterPath {
    fn schema_name() -> Cow<'static, str> {
        "Path".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let text = "Name or path in the cluster; bytes that are not UTF-8 are written as `\\x` and two hexadecimal digits.";
        schemars::json_schema!({ "type": "string", "description": text })
    }
}

impl Serialize for ClusterPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&display::escaped(&self.0))
    }
}

/// A path of the cluster as a user may write it: relative paths start at the root; `.` and empty parts are removed.
///
/// # Errors
/// If the path has `..`, whose meaning would depend on symbolic links.
pub(crate) fn path(text: impl AsRef<OsStr>) -> anyhow::Result<ClusterPath> {
    let text = text.as_ref();
    let mut clean = Vec::new();
    for part in text.as_bytes().split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let text = display::line(&text.to_string_lossy());
                anyhow::bail!("bad path: {text}; `..` is not followed, give the full path from /")
            }
            part => {
                clean.push(b'/');
                clean.extend(part);
            }
        }
    }
    Ok(ClusterPath(if clean.is_empty() {
        b"/".to_vec()
    } else {
        clean
    }))
}

/// Looks up a path that should exist.
///
/// # Errors
/// If the path does not exist; the error suggests similar names.
pub(crate) async fn resolve(
    server: &Server,
    path: impl AsRef<[u8]>,
    follow: bool,
) -> Result<v1::Entry, Error> {
    look_up(server, path.as_ref(), follow, true).await
}

/// Looks up a path that may not exist.
///
/// # Errors
/// If the path does not exist.
pub(crate) async fn find(
    server: &Server,
    path: impl AsRef<[u8]>,
    follow: bool,
) -> Result<v1::Entry, Error> {
    look_up(server, path.as_ref(), follow, false).await
}

async fn look_up(
    server: &Server,
    path: &[u8],
    follow: bool,
    advise: bool,
) -> Result<v1::Entry, Error> {
    let resolve = v1::Resolve {
        path: path.to_vec(),
        follow,
        advise,
    };
    server.resolve(&credentials(), resolve).await
}

/// Returns the inode of a path.
///
/// # Errors
/// If the path does not exist.
pub(crate) async fn inode(server: &Server, path: impl AsRef<[u8]>) -> Result<u64, Error> {
    let entry = resolve(server, path, true).await?;
    Ok(entry.attr.ok_or(Error::Answer("Resolve"))?.ino)
}

/// Returns all entries of a directory except `.` and `..`, sorted by name.
///
/// # Errors
/// If the inode is no directory, or the caller may not read it.
pub(crate) async fn list(server: &Server, ino: u64) -> Result<Vec<v1::Entry>, Error> {
    server.list(&credentials(), ino).await
}

/// Makes a directory. With `parents`, an existing directory is no error, and missing parents are made.
///
/// # Errors
/// If the name exists, or the caller may not make the directory.
pub(crate) async fn make_directory(
    server: &Server,
    path: &ClusterPath,
    parents: bool,
) -> anyhow::Result<()> {
    if parents && let Ok(entry) = find(server, path, true).await {
        let is_directory = entry
            .attr
            .is_some_and(|attr| attr.kind() == v1::Kind::Directory);
        anyhow::ensure!(
            is_directory,
            "not a directory: {path}; remove or rename it first"
        );
        return Ok(());
    }
    // Directories are few, so one reservation for each does no harm.
    let (ino, _) = server.reserve(1, 0).await?;
    let me = credentials();
    let create = v1::Create {
        name: path.0.clone(),
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

/// Returns the caller's file mode creation mask.
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
    fn paths_are_absolute_and_refuse_parent_components() {
        for (text, clean) in [("a/b", "/a/b"), ("/a//./b/", "/a/b"), ("/", "/"), ("", "/")] {
            assert_eq!(path(text).unwrap().as_ref(), clean.as_bytes());
        }
        assert!(path("/a/../b").unwrap_err().to_string().contains("/a/../b"));
        let split = |text| {
            let path = path(text).unwrap();
            let (directory, name) = path.split()?;
            anyhow::Ok((directory.to_string(), name.to_vec()))
        };
        assert_eq!(split("/a/b").unwrap(), ("/a".into(), b"b".to_vec()));
        assert_eq!(split("/a").unwrap(), ("/".into(), b"a".to_vec()));
        assert!(split("/").is_err());
        assert_eq!(path("/").unwrap().join("a"), path("/a").unwrap());
        assert_eq!(path("/a").unwrap().join(b"b"), path("/a/b").unwrap());
    }

    #[test]
    fn paths_that_are_not_utf8_keep_their_bytes() {
        let odd = path(OsStr::from_bytes(b"a/n\xff")).unwrap();
        assert_eq!(odd.as_ref(), b"/a/n\xff");
        assert_eq!(odd.to_string(), "/a/n\u{fffd}");
        assert_eq!(serde_json::json!(odd), r"/a/n\xff");
        assert!(
            odd.text("a rule")
                .unwrap_err()
                .to_string()
                .contains("a rule")
        );
    }
}
