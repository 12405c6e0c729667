//! What files in a [room](super::rooms) may take together. Closed versions are counted; how long one may become that is begun is
//! told to whoever writes it.

use super::burst::sum_of;
use super::fault::Fault;
use super::node::Node;
use super::transaction::{DEPTH_MAX, Tx};
use crate::clock;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_core::id::Inode;
use tidemill_wire::v1::Kind;

/// How long what a room takes may be known wrong after something was removed from it.
const COUNT_PAUSE_NS: i64 = 1_000_000_000;
/// Or so many times as long as it took to count it: nobody changes names meanwhile.
const COUNT_PAUSE_FACTOR: i64 = 20;

/// What is known of rooms without looking.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    any: AtomicBool,
    used: Mutex<HashMap<u64, Used>>,
}

/// What a room takes.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// What was written since it was counted is in it, too; what was removed is not.
    bytes: u64,
    /// When it is to be counted again, and a time before that at which it was.
    until: i64,
    counted: i64,
}

impl Quotas {
    /// Whether there are rooms, or were since the start.
    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn set_any(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// A room has ended, or is to be counted anew.
    pub(crate) fn forget(&self, room: u64) {
        self.used.lock().remove(&room);
    }

    fn used(&self, db: &Connection, room: u64, now: i64) -> Result<u64, Fault> {
        let known = self.used.lock().get(&room).copied();
        // A clock that was set back makes it old, too.
        if let Some(known) = known.filter(|known| (known.counted..known.until).contains(&now)) {
            return Ok(known.bytes);
        }
        let start = clock::now_ns();
        let (bytes, _) = used(db, room)?;
        let took = (clock::now_ns() - start).clamp(0, COUNT_PAUSE_NS);
        let used = Used {
            bytes,
            until: now + COUNT_PAUSE_NS.max(took * COUNT_PAUSE_FACTOR),
            counted: now,
        };
        self.used.lock().insert(room, used);
        Ok(bytes)
    }

    fn grown(&self, room: u64, bytes: u64) {
        if let Some(used) = self.used.lock().get_mut(&room) {
            used.bytes = used.bytes.saturating_add(bytes);
        }
    }
}

impl Tx<'_> {
    /// Refuses to begin a version for which nothing is left in its room.
    pub(super) fn need_room(&self, node: &Node) -> Result<(), Fault> {
        match self.size_max(node)? {
            Some(0) => Err(Fault::RoomFull(self.called(node.ino))),
            _ => Ok(()),
        }
    }

    /// How long the next version of a file may be; `None`: it is in no room that has a quota.
    pub(super) fn size_max(&self, node: &Node) -> Result<Option<u64>, Fault> {
        let Some((room, quota)) = self.room_of(node.ino)?.filter(|&(_, quota)| quota != 0) else {
            return Ok(None);
        };
        let used = self.shared.quotas.used(self.db, room, self.now)?;
        Ok(Some(quota.saturating_sub(used).saturating_add(node.size)))
    }

    /// A version was sealed that is so much longer than the one before: known before it is counted.
    pub(super) fn grown(&self, node: &Node, bytes: u64) -> Result<(), Fault> {
        if let Some((room, _)) = self.room_of(node.ino)? {
            self.shared.quotas.grown(room, bytes);
        }
        Ok(())
    }

    /// The room that a file is in, and its quota.
    fn room_of(&self, ino: u64) -> Result<Option<(u64, u64)>, Fault> {
        if !self.shared.quotas.any() {
            return Ok(None);
        }
        let sql = "WITH RECURSIVE above(ino, depth) AS (SELECT * FROM (SELECT parent, 0 FROM dirent WHERE ino = ?1 LIMIT 1) \
                   UNION ALL SELECT parent, depth + 1 FROM above CROSS JOIN inode ON inode.ino = above.ino \
                   WHERE above.ino != ?2 AND depth < ?3) \
                   SELECT room.ino, quota FROM above CROSS JOIN room ON room.ino = above.ino LIMIT 1";
        let deepest = i64::try_from(DEPTH_MAX).unwrap_or(i64::MAX);
        let row = params![ino.cast_signed(), Inode::ROOT.0.cast_signed(), deepest];
        let number = |row: &rusqlite::Row<'_>, at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let found = |row: &rusqlite::Row<'_>| Ok((number(row, 0)?, number(row, 1)?));
        let mut statement = self.db.prepare_cached(sql)?;
        Ok(statement.query_row(row, found).optional()?)
    }
}

/// Bytes and number of the files below a folder, and with the bytes what the channels of a room may hold.
pub(super) fn used(db: &Connection, folder: u64) -> Result<(u64, u64), Fault> {
    let bytes = sum_of("size");
    let sql = format!(
        "WITH RECURSIVE below(ino) AS (SELECT ?1 UNION SELECT dirent.ino FROM below \
         CROSS JOIN dirent ON dirent.parent = below.ino) \
         SELECT {bytes} + (SELECT coalesce(sum(capacity), 0) FROM channel WHERE room = ?1), count(*) FROM below \
         CROSS JOIN inode ON inode.ino = below.ino WHERE kind = ?2"
    );
    let row = params![folder.cast_signed(), Kind::File as i32];
    let number = |row: &rusqlite::Row<'_>, at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    let mut statement = db.prepare_cached(&sql)?;
    Ok(statement.query_row(row, |row| Ok((number(row, 0)?, number(row, 1)?)))?)
}
