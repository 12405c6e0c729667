//! Attributes of inodes: mode, owner, times and extended attributes; and the statistics of the cluster's space.

use super::fault::Fault;
use super::known_attributes::is_computed;
use super::parts::Striping;
use super::transaction::{Change, NAME_MAX, Tx, shown};
use super::version;
use super::vnode::{InodeRecord, SETGID, SETUID};
use crate::Connection;
use crate::query::{execute, exists, find, rows};
use rusqlite::params;
use tidemill_model::layout::Tier;
use tidemill_model::replicas::WantedReplicas;
use tidemill_sched::burst::Durable;
use tidemill_wire::v1::{self, Kind, name_result::Result as Answer};

/// Directory attribute: the node of new files below the directory. Value on a file: the node of the file.
pub const DIRECTORY_NODE: &[u8] = b"user.tidemill.node";
/// Directory attribute: the number of replicas of new versions of files below the directory. Value on a file: the wanted number of replicas
/// of the file's version.
pub const DIRECTORY_REPLICAS: &[u8] = b"user.tidemill.replicas";
/// Directory attribute: the striping of new versions of files below the directory, as `UNIT` or `UNIT,WIDTH`; `off` for no striping. Value
/// on a file: the striping of the file.
pub const DIRECTORY_STRIPES: &[u8] = b"user.tidemill.stripe";
/// Directory attribute: the tier of new versions of files below the directory, `memory` or `disk`. Value on a file: the file's tier.
pub const DIRECTORY_TIER: &[u8] = b"user.tidemill.tier";
/// Directory attribute: the text of a rule for files below the directory.
pub const DIRECTORY_RULE: &[u8] = b"user.tidemill.rule";
/// Directory attribute: the state that `fsync` waits for in the directory and in directories below, `synced` or `staged`.
pub const DIRECTORY_DURABLE: &[u8] = b"user.tidemill.durable";
/// Attribute of a file, or of a directory for all files below it: whether readers of an unsealed version wait for further bytes, `1` or
/// `0`.
pub const WAIT: &[u8] = b"user.tidemill.wait";
/// Attribute of a file: the places of its bytes.
pub(super) const LAYOUT: &[u8] = b"user.tidemill.layout";
/// Attribute of a file: the origin of its version.
pub(super) const LINEAGE: &[u8] = b"user.tidemill.lineage";
/// Attribute of a file: the object of its version.
pub(super) const OBJECT: &[u8] = b"user.tidemill.object";
/// Attribute of a file: the number of its version.
pub(super) const VERSION: &[u8] = b"user.tidemill.version";
/// Attribute of a file: the task that wrote its version.
pub(super) const TASK: &[u8] = b"user.tidemill.task";
/// Prefix of attributes that only root sees and sets.
const TRUSTED: &[u8] = b"trusted.";
/// Maximum length in bytes of an attribute that past versions keep: a file may have many past versions.
const ANNOTATION_BYTES_MAX: u32 = 1024;
/// Maximum length of the value of an extended attribute, in bytes.
const VALUE_MAX: usize = 65_536;

impl Tx<'_> {
    pub(crate) fn get_attr(&self, op: &v1::GetAttr) -> Result<Answer, Fault> {
        Ok(Answer::Attr(self.reach(op.ino)?.attr()))
    }

    pub(crate) fn set_attr(&mut self, op: &v1::SetAttr) -> Result<Answer, Fault> {
        let mut vnode = self.reach(op.ino)?;
        self.change_attributes(&mut vnode, op)?;
        vnode.update(self.db)?;
        if op.uid.is_some() || op.gid.is_some() || op.mode.is_some() {
            self.changes_zarr_rights(&vnode)?;
        }
        self.changes.push(Change::Vnode(vnode.ino));
        Ok(Answer::Attr(vnode.attr()))
    }

    /// Changes attributes in the record of an inode; the caller writes the record to the database.
    pub(crate) fn change_attributes(
        &mut self,
        vnode: &mut InodeRecord,
        op: &v1::SetAttr,
    ) -> Result<(), Fault> {
        let only_if = op.only_if.as_ref();
        let same = |rights: &v1::Rights| {
            (rights.mode, rights.uid, rights.gid) == (vnode.mode, vnode.uid, vnode.gid)
        };
        if !only_if.is_none_or(same) {
            return Ok(());
        }
        self.check_set_attr(vnode, op)?;
        if op.uid.is_some() || op.gid.is_some() {
            vnode.uid = op.uid.unwrap_or(vnode.uid);
            vnode.gid = op.gid.unwrap_or(vnode.gid);
            // As Linux does: a program must not keep special rights under a new owner.
            if !vnode.is_dir() && op.mode.is_none() {
                let group_exec = vnode.mode & 0o010 != 0;
                vnode.mode &= if group_exec {
                    !(SETUID | SETGID)
                } else {
                    !SETUID
                };
            }
        }
        if let Some(mode) = op.mode {
            vnode.mode = mode & 0o7777;
            if !self.caller.above() && !vnode.is_dir() && !self.caller.in_group(vnode.gid) {
                vnode.mode &= !SETGID;
            }
        }
        vnode.atime = op.atime.unwrap_or(vnode.atime);
        vnode.mtime = op.mtime.unwrap_or(vnode.mtime);
        vnode.ctime = self.time(op.ctime);
        if op.uid.is_some() || op.gid.is_some() || op.mode.is_some() {
            self.changes.push(Change::Rights(vnode.ino));
        }
        Ok(())
    }

    fn check_set_attr(&self, vnode: &InodeRecord, op: &v1::SetAttr) -> Result<(), Fault> {
        self.need_owner(vnode)?;
        if self.caller.above() {
            return Ok(());
        }
        let new_owner = op.uid.is_some_and(|uid| uid != vnode.uid);
        let strange_group = op
            .gid
            .is_some_and(|gid| gid != vnode.gid && !self.caller.in_group(gid));
        if new_owner || strange_group {
            return Err(Fault::NotOwner(self.called(vnode.ino)));
        }
        Ok(())
    }

    pub(crate) fn get_xattr(&self, op: &v1::GetXattr) -> Result<Answer, Fault> {
        let vnode = self.reach(op.ino)?;
        self.need_read(&vnode)?;
        let value = if is_computed(&op.name, vnode.is_dir()) {
            self.answered(&vnode, &op.name)?
        } else {
            self.check_namespace(&op.name, false)?;
            value_of(self.db, vnode.ino, &op.name)?
        };
        let value = value.ok_or_else(|| Fault::NoAttribute(shown(&op.name)))?;
        Ok(Answer::Bytes(v1::Bytes { value }))
    }

    fn answered(&self, vnode: &InodeRecord, name: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        if vnode.kind != Kind::File || vnode.version == 0 {
            return Ok(None);
        }
        let number = |value: u64| Some(value.to_string().into_bytes());
        Ok(match name {
            VERSION => number(vnode.version),
            OBJECT if vnode.object != 0 => number(vnode.object),
            DIRECTORY_NODE => vnode.node().and_then(|node| number(u64::from(node))),
            DIRECTORY_REPLICAS if vnode.object != 0 => {
                let wanted = self.replicas_of(vnode.object)?;
                number(wanted.into())
            }
            DIRECTORY_TIER => vnode.node().map(|node| {
                let memory = self.shared.in_memory(node);
                if memory { "memory" } else { "disk" }.into()
            }),
            DIRECTORY_STRIPES => self.stripes_of(vnode)?.map(String::into_bytes),
            LAYOUT => Some(self.layout(vnode)?.into_bytes()),
            TASK => version::task_of(self.db, vnode.object)?.and_then(number),
            LINEAGE if vnode.object != 0 => {
                Some(super::lineage::summary(self, vnode.object)?.into_bytes())
            }
            _ => None,
        })
    }

    pub(crate) fn set_xattr(&mut self, op: &v1::SetXattr) -> Result<Answer, Fault> {
        let vnode = self.reach(op.ino)?;
        self.need_write(&vnode)?;
        self.check_settable(&vnode, &op.name)?;
        if op.name.len() > NAME_MAX || op.value.len() > VALUE_MAX {
            return Err(Fault::AttributeTooLong(shown(&op.name)));
        }
        if op.create || op.replace {
            match (
                value_of(self.db, vnode.ino, &op.name)?,
                op.create,
                op.replace,
            ) {
                (Some(_), true, _) => return Err(Fault::AttributeExists(shown(&op.name))),
                (None, _, true) => return Err(Fault::NoAttribute(shown(&op.name))),
                _ => {}
            }
        }
        if op.name == DIRECTORY_NODE {
            let text = std::str::from_utf8(&op.value).ok().map(str::trim);
            if text.and_then(|text| text.parse::<u32>().ok()).is_none() {
                return Err(Fault::BadNode(shown(&op.value)));
            }
            self.shared.set_directory_nodes();
        }
        if op.name == DIRECTORY_REPLICAS {
            let text = String::from_utf8_lossy(&op.value);
            text.trim()
                .parse::<WantedReplicas>()
                .map_err(Fault::BadReplicas)?;
            self.shared.set_directory_replicas();
        }
        if op.name == DIRECTORY_STRIPES {
            let text = String::from_utf8_lossy(&op.value);
            text.trim().parse::<Striping>().map_err(Fault::BadLayout)?;
            self.shared.set_directory_stripes();
        }
        if op.name == DIRECTORY_TIER {
            let text = String::from_utf8_lossy(&op.value);
            text.trim().parse::<Tier>().map_err(Fault::BadTier)?;
            self.shared.set_directory_tiers();
        }
        if op.name == DIRECTORY_DURABLE {
            let text = String::from_utf8_lossy(&op.value);
            text.trim().parse::<Durable>().map_err(Fault::BadDurable)?;
        }
        if op.name == WAIT && !matches!(op.value.trim_ascii(), b"0" | b"1") {
            return Err(Fault::BadWait(shown(&op.value)));
        }
        if op.name == DIRECTORY_RULE {
            self.set_directory_rule(&vnode, &op.value)?;
        }
        part_annotations(self.db, &vnode)?;
        set(self.db, vnode.ino, &op.name, &op.value)?;
        self.touch(vnode)
    }

    /// Returns whether readers on a mount other than the writer's mount wait for bytes of the file that are not written yet.
    pub(super) fn has_readers_wait(&self, vnode: &InodeRecord) -> Result<bool, Fault> {
        let reported = match value_of(self.db, vnode.ino, WAIT)? {
            Some(reported) => reported.trim_ascii() == b"1",
            None => {
                self.directory_attribute::<u8>(&self.directory_of(vnode.ino)?, WAIT)? == Some(1)
            }
        };
        Ok(reported)
    }

    /// Removes an extended attribute of a file or directory; fails if the attribute is computed, reserved or not set.
    pub fn remove_xattr(&mut self, op: &v1::RemoveXattr) -> Result<Answer, Fault> {
        let vnode = self.reach(op.ino)?;
        self.need_write(&vnode)?;
        self.check_settable(&vnode, &op.name)?;
        if op.name == DIRECTORY_RULE && vnode.is_dir() {
            self.need_own_directory(&vnode)?;
            self.drop_directory_rule(vnode.ino)?;
        }
        part_annotations(self.db, &vnode)?;
        if !remove(self.db, vnode.ino, &op.name)? {
            return Err(Fault::NoAttribute(shown(&op.name)));
        }
        self.touch(vnode)
    }

    fn check_settable(&self, vnode: &InodeRecord, name: &[u8]) -> Result<(), Fault> {
        if is_computed(name, vnode.is_dir()) {
            return Err(Fault::AttributeReadOnly(shown(name)));
        }
        self.check_namespace(name, true)?;
        if !matches!(vnode.kind, Kind::File | Kind::Directory) {
            return Err(Fault::NotOwner(shown(name)));
        }
        Ok(())
    }

    fn touch(&mut self, mut vnode: InodeRecord) -> Result<Answer, Fault> {
        vnode.ctime = self.now;
        vnode.update(self.db)?;
        self.changes.push(Change::Vnode(vnode.ino));
        Ok(Answer::Empty(v1::Empty {}))
    }

    /// Fails for an attribute name outside the allowed namespaces: names in `user.` are for all users, and names in `trusted.` only for
    /// root, even if a Linux kernel has checked permissions.
    fn check_namespace(&self, name: &[u8], set: bool) -> Result<(), Fault> {
        if name.starts_with(b"user.") && name.len() > 5 {
            return Ok(());
        }
        if name.starts_with(TRUSTED) && name.len() > TRUSTED.len() {
            return match (self.caller.uid, set) {
                (0, _) => Ok(()),
                (_, true) => Err(Fault::NotOwner(shown(name))),
                (_, false) => Err(Fault::NoAttribute(shown(name))),
            };
        }
        // The Linux kernel asks for these attributes on its own and accepts "none" as an answer.
        if name.starts_with(b"security.") && !set {
            return Err(Fault::NoAttribute(shown(name)));
        }
        Err(Fault::AttributeUnsupported(shown(name)))
    }

    /// Lists only stored attributes, since `cp -a` and `rsync -X` must not try to copy the attributes that the cluster computes.
    pub(crate) fn list_xattr(&self, op: &v1::ListXattr) -> Result<Answer, Fault> {
        let vnode = self.reach(op.ino)?;
        let mut names = names_of(self.db, vnode.ino)?;
        names.retain(|name| self.caller.uid == 0 || !name.starts_with(TRUSTED));
        Ok(Answer::Names(v1::NameList { names }))
    }

    pub(crate) fn stat_fs(&self) -> Answer {
        let spaces = self.shared.spaces();
        Answer::StatFs(v1::StatFsReply {
            capacity: spaces.capacity_bytes,
            free: spaces.free_bytes,
            files: self.shared.files(),
        })
    }
}

/// Returns the stored value of an inode's attribute.
pub(super) fn value_of(db: &Connection, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
    let sql = "SELECT value FROM xattr WHERE ino = ?1 AND name = ?2";
    find(db, sql, params![ino.cast_signed(), name], |row| row.get(0))
}

/// Returns the names of an inode's stored attributes in order.
fn names_of(db: &Connection, ino: u64) -> Result<Vec<Vec<u8>>, Fault> {
    let sql = "SELECT name FROM xattr WHERE ino = ?1 ORDER BY name";
    rows(db, sql, [ino.cast_signed()], |row| row.get(0))
}

/// Returns whether any inode has an attribute with this name.
pub(super) fn any(db: &Connection, name: &[u8]) -> Result<bool, Fault> {
    exists(db, "SELECT 1 FROM xattr WHERE name = ?1", [name])
}

/// Stores the value of an inode's attribute.
pub fn set(db: &Connection, ino: u64, name: &[u8], value: &[u8]) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO xattr VALUES (?1, ?2, ?3)";
    execute(db, sql, params![ino.cast_signed(), name, value])
}

/// Deletes an inode's attribute; returns whether the attribute existed.
pub fn remove(db: &Connection, ino: u64, name: &[u8]) -> Result<bool, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("DELETE FROM xattr WHERE ino = ?1 AND name = ?2")?;
    Ok(statement.execute(params![ino.cast_signed(), name])? > 0)
}

/// Deletes all attributes of an inode.
pub(super) fn forget(db: &Connection, ino: u64) -> Result<(), Fault> {
    execute(db, "DELETE FROM xattr WHERE ino = ?1", [ino.cast_signed()])
}

/// Copies a file's attributes to the version that is no longer the current version.
pub(super) fn keep_annotations(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO annotation SELECT version.object, xattr.name, xattr.value FROM version \
               CROSS JOIN xattr ON xattr.ino = version.ino WHERE version.object = ?1 AND version.version != 0 \
               AND length(value) <= ?2 AND NOT EXISTS (SELECT 1 FROM annotation WHERE object = ?1 AND name = x'')";
    execute(db, sql, params![object.cast_signed(), ANNOTATION_BYTES_MAX])
}

/// Separates the attributes of the current version from the file's attributes. Called before an attribute changes: while the next version
/// is written, the change belongs to that next version. A row with an empty name marks the current version's own attributes.
fn part_annotations(db: &Connection, vnode: &InodeRecord) -> Result<(), Fault> {
    if vnode.writing == 0 || vnode.object == 0 {
        return Ok(());
    }
    keep_annotations(db, vnode.object)?;
    let sql = "INSERT OR IGNORE INTO annotation VALUES (?1, x'', x'')";
    execute(db, sql, [vnode.object.cast_signed()])
}

/// Deletes the attributes that a version keeps apart from its file.
pub(super) fn forget_annotations(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM annotation WHERE object = ?1";
    execute(db, sql, [object.cast_signed()])
}
