//! Records of a task whose task instances ran in its place: the records describe one task that read the inputs of all task instances.

use super::spec::{SPEC, StoredOrigin, StoredShare, StoredTask};
use super::store::parse;
use crate::names::Fault;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;
use tidemill_model::id::TaskId;
use tidemill_wire::v1;

fn spec(db: &Connection, task: u64) -> Result<StoredTask, Fault> {
    let mut statement = db.prepare_cached("SELECT spec FROM task WHERE task = ?1")?;
    let spec: String = statement.query_row([task.cast_signed()], |row| row.get(0))?;
    parse(&spec, SPEC, task)
}

/// Returns whether a task merges the results of task instances.
pub(crate) fn is_merge(db: &Connection, task: TaskId) -> Result<bool, Fault> {
    Ok(spec(db, task.0)?.share == StoredShare::Merge)
}

/// Returns the task instances that wrote the parts of a task's outputs.
fn instances(spec: &StoredTask) -> Vec<u64> {
    // The first input of a task that joins striped files is the input that its task instances divide.
    let made = spec
        .inputs
        .iter()
        .skip((spec.share == StoredShare::Join).into());
    let made = made.filter_map(|input| match input.origin {
        StoredOrigin::Task { task, .. } => Some(task),
        StoredOrigin::File { .. } | StoredOrigin::Awaited => None,
    });
    // Each task instance appears once for every output.
    made.collect::<BTreeSet<u64>>().into_iter().collect()
}

/// Returns the object of an input, from the input's stored origin.
fn object(db: &Connection, origin: StoredOrigin) -> Result<Option<i64>, Fault> {
    let (task, output) = match origin {
        StoredOrigin::File { object, .. } => return Ok(Some(object.cast_signed())),
        StoredOrigin::Awaited => return Ok(None),
        StoredOrigin::Task { task, output } => (task.cast_signed(), output),
    };
    let sql = "SELECT object FROM task_output WHERE task = ?1 ORDER BY seq LIMIT 1 OFFSET ?2";
    let row = params![task, i64::try_from(output).unwrap_or(i64::MAX)];
    let mut statement = db.prepare_cached(sql)?;
    Ok(statement.query_row(row, |row| row.get(0)).optional()?)
}

/// Records the inputs of a task's instances as inputs of the task itself.
pub(crate) fn record(db: &Connection, task: TaskId) -> Result<(), Fault> {
    let Some(&first) = instances(&spec(db, task.0)?).first() else {
        return Ok(());
    };
    let sql = "INSERT OR REPLACE INTO task_input VALUES (?1, ?2, ?3, ?4, ?5)";
    let mut insert = db.prepare_cached(sql)?;
    for (seq, input) in (0_u32..).zip(spec(db, first)?.inputs) {
        let Some(object) = object(db, input.origin)? else {
            continue;
        };
        // Each task instance read its own selection of the first input.
        let selection = if seq == 0 { "" } else { &input.selection };
        let task = task.0.cast_signed();
        insert.execute(params![task, seq, input.name, object, selection])?;
    }
    Ok(())
}

/// Sets the times of a task to the end of the last of its task instances.
pub(crate) fn measure(db: &Connection, task: TaskId) -> Result<(), Fault> {
    let sql = "UPDATE task SET (node, start, kernel_start, end, kernel_hash) = (SELECT one.node, max(one.end), \
               max(one.end), max(one.end), one.kernel_hash FROM json_each(?2) AS met CROSS JOIN task AS one \
               ON one.task = met.value) WHERE task = ?1";
    let instances = list(&instances(&spec(db, task.0)?));
    db.prepare_cached(sql)?
        .execute(params![task.0.cast_signed(), instances])?;
    Ok(())
}

/// Sets the lineage record of a task whose task instances ran: the run extends from the first start to the last end of the task instances,
/// and its bytes are their sums.
pub(crate) fn total(db: &Connection, spec: &StoredTask, run: &mut v1::Run) -> Result<(), Fault> {
    let sql = "SELECT min(start), max(end), sum(read_bytes), sum(written_bytes), sum(transferred_bytes) \
               FROM json_each(?1) AS met CROSS JOIN task ON task.task = met.value";
    let mut statement = db.prepare_cached(sql)?;
    statement.query_row([list(&instances(spec))], |row| {
        let bytes = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(at)?.cast_unsigned());
        (run.start, run.end) = (row.get(0)?, row.get(1)?);
        run.read_bytes = bytes(2)?;
        run.written_bytes = bytes(3)?;
        run.transferred_bytes = bytes(4)?;
        Ok(())
    })?;
    Ok(())
}

fn list(tasks: &[u64]) -> String {
    let tasks: Vec<i64> = tasks.iter().copied().map(u64::cast_signed).collect();
    serde_json::to_string(&tasks).unwrap_or_default()
}
