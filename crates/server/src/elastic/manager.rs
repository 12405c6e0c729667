//! The worker manager: finds elements that were idle for a while, suspends them, and wakes elements that are needed. It sends messages to
//! elements and runs commands. Next: `server/src/array.rs`, which sends the messages.

use super::{Elastic, Sleepers, energy, needs, span, store};
use crate::array::Array;
use crate::array::keeper::Activity;
use crate::clock;
use crate::names::SqliteNames;
use crate::names::commit::Database;
use crate::names::shared::Shared;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_core::dispatch::Demand;
use tidemill_core::elastic::{Action, Event, WAKE_UNKNOWN, Worker, allocate};
use tidemill_core::id::ElementId;
use tidemill_core::time::Span;
use tidemill_wire::v1::{self, to_element::Message as To};
use tokio::time::Instant;

/// Interval of looks while a caller waits.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// Interval in which the consumed energy is stored.
const KEEP: Duration = Duration::from_secs(30);
/// Interval in which needs are examined.
const PERIOD: Duration = Duration::from_millis(500);

/// The worker manager: see the module.
#[derive(Clone, Debug)]
pub(crate) struct Manager {
    array: Arc<Array>,
    database: Arc<Database>,
    shared: Arc<Shared>,
    elastic: Arc<Elastic>,
    /// Activity of the elements at the last look.
    seen: Arc<Mutex<BTreeMap<u32, Activity>>>,
    /// Elements that are to be suspended at once on request, whatever their recent reads.
    by_hand: Arc<Mutex<BTreeSet<u32>>>,
}

impl Manager {
    /// Starts the manager, for as long as the server runs.
    pub(crate) fn start(names: &SqliteNames, array: &Arc<Array>, elastic: Elastic) -> Self {
        let (automatic, shared) = (elastic.after.is_some(), names.shared().clone());
        shared.sleepers.configure(elastic.limits(), automatic);
        let manager = Self {
            array: array.clone(),
            database: names.database().clone(),
            shared,
            elastic: Arc::new(elastic),
            seen: Arc::default(),
            by_hand: Arc::default(),
        };
        tokio::spawn(manager.clone().run());
        manager
    }

    fn sleepers(&self) -> &Arc<Sleepers> {
        &self.shared.sleepers
    }

    async fn run(self) {
        let mut next = Instant::now() + PERIOD;
        let energy = &self.sleepers().energy;
        if let Err(fault) = self.database.read(|db| energy.restore(db)) {
            fault.put_off("what elements have drawn is not known");
        }
        let mut kept = Instant::now();
        loop {
            let _ = tokio::time::timeout_at(next, self.sleepers().news.notified()).await;
            if Instant::now() >= next {
                next = Instant::now() + PERIOD;
                self.count(&mut kept).await;
                if self.sleepers().any.load(Ordering::Relaxed) {
                    self.sleepers().tick();
                    self.look().await;
                }
            }
            for (element, action) in self.sleepers().take_actions() {
                self.carry_out(element, action).await;
            }
        }
    }

    /// Counts the elements' energy, and stores it from time to time.
    async fn count(&self, kept: &mut Instant) {
        let energy = &self.sleepers().energy;
        energy.count(&self.array.draws());
        if kept.elapsed() < KEEP {
            return;
        }
        *kept = Instant::now();
        let all = energy.all();
        if all.is_empty() {
            return;
        }
        let work = move |db: &rusqlite::Connection| energy::keep(db, &all);
        if let Err(fault) = self.database.write(work).await {
            fault.put_off("what elements have drawn can't be kept");
        }
    }

    async fn carry_out(&self, element: u32, action: Action) {
        match action {
            Action::Suspend => self.suspend_unless_needed(element).await,
            Action::Keep => {
                self.array.tell_asleep(element);
                self.keep(element, true).await;
                self.end_host(element);
            }
            Action::Wake => self.wake(element),
            Action::Forget => self.keep(element, false).await,
            Action::GiveUp => self.array.give_up(element),
        }
    }

    /// Suspends an element unless it is needed. Work may have been assigned to it since the last look; from now on none is.
    async fn suspend_unless_needed(&self, element: u32) {
        self.array.refresh();
        if let Some(why) = self.needed(element, self.array.demand().await.as_ref()) {
            self.sleepers().stays(element, why.to_owned());
            return self.array.refresh();
        }
        let quiet_ns = match (self.by_hand.lock().remove(&element), self.elastic.after) {
            (false, Some(after)) => span(after).0,
            _ => 0,
        };
        let suspend = To::Suspend(v1::Suspend { quiet_ns });
        if !self.array.send(element, suspend) {
            self.sleepers().on(element, Event::Left);
        }
    }

    async fn keep(&self, element: u32, asleep: bool) {
        let kept = store::Kept {
            element,
            asleep,
            since: self.sleepers().since(element),
            wakes: self.sleepers().learnt(element),
        };
        let kept = self.database.write(move |db| store::keep(db, kept)).await;
        if let Err(fault) = kept {
            tracing::warn!(element, %fault, "whether an element sleeps can't be kept");
        }
    }

    /// Runs the command that suspends a host, if there is one.
    fn end_host(&self, element: u32) {
        let Some(command) = self.elastic.commands(element).suspend else {
            return;
        };
        let sleepers = self.sleepers().clone();
        tokio::task::spawn_blocking(move || {
            // An element that was woken in the meantime stays up.
            if !sleepers.sleeps(element) || sleepers.wakes(element) {
                return;
            }
            if let Err(why) = command.run(element) {
                tracing::warn!(element, "{why}");
                sleepers.trouble(element, Event::Tick, why);
            }
        });
    }

    /// Wakes an element in all available ways.
    fn wake(&self, element: u32) {
        let told = self.array.wake(element);
        tracing::info!(element, "a suspended element is woken");
        let Some(command) = self.elastic.commands(element).wake else {
            if !told {
                let why =
                    "no process of it waits to be woken, and there is no wake command: start it";
                self.sleepers().trouble(element, Event::Failed, why.into());
            }
            return;
        };
        let sleepers = self.sleepers().clone();
        tokio::task::spawn_blocking(move || {
            if let Err(why) = command.run(element)
                && sleepers.wakes(element)
            {
                tracing::warn!(element, "{why}");
                sleepers.trouble(element, Event::Failed, why);
            }
        });
    }

    /// Returns the need for an element, or `None`.
    fn needed(&self, element: u32, demand: Option<&Demand>) -> Option<&'static str> {
        let Some(demand) = demand else {
            return Some("what jobs need is not known at this moment");
        };
        let id = ElementId(element);
        if demand.used.contains(&id) || demand.wanted.contains(&id) {
            return Some("a job needs it");
        }
        let needs = self.database.read(|db| needs::of(db, element));
        needs.unwrap_or(Some("what needs it is not known at this moment"))
    }

    async fn look(&self) {
        let asleep = self.sleepers().asleep();
        let candidates = self.tired();
        if asleep.is_empty() && candidates.is_empty() {
            return;
        }
        let Some(demand) = self.array.demand().await else {
            return;
        };
        for &element in &asleep {
            if self.needed(element, Some(&demand)).is_some() {
                self.sleepers().on(element, Event::Wanted);
            }
        }
        self.make_room(&asleep);
        self.share(&asleep, &demand);
        for element in candidates {
            match self.needed(element, Some(&demand)) {
                Some(why) => {
                    self.sleepers().needed(element, why);
                    self.sleepers().on(element, Event::Wanted);
                }
                None => {
                    self.sleepers().needed(element, "");
                    self.sleepers().on(element, Event::Tired);
                }
            }
        }
    }

    /// Returns the elements that were idle for the allowed time.
    fn tired(&self) -> Vec<u32> {
        let Some(after) = self.elastic.after else {
            return Vec::new();
        };
        let up = self.array.up();
        let mut tired = Vec::new();
        let mut seen = self.seen.lock();
        for element in up {
            let Some(now) = self.array.activity(element).filter(|now| now.may) else {
                continue;
            };
            let before = seen.insert(element, now);
            let moves = before.is_some_and(|before| before.moved != now.moved);
            if now.busy || moves {
                self.sleepers().on(element, Event::Wanted);
            }
            match self.sleepers().unused(element) {
                Some(unused) if unused >= span(after) => tired.push(element),
                _ => {}
            }
        }
        tired
    }

    /// Wakes an element for copies that find no place on the elements that are up.
    fn make_room(&self, asleep: &[u32]) {
        if asleep.is_empty() {
            return;
        }
        let now = clock::now_ns();
        let holders = self
            .database
            .read(|db| needs::holders_of_one_that_rests(db, now));
        let Ok(Some(holders)) = holders else { return };
        let other = asleep.iter().find(|element| {
            !holders.contains(element) && !self.shared.leaving.is_closed(**element)
        });
        if let Some(&element) = other {
            self.sleepers().on(element, Event::Wanted);
        }
    }

    /// Wakes as many elements for waiting tasks as `allocate` chooses.
    fn share(&self, asleep: &[u32], demand: &Demand) {
        let able: BTreeSet<u32> = demand.able.iter().map(|element| element.0).collect();
        let able: Vec<u32> = asleep
            .iter()
            .copied()
            .filter(|one| able.contains(one))
            .collect();
        let waking = able.iter().any(|&element| self.sleepers().wakes(element));
        if able.is_empty() || waking {
            return;
        }
        let awake: Vec<Worker> = self
            .array
            .stores()
            .into_iter()
            .filter(|&element| self.array.activity(element).is_some())
            .filter_map(|element| self.worker(element, Span::default()))
            .collect();
        let mut sleeping: Vec<(Span, u32)> = able
            .into_iter()
            .map(|element| (self.wake_up_time(element), element))
            .collect();
        sleeping.sort_unstable();
        let workers: Option<Vec<Worker>> = sleeping
            .iter()
            .map(|&(wake, element)| self.worker(element, wake))
            .collect();
        let Some(workers) = workers else { return };
        let chosen = allocate(demand.work.0, &awake, &workers);
        for &(_, element) in &sleeping[..chosen.woken] {
            self.sleepers().on(element, Event::Wanted);
        }
    }

    fn wake_up_time(&self, element: u32) -> Span {
        let learnt = self.sleepers().learnt(element).mean();
        learnt.unwrap_or(WAKE_UNKNOWN)
    }

    /// Work is measured in core time here.
    fn worker(&self, element: u32, wake: Span) -> Option<Worker> {
        let (power, cores) = self.array.power(element)?;
        Some(Worker::of_cores(cores, power, wake))
    }

    /// Suspends an element on request. Waits until it is suspended.
    ///
    /// # Errors
    /// The reason why it is not suspended.
    pub(crate) async fn suspend(&self, element: u32) -> Result<(), String> {
        let sleepers = self.sleepers();
        if sleepers.sleeps(element) && !sleepers.wakes(element) {
            return Ok(());
        }
        let Some(activity) = self.array.activity(element) else {
            return Err(format!("element {element} is not up"));
        };
        if !activity.may {
            return Err(format!(
                "element {element} can't be suspended: it keeps what it has in memory, or lends the server's cores"
            ));
        }
        if let Some(why) = self.needed(element, self.array.demand().await.as_ref()) {
            return Err(format!("element {element} stays awake: {why}"));
        }
        self.by_hand.lock().insert(element);
        sleepers.on(element, Event::Tired);
        loop {
            tokio::time::sleep(LOOK).await;
            if sleepers.sleeps(element) {
                return Ok(());
            }
            if !sleepers.falls(element) {
                let why = sleepers.why(element);
                return Err(format!("element {element} stays awake: {why}"));
            }
        }
    }

    /// Wakes an element on request. Waits until it is up.
    ///
    /// # Errors
    /// The reason why it is not up.
    pub(crate) async fn wake_now(&self, element: u32) -> Result<(), String> {
        let sleepers = self.sleepers();
        loop {
            if self.array.activity(element).is_some() {
                return Ok(());
            }
            let why = sleepers.why(element);
            if !sleepers.sleeps(element) {
                let away = format!("element {element} is away, and was not suspended");
                return Err(if why.is_empty() { away } else { why });
            }
            sleepers.want(element);
            tokio::time::sleep(LOOK).await;
        }
    }
}
