//! Migrations of objects from one node to another: objects that are to leave a node (table `migration`), nodes that are being drained
//! (table `drain`), and nodes that were removed from the cluster (table `removed`). This module only writes the tables. Next:
//! `server/src/replicas.rs`, which examines them.
//!
//! A migration is only a row that requests the removal of one replica, and may request where another replica is to be stored. The code for
//! all replicas ([`crate::replicas`]) creates the new replica, makes it the first if the old replica was the first, and then removes the
//! old replica. After a restart, the tables therefore list exactly the remaining work.

pub(crate) mod balance;
pub(crate) mod files;
pub(crate) mod labels;
pub(crate) mod reservations;

use crate::elastic::store;
use crate::names::burst;
use crate::names::replicas::{CURRENT, DRAIN, EVICT, MIGRATIONS, look_again};
use crate::names::shared::NamesShared;
use crate::names::transaction::Tx;
use crate::names::{Caller, Fault};
use rusqlite::{Connection, OptionalExtension, params};
use tidemill_model::display::line;
use tidemill_wire::v1;

/// Maximum number of versions on a draining node that are examined in one batch.
const PAGE_MAX: u32 = 16_384;
/// Value of the column `drain.after` when all versions on the node were examined.
const ALL: i64 = i64::MAX;
/// Maximum number of files that are named when the files prevent a node from being removed.
const NAMED_MAX: u32 = 5;

/// Request that a replica of an object leaves a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migration {
    pub(crate) source: u32,
    pub(crate) target: Option<u32>,
    /// Whether the replica has to leave its node, to any node that can take it.
    pub(crate) anywhere: bool,
}

/// Properties of a node of the cluster that matter for migrations.
#[derive(Clone, Debug)]
pub(crate) struct NodeProperties {
    pub(crate) node: u32,
    pub(crate) store: bool,
    pub(crate) memory: bool,
    pub(crate) burst: bool,
    pub(crate) up: bool,
}

/// Reason why the server refuses an operation on a node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeRefusal {
    #[error("node {0} is not part of the cluster; see `tidemill status`")]
    Unknown(u32),
    #[error(
        "node {0} is the last one that keeps data: its files could not move to another node; start another node first"
    )]
    Last(u32),
    #[error("node {0} is not being emptied; see `tidemill status`")]
    NotEmptied(u32),
    #[error(
        "node {node} still has {files} files, such as {names}: empty it with `tidemill node drain {node}` \
         first, or, if it never returns, abandon the files that no other node has with --lose --yes"
    )]
    HasFiles {
        node: u32,
        files: u64,
        names: String,
    },
    #[error(
        "node {0} is still in use: {1}; wait, or, if it never returns, stop it and then remove it"
    )]
    InUse(u32, String),
    #[error(
        "node {0} is down, and {1} files were being written there: start it again, or lose them with --lose --yes"
    )]
    Writing(u32, u64),
    #[error("node {0} keeps no data: name a node that `tidemill status` lists as store")]
    NoStore(u32),
    #[error(
        "node {0} is of the burst tier, from which files are staged out: name a node of the capacity tier"
    )]
    Burst(u32),
    #[error("node {0} is not of the burst tier; see `tidemill status`")]
    NotBurst(u32),
    #[error("no node of the burst tier is up; start one with `tidemill node run --tier burst`")]
    NoBurst,
    #[error("node {0} is down; start it, or name another node")]
    Down(u32),
    #[error("node {0} is being emptied; name another node")]
    Emptied(u32),
    #[error(
        "node {node} has {free} bytes free, and {needed} are needed; name another node, or fewer files"
    )]
    Full { node: u32, free: u64, needed: u64 },
    #[error(
        "node {node} of the burst tier has no space for {bytes} more bytes: {missing} are missing even when all files that are stored \
         elsewhere are evicted; wait for space (--wait), ask for less, or name another node, see `tidemill status`"
    )]
    Missing { node: u32, bytes: u64, missing: u64 },
    #[error(
        "node {node} of the burst tier has a capacity of {capacity} bytes, which is less than {bytes} bytes plus 16 MiB"
    )]
    Beyond {
        node: u32,
        bytes: u64,
        capacity: u64,
    },
    #[error(
        "users may reserve {max} bytes of node {node} together (--reserve-max of the server), and have reserved {reserved}: \
         wait until a reservation has ended (--wait), or ask for less"
    )]
    Share { node: u32, max: u64, reserved: u64 },
    #[error(
        "users may reserve {max} bytes of node {node} together (--reserve-max of the server), and {bytes} bytes exceed that"
    )]
    BeyondShare { node: u32, bytes: u64, max: u64 },
    #[error(
        "one user may reserve {max} bytes of node {node} for more than 7 days, and has reserved {reserved}: \
         ask for less, or for a shorter time"
    )]
    Long { node: u32, max: u64, reserved: u64 },
    #[error("{0} is not a directory: give a directory, for whose files space is reserved")]
    NoDirectory(String),
    #[error("a reservation of {0} is not possible: give a size, and a time up to 366 days")]
    Nothing(&'static str),
    #[error("there are {0} reservations, which is the maximum: see `tidemill stage reservations`")]
    TooManyReservations(u64),
    #[error("reservation {0} does not exist or is not yours: `tidemill stage reservations`")]
    NoReservation(String),
    #[error("{0} has more than {1} files and directories below it; name some of them")]
    TooMany(String, usize),
    #[error(
        "node {0} is up: files that only it has can be saved with `tidemill node drain {0}`; stop it first to \
         abandon them"
    )]
    Up(u32),
}

/// Returns the requested migrations of an object.
pub(crate) fn of(db: &Connection, object: u64) -> Result<Vec<Migration>, Fault> {
    let sql = "SELECT source, target, why FROM migration WHERE object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([object.cast_signed()], |row| {
        Ok(Migration {
            source: row.get(0)?,
            target: row.get(1)?,
            anywhere: matches!(row.get(2)?, DRAIN | EVICT),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Records that the replica of an object has left a node.
pub(crate) fn done(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    burst::left(db, object.cast_signed(), node)?;
    let sql = "DELETE FROM migration WHERE source = ?1 AND object = ?2 RETURNING size";
    let row = params![node, object.cast_signed()];
    let size: Option<i64> = db
        .prepare_cached(sql)?
        .query_row(row, |row| row.get(0))
        .optional()?;
    if let Some(size) = size {
        let sql = "UPDATE drain SET files = files + 1, bytes = bytes + ?2 WHERE node = ?1";
        db.prepare_cached(sql)?.execute(params![node, size])?;
    }
    Ok(())
}

/// Cancels the migrations of an object. The object still leaves a draining node, to any other node.
pub(crate) fn stay(db: &Connection, object: u64) -> Result<(), Fault> {
    let sql = "UPDATE migration SET target = NULL WHERE object = ?1 AND why = ?2";
    let row = params![object.cast_signed(), DRAIN];
    db.prepare_cached(sql)?.execute(row)?;
    let sql = "DELETE FROM migration WHERE object = ?1 AND why != ?2";
    db.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Starts draining a node. Succeeds also if the node is already being drained.
pub(crate) fn drain(
    db: &Connection,
    shared: &NamesShared,
    (node, members): (u32, &[NodeProperties]),
    now: i64,
) -> Result<Result<(), NodeRefusal>, Fault> {
    if !members.iter().any(|one| one.node == node) {
        return Ok(Err(NodeRefusal::Unknown(node)));
    }
    if is_last(shared, node, members) {
        return Ok(Err(NodeRefusal::Last(node)));
    }
    // From now on, each version sealed on the node is put on the list at its seal.
    shared.leaving.set_emptied(node, true);
    db.execute(
        "INSERT OR IGNORE INTO drain VALUES (?1, ?2, 0, 0, 0)",
        params![node, now],
    )?;
    let sql = "UPDATE migration SET why = ?2 WHERE source = ?1";
    db.execute(sql, params![node, DRAIN])?;
    cancel_migrations_to(db, node)?;
    Ok(Ok(()))
}

/// Cancels all migrations to a node. Objects that have to leave their node get another target; other migrations are deleted.
fn cancel_migrations_to(db: &Connection, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE migration SET target = NULL WHERE target = ?1 AND why = ?2";
    db.execute(sql, params![node, DRAIN])?;
    db.execute("DELETE FROM migration WHERE target = ?1", [node])?;
    Ok(())
}

/// Whether no other node with a disk could take the objects of this node.
fn is_last(shared: &NamesShared, node: u32, members: &[NodeProperties]) -> bool {
    let mut others = members.iter().filter(|one| one.node != node);
    !others.any(|one| one.store && !one.memory && !one.burst && !shared.leaving.is_closed(one.node))
}

/// Stops draining a node. The node's remaining objects stay, and objects that have left the node stay on the other nodes.
pub(crate) fn cancel_drain(
    db: &Connection,
    shared: &NamesShared,
    node: u32,
) -> Result<Result<(), NodeRefusal>, Fault> {
    if db.execute("DELETE FROM drain WHERE node = ?1", [node])? == 0 {
        return Ok(Err(NodeRefusal::NotEmptied(node)));
    }
    // Entries on the list of versions to examine are removed when they are examined.
    let sql = "DELETE FROM migration WHERE source = ?1 AND why = ?2";
    db.execute(sql, params![node, DRAIN])?;
    shared.leaving.set_emptied(node, false);
    Ok(Ok(()))
}

/// Whether any migration is requested or in progress.
pub(crate) fn any(db: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT EXISTS (SELECT 1 FROM drain) OR EXISTS (SELECT 1 FROM migration)";
    Ok(db.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

/// Returns the draining nodes whose versions are not all on the list of versions to examine yet.
pub(crate) fn unlisted(db: &Connection) -> Result<Vec<u32>, Fault> {
    let mut statement = db.prepare_cached("SELECT node FROM drain WHERE after != ?1")?;
    let nodes = statement.query_map([ALL], |row| row.get(0))?;
    Ok(nodes.collect::<Result<_, _>>()?)
}

/// Adds the next versions on a draining node to the list of versions to examine.
pub(crate) fn list(db: &Connection, node: u32, now: i64) -> Result<(), Fault> {
    let sql = "SELECT after FROM drain WHERE node = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let after = statement.query_row([node], |row| row.get::<_, i64>(0));
    let Some(after) = after.optional()? else {
        return Ok(());
    };
    let sql = "SELECT max(object) FROM (SELECT object FROM held WHERE object > ?1 ORDER BY object LIMIT ?2)";
    let mut statement = db.prepare_cached(sql)?;
    let last: Option<i64> = statement.query_row(params![after, PAGE_MAX], |row| row.get(0))?;
    if let Some(last) = last {
        // A replica that is being created is put on the list when it exists.
        let page = params![node, after, last, DRAIN, CURRENT];
        let sql = "INSERT OR IGNORE INTO migration SELECT ?1, object, NULL, size, ?4 FROM held \
                   WHERE object > ?2 AND object <= ?3 AND node = ?1 AND removed = 0 \
                   UNION ALL SELECT ?1, replica.object, NULL, held.size, ?4 FROM replica \
                   CROSS JOIN held ON held.object = replica.object \
                   WHERE replica.object > ?2 AND replica.object <= ?3 AND replica.node = ?1 AND replica.state = ?5 \
                   AND held.removed = 0";
        db.prepare_cached(sql)?.execute(page)?;
        let sql = "INSERT INTO short SELECT object, ?4, ?5 FROM migration \
                   WHERE source = ?1 AND object > ?2 AND object <= ?3 \
                   ON CONFLICT DO UPDATE SET at = min(at, ?5)";
        db.prepare_cached(sql)?
            .execute(params![node, after, last, MIGRATIONS, now])?;
    }
    db.prepare_cached("UPDATE drain SET after = ?2 WHERE node = ?1")?
        .execute(params![node, last.unwrap_or(ALL)])?;
    Ok(())
}

fn count(db: &Connection, sql: &str, node: u32) -> Result<u64, Fault> {
    let mut statement = db.prepare_cached(sql)?;
    let count: i64 = statement.query_row([node], |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

/// Returns the progress of all draining nodes.
pub(crate) fn drains(db: &Connection, now: i64) -> Result<Vec<v1::Drain>, Fault> {
    let sql = "SELECT node, began, after, files, bytes FROM drain ORDER BY node";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(v1::Drain {
            node: row.get(0)?,
            began: row.get(1)?,
            listing: row.get::<_, i64>(2)? != ALL,
            files_moved: row.get::<_, i64>(3)?.cast_unsigned(),
            bytes_moved: row.get::<_, i64>(4)?.cast_unsigned(),
            ..v1::Drain::default()
        })
    })?;
    let mut drains = rows.collect::<Result<Vec<_>, _>>()?;
    for drain in &mut drains {
        measure(db, drain, now)?;
    }
    Ok(drains)
}

fn measure(db: &Connection, drain: &mut v1::Drain, now: i64) -> Result<(), Fault> {
    let node = drain.node;
    let bytes = burst::sum_of("size");
    let sql = format!("SELECT count(*), {bytes} FROM migration WHERE source = ?1");
    let mut statement = db.prepare_cached(&sql)?;
    (drain.files_left, drain.bytes_left) = statement.query_row([node], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok((number(0)?, number(1)?))
    })?;
    let sql = "SELECT count(*) FROM migration CROSS JOIN short ON short.object = migration.object \
               WHERE source = ?1 AND short.at > ?2";
    let mut statement = db.prepare_cached(sql)?;
    let rests: i64 = statement.query_row(params![node, now], |row| row.get(0))?;
    drain.files_waiting = rests.cast_unsigned();
    drain.removals = count(db, REMOVALS, node)?;
    drain.writing = count(db, WRITING, node)?;
    drain.labels = count(db, LABELS, node)?;
    Ok(())
}

/// SQL query for the number of waiting removals on a node. Removals that are postponed for days are not counted.
const REMOVALS: &str = "SELECT (SELECT count(*) FROM removal WHERE node = ?1 AND queued < (unixepoch() + 3600) * 1000000000) + (SELECT count(*) FROM part \
     CROSS JOIN version ON version.object = part.object WHERE part.node = ?1 AND removed = 1)";
const WRITING: &str = "SELECT (SELECT count(*) FROM writing WHERE node = ?1) + (SELECT count(*) FROM part \
     CROSS JOIN writing ON writing.object = part.object WHERE part.node = ?1)";
/// SQL query for the number of labels of tasks on a node, which will store their outputs there.
const LABELS: &str = "SELECT count(*) FROM label WHERE node = ?1 AND task != 0";
const COMING: &str = "SELECT count(*) FROM replica WHERE node = ?1";

/// Removes a node from the cluster. Files without a replica on another node are then lost; with `lose`, only their names remain. Returns
/// the number of lost files.
pub(crate) fn remove(
    db: &Connection,
    shared: &NamesShared,
    (node, members): (u32, &[NodeProperties]),
    (lose, now): (bool, i64),
) -> Result<Result<u64, NodeRefusal>, Fault> {
    let Some(member) = members.iter().find(|one| one.node == node) else {
        return Ok(Err(NodeRefusal::Unknown(node)));
    };
    if member.store && is_last(shared, node, members) {
        return Ok(Err(NodeRefusal::Last(node)));
    }
    let (files, names) = held(db, node)?;
    if files > 0 && !lose {
        let names = names.join(", ");
        return Ok(Err(NodeRefusal::HasFiles { node, files, names }));
    }
    if member.up {
        if files > 0 {
            return Ok(Err(NodeRefusal::Up(node)));
        }
        if let Some(use_of) = in_use(db, node)? {
            return Ok(Err(NodeRefusal::InUse(node, use_of)));
        }
    }
    let writing = count(db, WRITING, node)?;
    if writing > 0 && !lose {
        return Ok(Err(NodeRefusal::Writing(node, writing)));
    }
    abandon_writing(db, shared, node, now)?;
    forget(db, shared, node, now)?;
    Ok(Ok(files))
}

/// Returns the number of files on a node, and the names of some of these files.
fn held(db: &Connection, node: u32) -> Result<(u64, Vec<String>), Fault> {
    let sql = "SELECT count(*) FROM held WHERE node = ?1 AND removed = 0";
    let files = count(db, sql, node)? + count(db, COMING, node)?;
    let sql = "SELECT path FROM held WHERE node = ?1 AND removed = 0 \
               UNION ALL SELECT path FROM replica CROSS JOIN held ON held.object = replica.object \
               WHERE replica.node = ?1 LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let names = statement.query_map(params![node, NAMED_MAX], |row| row.get::<_, Vec<u8>>(0))?;
    let names = names.collect::<Result<Vec<_>, _>>()?;
    let shown = |name: &Vec<u8>| line(&String::from_utf8_lossy(name));
    Ok((files, names.iter().map(shown).collect()))
}

/// Returns the reason why a node without files is still needed, or `None` if the node can be removed.
fn in_use(db: &Connection, node: u32) -> Result<Option<String>, Fault> {
    for (what, sql) in [
        ("files that are being written there", WRITING),
        ("labels of tasks", LABELS),
        (
            "objects that are still to be removed there, perhaps because they are read",
            REMOVALS,
        ),
    ] {
        let count = count(db, sql, node)?;
        if count > 0 {
            return Ok(Some(format!("{count} {what}")));
        }
    }
    Ok(None)
}

/// Aborts the versions that are being written on the node, since they can't become complete any more.
fn abandon_writing(
    db: &Connection,
    shared: &NamesShared,
    node: u32,
    now: i64,
) -> Result<(), Fault> {
    let sql = "SELECT ino, object FROM writing WHERE node = ?1 \
               UNION SELECT ino, writing.object FROM part CROSS JOIN writing ON writing.object = part.object \
               WHERE part.node = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let versions = statement.query_map([node], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok((number(0)?, number(1)?))
    })?;
    let caller = Caller::root();
    for (ino, object) in versions.collect::<Result<Vec<_>, _>>()? {
        let mut tx = Tx::new(db, shared, &caller, 0, now);
        tx.abandon(&v1::Abandon { ino, object })?;
    }
    Ok(())
}

fn forget(db: &Connection, shared: &NamesShared, node: u32, now: i64) -> Result<(), Fault> {
    shared.leaving.set_removed(node);
    // Other nodes have these versions, too, and further replicas may be missing from now on.
    let sql = "SELECT object FROM replica WHERE node = ?1 UNION SELECT burst.object FROM burst \
               CROSS JOIN held ON held.object = burst.object \
               WHERE held.node = ?1 AND burst.node != ?1 AND removed = 0";
    let mut statement = db.prepare_cached(sql)?;
    let others = statement.query_map([node], |row| row.get::<_, i64>(0))?;
    let others = others.collect::<Result<Vec<_>, _>>()?;
    for object in &others {
        look_again(db, object.cast_unsigned(), now)?;
    }
    // No replica is left of the versions that only this node has.
    let sql = "INSERT INTO short SELECT object, 0, ?2 FROM held WHERE node = ?1 AND removed = 0 \
               AND NOT EXISTS (SELECT 1 FROM replica WHERE replica.object = held.object AND state = ?3 AND replica.node != ?1) \
               ON CONFLICT DO UPDATE SET has = 0, at = min(at, ?2)";
    db.execute(sql, params![node, now, CURRENT])?;
    store::forget(db, node)?;
    db.execute("INSERT INTO removed VALUES (?1, ?2)", params![node, now])?;
    for object in others {
        burst::lost_elsewhere(db, object)?;
    }
    for sql in [
        "DELETE FROM replica WHERE node = ?1",
        "DELETE FROM drain WHERE node = ?1",
        "DELETE FROM migration WHERE source = ?1",
        "DELETE FROM removal WHERE node = ?1",
        "DELETE FROM corruption WHERE node = ?1",
        "DELETE FROM note WHERE node = ?1",
        "DELETE FROM lost WHERE node = ?1",
        "DELETE FROM burst WHERE node = ?1",
        "DELETE FROM space_reservation WHERE node = ?1",
        "DELETE FROM node WHERE node = ?1",
    ] {
        db.execute(sql, [node])?;
    }
    cancel_migrations_to(db, node)
}
