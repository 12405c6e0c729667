//! Storage nodes in the order of their scores under some weights: those with capacity first, then by the bucket of the score, then by
//! labels per core. Only nodes that changed since the last query are moved.

use super::node::NodeState;
use super::table::IdTable;
use crate::policy::labels_per_core;
use crate::score::{self, Weights};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use tidemill_model::event::Role;
use tidemill_model::id::NodeId;

/// Whether the node's queue is full, bucket of the score, labels per core, id of the node.
type ScoreKey = (bool, Reverse<u16>, u64, NodeId);

/// Order of the storage nodes by their scores under some weights.
#[derive(Debug)]
pub(super) struct Scored {
    weights: Weights,
    order: BTreeSet<ScoreKey>,
    ranks: IdTable<NodeId, ScoreKey>,
    /// Nodes whose position in the order may have changed.
    shifted: BTreeSet<NodeId>,
}

impl Scored {
    pub(super) fn of(weights: Weights, stores: impl Iterator<Item = NodeId>) -> Self {
        Self {
            weights,
            order: BTreeSet::new(),
            ranks: IdTable::default(),
            shifted: stores.collect(),
        }
    }

    pub(super) fn is_by(&self, weights: &Weights) -> bool {
        self.weights == *weights
    }

    pub(super) fn shift(&mut self, id: NodeId) {
        self.shifted.insert(id);
    }

    /// Returns the first node in the order of scores for which `pass` returns false.
    pub(super) fn best<'a>(
        &mut self,
        node: impl Fn(NodeId) -> Option<&'a NodeState>,
        pass: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        while let Some(id) = self.shifted.pop_first() {
            let rank = node(id).and_then(|node| self.rank(id, node));
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

    fn rank(&self, id: NodeId, node: &NodeState) -> Option<ScoreKey> {
        if !node.up() || node.view.role != Role::Store {
            return None;
        }
        let bucket = score::bucket(self.weights.score(&node.standing()));
        let load = labels_per_core(node.outstanding.len(), node.view.offers.cores);
        Some((!node.has_space(), Reverse(bucket), load, id))
    }
}
