//! List of the labels that belong to no job: maintenance work of the cluster, with its reasons. This module only reads.

use std::collections::BTreeSet;
use tidemill_meta::jobs::outbox;
use tidemill_meta::placement::{corruption, migrations, nodes, replicas, under_replicated};
use tidemill_meta::{Connection, Fault, version};
use tidemill_model::id::{LabelId, ObjectId};
use tidemill_model::label::Operation;
use tidemill_wire::v1;

/// Returns the labels without a job that are queued or running. `removed` contains nodes that no longer belong to the cluster.
pub(crate) fn list(
    db: &Connection,
    running: &BTreeSet<LabelId>,
    removed: &BTreeSet<u32>,
) -> Result<Vec<v1::MaintenanceTask>, Fault> {
    let mut maintenance_tasks = Vec::new();
    for (node, label) in outbox::maintenance_tasks(db)? {
        let id = label.id;
        let mut maintenance_task = v1::MaintenanceTask {
            label: id.0,
            node: node.0,
            at: outbox::stored_at(db, id)?,
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
        let (path, size, lives) = version::summary(db, object.0)?;
        if index == 0 {
            (maintenance_task.object, maintenance_task.path, first_lives) = (object.0, path, lives);
        }
        maintenance_task.bytes = maintenance_task.bytes.saturating_add(size);
    }
    Ok(first_lives)
}

fn why_copied(db: &Connection, object: u64, removed: &BTreeSet<u32>) -> Result<String, Fault> {
    if let Some(why) = migrations::reason(db, object)? {
        return Ok(why.into());
    }
    if !corruption::of(db, object)?.is_empty() {
        return Ok("corruption".into());
    }
    let lost = nodes::lost(db)?;
    let mut holders = replicas::nodes_of(db, object)?.into_iter();
    let repairs = holders.any(|holder| removed.contains(&holder) || lost.contains(&holder));
    Ok(if repairs { "repair" } else { "replicas" }.into())
}

/// Returns the files for which labels still have to be created.
pub(crate) fn pending(db: &Connection) -> Result<Vec<v1::Pending>, Fault> {
    let mut pending = Vec::new();
    let files = under_replicated::lacking(db)?;
    if files > 0 {
        pending.push(v1::Pending {
            why: "replicas".into(),
            files,
            bytes: 0,
        });
    }
    pending.extend(migrations::pending(db)?);
    Ok(pending)
}
