//! List of the labels that belong to no job: maintenance work of the cluster, with its reasons. This module only reads.

use crate::jobs::outbox;
use crate::names::Fault;
use crate::names::burst;
use crate::names::replicas::{DRAIN, EVICT, MOVE, STAGE_IN};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;
use tidemill_model::id::{LabelId, ObjectId};
use tidemill_model::label::Operation;
use tidemill_model::replicas::REPLICAS_MAX;
use tidemill_wire::v1;

/// Returns the readable word for the reason of a migration.
fn word(why: i64) -> &'static str {
    match why {
        DRAIN => "drain",
        MOVE => "move",
        EVICT => "evict",
        STAGE_IN => "stage-in",
        _ => "rebalance",
    }
}

/// Returns the labels without a job that are queued or running. `removed` contains nodes that no longer belong to the cluster.
pub(crate) fn list(
    db: &Connection,
    running: &BTreeSet<LabelId>,
    removed: &BTreeSet<u32>,
) -> Result<Vec<v1::MaintenanceTask>, Fault> {
    let mut maintenance_tasks = Vec::new();
    for (node, label) in outbox::maintenance_tasks(db)? {
        let id = label.id;
        let sql = "SELECT at FROM label WHERE label = ?1";
        let mut at = db.prepare_cached(sql)?;
        let mut maintenance_task = v1::MaintenanceTask {
            label: id.0,
            node: node.0,
            at: at.query_row([id.0.cast_signed()], |row| row.get(0))?,
            running: running.contains(&id),
            ..v1::MaintenanceTask::default()
        };
        match &label.operation {
            Operation::Copy { from, to, .. } => {
                maintenance_task.kind = "copy".into();
                maintenance_task.object = to.object.0;
                maintenance_task.objects = 1;
                maintenance_task.from = from.node.0;
                maintenance_task.bytes = from.size;
                maintenance_task.path = to.path.clone().into_bytes();
                maintenance_task.why = why_copied(db, to.object.0, removed)?;
            }
            Operation::Remove { objects } => {
                maintenance_task.kind = "remove".into();
                let lives = of_many(db, &mut maintenance_task, objects)?;
                maintenance_task.why = if lives { "moved" } else { "removed" }.into();
            }
            Operation::Verify { objects, .. } => {
                maintenance_task.kind = "verify".into();
                of_many(db, &mut maintenance_task, objects)?;
                maintenance_task.why = "scrub".into();
            }
            Operation::Analyse(_) => continue,
        }
        maintenance_tasks.push(maintenance_task);
    }
    Ok(maintenance_tasks)
}

/// Records the number of a label's objects, and the name of the first object. Returns whether that object is still a current version.
fn of_many(
    db: &Connection,
    maintenance_task: &mut v1::MaintenanceTask,
    objects: &[ObjectId],
) -> Result<bool, Fault> {
    let mut first_lives = false;
    maintenance_task.objects = objects.len() as u64;
    for (index, object) in objects.iter().enumerate() {
        let (path, size, lives) = version(db, object.0)?;
        if index == 0 {
            (maintenance_task.object, maintenance_task.path, first_lives) = (object.0, path, lives);
        }
        maintenance_task.bytes = maintenance_task.bytes.saturating_add(size);
    }
    Ok(first_lives)
}

/// Returns the path and size of a version, and whether the version is still the current version of its file.
fn version(db: &Connection, object: u64) -> Result<(Vec<u8>, u64, bool), Fault> {
    let sql = "SELECT path, size, removed FROM held WHERE object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let found = statement.query_row([object.cast_signed()], |row| {
        let size = row.get::<_, i64>(1)?.cast_unsigned();
        Ok((row.get(0)?, size, !row.get::<_, bool>(2)?))
    });
    Ok(found.optional()?.unwrap_or_default())
}

fn why_copied(db: &Connection, object: u64, removed: &BTreeSet<u32>) -> Result<String, Fault> {
    let sql = "SELECT why FROM migration WHERE object = ?1 LIMIT 1";
    let mut statement = db.prepare_cached(sql)?;
    let why = statement.query_row([object.cast_signed()], |row| row.get(0));
    if let Some(why) = why.optional()? {
        return Ok(word(why).into());
    }
    if !crate::corruption::of(db, object)?.is_empty() {
        return Ok("corruption".into());
    }
    let sql =
        "SELECT node FROM held WHERE object = ?1 UNION SELECT node FROM replica WHERE object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let holders = statement.query_map([object.cast_signed()], |row| row.get::<_, u32>(0))?;
    let sql = "SELECT 1 FROM lost WHERE node = ?1 AND back = 0";
    let mut lost = db.prepare_cached(sql)?;
    for holder in holders {
        let holder = holder?;
        if removed.contains(&holder) || lost.exists([holder])? {
            return Ok("repair".into());
        }
    }
    Ok("replicas".into())
}

/// Returns the files for which labels still have to be created.
pub(crate) fn pending(db: &Connection) -> Result<Vec<v1::Pending>, Fault> {
    let mut pending = Vec::new();
    let sql = "SELECT count(*) FROM short WHERE has < ?1";
    let short: i64 = db.query_row(sql, params![REPLICAS_MAX], |row| row.get(0))?;
    if short > 0 {
        pending.push(v1::Pending {
            why: "replicas".into(),
            files: short.cast_unsigned(),
            bytes: 0,
        });
    }
    let bytes = burst::sum_of("size");
    let sql = format!("SELECT why, count(*), {bytes} FROM migration GROUP BY why ORDER BY why");
    let mut statement = db.prepare_cached(&sql)?;
    let rows = statement.query_map([], |row| {
        Ok(v1::Pending {
            why: word(row.get(0)?).into(),
            files: row.get::<_, i64>(1)?.cast_unsigned(),
            bytes: row.get::<_, i64>(2)?.cast_unsigned(),
        })
    })?;
    pending.extend(rows.collect::<Result<Vec<_>, _>>()?);
    Ok(pending)
}
