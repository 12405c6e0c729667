//! Quotas: the total space that files in a [workspace](super::workspaces) may use. Sealed versions count. A writer receives the maximum
//! size that its new version may reach.

use super::clock;
use super::fault::Fault;
use super::placement::burst::sum_of;
use super::transaction::{DEPTH_MAX, Tx};
use super::vnode::InodeRecord;
use crate::Connection;
use crate::query::{find, unsigned};
use parking_lot::Mutex;
use rusqlite::params;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_model::id::Inode;
use tidemill_wire::v1::Kind;

/// Time in nanoseconds for which a workspace's known usage may be too large after a removal.
const COUNT_PAUSE_NS: i64 = 1_000_000_000;
/// The same time as a multiple of the duration of counting, during which no other client can change names.
const COUNT_PAUSE_FACTOR: i64 = 20;

/// Usage of workspaces that is known without counting.
#[derive(Debug, Default)]
pub struct Quotas {
    any: AtomicBool,
    used: Mutex<HashMap<u64, Used>>,
}

/// Usage of one workspace.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// Bytes in use, including bytes written since the last count. Removals since the count are not subtracted.
    bytes: u64,
    /// Time of the next count in nanoseconds since the Unix epoch, and (`counted`) time of the last count.
    until: i64,
    counted: i64,
}

impl Quotas {
    /// Returns whether any workspace exists, or existed since the server's start.
    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn set_any(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// Deletes the known usage of a workspace that has ended, or whose next count is due.
    pub fn forget(&self, workspace: u64) {
        self.used.lock().remove(&workspace);
    }

    fn used(&self, db: &Connection, workspace: u64, now: i64) -> Result<u64, Fault> {
        let known = self.used.lock().get(&workspace).copied();
        // After a clock was set back the count is outdated, too.
        if let Some(known) = known.filter(|known| (known.counted..known.until).contains(&now)) {
            return Ok(known.bytes);
        }
        let start = clock::now_ns();
        let (bytes, _) = used(db, workspace)?;
        let took = (clock::now_ns() - start).clamp(0, COUNT_PAUSE_NS);
        let used = Used {
            bytes,
            until: now + COUNT_PAUSE_NS.max(took * COUNT_PAUSE_FACTOR),
            counted: now,
        };
        self.used.lock().insert(workspace, used);
        Ok(bytes)
    }

    fn grown(&self, workspace: u64, bytes: u64) {
        if let Some(used) = self.used.lock().get_mut(&workspace) {
            used.bytes = used.bytes.saturating_add(bytes);
        }
    }
}

impl Tx<'_> {
    /// Returns the maximum size of a file's next version as [`Self::size_max`] does; fails if the quota of its workspace is used up.
    pub(super) fn need_quota(&self, vnode: &InodeRecord) -> Result<Option<u64>, Fault> {
        match self.size_max(vnode)? {
            Some(0) => Err(Fault::WorkspaceFull(self.called(vnode.ino))),
            size_max => Ok(size_max),
        }
    }

    /// Returns the maximum size in bytes of a file's next version; `None` if the file is in no workspace with a quota.
    pub(super) fn size_max(&self, vnode: &InodeRecord) -> Result<Option<u64>, Fault> {
        let Some((workspace, quota)) = self
            .workspace_of(vnode.ino)?
            .filter(|&(_, quota)| quota != 0)
        else {
            return Ok(None);
        };
        let used = self.shared.quotas.used(self.db, workspace, self.now)?;
        Ok(Some(quota.saturating_sub(used).saturating_add(vnode.size)))
    }

    /// Adds the growth of a version that was just sealed to the workspace's known usage, before the next count.
    pub(super) fn grown(&self, vnode: &InodeRecord, bytes: u64) -> Result<(), Fault> {
        if let Some((workspace, _)) = self.workspace_of(vnode.ino)? {
            self.shared.quotas.grown(workspace, bytes);
        }
        Ok(())
    }

    /// Returns the workspace that contains a file, and its quota in bytes.
    fn workspace_of(&self, ino: u64) -> Result<Option<(u64, u64)>, Fault> {
        if !self.shared.quotas.any() {
            return Ok(None);
        }
        let sql = "WITH RECURSIVE above(ino, depth) AS (SELECT * FROM (SELECT parent, 0 FROM dirent WHERE ino = ?1 LIMIT 1) \
                   UNION ALL SELECT parent, depth + 1 FROM above CROSS JOIN inode ON inode.ino = above.ino \
                   WHERE above.ino != ?2 AND depth < ?3) \
                   SELECT workspace.ino, quota FROM above CROSS JOIN workspace ON workspace.ino = above.ino LIMIT 1";
        let row = params![ino.cast_signed(), Inode::ROOT.0.cast_signed(), DEPTH_MAX];
        let number = |row: &rusqlite::Row<'_>, at| unsigned(row, at);
        let found = |row: &rusqlite::Row<'_>| Ok((number(row, 0)?, number(row, 1)?));
        find(self.db, sql, row, found)
    }
}

/// Returns the bytes and the number of the files below a directory.
pub fn used(db: &Connection, directory: u64) -> Result<(u64, u64), Fault> {
    let bytes = sum_of("size");
    let sql = format!(
        "WITH RECURSIVE below(ino) AS (SELECT ?1 UNION SELECT dirent.ino FROM below \
         CROSS JOIN dirent ON dirent.parent = below.ino) \
         SELECT {bytes}, count(*) FROM below \
         CROSS JOIN inode ON inode.ino = below.ino WHERE kind = ?2"
    );
    let row = params![directory.cast_signed(), Kind::File as i32];
    let number = |row: &rusqlite::Row<'_>, at| unsigned(row, at);
    let mut statement = db.sql.prepare_cached(&sql)?;
    Ok(statement.query_row(row, |row| Ok((number(row, 0)?, number(row, 1)?)))?)
}
