use super::*;
use proptest::prelude::*;

const LIMITS: ElasticLimits = ElasticLimits {
    suspend: Span(20),
    resume: Span(30),
    pause: Span(5),
    pause_max: Span(40),
    tries: 3,
};

/// Simulated process of a node that is asked to suspend and resume, and behaves arbitrarily.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Up,
    Suspended,
    /// The process was killed.
    Gone,
}

#[derive(Clone, Debug)]
enum ElasticStep {
    Happens(ElasticEvent),
    Passes(u64),
    Dies,
    /// The process connects, whatever its previous state.
    Comes,
    /// The process obeys its last request, or fails to obey.
    Obeys(bool),
}

fn step() -> impl Strategy<Value = ElasticStep> {
    let events = prop_oneof![
        Just(ElasticEvent::Idle),
        Just(ElasticEvent::Wanted),
        Just(ElasticEvent::Stays),
        Just(ElasticEvent::Left),
        Just(ElasticEvent::Failed),
        Just(ElasticEvent::Suspended),
        Just(ElasticEvent::Tick),
        Just(ElasticEvent::Up),
    ];
    prop_oneof![
        8 => events.prop_map(ElasticStep::Happens),
        6 => (0_u64..60).prop_map(ElasticStep::Passes),
        1 => Just(ElasticStep::Dies),
        1 => Just(ElasticStep::Comes),
        6 => any::<bool>().prop_map(ElasticStep::Obeys),
    ]
}

/// State of a node that may be suspended, and its simulated process.
struct Pair {
    suspension: Suspension,
    process: Process,
    ordered: Option<ElasticAction>,
    now: Time,
}

impl Pair {
    fn new() -> Self {
        Self {
            suspension: Suspension::active(Resumes::default(), Time(0)),
            process: Process::Up,
            ordered: None,
            now: Time(0),
        }
    }

    fn on(&mut self, event: ElasticEvent) {
        let action = self.suspension.on(event, self.now, &LIMITS);
        if matches!(action, Some(ElasticAction::Suspend | ElasticAction::Resume)) {
            self.ordered = action;
        }
    }

    fn obey(&mut self, well: bool) {
        match (self.ordered.take(), self.process) {
            (Some(ElasticAction::Suspend), Process::Up) if well => {
                self.process = Process::Suspended;
                self.on(ElasticEvent::Suspended);
            }
            (Some(ElasticAction::Suspend), Process::Up) => self.on(ElasticEvent::Stays),
            (Some(ElasticAction::Resume), Process::Suspended) if well => {
                self.process = Process::Up;
                self.on(ElasticEvent::Up);
            }
            (Some(ElasticAction::Resume), _) => self.on(ElasticEvent::Failed),
            _ => {}
        }
    }

    fn take(&mut self, step: &ElasticStep) {
        match *step {
            ElasticStep::Happens(event) => self.on(event),
            ElasticStep::Passes(span) => {
                self.now = self.now + Span(span);
                self.on(ElasticEvent::Tick);
            }
            ElasticStep::Dies => self.process = Process::Gone,
            ElasticStep::Comes => {
                self.process = Process::Up;
                self.on(ElasticEvent::Up);
            }
            ElasticStep::Obeys(well) => self.obey(well),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// After any steps, a node that is wanted and can be resumed is online in bounded time.
    #[test]
    fn wanted_node_resumes_in_bounded_time(steps in proptest::collection::vec(step(), 0..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.take(step);
        }
        // The process reports its true state: by a connection, or as suspended.
        match pair.process {
            Process::Up => pair.on(ElasticEvent::Up),
            Process::Suspended | Process::Gone => {
                pair.process = Process::Suspended;
                pair.on(ElasticEvent::Suspended);
            }
        }
        for _ in 0..20 {
            pair.on(ElasticEvent::Wanted);
            pair.obey(true);
            pair.take(&ElasticStep::Passes(10));
        }
        prop_assert!(!pair.suspension.is_suspended(&LIMITS) && !pair.suspension.is_resuming(), "{:?}", pair.suspension);
        prop_assert_eq!(pair.process, Process::Up);
    }

    /// A node that is wanted or not active is never asked to suspend. A node that never resumes is declared failed exactly once.
    #[test]
    fn wanted_or_resuming_node_is_never_suspended(steps in proptest::collection::vec(step(), 0..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            let active = pair.suspension.unused(pair.now).is_some();
            pair.ordered = None;
            pair.take(step);
            prop_assert!(pair.ordered != Some(ElasticAction::Suspend) || active);
            prop_assert!(!pair.suspension.is_suspending() || !pair.suspension.is_suspended(&LIMITS));
        }
    }

    #[test]
    fn node_that_never_resumes_is_declared_failed_once(wait in 1_u64..50) {
        let mut suspension = Suspension::suspended(Resumes::default(), Time(0));
        let (mut now, mut abandoned, mut tries) = (Time(0), 0, 0);
        suspension.on(ElasticEvent::Wanted, now, &LIMITS);
        for _ in 0..1000 {
            now = now + Span(wait);
            match suspension.on(ElasticEvent::Tick, now, &LIMITS) {
                Some(ElasticAction::Abandon) => abandoned += 1,
                Some(ElasticAction::Resume) => tries += 1,
                _ => {}
            }
        }
        prop_assert_eq!(abandoned, 1);
        prop_assert!(tries > 5 && !suspension.is_suspended(&LIMITS));
        // The node connects nevertheless.
        prop_assert_eq!(suspension.on(ElasticEvent::Up, now, &LIMITS), Some(ElasticAction::Forget));
        prop_assert_eq!(suspension.learnt().mean(), Some(now.since(Time(0))));
    }

    /// Resuming more nodes never delays the end of the work, and the chosen allocation draws no more energy than static allocation.
    #[test]
    fn allocation_never_delays_work_or_draws_more_than_static(
        work in 0_u64..1 << 40,
        active in proptest::collection::vec(worker(0..1), 0..6),
        suspended in proptest::collection::vec(worker(1..100), 0..6),
    ) {
        let chosen = allocate(work, &active, &suspended);
        let still = estimate(work, &active, &suspended, 0);
        let mut before = still;
        for resumed in 0..=suspended.len() {
            let now = estimate(work, &active, &suspended, resumed);
            prop_assert!(before.time.is_none() || now.time <= before.time);
            before = now;
        }
        prop_assert!(chosen.time.is_some() || still.time.is_none());
        if let (Some(least), Some(energy)) = (still.energy_milli, chosen.energy_milli) {
            prop_assert!(energy <= least);
        }
        if chosen.resumed > 0 && !active.is_empty() {
            prop_assert!(chosen.time <= still.time);
        }
        prop_assert!(active.iter().all(|one| one.rate == 0) || work > 0 || chosen.resumed == 0);
    }
}

fn worker(resume: std::ops::Range<u64>) -> impl Strategy<Value = ResumeCandidate> {
    let power = (0_u64..300_000, 0_u64..20_000).prop_map(|(more, suspended)| NodePower {
        busy_milli: suspended + more,
        idle_milli: suspended + more / 2,
        suspended_milli: suspended,
    });
    let power = proptest::option::weighted(0.9, power);
    (1_u64..1 << 32, power, resume).prop_map(|(rate, power, resume)| ResumeCandidate {
        rate,
        power,
        resume: Span::from_secs(resume),
    })
}

fn pool(active: usize) -> (Vec<ResumeCandidate>, Vec<ResumeCandidate>) {
    // The paper's nodes: 165 W active, 16 W suspended, 3 s to resume; 32 workers.
    let one = |resume| ResumeCandidate {
        rate: 100 << 20,
        power: Some(NodePower {
            busy_milli: 165_000,
            idle_milli: 165_000,
            suspended_milli: 16_000,
        }),
        resume: Span::from_secs(resume),
    };
    (vec![one(0); active], vec![one(3); 32 - active])
}

#[test]
fn allocation_resumes_others_only_if_few_are_active() {
    // 4096 labels of 1 MB.
    let work = 4096_u64 << 20;
    let (active, suspended) = pool(2);
    let few = allocate(work, &active, &suspended);
    assert!(few.resumed > 0 && few.time < estimate(work, &active, &suspended, 0).time);
    let (active, suspended) = pool(24);
    assert_eq!(allocate(work, &active, &suspended).resumed, 0);
}

#[test]
fn allocation_without_power_data_resumes_if_work_outlasts_resuming() {
    let one = |resume| ResumeCandidate {
        rate: 1000,
        power: None,
        resume: Span::from_secs(resume),
    };
    let (active, suspended) = ([one(0)], [one(10)]);
    assert_eq!(allocate(10_000, &active, &suspended).resumed, 0);
    let more = allocate(40_000, &active, &suspended);
    assert_eq!((more.resumed, more.time), (1, Some(Span::from_secs(25))));
    assert_eq!(more.energy_milli, None);
}
