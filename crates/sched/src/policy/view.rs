//! Queries of a policy about the cluster. Every answer leaves out the nodes on which the task must not run.
//!
//! Most policies order nodes by few properties, so the view need not show the whole cluster: it can keep nodes in the orders of the
//! policies and show the first of each order.

use super::Candidate;
use crate::score::Weights;
use std::fmt;
use tidemill_model::event::Role;
use tidemill_model::id::NodeId;

/// Set of nodes that a query counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedNodes {
    /// All storage nodes.
    Stores,
    /// Storage nodes whose queue is not full.
    Open,
}

/// The cluster as a policy sees it: the online nodes. Candidates are in no particular order.
pub trait OnlineView: fmt::Debug {
    /// Returns storage nodes that include the minimum of any key of the following form. The key may depend arbitrarily on the held bytes
    /// first. After that it rises with the wait, with the outstanding labels per core and with the id. Each omitted node differs from a
    /// returned node only by the last three properties, and is not better.
    fn by_wait(&mut self) -> &[Candidate];

    /// Returns storage nodes that include the minimum of any key of the following form. The key may depend arbitrarily on the held bytes
    /// first. After that it prefers nodes with capacity, among these the nodes after `last`, and among these the lowest id.
    fn in_turn(&mut self, last: Option<NodeId>) -> &[Candidate];

    /// Returns storage nodes that include the minimum of any key of the following form. The key depends first on the presence of capacity,
    /// then on the bucket of the score under these weights, and then arbitrarily on the held bytes. After that it rises with the
    /// outstanding labels per core and with the id.
    fn by_score(&mut self, weights: &Weights) -> &[Candidate];

    /// Returns all storage nodes; the cost of this query grows with the cluster.
    fn stores(&mut self) -> &[Candidate];

    /// Returns the number of nodes in the set.
    fn count(&mut self, of: CountedNodes) -> usize;

    /// Returns a node of the set by its index in the order of ids.
    fn nth(&mut self, of: CountedNodes, index: usize) -> Option<NodeId>;

    /// Returns the server cores, if they are online.
    fn server_cores(&mut self) -> Option<Candidate>;

    /// Returns the number of cores of all storage nodes.
    fn store_cores(&mut self) -> u64;
}

/// View that always returns all nodes: the reference for the other views.
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

    fn among(&self, of: CountedNodes) -> impl Iterator<Item = &Candidate> {
        let all = self.stores.iter();
        all.filter(move |store| store.has_space || of == CountedNodes::Stores)
    }
}

impl OnlineView for FullScan {
    fn by_wait(&mut self) -> &[Candidate] {
        &self.stores
    }

    fn in_turn(&mut self, _last: Option<NodeId>) -> &[Candidate] {
        &self.stores
    }

    fn by_score(&mut self, _weights: &Weights) -> &[Candidate] {
        &self.stores
    }

    fn stores(&mut self) -> &[Candidate] {
        &self.stores
    }

    fn count(&mut self, of: CountedNodes) -> usize {
        self.among(of).count()
    }

    fn nth(&mut self, of: CountedNodes, index: usize) -> Option<NodeId> {
        let chosen = self.among(of).nth(index)?;
        Some(chosen.estimate.node)
    }

    fn server_cores(&mut self) -> Option<Candidate> {
        let mut server_cores = self.all.iter().filter(|one| one.role == Role::ServerCores);
        server_cores.next().copied()
    }

    fn store_cores(&mut self) -> u64 {
        let cores = self.stores.iter().map(|store| u64::from(store.cores));
        cores.sum()
    }
}
