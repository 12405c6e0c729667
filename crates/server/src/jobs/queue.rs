//! The queue of labels: every label is journaled before it is sent, and stays until its end is known.

use crate::names::Fault;
use rusqlite::{Connection, params};
use tidemill_core::id::{ElementId, LabelId, ObjectId, TaskId};
use tidemill_core::label::{Label, Operation};

/// What the journal keeps of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Journaled {
    pub(crate) task: TaskId,
    pub(crate) element: ElementId,
    /// Ids that its outputs will have, in the order of the task's outputs.
    pub(crate) objects: Vec<ObjectId>,
    /// The exact inputs: name and object.
    pub(crate) inputs: Vec<(String, u64)>,
}

/// Labels between the dispatcher and the elements. One implementation keeps them in the server's
/// database; another may keep them in a message broker.
pub(crate) trait Queue {
    /// Keeps a label that is about to be sent.
    fn journal(&self, element: ElementId, label: &Label) -> Result<(), Fault>;
    /// What was kept of a label, if its end is not known yet.
    fn find(&self, label: LabelId) -> Result<Option<Journaled>, Fault>;
    /// A label's end is known.
    fn settle(&self, label: LabelId) -> Result<(), Fault>;
}

/// The journal in the server's database, within one transaction.
#[derive(Debug)]
pub(crate) struct SqliteQueue<'a>(pub(crate) &'a Connection);

impl Queue for SqliteQueue<'_> {
    fn journal(&self, element: ElementId, label: &Label) -> Result<(), Fault> {
        let Operation::Analyse(analysis) = &label.operation else {
            return Ok(());
        };
        let objects: Vec<u64> = analysis
            .outputs
            .iter()
            .map(|output| output.object.0)
            .collect();
        let inputs: Vec<(&str, u64)> = analysis
            .inputs
            .iter()
            .map(|input| (input.name.as_str(), input.object.0))
            .collect();
        let row = params![
            label.id.0.cast_signed(),
            analysis.task.0.cast_signed(),
            analysis.job.0.cast_signed(),
            element.0,
            json(&objects),
            json(&inputs),
        ];
        let sql = "INSERT OR REPLACE INTO label VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        self.0.prepare_cached(sql)?.execute(row)?;
        let sql = "UPDATE task SET label = ?2, element = ?3 WHERE task = ?1";
        let row = params![
            analysis.task.0.cast_signed(),
            label.id.0.cast_signed(),
            element.0
        ];
        self.0.prepare_cached(sql)?.execute(row)?;
        Ok(())
    }

    fn find(&self, label: LabelId) -> Result<Option<Journaled>, Fault> {
        let sql = "SELECT task, element, objects, inputs FROM label WHERE label = ?1";
        let mut statement = self.0.prepare_cached(sql)?;
        let mut rows = statement.query([label.0.cast_signed()])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let objects: Vec<u64> = parse(&row.get::<_, String>(2)?, "outputs of label", label.0)?;
        Ok(Some(Journaled {
            task: TaskId(row.get::<_, i64>(0)?.cast_unsigned()),
            element: ElementId(row.get(1)?),
            objects: objects.into_iter().map(ObjectId).collect(),
            inputs: parse(&row.get::<_, String>(3)?, "inputs of label", label.0)?,
        }))
    }

    fn settle(&self, label: LabelId) -> Result<(), Fault> {
        self.0
            .prepare_cached("DELETE FROM label WHERE label = ?1")?
            .execute([label.0.cast_signed()])?;
        Ok(())
    }
}

/// JSON of numbers and names, which can't fail.
pub(crate) fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// What [`json`] wrote: `what` of the row with this id.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(
    text: &str,
    what: &str,
    id: u64,
) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::Damaged(format!("{what} {id}: {error}")))
}
