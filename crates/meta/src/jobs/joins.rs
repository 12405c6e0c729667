//! Records of a task whose task instances ran in its place: the records describe one task that read the inputs of all task instances.

use super::data::{self, TaskInput};
use super::records;
use super::spec::{StoredOrigin, StoredShare};
use crate::Connection;
use crate::Fault;
use tidemill_model::id::TaskId;

/// Returns whether a task merges the results of task instances.
pub fn is_merge(db: &Connection, task: TaskId) -> Result<bool, Fault> {
    Ok(records::spec(db, task)?.share == StoredShare::Merge)
}

/// Returns the object of an input, from the input's stored origin.
fn object(db: &Connection, origin: StoredOrigin) -> Result<Option<u64>, Fault> {
    match origin {
        StoredOrigin::File { object, .. } => Ok(Some(object)),
        StoredOrigin::Awaited => Ok(None),
        StoredOrigin::Task { task, output } => data::output_object(db, TaskId(task), output),
    }
}

/// Records the inputs of a task's instances as inputs of the task itself.
pub fn record(db: &Connection, task: TaskId) -> Result<(), Fault> {
    let Some(&first) = records::spec(db, task)?.instances().first() else {
        return Ok(());
    };
    for (seq, input) in (0_u32..).zip(records::spec(db, first)?.inputs) {
        let Some(object) = object(db, input.origin)? else {
            continue;
        };
        let input = TaskInput {
            name: &input.name,
            object,
            // Each task instance read its own selection of the first input.
            selection: if seq == 0 { "" } else { &input.selection },
        };
        data::put_input(db, task, seq, input)?;
    }
    Ok(())
}

/// Sets the times of a task to the end of the last of its task instances.
pub fn measure(db: &Connection, task: TaskId) -> Result<(), Fault> {
    records::end_with(db, task, records::spec(db, task)?.instances())
}
