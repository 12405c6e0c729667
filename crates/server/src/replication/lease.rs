//! The lease of the leader. The leader renews it all the time; a standby takes over after it has not changed for [`TAKEOVER`].
//!
//! The lease decides when a standby tries to lead, and until when the leader may answer. The log decides
//! which server leads, since it accepts records of one leader only. A standby counts the time since it *saw* the last renewal and the leader the time since it *sent*
//! the last renewal, each with its own clock, so the leader stops to answer before a standby can lead.

use super::streams::Streams;
use crate::leadership::{Lease, clock};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_log::Replicator;

/// Interval of renewals.
const RENEW: Duration = Duration::from_millis(250);
/// Time without a renewal after which a standby takes over.
pub(super) const TAKEOVER: Duration = Duration::from_millis(1500);
/// Interval at which the leader looks for standbys, and times after which a silent standby is not shown and may not take over.
const LOOK: Duration = Duration::from_secs(1);
const SHOWN: Duration = Duration::from_secs(3);
const SILENT: Duration = Duration::from_secs(30);

/// The leader, as in its lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Holder {
    pub(super) term: u64,
    pub(super) log: u32,
    pub(super) address: String,
    /// Number of the renewal.
    pub(super) renewal: u64,
    /// Names of the standbys that may take over.
    pub(super) standbys: Vec<String>,
}

/// A standby, as it reports itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standby {
    pub(crate) name: String,
    pub(crate) address: String,
    /// Sequence number of the last message of the log in its state.
    pub(crate) sequence: u64,
    /// Number of the report.
    pub(crate) report: u64,
}

/// Knowledge of the leader about its lease.
#[derive(Debug, Default)]
pub(crate) struct LeaseState {
    /// Reason why the lease can't be renewed now.
    pub(crate) trouble: Option<String>,
    /// The standbys.
    pub(crate) standbys: Vec<Standby>,
}

/// Standbys that the leader knows, each with the time of its last report. A report from before the leadership may be old, so the time of the
/// first one is not known.
#[derive(Default)]
struct KnownStandbys(BTreeMap<String, (Standby, Option<Instant>)>);

impl KnownStandbys {
    fn update(&mut self, reported: Vec<Standby>) {
        for standby in reported {
            let at = match self.0.get(&standby.name) {
                None => None,
                Some((known, _)) if known.report == standby.report => continue,
                Some(_) => Some(Instant::now()),
            };
            self.0.insert(standby.name.clone(), (standby, at));
        }
    }

    /// Returns the standbys that have reported themselves within a time.
    fn within(&self, time: Duration) -> impl Iterator<Item = &Standby> {
        let present = move |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() < time);
        let known = self.0.values().filter(move |(_, at)| present(at));
        known.map(|(standby, _)| standby)
    }
}

/// Takes the lease, and renews it until another server leads.
pub(super) async fn keep(
    streams: Streams,
    mut holder: Holder,
    (lease, state): (Arc<Lease>, Arc<Mutex<LeaseState>>),
    replicator: Arc<Replicator>,
) {
    // The log has accepted the term of this leader, so its lease replaces any other. Until it is stored, nothing is answered.
    let (mut present, mut looked) = (None, None::<Instant>);
    let mut known = KnownStandbys::default();
    while replicator.deposed().is_none() {
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK)
            && let Ok(reported) = streams.standbys().await
        {
            known.update(reported);
            looked = Some(Instant::now());
            let names = known.within(SILENT).map(|standby| standby.name.clone());
            holder.standbys = names.collect();
            state.lock().standbys = known.within(SHOWN).cloned().collect();
        }
        let sent = clock();
        holder.renewal += 1;
        match streams.renew_lease(&holder, present).await {
            Ok(Some(sequence)) => {
                present = Some(sequence);
                lease.renew(sent, !holder.standbys.is_empty());
                state.lock().trouble = None;
            }
            Ok(None) => match streams.lease::<Holder>().await {
                // An earlier renewal whose answer was lost.
                Ok(Some((sequence, found))) if found.log == holder.log => present = Some(sequence),
                Ok(Some((_, found))) => {
                    let (address, term) = (found.address, found.term);
                    return replicator.depose(format!("{address} leads (term {term})"));
                }
                Ok(None) => present = None,
                Err(why) => state.lock().trouble = Some(why),
            },
            Err(why) => state.lock().trouble = Some(why),
        }
        tokio::time::sleep(RENEW).await;
    }
}
