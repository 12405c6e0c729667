//! What every namespace operation is given: the database, who asks, and where changes are noted.

use super::budget::{Budget, COMPONENT, UPWARDS};
use super::fault::Fault;
use super::node::{Caller, Node, READ, SEARCH, WRITE};
use super::shared::Shared;
use super::sight::Sight;
use rusqlite::{Connection, OptionalExtension, params};
use std::str::FromStr;
use tidemill_core::id::Inode;
use tidemill_wire::control;

/// Longest name of one entry, in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// Longest path and symbolic link, in bytes.
pub(crate) const PATH_MAX: usize = 4095;
/// Symbolic links followed in one path.
const LINKS_MAX: usize = 40;
/// Directories that may lie in each other before a walk upwards is given up.
pub(crate) const DEPTH_MAX: usize = 2048;

/// Something that others may have cached and that is different now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Attributes or data of an inode.
    Node(u64),
    /// An entry of a directory.
    Entry(u64, Vec<u8>),
    /// A version of this inode was sealed.
    Sealed(u64),
    /// One of several writers of this inode has closed it.
    Closed(u64),
    /// Names moved: paths that led nowhere may lead somewhere.
    Moved,
    /// Who may do what with an inode.
    Rights(u64),
}

/// One request at work.
pub(crate) struct Tx<'a> {
    pub(crate) db: &'a Connection,
    pub(crate) shared: &'a Shared,
    pub(crate) caller: &'a Caller,
    /// The mount that asks; 0 if none.
    pub(crate) session: u64,
    /// The server's clock, nanoseconds since the Unix epoch.
    pub(crate) now: i64,
    pub(crate) changes: Vec<Change>,
    /// What the request may still cost.
    pub(crate) budget: Budget,
}

/// A name for people.
pub(crate) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Refuses what can't be the name of an entry.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Fault> {
    if name.len() > NAME_MAX {
        return Err(Fault::NameTooLong(name.len()));
    }
    if name.is_empty() {
        return Err(Fault::NotFound("an empty name".into()));
    }
    if name == b"." || name == b".." || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Fault::BadName(shown(name)));
    }
    Ok(())
}

/// Refuses to make what every mount would hide behind its control folder.
pub(crate) fn check_free(parent: u64, name: &[u8]) -> Result<(), Fault> {
    if parent == Inode::ROOT.0 && control::is_reserved(name) {
        return Err(Fault::Reserved(shown(name)));
    }
    Ok(())
}

impl<'a> Tx<'a> {
    pub(crate) fn new(
        db: &'a Connection,
        shared: &'a Shared,
        caller: &'a Caller,
        session: u64,
        now: i64,
    ) -> Self {
        Self {
            db,
            shared,
            caller,
            session,
            now,
            changes: Vec::new(),
            budget: Budget::unbounded(),
        }
    }

    /// The same with the bounds of a caller's request.
    pub(crate) fn bounded(mut self) -> Self {
        self.budget = Budget::of(self.caller);
        self
    }

    /// The server's clock, unless the client says when.
    pub(crate) fn time(&self, stated: i64) -> i64 {
        if stated == 0 { self.now } else { stated }
    }

    /// Refuses unless the caller has the permissions on this node.
    pub(crate) fn need(&self, node: &Node, want: u32, what: &str) -> Result<(), Fault> {
        if self.caller.may(node, want) {
            Ok(())
        } else {
            Err(Fault::Denied(what.into(), self.caller.uid))
        }
    }

    /// Refuses unless the caller owns the node.
    pub(crate) fn need_owner(&self, node: &Node) -> Result<(), Fault> {
        if self.caller.above() || self.caller.uid == node.uid {
            Ok(())
        } else {
            Err(Fault::NotOwner(self.called(node.ino)))
        }
    }

    /// The node, if the caller could have come to it by a path. An inode number alone gives no rights.
    pub(crate) fn reach(&self, ino: u64) -> Result<Node, Fault> {
        let node = Node::get(self.db, ino)?;
        if !self.caller.above() {
            self.check_reach(&node)?;
        }
        Ok(node)
    }

    fn check_reach(&self, node: &Node) -> Result<(), Fault> {
        let mut dirs = Vec::new();
        if node.is_dir() {
            dirs.push(node.parent);
        } else {
            let mut statement = self
                .db
                .prepare_cached("SELECT parent FROM dirent WHERE ino = ?1")?;
            let rows = statement.query_map([node.ino.cast_signed()], |row| row.get::<_, i64>(0))?;
            for row in rows {
                dirs.push(row?.cast_unsigned());
            }
        }
        for dir in dirs {
            if self.may_walk_to(dir)? {
                return Ok(());
            }
        }
        Err(Fault::Denied(self.called(node.ino), self.caller.uid))
    }

    fn may_walk_to(&self, dir: u64) -> Result<bool, Fault> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            self.budget.look_up(UPWARDS)?;
            let node = Node::get(self.db, at)?;
            if !self.caller.may(&node, SEARCH) {
                return Ok(false);
            }
            if at == Inode::ROOT.0 {
                return Ok(true);
            }
            at = node.parent;
        }
        Ok(false)
    }

    /// The directory, reachable, with the permissions `want` for changing or reading it.
    pub(crate) fn reach_dir(&self, ino: u64, want: u32, name: &[u8]) -> Result<Node, Fault> {
        let node = self.reach(ino)?;
        if !node.is_dir() {
            return Err(Fault::NotDirectory(self.called(ino)));
        }
        if !self.caller.may(&node, want) {
            return Err(Fault::Denied(shown(name), self.caller.uid));
        }
        Ok(node)
    }

    /// A directory in which the caller may make and remove entries.
    pub(crate) fn writable_dir(&self, ino: u64, name: &[u8]) -> Result<Node, Fault> {
        let node = self.reach_dir(ino, WRITE | SEARCH, name)?;
        // A removed directory that somebody still stands in takes no new entries.
        if node.nlink == 0 {
            Err(Fault::NotFound(shown(name)))
        } else {
            Ok(node)
        }
    }

    /// The entry of a directory; `.` and `..` work too.
    pub(crate) fn child(&self, dir: &Node, name: &[u8]) -> Result<Node, Fault> {
        if name.len() > NAME_MAX {
            return Err(Fault::NameTooLong(name.len()));
        }
        let found = match name {
            b"." => Some(dir.clone()),
            b".." => Node::find(self.db, dir.parent)?,
            _ => Node::child(self.db, dir.ino, name)?,
        };
        found.ok_or_else(|| Fault::NotFound(shown(name)))
    }

    /// Follows a path from the root. The last symbolic link is followed only if `follow`.
    pub(crate) fn resolve(&self, path: &[u8], follow: bool) -> Result<Node, Fault> {
        self.follow(path, follow, &mut None)
    }

    /// Where the last absolute symbolic link on the way of a path leads. On a mount it leads to a path of the host.
    pub(crate) fn absolute_link(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mut absolute = None;
        // The links that were followed until nothing was found count.
        let _ = self.follow(path, true, &mut absolute);
        absolute
    }

    fn follow(
        &self,
        path: &[u8],
        follow: bool,
        absolute: &mut Option<Vec<u8>>,
    ) -> Result<Node, Fault> {
        if path.len() > PATH_MAX {
            return Err(Fault::NameTooLong(path.len()));
        }
        // Components still to be walked, the next one last.
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut must_be_dir = path.ends_with(b"/");
        let mut node = Node::get(self.db, Inode::ROOT.0)?;
        let mut links = 0;
        while let Some(name) = todo.pop() {
            self.budget.look_up(COMPONENT)?;
            if !node.is_dir() {
                return Err(Fault::NotDirectory(shown(path)));
            }
            self.need(&node, SEARCH, &shown(path))?;
            let next = match self.child(&node, &name) {
                Err(Fault::NotFound(_)) => return Err(Fault::NotFound(shown(path))),
                other => other?,
            };
            let last = todo.is_empty();
            if next.kind != tidemill_wire::v1::Kind::Symlink || (last && !follow && !must_be_dir) {
                node = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Fault::Loop(shown(path)));
            }
            must_be_dir |= last && next.target.ends_with(b"/");
            if next.target.starts_with(b"/") {
                node = Node::get(self.db, Inode::ROOT.0)?;
                *absolute = Some(next.target.clone());
            }
            todo.extend(components(&next.target));
        }
        if must_be_dir && !node.is_dir() {
            return Err(Fault::NotDirectory(shown(path)));
        }
        Ok(node)
    }

    /// Today's path of an inode: of a file with several names, one of them; `None` if it has none.
    pub(crate) fn path_of(&self, ino: u64) -> Result<Option<Vec<u8>>, Fault> {
        path_of(self.db, ino)
    }

    /// The element that the nearest directory upwards asks for by its folder attribute.
    pub(crate) fn folder_element(&self, dir: &Node) -> Result<Option<u32>, Fault> {
        if !self.shared.folder_elements() {
            return Ok(None);
        }
        self.folder_attribute(dir, super::attribute::FOLDER_ELEMENT)
    }

    /// What the nearest directory upwards has as this attribute.
    pub(crate) fn folder_attribute<T: FromStr>(
        &self,
        dir: &Node,
        name: &[u8],
    ) -> Result<Option<T>, Fault> {
        let mut at = dir.ino;
        let mut parent = dir.parent;
        for _ in 0..DEPTH_MAX {
            self.budget.look_up(1)?;
            let mut statement = self
                .db
                .prepare_cached("SELECT value FROM xattr WHERE ino = ?1 AND name = ?2")?;
            let key = params![at.cast_signed(), name];
            let value: Option<Vec<u8>> = statement.query_row(key, |row| row.get(0)).optional()?;
            if let Some(value) = value {
                return Ok(std::str::from_utf8(&value)
                    .ok()
                    .and_then(|text| text.trim().parse().ok()));
            }
            if at == Inode::ROOT.0 {
                break;
            }
            at = parent;
            parent = Node::get(self.db, at)?.parent;
        }
        Ok(None)
    }

    /// Notes that an entry appeared, vanished or points elsewhere.
    pub(crate) fn changed_entry(&mut self, parent: u64, name: &[u8]) {
        self.changes.push(Change::Entry(parent, name.to_vec()));
        self.changes.push(Change::Node(parent));
    }

    fn need_here(&self, node: &Node, want: u32) -> Result<(), Fault> {
        if self.caller.may(node, want) {
            return Ok(());
        }
        Err(Fault::Denied(self.called(node.ino), self.caller.uid))
    }

    /// What an inode is called in an error: its path, if the caller may see that. A number alone tells no names.
    pub(crate) fn called(&self, ino: u64) -> String {
        self.seen_path(ino).unwrap_or_else(|| "this file".into())
    }

    /// The same for an entry of a folder.
    pub(crate) fn called_in(&self, folder: u64, name: &[u8]) -> String {
        let path = self.seen_path(folder).unwrap_or_default();
        let path = path.trim_end_matches('/');
        if path.is_empty() && folder != Inode::ROOT.0 {
            return shown(name);
        }
        format!("{path}/{}", shown(name))
    }

    fn seen_path(&self, ino: u64) -> Option<String> {
        if ino == Inode::ROOT.0 {
            return Some("/".into());
        }
        let seen = Sight::new(self, self.caller).file(ino).ok()??;
        seen.allowed.then(|| shown(&seen.path))
    }

    /// Read permission on a node.
    pub(crate) fn need_read(&self, node: &Node) -> Result<(), Fault> {
        self.need_here(node, READ)
    }

    /// Write permission on a node.
    pub(crate) fn need_write(&self, node: &Node) -> Result<(), Fault> {
        self.need_here(node, WRITE)
    }
}

/// The parts of a path in reverse order.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty())
        .rev()
        .map(<[u8]>::to_vec)
        .collect()
}

/// See [`Tx::path_of`].
pub(crate) fn path_of(db: &Connection, ino: u64) -> Result<Option<Vec<u8>>, Fault> {
    if ino == Inode::ROOT.0 {
        return Ok(Some(b"/".to_vec()));
    }
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut at = ino.cast_signed();
    let mut statement =
        db.prepare_cached("SELECT parent, name FROM dirent WHERE ino = ?1 LIMIT 1")?;
    while at != Inode::ROOT.0.cast_signed() {
        let found: Option<(i64, Vec<u8>)> = statement
            .query_row([at], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((parent, name)) = found else {
            return Ok(None);
        };
        parts.push(name);
        at = parent;
        if parts.len() > DEPTH_MAX {
            return Ok(None);
        }
    }
    let mut path = Vec::new();
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    Ok(Some(path))
}
