//! Jobs, their tasks and the labels in progress.

pub mod awaited;
pub mod data;
pub mod joins;
pub mod outbox;
pub mod output_paths;
pub mod outputs;
pub mod records;
pub mod results;
pub mod spec;
pub mod view;

use crate::query::unsigned;
use rusqlite::Row;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::object::Placed;

/// Reads an object, its node and its size from the first three columns of a row.
fn placed(row: &Row<'_>) -> rusqlite::Result<Placed> {
    Ok(Placed {
        object: ObjectId(unsigned(row, 0)?),
        node: NodeId(row.get(1)?),
        size: unsigned(row, 2)?,
    })
}
