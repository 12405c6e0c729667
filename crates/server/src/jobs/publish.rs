//! Publication of a task's outputs: names the outputs and records lineage, in the transaction that ends the task.

use super::results;
use tidemill_meta::jobs::data::{self, TaskInput};
use tidemill_meta::jobs::outputs::{Publishing, name_outputs};
use tidemill_meta::jobs::{joins, outbox};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Change, Connection, Fault};
use tidemill_model::label::Operation;

/// Names all outputs of a task and records its inputs and outputs. Returns the changes, and the reason why an output is not at the path
/// that the job specifies.
pub(crate) fn publish(
    db: &Connection,
    shared: &NamesShared,
    publishing: &Publishing,
    now: i64,
) -> Result<(Vec<Change>, String), Fault> {
    let named = name_outputs(db, shared, publishing, now)?;
    match record(db, publishing) {
        // A retry would fail again, and all jobs would wait.
        Err(fault @ Fault::Corrupt(_)) => {
            let task = publishing.task.0;
            tracing::error!(%fault, task, "the lineage of a task can't be recorded");
        }
        recorded => recorded?,
    }
    Ok(named)
}

/// Records the inputs of a task for lineage, and caches its result.
fn record(db: &Connection, publishing: &Publishing) -> Result<(), Fault> {
    if publishing.outputs.iter().any(|(output, _)| output.part) {
        return Ok(());
    }
    if !publishing.layouts.is_empty() {
        return joins::record(db, publishing.task);
    }
    let Some((_, label)) = outbox::find(db, publishing.label)? else {
        return Ok(());
    };
    let Operation::Analyse(analysis) = &label.operation else {
        return Ok(());
    };
    // The parts of a task's instances have such names.
    let perhaps = analysis
        .inputs
        .iter()
        .any(|input| input.name.ends_with(']'));
    if perhaps && joins::is_merge(db, publishing.task)? {
        return joins::record(db, publishing.task);
    }
    for (seq, input) in (0_u32..).zip(&analysis.inputs) {
        let input = TaskInput {
            name: &input.name,
            object: input.object.0,
            selection: &input.selection.to_string(),
        };
        data::put_input(db, publishing.task, seq, input)?;
    }
    results::cache(db, publishing, &label, analysis)
}
