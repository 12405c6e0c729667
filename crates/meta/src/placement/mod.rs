//! Nodes, the replicas that they store, and the changes of replicas that are due.

pub mod energy;
pub mod node_uses;
pub mod nodes;
pub mod replicas;
pub mod scrub;
pub mod suspensions;
pub mod under_replicated;

pub use replicas::{burst, corruption, migrations, removals, reservations};

use super::fault::Fault;
use crate::Connection;
use crate::query::unsigned;
use rusqlite::Row;
use tidemill_model::id::{NodeId, ObjectId};

/// Queues the removal of all replicas of a version except the first, which is queued already, and ends the examination of the version.
pub(crate) fn forget_object(db: &Connection, object: u64, now: i64) -> Result<(), Fault> {
    replicas::forget(db, object, now)?;
    under_replicated::forget(db, object)
}

/// Queues the removal of all replicas of a version's parts, and ends their examination.
pub(crate) fn forget_parts(db: &Connection, version: u64, now: i64) -> Result<(), Fault> {
    removals::queue_parts(db, version, now)?;
    replicas::forget_parts(db, version, now)?;
    under_replicated::forget_parts(db, version)
}

/// Returns the object and the node in the first two columns of a row.
fn object_and_node(row: &Row<'_>) -> rusqlite::Result<(ObjectId, NodeId)> {
    let object = ObjectId(unsigned(row, 0)?);
    Ok((object, NodeId(row.get(1)?)))
}
