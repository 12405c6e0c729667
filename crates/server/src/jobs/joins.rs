//! What is known of a task whose components were run in its place: it is told as one task, which read what they read.

use super::spec::{SPEC, StoredOrigin, StoredTask};
use super::store::parse;
use crate::names::Fault;
use rusqlite::{Connection, OptionalExtension, params};
use tidemill_core::id::TaskId;

fn spec(db: &Connection, task: u64) -> Result<StoredTask, Fault> {
    let mut statement = db.prepare_cached("SELECT spec FROM task WHERE task = ?1")?;
    let spec: String = statement.query_row([task.cast_signed()], |row| row.get(0))?;
    parse(&spec, SPEC, task)
}

/// The components that made the parts of its outputs.
fn components(spec: &StoredTask) -> Vec<u64> {
    // The first input is what they are components of.
    let made = spec.inputs.iter().skip(1);
    let made = made.filter_map(|input| match input.origin {
        StoredOrigin::Task { task, .. } => Some(task),
        StoredOrigin::File { .. } | StoredOrigin::Awaited => None,
    });
    let mut components: Vec<u64> = made.collect();
    components.dedup();
    components
}

/// The object that an input is.
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

/// Records what the components of a task have read as read by the task.
pub(crate) fn record(db: &Connection, task: TaskId) -> Result<(), Fault> {
    let Some(&first) = components(&spec(db, task.0)?).first() else {
        return Ok(());
    };
    let sql = "INSERT OR REPLACE INTO task_input VALUES (?1, ?2, ?3, ?4, ?5)";
    let mut insert = db.prepare_cached(sql)?;
    for (seq, input) in (0_u32..).zip(spec(db, first)?.inputs) {
        let Some(object) = object(db, input.origin)? else {
            continue;
        };
        // Of the first each has read its own.
        let selection = if seq == 0 { "" } else { &input.selection };
        let task = task.0.cast_signed();
        insert.execute(params![task, seq, input.name, object, selection])?;
    }
    Ok(())
}

/// Has a task take as long and move as much as its components together.
pub(crate) fn measure(db: &Connection, task: TaskId) -> Result<(), Fault> {
    let components = components(&spec(db, task.0)?);
    let components: Vec<i64> = components.into_iter().map(u64::cast_signed).collect();
    let list = serde_json::to_string(&components).unwrap_or_default();
    let sql = "UPDATE task SET (element, start, kernel_start, end, read_bytes, written_bytes, moved_bytes, cpu_ns, \
               memory_bytes, kernel_hash) = (SELECT one.element, min(one.start), min(one.kernel_start), max(one.end), \
               sum(one.read_bytes), sum(one.written_bytes), sum(one.moved_bytes), sum(one.cpu_ns), \
               max(one.memory_bytes), one.kernel_hash FROM json_each(?2) AS met CROSS JOIN task AS one \
               ON one.task = met.value) WHERE task = ?1";
    db.prepare_cached(sql)?
        .execute(params![task.0.cast_signed(), list])?;
    Ok(())
}
