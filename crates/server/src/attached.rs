//! Directories of the cluster that are attached to a remote's store: the attachments, the scans of each store, and the deleted objects. A
//! node reads the store itself ([0067](../../../docs/decisions/0067-attached-directories.md)).

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tidemill_meta::attribute::DIRECTORY_NODE;
use tidemill_meta::shared::NamesShared;
use tidemill_meta::transaction::{Change, Tx};
use tidemill_meta::vnode::InodeRecord;
use tidemill_meta::{Caller, Changed, Connection, Fault, SqliteNames, remotes};
use tidemill_model::follow::directory_mode;
use tidemill_model::id::Inode;
use tidemill_wire::v1;

/// Prefix of paths by which scripts name files in remotes, and by which clients see remotes.
const SEEN: &str = "/remotes";
const BELOW: &str = "/remotes/";
/// Characters that the path of an attached directory must not contain, since they have another meaning in strings and patterns of scripts.
const SPECIAL: [char; 10] = ['"', '\\', '<', '&', '$', '*', '?', '[', '(', ')'];
/// Maximum number of objects of a store in one request.
const PAGE_MAX: usize = 1000;
/// Maximum length of a node's stored message about a store, in characters.
const REASON_CHARS_MAX: usize = 500;

/// Reason why the server refuses an operation on an attachment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachRefusal {
    #[error("remote {0} does not exist: `tidemill remote list`")]
    NoRemote(String),
    #[error("remote {0} is not attached to a directory: `tidemill remote attach {0} /DIRECTORY`")]
    NotAttached(String),
    #[error("remote {0} is attached to {1}: `tidemill remote detach {0}` first")]
    Attached(String, String),
    #[error(
        "{0} can't be attached: give the full path of a directory, but not of the root, {SEEN} or a directory below .tidemill, without \" \\ < & $ * ? [ ( )"
    )]
    Directory(String),
    #[error("{0} and {1}, to which remote {2} is attached, are nested: give another directory")]
    Nested(String, String, String),
    #[error("the scan is not known: start a new scan")]
    Look,
    #[error("too many entries in a request: at most {PAGE_MAX}")]
    Page,
}

/// Progress of a node's scan of a store.
#[derive(Debug, Default)]
struct StoreScan {
    number: u64,
    /// Bitmap of the numbers of rows whose objects the scan has found.
    seen: Vec<u64>,
}

impl StoreScan {
    fn mark(&mut self, number: u64) {
        let word = usize::try_from(number / 64).unwrap_or(0);
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        self.seen[word] |= 1 << (number % 64);
    }

    fn has(&self, number: u64) -> bool {
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        self.seen
            .get(word)
            .is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

/// The scans in progress, by the names of the remotes.
#[derive(Debug, Default)]
pub(crate) struct StoreScans(Mutex<BTreeMap<String, StoreScan>>);

impl StoreScans {
    fn begin(&self, remote: &str, number: u64) {
        let seen = Vec::new();
        self.0
            .lock()
            .insert(remote.to_owned(), StoreScan { number, seen });
    }

    fn end(&self, remote: &str) {
        self.0.lock().remove(remote);
    }

    fn with<T>(
        &self,
        (remote, number): (&str, u64),
        work: impl FnOnce(&mut StoreScan) -> T,
    ) -> Result<T, AttachRefusal> {
        let mut looks = self.0.lock();
        let look = looks.get_mut(remote).filter(|look| look.number == number);
        look.map(work).ok_or(AttachRefusal::Look)
    }
}

fn need(db: &Connection, remote: &str) -> Result<Result<v1::Attachment, AttachRefusal>, Fault> {
    Ok(remotes::attachment(db, remote)?
        .ok_or_else(|| AttachRefusal::NotAttached(remote.to_owned())))
}

/// Replaces remote names in a script, rule or hook: in strings that begin with `"/remotes/NAME/…"`, the name stands for the directory to
/// which the remote is attached. If the cluster has a directory `/remotes`, the strings mean that directory and stay unchanged.
pub(crate) fn plain(names: &SqliteNames, text: &mut String) -> Result<(), Fault> {
    if !text.contains(BELOW) {
        return Ok(());
    }
    let attached = names.database().read(|db| match is_directory(db)? {
        true => Ok(BTreeMap::new()),
        false => remotes::attachments(db),
    })?;
    if !attached.is_empty() {
        *text = named(text, |remote| Some(&attached.get(remote)?.directory));
    }
    Ok(())
}

/// Replaces remote names at the beginning of strings in a script with the attached directories.
fn named<'a>(text: &str, directory: impl Fn(&str) -> Option<&'a String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BELOW) {
        let (before, after) = (&rest[..at], &rest[at + BELOW.len()..]);
        let begins = before.ends_with(['"', '>']);
        let end = after.find(['/', '"', '<']).filter(|_| begins);
        let found = end.and_then(|end| Some((directory(&after[..end])?, &after[end..])));
        let (name, then) = found.map_or((BELOW, after), |(directory, then)| {
            (directory.as_str(), then)
        });
        out.push_str(before);
        out.push_str(name);
        rest = then;
    }
    out.push_str(rest);
    out
}

fn is_directory(db: &Connection) -> Result<bool, Fault> {
    let name = SEEN.trim_start_matches('/').as_bytes();
    let found = InodeRecord::child(db, Inode::ROOT.0, name)?;
    Ok(found.is_some_and(|vnode| vnode.is_dir()))
}

/// Returns an error text for the first of these paths that is below `/remotes` and in no directory of the cluster.
pub(crate) fn refusal<'a>(
    names: &SqliteNames,
    mut paths: impl Iterator<Item = &'a str>,
) -> Result<Option<String>, Fault> {
    let below = |path: &'a str| Some((path, path.strip_prefix(BELOW)?));
    match paths.find_map(below) {
        Some(found) => names.database().read(|db| refusal_of(db, found)),
        None => Ok(None),
    }
}

fn refusal_of(db: &Connection, (path, below): (&str, &str)) -> Result<Option<String>, Fault> {
    if is_directory(db)? {
        return Ok(None);
    }
    let remote = below.split('/').next().unwrap_or(below);
    Ok(Some(if remotes::attachment(db, remote)?.is_some() {
        format!(
            "{path}: name a file of a remote by its full path, in quotation marks, as \"{SEEN}/{remote}/…\""
        )
    } else if remotes::one(db, remote)?.is_some() {
        format!(
            "{path}: remote {remote} is not attached to a directory of the cluster: attach it (`tidemill remote attach {remote} /DIRECTORY`), or import the files"
        )
    } else {
        format!("{path}: remote {remote} does not exist: `tidemill remote list`")
    }))
}

/// Returns the path of a directory in the form in which the database stores it.
fn directory(path: &str) -> Result<String, AttachRefusal> {
    let wrong = || AttachRefusal::Directory(path.to_owned());
    let clean = path.trim_end_matches('/');
    let parts = clean.strip_prefix('/').ok_or_else(wrong)?;
    let good = |part: &str| !matches!(part, "" | "." | ".." | ".tidemill");
    let at_remotes = clean == SEEN || clean.starts_with(BELOW);
    let special = |one: char| one.is_control() || SPECIAL.contains(&one);
    match parts.split('/').all(good) && !at_remotes && !parts.chars().any(special) {
        true => Ok(clean.to_owned()),
        false => Err(wrong()),
    }
}

/// Attaches a remote to a directory, and creates the directory if it does not exist.
pub(crate) async fn attach(
    names: &SqliteNames,
    name: String,
    mut asked: v1::Attachment,
) -> Result<Result<v1::Remote, AttachRefusal>, Fault> {
    // The rows that an earlier attachment of this name has left are deleted first.
    while forget(names, name.clone()).await? {}
    let shared = names.shared().clone();
    let now = crate::clock::now_ns();
    let work = move |db: &Connection| {
        asked.directory = match directory(&asked.directory) {
            Ok(directory) => directory,
            Err(refusal) => return Ok((Err(refusal), Vec::new())),
        };
        if remotes::one(db, &name)?.is_none() {
            return Ok((Err(AttachRefusal::NoRemote(name)), Vec::new()));
        }
        for (other, attachment) in remotes::attachments(db)? {
            if other == name {
                return Ok((
                    Err(AttachRefusal::Attached(name, attachment.directory)),
                    Vec::new(),
                ));
            }
            if remotes::within(&attachment.directory, &asked.directory)
                || remotes::within(&asked.directory, &attachment.directory)
            {
                let refusal = AttachRefusal::Nested(asked.directory, attachment.directory, other);
                return Ok((Err(refusal), Vec::new()));
            }
        }
        let root = Caller::root();
        let mut tx = Tx::new(db, &shared, &root, 0, now);
        match tx.resolve(asked.directory.as_bytes(), false) {
            Ok(vnode) if vnode.is_dir() => {}
            Ok(_) => return Ok((Err(AttachRefusal::Directory(asked.directory)), Vec::new())),
            Err(Fault::NotFound(_)) => {
                let ino = tidemill_meta::ids::reserve(db, "inode", 1)?;
                tx.create(&v1::Create {
                    name: asked.directory.clone().into_bytes(),
                    kind: v1::Kind::Directory.into(),
                    mode: directory_mode(asked.mode & 0o777),
                    ino,
                    make_parents: true,
                    uid: asked.uid,
                    gid: asked.gid,
                    ..v1::Create::default()
                })?;
            }
            Err(fault) => return Err(fault),
        }
        remotes::attach(db, &name, &asked)?;
        Ok((Ok(shown(db, &name)?), tx.changes))
    };
    let (attached, changes) = names.database().write(work).await?;
    tell(names, changes);
    Ok(attached.and_then(|remote| remote))
}

/// Returns a remote with its attachment.
fn shown(db: &Connection, name: &str) -> Result<Result<v1::Remote, AttachRefusal>, Fault> {
    Ok(remotes::one(db, name)?.ok_or_else(|| AttachRefusal::NoRemote(name.to_owned())))
}

fn tell(names: &SqliteNames, changes: Vec<Change>) {
    if !changes.is_empty() {
        let session = 0;
        names.tell(Changed { session, changes });
    }
}

/// Deletes some of the known objects of a remote that is not attached. Returns whether more objects remain.
async fn forget(names: &SqliteNames, remote: String) -> Result<bool, Fault> {
    let work = move |db: &Connection| match remotes::attachment(db, &remote)? {
        Some(_) => Ok(false),
        None => remotes::unfollow_some(db, &remote),
    };
    names.database().write(work).await
}

pub(crate) async fn detach(
    (names, looks): (&SqliteNames, &StoreScans),
    name: String,
) -> Result<Result<v1::Remote, AttachRefusal>, Fault> {
    let remote = name.clone();
    let (shared, now) = (names.shared().clone(), crate::clock::now_ns());
    let work = move |db: &Connection| {
        let attachment = match need(db, &name)? {
            Ok(attachment) => attachment,
            Err(refusal) => return Ok((Err(refusal), Vec::new())),
        };
        let before = shown(db, &name)?;
        remotes::detach(db, &name)?;
        // New files are placed like all other files from now on.
        let root = Caller::root();
        let mut tx = Tx::new(db, &shared, &root, 0, now);
        if let Ok(vnode) = tx.resolve(attachment.directory.as_bytes(), false) {
            let remove = v1::RemoveXattr {
                ino: vnode.ino,
                name: DIRECTORY_NODE.to_vec(),
            };
            match tx.remove_xattr(&remove) {
                Ok(_) | Err(Fault::NoAttribute(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok((before, tx.changes))
    };
    let (detached, changes) = names.database().write(work).await?;
    tell(names, changes);
    looks.end(&remote);
    if detached.is_ok() {
        while forget(names, remote.clone()).await? {}
    }
    Ok(detached)
}

/// Requests another scan of the store of an attached remote.
pub(crate) async fn refresh(
    names: &SqliteNames,
    name: String,
) -> Result<Result<v1::Remote, AttachRefusal>, Fault> {
    let work = move |db: &Connection| {
        if let Err(refusal) = need(db, &name)? {
            return Ok(Err(refusal));
        }
        remotes::request_scan(db, &name)?;
        shown(db, &name)
    };
    names.database().write(work).await
}

/// Returns the remotes whose stores a node has to scan.
pub(crate) fn of_node(db: &Connection, node: u32) -> Result<Vec<v1::Remote>, Fault> {
    let mut remotes = remotes::all(db)?;
    remotes.retain(|remote| {
        let attachment = remote.attachment.as_ref();
        attachment.is_some_and(|attachment| attachment.node == node)
    });
    Ok(remotes)
}

/// Returns the objects on a page of a store's list that differ from the known objects, and marks the page's known objects as found.
pub(crate) fn look(
    (db, looks): (&Connection, &StoreScans),
    request: &v1::LookRequest,
) -> Result<Result<Vec<v1::Differs>, AttachRefusal>, Fault> {
    if request.page.len() > PAGE_MAX {
        return Ok(Err(AttachRefusal::Page));
    }
    match need(db, &request.remote)? {
        Ok(attachment) if attachment.directory == request.directory => {}
        // The remote was attached to another directory in the meantime.
        Ok(_) => return Ok(Err(AttachRefusal::Look)),
        Err(refusal) => return Ok(Err(refusal)),
    }
    if request.first {
        looks.begin(&request.remote, request.look);
    }
    let paths = request.page.iter().map(|at| at.path.as_str());
    let known = remotes::followed(db, &request.remote, paths)?;
    let (mut there, mut differ) = (Vec::new(), Vec::new());
    for ((index, at), known) in (0_u32..).zip(&request.page).zip(known) {
        let object = match known {
            None => 0,
            Some(known) => {
                there.push(known.number);
                if known.size == at.size && known.tag == at.tag {
                    continue;
                }
                known.object
            }
        };
        differ.push(v1::Differs { index, object });
    }
    let mark = |look: &mut StoreScan| there.iter().for_each(|&number| look.mark(number));
    let marked = looks.with((&request.remote, request.look), mark);
    Ok(marked.map(|()| differ))
}

/// Stores the objects that a scan has found.
pub(crate) async fn follow(
    (names, looks): (&SqliteNames, &StoreScans),
    request: v1::FollowRequest,
) -> Result<Result<(), AttachRefusal>, Fault> {
    if request.followed.len() > PAGE_MAX {
        return Ok(Err(AttachRefusal::Page));
    }
    let key = (request.remote.clone(), request.look);
    let work = move |db: &Connection| {
        if let Err(refusal) = need(db, &request.remote)? {
            return Ok(Err(refusal));
        }
        remotes::follow(db, &request.remote, &request.followed).map(Ok)
    };
    let numbers = match names.database().write(work).await? {
        Ok(numbers) => numbers,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mark = |look: &mut StoreScan| numbers.iter().for_each(|&number| look.mark(number));
    Ok(looks.with((&key.0, key.1), mark))
}

/// Returns some of the known objects that the scan has not found.
pub(crate) fn missing(
    (db, looks): (&Connection, &StoreScans),
    request: &v1::MissingRequest,
) -> Result<Result<v1::MissingReply, AttachRefusal>, Fault> {
    let mut missing = remotes::followed_after(db, &request.remote, request.after, PAGE_MAX)?;
    let end = missing.len() < PAGE_MAX;
    let last = missing.last().map_or(request.after, |one| one.number);
    let unseen = looks.with((&request.remote, request.look), |look| {
        missing.retain(|one| !look.has(one.number));
    });
    Ok(unseen.map(|()| v1::MissingReply { missing, end, last }))
}

/// Returns the directory and the file at a path below a directory, or `None` if the path contains a symbolic link.
fn walk(
    tx: &Tx<'_>,
    directory: &str,
    path: &str,
) -> Result<Option<(InodeRecord, InodeRecord)>, Fault> {
    let mut parent = InodeRecord::get(tx.db, Inode::ROOT.0)?;
    let mut vnode = parent.clone();
    let parts = directory.split('/').chain(path.split('/'));
    for part in parts.filter(|part| !part.is_empty()) {
        if !vnode.is_dir() {
            return Ok(None);
        }
        let next = match tx.child(&vnode, part.as_bytes()) {
            Err(Fault::NotFound(_)) => return Ok(None),
            found => found?,
        };
        parent = std::mem::replace(&mut vnode, next);
    }
    Ok((vnode.kind == v1::Kind::File).then_some((parent, vnode)))
}

/// Removes the records of objects that were deleted in the store, and the names of their files, except files with newer content.
pub(crate) async fn leave(
    (names, looks): (&SqliteNames, &StoreScans),
    request: v1::LeaveRequest,
) -> Result<Result<(), AttachRefusal>, Fault> {
    if request.numbers.len() > PAGE_MAX {
        return Ok(Err(AttachRefusal::Page));
    }
    if let Err(refusal) = looks.with((&request.remote, request.look), |_| ()) {
        return Ok(Err(refusal));
    }
    let (shared, now) = (names.shared().clone(), crate::clock::now_ns());
    let work = move |db: &Connection| {
        let attachment = match need(db, &request.remote)? {
            Ok(attachment) => attachment,
            Err(refusal) => return Ok((Err(refusal), Vec::new())),
        };
        let mut changes = Vec::new();
        for number in &request.numbers {
            changes.extend(leave_one(
                db,
                &shared,
                (&attachment.directory, *number),
                now,
            )?);
        }
        Ok((Ok(()), changes))
    };
    let (left, changes) = names.database().write(work).await?;
    tell(names, changes);
    Ok(left)
}

fn leave_one(
    db: &Connection,
    shared: &NamesShared,
    (directory, number): (&str, u64),
    now: i64,
) -> Result<Vec<Change>, Fault> {
    let Some((path, object)) = remotes::followed_at(db, number)? else {
        return Ok(Vec::new());
    };
    let root = Caller::root();
    let mut tx = Tx::new(db, shared, &root, 0, now);
    if let Some((parent, vnode)) = walk(&tx, directory, &path)?
        && vnode.object == object
        && object != 0
    {
        if vnode.writing != 0 {
            // The content that is being written may be the next version: the next scan examines it again.
            return Ok(Vec::new());
        }
        let name = path.rsplit('/').next().unwrap_or(&path);
        tx.unlink(&v1::Unlink {
            parent: parent.ino,
            name: name.as_bytes().to_vec(),
            directory: false,
            time: now,
        })?;
    }
    remotes::unfollow(db, number)?;
    Ok(tx.changes)
}

/// Records the end of a scan of a store.
pub(crate) async fn looked(
    (names, looks): (&SqliteNames, &StoreScans),
    request: v1::LookedRequest,
) -> Result<Result<(), AttachRefusal>, Fault> {
    looks.end(&request.remote);
    let now = crate::clock::now_ns();
    let short = |text: &str| text.chars().take(REASON_CHARS_MAX).collect::<String>();
    let work = move |db: &Connection| {
        let before = match need(db, &request.remote)? {
            Ok(attachment) => attachment,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let well = request.trouble.is_empty();
        let scan = v1::Attachment {
            answered: request.asked,
            looked: if well { now } else { before.looked },
            passed: request.passed,
            example: short(&request.example),
            trouble: short(&request.trouble),
            ..before
        };
        remotes::end_scan(db, &request.remote, &scan)?;
        Ok(Ok(()))
    };
    names.database().write(work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attached_directory_accepts_valid_paths_only() {
        for good in ["/a", "/a/b", "/a b/", "/remotes-2"] {
            assert_eq!(directory(good).unwrap(), good.trim_end_matches('/'));
        }
        for bad in [
            "",
            "/",
            "a",
            "/a//b",
            "/a/../b",
            "/.tidemill/x",
            "/remotes",
            "/remotes/x",
            "/a\nb",
            "/data (old)",
            "/a\"b",
            "/a*",
        ] {
            assert!(directory(bad).is_err(), "{bad}");
        }
        assert!(
            remotes::within("/a", "/a/b")
                && remotes::within("/a", "/a")
                && !remotes::within("/a", "/ab")
        );
    }

    #[test]
    fn script_remote_prefixes_are_replaced_by_attached_directories() {
        let text = r#"input = ["/remotes/c/a", "/remotes/cd/a"]; workdir = "/remotes/c"; args = ["cat /remotes/c/a"];"#;
        let plain =
            r#"input = ["/f/a", "/remotes/cd/a"]; workdir = "/f"; args = ["cat /remotes/c/a"];"#;
        let f = "/f".to_owned();
        let directory = |remote: &str| (remote == "c").then_some(&f);
        assert_eq!(named(text, directory), plain);
        assert_eq!(
            named("<pattern>/remotes/c/*</pattern>", directory),
            "<pattern>/f/*</pattern>"
        );
    }

    #[test]
    fn store_scan_keeps_found_marks_until_next_scan_begins() {
        let looks = StoreScans::default();
        looks.begin("one", 7);
        looks.with(("one", 7), |look| look.mark(130)).unwrap();
        let has = |number| looks.with(("one", 7), |look| look.has(number)).unwrap();
        assert!(has(130) && !has(129) && !has(1 << 40));
        assert!(looks.with(("one", 8), |_| ()).is_err());
        looks.begin("one", 8);
        assert!(!looks.with(("one", 8), |look| look.has(130)).unwrap());
        looks.end("one");
        assert!(looks.with(("one", 8), |_| ()).is_err());
    }
}
