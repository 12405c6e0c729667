//! Storage elements in the order of their scores under some weights: those with capacity first, then by the bucket of the score, then by
//! labels per core. Only elements that changed since the last query are moved.

use super::element::Element;
use super::table::Table;
use crate::event::Role;
use crate::id::ElementId;
use crate::policy::labels_per_core;
use crate::score::{self, Weights};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Whether the queue is full, bucket, labels per core, id.
type Rank = (bool, Reverse<u16>, u64, ElementId);

/// Order for some weights.
#[derive(Debug)]
pub(super) struct Scored {
    weights: Weights,
    order: BTreeSet<Rank>,
    ranks: Table<ElementId, Rank>,
    /// Elements whose position may have changed.
    shifted: BTreeSet<ElementId>,
}

impl Scored {
    pub(super) fn of(weights: Weights, stores: impl Iterator<Item = ElementId>) -> Self {
        Self {
            weights,
            order: BTreeSet::new(),
            ranks: Table::default(),
            shifted: stores.collect(),
        }
    }

    pub(super) fn is_by(&self, weights: &Weights) -> bool {
        self.weights == *weights
    }

    pub(super) fn shift(&mut self, id: ElementId) {
        self.shifted.insert(id);
    }

    /// Returns the first element in the order for which `pass` returns false.
    pub(super) fn best<'a>(
        &mut self,
        element: impl Fn(ElementId) -> Option<&'a Element>,
        pass: impl Fn(ElementId) -> bool,
    ) -> Option<ElementId> {
        while let Some(id) = self.shifted.pop_first() {
            let rank = element(id).and_then(|element| self.rank(id, element));
            if let Some(old) = self.ranks.get(&id) {
                if Some(*old) == rank {
                    continue;
                }
                self.order.remove(old);
            }
            match rank {
                Some(rank) => {
                    self.order.insert(rank);
                    self.ranks.insert(id, rank);
                }
                None => {
                    self.ranks.remove(&id);
                }
            }
        }
        let mut order = self.order.iter().map(|(.., id)| *id);
        order.find(|&id| !pass(id))
    }

    fn rank(&self, id: ElementId, element: &Element) -> Option<Rank> {
        if !element.up() || element.view.role != Role::Store {
            return None;
        }
        let bucket = score::bucket(self.weights.score(&element.standing()));
        let load = labels_per_core(element.outstanding.len(), element.view.offers.cores);
        Some((!element.room(), Reverse(bucket), load, id))
    }
}
