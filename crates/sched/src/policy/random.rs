//! Policy `random`: chooses a node with a seeded random number generator. This policy is the baseline for the other policies.
//!
//! `random` chooses among nodes with capacity in their queue. `random:all` chooses among all nodes, whatever their load (LABIOS §3.5.2,
//! "random select"): a task then waits for its node, even if another node is idle.

use super::{
    CountedNodes, OnlineView, PlacementRequest, Policy, PolicyChoice, PolicyState, Reason,
};
use tidemill_model::random::RandomSource;

/// Policy that draws nodes at random; the same seed draws the same nodes.
#[derive(Clone, Debug)]
pub struct Random {
    source: RandomSource,
    of: CountedNodes,
}

impl Random {
    /// Returns the policy with a seed and the set of nodes from which the policy draws.
    #[must_use]
    pub fn seeded(seed: u64, of: CountedNodes) -> Self {
        let source = RandomSource::seeded(seed);
        Self { source, of }
    }
}

impl Policy for Random {
    fn name(&self) -> &'static str {
        match self.of {
            CountedNodes::Open => "random",
            CountedNodes::Stores => "random:all",
        }
    }

    fn place(
        &self,
        _request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        let drawn = self.source.clone().next_u64();
        let index = drawn.checked_rem(view.count(self.of) as u64)?;
        let node = view.nth(self.of, usize::try_from(index).ok()?)?;
        Some(PolicyChoice {
            node,
            reason: Reason::Drawn,
        })
    }

    fn memory(&self) -> PolicyState {
        PolicyState {
            last: None,
            source: Some(self.source.state()),
        }
    }

    fn restore(&mut self, memory: PolicyState) {
        if let Some(state) = memory.source {
            self.source = RandomSource::seeded(state);
        }
    }

    fn chosen(&mut self, _choice: &PolicyChoice) {
        self.source.next_u64();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, store};
    use super::super::{Candidate, FullScan};
    use super::*;

    fn sequence(seed: u64) -> Vec<u32> {
        let mut policy = Random::seeded(seed, CountedNodes::Open);
        draws(&mut policy, &[store(0), store(1), store(2), store(3)])
    }

    fn draws(policy: &mut Random, all: &[Candidate]) -> Vec<u32> {
        (0..400)
            .map(|_| {
                let choice = policy.place(&request(), &mut FullScan::of(all)).unwrap();
                policy.chosen(&choice);
                choice.node.0
            })
            .collect()
    }

    #[test]
    fn random_replays_seed_and_draws_all_nodes() {
        assert_eq!(sequence(5), sequence(5));
        assert_ne!(sequence(5), sequence(6));
        for id in 0..4 {
            let count = sequence(5).iter().filter(|&&drawn| drawn == id).count();
            assert!(
                (60..=140).contains(&count),
                "node {id} was drawn {count} times of 400"
            );
        }
    }

    #[test]
    fn random_chooses_full_node_only_among_all_stores() {
        let mut all = [store(0), store(1)];
        all[1].has_space = false;
        let drawn = |of| draws(&mut Random::seeded(5, of), &all);
        assert!(drawn(CountedNodes::Open).iter().all(|&id| id == 0));
        let full = drawn(CountedNodes::Stores)
            .into_iter()
            .filter(|&id| id == 1);
        assert!((150..=250).contains(&full.count()));
    }
}
