//! Removal of objects without a name ([`tidemill_meta::placement::removals`]): when no client reads the objects and their node is up, labels
//! remove many objects each. Next: `server/src/jobs`, whose driver creates the labels.

use crate::chores::{Chore, Due, Step};
use crate::clock;
use crate::cluster::Cluster;
use crate::jobs::DriverMessage;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::placement::removals::{self, REST_NS};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::wakes::{COMMIT, NODES, RELEASED};
use tidemill_meta::{Connection, Fault, parts, rules};
use tidemill_model::id::ObjectId;
use tidemill_model::timers::Signals;

/// Time until the next look while the listed objects are in use, wait for their time or have a label.
const LOOK: Duration = Duration::from_millis(500);
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

    /// Returns whether [`Self::let_go`] would replace any version.
    fn lets_go(&self) -> Result<bool, Fault> {
        let due = self.queued();
        self.database
            .read(|db| parts::any_unused(db, due, &self.shared))
    }

    /// Replaces unused versions of several objects in the list by their objects, which are then removed separately.
    async fn let_go(&self) -> Result<(), Fault> {
        let (now, due, shared) = (clock::now_ns(), self.queued(), self.shared.clone());
        let let_go = move |db: &Connection| parts::let_go(db, due, &shared, now);
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
            let page = self.database.read(|db| {
                let compared = rules::position(db, &self.shared)?;
                removals::page(db, (node, after), self.queued(), compared)
            })?;
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

/// Makes the driver create labels for removals.
pub(crate) struct Removals {
    garbage: Garbage,
    cluster: Arc<Cluster>,
    driver: Sender<DriverMessage>,
    /// Whether the last look found unused versions of several objects, and (`objects`) objects to remove.
    versions: bool,
    objects: bool,
}

impl Removals {
    pub(crate) fn new(
        garbage: Garbage,
        cluster: &Arc<Cluster>,
        driver: &Sender<DriverMessage>,
    ) -> Self {
        Self {
            garbage,
            cluster: cluster.clone(),
            driver: driver.clone(),
            versions: false,
            objects: false,
        }
    }
}

impl Chore for Removals {
    fn delays(&self) -> &'static str {
        "unused objects are kept for now"
    }

    fn woken_by(&self) -> Signals {
        COMMIT.and(NODES).and(RELEASED)
    }

    fn due(&mut self, _: i64) -> Result<Due, Fault> {
        let (mut nodes, with_parts) = self.garbage.database.read(removals::waiting)?;
        nodes.retain(|&node| self.cluster.epoch(node).is_some());
        self.versions = with_parts && self.garbage.lets_go()?;
        self.objects = false;
        for &node in &nodes {
            self.objects |= !self.garbage.due(node, ObjectId(0))?.is_empty();
            if self.objects {
                break;
            }
        }
        Ok(if self.versions || self.objects {
            Due::NOW
        } else if nodes.is_empty() && !with_parts {
            Due::Woken
        } else {
            Due::After(LOOK)
        })
    }

    fn step(&mut self, _: i64) -> Step<'_> {
        Box::pin(async {
            if self.versions {
                self.garbage.let_go().await?;
            }
            match self.objects && self.driver.send(DriverMessage::Garbage).is_err() {
                true => Err(Fault::Closed),
                false => Ok(Due::NOW),
            }
        })
    }
}
