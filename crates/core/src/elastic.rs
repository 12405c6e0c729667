//! Nodes that are suspended while nobody needs them. This module decides when a node is suspended, when it is resumed, and when
//! resuming more nodes pays (LABIOS §3.3, worker manager, and §4.2.3). It does no I/O: the server carries out the actions, by a
//! monotonic clock.

use crate::time::{Span, Time};

/// Time that a node is assumed to take to resume before it has been resumed once. Later this time is learned. The power that a
/// suspended node draws is configured by its administrator.
pub const WAKE_UNKNOWN: Span = Span::from_secs(10);

/// Time limits of suspending and resuming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum time from the request to suspend until the node is suspended or refuses.
    pub fall: Span,
    /// Maximum time from the request to resume until the node is online.
    pub wake: Span,
    /// Pause before the next attempt to resume after a failed one; it doubles with each attempt.
    pub pause: Span,
    /// Longest pause.
    pub pause_max: Span,
    /// Number of failed attempts after which the node counts as offline, like a node that was killed.
    pub tries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fall: Span::from_secs(20),
            wake: Span::from_secs(300),
            pause: Span::from_secs(1),
            pause_max: Span::from_secs(60),
            tries: 3,
        }
    }
}

/// Phase of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The node is awake, or it is offline without having reported that it is suspended.
    Awake,
    /// The node was asked to suspend and gets no new work.
    Falling { until: Time },
    /// The node is suspended.
    Asleep,
    /// The node is being resumed; the first attempt began at `since`.
    Waking { since: Time, until: Time },
    /// The node did not resume; the next attempt begins at `until`.
    Resting { since: Time, until: Time },
}

/// Event of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node is online.
    Up,
    /// The node reports that it is suspended.
    Fell,
    /// The node was asked to suspend and refuses, because it has work.
    Stays,
    /// The node's connection has ended without a report that it is suspended.
    Left,
    /// Nothing needs the node, and it may be suspended.
    Tired,
    /// Some work needs the node.
    Wanted,
    /// The attempt to resume the node failed.
    Failed,
    /// Time has passed.
    Tick,
}

/// Action that the server carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the node to suspend.
    Suspend,
    /// Record that the node is suspended, and power off its host if that was requested.
    Keep,
    /// Resume the node.
    Wake,
    /// Delete the record that the node was suspended: it is awake.
    Forget,
    /// Treat the node as offline from now on, because it has not resumed.
    Abandon,
}

/// Statistics of the time that a node takes to resume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// Number of times that the node was resumed.
    pub count: u64,
    /// Sum of these times, in nanoseconds.
    pub total_ns: u64,
}

impl Wakes {
    /// Returns the mean time; `None` if the node was never resumed.
    #[must_use]
    pub fn mean(&self) -> Option<Span> {
        self.total_ns.checked_div(self.count).map(Span)
    }

    fn add(&mut self, span: Span) {
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(span.0);
    }
}

/// State of one node that may be suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleeper {
    phase: Phase,
    /// Whether some work waits for the node. It is also set while the node is being suspended, to resume it afterwards.
    wanted: bool,
    /// Number of failed attempts to resume the node.
    tries: u32,
    /// Time at which some work last needed the node.
    used: Time,
    wakes: Wakes,
}

impl Sleeper {
    /// Returns a node that is awake and was in use until `now`.
    #[must_use]
    pub fn awake(wakes: Wakes, now: Time) -> Self {
        Self {
            phase: Phase::Awake,
            wanted: false,
            tries: 0,
            used: now,
            wakes,
        }
    }

    /// Returns a node that was suspended according to its last report.
    #[must_use]
    pub fn asleep(wakes: Wakes, now: Time) -> Self {
        Self {
            phase: Phase::Asleep,
            ..Self::awake(wakes, now)
        }
    }

    /// Handles an event and returns the action to carry out.
    pub fn on(&mut self, event: Event, now: Time, limits: &Limits) -> Option<Action> {
        match event {
            Event::Up => self.on_up(now),
            Event::Fell => self.on_fell(),
            Event::Stays => {
                self.rise(now);
                None
            }
            Event::Left => {
                if matches!(self.phase, Phase::Falling { .. }) {
                    // The node may still report that it is suspended; until then it counts as offline.
                    self.phase = Phase::Awake;
                }
                None
            }
            Event::Tired if self.phase == Phase::Awake && !self.wanted => {
                let until = now + limits.fall;
                self.phase = Phase::Falling { until };
                Some(Action::Suspend)
            }
            Event::Tired => None,
            Event::Wanted => self.on_wanted(now, limits),
            Event::Failed => self.on_failed(now, limits),
            Event::Tick => self.on_tick(now, limits),
        }
    }

    fn on_up(&mut self, now: Time) -> Option<Action> {
        let slept = !matches!(self.phase, Phase::Awake | Phase::Falling { .. });
        if let Phase::Waking { since, .. } | Phase::Resting { since, .. } = self.phase {
            self.wakes.add(now.since(since));
        }
        self.rise(now);
        slept.then_some(Action::Forget)
    }

    fn rise(&mut self, now: Time) {
        self.phase = Phase::Awake;
        self.wanted = false;
        self.tries = 0;
        self.used = now;
    }

    fn on_fell(&mut self) -> Option<Action> {
        match self.phase {
            Phase::Awake | Phase::Falling { .. } => {
                self.phase = Phase::Asleep;
                self.tries = 0;
                Some(Action::Keep)
            }
            // The node can be resumed, no matter how many attempts failed.
            Phase::Asleep => None,
            Phase::Waking { .. } | Phase::Resting { .. } => {
                self.tries = 0;
                Some(Action::Wake)
            }
        }
    }

    fn on_wanted(&mut self, now: Time, limits: &Limits) -> Option<Action> {
        self.used = now;
        match self.phase {
            Phase::Asleep => {
                self.wanted = true;
                Some(self.wake(now, now, limits))
            }
            Phase::Awake => None,
            _ => {
                self.wanted = true;
                None
            }
        }
    }

    fn wake(&mut self, since: Time, now: Time, limits: &Limits) -> Action {
        let until = now + limits.wake;
        self.phase = Phase::Waking { since, until };
        Action::Wake
    }

    fn on_failed(&mut self, now: Time, limits: &Limits) -> Option<Action> {
        let Phase::Waking { since, .. } = self.phase else {
            return None;
        };
        let doubled = limits.pause.0.saturating_mul(1 << self.tries.min(20));
        let pause = Span(doubled).min(limits.pause_max);
        self.tries = self.tries.saturating_add(1);
        let until = now + pause;
        self.phase = Phase::Resting { since, until };
        (self.tries == limits.tries).then_some(Action::Abandon)
    }

    fn on_tick(&mut self, now: Time, limits: &Limits) -> Option<Action> {
        match self.phase {
            Phase::Falling { until } if now >= until => {
                // The node reports any later change of its state.
                self.rise(now);
                None
            }
            Phase::Asleep if self.wanted => Some(self.wake(now, now, limits)),
            Phase::Waking { until, .. } if now >= until => self.on_failed(now, limits),
            Phase::Resting { since, until } if now >= until => Some(self.wake(since, now, limits)),
            _ => None,
        }
    }

    /// Returns whether the node is not missing: it is suspended, or it is being resumed and the attempts have not been exhausted.
    #[must_use]
    pub fn sleeps(&self, limits: &Limits) -> bool {
        let awake = matches!(self.phase, Phase::Awake | Phase::Falling { .. });
        !awake && self.tries < limits.tries
    }

    /// Returns whether the node is being suspended, so that it gets no new work.
    #[must_use]
    pub fn falls(&self) -> bool {
        matches!(self.phase, Phase::Falling { .. })
    }

    /// Returns whether the node is being resumed.
    #[must_use]
    pub fn wakes(&self) -> bool {
        matches!(self.phase, Phase::Waking { .. } | Phase::Resting { .. })
    }

    /// Returns the time for which nothing has needed the node, if it is awake.
    #[must_use]
    pub fn unused(&self, now: Time) -> Option<Span> {
        (self.phase == Phase::Awake && !self.wanted).then(|| now.since(self.used))
    }

    /// Returns the learned times that the node takes to resume.
    #[must_use]
    pub fn learnt(&self) -> Wakes {
        self.wakes
    }
}

/// Power of a node, in thousandths of a watt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Power {
    /// Power at full load and during resume.
    pub busy_milli: u64,
    /// Power when idle.
    pub idle_milli: u64,
    /// Power when suspended.
    pub suspended_milli: u64,
}

/// Maximum energy of a run above idle, in millionths of a joule, whatever processor time is reported for it.
pub const RUN_MICROJOULES_MAX: u64 = 1 << 52;

impl Power {
    /// Returns the energy of this processor time above the idle energy of the node, in millionths of a joule: each core has its share of
    /// the difference. Returns `None` if the busy or the idle power is not configured.
    #[must_use]
    pub fn above_idle(&self, cpu: Span, cores: u32) -> Option<u64> {
        if self.busy_milli == 0 || self.idle_milli == 0 {
            return None;
        }
        let more = self.busy_milli.saturating_sub(self.idle_milli);
        let micro = u128::from(more) * u128::from(cpu.0) / u128::from(cores.max(1)) / 1_000_000;
        Some(
            u64::try_from(micro)
                .map_or(RUN_MICROJOULES_MAX, |micro| micro.min(RUN_MICROJOULES_MAX)),
        )
    }

    /// Returns the power while `running` of its cores run kernels. Returns `None` if the busy or the idle power is not configured.
    #[must_use]
    pub fn at(&self, running: u32, cores: u32) -> Option<u64> {
        if self.busy_milli == 0 || self.idle_milli == 0 {
            return None;
        }
        let more = self.busy_milli.saturating_sub(self.idle_milli);
        let busy = u64::from(running.min(cores));
        Some(self.idle_milli + more.saturating_mul(busy) / u64::from(cores.max(1)))
    }
}

/// Properties of a node that decide whether resuming it pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Work per second: in bytes, or in billionths of a second of core time.
    pub rate: u64,
    /// Power of the node; `None` if it is not configured.
    pub power: Option<Power>,
    /// Time that the node takes to resume; zero if it is awake.
    pub wake: Span,
}

impl Worker {
    /// Returns a node whose work is counted in core time.
    #[must_use]
    pub fn of_cores(cores: u32, power: Power, wake: Span) -> Self {
        let known = power.busy_milli > 0 && power.suspended_milli > 0;
        Self {
            rate: u64::from(cores) * 1_000_000_000,
            power: known.then_some(power),
            wake,
        }
    }
}

/// Effect of resuming some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Number of suspended nodes to resume, in the order of the list. 0 is static allocation, a larger number is elastic.
    pub woken: usize,
    /// Time until all work is done; `None` means never.
    pub time: Option<Span>,
    /// Energy that all nodes draw until then, in millijoules; `None` if the power of a node is unknown.
    pub energy_milli: Option<u128>,
}

const SECOND_NS: u128 = 1_000_000_000;

/// Returns how many suspended nodes to resume for `work`. The awake nodes continue to work while the others resume. If the power of
/// each node is known, the number is chosen that makes the total energy until the end of the work smallest. Otherwise the number is
/// chosen with which the resumed nodes then work for at least as long as they took to resume.
#[must_use]
pub fn allocate(work: u64, awake: &[Worker], asleep: &[Worker]) -> Allocation {
    let mut best = reckon(work, awake, asleep, 0);
    for woken in 1..=asleep.len() {
        let next = reckon(work, awake, asleep, woken);
        let better = match (best.time, next.time, best.energy_milli, next.energy_milli) {
            (_, None, ..) => false,
            (None, Some(_), ..) => true,
            (Some(_), Some(time), Some(least), Some(energy)) => {
                energy < least && last_to_wake(asleep, woken) < time
            }
            (Some(before), Some(time), ..) => {
                let wake = last_to_wake(asleep, woken);
                time < before && time.0 >= wake.0.saturating_mul(2)
            }
        };
        if better {
            best = next;
        }
    }
    best
}

fn last_to_wake(asleep: &[Worker], woken: usize) -> Span {
    let wake = asleep[..woken].iter().map(|worker| worker.wake);
    wake.max().unwrap_or_default()
}

/// Returns the effect of resuming `woken` of the suspended nodes.
#[must_use]
pub fn reckon(work: u64, awake: &[Worker], asleep: &[Worker], woken: usize) -> Allocation {
    let woken = woken.min(asleep.len());
    let (wakes, sleeps) = asleep.split_at(woken);
    let all = awake.iter().chain(wakes);
    // Each node begins when it is awake: the work ends at the first time at which all nodes together have done it.
    let mut starts: Vec<(Span, u64)> = all.map(|worker| (worker.wake, worker.rate)).collect();
    starts.sort_unstable();
    let (mut now, mut rate, mut left) = (Span::default(), 0_u128, u128::from(work) * SECOND_NS);
    let mut time = (left == 0).then_some(now);
    for (start, more) in starts {
        let could = rate * u128::from(start.0 - now.0);
        if time.is_none() && rate > 0 && could >= left {
            time = Some(after(now, left, rate));
        }
        left = left.saturating_sub(could);
        now = start;
        rate += u128::from(more);
    }
    if time.is_none() && rate > 0 {
        time = Some(after(now, left, rate));
    }
    let energy = |time: Span| {
        let busy = awake.iter().chain(wakes).map(|worker| (worker, true));
        let all = busy.chain(sleeps.iter().map(|worker| (worker, false)));
        let each = all.map(|(worker, busy)| {
            let power = worker.power?;
            let milli = if busy {
                power.busy_milli
            } else {
                power.suspended_milli
            };
            // A node that is resumed in vain draws power until it is awake.
            let until = if busy { time.max(worker.wake) } else { time };
            Some(u128::from(milli) * u128::from(until.0))
        });
        Some(each.sum::<Option<u128>>()? / SECOND_NS)
    };
    Allocation {
        woken,
        time,
        energy_milli: time.and_then(energy),
    }
}

fn after(now: Span, left: u128, rate: u128) -> Span {
    let more = u64::try_from(left.div_ceil(rate)).unwrap_or(u64::MAX);
    Span(now.0.saturating_add(more))
}

#[cfg(test)]
mod tests;
