//! Context of every namespace operation: the database, the caller, and the list of changes.

use super::budget::{Budget, COMPONENT, UPWARDS};
use super::fault::Fault;
use super::shared::NamesShared;
use super::visibility::Visibility;
use super::vnode::{Caller, InodeRecord, READ, SEARCH, WRITE};
use rusqlite::{Connection, OptionalExtension, params};
use std::str::FromStr;
use tidemill_model::id::Inode;
use tidemill_wire::control;

/// Maximum length of the name of one directory entry, in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// Maximum length of a path and of a symbolic link's target, in bytes.
pub(crate) const PATH_MAX: usize = 4095;
/// Maximum number of symbolic links that are followed in one path.
const LINKS_MAX: usize = 40;
/// Maximum depth of nested directories; a walk towards the root ends with an error beyond that depth.
pub(crate) const DEPTH_MAX: usize = 2048;

/// Change of the namespace that invalidates data in the caches of other clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Attributes or data of this inode changed.
    Vnode(u64),
    /// The entry with this name in the directory with this inode changed.
    Entry(u64, Vec<u8>),
    /// A version of this inode was sealed.
    Sealed(u64),
    /// A mount that was writing this inode together with other mounts has closed the file.
    Closed(u64),
    /// Names moved, so paths that did not exist may exist now.
    Moved,
    /// The permissions of this inode changed.
    Rights(u64),
}

/// Context of a namespace request in progress.
pub(crate) struct Tx<'a> {
    pub(crate) db: &'a Connection,
    pub(crate) shared: &'a NamesShared,
    pub(crate) caller: &'a Caller,
    /// Session of the mount that sent the request; 0 for other clients.
    pub(crate) session: u64,
    /// Time of the server's clock, in nanoseconds since the Unix epoch.
    pub(crate) now: i64,
    pub(crate) changes: Vec<Change>,
    /// Remaining cost that the request may cause.
    pub(crate) budget: Budget,
}

/// Returns the name of a directory entry as readable text.
pub(crate) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Fails if `name` is not valid as the name of a directory entry.
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

/// Fails if `name` is reserved in the directory `parent` for the control directory of mounts.
pub(crate) fn check_free(parent: u64, name: &[u8]) -> Result<(), Fault> {
    if parent == Inode::ROOT.0 && control::is_reserved(name) {
        return Err(Fault::Reserved(shown(name)));
    }
    Ok(())
}

impl<'a> Tx<'a> {
    pub(crate) fn new(
        db: &'a Connection,
        shared: &'a NamesShared,
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

    /// Returns the transaction with the limits of a caller's request.
    pub(crate) fn bounded(mut self) -> Self {
        self.budget = Budget::of(self.caller);
        self
    }

    /// Returns the time that the client sent, or the server's time if the client sent none.
    pub(crate) fn time(&self, stated: i64) -> i64 {
        if stated == 0 { self.now } else { stated }
    }

    /// Fails unless the caller has the permissions `want` on this inode.
    pub(crate) fn need(&self, vnode: &InodeRecord, want: u32, what: &str) -> Result<(), Fault> {
        if self.caller.may(vnode, want) {
            Ok(())
        } else {
            Err(Fault::Denied(what.into(), self.caller.uid))
        }
    }

    /// Fails unless the caller owns the inode.
    pub(crate) fn need_owner(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        if self.caller.above() || self.caller.uid == vnode.uid {
            Ok(())
        } else {
            Err(Fault::NotOwner(self.called(vnode.ino)))
        }
    }

    /// Returns the inode if the caller can reach it by a path. Knowing an inode number gives a caller no rights.
    pub(crate) fn reach(&self, ino: u64) -> Result<InodeRecord, Fault> {
        let vnode = InodeRecord::get(self.db, ino)?;
        if !self.caller.above() {
            self.check_reach(&vnode)?;
        }
        Ok(vnode)
    }

    fn check_reach(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        let mut dirs = Vec::new();
        if vnode.is_dir() {
            dirs.push(vnode.parent);
        } else {
            let mut statement = self
                .db
                .prepare_cached("SELECT parent FROM dirent WHERE ino = ?1")?;
            let rows =
                statement.query_map([vnode.ino.cast_signed()], |row| row.get::<_, i64>(0))?;
            for row in rows {
                dirs.push(row?.cast_unsigned());
            }
        }
        for dir in dirs {
            if self.may_walk_to(dir)? {
                return Ok(());
            }
        }
        Err(Fault::Denied(self.called(vnode.ino), self.caller.uid))
    }

    fn may_walk_to(&self, dir: u64) -> Result<bool, Fault> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            self.budget.look_up(UPWARDS)?;
            let vnode = InodeRecord::get(self.db, at)?;
            if !self.caller.may(&vnode, SEARCH) {
                return Ok(false);
            }
            if at == Inode::ROOT.0 {
                return Ok(true);
            }
            at = vnode.parent;
        }
        Ok(false)
    }

    /// Returns a directory if the caller can reach it and has the permissions `want`.
    pub(crate) fn reach_dir(&self, ino: u64, want: u32, name: &[u8]) -> Result<InodeRecord, Fault> {
        let vnode = self.reach(ino)?;
        if !vnode.is_dir() {
            return Err(Fault::NotDirectory(self.called(ino)));
        }
        if !self.caller.may(&vnode, want) {
            return Err(Fault::Denied(shown(name), self.caller.uid));
        }
        Ok(vnode)
    }

    /// Returns a directory if the caller may create and remove entries in the directory.
    pub(crate) fn writable_dir(&self, ino: u64, name: &[u8]) -> Result<InodeRecord, Fault> {
        let vnode = self.reach_dir(ino, WRITE | SEARCH, name)?;
        // A removed directory that a process still uses takes no new entries.
        if vnode.nlink == 0 {
            Err(Fault::NotFound(shown(name)))
        } else {
            Ok(vnode)
        }
    }

    /// Returns the inode of an entry of a directory; the names `.` and `..` are supported.
    pub(crate) fn child(&self, dir: &InodeRecord, name: &[u8]) -> Result<InodeRecord, Fault> {
        if name.len() > NAME_MAX {
            return Err(Fault::NameTooLong(name.len()));
        }
        let found = match name {
            b"." => Some(dir.clone()),
            b".." => InodeRecord::find(self.db, dir.parent)?,
            _ => InodeRecord::child(self.db, dir.ino, name)?,
        };
        found.ok_or_else(|| Fault::NotFound(shown(name)))
    }

    /// Resolves a path from the root. If the last component is a symbolic link, the link is followed only if `follow` is set.
    pub(crate) fn resolve(&self, path: &[u8], follow: bool) -> Result<InodeRecord, Fault> {
        self.follow(path, follow, &mut None)
    }

    /// Returns the target of the last absolute symbolic link in a path. On a mount, the target is a path of the mount's host.
    pub(crate) fn absolute_link(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mut absolute = None;
        // Links that were followed before the lookup failed count.
        let _ = self.follow(path, true, &mut absolute);
        absolute
    }

    fn follow(
        &self,
        path: &[u8],
        follow: bool,
        absolute: &mut Option<Vec<u8>>,
    ) -> Result<InodeRecord, Fault> {
        if path.len() > PATH_MAX {
            return Err(Fault::NameTooLong(path.len()));
        }
        // Components still to be walked, the next one last.
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut must_be_dir = path.ends_with(b"/");
        let mut vnode = InodeRecord::get(self.db, Inode::ROOT.0)?;
        let mut links = 0;
        while let Some(name) = todo.pop() {
            self.budget.look_up(COMPONENT)?;
            if !vnode.is_dir() {
                return Err(Fault::NotDirectory(shown(path)));
            }
            self.need(&vnode, SEARCH, &shown(path))?;
            let next = match self.child(&vnode, &name) {
                Err(Fault::NotFound(_)) => return Err(Fault::NotFound(shown(path))),
                other => other?,
            };
            let last = todo.is_empty();
            if next.kind != tidemill_wire::v1::Kind::Symlink || (last && !follow && !must_be_dir) {
                vnode = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Fault::Loop(shown(path)));
            }
            must_be_dir |= last && next.target.ends_with(b"/");
            if next.target.starts_with(b"/") {
                vnode = InodeRecord::get(self.db, Inode::ROOT.0)?;
                *absolute = Some(next.target.clone());
            }
            todo.extend(components(&next.target));
        }
        if must_be_dir && !vnode.is_dir() {
            return Err(Fault::NotDirectory(shown(path)));
        }
        Ok(vnode)
    }

    /// Returns the present path of an inode: any of its paths for a file with several names; `None` if the inode has no name.
    pub(crate) fn path_of(&self, ino: u64) -> Result<Option<Vec<u8>>, Fault> {
        path_of(self.db, ino)
    }

    /// Returns the node that the attribute of a directory or of its nearest ancestor with the attribute selects.
    pub(crate) fn directory_node(&self, dir: &InodeRecord) -> Result<Option<u32>, Fault> {
        if !self.shared.directory_nodes() {
            return Ok(None);
        }
        self.directory_attribute(dir, super::attribute::DIRECTORY_NODE)
    }

    /// Returns the value of an attribute of a directory, or of its nearest ancestor with the attribute; `None` if the value is invalid.
    pub(crate) fn directory_attribute<T: FromStr>(
        &self,
        dir: &InodeRecord,
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
            parent = InodeRecord::get(self.db, at)?.parent;
        }
        Ok(None)
    }

    /// Records that a directory entry was created or removed, or refers to another inode.
    pub(crate) fn changed_entry(&mut self, parent: u64, name: &[u8]) {
        self.changes.push(Change::Entry(parent, name.to_vec()));
        self.changes.push(Change::Vnode(parent));
    }

    fn need_here(&self, vnode: &InodeRecord, want: u32) -> Result<(), Fault> {
        if self.caller.may(vnode, want) {
            return Ok(());
        }
        Err(Fault::Denied(self.called(vnode.ino), self.caller.uid))
    }

    /// Returns a description of an inode for an error message: its path, if the caller may see the path. Other callers learn no names.
    pub(crate) fn called(&self, ino: u64) -> String {
        self.seen_path(ino).unwrap_or_else(|| "this file".into())
    }

    /// Returns the path of a directory entry for an error message, if the caller may see the path.
    pub(crate) fn called_in(&self, directory: u64, name: &[u8]) -> String {
        let path = self.seen_path(directory).unwrap_or_default();
        let path = path.trim_end_matches('/');
        if path.is_empty() && directory != Inode::ROOT.0 {
            return shown(name);
        }
        format!("{path}/{}", shown(name))
    }

    fn seen_path(&self, ino: u64) -> Option<String> {
        if ino == Inode::ROOT.0 {
            return Some("/".into());
        }
        let seen = Visibility::new(self, self.caller).file(ino).ok()??;
        seen.allowed.then(|| shown(&seen.path))
    }

    /// Fails unless the caller has read permission on an inode.
    pub(crate) fn need_read(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        self.need_here(vnode, READ)
    }

    /// Fails unless the caller has write permission on an inode.
    pub(crate) fn need_write(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        self.need_here(vnode, WRITE)
    }
}

/// Returns the components of a path in reverse order.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .filter(|part| !part.is_empty())
        .rev()
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns the present path of an inode, as [`Tx::path_of`] does.
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
