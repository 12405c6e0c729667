//! Context of every namespace operation: the database, the caller, and the list of changes.

use super::budget::{Budget, COMPONENT, UPWARDS};
use super::fault::Fault;
use super::paths::{self, Inherited, path_of};
use super::shared::NamesShared;
use super::tree;
use super::visibility::Visibility;
use super::vnode::{Caller, InodeRecord, READ, SEARCH, WRITE};
use crate::Connection;
use crate::query::execute;
use std::cell::RefCell;
use std::str::FromStr;
use tidemill_model::id::Inode;
use tidemill_wire::control;

/// Maximum length of the name of one directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Maximum length of a path and of a symbolic link's target, in bytes.
pub const PATH_MAX: usize = 4095;
/// Maximum number of symbolic links that are followed in one path.
const LINKS_MAX: usize = 40;
/// Maximum depth of nested directories; a walk towards the root ends with an error beyond that depth.
pub const DEPTH_MAX: u32 = 2048;

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
#[derive(Debug)]
pub struct Tx<'a> {
    /// Connection on which the request reads and writes, within the current read or transaction.
    pub db: &'a Connection,
    /// State that all namespace requests share, such as the space on nodes and the key that signs capabilities.
    pub shared: &'a NamesShared,
    /// User that sent the request, with whose rights the operations are executed.
    pub caller: &'a Caller,
    /// Session of the mount that sent the request; 0 for other clients.
    pub session: u64,
    /// Time of the server's clock, in nanoseconds since the Unix epoch.
    pub now: i64,
    /// Changes that the request has made so far, in order; watchers are notified of them after the commit.
    pub changes: Vec<Change>,
    /// Remaining cost that the request may cause.
    pub budget: Budget,
    /// Attributes that apply below the directory that was last asked for, with the number of rows that the connection changed until then:
    /// after any further change, the attributes are read again.
    inherited: RefCell<(Option<(u64, u64)>, Inherited)>,
}

/// Symbolic links that were followed in one path: their number, and the target of the last absolute one.
#[derive(Default)]
struct FollowedLinks {
    count: usize,
    absolute: Option<Vec<u8>>,
}

/// Returns the name of a directory entry as readable text.
pub fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Fails if `name` is not valid as the name of a directory entry.
pub fn check_name(name: &[u8]) -> Result<(), Fault> {
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
    /// Returns the context of a request at time `now` (nanoseconds since the Unix epoch), without changes and without limits on its cost.
    pub fn new(
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
            inherited: RefCell::default(),
        }
    }

    /// Returns the transaction with the limits of a caller's request.
    pub fn bounded(mut self) -> Self {
        self.budget = Budget::of(self.caller);
        self
    }

    /// Returns the time that the client sent, or the server's time if the client sent none.
    pub fn time(&self, stated: i64) -> i64 {
        if stated == 0 { self.now } else { stated }
    }

    /// Fails unless the caller has the permissions `want` on this inode.
    pub fn need(&self, vnode: &InodeRecord, want: u32, what: &str) -> Result<(), Fault> {
        if self.caller.may(vnode, want) {
            Ok(())
        } else {
            Err(Fault::Denied(what.into(), self.caller.uid))
        }
    }

    /// Fails unless the caller owns the inode.
    pub fn need_owner(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        if self.caller.above() || self.caller.uid == vnode.uid {
            Ok(())
        } else {
            Err(Fault::NotOwner(self.called(vnode.ino)))
        }
    }

    /// Returns the inode if the caller can reach it by a path. Knowing an inode number gives a caller no rights.
    pub fn reach(&self, ino: u64) -> Result<InodeRecord, Fault> {
        if self.caller.above() {
            return InodeRecord::get(self.db, ino);
        }
        let (vnode, mut open) = self.searched(ino, false)?;
        if !open && !vnode.is_dir() {
            // The file may have other names.
            for (parent, _) in tree::names_of(self.db, ino)? {
                open = open || self.searched(parent, true)?.1;
            }
        }
        match open {
            true => Ok(vnode),
            false => Err(Fault::Denied(self.called(ino), self.caller.uid)),
        }
    }

    /// Returns an inode, and whether the caller may search all directories above it and, if `itself` is set, the inode itself.
    fn searched(&self, ino: u64, itself: bool) -> Result<(InodeRecord, bool), Fault> {
        let (mut first, mut open, mut rows) = (None, None, 0);
        paths::upward(self.db, ino, |vnode| {
            rows += 1;
            let root = vnode.ino == Inode::ROOT.0;
            if itself || root || rows > 1 {
                self.budget.look_up(UPWARDS)?;
                let may = self.caller.may(&vnode, SEARCH);
                open = (root || !may).then_some(may);
            }
            first.get_or_insert(vnode);
            Ok(open.is_none())
        })?;
        let removed = || Fault::NotFound("a file that was removed".into());
        let first = first.ok_or_else(removed)?;
        match open {
            // A directory above was removed.
            None if first.is_dir() && rows < DEPTH_MAX => Err(removed()),
            open => Ok((first, open == Some(true))),
        }
    }

    /// Returns a directory if the caller can reach it and has the permissions `want`.
    pub(crate) fn reach_dir(&self, ino: u64, want: u32, name: &[u8]) -> Result<InodeRecord, Fault> {
        let vnode = self.reach(ino)?;
        self.need_dir(&vnode, want, name)?;
        Ok(vnode)
    }

    fn need_dir(&self, vnode: &InodeRecord, want: u32, name: &[u8]) -> Result<(), Fault> {
        if !vnode.is_dir() {
            return Err(Fault::NotDirectory(self.called(vnode.ino)));
        }
        match self.caller.may(vnode, want) {
            true => Ok(()),
            false => Err(Fault::Denied(shown(name), self.caller.uid)),
        }
    }

    /// Returns a directory if the caller may create and remove entries in the directory.
    pub(crate) fn writable_dir(&self, ino: u64, name: &[u8]) -> Result<InodeRecord, Fault> {
        self.writable(self.reach(ino)?, name)
    }

    /// Returns a directory that the caller can reach, if the caller may create and remove entries in it.
    pub(super) fn writable(&self, vnode: InodeRecord, name: &[u8]) -> Result<InodeRecord, Fault> {
        self.need_dir(&vnode, WRITE | SEARCH, name)?;
        // A removed directory that a process still uses takes no new entries.
        if vnode.nlink == 0 {
            Err(Fault::NotFound(shown(name)))
        } else {
            Ok(vnode)
        }
    }

    /// Returns the inode of an entry of a directory; the names `.` and `..` are supported.
    pub fn child(&self, dir: &InodeRecord, name: &[u8]) -> Result<InodeRecord, Fault> {
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
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<InodeRecord, Fault> {
        self.follow(path, follow, &mut FollowedLinks::default())
    }

    /// Returns the target of the last absolute symbolic link in a path. On a mount, the target is a path of the mount's host.
    pub fn absolute_link(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mut links = FollowedLinks::default();
        // Links that were followed before the lookup failed count.
        let _ = self.follow(path, true, &mut links);
        links.absolute
    }

    /// Resolves a path from the root. Also returns the number of symbolic links that were followed, even if the path leads to no file.
    pub(super) fn resolve_counting_links(
        &self,
        path: &[u8],
    ) -> (Result<InodeRecord, Fault>, usize) {
        let mut links = FollowedLinks::default();
        (self.follow(path, true, &mut links), links.count)
    }

    fn follow(
        &self,
        path: &[u8],
        follow: bool,
        links: &mut FollowedLinks,
    ) -> Result<InodeRecord, Fault> {
        if path.len() > PATH_MAX {
            return Err(Fault::NameTooLong(path.len()));
        }
        // Components still to be walked, the next one last.
        let mut todo: Vec<Vec<u8>> = components(path);
        let mut must_be_dir = path.ends_with(b"/");
        let (mut ahead, mut known) = self.look_ahead(Inode::ROOT.0, &todo)?;
        let mut vnode = ahead.pop().ok_or_else(|| Fault::NotFound(shown(path)))?;
        while let Some(name) = todo.last() {
            self.budget.look_up(COMPONENT)?;
            if !vnode.is_dir() {
                return Err(Fault::NotDirectory(shown(path)));
            }
            self.need(&vnode, SEARCH, &shown(path))?;
            if known == 0 && is_plain(name) {
                (ahead, known) = self.look_ahead(vnode.ino, &todo)?;
                ahead.pop();
            }
            let next = match known {
                0 => self.child(&vnode, name),
                _ => ahead.pop().ok_or_else(|| Fault::NotFound(String::new())),
            };
            let next = match next {
                Err(Fault::NotFound(_)) => return Err(Fault::NotFound(shown(path))),
                other => other?,
            };
            known = known.saturating_sub(1);
            todo.pop();
            let last = todo.is_empty();
            if next.kind != tidemill_wire::v1::Kind::Symlink || (last && !follow && !must_be_dir) {
                vnode = next;
                continue;
            }
            links.count += 1;
            if links.count > LINKS_MAX {
                return Err(Fault::Loop(shown(path)));
            }
            must_be_dir |= last && next.target.ends_with(b"/");
            if next.target.starts_with(b"/") {
                vnode = InodeRecord::get(self.db, Inode::ROOT.0)?;
                links.absolute = Some(next.target.clone());
            }
            known = 0;
            todo.extend(components(&next.target));
        }
        if must_be_dir && !vnode.is_dir() {
            return Err(Fault::NotDirectory(shown(path)));
        }
        Ok(vnode)
    }

    /// Looks up a directory and the entries along the path in `todo` (the next component last), up to a component that is not plain. Returns
    /// the records of these inodes, the directory last, and the number of components; a record is missing if its name does not exist.
    fn look_ahead(
        &self,
        directory: u64,
        todo: &[Vec<u8>],
    ) -> Result<(Vec<InodeRecord>, usize), Fault> {
        let names = todo.iter().rev().map(Vec::as_slice);
        let names: Vec<&[u8]> = names.take_while(|name| is_plain(name)).collect();
        let mut ahead = paths::downward(self.db, directory, &names)?;
        ahead.reverse();
        Ok((ahead, names.len()))
    }

    /// Returns the present path of an inode: any of its paths for a file with several names; `None` if the inode has no name.
    pub fn path_of(&self, ino: u64) -> Result<Option<Vec<u8>>, Fault> {
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
        let now = Some((dir.ino, self.db.sql.total_changes()));
        let mut inherited = self.inherited.borrow_mut();
        if inherited.0 != now {
            *inherited = (now, Inherited::of(self.db, dir.ino)?);
            self.budget.look_up(inherited.1.directories)?;
        }
        let value = inherited.1.get(name).map(std::str::from_utf8);
        Ok(value.and_then(|text| text.ok()?.trim().parse().ok()))
    }

    /// Rolls back the changes since the savepoint `op`.
    pub(super) fn roll_back(&mut self) -> Result<(), Fault> {
        execute(self.db, "ROLLBACK TO op", [])?;
        *self.inherited.get_mut() = Default::default();
        Ok(())
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
    pub fn called(&self, ino: u64) -> String {
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

/// Returns whether the component of a path is the name of an entry, unlike `.` and `..`, and not too long.
fn is_plain(name: &[u8]) -> bool {
    !matches!(name, b"." | b"..") && name.len() <= NAME_MAX
}
