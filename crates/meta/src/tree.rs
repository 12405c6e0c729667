//! Operations on names in the namespace: lookup, create, link, unlink, rename and list.

use super::fault::Fault;
use super::paths;
use super::placement::reservations;
use super::transaction::{Change, PATH_MAX, Tx, check_free, check_name, shown};
use super::vnode::{
    GROUP_EXEC, InodeRecord, NO_NODE, READ, SEARCH, SETGID, SETUID, STICKY, WRITE, select_vnodes,
};
use crate::Connection;
use crate::query::{execute, exists, rows, unsigned};
use rusqlite::params;
use tidemill_model::id::Inode;
use tidemill_wire::v1::{self, Kind, name_result::Result as Answer};

/// Maximum number of names, or hard links, of a file.
const LINKS_MAX: u32 = 65_000;
/// Maximum number of entries in one answer to a listing, and (`ENTRIES_BYTES_MAX`) bytes of names and targets after which the answer ends.
const ENTRIES_MAX: u32 = 4096;
const ENTRIES_BYTES_MAX: usize = 2 << 20;

impl Tx<'_> {
    pub(crate) fn lookup(&self, op: &v1::Lookup) -> Result<Answer, Fault> {
        let dir = self.reach_dir(op.parent, SEARCH, &op.name)?;
        Ok(Answer::Entry(self.child(&dir, &op.name)?.entry(&op.name)))
    }

    pub(crate) fn resolve_path(&self, op: &v1::Resolve) -> Result<Answer, Fault> {
        let vnode = self.resolve(&op.path, op.follow);
        let vnode = vnode.map_err(|fault| match op.advise {
            true => self.advised(&op.path, fault),
            false => fault,
        })?;
        let name = op
            .path
            .rsplit(|&byte| byte == b'/')
            .find(|part| !part.is_empty())
            .unwrap_or(b"/");
        Ok(Answer::Entry(vnode.entry(name)))
    }

    pub(crate) fn read_dir(&self, op: &v1::ReadDir) -> Result<Answer, Fault> {
        let dir = self.reach(op.ino)?;
        if !dir.is_dir() {
            return Err(Fault::NotDirectory(self.called(op.ino)));
        }
        self.need_read(&dir)?;
        let limit = if op.limit == 0 {
            ENTRIES_MAX
        } else {
            op.limit.min(ENTRIES_MAX)
        };
        let mut statement = self.db.sql.prepare_cached(select_vnodes!(
            ", name FROM dirent JOIN inode ON inode.ino = dirent.ino WHERE dirent.parent = ?1 AND name > ?2 \
             ORDER BY name LIMIT ?3"
        ))?;
        let rows = statement.query_map(
            params![op.ino.cast_signed(), op.after, i64::from(limit) + 1],
            |row| {
                let name: Vec<u8> = row.get(17)?;
                Ok(InodeRecord::from_row(row)?.entry(&name))
            },
        )?;
        let (mut entries, mut bytes, mut end) = (Vec::new(), 0, true);
        for entry in rows {
            let entry: v1::Entry = entry?;
            if entries.len() == limit as usize || bytes >= ENTRIES_BYTES_MAX {
                end = false;
                break;
            }
            bytes += entry.name.len() + entry.target.len();
            entries.push(entry);
        }
        Ok(Answer::Entries(v1::Entries { entries, end }))
    }

    /// Creates an inode with a name, and opens a new file for writing if the request has an object. A repeated request succeeds.
    pub fn create(&mut self, op: &v1::Create) -> Result<Answer, Fault> {
        let (parent, name) = if op.parent == 0 {
            self.parent_of(op)?
        } else {
            (self.writable_dir(op.parent, &op.name)?, op.name.clone())
        };
        check_name(&name)?;
        if let Some(existing) = InodeRecord::child(self.db, parent.ino, &name)? {
            // A repeated request: its answer was lost.
            if op.ino != 0 && existing.ino == op.ino {
                return match op.object {
                    0 => Ok(Answer::Entry(existing.entry(&name))),
                    object => self.opened_for_writing(&existing, object),
                };
            }
            return Err(Fault::Exists(self.called_in(parent.ino, &name)));
        }
        let vnode = self.new_vnode(op, &parent)?;
        let directory = parent.ino;
        self.add_entry(parent, &name, &vnode)?;
        vnode.insert(self.db)?;
        self.shared.add_files(1);
        if op.object != 0 {
            let size_max = self.need_quota(&vnode)?;
            self.begin_writing(&vnode)?;
            return self.opened_on(&vnode, (op.object, vnode.node), size_max);
        }
        if vnode.kind == Kind::Symlink || vnode.version > 0 {
            self.feed_named(&vnode, directory, &name)?;
            self.changes.push(Change::Moved);
        }
        Ok(Answer::Entry(vnode.entry(&name)))
    }

    /// Returns the directory of a full path, and the last name. Missing directories are created if the request sets that option.
    fn parent_of(&mut self, op: &v1::Create) -> Result<(InodeRecord, Vec<u8>), Fault> {
        if op.name.len() > PATH_MAX {
            return Err(Fault::NameTooLong(op.name.len()));
        }
        let path: &[u8] = op.name.strip_suffix(b"/").unwrap_or(&op.name);
        let cut = path
            .iter()
            .rposition(|&byte| byte == b'/')
            .map_or(0, |at| at + 1);
        let (dir, name) = path.split_at(cut);
        if op.make_parents {
            self.make_dirs(dir, self.owner_of(op))?;
        }
        let parent = self
            .resolve(dir, true)
            .map_err(|fault| self.advised(dir, fault))?;
        // The caller may search all directories of a path that was resolved.
        let parent = self.writable(parent, name)?;
        Ok((parent, name.to_vec()))
    }

    /// Creates a directory with this owner. Returns its inode.
    pub(super) fn create_directory(
        &mut self,
        parent: u64,
        name: Vec<u8>,
        (uid, gid): (u32, u32),
    ) -> Result<u64, Fault> {
        let ino = super::ids::reserve(self.db, "inode", 1)?;
        self.create(&v1::Create {
            parent,
            name,
            kind: Kind::Directory.into(),
            mode: 0o755,
            ino,
            uid,
            gid,
            ..v1::Create::default()
        })?;
        Ok(ino)
    }

    /// Creates all missing directories of a path with this owner.
    pub fn make_dirs(&mut self, path: &[u8], owner: (u32, u32)) -> Result<(), Fault> {
        match self.resolve(path, true) {
            Err(Fault::NotFound(_)) => {}
            other => return other.map(drop),
        }
        let (mut made, mut above) = (Vec::new(), Inode::ROOT.0);
        for part in path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty())
        {
            made.push(b'/');
            made.extend_from_slice(part);
            match self.resolve(&made, true) {
                Err(Fault::NotFound(_)) => {}
                other => {
                    above = other?.ino;
                    continue;
                }
            }
            above = self.create_directory(above, part.to_vec(), owner)?;
        }
        Ok(())
    }

    fn owner_of(&self, op: &v1::Create) -> (u32, u32) {
        if self.caller.administrator {
            (op.uid, op.gid)
        } else {
            (self.caller.uid, self.caller.gid)
        }
    }

    fn new_vnode(&self, op: &v1::Create, parent: &InodeRecord) -> Result<InodeRecord, Fault> {
        let kind = Kind::try_from(op.kind).unwrap_or(Kind::Unspecified);
        if kind == Kind::Unspecified {
            return Err(Fault::Malformed("an inode without a kind"));
        }
        if op.object != 0 && kind != Kind::File {
            return Err(Fault::Malformed("only files have objects"));
        }
        if matches!(kind, Kind::CharDevice | Kind::BlockDevice)
            && self.caller.uid != 0
            && !self.caller.checked
        {
            return Err(Fault::NotOwner(shown(&op.name)));
        }
        let size = match kind {
            Kind::Symlink if op.target.is_empty() => {
                return Err(Fault::NotFound("an empty link".into()));
            }
            Kind::Symlink if op.target.len() > PATH_MAX => {
                return Err(Fault::NameTooLong(op.target.len()));
            }
            Kind::Symlink => op.target.len() as u64,
            Kind::Directory => 4096,
            _ => 0,
        };
        let (uid, mut gid) = self.owner_of(op);
        let mut mode = op.mode & 0o7777;
        if parent.mode & SETGID != 0 {
            gid = parent.gid;
            if kind == Kind::Directory {
                mode |= SETGID;
            }
        }
        let ino = self.checked_inode(op.ino)?;
        let node = self.place_new(op, ino, parent)?;
        let time = self.time(op.time);
        Ok(InodeRecord {
            ino,
            kind,
            mode,
            uid,
            gid,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            size,
            atime: time,
            mtime: time,
            ctime: time,
            rdev: op.rdev,
            // A file that is created without being opened is an empty version.
            version: u64::from(kind == Kind::File && op.object == 0),
            object: 0,
            node,
            writing: op.object,
            parent: if kind == Kind::Directory {
                parent.ino
            } else {
                0
            },
            target: if kind == Kind::Symlink {
                op.target.clone()
            } else {
                Vec::new()
            },
        })
    }

    /// Chooses the node of the first version of a new file, if the file is opened for writing.
    fn place_new(&self, op: &v1::Create, ino: u64, parent: &InodeRecord) -> Result<i64, Fault> {
        if op.object == 0 {
            return Ok(NO_NODE);
        }
        self.check_object(op.object)?;
        let dir = || Ok(parent.clone());
        match self.stripes_wanted((op.stripes.as_ref(), op.node), dir, None)? {
            Some(stripes) => self.begin_parts(ino, op.object, stripes),
            None => self.place(Inode(ino), op.node, parent, op.into()),
        }
    }

    /// Adds an entry to a directory and updates the directory's times.
    pub(crate) fn add_entry(
        &mut self,
        mut parent: InodeRecord,
        name: &[u8],
        vnode: &InodeRecord,
    ) -> Result<(), Fault> {
        check_free(parent.ino, name)?;
        self.check_own_place(parent.ino, name)?;
        insert_entry(self.db, parent.ino, name, vnode.ino)?;
        let count = i64::from(vnode.is_dir());
        parent.change_entries(self.db, count, vnode.ctime)?;
        self.changed_entry(parent.ino, name);
        Ok(())
    }

    fn remove_entry(
        &mut self,
        parent: &mut InodeRecord,
        name: &[u8],
        subdirs: i64,
        time: i64,
    ) -> Result<(), Fault> {
        delete_entry(self.db, parent.ino, name)?;
        parent.change_entries(self.db, subdirs, time)?;
        self.changed_entry(parent.ino, name);
        Ok(())
    }

    pub(crate) fn link(&mut self, op: &v1::Link) -> Result<Answer, Fault> {
        check_name(&op.name)?;
        let parent = self.writable_dir(op.parent, &op.name)?;
        let mut vnode = self.reach(op.ino)?;
        if InodeRecord::child(self.db, parent.ino, &op.name)?.is_some() {
            return Err(Fault::Exists(self.called_in(parent.ino, &op.name)));
        }
        if vnode.is_dir() {
            return Err(Fault::DirectoryLink(shown(&op.name)));
        }
        // As Linux with fs.protected_hardlinks: no second name for a file that the caller can't write, or that runs as its owner.
        if self.caller.uid != vnode.uid && !self.caller.above() {
            let runs_as_group = vnode.mode & (SETGID | GROUP_EXEC) == SETGID | GROUP_EXEC;
            let plain = vnode.kind == Kind::File && vnode.mode & SETUID == 0 && !runs_as_group;
            if !plain || !self.caller.may(&vnode, READ | WRITE) {
                return Err(Fault::NotOwner(shown(&op.name)));
            }
        }
        if vnode.nlink == 0 {
            return Err(Fault::NotFound(shown(&op.name)));
        }
        if vnode.nlink >= LINKS_MAX {
            return Err(Fault::TooManyLinks(shown(&op.name)));
        }
        vnode.nlink += 1;
        vnode.ctime = self.time(op.time);
        vnode.update(self.db)?;
        let directory = parent.ino;
        self.add_entry(parent, &op.name, &vnode)?;
        self.feed_named(&vnode, directory, &op.name)?;
        self.changes.push(Change::Vnode(vnode.ino));
        self.changes.push(Change::Moved);
        Ok(Answer::Entry(vnode.entry(&op.name)))
    }

    /// Removes a name of a file, or an empty directory. The answer has the inode in its new state.
    pub fn unlink(&mut self, op: &v1::Unlink) -> Result<Answer, Fault> {
        check_name(&op.name)?;
        let mut parent = self.writable_dir(op.parent, &op.name)?;
        let vnode = self.child(&parent, &op.name)?;
        self.need_unsticky(&parent, &vnode, &op.name)?;
        match (op.directory, vnode.is_dir()) {
            (true, false) => return Err(Fault::NotDirectory(shown(&op.name))),
            (false, true) => return Err(Fault::IsDirectory(shown(&op.name))),
            _ => {}
        }
        if vnode.is_dir() && !is_empty(self.db, vnode.ino)? {
            return Err(Fault::NotEmpty(shown(&op.name)));
        }
        let time = self.time(op.time);
        self.remove_entry(&mut parent, &op.name, -i64::from(vnode.is_dir()), time)?;
        if !vnode.is_dir() {
            self.changes_zarr(parent.ino, &op.name, &vnode)?;
        }
        Ok(Answer::Entry(self.drop_name(vnode, time)?.entry(&op.name)))
    }

    /// Fails if the directory is sticky and the caller owns neither the entry nor the directory.
    pub(super) fn need_unsticky(
        &self,
        dir: &InodeRecord,
        vnode: &InodeRecord,
        name: &[u8],
    ) -> Result<(), Fault> {
        let uid = self.caller.uid;
        if dir.mode & STICKY == 0 || self.caller.above() || uid == vnode.uid || uid == dir.uid {
            Ok(())
        } else {
            Err(Fault::NotOwner(shown(name)))
        }
    }

    /// Removes a name of the inode. With the last name the inode is removed, unless a client has the file open. Returns the inode after the
    /// change.
    fn drop_name(&mut self, mut vnode: InodeRecord, time: i64) -> Result<InodeRecord, Fault> {
        self.changes.push(Change::Vnode(vnode.ino));
        vnode.nlink = if vnode.is_dir() {
            0
        } else {
            vnode.nlink.saturating_sub(1)
        };
        vnode.ctime = time;
        if vnode.nlink > 0 || vnode.writing != 0 || self.shared.inode_held(vnode.ino) {
            vnode.update(self.db)?;
        } else {
            self.purge(&vnode)?;
        }
        if vnode.is_dir() && self.shared.bursts.reserved() {
            reservations::forget_directory(self.db, vnode.ino)?;
        }
        Ok(vnode)
    }

    /// Renames an entry. The answer has the moved entry and the replaced or exchanged entry, both in their new state, since only this
    /// transaction reliably knows which inodes were renamed.
    pub fn rename(&mut self, op: &v1::Rename) -> Result<Answer, Fault> {
        check_name(&op.name)?;
        check_name(&op.new_name)?;
        check_free(op.new_parent, &op.new_name)?;
        self.check_own_place(op.new_parent, &op.new_name)?;
        if op.exchange {
            check_free(op.parent, &op.name)?;
            self.check_own_place(op.parent, &op.name)?;
        }
        if op.no_replace && op.exchange {
            return Err(Fault::Malformed(
                "rename can't both exchange and not replace",
            ));
        }
        let from = self.writable_dir(op.parent, &op.name)?;
        let to = self.writable_dir(op.new_parent, &op.new_name)?;
        let vnode = self.child(&from, &op.name)?;
        let target = InodeRecord::child(self.db, to.ino, &op.new_name)?;
        self.need_unsticky(&from, &vnode, &op.name)?;
        if let Some(target) = &target {
            if op.no_replace {
                return Err(Fault::Exists(self.called_in(to.ino, &op.new_name)));
            }
            if target.ino == vnode.ino {
                return Ok(moved(op, &vnode, Some(target)));
            }
            self.need_unsticky(&to, target, &op.new_name)?;
        }
        if op.exchange && target.is_none() {
            return Err(Fault::NotFound(shown(&op.new_name)));
        }
        self.check_move(&vnode, &from, &to, &op.name)?;
        if vnode.is_dir() || target.as_ref().is_some_and(InodeRecord::is_dir) {
            self.settle_directory_rules()?;
        }
        let (vnode, other) = match target {
            Some(target) if op.exchange => {
                self.check_move(&target, &to, &from, &op.new_name)?;
                self.exchange(op, from, to, vnode, target)?
            }
            target => self.move_entry(op, from, to, vnode, target)?,
        };
        if vnode.is_dir() || other.as_ref().is_some_and(InodeRecord::is_dir) {
            self.moved_directory_rules()?;
        }
        self.feed_named(&vnode, op.new_parent, &op.new_name)?;
        self.changes_zarr(op.parent, &op.name, &vnode)?;
        if vnode.is_dir() && op.parent != op.new_parent {
            self.changes_zarr(op.new_parent, &op.new_name, &vnode)?;
        }
        if let Some(other) = other.as_ref().filter(|_| op.exchange) {
            self.feed_named(other, op.parent, &op.name)?;
        }
        self.changes.push(Change::Moved);
        Ok(moved(op, &vnode, other.as_ref()))
    }

    /// Fails if a directory would move below itself, or if the caller may not write a directory whose `..` would change.
    fn check_move(
        &self,
        vnode: &InodeRecord,
        from: &InodeRecord,
        to: &InodeRecord,
        name: &[u8],
    ) -> Result<(), Fault> {
        if !vnode.is_dir() || from.ino == to.ino {
            return Ok(());
        }
        if !self.caller.may(vnode, WRITE) {
            return Err(Fault::Denied(shown(name), self.caller.uid));
        }
        let mut within = false;
        paths::upward(self.db, to.ino, |above| {
            within |= above.ino == vnode.ino;
            Ok(!within)
        })?;
        match within {
            true => Err(Fault::IntoItself(shown(name))),
            false => Ok(()),
        }
    }

    fn move_entry(
        &mut self,
        op: &v1::Rename,
        mut from: InodeRecord,
        to: InodeRecord,
        mut vnode: InodeRecord,
        target: Option<InodeRecord>,
    ) -> Result<(InodeRecord, Option<InodeRecord>), Fault> {
        let time = self.time(op.time);
        if let Some(target) = &target {
            match (vnode.is_dir(), target.is_dir()) {
                (true, false) => return Err(Fault::NotDirectory(shown(&op.new_name))),
                (false, true) => return Err(Fault::IsDirectory(shown(&op.new_name))),
                (true, true) if !is_empty(self.db, target.ino)? => {
                    return Err(Fault::NotEmpty(shown(&op.new_name)));
                }
                _ => {}
            }
        }
        let subdirs = i64::from(vnode.is_dir());
        self.remove_entry(&mut from, &op.name, -subdirs, time)?;
        let mut to = if to.ino == from.ino { from } else { to };
        let replaced = match target {
            Some(target) => {
                self.remove_entry(&mut to, &op.new_name, -i64::from(target.is_dir()), time)?;
                Some(self.drop_name(target, time)?)
            }
            None => None,
        };
        vnode.ctime = time;
        if vnode.is_dir() {
            vnode.parent = to.ino;
        }
        vnode.update(self.db)?;
        self.changes.push(Change::Vnode(vnode.ino));
        self.add_entry(to, &op.new_name, &vnode)?;
        // The file was written under a temporary name: its version receives the final name.
        let hidden = |name: &[u8]| name.starts_with(b".");
        if hidden(&op.name) && !hidden(&op.new_name) && op.parent == op.new_parent {
            self.rename_version(&vnode)?;
        }
        Ok((vnode, replaced))
    }

    fn exchange(
        &mut self,
        op: &v1::Rename,
        mut from: InodeRecord,
        to: InodeRecord,
        mut vnode: InodeRecord,
        mut target: InodeRecord,
    ) -> Result<(InodeRecord, Option<InodeRecord>), Fault> {
        let time = self.time(op.time);
        point_entry(self.db, from.ino, &op.name, target.ino)?;
        point_entry(self.db, to.ino, &op.new_name, vnode.ino)?;
        let gained = i64::from(target.is_dir()) - i64::from(vnode.is_dir());
        if from.ino == to.ino {
            from.change_entries(self.db, 0, time)?;
        } else {
            let mut to = to.clone();
            from.change_entries(self.db, gained, time)?;
            to.change_entries(self.db, -gained, time)?;
        }
        for (moved, parent) in [(&mut vnode, to.ino), (&mut target, from.ino)] {
            moved.ctime = time;
            if moved.is_dir() {
                moved.parent = parent;
            }
            moved.update(self.db)?;
            self.changes.push(Change::Vnode(moved.ino));
        }
        self.changed_entry(from.ino, &op.name);
        self.changed_entry(to.ino, &op.new_name);
        Ok((vnode, Some(target)))
    }
}

/// Returns the answer to a rename.
fn moved(op: &v1::Rename, vnode: &InodeRecord, other: Option<&InodeRecord>) -> Answer {
    let other = other.map(|other| other.entry(&op.name));
    Answer::Entries(v1::Entries {
        entries: [vnode.entry(&op.new_name)]
            .into_iter()
            .chain(other)
            .collect(),
        end: true,
    })
}

/// Returns the directories that contain an inode, with the name of the inode in each directory.
pub fn names_of(db: &Connection, ino: u64) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
    let sql = "SELECT parent, name FROM dirent WHERE ino = ?1";
    rows(db, sql, [ino.cast_signed()], |row| {
        Ok((unsigned(row, 0)?, row.get(1)?))
    })
}

/// Adds an entry to a directory.
pub fn insert_entry(db: &Connection, parent: u64, name: &[u8], ino: u64) -> Result<(), Fault> {
    let row = params![parent.cast_signed(), name, ino.cast_signed()];
    execute(db, "INSERT INTO dirent VALUES (?1, ?2, ?3)", row)
}

/// Makes an entry of a directory refer to another inode.
fn point_entry(db: &Connection, parent: u64, name: &[u8], ino: u64) -> Result<(), Fault> {
    let row = params![parent.cast_signed(), name, ino.cast_signed()];
    let sql = "UPDATE dirent SET ino = ?3 WHERE parent = ?1 AND name = ?2";
    execute(db, sql, row)
}

fn delete_entry(db: &Connection, parent: u64, name: &[u8]) -> Result<(), Fault> {
    let sql = "DELETE FROM dirent WHERE parent = ?1 AND name = ?2";
    execute(db, sql, params![parent.cast_signed(), name])
}

fn is_empty(db: &Connection, directory: u64) -> Result<bool, Fault> {
    Ok(!exists(
        db,
        "SELECT 1 FROM dirent WHERE parent = ?1 LIMIT 1",
        [directory.cast_signed()],
    )?)
}

/// Returns the names of at most `max` entries of a directory.
pub fn names_in(db: &Connection, directory: u64, max: u32) -> Result<Vec<Vec<u8>>, Fault> {
    let sql = "SELECT name FROM dirent WHERE parent = ?1 LIMIT ?2";
    rows(db, sql, params![directory.cast_signed(), max], |row| {
        row.get(0)
    })
}
