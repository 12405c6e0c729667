//! Elements that sleep while nobody needs them: when one is put to sleep, when it is woken, and when waking more of them
//! pays (LABIOS §3.3, worker manager, and §4.2.3). Pure: the server carries out what is decided here, by its own clock that
//! nobody sets.

use crate::time::{Span, Time};

/// What a sleeping element draws is told by whoever runs it; how long it takes to wake is learnt. Before it ever woke this is
/// reckoned with.
pub const WAKE_UNKNOWN: Span = Span::from_secs(10);

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From being told to sleep until it does, or says that it does not.
    pub fall: Span,
    /// From being woken until it is up.
    pub wake: Span,
    /// Pause before it is woken again after that was in vain; it doubles with each try.
    pub pause: Span,
    /// Longest pause.
    pub pause_max: Span,
    /// After so many tries in vain it counts as away, as one that was killed.
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

/// What an element is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Awake, or away without having said that it sleeps.
    Awake,
    /// It was told to sleep, and nothing new is given to it.
    Falling { until: Time },
    /// It sleeps.
    Asleep,
    /// It is being woken, for the first time since `since`.
    Waking { since: Time, until: Time },
    /// It did not wake; it is woken again then.
    Resting { since: Time, until: Time },
}

/// Something that happened to an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is up.
    Up,
    /// It says that it sleeps.
    Fell,
    /// It was told to sleep and does not: it has something to do.
    Stays,
    /// Its connection has ended, without a word on sleep.
    Left,
    /// Nothing needs it, and it may sleep.
    Tired,
    /// Something needs it.
    Wanted,
    /// It could not be woken.
    Failed,
    /// Time goes on.
    Tick,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell it to sleep.
    Suspend,
    /// It sleeps now: keep that, and end its host if that was asked for.
    Keep,
    /// Wake it.
    Wake,
    /// It is awake: forget that it slept.
    Forget,
    /// It has not woken, and counts as away from now on.
    GiveUp,
}

/// How long an element takes to wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// How often it was woken.
    pub count: u64,
    /// How long that took, together, in nanoseconds.
    pub total_ns: u64,
}

impl Wakes {
    /// The mean; `None` if it was never woken.
    #[must_use]
    pub fn mean(&self) -> Option<Span> {
        self.total_ns.checked_div(self.count).map(Span)
    }

    fn add(&mut self, span: Span) {
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(span.0);
    }
}

/// One element that may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleeper {
    phase: Phase,
    /// Something waits for it. Kept while it falls asleep, so that it is woken then.
    wanted: bool,
    /// Tries to wake it in vain.
    tries: u32,
    /// When something last needed it.
    used: Time,
    wakes: Wakes,
}

impl Sleeper {
    /// One that is awake, and was in use until now.
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

    /// One that slept when it was last heard of.
    #[must_use]
    pub fn asleep(wakes: Wakes, now: Time) -> Self {
        Self {
            phase: Phase::Asleep,
            ..Self::awake(wakes, now)
        }
    }

    /// Takes what happened; gives what is to be done.
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
                    // It may still say that it sleeps; until then it is away like others.
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
            // It is there to be woken, however often that was in vain.
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
        (self.tries == limits.tries).then_some(Action::GiveUp)
    }

    fn on_tick(&mut self, now: Time, limits: &Limits) -> Option<Action> {
        match self.phase {
            Phase::Falling { until } if now >= until => {
                // Whatever it does then, it says so.
                self.rise(now);
                None
            }
            Phase::Asleep if self.wanted => Some(self.wake(now, now, limits)),
            Phase::Waking { until, .. } if now >= until => self.on_failed(now, limits),
            Phase::Resting { since, until } if now >= until => Some(self.wake(since, now, limits)),
            _ => None,
        }
    }

    /// Whether it is not to be missed: it sleeps, or is being woken and has not been given up.
    #[must_use]
    pub fn sleeps(&self, limits: &Limits) -> bool {
        let awake = matches!(self.phase, Phase::Awake | Phase::Falling { .. });
        !awake && self.tries < limits.tries
    }

    /// Whether it is on its way to sleep, so that nothing new is given to it.
    #[must_use]
    pub fn falls(&self) -> bool {
        matches!(self.phase, Phase::Falling { .. })
    }

    /// Whether it is being woken.
    #[must_use]
    pub fn wakes(&self) -> bool {
        matches!(self.phase, Phase::Waking { .. } | Phase::Resting { .. })
    }

    /// How long nothing has needed it, if it is awake.
    #[must_use]
    pub fn unused(&self, now: Time) -> Option<Span> {
        (self.phase == Phase::Awake && !self.wanted).then(|| now.since(self.used))
    }

    /// What was learnt of how long it takes to wake.
    #[must_use]
    pub fn learnt(&self) -> Wakes {
        self.wakes
    }
}

/// What an element draws, in thousandths of a watt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Power {
    /// At full load, and while it wakes.
    pub busy_milli: u64,
    /// With nothing to do.
    pub idle_milli: u64,
    /// Asleep.
    pub suspended_milli: u64,
}

/// A run draws no more than that above idle, in millionths of a joule, whatever processor time is said to have gone into it.
pub const RUN_MICROJOULES_MAX: u64 = 1 << 52;

impl Power {
    /// What so much processor time draws above what the element draws with nothing to do, in millionths of a joule: each core
    /// has its share of the difference. `None` where nobody said what it draws busy and idle.
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

    /// While so many of its cores run kernels; `None` where nobody said what it draws busy and idle.
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

/// An element, as far as it matters whether it is worth waking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// What it does of the work in a second: bytes, or seconds of a core in billionths.
    pub rate: u64,
    /// `None` where nobody said.
    pub power: Option<Power>,
    /// How long it takes to wake; nothing if it is awake.
    pub wake: Span,
}

impl Worker {
    /// One whose work is time of cores.
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

/// What comes of waking some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// How many of those that sleep are woken, the first first. 0 is static allocation, more is elastic.
    pub woken: usize,
    /// When all is done; `None`: never.
    pub time: Option<Span>,
    /// What all of them draw until then, in millijoules; `None` where what one draws is not known.
    pub energy_milli: Option<u128>,
}

const SECOND_NS: u128 = 1_000_000_000;

/// How many of those that sleep are to be woken for so much work. Those that are awake go on meanwhile. Where it is known
/// what each draws, as many as make all of them together draw least until the work is done; elsewhere as many as then work for at
/// least as long as they took to wake.
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

/// What comes of waking so many of those that sleep.
#[must_use]
pub fn reckon(work: u64, awake: &[Worker], asleep: &[Worker], woken: usize) -> Allocation {
    let woken = woken.min(asleep.len());
    let (wakes, sleeps) = asleep.split_at(woken);
    let all = awake.iter().chain(wakes);
    // Each begins when it is awake: the work is done at the first time until which they have done it together.
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
            // Who is woken in vain draws until it is awake.
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
