//! Tables of headers of scientific files. This module reads and writes the tables within transactions of its callers.

use super::facts::Facts;
use super::zarr::Zarr;
use super::{HeaderWake, by_name};
use crate::names::Fault;
use crate::names::transaction::Tx;
use crate::names::vnode::InodeRecord;
use rusqlite::{Connection, OptionalExtension, params};
use tidemill_wire::v1::Kind;

/// Maximum number of versions that one transaction examines for headers to queue.
const SCANNED_MAX: usize = 1000;
/// Maximum number of headers that are queued again at once after temporary failures.
const AGAIN_MAX: i64 = 1000;

const QUEUED: i64 = 0;
const LATER: i64 = 1;
const READ: i64 = 2;
const UNREADABLE: i64 = 3;
/// State of a file of a Zarr that another file represents.
const PART: i64 = 4;
/// Maximum number of changed Zarrs that are recorded in memory before they are read.
const CHANGED_MAX: usize = 1 << 16;
/// Name of the stored position of [`scan`]. Before Zarrs were supported the name was another one, so such databases are scanned again.
const SCANNED: &str = "headers_after_zarr";

/// A version whose header the server has to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedHeader {
    pub(super) object: u64,
    pub(super) ino: u64,
}

/// Outcome of reading the header of a version.
#[derive(Debug)]
pub(super) enum HeaderOutcome {
    Read(Box<Facts>),
    /// The version has no readable header; with the reason.
    Unreadable(String),
    /// The bytes of the version are unavailable now, so the read is retried later.
    Later,
}

impl HeaderWake {
    fn wake(&self) {
        self.notify.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Tx<'_> {
    /// Queues the present version of a file with this name or path, if the path has the extension of a scientific file. The header is read
    /// after the transaction.
    pub(crate) fn want_header(&self, vnode: &InodeRecord, path: &[u8]) -> Result<(), Fault> {
        if !by_name(path) || vnode.kind != Kind::File || vnode.object == 0 || vnode.version == 0 {
            return Ok(());
        }
        let (object, ino) = (vnode.object.cast_signed(), vnode.ino.cast_signed());
        let sql = "INSERT OR IGNORE INTO header(object, ino, uid) VALUES (?1, ?2, ?3)";
        let new = self
            .db
            .prepare_cached(sql)?
            .execute(params![object, ino, vnode.uid])?;
        if new > 0 {
            self.shared.headers.wake();
        }
        Ok(())
    }
}

/// Queues versions in a database without queued headers, such as a recovered database. Returns whether more versions may follow.
pub(super) fn scan(db: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT value FROM setting WHERE name = ?1";
    let after: Option<Vec<u8>> = db
        .prepare_cached(sql)?
        .query_row([SCANNED], |row| row.get(0))
        .optional()?;
    let after = after
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, i64::from_le_bytes);
    if after == i64::MAX {
        return Ok(false);
    }
    let sql = "SELECT version.object, version.ino, inode.uid, version.path FROM version CROSS JOIN inode \
               ON inode.ino = version.ino AND inode.object = version.object \
               WHERE version.object > ?1 AND removed = 0 AND version.version != 0 ORDER BY version.object LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let page = i64::try_from(SCANNED_MAX).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![after, page], |row| {
        let path: Vec<u8> = row.get(3)?;
        let key: (i64, i64, u32) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((key, path))
    })?;
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let sql = "INSERT OR IGNORE INTO header(object, ino, uid) VALUES (?1, ?2, ?3)";
    let mut insert = db.prepare_cached(sql)?;
    for ((object, ino, uid), _) in rows.iter().filter(|(_, path)| by_name(path)) {
        insert.execute(params![object, ino, uid])?;
    }
    let more = rows.len() == SCANNED_MAX;
    let last = rows.last().filter(|_| more);
    let after = last.map_or(i64::MAX, |((object, ..), _)| *object);
    db.prepare_cached("INSERT OR REPLACE INTO setting VALUES (?1, ?2)")?
        .execute(params![SCANNED, after.to_le_bytes()])?;
    Ok(more)
}

/// Returns some queued versions whose headers are to be read, an equal number for each user.
pub(super) fn next(db: &Connection, count: usize) -> Result<Vec<WantedHeader>, Fault> {
    let mut users: Vec<i64> = Vec::new();
    let sql = "SELECT min(uid) FROM header WHERE state = ?1 AND state <= 1 AND uid > ?2";
    let mut statement = db.prepare_cached(sql)?;
    while users.len() < count {
        let last = users.last().copied().unwrap_or(-1);
        match statement.query_row([QUEUED, last], |row| row.get(0))? {
            Some(uid) => users.push(uid),
            None => break,
        }
    }
    let each = count.div_ceil(users.len().max(1));
    let sql = "SELECT object, ino FROM header WHERE state = ?1 AND state <= 1 AND uid = ?2 ORDER BY object LIMIT ?3";
    let mut statement = db.prepare_cached(sql)?;
    let mut all = Vec::new();
    for uid in users {
        let key = params![QUEUED, uid, i64::try_from(each).unwrap_or(1)];
        let rows = statement.query_map(key, |row| {
            Ok(WantedHeader {
                object: row.get::<_, i64>(0)?.cast_unsigned(),
                ino: row.get::<_, i64>(1)?.cast_unsigned(),
            })
        })?;
        for row in rows {
            all.push(row?);
        }
    }
    Ok(all)
}

/// Queues some of the headers again whose read failed temporarily. Returns whether there were any such headers.
pub(super) fn again(db: &Connection) -> Result<bool, Fault> {
    let sql = "UPDATE header SET state = ?1 WHERE object IN (SELECT object FROM header WHERE state = ?2 AND state <= 1 LIMIT ?3)";
    let count = db
        .prepare_cached(sql)?
        .execute([QUEUED, LATER, AGAIN_MAX])?;
    Ok(count > 0)
}

/// Whether the facts of a header are known.
pub(super) fn is_read(db: &Connection, object: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM header WHERE object = ?1 AND state = ?2";
    let mut statement = db.prepare_cached(sql)?;
    Ok(statement.exists([object.cast_signed(), READ])?)
}

/// Queues a Zarr to be read, possibly again. Its stored facts are deleted, and the result of a read in progress is discarded.
pub(super) fn read_again(db: &Connection, wake: &HeaderWake, zarr: &Zarr) -> Result<(), Fault> {
    queue(db, zarr)?;
    let mut changed = wake.changed.lock();
    if changed.len() >= CHANGED_MAX {
        // A read in progress then stores a slightly older state.
        changed.clear();
    }
    changed.insert(zarr.stands.object);
    wake.wake();
    Ok(())
}

/// Records that the present state of a Zarr is being read.
pub(super) fn begin(wake: &HeaderWake, wanted: WantedHeader) {
    wake.changed.lock().remove(&wanted.object);
}

/// Whether a Zarr was changed while it was read.
pub(super) fn is_stale(wake: &HeaderWake, wanted: WantedHeader) -> bool {
    wake.changed.lock().contains(&wanted.object)
}

/// Queues a Zarr to be read. Returns whether the Zarr was not queued before.
pub(super) fn queue(db: &Connection, zarr: &Zarr) -> Result<bool, Fault> {
    let (object, ino) = (
        zarr.stands.object.cast_signed(),
        zarr.stands.ino.cast_signed(),
    );
    db.prepare_cached("DELETE FROM header WHERE object = ?1 AND state != ?2")?
        .execute([object, QUEUED])?;
    let sql = "INSERT OR IGNORE INTO header(object, ino, uid) VALUES (?1, ?2, ?3)";
    let new = db
        .prepare_cached(sql)?
        .execute(params![object, ino, zarr.stands.uid])?;
    Ok(new > 0)
}

/// Records that versions are parts of a Zarr, so that no separate facts are stored for these versions.
pub(super) fn are_parts(db: &Connection, parts: &[WantedHeader]) -> Result<(), Fault> {
    for part in parts {
        let object = part.object.cast_signed();
        let sql = "INSERT INTO header(object, ino, uid, state) VALUES (?1, ?2, ?3, ?4)";
        let mut removed =
            db.prepare_cached("DELETE FROM header WHERE object = ?1 RETURNING uid")?;
        let uid: Option<i64> = removed.query_row([object], |row| row.get(0)).optional()?;
        if let Some(uid) = uid {
            db.prepare_cached(sql)?
                .execute([object, part.ino.cast_signed(), uid, PART])?;
        }
    }
    Ok(())
}

/// Stores the outcome of reading a header. Nothing is stored for a version that was deleted or is no longer queued.
pub(super) fn keep(
    db: &Connection,
    wanted: WantedHeader,
    outcome: &HeaderOutcome,
) -> Result<(), Fault> {
    let (state, body, error) = match outcome {
        HeaderOutcome::Read(facts) => (READ, facts.body.to_string(), ""),
        HeaderOutcome::Unreadable(why) => (UNREADABLE, String::new(), why.as_str()),
        HeaderOutcome::Later => (LATER, String::new(), ""),
    };
    let sql =
        "UPDATE header SET state = ?2, body = ?3, error = ?4 WHERE object = ?1 AND state = ?5";
    let row = params![wanted.object.cast_signed(), state, body, error, QUEUED];
    let kept = db.prepare_cached(sql)?.execute(row)?;
    let HeaderOutcome::Read(facts) = outcome else {
        return Ok(());
    };
    if kept == 0 {
        return Ok(());
    }
    let ino = wanted.ino.cast_signed();
    let mut find = db.prepare_cached("SELECT term FROM term WHERE key = ?1 AND text = ?2")?;
    let mut add = db
        .prepare_cached("INSERT INTO term(key, text, number) VALUES (?1, ?2, ?3) RETURNING term")?;
    let mut insert = db.prepare_cached("INSERT OR IGNORE INTO text_field VALUES (?1, ?2)")?;
    for term in &facts.terms {
        let known = find.query_row([&term.key, &term.text], |row| row.get::<_, i64>(0));
        let id = match known.optional()? {
            Some(id) => id,
            None => add.query_row(params![term.key, term.text, term.number], |row| row.get(0))?,
        };
        insert.execute([id, ino])?;
    }
    let mut put = db.prepare_cached("INSERT OR IGNORE INTO span VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for span in &facts.spans {
        put.execute(params![span.name, ino, span.is_time, span.low, span.high])?;
    }
    Ok(())
}
