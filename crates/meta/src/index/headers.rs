//! Headers of scientific files: headers that wait to be read, and headers that were read.
//!
//! The task that reads headers takes the versions with the name of a scientific file from the feed ([`take`]), and stores the facts of each
//! header (`facts`). Next: `server/src/headers/driver.rs`.

use super::facts::{self, Facts};
use super::zarr::{self, Zarr};
use crate::Connection;
use crate::Fault;
use crate::feed::{self, FeedKind, FeedRow};
use crate::ids;
use crate::query::{changed, execute, exists, find, unsigned};
use crate::settings;
use parking_lot::Mutex;
use rusqlite::params;
use std::collections::BTreeSet;
use tokio::sync::Notify;

/// Name of the counter with the number of the last row of the feed that was examined.
const CURSOR: &str = "feed_of_headers";

/// Extensions of the names of files whose headers are read.
const ENDINGS: [&str; 13] = [
    "nc", "nc3", "nc4", "cdf", "netcdf", "h5", "hdf5", "hdf", "he5", "fits", "fit", "fts", "zip",
];

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
/// Maximum up to which unread headers are counted.
const UNREAD_MAX: i64 = 100_000;
/// Name of the stored position of [`scan`]. Before Zarrs were supported the name was another one, so such databases are scanned again.
const SCANNED: &str = "headers_after_zarr";

/// A version whose header the server has to read.
#[derive(Clone, Copy, Debug)]
pub struct WantedHeader {
    /// Id of the version's object; for a whole Zarr, of the version that represents it.
    pub object: u64,
    /// Inode of the file that has the version.
    pub ino: u64,
}

/// Outcome of reading the header of a version.
#[derive(Debug)]
pub enum HeaderOutcome {
    /// The header was read, and these are its facts.
    Read(Box<Facts>),
    /// The version has no readable header; with the reason.
    Unreadable(String),
    /// The bytes of the version are unavailable now, so the read is retried later.
    Later,
}

/// Signal that wakes the reader of headers, and the set of changed Zarrs.
#[derive(Debug, Default)]
pub struct HeaderWake {
    notify: Notify,
    /// Zarrs that were changed since they were selected, by the object that represents each Zarr. Only writers of the database change the
    /// set, one after the other.
    changed: Mutex<BTreeSet<u64>>,
}

impl HeaderWake {
    fn wake(&self) {
        self.notify.notify_one();
    }

    /// Wakes the reader after a row of the feed about a scientific file was written in a transaction. The reader first writes to the
    /// database, so it runs after the transaction.
    pub(crate) fn wake_for(&self, kind: FeedKind, path: &[u8]) {
        if matches!(kind, FeedKind::Sealed | FeedKind::Named) && by_name(path) {
            self.wake();
        }
    }

    /// Waits until a version or a changed Zarr is queued; a signal since the last wait ends the wait at once.
    pub async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Records that the present state of a Zarr is being read.
    pub fn begin(&self, wanted: WantedHeader) {
        self.changed.lock().remove(&wanted.object);
    }

    /// Whether a Zarr was changed while it was read.
    pub fn is_stale(&self, wanted: WantedHeader) -> bool {
        self.changed.lock().contains(&wanted.object)
    }
}

/// Whether a file counts as scientific, according to its name or path.
fn by_name(path: &[u8]) -> bool {
    if zarr::is_metadata(path) {
        return true;
    }
    let dot = path.iter().rposition(|&byte| byte == b'.' || byte == b'/');
    let ending = match dot {
        Some(dot) if path[dot] == b'.' => &path[dot + 1..],
        _ => return false,
    };
    let is = |known: &&str| ending.eq_ignore_ascii_case(known.as_bytes());
    ENDINGS.iter().any(is)
}

/// Queues the headers of the versions in the next rows of the feed. Returns whether more rows may follow.
pub fn take(db: &Connection) -> Result<bool, Fault> {
    let after = ids::next(db, CURSOR)?.cast_signed();
    let rows = feed::rows(db, (after, i64::MAX), feed::PAGE)?;
    let found = queue_rows(db, &rows)?;
    let more = rows.len() as u64 == feed::PAGE.unsigned_abs();
    // The cursor alone causes no commit.
    if let Some(last) = rows.last().filter(|_| found || more) {
        ids::raise(db, &[(CURSOR, last.seq.cast_unsigned())])?;
    }
    Ok(more)
}

/// Queues the headers of the versions in the rows of the feed up to a number, before these rows are deleted.
pub(crate) fn take_until(db: &Connection, until: i64) -> Result<(), Fault> {
    let mut after = ids::next(db, CURSOR)?.cast_signed();
    while after < until {
        let rows = feed::rows(db, (after, until), feed::PAGE)?;
        queue_rows(db, &rows)?;
        after = rows.last().map_or(until, |last| last.seq);
    }
    ids::raise(db, &[(CURSOR, until.cast_unsigned())])
}

/// Queues the headers of the versions in rows of the feed that are still the versions of their files. Returns whether there were any rows
/// about scientific files.
fn queue_rows(db: &Connection, rows: &[FeedRow]) -> Result<bool, Fault> {
    let sql = "INSERT OR IGNORE INTO header(object, ino, uid) SELECT object, ino, uid FROM inode WHERE ino = ?1 AND object = ?2";
    let mut found = false;
    for row in rows
        .iter()
        .filter(|row| row.is_file_event() && by_name(&row.path))
    {
        execute(db, sql, [row.ino.cast_signed(), row.object.cast_signed()])?;
        found = true;
    }
    Ok(found)
}

/// Queues a version. Returns whether the version was not known.
fn insert(db: &Connection, (object, ino, uid): (u64, u64, u32)) -> Result<bool, Fault> {
    let sql = "INSERT OR IGNORE INTO header(object, ino, uid) VALUES (?1, ?2, ?3)";
    let row = params![object.cast_signed(), ino.cast_signed(), uid];
    Ok(changed(db, sql, row)? > 0)
}

/// Queues versions in a database without queued headers, such as a recovered database. Returns whether more versions may follow.
pub fn scan(db: &Connection) -> Result<bool, Fault> {
    let after = settings::get(db, SCANNED)?
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, i64::from_le_bytes);
    if after == i64::MAX {
        return Ok(false);
    }
    let sql = "SELECT version.object, version.ino, inode.uid, version.path FROM version CROSS JOIN inode \
               ON inode.ino = version.ino AND inode.object = version.object \
               WHERE version.object > ?1 AND removed = 0 AND version.version != 0 ORDER BY version.object LIMIT ?2";
    let mut statement = db.sql.prepare_cached(sql)?;
    let page = i64::try_from(SCANNED_MAX).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![after, page], |row| {
        let number = |at| unsigned(row, at);
        let path: Vec<u8> = row.get(3)?;
        Ok(((number(0)?, number(1)?, row.get(2)?), path))
    })?;
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    for (version, _) in rows.iter().filter(|(_, path)| by_name(path)) {
        insert(db, *version)?;
    }
    let more = rows.len() == SCANNED_MAX;
    let last = rows.last().filter(|_| more);
    let after = last.map_or(i64::MAX, |((object, ..), _)| object.cast_signed());
    settings::set(db, SCANNED, &after.to_le_bytes())?;
    Ok(more)
}

/// Returns some queued versions whose headers are to be read, an equal number for each user.
pub fn next(db: &Connection, count: usize) -> Result<Vec<WantedHeader>, Fault> {
    let mut users: Vec<i64> = Vec::new();
    let sql = "SELECT min(uid) FROM header WHERE state = ?1 AND state <= 1 AND uid > ?2";
    let mut statement = db.sql.prepare_cached(sql)?;
    while users.len() < count {
        let last = users.last().copied().unwrap_or(-1);
        match statement.query_row([QUEUED, last], |row| row.get(0))? {
            Some(uid) => users.push(uid),
            None => break,
        }
    }
    let each = count.div_ceil(users.len().max(1));
    let sql = "SELECT object, ino FROM header WHERE state = ?1 AND state <= 1 AND uid = ?2 ORDER BY object LIMIT ?3";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut all = Vec::new();
    for uid in users {
        let key = params![QUEUED, uid, i64::try_from(each).unwrap_or(1)];
        let rows = statement.query_map(key, |row| {
            Ok(WantedHeader {
                object: unsigned(row, 0)?,
                ino: unsigned(row, 1)?,
            })
        })?;
        for row in rows {
            all.push(row?);
        }
    }
    Ok(all)
}

/// Queues some of the headers again whose read failed temporarily. Returns whether there were any such headers.
pub fn again(db: &Connection) -> Result<bool, Fault> {
    let sql = "UPDATE header SET state = ?1 WHERE object IN (SELECT object FROM header WHERE state = ?2 AND state <= 1 LIMIT ?3)";
    let count = changed(db, sql, [QUEUED, LATER, AGAIN_MAX])?;
    Ok(count > 0)
}

/// Whether the facts of a header are known.
pub fn is_read(db: &Connection, object: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM header WHERE object = ?1 AND state = ?2";
    exists(db, sql, [object.cast_signed(), READ])
}

/// Queues a Zarr to be read, possibly again. Its stored facts are deleted, and the result of a read in progress is discarded.
pub(crate) fn read_again(db: &Connection, wake: &HeaderWake, zarr: &Zarr) -> Result<(), Fault> {
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

/// Queues a Zarr to be read. Returns whether the Zarr was not queued before.
pub fn queue(db: &Connection, zarr: &Zarr) -> Result<bool, Fault> {
    let stands = &zarr.stands;
    let sql = "DELETE FROM header WHERE object = ?1 AND state != ?2";
    execute(db, sql, [stands.object.cast_signed(), QUEUED])?;
    insert(db, (stands.object, stands.ino, stands.uid))
}

/// Records that versions are parts of a Zarr, so that no separate facts are stored for these versions.
pub fn are_parts(db: &Connection, parts: &[WantedHeader]) -> Result<(), Fault> {
    for part in parts {
        let object = part.object.cast_signed();
        let sql = "DELETE FROM header WHERE object = ?1 RETURNING uid";
        let uid: Option<i64> = find(db, sql, [object], |row| row.get(0))?;
        if let Some(uid) = uid {
            let sql = "INSERT INTO header(object, ino, uid, state) VALUES (?1, ?2, ?3, ?4)";
            execute(db, sql, [object, part.ino.cast_signed(), uid, PART])?;
        }
    }
    Ok(())
}

/// Stores the outcome of reading a header. Nothing is stored for a version that was deleted or is no longer queued.
pub fn keep(db: &Connection, wanted: WantedHeader, outcome: &HeaderOutcome) -> Result<(), Fault> {
    let (state, body, error) = match outcome {
        HeaderOutcome::Read(facts) => (READ, facts.body.to_string(), ""),
        HeaderOutcome::Unreadable(why) => (UNREADABLE, String::new(), why.as_str()),
        HeaderOutcome::Later => (LATER, String::new(), ""),
    };
    let sql =
        "UPDATE header SET state = ?2, body = ?3, error = ?4 WHERE object = ?1 AND state = ?5";
    let row = params![wanted.object.cast_signed(), state, body, error, QUEUED];
    let kept = changed(db, sql, row)?;
    match outcome {
        HeaderOutcome::Read(facts) if kept > 0 => facts::store(db, wanted.ino, facts),
        _ => Ok(()),
    }
}

/// Returns the facts about a version for display, as JSON; an empty text if the header was not read.
pub fn body_of(db: &Connection, object: u64) -> Result<String, Fault> {
    let sql = "SELECT coalesce((SELECT body FROM header WHERE object = ?1), '')";
    let mut statement = db.sql.prepare_cached(sql)?;
    Ok(statement.query_row([object.cast_signed()], |row| row.get(0))?)
}

/// Returns the number of headers that are still to be read, at most `UNREAD_MAX`.
pub fn count_unread(db: &Connection) -> Result<u64, Fault> {
    let sql = "SELECT count(*) FROM (SELECT 1 FROM header WHERE state <= 1 LIMIT ?1)";
    let mut statement = db.sql.prepare_cached(sql)?;
    let count = statement.query_row([UNREAD_MAX], |row| row.get::<_, i64>(0))?;
    Ok(count.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::by_name;

    #[test]
    fn by_name_recognises_extensions_of_scientific_files() {
        for name in [
            "a.nc",
            "/x/y.NC",
            "/x.d/tas_2015.h5",
            ".fits",
            "a.b.he5",
            "/a/.zarray",
        ] {
            assert!(by_name(name.as_bytes()), "{name}");
        }
        for name in ["nc", "/a.nc/b", "a.nc.tmp", "a.n", "", "a.", "/a.nc/"] {
            assert!(!by_name(name.as_bytes()), "{name}");
        }
    }
}
