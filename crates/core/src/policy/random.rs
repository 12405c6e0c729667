//! Random: chooses a node with a seeded random number generator. This policy is the baseline for the others.
//!
//! `random` chooses among nodes with capacity in their queue. `random:all` chooses among all, whatever their load (LABIOS §3.5.2,
//! "random select"): a task then waits for its node, even if another node is idle.

use super::{Among, Choice, Memory, Policy, Reason, Request, View};
use crate::random::Source;

/// Policy that draws nodes; the same seed draws the same ones.
#[derive(Clone, Debug)]
pub struct Random {
    source: Source,
    of: Among,
}

impl Random {
    /// Returns the policy with a seed and the set of nodes from which it draws.
    #[must_use]
    pub fn seeded(seed: u64, of: Among) -> Self {
        let source = Source::seeded(seed);
        Self { source, of }
    }
}

impl Policy for Random {
    fn name(&self) -> &'static str {
        match self.of {
            Among::Open => "random",
            Among::Stores => "random:all",
        }
    }

    fn place(&self, _request: &Request<'_>, view: &mut dyn View) -> Option<Choice> {
        let drawn = self.source.clone().next_u64();
        let index = drawn.checked_rem(view.count(self.of) as u64)?;
        let node = view.nth(self.of, usize::try_from(index).ok()?)?;
        Some(Choice {
            node,
            reason: Reason::Drawn,
        })
    }

    fn memory(&self) -> Memory {
        Memory {
            last: None,
            source: Some(self.source.state()),
        }
    }

    fn restore(&mut self, memory: Memory) {
        if let Some(state) = memory.source {
            self.source = Source::seeded(state);
        }
    }

    fn chosen(&mut self, _choice: &Choice) {
        self.source.next_u64();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, store};
    use super::super::{Candidate, FullScan};
    use super::*;

    fn sequence(seed: u64) -> Vec<u32> {
        let mut policy = Random::seeded(seed, Among::Open);
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
        all[1].room = false;
        let drawn = |of| draws(&mut Random::seeded(5, of), &all);
        assert!(drawn(Among::Open).iter().all(|&id| id == 0));
        let full = drawn(Among::Stores).into_iter().filter(|&id| id == 1);
        assert!((150..=250).contains(&full.count()));
    }
}
