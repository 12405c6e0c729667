//! Directories of the cluster that are bound to a store: the bindings, the known objects of each store, and the objects that were deleted. A
//! node reads the store itself ([0067](../../../docs/decisions/0067-attached-directories.md)).

use crate::bridges;
use crate::names::attribute::DIRECTORY_NODE;
use crate::names::shared::Shared;
use crate::names::transaction::{Change, Tx};
use crate::names::vnode::Vnode;
use crate::names::{Caller, Changed, Fault, SqliteNames};
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::BTreeMap;
use tidemill_core::follow::directory_mode;
use tidemill_core::id::Inode;
use tidemill_wire::v1;

/// Path at which bridges are visible, and prefix by which scripts name their stores.
const SEEN: &str = "/bridges";
const BELOW: &str = "/bridges/";
/// Characters that a bound directory's path must not contain, since they have another meaning in strings and patterns of scripts.
const SPECIAL: [char; 10] = ['"', '\\', '<', '&', '$', '*', '?', '[', '(', ')'];
/// Maximum number of a store's objects in one request.
const PAGE_MAX: usize = 1000;
/// Maximum length of a node's stored message, in characters.
const SAID_CHARS_MAX: usize = 500;
/// Number of a bridge's rows that are deleted in one transaction.
const FORGET_MAX: u32 = 10_000;

/// Reason why an operation on a binding is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("bridge {0} does not exist: `tidemill bridge list`")]
    NoBridge(String),
    #[error("bridge {0} is not bound to a directory: `tidemill bridge bind {0} /DIRECTORY`")]
    NotBound(String),
    #[error("bridge {0} is bound to {1}: `tidemill bridge unbind {0}` first")]
    Bound(String, String),
    #[error(
        "{0} can't be bound: give the full path of a directory, but not of the root, {SEEN} or a directory below .tidemill, without \" \\ < & $ * ? [ ( )"
    )]
    Directory(String),
    #[error("{0} and {1}, to which bridge {2} is bound, are nested: give another directory")]
    Nested(String, String, String),
    #[error("the scan is not known: begin it again")]
    Look,
    #[error("too many entries in a request: at most {PAGE_MAX}")]
    Page,
}

/// One scan of a store by a node.
#[derive(Debug, Default)]
struct Look {
    number: u64,
    /// Bitmap of the numbers of rows whose objects were found.
    seen: Vec<u64>,
}

impl Look {
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

/// The scans in progress, by the names of their bridges.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<BTreeMap<String, Look>>);

impl Looks {
    fn begin(&self, bridge: &str, number: u64) {
        let seen = Vec::new();
        self.0
            .lock()
            .insert(bridge.to_owned(), Look { number, seen });
    }

    fn end(&self, bridge: &str) {
        self.0.lock().remove(bridge);
    }

    fn with<T>(
        &self,
        (bridge, number): (&str, u64),
        work: impl FnOnce(&mut Look) -> T,
    ) -> Result<T, Refusal> {
        let mut looks = self.0.lock();
        let look = looks.get_mut(bridge).filter(|look| look.number == number);
        look.map(work).ok_or(Refusal::Look)
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<(String, v1::Binding)> {
    let number = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned);
    let binding = v1::Binding {
        directory: row.get(1)?,
        node: row.get(2)?,
        every_s: row.get(3)?,
        uid: row.get(4)?,
        gid: row.get(5)?,
        mode: row.get(6)?,
        asked: number(7)?,
        answered: number(8)?,
        looked: row.get(9)?,
        files: number(10)?,
        passed: number(11)?,
        example: row.get(12)?,
        trouble: row.get(13)?,
    };
    Ok((row.get(0)?, binding))
}

/// Returns all bindings, by the names of their bridges.
pub(crate) fn all(db: &Connection) -> Result<BTreeMap<String, v1::Binding>, Fault> {
    let mut statement = db.prepare_cached("SELECT * FROM binding")?;
    let rows = statement.query_map([], read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(crate) fn one(db: &Connection, bridge: &str) -> Result<Option<v1::Binding>, Fault> {
    let mut statement = db.prepare_cached("SELECT * FROM binding WHERE bridge = ?1")?;
    let found = statement.query_row([bridge], read).optional()?;
    Ok(found.map(|(_, binding)| binding))
}

fn need(db: &Connection, bridge: &str) -> Result<Result<v1::Binding, Refusal>, Fault> {
    Ok(one(db, bridge)?.ok_or_else(|| Refusal::NotBound(bridge.to_owned())))
}

/// Replaces bridge names in a script, rule or hook: strings that begin with `"/bridges/NAME/…"` name the directory to which the bridge is
/// bound. If the cluster has a directory `/bridges`, the strings mean that directory and stay unchanged.
pub(crate) fn plain(names: &SqliteNames, text: &mut String) -> Result<(), Fault> {
    if !text.contains(BELOW) {
        return Ok(());
    }
    let bound = names.database().read(|db| match is_directory(db)? {
        true => Ok(BTreeMap::new()),
        false => all(db),
    })?;
    if !bound.is_empty() {
        *text = named(text, |bridge| Some(&bound.get(bridge)?.directory));
    }
    Ok(())
}

/// Replaces bridge names at the beginning of strings with their directories.
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
    let found = Vnode::child(db, Inode::ROOT.0, name)?;
    Ok(found.is_some_and(|vnode| vnode.is_dir()))
}

/// Whether a path is in a directory whose store, on that node, is read-only.
pub(crate) fn is_read_only(db: &Connection, node: i64, path: &[u8]) -> Result<bool, Fault> {
    let path = String::from_utf8_lossy(path);
    let not_written = not_written(db, &path)?;
    let mut nodes = not_written.iter();
    Ok(nodes.any(|&not_written| i64::from(not_written) == node))
}

/// Returns the nodes whose stores must not be written by files of this path.
pub(crate) fn not_written(db: &Connection, path: &str) -> Result<Vec<u32>, Fault> {
    let sql = "SELECT directory, node FROM binding JOIN bridge ON name = bridge WHERE read_only";
    let mut statement = db.prepare_cached(sql)?;
    let bound = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
    let mut bound = bound.collect::<Result<Vec<_>, _>>()?;
    bound.retain(|(directory, _)| within(directory, path));
    Ok(bound.into_iter().map(|(_, node)| node).collect())
}

/// Returns advice for the first of these paths that is below `/bridges` and in no directory of the cluster.
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
    let bridge = below.split('/').next().unwrap_or(below);
    Ok(Some(if one(db, bridge)?.is_some() {
        format!(
            "{path}: name a file of a bridge by its full path, in quotation marks, as \"{SEEN}/{bridge}/…\""
        )
    } else if bridges::one(db, bridge)?.is_some() {
        format!(
            "{path}: bridge {bridge} is not bound to a directory of the cluster: bind it (`tidemill bridge bind {bridge} /DIRECTORY`), or import the files"
        )
    } else {
        format!("{path}: bridge {bridge} does not exist: `tidemill bridge list`")
    }))
}

/// Returns a directory's path in its stored form.
fn directory(path: &str) -> Result<String, Refusal> {
    let wrong = || Refusal::Directory(path.to_owned());
    let clean = path.trim_end_matches('/');
    let parts = clean.strip_prefix('/').ok_or_else(wrong)?;
    let good = |part: &str| !matches!(part, "" | "." | ".." | ".tidemill");
    let at_bridges = clean == SEEN || clean.starts_with(BELOW);
    let special = |one: char| one.is_control() || SPECIAL.contains(&one);
    match parts.split('/').all(good) && !at_bridges && !parts.chars().any(special) {
        true => Ok(clean.to_owned()),
        false => Err(wrong()),
    }
}

fn within(above: &str, below: &str) -> bool {
    let rest = below.strip_prefix(above);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Binds a bridge to a directory, which is created if it does not exist.
pub(crate) async fn bind(
    names: &SqliteNames,
    name: String,
    mut asked: v1::Binding,
) -> Result<Result<v1::Bridge, Refusal>, Fault> {
    // The rows that an earlier binding of this name has left are deleted first.
    while forget(names, name.clone()).await? {}
    let shared = names.shared().clone();
    let now = crate::clock::now_ns();
    let work = move |db: &Connection| {
        asked.directory = match directory(&asked.directory) {
            Ok(directory) => directory,
            Err(refusal) => return Ok((Err(refusal), Vec::new())),
        };
        if bridges::one(db, &name)?.is_none() {
            return Ok((Err(Refusal::NoBridge(name)), Vec::new()));
        }
        for (other, binding) in all(db)? {
            if other == name {
                return Ok((Err(Refusal::Bound(name, binding.directory)), Vec::new()));
            }
            if within(&binding.directory, &asked.directory)
                || within(&asked.directory, &binding.directory)
            {
                let refusal = Refusal::Nested(asked.directory, binding.directory, other);
                return Ok((Err(refusal), Vec::new()));
            }
        }
        let root = Caller::root();
        let mut tx = Tx::new(db, &shared, &root, 0, now);
        match tx.resolve(asked.directory.as_bytes(), false) {
            Ok(vnode) if vnode.is_dir() => {}
            Ok(_) => return Ok((Err(Refusal::Directory(asked.directory)), Vec::new())),
            Err(Fault::NotFound(_)) => {
                let ino = crate::names::ids::reserve(db, "inode", 1)?;
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
        let sql = "INSERT INTO binding(bridge, directory, node, every_s, uid, gid, mode) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        db.prepare_cached(sql)?.execute(params![
            name,
            asked.directory,
            asked.node,
            asked.every_s,
            asked.uid,
            asked.gid,
            asked.mode & 0o777
        ])?;
        Ok((Ok(shown(db, &name)?), tx.changes))
    };
    let (bound, changes) = names.database().write(work).await?;
    tell(names, changes);
    Ok(bound.and_then(|bridge| bridge))
}

/// Returns a bridge with its binding.
fn shown(db: &Connection, name: &str) -> Result<Result<v1::Bridge, Refusal>, Fault> {
    let Some(mut bridge) = bridges::one(db, name)? else {
        return Ok(Err(Refusal::NoBridge(name.to_owned())));
    };
    bridge.binding = one(db, name)?;
    Ok(Ok(bridge))
}

fn tell(names: &SqliteNames, changes: Vec<Change>) {
    if !changes.is_empty() {
        let session = 0;
        names.tell(Changed { session, changes });
    }
}

/// Deletes some of the known objects of a bridge that is not bound. Returns whether there are more.
async fn forget(names: &SqliteNames, bridge: String) -> Result<bool, Fault> {
    let work = move |db: &Connection| {
        if one(db, &bridge)?.is_some() {
            return Ok(false);
        }
        let sql = "DELETE FROM followed WHERE number IN (SELECT number FROM followed WHERE bridge = ?1 LIMIT ?2)";
        let gone = db
            .prepare_cached(sql)?
            .execute(params![bridge, FORGET_MAX])?;
        Ok(gone == FORGET_MAX as usize)
    };
    names.database().write(work).await
}

pub(crate) async fn unbind(
    (names, looks): (&SqliteNames, &Looks),
    name: String,
) -> Result<Result<v1::Bridge, Refusal>, Fault> {
    let bridge = name.clone();
    let (shared, now) = (names.shared().clone(), crate::clock::now_ns());
    let work = move |db: &Connection| {
        let binding = match need(db, &name)? {
            Ok(binding) => binding,
            Err(refusal) => return Ok((Err(refusal), Vec::new())),
        };
        let before = shown(db, &name)?;
        db.prepare_cached("DELETE FROM binding WHERE bridge = ?1")?
            .execute([&name])?;
        // New files are placed like all other files from now on.
        let root = Caller::root();
        let mut tx = Tx::new(db, &shared, &root, 0, now);
        if let Ok(vnode) = tx.resolve(binding.directory.as_bytes(), false) {
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
    let (unbound, changes) = names.database().write(work).await?;
    tell(names, changes);
    looks.end(&bridge);
    if unbound.is_ok() {
        while forget(names, bridge.clone()).await? {}
    }
    Ok(unbound)
}

/// Orders another scan of a store.
pub(crate) async fn refresh(
    names: &SqliteNames,
    name: String,
) -> Result<Result<v1::Bridge, Refusal>, Fault> {
    let work = move |db: &Connection| {
        if let Err(refusal) = need(db, &name)? {
            return Ok(Err(refusal));
        }
        db.prepare_cached("UPDATE binding SET asked = asked + 1 WHERE bridge = ?1")?
            .execute([&name])?;
        shown(db, &name)
    };
    names.database().write(work).await
}

/// Returns the bridges whose stores a node is to scan.
pub(crate) fn of_node(db: &Connection, node: u32) -> Result<Vec<v1::Bridge>, Fault> {
    let mut bridges = bridges::all(db)?;
    bridges.retain(|bridge| {
        let binding = bridge.binding.as_ref();
        binding.is_some_and(|binding| binding.node == node)
    });
    Ok(bridges)
}

/// Returns the objects of a store's page that differ from the known ones, and marks all known objects of the page as found.
pub(crate) fn look(
    (db, looks): (&Connection, &Looks),
    request: &v1::LookRequest,
) -> Result<Result<Vec<v1::Differs>, Refusal>, Fault> {
    if request.page.len() > PAGE_MAX {
        return Ok(Err(Refusal::Page));
    }
    match need(db, &request.bridge)? {
        Ok(binding) if binding.directory == request.directory => {}
        // The bridge was bound to another directory in the meantime.
        Ok(_) => return Ok(Err(Refusal::Look)),
        Err(refusal) => return Ok(Err(refusal)),
    }
    if request.first {
        looks.begin(&request.bridge, request.look);
    }
    let sql = "SELECT number, size, tag, object FROM followed WHERE bridge = ?1 AND path = ?2";
    let mut statement = db.prepare_cached(sql)?;
    let (mut there, mut differ) = (Vec::new(), Vec::new());
    for (index, at) in (0_u32..).zip(&request.page) {
        let found = statement.query_row(params![request.bridge, at.path], |row| {
            let (size, tag): (i64, String) = (row.get(1)?, row.get(2)?);
            let same = size == at.size.cast_signed() && tag == at.tag;
            let object = row.get::<_, i64>(3)?.cast_unsigned();
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), same, object))
        });
        let object = match found.optional()? {
            None => 0,
            Some((number, same, object)) => {
                there.push(number);
                if same {
                    continue;
                }
                object
            }
        };
        differ.push(v1::Differs { index, object });
    }
    let mark = |look: &mut Look| there.iter().for_each(|&number| look.mark(number));
    let marked = looks.with((&request.bridge, request.look), mark);
    Ok(marked.map(|()| differ))
}

/// Stores the found objects.
pub(crate) async fn follow(
    (names, looks): (&SqliteNames, &Looks),
    request: v1::FollowRequest,
) -> Result<Result<(), Refusal>, Fault> {
    if request.followed.len() > PAGE_MAX {
        return Ok(Err(Refusal::Page));
    }
    let key = (request.bridge.clone(), request.look);
    let work = move |db: &Connection| {
        if let Err(refusal) = need(db, &request.bridge)? {
            return Ok(Err(refusal));
        }
        let sql = "INSERT INTO followed(bridge, path, size, tag, object) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT(bridge, path) DO UPDATE SET size = ?3, tag = ?4, object = ?5 RETURNING number";
        let mut statement = db.prepare_cached(sql)?;
        let mut numbers = Vec::new();
        for followed in &request.followed {
            let at = followed.at.clone().unwrap_or_default();
            let row = params![
                request.bridge,
                at.path,
                at.size.cast_signed(),
                at.tag,
                followed.object.cast_signed()
            ];
            let number: i64 = statement.query_row(row, |row| row.get(0))?;
            numbers.push(number.cast_unsigned());
        }
        Ok(Ok(numbers))
    };
    let numbers = match names.database().write(work).await? {
        Ok(numbers) => numbers,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mark = |look: &mut Look| numbers.iter().for_each(|&number| look.mark(number));
    Ok(looks.with((&key.0, key.1), mark))
}

/// Returns some of the known objects that were not found.
pub(crate) fn missing(
    (db, looks): (&Connection, &Looks),
    request: &v1::MissingRequest,
) -> Result<Result<v1::MissingReply, Refusal>, Fault> {
    // This selects by number, instead of all rows of a bridge for each page.
    let sql = "SELECT number, path FROM followed WHERE +bridge = ?1 AND number > ?2 ORDER BY number LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let key = params![
        request.bridge,
        request.after.cast_signed(),
        i64::try_from(PAGE_MAX).unwrap_or(i64::MAX)
    ];
    let rows = statement.query_map(key, |row| {
        Ok(v1::MissingOne {
            number: row.get::<_, i64>(0)?.cast_unsigned(),
            path: row.get(1)?,
        })
    })?;
    let mut missing = rows.collect::<Result<Vec<_>, _>>()?;
    let end = missing.len() < PAGE_MAX;
    let last = missing.last().map_or(request.after, |one| one.number);
    let unseen = looks.with((&request.bridge, request.look), |look| {
        missing.retain(|one| !look.has(one.number));
    });
    Ok(unseen.map(|()| v1::MissingReply { missing, end, last }))
}

/// Returns the directory and the file of a path below a directory, or `None` if a link is on the way.
fn walk(tx: &Tx<'_>, directory: &str, path: &str) -> Result<Option<(Vnode, Vnode)>, Fault> {
    let mut parent = Vnode::get(tx.db, Inode::ROOT.0)?;
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

/// Forgets objects that were deleted in the store, and removes the names of their files, unless a client has written other content there.
pub(crate) async fn leave(
    (names, looks): (&SqliteNames, &Looks),
    request: v1::LeaveRequest,
) -> Result<Result<(), Refusal>, Fault> {
    if request.numbers.len() > PAGE_MAX {
        return Ok(Err(Refusal::Page));
    }
    if let Err(refusal) = looks.with((&request.bridge, request.look), |_| ()) {
        return Ok(Err(refusal));
    }
    let (shared, now) = (names.shared().clone(), crate::clock::now_ns());
    let work = move |db: &Connection| {
        let binding = match need(db, &request.bridge)? {
            Ok(binding) => binding,
            Err(refusal) => return Ok((Err(refusal), Vec::new())),
        };
        let mut changes = Vec::new();
        for number in &request.numbers {
            changes.extend(leave_one(db, &shared, (&binding.directory, *number), now)?);
        }
        Ok((Ok(()), changes))
    };
    let (left, changes) = names.database().write(work).await?;
    tell(names, changes);
    Ok(left)
}

fn leave_one(
    db: &Connection,
    shared: &Shared,
    (directory, number): (&str, u64),
    now: i64,
) -> Result<Vec<Change>, Fault> {
    let mut statement = db.prepare_cached("SELECT path, object FROM followed WHERE number = ?1")?;
    let found = statement.query_row([number.cast_signed()], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, i64>(1)?.cast_unsigned(),
        ))
    });
    let Some((path, object)) = found.optional()? else {
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
    db.prepare_cached("DELETE FROM followed WHERE number = ?1")?
        .execute([number.cast_signed()])?;
    Ok(tx.changes)
}

/// Records the end of a scan.
pub(crate) async fn looked(
    (names, looks): (&SqliteNames, &Looks),
    request: v1::LookedRequest,
) -> Result<Result<(), Refusal>, Fault> {
    looks.end(&request.bridge);
    let now = crate::clock::now_ns();
    let short = |text: &str| text.chars().take(SAID_CHARS_MAX).collect::<String>();
    let work = move |db: &Connection| {
        let before = match need(db, &request.bridge)? {
            Ok(binding) => binding,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let well = request.trouble.is_empty();
        let sql = "UPDATE binding SET answered = ?2, looked = ?3, passed = ?4, example = ?5, trouble = ?6,
            files = (SELECT count(*) FROM followed WHERE bridge = ?1) WHERE bridge = ?1";
        let row = params![
            request.bridge,
            request.asked.cast_signed(),
            if well { now } else { before.looked },
            request.passed.cast_signed(),
            short(&request.example),
            short(&request.trouble)
        ];
        db.prepare_cached(sql)?.execute(row)?;
        Ok(Ok(()))
    };
    names.database().write(work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_directory_accepts_valid_paths_only() {
        for good in ["/a", "/a/b", "/a b/", "/bridges-2"] {
            assert_eq!(directory(good).unwrap(), good.trim_end_matches('/'));
        }
        for bad in [
            "",
            "/",
            "a",
            "/a//b",
            "/a/../b",
            "/.tidemill/x",
            "/bridges",
            "/bridges/x",
            "/a\nb",
            "/data (old)",
            "/a\"b",
            "/a*",
        ] {
            assert!(directory(bad).is_err(), "{bad}");
        }
        assert!(within("/a", "/a/b") && within("/a", "/a") && !within("/a", "/ab"));
    }

    #[test]
    fn named_replaces_bridge_prefixes_with_bound_directories() {
        let text = r#"input = ["/bridges/c/a", "/bridges/cd/a"]; workdir = "/bridges/c"; args = ["cat /bridges/c/a"];"#;
        let plain =
            r#"input = ["/f/a", "/bridges/cd/a"]; workdir = "/f"; args = ["cat /bridges/c/a"];"#;
        let f = "/f".to_owned();
        let directory = |bridge: &str| (bridge == "c").then_some(&f);
        assert_eq!(named(text, directory), plain);
        assert_eq!(
            named("<pattern>/bridges/c/*</pattern>", directory),
            "<pattern>/f/*</pattern>"
        );
    }

    #[test]
    fn look_remembers_marks_until_another_look_begins() {
        let looks = Looks::default();
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
