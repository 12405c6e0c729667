//! Removal of objects without a name ([`tidemill_meta::placement::removals`]): when no client reads the objects and their node is up, labels
//! remove many objects each. Next: `server/src/jobs`, whose driver creates the labels.

use crate::clock;
use crate::cluster::Cluster;
use crate::jobs::DriverMessage;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::placement::removals::{self, REST_NS};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Connection, Fault, parts};
use tidemill_model::id::ObjectId;

/// Interval at which the list of objects to remove is examined.
const PERIOD: Duration = Duration::from_millis(500);
/// Time after a start, in nanoseconds, in which mounts can report open files. Objects listed before the start are not removed earlier.
const START_GRACE_NS: i64 = 15 * 1_000_000_000;

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
        if !self.database.read(removals::any_with_parts)? {
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
            let page = self
                .database
                .read(|db| removals::page(db, (node, after), self.queued()))?;
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
}
