//! Regular scrubs: this module begins a scrub of each node when its interval has passed ([`tidemill_meta::placement::scrub`]). Next:
//! `server/src/jobs`, whose driver creates the labels.

use crate::chores::{Chore, Due, Step};
use crate::cluster::Cluster;
use crate::jobs::DriverMessage;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::placement::scrub::{begin, next, open};
use tidemill_meta::wakes::{COMMIT, NODES};
use tidemill_meta::{Connection, Fault};
use tidemill_model::timers::Signals;

/// Begins due scrubs, and makes the driver continue open scrubs.
pub(crate) struct Scrubs {
    pub(crate) database: Arc<Database>,
    pub(crate) cluster: Arc<Cluster>,
    /// Interval in which all objects of each node are read once, if they are.
    pub(crate) every: Option<Duration>,
    pub(crate) driver: Sender<DriverMessage>,
}

impl Scrubs {
    /// Returns whether any node that is up has an open scrub.
    fn any_open(&self) -> Result<bool, Fault> {
        let open = self.database.read(open)?;
        Ok(open
            .iter()
            .any(|one| self.cluster.epoch(one.node.0).is_some()))
    }
}

impl Chore for Scrubs {
    fn delays(&self) -> &'static str {
        "scrubs are postponed"
    }

    fn woken_by(&self) -> Signals {
        COMMIT.and(NODES)
    }

    fn due(&mut self, _: i64) -> Result<Due, Fault> {
        if self.any_open()? {
            return Ok(Due::NOW);
        }
        let Some(every) = self.every else {
            return Ok(Due::Woken);
        };
        let nodes = self.cluster.scrubbing();
        self.database
            .read(|db| next(db, &nodes, every))
            .map(Due::from)
    }

    fn step(&mut self, now: i64) -> Step<'_> {
        Box::pin(async move {
            if let Some(every) = self.every {
                let nodes = self.cluster.scrubbing();
                let next = self.database.read(|db| next(db, &nodes, every))?;
                if next.is_some_and(|at| at <= now) {
                    let begin = move |db: &Connection| begin(db, &nodes, every, now);
                    self.database.write(begin).await?;
                }
            }
            match self.any_open()? && self.driver.send(DriverMessage::Scrub).is_err() {
                true => Err(Fault::Closed),
                false => Ok(Due::NOW),
            }
        })
    }
}
