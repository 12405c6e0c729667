//! Nodes that are suspended while no work needs them. This module decides when a node is suspended, when it is resumed, and when resuming
//! more nodes pays (LABIOS §3.3, worker manager, and §4.2.3). It does no I/O: the server carries out the actions, by a monotonic clock.

use tidemill_model::time::{Span, Time};

/// Time that a node is assumed to take to resume before the node has been resumed once. Later the measured time is used. The power that a
/// suspended node draws is configured by its administrator.
pub const RESUME_UNKNOWN: Span = Span::from_secs(10);

/// Time limits for suspending and resuming a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElasticLimits {
    /// Maximum time from the request to suspend until the node is suspended or refuses.
    pub suspend: Span,
    /// Maximum time from the request to resume until the node is online.
    pub resume: Span,
    /// Pause between a failed attempt to resume and the next attempt; the pause doubles with each attempt.
    pub pause: Span,
    /// Maximum pause between two attempts to resume.
    pub pause_max: Span,
    /// Number of failed attempts to resume after which the node counts as offline, like a node that was killed.
    pub tries: u32,
}

impl Default for ElasticLimits {
    fn default() -> Self {
        Self {
            suspend: Span::from_secs(20),
            resume: Span::from_secs(300),
            pause: Span::from_secs(1),
            pause_max: Span::from_secs(60),
            tries: 3,
        }
    }
}

/// Phase of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElasticPhase {
    /// The node is active, or it is offline without having reported that it is suspended.
    Active,
    /// The node was asked to suspend and gets no new work.
    Suspending { until: Time },
    /// The node is suspended.
    Suspended,
    /// The node is being resumed; the first attempt began at `since`.
    Resuming { since: Time, until: Time },
    /// The node did not resume; the next attempt begins at `until`.
    Pausing { since: Time, until: Time },
}

/// Event about a node that may be suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElasticEvent {
    /// The node is online.
    Up,
    /// The node reports that it is suspended.
    Suspended,
    /// The node was asked to suspend and refuses, because it has work.
    Stays,
    /// The node's connection has ended without a report that it is suspended.
    Left,
    /// Nothing needs the node, and it may be suspended.
    Idle,
    /// Queued or running work needs the node.
    Wanted,
    /// The attempt to resume the node failed.
    Failed,
    /// Time has passed; deadlines are checked.
    Tick,
}

/// Action that the server carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElasticAction {
    /// Ask the node to suspend itself.
    Suspend,
    /// Record that the node is suspended, and power off its host if that was requested.
    Keep,
    /// Resume the node.
    Resume,
    /// Delete the record that the node was suspended: it is active.
    Forget,
    /// Treat the node as offline from now on, because all attempts to resume it failed.
    Abandon,
}

/// Statistics of the time that a node takes to resume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumes {
    /// Number of times that the node was resumed.
    pub count: u64,
    /// Sum of the node's resume times, in nanoseconds.
    pub total_ns: u64,
}

impl Resumes {
    /// Returns the mean resume time; `None` if the node was never resumed.
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
pub struct Suspension {
    phase: ElasticPhase,
    /// Whether some work waits for the node. It is also set while the node is being suspended, to resume it afterwards.
    wanted: bool,
    /// Number of failed attempts to resume the node.
    tries: u32,
    /// Time at which some work last needed the node.
    used: Time,
    resumes: Resumes,
}

impl Suspension {
    /// Returns the state of a node that is active and was in use until `now`.
    #[must_use]
    pub fn active(resumes: Resumes, now: Time) -> Self {
        Self {
            phase: ElasticPhase::Active,
            wanted: false,
            tries: 0,
            used: now,
            resumes,
        }
    }

    /// Returns the state of a node that was suspended according to its last report.
    #[must_use]
    pub fn suspended(resumes: Resumes, now: Time) -> Self {
        Self {
            phase: ElasticPhase::Suspended,
            ..Self::active(resumes, now)
        }
    }

    /// Handles an event about the node and returns the action that the server must carry out.
    pub fn on(
        &mut self,
        event: ElasticEvent,
        now: Time,
        limits: &ElasticLimits,
    ) -> Option<ElasticAction> {
        match event {
            ElasticEvent::Up => self.on_up(now),
            ElasticEvent::Suspended => self.on_suspended(),
            ElasticEvent::Stays => {
                self.rise(now);
                None
            }
            ElasticEvent::Left => {
                if matches!(self.phase, ElasticPhase::Suspending { .. }) {
                    // The node may still report that it is suspended; until then it counts as offline.
                    self.phase = ElasticPhase::Active;
                }
                None
            }
            ElasticEvent::Idle if self.phase == ElasticPhase::Active && !self.wanted => {
                let until = now + limits.suspend;
                self.phase = ElasticPhase::Suspending { until };
                Some(ElasticAction::Suspend)
            }
            ElasticEvent::Idle => None,
            ElasticEvent::Wanted => self.on_wanted(now, limits),
            ElasticEvent::Failed => self.on_failed(now, limits),
            ElasticEvent::Tick => self.on_tick(now, limits),
        }
    }

    fn on_up(&mut self, now: Time) -> Option<ElasticAction> {
        let was_suspended = !matches!(
            self.phase,
            ElasticPhase::Active | ElasticPhase::Suspending { .. }
        );
        if let ElasticPhase::Resuming { since, .. } | ElasticPhase::Pausing { since, .. } =
            self.phase
        {
            self.resumes.add(now.since(since));
        }
        self.rise(now);
        was_suspended.then_some(ElasticAction::Forget)
    }

    fn rise(&mut self, now: Time) {
        self.phase = ElasticPhase::Active;
        self.wanted = false;
        self.tries = 0;
        self.used = now;
    }

    fn on_suspended(&mut self) -> Option<ElasticAction> {
        match self.phase {
            ElasticPhase::Active | ElasticPhase::Suspending { .. } => {
                self.phase = ElasticPhase::Suspended;
                self.tries = 0;
                Some(ElasticAction::Keep)
            }
            // The node can be resumed, no matter how many attempts failed.
            ElasticPhase::Suspended => None,
            ElasticPhase::Resuming { .. } | ElasticPhase::Pausing { .. } => {
                self.tries = 0;
                Some(ElasticAction::Resume)
            }
        }
    }

    fn on_wanted(&mut self, now: Time, limits: &ElasticLimits) -> Option<ElasticAction> {
        self.used = now;
        match self.phase {
            ElasticPhase::Suspended => {
                self.wanted = true;
                Some(self.resume(now, now, limits))
            }
            ElasticPhase::Active => None,
            _ => {
                self.wanted = true;
                None
            }
        }
    }

    fn resume(&mut self, since: Time, now: Time, limits: &ElasticLimits) -> ElasticAction {
        let until = now + limits.resume;
        self.phase = ElasticPhase::Resuming { since, until };
        ElasticAction::Resume
    }

    fn on_failed(&mut self, now: Time, limits: &ElasticLimits) -> Option<ElasticAction> {
        let ElasticPhase::Resuming { since, .. } = self.phase else {
            return None;
        };
        let doubled = limits.pause.0.saturating_mul(1 << self.tries.min(20));
        let pause = Span(doubled).min(limits.pause_max);
        self.tries = self.tries.saturating_add(1);
        let until = now + pause;
        self.phase = ElasticPhase::Pausing { since, until };
        (self.tries == limits.tries).then_some(ElasticAction::Abandon)
    }

    fn on_tick(&mut self, now: Time, limits: &ElasticLimits) -> Option<ElasticAction> {
        match self.phase {
            ElasticPhase::Suspending { until } if now >= until => {
                // The node reports any later change of its state.
                self.rise(now);
                None
            }
            ElasticPhase::Suspended if self.wanted => Some(self.resume(now, now, limits)),
            ElasticPhase::Resuming { until, .. } if now >= until => self.on_failed(now, limits),
            ElasticPhase::Pausing { since, until } if now >= until => {
                Some(self.resume(since, now, limits))
            }
            _ => None,
        }
    }

    /// Returns whether the node is not missing: it is suspended, or it is being resumed and attempts are left.
    #[must_use]
    pub fn is_suspended(&self, limits: &ElasticLimits) -> bool {
        let active = matches!(
            self.phase,
            ElasticPhase::Active | ElasticPhase::Suspending { .. }
        );
        !active && self.tries < limits.tries
    }

    /// Returns whether the node is being suspended, so that it gets no new work.
    #[must_use]
    pub fn is_suspending(&self) -> bool {
        matches!(self.phase, ElasticPhase::Suspending { .. })
    }

    /// Returns whether the node is being resumed.
    #[must_use]
    pub fn is_resuming(&self) -> bool {
        matches!(
            self.phase,
            ElasticPhase::Resuming { .. } | ElasticPhase::Pausing { .. }
        )
    }

    /// Returns the time for which no work has needed the node, if the node is active.
    #[must_use]
    pub fn unused(&self, now: Time) -> Option<Span> {
        (self.phase == ElasticPhase::Active && !self.wanted).then(|| now.since(self.used))
    }

    /// Returns the measured resume times of the node.
    #[must_use]
    pub fn learnt(&self) -> Resumes {
        self.resumes
    }
}

/// Power of a node, in thousandths of a watt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePower {
    /// Power at full load and while the node resumes.
    pub busy_milli: u64,
    /// Power while the node is idle.
    pub idle_milli: u64,
    /// Power while the node is suspended.
    pub suspended_milli: u64,
}

/// Maximum energy of a kernel run above idle, in millionths of a joule, whatever processor time is reported for the run.
pub const RUN_MICROJOULES_MAX: u64 = 1 << 52;

impl NodePower {
    /// Returns the energy of `cpu` processor time above the idle energy of the node, in millionths of a joule: each core accounts for an
    /// equal share of the difference. Returns `None` if the busy or the idle power is not configured.
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

    /// Returns the power while `running` of the node's cores run kernels; `None` if the busy or the idle power is not configured.
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

/// Properties of a node that decide whether resuming the node pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeCandidate {
    /// Work per second of the node: in bytes, or in billionths of a second of core time.
    pub rate: u64,
    /// Power of the node; `None` if the power is not configured.
    pub power: Option<NodePower>,
    /// Time that the node takes to resume; zero if the node is active.
    pub resume: Span,
}

impl ResumeCandidate {
    /// Returns the candidate for a node whose work is counted in core time.
    #[must_use]
    pub fn of_cores(cores: u32, power: NodePower, resume: Span) -> Self {
        let known = power.busy_milli > 0 && power.suspended_milli > 0;
        Self {
            rate: u64::from(cores) * 1_000_000_000,
            power: known.then_some(power),
            resume,
        }
    }
}

/// Effect of resuming some suspended nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeEffect {
    /// Number of suspended nodes to resume, in the order of the list. 0 is static allocation, a larger number is elastic.
    pub resumed: usize,
    /// Time until all work is done; `None` means never.
    pub time: Option<Span>,
    /// Energy that all nodes draw until all work is done, in millijoules; `None` if the power of a node is unknown.
    pub energy_milli: Option<u128>,
}

const SECOND_NS: u128 = 1_000_000_000;

/// Returns how many suspended nodes to resume for `work`. The active nodes continue to work while suspended nodes resume. If the power of
/// each node is known, the number with the smallest total energy until the end of the work is chosen. Otherwise the number is chosen with
/// which the resumed nodes work for at least as long as they took to resume.
#[must_use]
pub fn allocate(
    work: u64,
    active: &[ResumeCandidate],
    suspended: &[ResumeCandidate],
) -> ResumeEffect {
    let mut best = estimate(work, active, suspended, 0);
    for resumed in 1..=suspended.len() {
        let next = estimate(work, active, suspended, resumed);
        let better = match (best.time, next.time, best.energy_milli, next.energy_milli) {
            (_, None, ..) => false,
            (None, Some(_), ..) => true,
            (Some(_), Some(time), Some(least), Some(energy)) => {
                energy < least && last_to_resume(suspended, resumed) < time
            }
            (Some(before), Some(time), ..) => {
                let resume = last_to_resume(suspended, resumed);
                time < before && time.0 >= resume.0.saturating_mul(2)
            }
        };
        if better {
            best = next;
        }
    }
    best
}

fn last_to_resume(suspended: &[ResumeCandidate], resumed: usize) -> Span {
    let resume = suspended[..resumed].iter().map(|worker| worker.resume);
    resume.max().unwrap_or_default()
}

/// Returns the effect of resuming the first `resumed` suspended nodes.
#[must_use]
pub fn estimate(
    work: u64,
    active: &[ResumeCandidate],
    suspended: &[ResumeCandidate],
    resumed: usize,
) -> ResumeEffect {
    let resumed = resumed.min(suspended.len());
    let (resuming, still) = suspended.split_at(resumed);
    let all = active.iter().chain(resuming);
    // Each node begins when it is active: the work ends at the first time at which all nodes together have done it.
    let mut starts: Vec<(Span, u64)> = all.map(|worker| (worker.resume, worker.rate)).collect();
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
        let busy = active.iter().chain(resuming).map(|worker| (worker, true));
        let all = busy.chain(still.iter().map(|worker| (worker, false)));
        let each = all.map(|(worker, busy)| {
            let power = worker.power?;
            let milli = if busy {
                power.busy_milli
            } else {
                power.suspended_milli
            };
            // A node that is resumed in vain draws power until it is active.
            let until = if busy { time.max(worker.resume) } else { time };
            Some(u128::from(milli) * u128::from(until.0))
        });
        Some(each.sum::<Option<u128>>()? / SECOND_NS)
    };
    ResumeEffect {
        resumed,
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
