//! The outbox: every label from the transaction that stores its decision to the transaction that stores its outcome. The
//! [queue](crate::queue) is filled from the outbox. After a restart, the outbox has all labels that nodes may have.

use crate::names::Fault;
use crate::{corruption, removal, replicas, scrub};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, Row, Rows, params};
use tidemill_model::id::{LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Label, Operation};
use tidemill_wire::v1;

/// A label in the form in which the outbox stores it.
#[derive(Clone, Debug)]
pub(crate) struct OutboxLabel {
    node: NodeId,
    label: LabelId,
    /// Task that the label runs, if any; and (`removes`) the objects that the label removes.
    task: Option<TaskId>,
    removes: Vec<u64>,
    /// Object that the label copies to another node.
    copies: Option<u64>,
    /// Scrub to which the label belongs, and the last object that the label reads.
    verifies: Option<(u64, Option<ObjectId>)>,
    body: Vec<u8>,
}

impl OutboxLabel {
    pub(crate) fn new(node: NodeId, label: &Label) -> Self {
        let (mut task, mut removes, mut copies, mut verifies) = (None, Vec::new(), None, None);
        match &label.operation {
            Operation::Analyse(analysis) => task = Some(analysis.task),
            Operation::Remove { objects } => removes = objects.iter().map(|one| one.0).collect(),
            Operation::Copy { to, .. } => copies = Some(to.object.0),
            Operation::Verify { scrub, objects, .. } => {
                verifies = Some((*scrub, objects.last().copied()));
            }
        }
        Self {
            node,
            label: label.id,
            task,
            removes,
            copies,
            verifies,
            body: v1::Label::from(label).encode_to_vec(),
        }
    }

    /// Stores the label in the outbox, or replaces the stored label with the same id.
    pub(crate) fn put(&self, db: &Connection, now: i64) -> Result<(), Fault> {
        let (label, node) = (self.label.0.cast_signed(), self.node.0);
        let task = self.task.map_or(0, |task| task.0.cast_signed());
        db.prepare_cached("INSERT OR REPLACE INTO label VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![label, node, task, self.body, now])?;
        if self.task.is_some() {
            db.prepare_cached("UPDATE task SET label = ?2, node = ?3 WHERE task = ?1")?
                .execute(params![task, label, node])?;
        }
        if let Some(object) = self.copies {
            replicas::coming(db, object, self.node)?;
            corruption::repairing(db, object, self.node)?;
        }
        if let Some((scrub, last)) = self.verifies {
            scrub::labelled(db, scrub, last)?;
        }
        removal::labelled(db, self.label, self.node, &self.removes)
    }
}

fn parse(id: i64, body: &[u8]) -> Result<Label, Fault> {
    let corrupt = |error: String| Fault::Corrupt(format!("label {id}: {error}"));
    let message = v1::Label::decode(body).map_err(|error| corrupt(error.to_string()))?;
    Label::try_from(&message).map_err(|error| corrupt(error.to_string()))
}

/// Returns a label that has not ended, with its node; `None` for an unknown label.
pub(crate) fn find(db: &Connection, label: LabelId) -> Result<Option<(NodeId, Label)>, Fault> {
    let sql = "SELECT node, body FROM label WHERE label = ?1";
    let id = label.0.cast_signed();
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?));
    let found = db.prepare_cached(sql)?.query_row([id], row).optional()?;
    let Some((node, body)) = found else {
        return Ok(None);
    };
    Ok(Some((NodeId(node), parse(id, &body)?)))
}

/// Returns the labels of a node, or of all nodes, oldest first.
pub(crate) fn of(db: &Connection, node: Option<NodeId>) -> Result<Vec<(NodeId, Label)>, Fault> {
    let sql = "SELECT node, label, body FROM label WHERE ?1 IS NULL OR node = ?1 ORDER BY label";
    let mut statement = db.prepare_cached(sql)?;
    all(statement.query([node.map(|node| node.0)])?)
}

/// Returns the labels that belong to no task, with their nodes.
pub(crate) fn maintenance_tasks(db: &Connection) -> Result<Vec<(NodeId, Label)>, Fault> {
    let sql = "SELECT node, label, body FROM label WHERE task = 0 ORDER BY label";
    all(db.prepare(sql)?.query([])?)
}

fn all(mut rows: Rows<'_>) -> Result<Vec<(NodeId, Label)>, Fault> {
    let mut labels = Vec::new();
    while let Some(row) = rows.next()? {
        let label = parse(row.get(1)?, &row.get::<_, Vec<u8>>(2)?)?;
        labels.push((NodeId(row.get(0)?), label));
    }
    Ok(labels)
}

/// Removes a label whose outcome is known. Returns the label's operation if the label belonged to no job.
pub(crate) fn take(db: &Connection, label: LabelId) -> Result<Option<Operation>, Fault> {
    let sql = "DELETE FROM label WHERE label = ?1 RETURNING iif(task = 0, body, NULL)";
    let id = label.0.cast_signed();
    let body = db
        .prepare_cached(sql)?
        .query_row([id], |row| row.get::<_, Option<Vec<u8>>>(0))
        .optional()?;
    let label = body.flatten().map(|body| parse(id, &body)).transpose()?;
    Ok(label.map(|label| label.operation))
}
