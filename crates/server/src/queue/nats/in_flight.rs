//! Labels that a session has received from NATS, and labels that the session has sent and not received back yet.

use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::Label;

/// NATS subject to which the acknowledgement of a message is sent.
pub(super) type Receipt = async_nats::Subject;

#[derive(Debug)]
struct HeldLabel {
    label: Label,
    given: bool,
    /// Receipts of all messages with this label. A label has several messages if the session did not know whether the first was stored.
    receipts: Vec<Receipt>,
}

/// Labels of a session with NATS, as described in the module's documentation.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    nodes: BTreeMap<NodeId, BTreeMap<LabelId, HeldLabel>>,
    /// Labels of sent messages that the session has not received back, by the messages' numbers in the stream.
    coming: BTreeMap<u64, LabelId>,
    on_the_way: BTreeSet<LabelId>,
}

impl InFlight {
    /// Whether the stream has a label for a node.
    pub(super) fn knows(&self, node: NodeId, label: LabelId) -> bool {
        let held = self.nodes.get(&node);
        self.on_the_way.contains(&label) || held.is_some_and(|held| held.contains_key(&label))
    }

    /// Records that the stream has stored a message.
    pub(super) fn sent(&mut self, number: u64, label: LabelId) {
        self.coming.insert(number, label);
        self.on_the_way.insert(label);
    }

    /// Returns the number of messages that the stream has stored and the session has not received back.
    pub(super) fn coming(&self) -> usize {
        self.coming.len()
    }

    /// Records that a message was received, with any content.
    pub(super) fn arrived(&mut self, number: u64) {
        if let Some(label) = self.coming.remove(&number) {
            self.on_the_way.remove(&label);
        }
    }

    /// Stores a received label. A label without a receipt was never in the stream.
    pub(super) fn keep(&mut self, node: NodeId, label: Label, receipt: Option<Receipt>) {
        let kept = self.nodes.entry(node).or_default();
        let kept = kept.entry(label.id).or_insert(HeldLabel {
            label,
            given: false,
            receipts: Vec::new(),
        });
        kept.receipts.extend(receipt);
    }

    /// Returns the labels of a node that were not delivered, and marks the labels as delivered.
    pub(super) fn take(&mut self, node: NodeId) -> Vec<Label> {
        let held = self.nodes.entry(node).or_default().values_mut();
        let due = held.filter_map(|kept| {
            (!std::mem::replace(&mut kept.given, true)).then(|| kept.label.clone())
        });
        due.collect()
    }

    /// Marks all labels of a node except those in `known` as not delivered.
    pub(super) fn again(&mut self, node: NodeId, known: &BTreeSet<LabelId>) {
        for (label, kept) in self.nodes.entry(node).or_default() {
            kept.given = known.contains(label);
        }
    }

    /// Removes labels. Returns the receipts of the messages with these labels.
    pub(super) fn forget(&mut self, node: NodeId, labels: &[LabelId]) -> Vec<Receipt> {
        let held = self.nodes.entry(node).or_default();
        let gone = labels.iter().filter_map(|label| held.remove(label));
        gone.flat_map(|kept| kept.receipts).collect()
    }
}
