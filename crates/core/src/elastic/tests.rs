use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    fall: Span(20),
    wake: Span(30),
    pause: Span(5),
    pause_max: Span(40),
    tries: 3,
};

/// Process that is asked to suspend and resume, and behaves arbitrarily.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Up,
    Asleep,
    /// The process was killed.
    Gone,
}

#[derive(Clone, Debug)]
enum Step {
    Happens(Event),
    Passes(u64),
    Dies,
    /// The process connects, whatever happened before.
    Comes,
    /// The process obeys its last request, or fails.
    Obeys(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let events = prop_oneof![
        Just(Event::Tired),
        Just(Event::Wanted),
        Just(Event::Stays),
        Just(Event::Left),
        Just(Event::Failed),
        Just(Event::Fell),
        Just(Event::Tick),
        Just(Event::Up),
    ];
    prop_oneof![
        8 => events.prop_map(Step::Happens),
        6 => (0_u64..60).prop_map(Step::Passes),
        1 => Just(Step::Dies),
        1 => Just(Step::Comes),
        6 => any::<bool>().prop_map(Step::Obeys),
    ]
}

/// A sleeper and its process.
struct Pair {
    sleeper: Sleeper,
    process: Process,
    told: Option<Action>,
    now: Time,
}

impl Pair {
    fn new() -> Self {
        Self {
            sleeper: Sleeper::awake(Wakes::default(), Time(0)),
            process: Process::Up,
            told: None,
            now: Time(0),
        }
    }

    fn on(&mut self, event: Event) {
        let action = self.sleeper.on(event, self.now, &LIMITS);
        if matches!(action, Some(Action::Suspend | Action::Wake)) {
            self.told = action;
        }
    }

    fn obey(&mut self, well: bool) {
        match (self.told.take(), self.process) {
            (Some(Action::Suspend), Process::Up) if well => {
                self.process = Process::Asleep;
                self.on(Event::Fell);
            }
            (Some(Action::Suspend), Process::Up) => self.on(Event::Stays),
            (Some(Action::Wake), Process::Asleep) if well => {
                self.process = Process::Up;
                self.on(Event::Up);
            }
            (Some(Action::Wake), _) => self.on(Event::Failed),
            _ => {}
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Happens(event) => self.on(event),
            Step::Passes(span) => {
                self.now = self.now + Span(span);
                self.on(Event::Tick);
            }
            Step::Dies => self.process = Process::Gone,
            Step::Comes => {
                self.process = Process::Up;
                self.on(Event::Up);
            }
            Step::Obeys(well) => self.obey(well),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// After any steps, a node that is wanted and can be woken is up in bounded time.
    #[test]
    fn wanted_node_wakes_in_bounded_time(steps in proptest::collection::vec(step(), 0..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.take(step);
        }
        // The process reports its true state: by a connection, or as suspended.
        match pair.process {
            Process::Up => pair.on(Event::Up),
            Process::Asleep | Process::Gone => {
                pair.process = Process::Asleep;
                pair.on(Event::Fell);
            }
        }
        for _ in 0..20 {
            pair.on(Event::Wanted);
            pair.obey(true);
            pair.take(&Step::Passes(10));
        }
        prop_assert!(!pair.sleeper.sleeps(&LIMITS) && !pair.sleeper.wakes(), "{:?}", pair.sleeper);
        prop_assert_eq!(pair.process, Process::Up);
    }

    /// A node that is wanted or not awake is never asked to suspend. A node that never wakes is declared failed
    /// once.
    #[test]
    fn wanted_or_waking_node_is_never_suspended(steps in proptest::collection::vec(step(), 0..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            let awake = pair.sleeper.unused(pair.now).is_some();
            pair.told = None;
            pair.take(step);
            prop_assert!(pair.told != Some(Action::Suspend) || awake);
            prop_assert!(!pair.sleeper.falls() || !pair.sleeper.sleeps(&LIMITS));
        }
    }

    #[test]
    fn node_that_never_wakes_is_declared_failed_once(wait in 1_u64..50) {
        let mut sleeper = Sleeper::asleep(Wakes::default(), Time(0));
        let (mut now, mut abandoned, mut tries) = (Time(0), 0, 0);
        sleeper.on(Event::Wanted, now, &LIMITS);
        for _ in 0..1000 {
            now = now + Span(wait);
            match sleeper.on(Event::Tick, now, &LIMITS) {
                Some(Action::Abandon) => abandoned += 1,
                Some(Action::Wake) => tries += 1,
                _ => {}
            }
        }
        prop_assert_eq!(abandoned, 1);
        prop_assert!(tries > 5 && !sleeper.sleeps(&LIMITS));
        // The node connects nevertheless.
        prop_assert_eq!(sleeper.on(Event::Up, now, &LIMITS), Some(Action::Forget));
        prop_assert_eq!(sleeper.learnt().mean(), Some(now.since(Time(0))));
    }

    /// More nodes never finish work later, and the chosen allocation draws no more energy than static allocation.
    #[test]
    fn allocation_never_delays_work_or_draws_more_than_static(
        work in 0_u64..1 << 40,
        awake in proptest::collection::vec(worker(0..1), 0..6),
        asleep in proptest::collection::vec(worker(1..100), 0..6),
    ) {
        let chosen = allocate(work, &awake, &asleep);
        let still = reckon(work, &awake, &asleep, 0);
        let mut before = still;
        for woken in 0..=asleep.len() {
            let now = reckon(work, &awake, &asleep, woken);
            prop_assert!(before.time.is_none() || now.time <= before.time);
            before = now;
        }
        prop_assert!(chosen.time.is_some() || still.time.is_none());
        if let (Some(least), Some(energy)) = (still.energy_milli, chosen.energy_milli) {
            prop_assert!(energy <= least);
        }
        if chosen.woken > 0 && !awake.is_empty() {
            prop_assert!(chosen.time <= still.time);
        }
        prop_assert!(awake.iter().all(|one| one.rate == 0) || work > 0 || chosen.woken == 0);
    }
}

fn worker(wake: std::ops::Range<u64>) -> impl Strategy<Value = Worker> {
    let power = (0_u64..300_000, 0_u64..20_000).prop_map(|(more, suspended)| Power {
        busy_milli: suspended + more,
        idle_milli: suspended + more / 2,
        suspended_milli: suspended,
    });
    let power = proptest::option::weighted(0.9, power);
    (1_u64..1 << 32, power, wake).prop_map(|(rate, power, wake)| Worker {
        rate,
        power,
        wake: Span::from_secs(wake),
    })
}

fn pool(active: usize) -> (Vec<Worker>, Vec<Worker>) {
    // The paper's nodes: 165 W active, 16 W suspended, 3 s to resume; 32 workers.
    let one = |wake| Worker {
        rate: 100 << 20,
        power: Some(Power {
            busy_milli: 165_000,
            idle_milli: 165_000,
            suspended_milli: 16_000,
        }),
        wake: Span::from_secs(wake),
    };
    (vec![one(0); active], vec![one(3); 32 - active])
}

#[test]
fn allocation_wakes_others_only_if_few_are_awake() {
    // 4096 labels of 1 MB.
    let work = 4096_u64 << 20;
    let (awake, asleep) = pool(2);
    let few = allocate(work, &awake, &asleep);
    assert!(few.woken > 0 && few.time < reckon(work, &awake, &asleep, 0).time);
    let (awake, asleep) = pool(24);
    assert_eq!(allocate(work, &awake, &asleep).woken, 0);
}

#[test]
fn allocation_without_power_data_wakes_if_work_outlasts_waking() {
    let one = |wake| Worker {
        rate: 1000,
        power: None,
        wake: Span::from_secs(wake),
    };
    let (awake, asleep) = ([one(0)], [one(10)]);
    assert_eq!(allocate(10_000, &awake, &asleep).woken, 0);
    let more = allocate(40_000, &awake, &asleep);
    assert_eq!((more.woken, more.time), (1, Some(Span::from_secs(25))));
    assert_eq!(more.energy_milli, None);
}
