//! Suspended nodes in the simulation: decides which nodes are suspended or resumed, and when. `tidemill_sched::elastic` makes the decisions,
//! as in a running cluster, based on the demand that the dispatcher reports. The checks are as frequent as those of a server.

use super::{Engine, PlannedEvent, id_of, node_at, view};
use crate::sim::quantity::whole;
use crate::sim::{Allocation, Platform};
use std::collections::BTreeSet;
use tidemill_model::event::{Event, JobState};
use tidemill_model::time::{Span, Time};
use tidemill_sched::dispatch::Demand;
use tidemill_sched::elastic::{
    self, ElasticAction, ElasticLimits, NodePower, ResumeCandidate, Resumes, Suspension,
};

/// Interval at which the demand for nodes is checked.
const LOOK: Span = Span::from_millis(500);

/// Time for which a node was suspended and resuming until the job's end, and the number of its resumptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) struct SuspendTimes {
    pub(in crate::sim) suspended: Span,
    pub(in crate::sim) resuming: Span,
    pub(in crate::sim) resumes: u64,
}

/// Power state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PowerState {
    Active,
    Suspended,
    Resuming,
}

/// Power state of one storage node and its times.
#[derive(Debug)]
struct StationPower {
    suspension: Suspension,
    state: PowerState,
    since: Time,
    suspend_times: SuspendTimes,
    /// Whether a task needed the node at the last check.
    needed: bool,
}

impl StationPower {
    fn turn(&mut self, state: PowerState, now: Time) {
        let spent = now.since(self.since);
        match self.state {
            PowerState::Active => {}
            PowerState::Suspended => {
                self.suspend_times.suspended = self.suspend_times.suspended + spent
            }
            PowerState::Resuming => {
                self.suspend_times.resuming = self.suspend_times.resuming + spent
            }
        }
        (self.state, self.since) = (state, now);
    }
}

/// Power states of all storage nodes; empty if no node is ever suspended.
#[derive(Debug, Default)]
pub(super) struct PowerStates {
    nodes: Vec<StationPower>,
    allocation: Allocation,
    /// Time of the next check of the demand.
    next: Option<Time>,
}

impl PowerStates {
    pub(super) fn new(platform: &Platform, allocation: Allocation) -> Self {
        if platform.suspended == 0 && platform.suspend_after.is_none() {
            return Self::default();
        }
        let active = platform.nodes.len().saturating_sub(platform.suspended);
        let nodes = platform.nodes.iter().enumerate();
        let nodes = nodes.map(|(index, node)| {
            // Time to resume that a running cluster has learned.
            let resumes = Resumes {
                count: 1,
                total_ns: node.resume.0,
            };
            let (suspension, state) = match index < active {
                true => (Suspension::active(resumes, Time(0)), PowerState::Active),
                false => (
                    Suspension::suspended(resumes, Time(0)),
                    PowerState::Suspended,
                ),
            };
            StationPower {
                suspension,
                state,
                since: Time(0),
                suspend_times: SuspendTimes::default(),
                needed: true,
            }
        });
        Self {
            nodes: nodes.collect(),
            allocation,
            next: None,
        }
    }

    /// Returns the suspended times of each node until `end`.
    pub(super) fn ended(mut self, end: Time) -> Vec<SuspendTimes> {
        for power in &mut self.nodes {
            let state = power.state;
            power.turn(state, end);
        }
        self.nodes
            .into_iter()
            .map(|power| power.suspend_times)
            .collect()
    }
}

impl Engine<'_> {
    /// Suspends the nodes that the platform suspends before the job is submitted.
    pub(super) fn begin_power_states(&mut self) {
        for index in 0..self.power_states.nodes.len() {
            if self.power_states.nodes[index].state == PowerState::Suspended {
                let (node, _) = id_of(self.platform, index);
                self.feed(Event::NodeSuspended { node });
            }
        }
    }

    /// Begins to check the demand for nodes at intervals.
    pub(super) fn begin_looks(&mut self) {
        if self.power_states.nodes.is_empty() {
            return;
        }
        if self.power_states.allocation == Allocation::All {
            for index in 0..self.power_states.nodes.len() {
                self.notify_suspension(index, elastic::ElasticEvent::Wanted);
            }
        }
        self.plan_look(Span::default());
    }

    /// Schedules a check of the demand soon after an event.
    pub(super) fn look_soon(&mut self) {
        if !self.power_states.nodes.is_empty() {
            self.plan_look(LOOK);
        }
    }

    fn runs_on(&self) -> bool {
        matches!(self.ended, None | Some(JobState::Running))
    }

    fn plan_look(&mut self, wait: Span) {
        let at = self.clock.now() + wait;
        if self.runs_on() && self.power_states.next.is_none_or(|next| at < next) {
            self.power_states.next = Some(at);
            self.clock.plan(at, PlannedEvent::Look);
        }
    }

    fn notify_suspension(&mut self, index: usize, event: elastic::ElasticEvent) {
        let now = self.clock.now();
        let node = node_at(self.platform, index);
        let limits = ElasticLimits {
            resume: Span(u64::MAX),
            ..ElasticLimits::default()
        };
        let power = &mut self.power_states.nodes[index];
        match power.suspension.on(event, now, &limits) {
            // The node has no work and is suspended at once.
            Some(ElasticAction::Suspend) => {
                self.notify_suspension(index, elastic::ElasticEvent::Suspended)
            }
            Some(ElasticAction::Keep) => {
                power.turn(PowerState::Suspended, now);
                let (node, _) = id_of(self.platform, index);
                self.feed(Event::NodeSuspended { node });
            }
            Some(ElasticAction::Resume) => {
                power.turn(PowerState::Resuming, now);
                power.suspend_times.resumes += 1;
                let station = u32::try_from(index).unwrap_or(u32::MAX);
                self.clock
                    .plan(now + node.resume, PlannedEvent::Up(station));
            }
            Some(ElasticAction::Forget) => power.turn(PowerState::Active, now),
            Some(ElasticAction::Abandon) | None => {}
        }
    }

    /// Handles a node that has resumed.
    pub(super) fn on_active(&mut self, station: u32) {
        let index = station as usize;
        self.notify_suspension(index, elastic::ElasticEvent::Up);
        let (node, role) = id_of(self.platform, index);
        let view = view(node_at(self.platform, index), role);
        self.feed(Event::NodeUp { node, view });
        self.tell_programs(index);
        if let Some(status) = self.status(station) {
            self.feed(status);
        }
    }

    /// Checks which nodes are needed, and suspends or resumes nodes.
    pub(super) fn look(&mut self) {
        let now = self.clock.now();
        // An earlier check was planned since, and scheduled this one again.
        if !self.runs_on() || self.power_states.next != Some(now) {
            return;
        }
        self.power_states.next = None;
        let demand = self.dispatcher.demand(now);
        for index in 0..self.power_states.nodes.len() {
            let (id, _) = id_of(self.platform, index);
            let needed = demand.used.contains(&id) || demand.wanted.contains(&id);
            self.look_at(index, needed);
        }
        if self.power_states.allocation == Allocation::Elastic {
            for index in self.shared_with(&demand) {
                self.notify_suspension(index, elastic::ElasticEvent::Wanted);
            }
        }
    }

    /// Resumes a node that is needed, and suspends a node that was idle for long enough.
    fn look_at(&mut self, index: usize, needed: bool) {
        let now = self.clock.now();
        let power = &mut self.power_states.nodes[index];
        let was = std::mem::replace(&mut power.needed, needed);
        if needed || was && power.state == PowerState::Active {
            self.notify_suspension(index, elastic::ElasticEvent::Wanted);
        }
        let unused = self.power_states.nodes[index].suspension.unused(now);
        match unused.zip(self.platform.suspend_after) {
            Some((unused, after)) if !needed && unused >= after => {
                self.notify_suspension(index, elastic::ElasticEvent::Idle);
            }
            Some((unused, after)) if !needed => self.plan_look(Span(after.0 - unused.0)),
            _ => {}
        }
    }

    /// Returns the suspended nodes to resume for tasks that wait for capacity.
    fn shared_with(&self, demand: &Demand) -> Vec<usize> {
        let able: BTreeSet<usize> = demand.able.iter().map(|id| id.0 as usize).collect();
        let nodes = &self.power_states.nodes;
        if able
            .iter()
            .any(|&index| nodes[index].state == PowerState::Resuming)
        {
            return Vec::new();
        }
        let of = |state| (0..nodes.len()).filter(move |&index| nodes[index].state == state);
        let active: Vec<ResumeCandidate> = of(PowerState::Active)
            .map(|index| self.worker(index, Span::default()))
            .collect();
        let suspended = of(PowerState::Suspended).filter(|index| able.contains(index));
        let mut suspended: Vec<(Span, usize)> = suspended
            .map(|index| (node_at(self.platform, index).resume, index))
            .collect();
        suspended.sort_unstable();
        let workers = suspended
            .iter()
            .map(|&(resume, index)| self.worker(index, resume));
        let workers: Vec<ResumeCandidate> = workers.collect();
        let chosen = elastic::allocate(demand.work.0, &active, &workers);
        let chosen = suspended.iter().take(chosen.resumed);
        chosen.map(|&(_, index)| index).collect()
    }

    /// Returns a node as a candidate for resuming; its work is core time, as in a running cluster.
    fn worker(&self, index: usize, resume: Span) -> ResumeCandidate {
        let node = node_at(self.platform, index);
        let milli = |watts: f64| whole(watts * 1000.0);
        let power = NodePower {
            busy_milli: milli(node.power_busy_watts),
            idle_milli: milli(node.power_idle_watts),
            suspended_milli: milli(node.power_suspended_watts),
        };
        ResumeCandidate::of_cores(node.cores, power, resume)
    }
}
