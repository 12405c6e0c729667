//! The labels that a session has got from the queue, or has put there and not got yet.

use std::collections::{BTreeMap, BTreeSet};
use tidemill_core::id::{ElementId, LabelId};
use tidemill_core::label::Label;

/// Where the queue wants to be told that a message is no longer needed.
pub(super) type Receipt = async_nats::Subject;

#[derive(Debug)]
struct Kept {
    label: Label,
    given: bool,
    /// Of all messages with this label: more than one if it was not known whether the first had arrived.
    receipts: Vec<Receipt>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Held {
    elements: BTreeMap<ElementId, BTreeMap<LabelId, Kept>>,
    /// Messages that are in the queue and have not come back, by their numbers there.
    coming: BTreeMap<u64, LabelId>,
    on_the_way: BTreeSet<LabelId>,
}

impl Held {
    /// Whether the queue has it.
    pub(super) fn knows(&self, element: ElementId, label: LabelId) -> bool {
        let held = self.elements.get(&element);
        self.on_the_way.contains(&label) || held.is_some_and(|held| held.contains_key(&label))
    }

    /// The queue has taken it.
    pub(super) fn sent(&mut self, number: u64, label: LabelId) {
        self.coming.insert(number, label);
        self.on_the_way.insert(label);
    }

    /// How many that the queue has taken have not come back.
    pub(super) fn coming(&self) -> usize {
        self.coming.len()
    }

    /// A message has come, whatever it is.
    pub(super) fn arrived(&mut self, number: u64) {
        if let Some(label) = self.coming.remove(&number) {
            self.on_the_way.remove(&label);
        }
    }

    /// A label is here; one without a receipt was never in the queue.
    pub(super) fn keep(&mut self, element: ElementId, label: Label, receipt: Option<Receipt>) {
        let kept = self.elements.entry(element).or_default();
        let kept = kept.entry(label.id).or_insert(Kept {
            label,
            given: false,
            receipts: Vec::new(),
        });
        kept.receipts.extend(receipt);
    }

    /// Those that were not given out.
    pub(super) fn take(&mut self, element: ElementId) -> Vec<Label> {
        let held = self.elements.entry(element).or_default().values_mut();
        let due = held.filter_map(|kept| {
            (!std::mem::replace(&mut kept.given, true)).then(|| kept.label.clone())
        });
        due.collect()
    }

    /// All but these are to be given out.
    pub(super) fn again(&mut self, element: ElementId, known: &BTreeSet<LabelId>) {
        for (label, kept) in self.elements.entry(element).or_default() {
            kept.given = known.contains(label);
        }
    }

    /// Forgets labels. Gives the receipts of their messages.
    pub(super) fn forget(&mut self, element: ElementId, labels: &[LabelId]) -> Vec<Receipt> {
        let held = self.elements.entry(element).or_default();
        let gone = labels.iter().filter_map(|label| held.remove(label));
        gone.flat_map(|kept| kept.receipts).collect()
    }
}
