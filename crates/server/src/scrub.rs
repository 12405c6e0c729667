//! Regular scrubs: this module begins a scrub of each node when its interval has passed ([`tidemill_meta::placement::scrub`]). Next:
//! `server/src/jobs`, whose driver creates the labels.

use crate::clock;
use crate::cluster::Cluster;
use crate::jobs::DriverMessage;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_meta::Connection;
use tidemill_meta::commit::Database;
use tidemill_meta::placement::scrub::{begin, clean, due, open};

/// Interval at which the server checks for due scrubs.
const PERIOD: Duration = Duration::from_millis(500);

/// Makes the driver check for due scrubs as long as the server runs. With `every`, all objects of each node are read once in that interval.
pub(crate) async fn watch(
    database: Arc<Database>,
    cluster: Arc<Cluster>,
    every: Option<Duration>,
    driver: Sender<DriverMessage>,
) {
    if let Err(fault) = database.write(clean).await {
        fault.log_delay("incomplete scrubs are kept until the next start");
    }
    loop {
        tokio::time::sleep(PERIOD).await;
        if let Some(every) = every {
            let (nodes, now) = (cluster.scrubbing(), clock::now_ns());
            let due = database.read(|db| due(db, &nodes, every, now));
            if due.is_ok_and(|due| !due.is_empty()) {
                let begin = move |db: &Connection| begin(db, &nodes, every, now);
                if let Err(fault) = database.write(begin).await {
                    fault.log_delay("scrubs can't be started now");
                }
            }
        }
        let open = database.read(|db| Ok(!open(db)?.is_empty()));
        if open.unwrap_or(false) && driver.send(DriverMessage::Scrub).is_err() {
            return;
        }
    }
}
