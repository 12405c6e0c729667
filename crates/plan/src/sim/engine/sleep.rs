//! Suspended nodes in the simulation: decides which nodes are suspended or resumed, and when. The decisions are those of
//! `tidemill_core::elastic`, as in a running cluster, based on the demand that the dispatcher reports. The checks are as frequent as those of
//! a server.

use super::{Engine, Wake, id_of, node_at, view};
use crate::sim::quantity::whole;
use crate::sim::{Allocation, Platform};
use std::collections::BTreeSet;
use tidemill_core::dispatch::Demand;
use tidemill_core::elastic::{self, Action, Limits, Power, Sleeper, Wakes, Worker};
use tidemill_core::event::{Event, JobState};
use tidemill_core::time::{Span, Time};

/// Interval at which the demand is checked.
const LOOK: Span = Span::from_millis(500);

/// Time for which a node was suspended and resuming until the job's end, and the number of resumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) struct Slept {
    pub(in crate::sim) suspended: Span,
    pub(in crate::sim) waking: Span,
    pub(in crate::sim) wakes: u64,
}

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awake,
    Asleep,
    Waking,
}

/// One storage node.
#[derive(Debug)]
struct Bed {
    sleeper: Sleeper,
    state: State,
    since: Time,
    slept: Slept,
    /// Whether some work needed the node at the last check.
    needed: bool,
}

impl Bed {
    fn turn(&mut self, state: State, now: Time) {
        let spent = now.since(self.since);
        match self.state {
            State::Awake => {}
            State::Asleep => self.slept.suspended = self.slept.suspended + spent,
            State::Waking => self.slept.waking = self.slept.waking + spent,
        }
        (self.state, self.since) = (state, now);
    }
}

/// All storage nodes; empty if none is ever suspended.
#[derive(Debug, Default)]
pub(super) struct Night {
    beds: Vec<Bed>,
    allocation: Allocation,
    /// Time of the next check.
    next: Option<Time>,
}

impl Night {
    pub(super) fn new(platform: &Platform, allocation: Allocation) -> Self {
        if platform.asleep == 0 && platform.suspend_after.is_none() {
            return Self::default();
        }
        let awake = platform.nodes.len().saturating_sub(platform.asleep);
        let beds = platform.nodes.iter().enumerate();
        let beds = beds.map(|(index, node)| {
            // Time to resume that a running cluster has learned.
            let wakes = Wakes {
                count: 1,
                total_ns: node.wake.0,
            };
            let (sleeper, state) = match index < awake {
                true => (Sleeper::awake(wakes, Time(0)), State::Awake),
                false => (Sleeper::asleep(wakes, Time(0)), State::Asleep),
            };
            Bed {
                sleeper,
                state,
                since: Time(0),
                slept: Slept::default(),
                needed: true,
            }
        });
        Self {
            beds: beds.collect(),
            allocation,
            next: None,
        }
    }

    /// Returns the suspended times of all nodes until `end`.
    pub(super) fn ended(mut self, end: Time) -> Vec<Slept> {
        for bed in &mut self.beds {
            let state = bed.state;
            bed.turn(state, end);
        }
        self.beds.into_iter().map(|bed| bed.slept).collect()
    }
}

impl Engine<'_> {
    /// Suspends the nodes that are suspended before the job is submitted.
    pub(super) fn begin_night(&mut self) {
        for index in 0..self.night.beds.len() {
            if self.night.beds[index].state == State::Asleep {
                let (node, _) = id_of(self.platform, index);
                self.feed(Event::NodeAsleep { node });
            }
        }
    }

    /// Begins to check the demand.
    pub(super) fn begin_looks(&mut self) {
        if self.night.beds.is_empty() {
            return;
        }
        if self.night.allocation == Allocation::All {
            for index in 0..self.night.beds.len() {
                self.tell_sleeper(index, elastic::Event::Wanted);
            }
        }
        self.plan_look(Span::default());
    }

    /// Schedules a check of the demand soon after an event.
    pub(super) fn look_soon(&mut self) {
        if !self.night.beds.is_empty() {
            self.plan_look(LOOK);
        }
    }

    fn runs_on(&self) -> bool {
        matches!(self.ended, None | Some(JobState::Running))
    }

    fn plan_look(&mut self, wait: Span) {
        let at = self.clock.now() + wait;
        if self.runs_on() && self.night.next.is_none_or(|next| at < next) {
            self.night.next = Some(at);
            self.clock.plan(at, Wake::Look);
        }
    }

    fn tell_sleeper(&mut self, index: usize, event: elastic::Event) {
        let now = self.clock.now();
        let node = node_at(self.platform, index);
        let limits = Limits {
            wake: Span(u64::MAX),
            ..Limits::default()
        };
        let bed = &mut self.night.beds[index];
        match bed.sleeper.on(event, now, &limits) {
            // The node has no work and is suspended at once.
            Some(Action::Suspend) => self.tell_sleeper(index, elastic::Event::Fell),
            Some(Action::Keep) => {
                bed.turn(State::Asleep, now);
                let (node, _) = id_of(self.platform, index);
                self.feed(Event::NodeAsleep { node });
            }
            Some(Action::Wake) => {
                bed.turn(State::Waking, now);
                bed.slept.wakes += 1;
                let station = u32::try_from(index).unwrap_or(u32::MAX);
                self.clock.plan(now + node.wake, Wake::Up(station));
            }
            Some(Action::Forget) => bed.turn(State::Awake, now),
            Some(Action::Abandon) | None => {}
        }
    }

    /// Handles a node that has resumed.
    pub(super) fn on_awake(&mut self, station: u32) {
        let index = station as usize;
        self.tell_sleeper(index, elastic::Event::Up);
        let (node, role) = id_of(self.platform, index);
        let view = view(node_at(self.platform, index), role);
        self.feed(Event::NodeUp { node, view });
        self.tell_programs(index);
        if let Some(status) = self.status(station) {
            self.feed(status);
        }
    }

    /// Checks which nodes are needed.
    pub(super) fn look(&mut self) {
        let now = self.clock.now();
        // An earlier check was planned since, and scheduled this one again.
        if !self.runs_on() || self.night.next != Some(now) {
            return;
        }
        self.night.next = None;
        let demand = self.dispatcher.demand(now);
        for index in 0..self.night.beds.len() {
            let (id, _) = id_of(self.platform, index);
            let needed = demand.used.contains(&id) || demand.wanted.contains(&id);
            self.look_at(index, needed);
        }
        if self.night.allocation == Allocation::Elastic {
            for index in self.shared_with(&demand) {
                self.tell_sleeper(index, elastic::Event::Wanted);
            }
        }
    }

    /// Resumes a node that is needed, and suspends a node that was idle for long enough.
    fn look_at(&mut self, index: usize, needed: bool) {
        let now = self.clock.now();
        let bed = &mut self.night.beds[index];
        let was = std::mem::replace(&mut bed.needed, needed);
        if needed || was && bed.state == State::Awake {
            self.tell_sleeper(index, elastic::Event::Wanted);
        }
        let unused = self.night.beds[index].sleeper.unused(now);
        match unused.zip(self.platform.suspend_after) {
            Some((unused, after)) if !needed && unused >= after => {
                self.tell_sleeper(index, elastic::Event::Tired);
            }
            Some((unused, after)) if !needed => self.plan_look(Span(after.0 - unused.0)),
            _ => {}
        }
    }

    /// Returns the nodes to resume for tasks that wait for capacity.
    fn shared_with(&self, demand: &Demand) -> Vec<usize> {
        let able: BTreeSet<usize> = demand.able.iter().map(|id| id.0 as usize).collect();
        let beds = &self.night.beds;
        if able.iter().any(|&index| beds[index].state == State::Waking) {
            return Vec::new();
        }
        let of = |state| (0..beds.len()).filter(move |&index| beds[index].state == state);
        let awake: Vec<Worker> = of(State::Awake)
            .map(|index| self.worker(index, Span::default()))
            .collect();
        let asleep = of(State::Asleep).filter(|index| able.contains(index));
        let mut asleep: Vec<(Span, usize)> = asleep
            .map(|index| (node_at(self.platform, index).wake, index))
            .collect();
        asleep.sort_unstable();
        let workers = asleep.iter().map(|&(wake, index)| self.worker(index, wake));
        let workers: Vec<Worker> = workers.collect();
        let chosen = elastic::allocate(demand.work.0, &awake, &workers);
        let chosen = asleep.iter().take(chosen.woken);
        chosen.map(|&(_, index)| index).collect()
    }

    /// Work is core time, as in a running cluster.
    fn worker(&self, index: usize, wake: Span) -> Worker {
        let node = node_at(self.platform, index);
        let milli = |watts: f64| whole(watts * 1000.0);
        let power = Power {
            busy_milli: milli(node.power_busy_watts),
            idle_milli: milli(node.power_idle_watts),
            suspended_milli: milli(node.power_suspended_watts),
        };
        Worker::of_cores(node.cores, power, wake)
    }
}
