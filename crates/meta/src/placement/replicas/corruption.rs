//! Replicas that nodes reported as corrupt: rows of `replica` in the states `Corrupt` and `Repairing`. A corrupt replica does not count as a replica until a new replica has
//! replaced it.

use crate::Connection;
use crate::json::json_list;
use crate::placement::removals::keep_last_intact;
use crate::placement::replicas;
use crate::placement::under_replicated::look_again;
use crate::placement::{burst, object_and_node};
use crate::query::{exists, rows};
use crate::shared::NamesShared;
use crate::transaction::{Change, Tx};
use crate::{Caller, Fault};
use rusqlite::params;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::label::Corrupt;
use tidemill_wire::v1;

/// Description of the corruption of objects that were in the memory of a stopped host.
pub const FORGOTTEN: &str = "was in memory, which was lost with its host";

/// Records objects that a node reported as corrupt. Objects that belong to no version, or are being removed, are ignored. Returns the
/// number of recorded objects.
pub fn found(
    db: &Connection,
    shared: &NamesShared,
    node: NodeId,
    corrupt: &[Corrupt],
    now: i64,
) -> Result<u64, Fault> {
    let sql = "INSERT INTO replica(object, node, state, size, since, detail) SELECT object, ?2, 3, size, ?4, ?3 FROM held \
               WHERE object = ?1 AND removed = 0 AND (node = ?2 OR EXISTS (SELECT 1 FROM replica \
               WHERE replica.object = ?1 AND replica.node = ?2 AND state >= 2 AND want != 2)) \
               ON CONFLICT DO UPDATE SET state = 3, since = ?4, detail = ?3 WHERE state < 3 AND want != 2";
    let mut insert = db.sql.prepare_cached(sql)?;
    let mut count = 0;
    for Corrupt { object, what } in corrupt {
        let id = object.0.cast_signed();
        if insert.execute(params![id, node.0, what, now])? > 0 {
            tracing::error!(%node, "object {object} {what}: it is recreated from another replica, if one exists");
            shared.set_corruption();
            look_again(db, object.0, now)?;
            burst::lost_elsewhere(db, object.0)?;
            keep_last_intact(db, object.0, (&shared.nodes, now))?;
        }
        count += u64::from(is(db, object.0, node.0)?);
    }
    Ok(count)
}

/// Handles a known node of the memory tier that connects with empty memory: all its objects are lost, and count as corrupt from now on.
/// Versions that were being written on the node are lost, too: a file keeps its previous version, or, if it has none, gets a lost version.
/// Returns the changes in the namespace.
pub fn forgotten(
    db: &Connection,
    shared: &NamesShared,
    (known, came): (Option<&v1::Node>, &v1::Node),
    now: i64,
) -> Result<Vec<Change>, Fault> {
    let id = known.map_or(0, |known| known.memory_id);
    if id == 0 || id == came.memory_id {
        return Ok(Vec::new());
    }
    let node = came.node;
    shared.set_corruption();
    let root = Caller::root();
    let mut tx = Tx::new(db, shared, &root, 0, now);
    let written = tx.lose_writing(node)?;
    let sql = "SELECT object FROM held WHERE removed = 0 AND (node = ?1 OR EXISTS \
               (SELECT 1 FROM replica WHERE replica.object = held.object AND replica.node = ?1 AND want != 2 AND state >= 2))";
    let lost: Vec<i64> = rows(db, sql, [node], |row| row.get(0))?;
    let sql = "INSERT INTO replica(object, node, state, size, since, detail) SELECT object, ?2, 3, size, ?4, ?3 FROM held \
               WHERE object = ?1 ON CONFLICT DO UPDATE SET state = 3, since = ?4, detail = ?3 WHERE want != 2";
    let mut insert = db.sql.prepare_cached(sql)?;
    for &object in &lost {
        insert.execute(params![object, node, FORGOTTEN, now])?;
        let object = object.cast_unsigned();
        look_again(db, object, now)?;
        burst::lost_elsewhere(db, object)?;
        keep_last_intact(db, object, (&shared.nodes, now))?;
    }
    tracing::error!(
        node,
        objects = lost.len(),
        written,
        "a node of the memory tier reconnected without its memory: objects that only it had are lost, see `tidemill cluster health --all`"
    );
    Ok(tx.changes)
}

/// Records that a node compared these objects with their hashes, and that all except those in `corrupt` are intact.
pub(in crate::placement) fn verified(
    db: &Connection,
    node: NodeId,
    objects: &[ObjectId],
    corrupt: &[Corrupt],
    now: i64,
) -> Result<(), Fault> {
    let sql = "UPDATE replica SET state = 2, detail = NULL WHERE state >= 3 AND state = 3 AND node = ?1 \
               AND object IN (SELECT value FROM json_each(?2)) \
               AND object NOT IN (SELECT value FROM json_each(?3)) RETURNING object";
    let good = json_list(objects.iter().map(|object| object.0));
    let bad = json_list(corrupt.iter().map(|one| one.object.0));
    let repaired: Vec<i64> = rows(db, sql, params![node.0, good, bad], |row| row.get(0))?;
    for object in repaired {
        replicas::settle(db, object.cast_unsigned())?;
        look_again(db, object.cast_unsigned(), now)?;
    }
    Ok(())
}

/// Whether a node's replica of an object is corrupt.
pub fn is(db: &Connection, object: u64, node: u32) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM replica WHERE object = ?1 AND node = ?2 AND state >= 3";
    exists(db, sql, params![object.cast_signed(), node])
}

/// Returns the objects with a corrupt replica, each with the nodes of its corrupt replicas.
pub fn of_all(db: &Connection, objects: &[ObjectId]) -> Result<Vec<(ObjectId, NodeId)>, Fault> {
    let sql = "SELECT replica.object, node FROM json_each(?1) AS wanted \
               CROSS JOIN replica ON replica.object = wanted.value WHERE state >= 3";
    let key = [json_list(objects.iter().map(|object| object.0))];
    rows(db, sql, key, object_and_node)
}

/// Returns the nodes with a corrupt replica of an object, and a description of each corruption.
pub fn of(db: &Connection, object: u64) -> Result<Vec<(u32, String)>, Fault> {
    let sql = "SELECT node, detail FROM replica WHERE object = ?1 AND state >= 3 ORDER BY node";
    rows(db, sql, [object.cast_signed()], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })
}

/// Whether any replica is corrupt.
pub fn any(db: &Connection) -> Result<bool, Fault> {
    exists(db, "SELECT 1 FROM replica WHERE state >= 3 LIMIT 1", [])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Names as _, NamesRequest, SqliteNames, ids};
    use tidemill_wire::v1::name_op::Op;
    use tidemill_wire::v1::name_result::Result as Answer;

    fn ask(names: &SqliteNames, op: Op) -> Answer {
        let request = NamesRequest {
            caller: Caller::root(),
            session: 5,
            ops: vec![v1::NameOp { op: Some(op) }],
            ..NamesRequest::default()
        };
        let mut results = names.apply_blocking(request).unwrap();
        results.remove(0).result.unwrap()
    }

    fn numbers(names: &SqliteNames, sql: &str) -> Vec<(u64, u32)> {
        let read = names.database().read(|db| {
            let mut rows = db.sql.prepare(sql)?;
            let rows = rows.query_map([], |row| {
                Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        });
        read.unwrap()
    }

    /// A client that was writing when the memory was lost may still write bytes to the object. These bytes belong to no version and are
    /// removed.
    #[test]
    fn late_seal_does_not_replace_version_lost_during_write() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        names.add_node(NodeId(3));
        let reserved = names
            .database()
            .write_blocking(|db| ids::reserve_for(db, &Caller::root(), 1, 10));
        let (ino, object) = reserved.unwrap();
        let create = v1::Create {
            parent: 1,
            name: b"f".to_vec(),
            kind: v1::Kind::File.into(),
            mode: 0o644,
            ino,
            object,
            ..v1::Create::default()
        };
        assert!(matches!(ask(&names, Op::Create(create)), Answer::Opened(_)));
        let known = v1::Node {
            node: 3,
            memory_id: 7,
            ..v1::Node::default()
        };
        let came = v1::Node {
            memory_id: 8,
            ..known.clone()
        };
        let shared = names.shared().clone();
        let lose = move |db: &Connection| forgotten(db, &shared, (Some(&known), &came), 99);
        names.database().write_blocking(lose).unwrap();
        let lost = numbers(&names, "SELECT object, node FROM inode WHERE object != 0");
        assert_eq!((lost.len(), lost[0].1), (1, 3));
        assert_ne!(lost[0].0, object);
        assert_eq!(
            numbers(&names, "SELECT object, node FROM replica WHERE state >= 3"),
            lost
        );
        let removed = numbers(&names, "SELECT object, node FROM replica WHERE want = 2");
        assert_eq!(removed, [(object, 3)]);
        let good = move |db: &Connection| verified(db, NodeId(3), &[ObjectId(object)], &[], 100);
        names.database().write_blocking(good).unwrap();
        assert_eq!(
            numbers(&names, "SELECT object, node FROM replica WHERE state >= 3"),
            lost
        );
        let seal = v1::Seal {
            ino,
            object,
            size: 5,
            ..v1::Seal::default()
        };
        assert!(matches!(ask(&names, Op::Seal(seal)), Answer::Error(_)));
    }
}
