//! The lease of the leader. The leader renews it all the time; a standby takes over after it has not changed for [`TAKEOVER`].
//!
//! The lease decides when a standby tries to lead, and until when the leader may answer. The log decides
//! which server leads, since it accepts records of one leader only. A standby counts the time since it *saw* the last renewal and the leader the time since it *sent*
//! the last renewal, each with its own clock, so the leader stops to answer before a standby can lead.

use super::streams::{Streams, Term};
use crate::leadership::{Lease, clock};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_log::{Deposed, Replicator};

/// Interval of renewals.
const RENEW: Duration = Duration::from_millis(250);
/// Time without a renewal after which a standby takes over.
pub(super) const TAKEOVER: Duration = Duration::from_millis(1500);
/// Time without a renewal after which a leader with standbys steps down, so that its clients look for another one.
const STEP_DOWN: Duration = Duration::from_secs(10);
/// Interval at which the leader looks for standbys, and times after which a silent standby is not shown and may not take over.
const LOOK: Duration = Duration::from_secs(1);
/// Number of looks after which the leader knows which standbys exist.
const LOOKS_MIN: u32 = 10;
const SHOWN: Duration = Duration::from_secs(3);
const SILENT: Duration = Duration::from_secs(30);

/// The leader, as in its lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Holder {
    pub(super) term: u64,
    pub(super) log: u32,
    pub(super) address: String,
    /// Name of the server's directory.
    pub(super) name: String,
    /// Number of the renewal.
    pub(super) renewal: u64,
    /// Names of the standbys that may take over.
    pub(super) standbys: Vec<String>,
}

impl Holder {
    /// Returns the first lease of a leader after the lease of the leader before. The servers that could take over from that one may take over
    /// from this one, too, until it knows better.
    pub(super) fn of(term: &Term, name: &str, before: Option<&Self>) -> Self {
        let others = before.into_iter().flat_map(|before| {
            let names = before.standbys.iter().chain([&before.name]);
            names.filter(|other| *other != name).cloned()
        });
        Self {
            standbys: others.collect(),
            term: term.term,
            log: term.log,
            address: term.address.clone(),
            name: name.into(),
            renewal: 0,
        }
    }
}

/// Lease of a server that opens its database before it leads, which is renewed until the value is dropped.
pub(crate) struct HeldLease {
    sequence: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl HeldLease {
    /// Renews a lease, which has a sequence number, from now on.
    pub(super) fn hold(streams: Streams, mut holder: Holder, sequence: u64) -> Self {
        let sequence = Arc::new(AtomicU64::new(sequence));
        let renewed = sequence.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEW).await;
                holder.renewal += 1;
                let present = renewed.load(Ordering::Acquire);
                let renewal = streams.renew_lease(&holder, present).await;
                let sequence = match renewal {
                    Ok(Some(sequence)) => sequence,
                    Ok(None) => match streams.lease::<Holder>().await {
                        // An earlier renewal whose answer was lost.
                        Ok(Some((sequence, found))) if found.log == holder.log => sequence,
                        Ok(_) => return,
                        Err(_) => continue,
                    },
                    Err(_) => continue,
                };
                renewed.store(sequence, Ordering::Release);
            }
        });
        Self { sequence, task }
    }

    /// Returns the sequence number of the last renewal.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.task.abort();
    }
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
    /// Names of the standbys that may take over.
    names: Vec<String>,
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

/// Renews the lease of a leader until another server leads. `present` is the sequence number of the lease that it has taken.
pub(super) async fn keep(
    streams: Streams,
    (mut holder, mut present): (Holder, u64),
    (lease, state): (Arc<Lease>, Arc<Mutex<LeaseState>>),
    replicator: Arc<Replicator>,
) {
    let mut renewed = Instant::now();
    state.lock().names.clone_from(&holder.standbys);
    tokio::spawn(look(streams.clone(), state.clone(), replicator.clone()));
    while replicator.deposed().is_none() {
        holder.standbys.clone_from(&state.lock().names);
        if !holder.standbys.is_empty() {
            // A standby may know this renewal although its answer is lost.
            lease.require();
        }
        let sent = clock();
        holder.renewal += 1;
        match streams.renew_lease(&holder, present).await {
            Ok(Some(sequence)) => {
                present = sequence;
                renewed = Instant::now();
                lease.renew(sent, !holder.standbys.is_empty());
                state.lock().trouble = None;
            }
            Ok(None) => match streams.lease::<Holder>().await {
                // An earlier renewal whose answer was lost.
                Ok(Some((sequence, found))) if found.name == holder.name => present = sequence,
                Ok(Some((_, found))) => {
                    let (address, term) = (found.address, found.term);
                    return replicator.depose(Deposed {
                        why: format!("{address} leads (term {term})"),
                        by_other: true,
                    });
                }
                Ok(None) => present = 0,
                Err(why) => state.lock().trouble = Some(why),
            },
            Err(why) => state.lock().trouble = Some(why),
        }
        if !holder.standbys.is_empty() && renewed.elapsed() >= STEP_DOWN {
            let why = format!("the log has not answered for {} s", STEP_DOWN.as_secs());
            let by_other = false;
            return replicator.depose(Deposed { why, by_other });
        }
        tokio::time::sleep(RENEW).await;
    }
}

/// Looks for standbys while this server leads.
async fn look(streams: Streams, state: Arc<Mutex<LeaseState>>, replicator: Arc<Replicator>) {
    let (mut known, mut looks) = (KnownStandbys::default(), 0);
    while replicator.deposed().is_none() {
        if let Ok(reported) = streams.standbys().await {
            known.update(reported);
            looks += 1;
            let mut state = state.lock();
            let names = known.within(SILENT).map(|standby| standby.name.clone());
            let inherited = state.names.iter().filter(|_| looks <= LOOKS_MIN).cloned();
            let names: BTreeSet<String> = names.chain(inherited).collect();
            state.names = names.into_iter().collect();
            state.standbys = known.within(SHOWN).cloned().collect();
        }
        tokio::time::sleep(LOOK).await;
    }
}
