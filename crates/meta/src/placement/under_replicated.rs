//! Objects to examine: they may have fewer replicas than wanted, or they have a requested migration. An object leaves the list when it has
//! as many replicas as wanted, so after a restart the list has exactly the remaining work.

use super::migrations;
use super::replicas;
use super::{burst, nodes};
use crate::Connection;
use crate::fault::Fault;
use crate::json::json_list;
use crate::parts;
use crate::query::{execute, find, number, rows, unsigned};
use crate::transaction::Change;
use rusqlite::params;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::label::Owner;
use tidemill_model::layout::PartOf;
use tidemill_model::replicas::{REPLICAS_MAX, ReplicaRecord};
use tidemill_wire::v1;

/// Number of current replicas of a version that was just sealed (column `short.has`). The version is examined among those with only one
/// replica, the most urgent.
pub const NEW: i64 = 1;
/// Value of the column `short.has` for a version that only has to migrate. No replica is missing, so the version is examined after all
/// versions with too few replicas.
pub const MIGRATIONS: i64 = REPLICAS_MAX as i64 + 1;
/// Time when a version is due that a caller waits for (column `short.at`): a time long past.
pub const AT_ONCE: i64 = 0;
/// Time in nanoseconds for which a version is skipped after no replica of the version could be created.
pub const REST_NS: i64 = 10 * 1_000_000_000;
/// Longest pause between seals that still belong to one run of new files. The files of a run are replicated when the run ends, since
/// replication would slow down the program that writes the files.
const GIVE_WAY_NS: i64 = 200_000_000;
/// Maximum wait of the first file of a run, in nanoseconds, before its replication starts.
const GIVE_WAY_NS_MAX: i64 = 5 * 1_000_000_000;
/// Maximum number of unavailable files whose names are reported.
const LOST_NAMED_MAX: i64 = 10;

/// Schedules the examination of an object with `has` current replicas. An object that is already scheduled keeps the earlier time.
pub fn schedule(db: &Connection, object: u64, has: i64, at: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO short VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET at = min(at, ?3)";
    execute(db, sql, params![object.cast_signed(), has, at])
}

/// Schedules a check whether a version has enough replicas.
pub fn look_again(db: &Connection, object: u64, at: i64) -> Result<(), Fault> {
    schedule(db, object, NEW, at)
}

/// Schedules the examination of an object whose replicas may have been lost, with the number of replicas that are not on lost nodes.
pub(super) fn recount(db: &Connection, object: u64, now: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO short SELECT object, \
               (node NOT IN (SELECT node FROM node WHERE state = 2)) + (SELECT count(*) FROM replica \
                WHERE replica.object = held.object AND replica.node != held.node AND want != 2 AND state >= 2 \
                AND replica.node NOT IN (SELECT node FROM node WHERE state = 2)), ?2 \
               FROM held WHERE object = ?1 \
               ON CONFLICT DO UPDATE SET has = excluded.has, at = min(at, ?2)";
    execute(db, sql, params![object.cast_signed(), now])
}

/// Schedules the examination of the versions whose first replica is on a removed node, with the number of replicas on other nodes.
pub(super) fn schedule_lost(db: &Connection, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO short SELECT object, (SELECT count(*) FROM replica WHERE replica.object = held.object \
               AND want != 2 AND state >= 2 AND replica.node != ?1), ?2 FROM held WHERE node = ?1 AND removed = 0 \
               ON CONFLICT DO UPDATE SET has = excluded.has, at = min(at, ?2)";
    execute(db, sql, params![node, now])
}

/// Schedules the examination of the objects in the range `after` to `last` that are to leave a node.
pub(super) fn schedule_leaving(
    db: &Connection,
    node: u32,
    (after, last): (i64, i64),
    now: i64,
) -> Result<(), Fault> {
    let sql = "INSERT INTO short SELECT object, ?4, ?5 FROM replica \
               WHERE want = 1 AND node = ?1 AND object > ?2 AND object <= ?3 \
               ON CONFLICT DO UPDATE SET at = min(at, ?5)";
    execute(db, sql, params![node, after, last, MIGRATIONS, now])
}

/// Schedules the examination of the objects of a node of the burst tier, also of objects that are staged out if `all` is set.
pub(super) fn schedule_burst(db: &Connection, node: u32, all: bool, now: i64) -> Result<(), Fault> {
    let sql = "INSERT INTO short SELECT object, ?3, ?2 FROM replica WHERE tier IS NOT NULL AND node = ?1 AND (?4 OR tier != 2) \
               ON CONFLICT DO UPDATE SET at = min(at, ?2)";
    execute(db, sql, params![node, now, MIGRATIONS, all])
}

/// Postpones the examination of an object that has `has` current replicas. Without `has`, some replica exists.
pub(super) fn postpone(
    db: &Connection,
    object: u64,
    has: Option<i64>,
    now: i64,
) -> Result<(), Fault> {
    let sql = "UPDATE short SET at = ?2, has = coalesce(?3, max(has, 1)) WHERE object = ?1";
    execute(db, sql, params![object.cast_signed(), now + REST_NS, has])
}

/// Cancels the examination of an object.
pub fn forget(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM short WHERE object = ?1";
    execute(db, sql, [object.cast_signed()])
}

/// Cancels the examination of a version's parts.
pub(super) fn forget_parts(db: &Connection, version: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM short WHERE object IN (SELECT part FROM part WHERE object = ?1)";
    execute(db, sql, [version.cast_signed()])
}

/// Returns the time at which the next object is to be examined, if any.
pub fn first(db: &Connection) -> Result<Option<i64>, Fault> {
    // One search of the index for each number of replicas.
    let sql = "SELECT min((SELECT min(at) FROM short WHERE has = value)) FROM json_each(?1)";
    let all = json_list((0..=MIGRATIONS).map(i64::cast_unsigned));
    Ok(find(db, sql, [all], |row| row.get::<_, Option<i64>>(0))?.flatten())
}

/// Returns the versions to examine up to `until`; versions with the fewest replicas come first. New versions wait while more new versions
/// arrive. A version is left out while a node that is up creates a replica of the version.
pub fn due(
    db: &Connection,
    (now, until): (i64, i64),
    up: &[u32],
    max: usize,
) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT min(at), max(at) FROM short WHERE has = ?1 AND at <= ?2";
    let ends: Option<(Option<i64>, Option<i64>)> =
        find(db, sql, [NEW, now], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let waits = match ends.unwrap_or_default() {
        (Some(first), Some(last)) => now - last < GIVE_WAY_NS && now - first < GIVE_WAY_NS_MAX,
        _ => false,
    };
    let sql = "SELECT object FROM short WHERE has = ?1 AND at <= ?2 AND NOT EXISTS \
               (SELECT 1 FROM replica WHERE replica.object = short.object AND state = 1 \
               AND node IN (SELECT value FROM json_each(?4))) ORDER BY at LIMIT ?3";
    let up = json_list(up.iter().map(|&node| node.into()));
    let mut objects = Vec::new();
    for has in (0..=MIGRATIONS).filter(|&has| !(waits && has == NEW)) {
        let left = i64::try_from(max - objects.len()).unwrap_or(0);
        let key = params![has, until, left, up];
        let found: Vec<i64> = rows(db, sql, key, |row| row.get(0))?;
        objects.extend(found.into_iter().map(i64::cast_unsigned));
    }
    Ok(objects)
}

/// Returns whether any version waits that lacks replicas, and the nodes that have, or will have, a replica of one such version.
pub fn holders_of_resting_version(db: &Connection, now: i64) -> Result<Option<Vec<u32>>, Fault> {
    let sql = "SELECT short.object FROM short JOIN held ON held.object = short.object \
               WHERE at > ?1 AND has < ?2 AND removed = 0 LIMIT 1";
    let object = find(db, sql, params![now, REPLICAS_MAX], |row| {
        row.get::<_, i64>(0)
    })?;
    let holders = object.map(|object| replicas::nodes_of(db, object.cast_unsigned()));
    holders.transpose()
}

/// Returns the number of versions with missing replicas.
pub fn lacking(db: &Connection) -> Result<u64, Fault> {
    let sql = "SELECT count(*) FROM short WHERE has < ?1";
    number(db, sql, [REPLICAS_MAX])
}

/// Returns the number of versions with missing replicas, and the names of unavailable files.
pub fn health(db: &Connection) -> Result<v1::ReplicaHealth, Fault> {
    let sql = "SELECT DISTINCT path FROM short CROSS JOIN held ON held.object = short.object WHERE has = 0 ORDER BY short.object LIMIT ?1";
    Ok(v1::ReplicaHealth {
        short: lacking(db)?,
        unavailable: number(db, "SELECT count(*) FROM short WHERE has = 0", [])?,
        unavailable_paths: rows(db, sql, [LOST_NAMED_MAX], |row| row.get(0))?,
        failed_nodes: nodes::lost(db)?,
        corrupt: number(db, "SELECT count(*) FROM replica WHERE state >= 3", [])?,
    })
}

/// Facts of the database about a version that may lack replicas or has a requested migration.
#[derive(Clone, Debug)]
pub struct VersionFacts {
    /// Size of the object in bytes.
    pub size: u64,
    /// Wanted number of replicas.
    pub wanted: usize,
    /// Whether the version was deleted and no longer belongs to a file.
    pub deleted: bool,
    /// Inode of the file to which the version belongs or belonged.
    pub ino: u64,
    /// Path of the file when the version was sealed, with a replacement for bytes that are not UTF-8.
    pub path: String,
    /// Owner of the file; if the inode no longer exists, the user of the version, with group id 0.
    pub owner: Owner,
    /// Permission bits of the file; `None` if the inode no longer exists.
    pub mode: Option<u32>,
    /// Version that contains the object as a part; `None` if the object is a whole version.
    pub part: Option<PartOf>,
    /// Node of the first replica.
    pub first: NodeId,
    /// States of the object on its nodes. The first replica may lack a record.
    pub records: Vec<ReplicaRecord>,
}

/// Reads the facts about an object; `None` if the object belongs to no version.
pub fn facts(db: &Connection, object: u64) -> Result<Option<VersionFacts>, Fault> {
    let sql = "SELECT held.size, replicas, held.node, removed, held.ino, path, \
               coalesce(inode.uid, held.uid), coalesce(inode.gid, 0), inode.mode \
               FROM held LEFT JOIN inode ON inode.ino = held.ino WHERE held.object = ?1";
    let found = find(db, sql, [object.cast_signed()], |row| {
        Ok(VersionFacts {
            size: unsigned(row, 0)?,
            wanted: row.get::<_, u32>(1)? as usize,
            first: NodeId(row.get(2)?),
            deleted: row.get(3)?,
            ino: unsigned(row, 4)?,
            path: String::from_utf8_lossy(&row.get::<_, Vec<u8>>(5)?).into_owned(),
            owner: Owner {
                uid: row.get(6)?,
                gid: row.get(7)?,
            },
            mode: row.get::<_, Option<u32>>(8)?.map(|mode| mode & 0o7777),
            part: None,
            records: Vec::new(),
        })
    })?;
    let Some(mut facts) = found else {
        return Ok(None);
    };
    facts.part = parts::part_of(db, object)?;
    facts.records = replicas::of(db, object)?;
    Ok(Some(facts))
}

/// Finding about the replicas of a version.
#[derive(Clone, Debug)]
pub enum ReplicaFinding {
    /// The version has enough replicas, or no replicas are wanted any more.
    Enough,
    /// No replica can be created or removed now. `has` replicas are current (column `short.has`), which may be as many as possible.
    Rest {
        /// New value of the column `short.has`: number of current replicas, [`REPLICAS_MAX`] while a surplus stays, or [`MIGRATIONS`].
        has: i64,
        /// Whether nodes outside the burst tier have as many replicas as possible.
        stored: bool,
    },
    /// A replica with a requested migration must stay on its node.
    Stay,
    /// The replicas on the nodes `goes` are to be removed, and `first` is the node of the first replica afterwards.
    Surplus {
        /// Nodes whose replicas are to be removed.
        goes: Vec<NodeId>,
        /// Node of the first replica after the removal.
        first: NodeId,
    },
}

/// Stores a finding about the replicas of a version. Returns the change to announce to clients that use the version's file.
pub fn found(
    db: &Connection,
    object: ObjectId,
    found: &ReplicaFinding,
    now: i64,
) -> Result<Option<Change>, Fault> {
    match found {
        ReplicaFinding::Enough => enough(db, object.0, now)?,
        ReplicaFinding::Stay => {
            migrations::stay(db, object.0)?;
            look_again(db, object.0, now)?;
        }
        ReplicaFinding::Rest { has, stored } => {
            if *stored {
                burst::staged_out(db, object.0)?;
            }
            postpone(db, object.0, Some(*has), now)?;
        }
        ReplicaFinding::Surplus { goes, first } => {
            return replicas::remove_surplus(db, object.0, (goes, first.0), now);
        }
    }
    Ok(None)
}

/// Deletes the requests for a version that has enough replicas. If a migration from one of the version's nodes is requested, the version
/// is examined later instead: the request is new, or the migration can't be done now.
fn enough(db: &Connection, object: u64, now: i64) -> Result<(), Fault> {
    if migrations::any_from_holder(db, object)? {
        return postpone(db, object, Some(MIGRATIONS), now);
    }
    forget(db, object)?;
    migrations::forget(db, object)?;
    burst::staged_out(db, object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteNames;

    #[test]
    fn orphan_check_skips_replicas_in_progress_on_connected_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let database = names.database();
        let kept = |db: &Connection| {
            db.sql.execute_batch(
                "INSERT INTO short VALUES (7, 1, 0), (8, 1, 0), (9, 9, 0), (10, 1, 2);
                 INSERT INTO replica(object, node, state) VALUES (7, 1, 1), (8, 1, 2)",
            )?;
            Ok(())
        };
        database.write_blocking(kept).unwrap();
        for (up, expected) in [(1, &[8, 9][..]), (2, &[7, 8, 9])] {
            let times = (2 * GIVE_WAY_NS, 1);
            let found = database.read(|db| due(db, times, &[up], 10)).unwrap();
            assert_eq!(found, expected, "{up}");
        }
    }

    #[test]
    fn replication_of_new_versions_waits_for_end_of_run_at_most_5_s() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let database = names.database();
        let last = GIVE_WAY_NS_MAX;
        let kept = move |db: &Connection| {
            let sql = "INSERT INTO short VALUES (7, 1, 1), (8, 1, ?1), (9, 2, ?1)";
            Ok(db.sql.execute(sql, [last])?)
        };
        database.write_blocking(kept).unwrap();
        let due = |now| {
            database
                .read(move |db| due(db, (now, now), &[], 10))
                .unwrap()
        };
        assert_eq!(due(last), [9]);
        assert_eq!(due(last + 1), [7, 8, 9]);
        let kept = |db: &Connection| {
            Ok(db
                .sql
                .execute("UPDATE short SET at = 2 WHERE object = 7", [])?)
        };
        database.write_blocking(kept).unwrap();
        assert_eq!(due(last + 1), [9]);
        assert_eq!(due(last + GIVE_WAY_NS), [7, 8, 9]);
    }
}
