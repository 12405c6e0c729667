//! Suspended nodes: their states in memory. `nodes` stores them, and `tidemill_sched::elastic` decides about the times.
//!
//! The server stores the suspension of a node before any other step. A suspended node reports its state again with every connection. The
//! server may therefore be killed at any moment.

use super::energy::Energy;
use crate::clock;
use crate::wakes::{SUSPENSIONS, Wakes};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidemill_model::time::{Span, Time};
use tidemill_sched::elastic::{ElasticAction, ElasticEvent, ElasticLimits, Resumes, Suspension};
use tidemill_wire::v1;
use tokio::time::Instant;

/// Interval at which the state of a node is checked while a caller waits for the node.
pub const LOOK: Duration = Duration::from_millis(50);

/// Returns a duration as a value of type [`Span`].
pub fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// State of suspending one node.
#[derive(Clone, Debug)]
struct ElasticState {
    suspension: Suspension,
    /// Time at which the node was suspended, for display.
    since: i64,
    /// Reason why the node can't be resumed, or why it was not suspended.
    trouble: String,
    /// Reason why the node is needed and must stay active.
    needed: String,
}

/// States of suspending all nodes.
#[derive(Debug)]
pub struct Suspensions {
    known: Mutex<BTreeMap<u32, ElasticState>>,
    actions: Mutex<Vec<(u32, ElasticAction)>>,
    limits: Mutex<ElasticLimits>,
    /// Whether any node is suspended or being suspended. If not, other code needs no check.
    any: AtomicBool,
    wakes: Arc<Wakes>,
    began: Instant,
    /// Energy that the nodes have consumed.
    pub energy: Energy,
}

impl Default for Suspensions {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            actions: Mutex::default(),
            limits: Mutex::new(ElasticLimits::default()),
            any: AtomicBool::new(false),
            wakes: Arc::default(),
            began: Instant::now(),
            energy: Energy::default(),
        }
    }
}

impl Suspensions {
    /// Returns suspensions that send a signal for each action.
    pub(crate) fn new(wakes: Arc<Wakes>) -> Self {
        Self {
            wakes,
            ..Self::default()
        }
    }

    /// Returns the time of the monotonic clock, which nobody can set.
    fn now(&self) -> Time {
        let elapsed = Instant::now().saturating_duration_since(self.began);
        Time(span(elapsed).0)
    }

    /// Sets the time limits for suspending and resuming nodes, and with `automatic` prepares for nodes that are suspended when idle.
    pub fn configure(&self, limits: ElasticLimits, automatic: bool) {
        *self.limits.lock() = limits;
        self.any.fetch_or(automatic, Ordering::Relaxed);
    }

    /// Returns whether any node is or may be suspended.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Restores the states of nodes that an earlier run of the server stored.
    pub fn restore(&self, kept: Vec<StoredElasticState>) {
        let now = self.now();
        let mut known = self.known.lock();
        for one in kept {
            self.any.fetch_or(one.suspended, Ordering::Relaxed);
            let suspension = match one.suspended {
                true => Suspension::suspended(one.resumes, now),
                false => Suspension::active(one.resumes, now),
            };
            let one_known = ElasticState {
                suspension,
                since: one.since,
                trouble: String::new(),
                needed: String::new(),
            };
            known.insert(one.node, one_known);
        }
    }

    /// Applies an event to the state of a node.
    pub fn on(&self, node: u32, event: ElasticEvent) {
        let (now, limits) = (self.now(), *self.limits.lock());
        if event == ElasticEvent::Suspended || event == ElasticEvent::Idle {
            self.any.store(true, Ordering::Relaxed);
        }
        let mut known = self.known.lock();
        let one = known.entry(node).or_insert_with(|| ElasticState {
            suspension: Suspension::active(Resumes::default(), now),
            since: 0,
            trouble: String::new(),
            needed: String::new(),
        });
        let action = one.suspension.on(event, now, &limits);
        match event {
            ElasticEvent::Up => one.trouble.clear(),
            ElasticEvent::Suspended if action == Some(ElasticAction::Keep) => {
                one.since = clock::now_ns();
                one.trouble.clear();
                one.needed.clear();
            }
            _ => {}
        }
        if let Some(action) = action {
            self.actions.lock().push((node, action));
            self.wakes.wake(SUSPENSIONS);
        }
    }

    /// Requests that a node is resumed because it is needed. The caller waits for the node separately.
    pub fn want(&self, node: u32) {
        if self.any() {
            self.on(node, ElasticEvent::Wanted);
        }
    }

    /// Checks the deadlines of all known nodes, because time has passed.
    pub fn tick(&self) {
        let known: Vec<u32> = self.known.lock().keys().copied().collect();
        for node in known {
            self.on(node, ElasticEvent::Tick);
        }
    }

    /// Returns the actions that the server must carry out, each with its node, in the order of their events, and clears the list.
    pub fn take_actions(&self) -> Vec<(u32, ElasticAction)> {
        std::mem::take(&mut *self.actions.lock())
    }

    /// Applies an event to the state of a node, and records the reason why the node can't be suspended or resumed.
    pub fn trouble(&self, node: u32, event: ElasticEvent, why: String) {
        self.on(node, event);
        if let Some(known) = self.known.lock().get_mut(&node) {
            known.trouble = why;
        }
    }

    /// Records that a node was asked to suspend itself and stays active, with the reason.
    pub fn stays(&self, node: u32, why: String) {
        self.trouble(node, ElasticEvent::Stays, why);
    }

    /// Records the reason why a known node must stay active; an empty text means that nothing needs the node.
    pub fn needed(&self, node: u32, by: &str) {
        if let Some(known) = self.known.lock().get_mut(&node)
            && known.needed != by
        {
            by.clone_into(&mut known.needed);
        }
    }

    fn ask<T>(&self, node: u32, answer: impl Fn(&ElasticState, &ElasticLimits) -> T) -> Option<T> {
        let limits = *self.limits.lock();
        let known = self.known.lock();
        known.get(&node).map(|one| answer(one, &limits))
    }

    /// Whether a node is suspended, so that the server does not report the node as missing.
    pub fn is_suspended(&self, node: u32) -> bool {
        self.any()
            && self
                .ask(node, |one, limits| one.suspension.is_suspended(limits))
                .unwrap_or(false)
    }

    /// Whether a node is being suspended at the moment.
    pub fn is_suspending(&self, node: u32) -> bool {
        self.any()
            && self
                .ask(node, |one, _| one.suspension.is_suspending())
                .unwrap_or(false)
    }

    /// Returns whether a node is being resumed, including the pause after a failed attempt.
    pub fn is_resuming(&self, node: u32) -> bool {
        self.ask(node, |one, _| one.suspension.is_resuming())
            .unwrap_or(false)
    }

    /// Returns all suspended nodes.
    pub fn suspended(&self) -> Vec<u32> {
        let limits = *self.limits.lock();
        let known = self.known.lock();
        let suspended = known
            .iter()
            .filter(|(_, one)| one.suspension.is_suspended(&limits));
        suspended.map(|(&node, _)| node).collect()
    }

    /// Returns the time for which no work has needed a node; `None` if the node is unknown or not active, or if work waits for it.
    pub fn unused(&self, node: u32) -> Option<Span> {
        let now = self.now();
        self.ask(node, |one, _| one.suspension.unused(now))
            .unwrap_or_default()
    }

    /// Returns how often a node was resumed and the total time of resuming; zeros for an unknown node.
    pub fn learnt(&self, node: u32) -> Resumes {
        self.ask(node, |one, _| one.suspension.learnt())
            .unwrap_or_default()
    }

    /// Returns the time at which a node was last suspended, in nanoseconds since the Unix epoch; 0 if the node was never suspended.
    pub fn since(&self, node: u32) -> i64 {
        self.ask(node, |one, _| one.since).unwrap_or_default()
    }

    /// Returns the reason why a node can't be suspended or resumed; an empty text if no reason is known.
    pub fn why(&self, node: u32) -> String {
        self.ask(node, |one, _| one.trouble.clone())
            .unwrap_or_default()
    }

    /// Deletes the state of a node that was removed from the cluster.
    pub fn forget(&self, node: u32) {
        self.known.lock().remove(&node);
    }

    /// Returns a node's suspension data for `tidemill status`.
    pub fn reported(&self, node: u32) -> Option<v1::Suspension> {
        self.ask(node, |one, limits| {
            let suspended = one.suspension.is_suspended(limits);
            let learnt = one.suspension.learnt();
            v1::Suspension {
                suspended,
                resuming: one.suspension.is_resuming(),
                since: if suspended { one.since } else { 0 },
                resumes: learnt.count,
                resume_ns: learnt.mean().unwrap_or_default().0,
                trouble: one.trouble.clone(),
                needed: one.needed.clone(),
            }
        })
    }

    /// Resumes a node and waits for the node, at most for `limit`. Returns whether the node is active.
    pub async fn until_resumed(self: &Arc<Self>, node: u32, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.is_suspended(node) || self.is_resuming(node) {
            self.want(node);
            if Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
        true
    }
}

/// Stored state of a node that is or was suspended.
#[derive(Clone, Copy, Debug)]
pub struct StoredElasticState {
    /// Number of the node.
    pub node: u32,
    /// Whether the node is suspended; `false` if it was suspended earlier and is active again.
    pub suspended: bool,
    /// Time of the last suspension, in nanoseconds since the Unix epoch.
    pub since: i64,
    /// Number of times that the node was resumed, and the total time of resuming.
    pub resumes: Resumes,
}
