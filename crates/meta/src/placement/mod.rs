//! Nodes, the replicas that they store, and the changes of replicas that are due.

pub mod burst;
pub mod corruption;
pub mod energy;
pub mod migrations;
pub mod node_uses;
pub mod nodes;
pub mod removals;
pub mod replicas;
pub mod reservations;
pub mod scrub;
pub mod suspensions;
pub mod under_replicated;

use super::fault::Fault;
use crate::Connection;
use crate::query::unsigned;
use rusqlite::Row;
use tidemill_model::id::{NodeId, ObjectId};

/// Queues the removal of all replicas of a version except the first, and deletes the version's rows. A replica in progress is removed when
/// it is complete.
pub(crate) fn forget_object(db: &Connection, object: u64, now: i64) -> Result<(), Fault> {
    removals::queue_replicas(db, object, now)?;
    replicas::forget(db, object)?;
    under_replicated::forget(db, object)?;
    migrations::forget(db, object)?;
    burst::forget(db, object)
}

/// Queues the removal of all replicas of a version's parts, and deletes the rows of the parts.
pub(crate) fn forget_parts(db: &Connection, version: u64, now: i64) -> Result<(), Fault> {
    removals::queue_parts(db, version, now)?;
    replicas::forget_parts(db, version)?;
    under_replicated::forget_parts(db, version)?;
    corruption::forget_parts(db, version)?;
    migrations::forget_parts(db, version)?;
    burst::forget(db, version)
}

/// Returns the object and the node in the first two columns of a row.
fn object_and_node(row: &Row<'_>) -> rusqlite::Result<(ObjectId, NodeId)> {
    let object = ObjectId(unsigned(row, 0)?);
    Ok((object, NodeId(row.get(1)?)))
}
