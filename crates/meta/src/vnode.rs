//! A row of the table `inode`, and the permissions of callers on the inode.

use super::fault::Fault;
use crate::Connection;
use crate::query::{execute, find, rows, unsigned};
use rusqlite::{ErrorCode, Row, params};
use tidemill_model::id::Inode;
use tidemill_wire::v1::{self, Kind};

/// Set-group-id bit of the mode.
pub const SETGID: u32 = 0o2000;
/// Set-user-id bit of the mode.
pub const SETUID: u32 = 0o4000;
/// Bit of the mode for execute permission of the group.
pub const GROUP_EXEC: u32 = 0o010;
/// Sticky bit of the mode.
pub const STICKY: u32 = 0o1000;
/// Value of the column `inode.node` of an inode without a node.
pub const NO_NODE: i64 = -1;

/// Bit of read permission in a mask of wanted permissions.
pub const READ: u32 = 4;
/// Bit of write permission in a mask of wanted permissions.
pub const WRITE: u32 = 2;
/// Bit of search permission in a mask of wanted permissions.
pub const SEARCH: u32 = 1;

/// Record of an inode in the namespace.
#[derive(Clone, Debug)]
pub struct InodeRecord {
    /// Inode number; 1 is the root.
    pub ino: u64,
    /// Kind of the inode, such as file, directory or symbolic link.
    pub kind: Kind,
    /// Permission bits with the set-user-id, set-group-id and sticky bits, without the kind of the inode.
    pub mode: u32,
    /// Numeric id of the user that owns the inode.
    pub uid: u32,
    /// Numeric id of the group of the inode.
    pub gid: u32,
    /// Number of names, or for a directory 2 plus the number of its subdirectories; 0 if the inode has no name any more.
    pub nlink: u32,
    /// Length in bytes of a file's content or of a symbolic link's target path; 4096 for a directory.
    pub size: u64,
    /// Time of the last access, in nanoseconds since the Unix epoch.
    pub atime: i64,
    /// Time of the last change of the content, in nanoseconds since the Unix epoch.
    pub mtime: i64,
    /// Time of the last change of the inode, in nanoseconds since the Unix epoch.
    pub ctime: i64,
    /// Device number of a device; 0 for other kinds.
    pub rdev: u32,
    /// Number of times that the file was sealed, which is the number of its current version.
    pub version: u64,
    /// Id of the sealed object; 0 if the file has no sealed version.
    pub object: u64,
    /// Node of the sealed object or of the first unsealed version; [`NO_NODE`] if there is none, or if the version has several objects.
    pub node: i64,
    /// Id of the object being written; 0 if the file is not being written.
    pub writing: u64,
    /// Inode of the parent directory, if the inode is a directory.
    pub parent: u64,
    /// Target path, if the inode is a symbolic link.
    pub target: Vec<u8>,
}

/// Builds an SQL query for inode records: the columns that [`InodeRecord::from_row`] reads, followed by the rest of the query.
macro_rules! select_vnodes {
    ($rest:literal) => {
        concat!(
            "SELECT inode.ino, kind, mode, uid, gid, nlink, size, atime, mtime, ctime, rdev, version, object, ",
            "node, writing, inode.parent, target ",
            $rest
        )
    };
}
pub(crate) use select_vnodes;

impl InodeRecord {
    /// Returns the record of an empty directory in the root, or of the root itself.
    pub fn directory(ino: u64, mode: u32, (uid, gid): (u32, u32), now: i64) -> Self {
        Self {
            ino,
            kind: Kind::Directory,
            mode,
            uid,
            gid,
            nlink: 2,
            size: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            rdev: 0,
            version: 0,
            object: 0,
            node: NO_NODE,
            writing: 0,
            parent: Inode::ROOT.0,
            target: Vec::new(),
        }
    }

    /// Returns whether the inode is a file with a sealed version.
    pub(crate) fn has_version(&self) -> bool {
        self.kind == Kind::File && self.object != 0 && self.version != 0
    }

    /// Returns whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Returns the node of the file's object; `None` if the inode has no node.
    pub fn node(&self) -> Option<u32> {
        u32::try_from(self.node).ok()
    }

    /// Returns whether the current version of the file consists of several objects.
    pub fn has_parts(&self) -> bool {
        self.object != 0 && self.node == NO_NODE
    }

    /// Returns the attributes of the inode as a protocol message.
    pub fn attr(&self) -> v1::Attr {
        v1::Attr {
            ino: self.ino,
            kind: self.kind.into(),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: self.size,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            rdev: self.rdev,
            version: self.version,
            object: self.object,
            node: self.node().unwrap_or(0),
            writing: self.writing != 0,
            // The layer that knows the mounts sets this field.
            locked: false,
            parts: self.has_parts(),
            multi_writer: 0,
        }
    }

    /// Returns the inode as a directory entry with this name, as a protocol message.
    pub fn entry(&self, name: &[u8]) -> v1::Entry {
        v1::Entry {
            name: name.to_vec(),
            attr: Some(self.attr()),
            target: self.target.clone(),
        }
    }

    /// Reads an inode record from a row of a query built with `select_vnodes`.
    pub(crate) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let long = |at: usize| unsigned(row, at);
        let kind: i32 = row.get(1)?;
        Ok(Self {
            ino: long(0)?,
            kind: Kind::try_from(kind).unwrap_or(Kind::Unspecified),
            mode: row.get(2)?,
            uid: row.get(3)?,
            gid: row.get(4)?,
            nlink: row.get(5)?,
            size: long(6)?,
            atime: row.get(7)?,
            mtime: row.get(8)?,
            ctime: row.get(9)?,
            rdev: row.get(10)?,
            version: long(11)?,
            object: long(12)?,
            node: row.get(13)?,
            writing: long(14)?,
            parent: long(15)?,
            target: row.get::<_, Option<Vec<u8>>>(16)?.unwrap_or_default(),
        })
    }

    /// Returns the record of an inode, or `None` if the inode does not exist.
    pub fn find(db: &Connection, ino: u64) -> Result<Option<Self>, Fault> {
        let key = [ino.cast_signed()];
        find(
            db,
            select_vnodes!("FROM inode WHERE ino = ?1"),
            key,
            Self::from_row,
        )
    }

    /// Returns the record of an inode; fails if the inode does not exist.
    pub fn get(db: &Connection, ino: u64) -> Result<Self, Fault> {
        Self::find(db, ino)?.ok_or_else(|| Fault::NotFound("a file that was removed".into()))
    }

    /// Returns the number of inodes.
    pub(super) fn count(db: &Connection) -> Result<u64, Fault> {
        let count: i64 = db
            .sql
            .query_row("SELECT count(*) FROM inode", [], |row| row.get(0))?;
        Ok(count.cast_unsigned())
    }

    /// Returns the inode record of a directory's entry, or `None` if the entry does not exist.
    pub fn child(db: &Connection, parent: u64, name: &[u8]) -> Result<Option<Self>, Fault> {
        let key = params![parent.cast_signed(), name];
        find(
            db,
            select_vnodes!(
                "FROM inode WHERE ino = (SELECT ino FROM dirent WHERE parent = ?1 AND name = ?2)"
            ),
            key,
            Self::from_row,
        )
    }

    /// Returns the records of inodes without a name, which a client still has open or left open.
    pub(super) fn without_names(db: &Connection) -> Result<Vec<Self>, Fault> {
        rows(
            db,
            select_vnodes!("FROM inode WHERE nlink = 0"),
            [],
            Self::from_row,
        )
    }

    /// Inserts the record as a new row of the table `inode`; fails if the inode id is in use.
    pub fn insert(&self, db: &Connection) -> Result<(), Fault> {
        let sql =
            "INSERT INTO inode VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)";
        self.store(db, sql).map_err(|fault| match fault {
            Fault::Database(error)
                if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) =>
            {
                Fault::Malformed("the inode id is in use; reserve ids first")
            }
            other => other,
        })
    }

    /// Updates the record of a directory in which an entry was created or removed at `time`, and the number of its subdirectories by
    /// `subdirs`.
    pub(super) fn change_entries(
        &mut self,
        db: &Connection,
        subdirs: i64,
        time: i64,
    ) -> Result<(), Fault> {
        let subdirs = i32::try_from(subdirs).unwrap_or(0);
        self.nlink = self.nlink.saturating_add_signed(subdirs);
        (self.mtime, self.ctime) = (time, time);
        let sql = "UPDATE inode SET nlink = ?2, mtime = ?3, ctime = ?3 WHERE ino = ?1";
        execute(db, sql, params![self.ino.cast_signed(), self.nlink, time])
    }

    /// Deletes the record's row in the table `inode`.
    pub(super) fn delete(&self, db: &Connection) -> Result<(), Fault> {
        let sql = "DELETE FROM inode WHERE ino = ?1";
        execute(db, sql, [self.ino.cast_signed()])
    }

    /// Updates all columns of the record's row in the table `inode`.
    pub fn update(&self, db: &Connection) -> Result<(), Fault> {
        let sql = "UPDATE inode SET kind=?2, mode=?3, uid=?4, gid=?5, nlink=?6, size=?7, atime=?8, mtime=?9, \
                   ctime=?10, rdev=?11, version=?12, object=?13, node=?14, writing=?15, parent=?16, \
                   target=?17 WHERE ino=?1";
        self.store(db, sql)
    }

    fn store(&self, db: &Connection, sql: &str) -> Result<(), Fault> {
        let target = (self.kind == Kind::Symlink).then_some(&self.target);
        let row = params![
            self.ino.cast_signed(),
            i32::from(self.kind),
            self.mode,
            self.uid,
            self.gid,
            self.nlink,
            self.size.cast_signed(),
            self.atime,
            self.mtime,
            self.ctime,
            self.rdev,
            self.version.cast_signed(),
            self.object.cast_signed(),
            self.node,
            self.writing.cast_signed(),
            self.parent.cast_signed(),
            target,
        ];
        execute(db, sql, row)
    }
}

/// The user that makes a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User id of the caller.
    pub uid: u32,
    /// Group id of the caller.
    pub gid: u32,
    /// Supplementary group ids of the caller.
    pub groups: Vec<u32>,
    /// Whether the caller's permissions have been checked already, as by the Linux kernel of a mount's host.
    pub checked: bool,
    /// Whether the caller has an administrator's rights, as daemons have: such a caller may choose owners and use any reserved id.
    pub administrator: bool,
}

impl Caller {
    /// Returns the server itself as a caller.
    #[must_use]
    pub fn root() -> Self {
        Self {
            checked: true,
            administrator: true,
            ..Self::default()
        }
    }

    /// Returns whether the server need not check the caller's permissions.
    pub fn above(&self) -> bool {
        self.checked || self.uid == 0
    }

    /// Returns whether the caller is a member of the group `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns whether the inode's mode grants the caller all permissions in `want` ([`READ`], [`WRITE`], [`SEARCH`]).
    pub fn may(&self, vnode: &InodeRecord, want: u32) -> bool {
        let shift = if self.uid == vnode.uid {
            6
        } else if self.in_group(vnode.gid) {
            3
        } else {
            0
        };
        self.above() || (vnode.mode >> shift) & want == want
    }
}

/// Sets the node of the first replica of a file's current version. Does nothing if the object is no such version.
pub(super) fn set_node(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE inode SET node = ?2 WHERE object = ?1 AND ino = (SELECT ino FROM version WHERE object = ?1)";
    execute(db, sql, rusqlite::params![object.cast_signed(), node])
}
