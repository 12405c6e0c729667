//! Removal of objects without a name. The table `removal` is a durable list, written in the transaction that makes the objects garbage.
//! When no client reads the objects and their node is up, labels remove many objects each. Objects leave the list when their label has
//! succeeded. A repeated removal is no error, and an object that could not be removed becomes part of another label. Next:
//! `server/src/jobs`, whose driver creates the labels.

use crate::cluster::Cluster;
use crate::jobs::DriverMessage;
use crate::jobs::store::json;
use crate::names::commit::Database;
use crate::names::draining::Leaving;
use crate::names::parts;
use crate::names::shared::NamesShared;
use crate::names::vnode::NO_NODE;
use crate::{clock, corruption, names::Fault, replicas};
use rusqlite::{Connection, params};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_model::id::{LabelId, NodeId, ObjectId};

/// Interval at which the list of objects to remove is examined.
const PERIOD: Duration = Duration::from_millis(500);
/// Minimum time in nanoseconds between listing and removal, so that a client that has just looked up the object can open it.
const REST_NS: i64 = 1_000_000_000;
/// Time after a start, in nanoseconds, in which mounts can report open files. Objects listed before the start are not removed earlier.
const START_GRACE_NS: i64 = 15 * 1_000_000_000;
/// Pause in nanoseconds before another attempt to remove an object.
const AGAIN_NS: i64 = 30 * 1_000_000_000;
/// Maximum number of objects that one label removes.
const OBJECTS_MAX: usize = 1024;

/// The list of objects to remove.
#[derive(Clone, Debug)]
pub(crate) struct Garbage {
    database: Arc<Database>,
    shared: Arc<NamesShared>,
    started: i64,
}

impl Garbage {
    pub(crate) fn new(database: Arc<Database>, shared: Arc<NamesShared>) -> Self {
        Self {
            database,
            shared,
            started: clock::now_ns(),
        }
    }

    /// Makes the driver create labels for removals as long as the server runs.
    pub(crate) async fn watch(self, cluster: Arc<Cluster>, driver: Sender<DriverMessage>) {
        loop {
            tokio::time::sleep(PERIOD).await;
            if let Err(fault) = self.let_go().await {
                fault.log_delay("parts of unused versions are kept for now");
            }
            let due = cluster.up().into_iter().any(|node| {
                let due = self.due(node, ObjectId(0));
                due.is_ok_and(|due| !due.is_empty())
            });
            if due && driver.send(DriverMessage::Garbage).is_err() {
                return;
            }
        }
    }

    /// Replaces unused versions of several objects in the list by their objects, which are then removed separately.
    async fn let_go(&self) -> Result<(), Fault> {
        let any = self.database.read(|db| {
            let sql = "SELECT 1 FROM removal WHERE node = ?1";
            Ok(db.prepare_cached(sql)?.exists([NO_NODE])?)
        })?;
        if !any {
            return Ok(());
        }
        let (now, due, shared) = (clock::now_ns(), self.queued(), self.shared.clone());
        let let_go =
            move |db: &Connection| parts::let_go(db, due, |object| shared.object_held(object), now);
        self.database.write(let_go).await
    }

    /// Returns the range of listing times of objects that can be removed now: the exclusive end and the inclusive start, in nanoseconds.
    fn queued(&self) -> (i64, i64) {
        let now = clock::now_ns();
        let since = if now - self.started < START_GRACE_NS {
            self.started
        } else {
            0
        };
        (now - REST_NS, since)
    }

    /// Returns objects of a node after `after` that can be removed now and have no label in progress: in order, at most as many as one
    /// label removes.
    pub(crate) fn due(&self, node: u32, after: ObjectId) -> Result<Vec<ObjectId>, Fault> {
        let mut after = after;
        loop {
            let page = self.page(node, after)?;
            let Some(&(last, _)) = page.last() else {
                return Ok(Vec::new());
            };
            after = last;
            let free = page
                .into_iter()
                .filter(|&(object, elsewhere)| match elsewhere {
                    true => !self.shared.replica_held(object.0, node),
                    false => !self.shared.object_held(object.0),
                });
            let free: Vec<ObjectId> = free.map(|(object, _)| object).collect();
            if !free.is_empty() {
                return Ok(free);
            }
        }
    }

    /// Returns the next objects of the list. The flag states whether the object still belongs to a version on another node. In that case no
    /// client is directed to read the object on this node, and a rule run reads the object on the other node. Only a map task that was sent
    /// to this node during the write reads the object here.
    fn page(&self, node: u32, after: ObjectId) -> Result<Vec<(ObjectId, bool)>, Fault> {
        let (before, since) = self.queued();
        self.database.read(|db| {
            let sql = "SELECT object, EXISTS (SELECT 1 FROM held WHERE held.object = removal.object \
                       AND removed = 0) FROM removal WHERE node = ?1 AND object > ?2 AND label = 0 \
                       AND queued < ?3 AND queued >= ?4 AND (NOT EXISTS (SELECT 1 FROM rule_run \
                       WHERE rule_run.object = removal.object AND state <= 2) OR EXISTS (SELECT 1 FROM held \
                       WHERE held.object = removal.object AND removed = 0)) AND NOT EXISTS (SELECT 1 FROM rule_run \
                       JOIN label ON label.task BETWEEN rule_run.task AND max(rule_run.task, rule_run.last) \
                       WHERE rule_run.object = removal.object AND rule_run.state <= 2 AND rule_run.state = 2 \
                       AND label.node = removal.node) \
                       ORDER BY object LIMIT ?5";
            let mut statement = db.prepare_cached(sql)?;
            let limit = i64::try_from(OBJECTS_MAX).unwrap_or(i64::MAX);
            let key = params![node, after.0.cast_signed(), before, since, limit];
            let objects = statement.query_map(key, |row| {
                let object = ObjectId(row.get::<_, i64>(0)?.cast_unsigned());
                Ok((object, row.get(1)?))
            })?;
            Ok(objects.collect::<Result<_, _>>()?)
        })
    }
}

/// Records that a label is to remove these objects from a node.
pub(crate) fn labelled(
    db: &Connection,
    label: LabelId,
    node: NodeId,
    objects: &[u64],
) -> Result<(), Fault> {
    if objects.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE removal SET label = ?1 WHERE node = ?2 \
               AND object IN (SELECT value FROM json_each(?3))";
    db.prepare_cached(sql)?
        .execute(params![label.0.cast_signed(), node.0, json(&objects)])?;
    Ok(())
}

/// Records the end of a label that was to remove these objects from a node. A failed label may have removed some of the objects.
pub(crate) fn ended(
    db: &Connection,
    node: NodeId,
    objects: &[ObjectId],
    failed: Option<&[ObjectId]>,
    (leaving, now): (&Leaving, i64),
) -> Result<(), Fault> {
    let list = |objects: &[ObjectId]| {
        let objects: Vec<u64> = objects.iter().map(|object| object.0).collect();
        json(&objects)
    };
    let gone = list(failed.unwrap_or(objects));
    for sql in [
        "DELETE FROM corruption WHERE node = ?1 AND object IN (SELECT value FROM json_each(?2)) \
         AND object IN (SELECT object FROM removal WHERE removal.node = ?1)",
        "DELETE FROM removal WHERE node = ?1 AND object IN (SELECT value FROM json_each(?2))",
    ] {
        db.prepare_cached(sql)?.execute(params![node.0, gone])?;
    }
    if failed.is_some() {
        let sql = "UPDATE removal SET label = 0, queued = ?3 \
                   WHERE node = ?1 AND object IN (SELECT value FROM json_each(?2))";
        let again = now + AGAIN_NS - REST_NS;
        db.prepare_cached(sql)?
            .execute(params![node.0, list(objects), again])?;
        // A report in the meantime may have made this replica the last intact one.
        if corruption::any(db)? {
            for object in objects {
                replicas::cancel_removal(db, object.0, (leaving, now))?;
            }
        }
    }
    Ok(())
}
