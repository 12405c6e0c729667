//! What a policy may ask about the array. Elements that the task must not go to are left out of every answer.
//!
//! Most policies order elements by few things, so the view need not show them the whole array: it can keep
//! elements in those orders and show the first of each.

use super::Candidate;
use crate::event::Role;
use crate::id::ElementId;
use crate::score::Weights;
use std::fmt;

/// Which elements are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All storage elements.
    Stores,
    /// Those whose queue has room.
    Open,
}

/// The array as a policy sees it: elements that are up. Candidates come in no particular order.
pub trait View: fmt::Debug {
    /// Storage elements, among them the first by any key that says first what it will of bytes held and then
    /// rises with wait, with outstanding labels per core and with the id. Those that are missing differ from
    /// one that is there by the last three only, and not for the better.
    fn by_wait(&mut self) -> &[Candidate];

    /// Storage elements, among them the first by any key that says first what it will of bytes held and then
    /// puts those with room first, of these the ones after `last`, of these the lowest id.
    fn in_turn(&mut self, last: Option<ElementId>) -> &[Candidate];

    /// Storage elements, among them the first by any key that says first whether there is room, then the bucket of the
    /// score under these weights, then what it will of bytes held, and then rises with outstanding labels per core and
    /// with the id.
    fn by_score(&mut self, weights: &Weights) -> &[Candidate];

    /// All storage elements: what this costs grows with the array.
    fn stores(&mut self) -> &[Candidate];

    /// How many there are.
    fn count(&mut self, of: Among) -> usize;

    /// One of them, by its place in the order of ids.
    fn nth(&mut self, of: Among, index: usize) -> Option<ElementId>;

    /// The host element, if one is up.
    fn host(&mut self) -> Option<Candidate>;

    /// The cores of all storage elements.
    fn store_cores(&mut self) -> u64;
}

/// A view that shows everything whatever it is asked for: what the others are measured against.
#[derive(Clone, Debug)]
pub(crate) struct FullScan {
    all: Vec<Candidate>,
    stores: Vec<Candidate>,
}

impl FullScan {
    pub(crate) fn of(all: &[Candidate]) -> Self {
        let stores = all.iter().filter(|one| one.role == Role::Store);
        Self {
            all: all.to_vec(),
            stores: stores.copied().collect(),
        }
    }

    fn among(&self, of: Among) -> impl Iterator<Item = &Candidate> {
        let all = self.stores.iter();
        all.filter(move |store| store.room || of == Among::Stores)
    }
}

impl View for FullScan {
    fn by_wait(&mut self) -> &[Candidate] {
        &self.stores
    }

    fn in_turn(&mut self, _last: Option<ElementId>) -> &[Candidate] {
        &self.stores
    }

    fn by_score(&mut self, _weights: &Weights) -> &[Candidate] {
        &self.stores
    }

    fn stores(&mut self) -> &[Candidate] {
        &self.stores
    }

    fn count(&mut self, of: Among) -> usize {
        self.among(of).count()
    }

    fn nth(&mut self, of: Among, index: usize) -> Option<ElementId> {
        let chosen = self.among(of).nth(index)?;
        Some(chosen.estimate.element)
    }

    fn host(&mut self) -> Option<Candidate> {
        let mut hosts = self.all.iter().filter(|one| one.role == Role::Host);
        hosts.next().copied()
    }

    fn store_cores(&mut self) -> u64 {
        let cores = self.stores.iter().map(|store| u64::from(store.cores));
        cores.sum()
    }
}
