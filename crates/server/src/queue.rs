//! Labels on their way to elements.
//!
//! What is decided is kept in the outbox (`jobs/outbox.rs`), in the transaction of the decision, and given to the queue
//! once that is committed. So a queue need not take part in the server's transactions: after a start, or when it could
//! not be reached, it is given again all whose end is not known.

mod address;
#[cfg(feature = "nats")]
mod nats;

#[cfg(all(test, feature = "nats"))]
#[path = "../tests/broker/mod.rs"]
mod broker;
#[cfg(all(test, feature = "nats"))]
#[path = "../../../tests/require.rs"]
mod require;

pub use address::{Address, AddressError};
#[cfg(feature = "nats")]
pub use nats::Nats;

use crate::jobs::outbox;
use crate::names::Fault;
use crate::names::commit::Database;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_core::id::{ElementId, LabelId};
use tidemill_core::label::Label;

/// A queue that can't be used now.
#[derive(Clone, Debug, thiserror::Error)]
#[error("labels wait for their queue: {0}")]
pub struct Unavailable(pub String);

impl From<Fault> for Unavailable {
    fn from(fault: Fault) -> Self {
        Self(fault.to_string())
    }
}

/// Labels between the dispatcher and the elements. A label is given out until it is acknowledged; elements do once
/// what comes twice.
pub trait Queue: std::fmt::Debug + Send + Sync {
    /// Whether it may lack labels after a start, or when it could not be used for a while.
    fn may_lack(&self) -> bool {
        true
    }

    /// Takes labels for an element. One that it has already may be given out again, or not.
    ///
    /// # Errors
    /// If they, or some of them, were not taken.
    fn enqueue(&self, element: ElementId, labels: Vec<Label>) -> Result<(), Unavailable>;

    /// The labels for an element that it has not been given, oldest first.
    ///
    /// # Errors
    /// If that can't be told now.
    fn fetch(&self, element: ElementId) -> Result<Vec<Label>, Unavailable>;

    /// Forgets labels: their end is kept, or nobody wants them any more.
    ///
    /// # Errors
    /// If they may be given out once more.
    fn acknowledge(&self, element: ElementId, labels: &[LabelId]) -> Result<(), Unavailable>;

    /// An element has come back with these labels: all others that are not acknowledged are given out again.
    ///
    /// # Errors
    /// If they are not.
    fn redeliver(&self, element: ElementId, known: &BTreeSet<LabelId>) -> Result<(), Unavailable>;
}

/// Where labels wait for their elements.
#[derive(Clone, Debug, Default)]
pub enum Place {
    /// In the server's own database.
    #[default]
    Own,
    /// In NATS JetStream.
    Nats(Address),
    /// In a queue that was made before.
    Given(Arc<dyn Queue>),
}

/// The queue that needs nothing else: the outbox itself, in the server's database.
#[derive(Debug)]
pub(crate) struct Journal {
    database: Arc<Database>,
    /// Labels that have not been given out.
    due: Mutex<BTreeMap<ElementId, BTreeMap<LabelId, Label>>>,
}

impl Journal {
    pub(crate) fn new(database: Arc<Database>) -> Self {
        Self {
            database,
            due: Mutex::default(),
        }
    }
}

impl Queue for Journal {
    /// What it gives out it has read from the outbox.
    fn may_lack(&self) -> bool {
        false
    }

    fn enqueue(&self, element: ElementId, labels: Vec<Label>) -> Result<(), Unavailable> {
        let mut due = self.due.lock();
        let labels = labels.into_iter().map(|label| (label.id, label));
        due.entry(element).or_default().extend(labels);
        Ok(())
    }

    fn fetch(&self, element: ElementId) -> Result<Vec<Label>, Unavailable> {
        let due = self.due.lock().remove(&element);
        Ok(due.into_iter().flat_map(BTreeMap::into_values).collect())
    }

    /// The transaction that kept their end has taken them out.
    fn acknowledge(&self, _: ElementId, _: &[LabelId]) -> Result<(), Unavailable> {
        Ok(())
    }

    fn redeliver(&self, element: ElementId, known: &BTreeSet<LabelId>) -> Result<(), Unavailable> {
        let labels = self.database.read(|db| outbox::of(db, Some(element)))?;
        let labels = labels.into_iter().map(|(_, label)| (label.id, label));
        let unknown = labels.filter(|(id, _)| !known.contains(id)).collect();
        self.due.lock().insert(element, unknown);
        Ok(())
    }
}

/// A queue outside of the server, as long as somebody holds it: it outlives servers, not processes.
#[cfg(feature = "simulation")]
#[derive(Debug, Default)]
pub struct Memory {
    elements: Mutex<BTreeMap<ElementId, BTreeMap<LabelId, Kept>>>,
}

#[cfg(feature = "simulation")]
#[derive(Debug)]
struct Kept {
    label: Label,
    given: bool,
}

#[cfg(feature = "simulation")]
impl Memory {
    /// How many labels it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.lock().values().map(BTreeMap::len).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(feature = "simulation")]
impl Queue for Memory {
    fn enqueue(&self, element: ElementId, labels: Vec<Label>) -> Result<(), Unavailable> {
        let mut elements = self.elements.lock();
        let kept = elements.entry(element).or_default();
        for label in labels {
            let given = false;
            kept.entry(label.id).or_insert(Kept { label, given });
        }
        Ok(())
    }

    fn fetch(&self, element: ElementId) -> Result<Vec<Label>, Unavailable> {
        let mut elements = self.elements.lock();
        let kept = elements.entry(element).or_default().values_mut();
        let due = kept.filter_map(|kept| {
            (!std::mem::replace(&mut kept.given, true)).then(|| kept.label.clone())
        });
        Ok(due.collect())
    }

    fn acknowledge(&self, element: ElementId, labels: &[LabelId]) -> Result<(), Unavailable> {
        let mut elements = self.elements.lock();
        let kept = elements.entry(element).or_default();
        kept.retain(|label, _| !labels.contains(label));
        Ok(())
    }

    fn redeliver(&self, element: ElementId, known: &BTreeSet<LabelId>) -> Result<(), Unavailable> {
        let mut elements = self.elements.lock();
        for (label, kept) in elements.entry(element).or_default() {
            kept.given = known.contains(label);
        }
        Ok(())
    }
}

#[cfg(feature = "simulation")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::outbox::Posted;
    use tidemill_core::id::{Inode, ObjectId};
    use tidemill_core::label::{Input, Operation, Output, Owner};
    use tidemill_core::layout::Selection;

    const HERE: ElementId = ElementId(1);
    const ELSEWHERE: ElementId = ElementId(2);

    fn label(id: u64) -> Label {
        let from = Input {
            name: String::new(),
            object: ObjectId(id),
            element: ELSEWHERE,
            size: 5,
            selection: Selection::WHOLE,
        };
        Label {
            id: LabelId(id),
            owner: Owner { uid: 7, gid: 8 },
            after: Vec::new(),
            operation: Operation::Copy {
                from,
                to: Output {
                    name: String::new(),
                    object: ObjectId(100 + id),
                    inode: Inode(9),
                    path: "/f".into(),
                    memory: false,
                },
                part: None,
            },
        }
    }

    /// What a queue does with labels that are in the outbox as long as they must be.
    fn delivers(queue: &dyn Queue, database: &Database) {
        let post = |element, id| {
            let posted = Posted::new(element, &label(id));
            database
                .write_blocking(move |db| posted.put(db, 0))
                .unwrap();
            queue.enqueue(element, vec![label(id)]).unwrap();
        };
        let end = |id: u64| {
            let take = move |db: &rusqlite::Connection| outbox::take(db, LabelId(id));
            let taken = database.write_blocking(take).unwrap();
            assert_eq!(taken, Some(label(id).operation));
            queue.acknowledge(HERE, &[LabelId(id)]).unwrap();
        };
        let fetched = |element| queue.fetch(element).unwrap();
        let known = |ids: &[u64]| ids.iter().copied().map(LabelId).collect();
        assert_eq!(fetched(HERE), []);
        for id in [3, 1, 2] {
            post(HERE, id);
        }
        post(ELSEWHERE, 4);
        assert_eq!(fetched(HERE), [label(1), label(2), label(3)]);
        assert_eq!(fetched(HERE), [], "given out once");
        end(2);
        // One of those that were given out was lost on its way.
        queue.redeliver(HERE, &known(&[1])).unwrap();
        post(HERE, 5);
        assert_eq!(fetched(HERE), [label(3), label(5)]);
        // The element has lost all that it had.
        queue.redeliver(HERE, &known(&[])).unwrap();
        assert_eq!(fetched(HERE), [label(1), label(3), label(5)]);
        for id in [1, 3, 5] {
            end(id);
        }
        queue.redeliver(HERE, &known(&[])).unwrap();
        assert_eq!(fetched(HERE), []);
        assert_eq!(fetched(ELSEWHERE), [label(4)]);
        // An end that is told twice.
        let again = database.write_blocking(|db| outbox::take(db, LabelId(5)));
        assert_eq!(again.unwrap(), None);
    }

    fn database(folder: &std::path::Path) -> Arc<Database> {
        let opened = Database::open(&folder.join("server.db"), |_| Ok(()));
        Arc::new(opened.unwrap().0)
    }

    #[test]
    fn both_queues_redeliver_label_until_acknowledged() {
        for own in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let database = database(folder.path());
            if own {
                delivers(&Journal::new(database.clone()), &database);
            } else {
                let memory = Memory::default();
                delivers(&memory, &database);
                assert_eq!(memory.len(), 1);
            }
        }
    }

    /// Labels in batches: kept, enqueued, fetched, their ends kept, acknowledged.
    #[cfg(feature = "nats")]
    fn labels_per_second(queue: &dyn Queue, database: &Database) -> u64 {
        const LABELS: u64 = 20_000;
        const BATCH: u64 = 100;
        let began = std::time::Instant::now();
        while queue.fetch(HERE).is_err() {
            assert!(began.elapsed().as_secs() < 60, "the queue does not open");
        }
        let began = std::time::Instant::now();
        for first in (1..=LABELS).step_by(100) {
            let labels: Vec<Label> = (first..first + BATCH).map(label).collect();
            let kept = labels.clone();
            let put = move |db: &rusqlite::Connection| {
                let mut posted = kept.iter().map(|label| Posted::new(HERE, label));
                posted.try_for_each(|one| one.put(db, 0))
            };
            database.write_blocking(put).unwrap();
            queue.enqueue(HERE, labels).unwrap();
            let fetched: Vec<LabelId> = queue
                .fetch(HERE)
                .unwrap()
                .iter()
                .map(|one| one.id)
                .collect();
            assert_eq!(fetched.len() as u64, BATCH);
            let ends = fetched.clone();
            let end = move |db: &rusqlite::Connection| {
                ends.iter()
                    .try_for_each(|&id| outbox::take(db, id).map(drop))
            };
            database.write_blocking(end).unwrap();
            queue.acknowledge(HERE, &fetched).unwrap();
        }
        LABELS * 1000 / u64::try_from(began.elapsed().as_millis()).unwrap()
    }

    #[cfg(feature = "nats")]
    #[test]
    #[ignore = "prints figures, which are of no use without --release"]
    fn figures() {
        let folder = tempfile::tempdir().unwrap();
        let journal = database(folder.path());
        let journal = labels_per_second(&Journal::new(journal.clone()), &journal);
        eprintln!("journal: {journal} labels/s");
        for replicas in [1, 3] {
            let Some(broker) = broker::Broker::start(replicas, require::tell) else {
                return;
            };
            let folder = tempfile::tempdir().unwrap();
            let address = format!("{}?replicas={replicas}", broker.url())
                .parse()
                .unwrap();
            let nats = Nats::start(address, 3, &[1; 32]).unwrap();
            let rate = labels_per_second(&nats, &database(folder.path()));
            eprintln!("NATS, {replicas} replicas: {rate} labels/s");
        }
    }

    #[cfg(feature = "nats")]
    #[test]
    fn nats_redelivers_label_until_acknowledged() {
        let Some(broker) = broker::Broker::start(1, require::tell) else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let nats = Nats::start(broker.url().parse().unwrap(), 3, &[1; 32]).unwrap();
        delivers(&nats, &database(folder.path()));
    }
}
