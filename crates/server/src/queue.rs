//! Queues that hold labels on their way to nodes. Next: `server/src/jobs`, which fetches labels from the queue and sends them.
//!
//! The transaction of a decision stores its labels in the outbox (`names/jobs/outbox.rs`), and the driver adds the labels to the queue after the
//! commit. A queue therefore need not take part in the server's transactions. After a start, and after the queue could not be reached, the
//! driver adds all labels without a known outcome again.

pub(crate) mod address;
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

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_meta::Fault;
use tidemill_meta::commit::Database;
use tidemill_meta::jobs::outbox;
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::Label;

/// Error of a queue that can't be used now.
#[derive(Clone, Debug, thiserror::Error)]
#[error("labels wait for their queue: {0}")]
pub struct Unavailable(pub String);

impl From<Fault> for Unavailable {
    fn from(fault: Fault) -> Self {
        Self(fault.to_string())
    }
}

/// Queue of labels between the dispatcher and the nodes. The queue may deliver a label repeatedly until the label is acknowledged; nodes
/// execute a repeated label only once.
pub trait LabelQueue: std::fmt::Debug + Send + Sync {
    /// Whether the queue may lack labels after a start of the server, or after a time when the queue could not be used.
    fn may_lack(&self) -> bool {
        true
    }

    /// Adds labels for a node. The queue may deliver a label that was added before once more, or not.
    ///
    /// # Errors
    /// If the queue did not accept all labels.
    fn enqueue(&self, node: NodeId, labels: Vec<Label>) -> Result<(), Unavailable>;

    /// Returns the undelivered labels for a node, oldest first.
    ///
    /// # Errors
    /// If the queue can't be read now.
    fn fetch(&self, node: NodeId) -> Result<Vec<Label>, Unavailable>;

    /// Removes labels whose outcome is stored, or that are no longer wanted.
    ///
    /// # Errors
    /// If the queue may deliver the labels again.
    fn acknowledge(&self, node: NodeId, labels: &[LabelId]) -> Result<(), Unavailable>;

    /// Delivers all labels of a node again, except acknowledged labels and the labels in `known`, which the reconnected node reported to
    /// know.
    ///
    /// # Errors
    /// If the queue will not deliver the labels again.
    fn redeliver(&self, node: NodeId, known: &BTreeSet<LabelId>) -> Result<(), Unavailable>;
}

/// Place where labels wait for their nodes.
#[derive(Clone, Debug, Default)]
pub enum QueueLocation {
    /// The server's own database holds the labels.
    #[default]
    Own,
    /// A stream of NATS JetStream at this address holds the labels.
    Nats(Address),
    /// An existing queue, for tests and simulations, holds the labels.
    Given(Arc<dyn LabelQueue>),
}

/// Queue that needs no other service: the labels are in the outbox of the server's database.
#[derive(Debug)]
pub(crate) struct DatabaseQueue {
    database: Arc<Database>,
    /// Labels that the queue has not delivered yet.
    due: Mutex<BTreeMap<NodeId, BTreeMap<LabelId, Label>>>,
}

impl DatabaseQueue {
    pub(crate) fn new(database: Arc<Database>) -> Self {
        Self {
            database,
            due: Mutex::default(),
        }
    }
}

impl LabelQueue for DatabaseQueue {
    /// This queue lacks no labels, since it reads all labels from the outbox.
    fn may_lack(&self) -> bool {
        false
    }

    fn enqueue(&self, node: NodeId, labels: Vec<Label>) -> Result<(), Unavailable> {
        let mut due = self.due.lock();
        let labels = labels.into_iter().map(|label| (label.id, label));
        due.entry(node).or_default().extend(labels);
        Ok(())
    }

    fn fetch(&self, node: NodeId) -> Result<Vec<Label>, Unavailable> {
        let due = self.due.lock().remove(&node);
        Ok(due.into_iter().flat_map(BTreeMap::into_values).collect())
    }

    /// This function does nothing: the transaction that stored the outcomes has already removed the labels.
    fn acknowledge(&self, _: NodeId, _: &[LabelId]) -> Result<(), Unavailable> {
        Ok(())
    }

    fn redeliver(&self, node: NodeId, known: &BTreeSet<LabelId>) -> Result<(), Unavailable> {
        let labels = self.database.read(|db| outbox::of(db, Some(node)))?;
        let labels = labels.into_iter().map(|(_, label)| (label.id, label));
        let unknown = labels.filter(|(id, _)| !known.contains(id)).collect();
        self.due.lock().insert(node, unknown);
        Ok(())
    }
}

/// A queue in memory that exists as long as a reference to it: the queue survives a restart of the server within the same process.
#[cfg(feature = "simulation")]
#[derive(Debug, Default)]
pub struct MemoryQueue {
    nodes: Mutex<BTreeMap<NodeId, BTreeMap<LabelId, QueuedLabel>>>,
}

#[cfg(feature = "simulation")]
#[derive(Debug)]
struct QueuedLabel {
    label: Label,
    given: bool,
}

#[cfg(feature = "simulation")]
impl MemoryQueue {
    /// Returns the number of labels in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.lock().values().map(BTreeMap::len).sum()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(feature = "simulation")]
impl LabelQueue for MemoryQueue {
    fn enqueue(&self, node: NodeId, labels: Vec<Label>) -> Result<(), Unavailable> {
        let mut nodes = self.nodes.lock();
        let kept = nodes.entry(node).or_default();
        for label in labels {
            let given = false;
            kept.entry(label.id).or_insert(QueuedLabel { label, given });
        }
        Ok(())
    }

    fn fetch(&self, node: NodeId) -> Result<Vec<Label>, Unavailable> {
        let mut nodes = self.nodes.lock();
        let kept = nodes.entry(node).or_default().values_mut();
        let due = kept.filter_map(|kept| {
            (!std::mem::replace(&mut kept.given, true)).then(|| kept.label.clone())
        });
        Ok(due.collect())
    }

    fn acknowledge(&self, node: NodeId, labels: &[LabelId]) -> Result<(), Unavailable> {
        let mut nodes = self.nodes.lock();
        let kept = nodes.entry(node).or_default();
        kept.retain(|label, _| !labels.contains(label));
        Ok(())
    }

    fn redeliver(&self, node: NodeId, known: &BTreeSet<LabelId>) -> Result<(), Unavailable> {
        let mut nodes = self.nodes.lock();
        for (label, kept) in nodes.entry(node).or_default() {
            kept.given = known.contains(label);
        }
        Ok(())
    }
}

#[cfg(feature = "simulation")]
#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_meta::Connection;
    use tidemill_meta::jobs::outbox::OutboxLabel;
    use tidemill_model::id::{Inode, ObjectId};
    use tidemill_model::label::{LabelInput, LabelOutput, Operation, Owner};
    use tidemill_model::layout::Selection;

    const HERE: NodeId = NodeId(1);
    const ELSEWHERE: NodeId = NodeId(2);

    fn label(id: u64) -> Label {
        let from = LabelInput {
            name: String::new(),
            object: ObjectId(id),
            node: ELSEWHERE,
            size: 5,
            selection: Selection::WHOLE,
        };
        Label {
            id: LabelId(id),
            owner: Owner { uid: 7, gid: 8 },
            after: Vec::new(),
            operation: Operation::Copy {
                from,
                to: LabelOutput {
                    name: String::new(),
                    object: ObjectId(100 + id),
                    inode: Inode(9),
                    path: "/f".into(),
                    memory: false,
                },
                part: None,
                mode: Some(0o640),
            },
        }
    }

    /// Checks that a queue delivers labels as the trait requires, while the labels are in the outbox.
    fn delivers(queue: &dyn LabelQueue, database: &Database) {
        let post = |node, id| {
            let posted = OutboxLabel::new(node, &label(id));
            database
                .write_blocking(move |db| outbox::put(db, &posted, 0))
                .unwrap();
            queue.enqueue(node, vec![label(id)]).unwrap();
        };
        let end = |id: u64| {
            let take = move |db: &Connection| outbox::take(db, LabelId(id));
            let taken = database.write_blocking(take).unwrap();
            assert_eq!(taken, Some(label(id).operation));
            queue.acknowledge(HERE, &[LabelId(id)]).unwrap();
        };
        let fetched = |node| queue.fetch(node).unwrap();
        let known = |ids: &[u64]| ids.iter().copied().map(LabelId).collect();
        assert_eq!(fetched(HERE), []);
        for id in [3, 1, 2] {
            post(HERE, id);
        }
        post(ELSEWHERE, 4);
        assert_eq!(fetched(HERE), [label(1), label(2), label(3)]);
        assert_eq!(fetched(HERE), [], "delivered once");
        end(2);
        // One of the delivered labels was lost on its way.
        queue.redeliver(HERE, &known(&[1])).unwrap();
        post(HERE, 5);
        assert_eq!(fetched(HERE), [label(3), label(5)]);
        // The node has lost all its labels.
        queue.redeliver(HERE, &known(&[])).unwrap();
        assert_eq!(fetched(HERE), [label(1), label(3), label(5)]);
        for id in [1, 3, 5] {
            end(id);
        }
        queue.redeliver(HERE, &known(&[])).unwrap();
        assert_eq!(fetched(HERE), []);
        assert_eq!(fetched(ELSEWHERE), [label(4)]);
        // The end of a label is reported twice.
        let again = database.write_blocking(|db| outbox::take(db, LabelId(5)));
        assert_eq!(again.unwrap(), None);
    }

    fn database(directory: &std::path::Path) -> Arc<Database> {
        let opened = Database::open(&directory.join("server.db"), |_| Ok(()));
        Arc::new(opened.unwrap().0)
    }

    #[test]
    fn journal_and_memory_queues_redeliver_label_until_acknowledged() {
        for own in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let database = database(directory.path());
            if own {
                delivers(&DatabaseQueue::new(database.clone()), &database);
            } else {
                let memory = MemoryQueue::default();
                delivers(&memory, &database);
                assert_eq!(memory.len(), 1);
            }
        }
    }

    /// Measures the labels per second that a queue handles in batches: stored, added, fetched, with stored outcomes, acknowledged.
    #[cfg(feature = "nats")]
    fn labels_per_second(queue: &dyn LabelQueue, database: &Database) -> u64 {
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
            let put = move |db: &Connection| {
                let mut posted = kept.iter().map(|label| OutboxLabel::new(HERE, label));
                posted.try_for_each(|one| outbox::put(db, &one, 0))
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
            let end = move |db: &Connection| {
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
    #[ignore = "prints measurements, which need --release"]
    fn label_queues_print_labels_per_second() {
        let directory = tempfile::tempdir().unwrap();
        let journal = database(directory.path());
        let journal = labels_per_second(&DatabaseQueue::new(journal.clone()), &journal);
        eprintln!("journal: {journal} labels/s");
        for replicas in [1, 3] {
            let Some(broker) = broker::Broker::start(replicas, require::tell) else {
                return;
            };
            let directory = tempfile::tempdir().unwrap();
            let address = format!("{}?replicas={replicas}", broker.url())
                .parse()
                .unwrap();
            let nats = Nats::start(address, 3, &[1; 32]).unwrap();
            let rate = labels_per_second(&nats, &database(directory.path()));
            eprintln!("NATS, {replicas} replicas: {rate} labels/s");
        }
    }

    #[cfg(feature = "nats")]
    #[test]
    fn nats_redelivers_label_until_acknowledged() {
        let Some(broker) = broker::Broker::start(1, require::tell) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let nats = Nats::start(broker.url().parse().unwrap(), 3, &[1; 32]).unwrap();
        delivers(&nats, &database(directory.path()));
    }
}
