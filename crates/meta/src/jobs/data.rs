//! Inputs and outputs of tasks. The rows remain when files are renamed, rewritten or removed, so lineage is read from them.

use super::placed;
use crate::Connection;
use crate::Fault;
use crate::query::{execute, exists, find, rows, unsigned};
use rusqlite::params;
use tidemill_model::event::OutputSpec;
use tidemill_model::id::{Inode, TaskId};

use super::outputs::OutputFiles;
use tidemill_model::id::{JobId, NodeId, ObjectId};
use tidemill_model::object::Placed;

/// One input that a task read.
#[derive(Clone, Copy, Debug)]
pub struct TaskInput<'a> {
    /// Name of the input in its task; in a database that was recovered without a log the last component of the file's path.
    pub name: &'a str,
    /// Object of the exact version that the task read.
    pub object: u64,
    /// Selection of bytes of the input, in the text form of `Selection`.
    pub selection: &'a str,
}

/// Records the input at a position of a task's inputs, or replaces the recorded input at that position.
pub fn put_input(
    db: &Connection,
    task: TaskId,
    seq: u32,
    input: TaskInput<'_>,
) -> Result<(), Fault> {
    let (task, object) = (task.0.cast_signed(), input.object.cast_signed());
    let sql = "INSERT OR REPLACE INTO task_input VALUES (?1, ?2, ?3, ?4, ?5)";
    let row = params![task, seq, input.name, object, input.selection];
    execute(db, sql, row)
}

/// Returns the files that a successful task wrote, with their names in the task's private directory, and without paths.
pub fn output_files(db: &Connection, task: TaskId) -> Result<Vec<(OutputSpec, Placed)>, Fault> {
    let sql = "SELECT object, node, size, name, ino FROM task_output WHERE task = ?1 ORDER BY seq";
    rows(db, sql, [task.0.cast_signed()], |row| {
        let output = OutputSpec {
            name: row.get(3)?,
            path: String::new(),
            part: false,
            memory: false,
            inode: Inode(unsigned(row, 4)?),
        };
        Ok((output, placed(row)?))
    })
}

/// Returns the object of one output of a task, counted from 0; `None` if the task has not written the output.
pub(crate) fn output_object(
    db: &Connection,
    task: TaskId,
    output: usize,
) -> Result<Option<u64>, Fault> {
    let sql = "SELECT object FROM task_output WHERE task = ?1 ORDER BY seq LIMIT 1 OFFSET ?2";
    let output = i64::try_from(output).unwrap_or(i64::MAX);
    Ok(find(db, sql, [task.0.cast_signed(), output], |row| {
        row.get::<_, i64>(0)
    })?
    .map(i64::cast_unsigned))
}

/// Records the output files of a task, or replaces its recorded output files.
pub fn put_outputs(db: &Connection, task: TaskId, files: &OutputFiles) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO task_output VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let mut insert = db.sql.prepare_cached(sql)?;
    for (seq, (output, placed)) in (0_u32..).zip(files) {
        insert.execute(params![
            task.0.cast_signed(),
            seq,
            output.name,
            output.inode.0.cast_signed(),
            placed.object.0.cast_signed(),
            placed.node.0,
            placed.size.cast_signed(),
        ])?;
    }
    Ok(())
}

/// Returns whether the outputs of a task were published before. The task then runs again because its outputs were lost.
pub fn published(db: &Connection, task: TaskId) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM task_output WHERE task = ?1";
    exists(db, sql, [task.0.cast_signed()])
}

/// Returns the objects that a task read, in the order of its inputs.
pub fn input_objects(db: &Connection, task: TaskId) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT object FROM task_input WHERE task = ?1 ORDER BY seq";
    rows(db, sql, [task.0.cast_signed()], |row| unsigned(row, 0))
}

/// Returns the output files of a task with their names, as their versions are stored now; empty if a version was removed.
pub fn kept_outputs(db: &Connection, task: TaskId) -> Result<Vec<(String, Placed)>, Fault> {
    let sql = "SELECT output.object, coalesce(version.node, 0), coalesce(version.size, 0), coalesce(version.removed, 1), \
               name FROM task_output AS output LEFT JOIN version ON version.object = output.object \
               WHERE output.task = ?1 ORDER BY seq";
    let mut statement = db.sql.prepare_cached(sql)?;
    let rows = statement.query_map([task.0.cast_signed()], |row| {
        let placed = Placed {
            object: ObjectId(unsigned(row, 0)?),
            node: NodeId(row.get(1)?),
            size: unsigned(row, 2)?,
        };
        let removed: bool = row.get(3)?;
        let name: String = row.get(4)?;
        Ok((!removed).then_some((name, placed)))
    })?;
    let kept: Option<Vec<_>> = rows.collect::<Result<_, _>>()?;
    Ok(kept.unwrap_or_default())
}

/// Returns all recorded outputs of a job, each with its task.
pub fn outputs_of_job(db: &Connection, job: JobId) -> Result<Vec<(TaskId, Placed)>, Fault> {
    let sql = "SELECT one.task, one.object, one.node, one.size FROM task JOIN task_output AS one ON one.task = task.task \
               WHERE task.job = ?1";
    rows(db, sql, [job.0.cast_signed()], |row| {
        let number = |at: usize| unsigned(row, at);
        let placed = Placed {
            object: ObjectId(number(1)?),
            node: NodeId(row.get(2)?),
            size: number(3)?,
        };
        Ok((TaskId(number(0)?), placed))
    })
}
