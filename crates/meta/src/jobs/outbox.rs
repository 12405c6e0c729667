//! The outbox: every label from the transaction that stores its decision to the transaction that stores its outcome. The
//! queue of labels gets its labels from the outbox. After a restart, the outbox has all labels that nodes may have.

use super::records::{self, state_number};
use crate::Connection;
use crate::Fault;
use crate::query;
use prost::Message;
use rusqlite::{Row, Rows, params};
use tidemill_model::id::{LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Label, Operation};
use tidemill_wire::v1::{self, State};

/// A label in the form in which the outbox stores it.
#[derive(Clone, Debug)]
pub struct OutboxLabel {
    /// Node that is to execute the label.
    pub node: NodeId,
    /// Id of the label, which is also its key in the outbox.
    pub label: LabelId,
    /// The task, objects or scrub on which the label works.
    pub work: LabelWork,
    body: Vec<u8>,
}

/// The part of a label's operation on which rows of other tables depend.
#[derive(Clone, Debug)]
pub enum LabelWork {
    /// The label runs this task.
    Task(TaskId),
    /// The label removes these objects.
    Remove(Vec<u64>),
    /// The label makes a replica of this object.
    Copy(u64),
    /// The label reads objects of a scrub, with this object as the last one.
    Verify {
        /// Number of the scrub to which the label belongs.
        scrub: u64,
        /// Last object that the label reads, up to which the scrub has then created labels; `None` if the label reads no object.
        last: Option<ObjectId>,
    },
}

impl OutboxLabel {
    /// Returns the form in which the outbox stores a label for this node; the label's body is encoded as protobuf.
    pub fn new(node: NodeId, label: &Label) -> Self {
        let work = match &label.operation {
            Operation::Analyse(analysis) => LabelWork::Task(analysis.task),
            Operation::Remove { objects } => {
                LabelWork::Remove(objects.iter().map(|one| one.0).collect())
            }
            Operation::Copy { to, .. } => LabelWork::Copy(to.object.0),
            Operation::Verify { scrub, objects, .. } => LabelWork::Verify {
                scrub: *scrub,
                last: objects.last().copied(),
            },
        };
        Self {
            node,
            label: label.id,
            work,
            body: v1::Label::from(label).encode_to_vec(),
        }
    }
}

/// Stores a label in the outbox, or replaces the stored label with the same id. The label's task has this label from now on.
pub fn put(db: &Connection, posted: &OutboxLabel, now: i64) -> Result<(), Fault> {
    let (label, node) = (posted.label.0.cast_signed(), posted.node.0);
    let task = match posted.work {
        LabelWork::Task(task) => Some(task),
        LabelWork::Remove(_) | LabelWork::Copy(_) | LabelWork::Verify { .. } => None,
    };
    let task_number = task.map_or(0, |task| task.0.cast_signed());
    let sql = "INSERT OR REPLACE INTO label VALUES (?1, ?2, ?3, ?4, ?5)";
    query::execute(db, sql, params![label, node, task_number, posted.body, now])?;
    task.map_or(Ok(()), |task| {
        records::set_label(db, task, posted.label, posted.node)
    })
}

fn parse(id: i64, body: &[u8]) -> Result<Label, Fault> {
    let corrupt = |error: String| Fault::Corrupt(format!("label {id}: {error}"));
    let message = v1::Label::decode(body).map_err(|error| corrupt(error.to_string()))?;
    Label::try_from(&message).map_err(|error| corrupt(error.to_string()))
}

/// Returns a label that has not ended, with its node; `None` for an unknown label.
pub fn find(db: &Connection, label: LabelId) -> Result<Option<(NodeId, Label)>, Fault> {
    let sql = "SELECT node, body FROM label WHERE label = ?1";
    let id = label.0.cast_signed();
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?));
    let found = query::find(db, sql, [id], row)?;
    let Some((node, body)) = found else {
        return Ok(None);
    };
    Ok(Some((NodeId(node), parse(id, &body)?)))
}

/// Returns the labels of a node, or of all nodes, oldest first.
pub fn of(db: &Connection, node: Option<NodeId>) -> Result<Vec<(NodeId, Label)>, Fault> {
    let sql = "SELECT node, label, body FROM label WHERE ?1 IS NULL OR node = ?1 ORDER BY label";
    let mut statement = db.sql.prepare_cached(sql)?;
    all(statement.query([node.map(|node| node.0)])?)
}

/// Returns the time at which a label was stored.
pub fn stored_at(db: &Connection, label: LabelId) -> Result<i64, Fault> {
    let mut at = db
        .sql
        .prepare_cached("SELECT at FROM label WHERE label = ?1")?;
    Ok(at.query_row([label.0.cast_signed()], |row| row.get(0))?)
}

/// Returns the labels that belong to no task, with their nodes.
pub fn maintenance_tasks(db: &Connection) -> Result<Vec<(NodeId, Label)>, Fault> {
    let sql = "SELECT node, label, body FROM label WHERE task = 0 ORDER BY label";
    all(db.sql.prepare(sql)?.query([])?)
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
pub fn take(db: &Connection, label: LabelId) -> Result<Option<Operation>, Fault> {
    let sql = "DELETE FROM label WHERE label = ?1 RETURNING iif(task = 0, body, NULL)";
    let id = label.0.cast_signed();
    let body = query::find(db, sql, [id], |row| row.get::<_, Option<Vec<u8>>>(0))?;
    let label = body.flatten().map(|body| parse(id, &body)).transpose()?;
    Ok(label.map(|label| label.operation))
}

/// Deletes labels of tasks that no longer wait for the labels: labels of jobs that have ended, and of superseded tries. Call this before
/// any job is resumed. A node that never received such a label never reports its outcome. If a node does report an outcome, the server
/// handles the report like that of an unwanted label.
pub fn delete_superseded(db: &Connection) -> Result<(), Fault> {
    let sql = "DELETE FROM label WHERE task != 0 AND NOT EXISTS (SELECT 1 FROM task JOIN job ON job.job = task.job \
               WHERE task.task = label.task AND task.label = label.label AND job.state = ?1 \
               AND task.state = ?2)";
    let states = [State::Running, State::Sent].map(state_number);
    db.sql.execute(sql, states)?;
    Ok(())
}
