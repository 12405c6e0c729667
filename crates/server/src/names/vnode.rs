//! A row of the table `inode`, and the permissions of callers on it.

use super::fault::Fault;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tidemill_core::id::Inode;
use tidemill_wire::v1::{self, Kind};

/// Set-group-id bit.
pub(crate) const SETGID: u32 = 0o2000;
/// Set-user-id bit.
pub(crate) const SETUID: u32 = 0o4000;
/// Execute permission of the group.
pub(crate) const GROUP_EXEC: u32 = 0o010;
/// Sticky bit.
pub(crate) const STICKY: u32 = 0o1000;
/// Value of an inode without a node.
pub(crate) const NO_NODE: i64 = -1;

/// Read permission.
pub(crate) const READ: u32 = 4;
/// Write permission.
pub(crate) const WRITE: u32 = 2;
/// Search permission.
pub(crate) const SEARCH: u32 = 1;

/// Record of an inode.
#[derive(Clone, Debug)]
pub(crate) struct InodeRecord {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) rdev: u32,
    /// Number of seals of the file.
    pub(crate) version: u64,
    /// The sealed object, 0 if none.
    pub(crate) object: u64,
    pub(crate) node: i64,
    /// The object being written, 0 if none.
    pub(crate) writing: u64,
    /// Parent directory of a directory.
    pub(crate) parent: u64,
    /// Target of a symbolic link.
    pub(crate) target: Vec<u8>,
}

/// Builds a query for records of inodes: the columns that [`InodeRecord::from_row`] reads, then the rest of the query.
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
    /// Returns an empty directory in the root, or the root itself.
    pub(crate) fn directory(ino: u64, mode: u32, (uid, gid): (u32, u32), now: i64) -> Self {
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

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Returns the node; `None` if the inode has no node.
    pub(crate) fn node(&self) -> Option<u32> {
        u32::try_from(self.node).ok()
    }

    /// Returns whether the inode's version consists of several objects.
    pub(crate) fn has_parts(&self) -> bool {
        self.object != 0 && self.node == NO_NODE
    }

    /// Returns the attributes in the form that is sent.
    pub(crate) fn attr(&self) -> v1::Attr {
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

    /// Returns the inode as a directory entry of that name.
    pub(crate) fn entry(&self, name: &[u8]) -> v1::Entry {
        v1::Entry {
            name: name.to_vec(),
            attr: Some(self.attr()),
            target: self.target.clone(),
        }
    }

    /// Reads the columns of [`select_vnodes`].
    pub(crate) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let long = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned);
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

    /// Returns the record of that inode, if it exists.
    pub(crate) fn find(db: &Connection, ino: u64) -> Result<Option<Self>, Fault> {
        let mut statement = db.prepare_cached(select_vnodes!("FROM inode WHERE ino = ?1"))?;
        Ok(statement
            .query_row([ino.cast_signed()], Self::from_row)
            .optional()?)
    }

    /// Returns the record of that inode.
    pub(crate) fn get(db: &Connection, ino: u64) -> Result<Self, Fault> {
        Self::find(db, ino)?.ok_or_else(|| Fault::NotFound("a file that was removed".into()))
    }

    /// Returns the inode of a directory's entry, if it exists.
    pub(crate) fn child(db: &Connection, parent: u64, name: &[u8]) -> Result<Option<Self>, Fault> {
        let mut statement = db.prepare_cached(select_vnodes!(
            "FROM inode WHERE ino = (SELECT ino FROM dirent WHERE parent = ?1 AND name = ?2)"
        ))?;
        let found = statement.query_row(params![parent.cast_signed(), name], |row| {
            Self::from_row(row)
        });
        Ok(found.optional()?)
    }

    /// Writes a new row.
    pub(crate) fn insert(&self, db: &Connection) -> Result<(), Fault> {
        let sql =
            "INSERT INTO inode VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)";
        self.store(db, sql)
    }

    /// Writes all columns of the row.
    pub(crate) fn update(&self, db: &Connection) -> Result<(), Fault> {
        let sql = "UPDATE inode SET kind=?2, mode=?3, uid=?4, gid=?5, nlink=?6, size=?7, atime=?8, mtime=?9, \
                   ctime=?10, rdev=?11, version=?12, object=?13, node=?14, writing=?15, parent=?16, \
                   target=?17 WHERE ino=?1";
        self.store(db, sql)
    }

    fn store(&self, db: &Connection, sql: &str) -> Result<(), Fault> {
        let target = (self.kind == Kind::Symlink).then_some(&self.target);
        db.prepare_cached(sql)?.execute(params![
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
        ])?;
        Ok(())
    }
}

/// The user that makes a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Whether permissions have been checked already (the Linux kernel of a mount's host checks them).
    pub checked: bool,
    /// Whether the caller has an administrator's rights, as daemons have: it may choose owners and use any reserved id.
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

    /// Returns whether the caller needs no check of permissions.
    pub(crate) fn above(&self) -> bool {
        self.checked || self.uid == 0
    }

    /// Returns whether the caller is a member of the group.
    pub(crate) fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns whether the inode's mode allows all of `want` ([`READ`], [`WRITE`], [`SEARCH`]).
    pub(crate) fn may(&self, vnode: &InodeRecord, want: u32) -> bool {
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
