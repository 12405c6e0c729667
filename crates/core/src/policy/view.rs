//! What a policy may ask about the array. Elements that the task must not go to are left out of every answer.
//!
//! Most policies order elements by few things, so the view need not show them the whole array: it can keep
//! elements in those orders and show the first of each.

use super::Candidate;
use crate::event::Role;
use crate::id::ElementId;
use std::fmt;

/// The array as a policy sees it: elements that are up. Candidates come in no particular order.
pub trait View: fmt::Debug {
    /// Storage elements, among them the first by any key that says first what it will of bytes held and then
    /// rises with wait, with outstanding labels per core and with the id. Those that are missing differ from
    /// one that is there by the last three only, and not for the better.
    fn by_wait(&mut self) -> &[Candidate];

    /// Storage elements, among them the first by any key that says first what it will of bytes held and then
    /// puts those with room first, of these the ones after `last`, of these the lowest id.
    fn in_turn(&mut self, last: Option<ElementId>) -> &[Candidate];

    /// How many storage elements have room.
    fn free(&mut self) -> usize;

    /// One of the storage elements that have room, by its place in the order of ids.
    fn nth_free(&mut self, index: usize) -> Option<ElementId>;

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

    fn with_room(&self) -> impl Iterator<Item = &Candidate> {
        self.stores.iter().filter(|store| store.room)
    }
}

impl View for FullScan {
    fn by_wait(&mut self) -> &[Candidate] {
        &self.stores
    }

    fn in_turn(&mut self, _last: Option<ElementId>) -> &[Candidate] {
        &self.stores
    }

    fn free(&mut self) -> usize {
        self.with_room().count()
    }

    fn nth_free(&mut self, index: usize) -> Option<ElementId> {
        let chosen = self.with_room().nth(index)?;
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
