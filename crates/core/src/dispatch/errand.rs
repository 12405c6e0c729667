//! Errands: labels that belong to no job, such as removals and copies. They are for one element, whatever becomes of
//! it, and take no core of it; so they are in no line and in no estimate.

use super::{Dispatcher, ERRANDS_MAX};
use crate::id::{ElementId, LabelId};
use crate::label::{Label, Lane, Operation, Owner};

impl Dispatcher {
    /// Whether an element takes another errand of this lane now. Those that take long leave room for the others: copies for a
    /// removal, reading what is there for a copy, too.
    #[must_use]
    pub fn takes_errand(&self, element: ElementId, lane: Lane) -> bool {
        let under_way = self.errands.values().filter(|&&on| on == element).count();
        let spared = match lane {
            Lane::Verify => 2,
            Lane::Copy => 1,
            Lane::Kernel | Lane::Light | Lane::Remove => 0,
        };
        self.up(element) && under_way + spared < ERRANDS_MAX
    }

    /// What can't be sent now is not kept: who asked asks again.
    pub(super) fn on_errand(&mut self, element: ElementId, owner: Owner, operation: Operation) {
        if !self.takes_errand(element, operation.lane()) || !self.ids.ready(0) {
            return;
        }
        let id = self.ids.label();
        self.errands.insert(id, element);
        let label = Label {
            id,
            owner,
            after: Vec::new(),
            operation,
        };
        self.outbox
            .get_or_insert_with(element, Vec::new)
            .push(label);
    }

    /// Whether a label that was sent is still to be executed: it is the try of its task that counts, or an errand.
    #[must_use]
    pub fn wants(&self, label: LabelId) -> bool {
        self.live(label) || self.errands.contains_key(&label)
    }
}
