//! Scrubs: nodes read all of their objects, or some, and compare the bytes with the stored hashes.
//!
//! A scrub of one node is a row of `scrub`. The table `verify` has the objects of a list; for a scrub of all objects, the row has the
//! progress. The driver creates labels of a few hundred objects each, and few labels at a time. A row and its labels change in one
//! transaction, so after a restart the tables list the remaining work. All objects of each node are also read regularly.

use super::corruption;
use crate::Connection;
use crate::commit::Database;
use crate::fault::Fault;
use crate::json::json_list;
use crate::query::{execute, number, numbers, rows, unsigned};
use crate::shared::NamesShared;
use rusqlite::params;
use std::time::Duration;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::label::{Corrupt, Operation};
use tidemill_wire::v1;

/// Maximum number of objects that one label reads.
const OBJECTS_MAX: u32 = 256;
/// Total size in bytes from which no more objects are added to a label.
const BYTES_MAX: u64 = 1 << 30;
/// Maximum number of objects of a list that are stored in one transaction.
const LIST_MAX: usize = 4096;
/// Time in nanoseconds for which ended scrubs stay in the database.
const KEPT_NS: i64 = 86_400 * 1_000_000_000;
/// Value of the column `ended` for a scrub whose list of objects is still being stored.
const LISTING: i64 = -1;

/// Position at which a scrub continues on a node.
#[derive(Clone, Copy, Debug)]
pub struct ScrubPosition {
    id: i64,
    /// Node that reads the objects.
    pub node: NodeId,
    listed: bool,
    idle: bool,
    after: i64,
}

/// Returns the scrubs that have no label in progress, each with its position.
pub fn open(db: &Connection) -> Result<Vec<ScrubPosition>, Fault> {
    let sql = "SELECT scrub, node, listed, idle, after FROM scrub \
               WHERE ended = 0 AND labels = 0 ORDER BY idle, scrub";
    rows(db, sql, [], |row| {
        Ok(ScrubPosition {
            id: row.get(0)?,
            node: NodeId(row.get(1)?),
            listed: row.get(2)?,
            idle: row.get(3)?,
            after: row.get(4)?,
        })
    })
}

impl ScrubPosition {
    /// Returns the number of the scrub, which its labels contain.
    pub fn id(&self) -> u64 {
        self.id.cast_unsigned()
    }

    /// Returns the operation that reads the next objects; `None` after the last object.
    pub fn next(&self, db: &Connection) -> Result<Option<Operation>, Fault> {
        let listed = "SELECT verify.object, coalesce(size, 0) FROM verify LEFT JOIN held USING (object) \
                      WHERE scrub = ?1 AND verify.object > ?2 ORDER BY verify.object LIMIT ?3";
        let all = "SELECT object, size FROM held WHERE node = ?1 AND removed = 0 AND object > ?2 \
                   UNION SELECT replica.object, held.size FROM replica CROSS JOIN held ON held.object = replica.object \
                   WHERE want != 2 AND replica.node = ?1 AND replica.object > ?2 AND state >= 2 ORDER BY 1 LIMIT ?3";
        let after = self.after;
        let found: Vec<(u64, u64)> = match self.listed {
            true => rows(db, listed, params![self.id, after, OBJECTS_MAX], numbers)?,
            false => {
                let key = params![self.node.0, after, OBJECTS_MAX];
                rows(db, all, key, numbers)?
            }
        };
        let (mut objects, mut bytes) = (Vec::new(), 0_u64);
        for (object, size) in found {
            if bytes >= BYTES_MAX {
                break;
            }
            objects.push(ObjectId(object));
            bytes = bytes.saturating_add(size);
        }
        Ok((!objects.is_empty()).then_some(Operation::Verify {
            scrub: self.id(),
            idle: self.idle,
            objects,
        }))
    }
}

/// Records that a label of a scrub is about to be sent.
pub fn labelled(db: &Connection, scrub: u64, last: Option<ObjectId>) -> Result<(), Fault> {
    let sql = "UPDATE scrub SET labels = labels + 1, after = coalesce(?2, after) WHERE scrub = ?1";
    let last = last.map(|object| object.0.cast_signed());
    execute(db, sql, params![scrub.cast_signed(), last])
}

/// Result of a label that read objects.
#[derive(Clone, Debug, Default)]
pub struct ScrubbedLabel {
    /// Number of bytes that the node read and compared with hashes.
    pub bytes: u64,
    /// Corrupt objects that the label found, each with a description of the corruption.
    pub corrupt: Vec<Corrupt>,
}

/// Records the end of a label that read objects. If the label has failed, only its corrupt objects are known.
pub fn ended(
    db: &Connection,
    shared: &NamesShared,
    (scrub, node): (u64, NodeId),
    objects: &[ObjectId],
    (read, well): (&ScrubbedLabel, bool),
    now: i64,
) -> Result<(), Fault> {
    let corrupt = corruption::found(db, shared, node, &read.corrupt, now)?;
    let mut count = 0;
    if well {
        corruption::verified(db, node, objects, &read.corrupt, now)?;
        count = objects.len();
    }
    let sql = "UPDATE scrub SET labels = max(labels - 1, 0), objects = objects + ?2, bytes = bytes + ?3, \
               corrupt = corrupt + ?4 WHERE scrub = ?1";
    let row = params![
        scrub.cast_signed(),
        i64::try_from(count).unwrap_or(i64::MAX),
        read.bytes.cast_signed(),
        corrupt.cast_signed(),
    ];
    execute(db, sql, row)
}

/// Records the end of a scrub that has no objects left to read.
pub fn finish(db: &Connection, scrub: u64, now: i64) -> Result<(), Fault> {
    let id = [scrub.cast_signed()];
    execute(db, "DELETE FROM verify WHERE scrub = ?1", id)?;
    let sql = "UPDATE scrub SET ended = ?2 WHERE scrub = ?1 AND ended = 0";
    execute(db, sql, params![scrub.cast_signed(), now])?;
    // The last complete scrub of each node is kept.
    let sql = "DELETE FROM scrub WHERE ended > 0 AND ended < ?1 AND (listed = 1 OR EXISTS (SELECT 1 FROM scrub AS later \
               WHERE later.node = scrub.node AND later.listed = 0 AND later.ended > scrub.ended))";
    execute(db, sql, [now - KEPT_NS])
}

fn insert(
    db: &Connection,
    node: u32,
    (request, listed, idle): (u64, bool, bool),
    (begun, ended): (i64, i64),
) -> Result<i64, Fault> {
    let sql = "INSERT INTO scrub(request, node, listed, idle, begun, ended) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let row = params![request.cast_signed(), node, listed, idle, begun, ended];
    execute(db, sql, row)?;
    Ok(db.sql.last_insert_rowid())
}

fn new_request(db: &Connection) -> Result<u64, Fault> {
    let sql = "SELECT coalesce(max(request), 0) + 1 FROM scrub";
    number(db, sql, [])
}

/// Requests a scrub of all objects of these nodes. Returns the number of the request.
pub fn ask_for_all(db: &Connection, nodes: &[u32], now: i64) -> Result<u64, Fault> {
    let request = new_request(db)?;
    for &node in nodes {
        insert(db, node, (request, false, false), (now, 0))?;
    }
    Ok(request)
}

/// Requests a scrub of these objects, by node. Returns the number of the request.
pub async fn ask_for(
    database: &Database,
    lists: Vec<(u32, Vec<u64>)>,
    now: i64,
) -> Result<u64, Fault> {
    let nodes: Vec<u32> = lists.iter().map(|(node, _)| *node).collect();
    let begin = move |db: &Connection| {
        let request = new_request(db)?;
        let insert = |&node: &u32| insert(db, node, (request, true, false), (now, LISTING));
        let rows = nodes.iter().map(insert).collect::<Result<Vec<_>, _>>()?;
        Ok((request, rows))
    };
    let (request, rows) = database.write(begin).await?;
    for (row, (_, objects)) in rows.into_iter().zip(lists) {
        // Other transactions can write in between.
        for some in objects.chunks(LIST_MAX) {
            let some = some.to_vec();
            let put = move |db: &Connection| {
                let sql = "INSERT OR IGNORE INTO verify VALUES (?1, ?2)";
                some.iter()
                    .try_for_each(|object| execute(db, sql, [row, object.cast_signed()]))
            };
            database.write(put).await?;
        }
    }
    let whole = move |db: &Connection| {
        let sql = "UPDATE scrub SET ended = 0 WHERE request = ?1 AND ended = ?2";
        execute(db, sql, params![request.cast_signed(), LISTING])
    };
    database.write(whole).await?;
    Ok(request)
}

/// Returns the progress of the scrubs of a request; without a request, of each node's last complete scrub and the scrubs in progress.
pub fn list(db: &Connection, request: Option<u64>) -> Result<Vec<v1::NodeScrub>, Fault> {
    let sql = "SELECT node, begun, ended, objects, bytes, corrupt, idle, \
               iif(listed, 0, after), (SELECT next FROM counter WHERE name = 'object'), request FROM scrub \
               WHERE iif(?1 IS NULL, listed = 0, request = ?1) ORDER BY node, scrub";
    let number = |row: &rusqlite::Row<'_>, column: usize| unsigned(row, column);
    rows(db, sql, [request.map(u64::cast_signed)], |row| {
        let (after, last) = (number(row, 7)?, number(row, 8)?.max(1));
        let milli = u128::from(after) * 1000 / u128::from(last);
        Ok(v1::NodeScrub {
            node: row.get(0)?,
            begun: row.get(1)?,
            ended: row.get::<_, i64>(2)?.max(0),
            objects: number(row, 3)?,
            bytes: number(row, 4)?,
            corrupt: number(row, 5)?,
            idle: row.get(6)?,
            done_milli: u32::try_from(milli.min(1000)).unwrap_or(1000),
            request: number(row, 9)?,
        })
    })
}

/// Deletes scrubs whose lists of objects were incomplete when an earlier run of the server ended.
pub fn clean(db: &Connection) -> Result<(), Fault> {
    for sql in [
        "DELETE FROM verify WHERE scrub IN (SELECT scrub FROM scrub WHERE ended = -1)",
        "DELETE FROM scrub WHERE ended = -1",
    ] {
        execute(db, sql, [])?;
    }
    Ok(())
}

/// Returns, for each node, the end of its last scrub of all objects: `None` without any scrub, `i64::MAX` while one is in progress.
fn last_ends(db: &Connection, nodes: &[u32]) -> Result<Vec<(u32, Option<i64>)>, Fault> {
    let sql = "SELECT value, (SELECT max(iif(ended = 0, ?2, ended)) FROM scrub WHERE node = value AND listed = 0) FROM json_each(?1)";
    let key = params![json_list(nodes.iter().map(|&node| node.into())), i64::MAX];
    rows(db, sql, key, |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Returns the time at which the next scrub of all objects of a node begins, if any. A node without any scrub is due at once: its interval
/// begins then.
pub fn next(db: &Connection, nodes: &[u32], every: Duration) -> Result<Option<i64>, Fault> {
    let every = i64::try_from(every.as_nanos()).unwrap_or(i64::MAX);
    let ends = last_ends(db, nodes)?.into_iter();
    let ends = ends.map(|(_, ended)| ended.map_or(0, |ended| ended.saturating_add(every)));
    Ok(ends.filter(|&at| at < i64::MAX).min())
}

/// Returns the nodes whose interval has passed. A node without any scrub is returned with the flag unset: its interval begins now.
fn due(
    db: &Connection,
    nodes: &[u32],
    every: Duration,
    now: i64,
) -> Result<Vec<(u32, bool)>, Fault> {
    let every = i64::try_from(every.as_nanos()).unwrap_or(i64::MAX);
    let ends = last_ends(db, nodes)?.into_iter();
    let due =
        ends.filter(|(_, ended)| ended.is_none_or(|ended| ended.saturating_add(every) <= now));
    Ok(due.map(|(node, ended)| (node, ended.is_some())).collect())
}

/// Begins a scrub of all objects of each node that is due. The first scrub of a new node begins after one interval.
pub fn begin(db: &Connection, nodes: &[u32], every: Duration, now: i64) -> Result<(), Fault> {
    for (node, known) in due(db, nodes, every, now)? {
        let ended = if known { 0 } else { now };
        insert(db, node, (0, false, true), (now, ended))?;
    }
    Ok(())
}
