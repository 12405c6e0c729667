//! Results that are remembered: the outputs of a task are used again for a task of the same user with the same
//! kernel, arguments and inputs.
//!
//! An input is the same if it is the same object, which never changes, or if both are outputs that were used again
//! of one result: `same` has the first object of such. So a workflow that is submitted again finds its way along
//! remembered results without a byte being read, and whatever ran anew has new objects, so all after it runs anew.
//!
//! The key knows a built-in kernel or a program by its name only. The element that is offered a result compares
//! the hash of the code that it would run with that of the code that made it, and runs the task if they differ.
//! A task that reads nothing but its code is never remembered: what it gives must come from elsewhere.

use super::publish::Publishing;
use super::queue::{Journaled, parse};
use super::spec::StoredTask;
use crate::names::Fault;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use tidemill_core::id::{ElementId, LabelId, ObjectId, TaskId};
use tidemill_core::label::{Analysis, Kernel, Label, Operation};
use tidemill_core::object::Placed;
use tidemill_wire::v1;

/// What a result is found by.
type Key = [u8; blake3::OUT_LEN];

/// What makes the difference between two results.
#[derive(Debug)]
struct Identity<'a> {
    uid: u32,
    kernel: &'a Kernel,
    args: &'a [String],
    stdin: Option<&'a str>,
    stdout: Option<&'a str>,
    /// Names, and the first object of each with its content.
    inputs: Vec<(&'a str, u64)>,
    outputs: Vec<&'a str>,
}

impl Identity<'_> {
    /// `None` if nothing but code is read.
    fn key(&self) -> Option<Key> {
        let mut data = self.inputs.iter();
        if data.all(|(name, _)| self.kernel.is_in(name)) {
            return None;
        }
        let mut key = Digest::default();
        key.number(u64::from(self.uid));
        key.kernel(self.kernel);
        key.texts(self.args.iter().map(String::as_str));
        key.texts(self.stdin);
        key.texts(self.stdout);
        key.number(self.inputs.len() as u64);
        for &(name, object) in &self.inputs {
            key.text(name);
            key.number(object);
        }
        key.texts(self.outputs.iter().copied());
        Some(key.0.finalize().into())
    }
}

/// Hashes values so that no two lists of values are alike.
#[derive(Default)]
struct Digest(blake3::Hasher);

impl Digest {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) {
        let texts: Vec<_> = texts.into_iter().collect();
        self.number(texts.len() as u64);
        texts.into_iter().for_each(|text| self.text(text));
    }

    fn kernel(&mut self, kernel: &Kernel) {
        self.text(super::spec::kind(kernel));
        match kernel {
            Kernel::Stack(stack) => {
                self.number(stack.stages.len() as u64);
                for stage in &stack.stages {
                    self.kernel(&stage.kernel);
                    self.texts(stage.args.iter().map(String::as_str));
                }
            }
            single => self.text(single.name()),
        }
    }
}

/// What is known of labels that are about to be sent together, and of outputs that the database does not have yet.
#[derive(Debug, Default)]
pub(super) struct Presumed {
    /// By object: the first object with its content, and the label that must be answered from memory for that
    /// to be so.
    objects: HashMap<u64, (u64, Option<LabelId>)>,
}

impl Presumed {
    /// An output that was used again has the content of `first`.
    pub(super) fn known(&mut self, object: ObjectId, first: ObjectId) {
        self.objects.insert(object.0, (first.0, None));
    }
}

/// The remembered result of a label, if there is one that can be had from elements that are `up`. What follows
/// from it for labels after it is added to `presumed`.
pub(super) fn recall(
    db: &Connection,
    label: &Label,
    presumed: &mut Presumed,
    up: &dyn Fn(ElementId) -> bool,
) -> Result<Option<v1::Remembered>, Fault> {
    let Operation::Analyse(analysis) = &label.operation else {
        return Ok(None);
    };
    let mut if_reused = Vec::new();
    let mut inputs = Vec::with_capacity(analysis.inputs.len());
    for input in &analysis.inputs {
        let first = match presumed.objects.get(&input.object.0) {
            Some(&(first, condition)) => {
                if_reused.extend(condition.map(|label| label.0));
                first
            }
            None => first(db, input.object.0)?,
        };
        inputs.push((input.name.as_str(), first));
    }
    let Some(key) = of_label(label, analysis, inputs).key() else {
        return Ok(None);
    };
    let Some((task, kernel_hash, outputs)) = find(db, &key)? else {
        return Ok(None);
    };
    if outputs.len() != analysis.outputs.len() || !outputs.iter().all(|placed| up(placed.element)) {
        return Ok(None);
    }
    for (output, placed) in analysis.outputs.iter().zip(&outputs) {
        let first = first(db, placed.object.0)?;
        presumed
            .objects
            .insert(output.object.0, (first, Some(label.id)));
    }
    if_reused.sort_unstable();
    if_reused.dedup();
    let named = outputs.iter().zip(&analysis.outputs);
    let outputs = named.map(|(placed, output)| v1::Input {
        name: output.name.clone(),
        object: placed.object.0,
        element: placed.element.0,
        size: placed.size,
        capability: Vec::new(),
    });
    Ok(Some(v1::Remembered {
        task: task.0,
        kernel_hash,
        outputs: outputs.collect(),
        if_reused,
    }))
}

fn of_label<'a>(
    label: &Label,
    analysis: &'a Analysis,
    inputs: Vec<(&'a str, u64)>,
) -> Identity<'a> {
    Identity {
        uid: label.owner.uid,
        kernel: &analysis.kernel,
        args: &analysis.args,
        stdin: analysis.stdin.as_deref(),
        stdout: analysis.stdout.as_deref(),
        inputs,
        outputs: analysis.outputs.iter().map(|o| o.name.as_str()).collect(),
    }
}

/// The first object with the content of this one.
fn first(db: &Connection, object: u64) -> Result<u64, Fault> {
    let sql = "SELECT first FROM same WHERE object = ?1";
    let found = db
        .prepare_cached(sql)?
        .query_row([object.cast_signed()], |row| row.get::<_, i64>(0))
        .optional()?;
    Ok(found.map_or(object, i64::cast_unsigned))
}

/// A task with this key, the hash of its code, and its outputs, if all are still there.
fn find(db: &Connection, key: &Key) -> Result<Option<(TaskId, String, Vec<Placed>)>, Fault> {
    let sql = "SELECT result.task, kernel_hash FROM result JOIN task ON task.task = result.task WHERE key = ?1";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    let found = db.prepare_cached(sql)?.query_row([key.as_slice()], row);
    let Some((task, kernel_hash)) = found.optional()? else {
        return Ok(None);
    };
    let sql = "SELECT output.object, version.element, version.size, version.removed FROM task_output AS output \
               JOIN version ON version.object = output.object WHERE output.task = ?1 ORDER BY seq";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([task], |row| {
        let placed = Placed {
            object: ObjectId(row.get::<_, i64>(0)?.cast_unsigned()),
            element: ElementId(row.get(1)?),
            size: row.get::<_, i64>(2)?.cast_unsigned(),
        };
        Ok((placed, row.get::<_, bool>(3)?))
    })?;
    let mut outputs = Vec::new();
    for row in rows {
        let (placed, removed) = row?;
        if removed {
            return Ok(None);
        }
        outputs.push(placed);
    }
    Ok(Some((TaskId(task.cast_unsigned()), kernel_hash, outputs)))
}

/// Remembers what a task that ended well has made of the inputs in its journal, in the transaction that gives it its
/// names.
pub(super) fn remember(
    db: &Connection,
    publishing: &Publishing,
    journaled: &Journaled,
) -> Result<(), Fault> {
    let outputs = publishing.outputs.iter();
    for ((_, placed), of) in outputs.zip(&publishing.reused) {
        let row = params![
            placed.object.0.cast_signed(),
            first(db, of.0)?.cast_signed()
        ];
        db.prepare_cached("INSERT OR REPLACE INTO same VALUES (?1, ?2)")?
            .execute(row)?;
    }
    let task = publishing.task.0.cast_signed();
    let text: String = db
        .prepare_cached("SELECT spec FROM task WHERE task = ?1")?
        .query_row([task], |row| row.get(0))?;
    let stored: Option<StoredTask> = parse(&text);
    let Some(spec) =
        stored.and_then(|stored| stored.task_spec(publishing.task, publishing.owner.uid, None))
    else {
        return Ok(());
    };
    let mut inputs = Vec::with_capacity(journaled.inputs.len());
    for (name, object) in &journaled.inputs {
        inputs.push((name.as_str(), first(db, *object)?));
    }
    let identity = Identity {
        uid: publishing.owner.uid,
        kernel: &spec.kernel,
        args: &spec.args,
        stdin: spec.stdin.as_deref(),
        stdout: spec.stdout.as_deref(),
        inputs,
        outputs: spec.outputs.iter().map(|o| o.name.as_str()).collect(),
    };
    if let Some(key) = identity.key() {
        db.prepare_cached("INSERT OR REPLACE INTO result VALUES (?1, ?2)")?
            .execute(params![key.as_slice(), task])?;
    }
    Ok(())
}

/// The first objects with the contents of these.
pub(super) fn firsts(db: &Connection, objects: &[ObjectId]) -> Result<Vec<ObjectId>, Fault> {
    let first = |object: &ObjectId| first(db, object.0).map(ObjectId);
    objects.iter().map(first).collect()
}
