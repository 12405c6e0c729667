//! Policy `constraint` (LABIOS §3.5.2, "constraint-based"): chooses the node with the highest score under a job's weights, among the nodes
//! with capacity in their queue.
//!
//! Nodes whose scores are in the same bucket are equally good. Among these, a node that holds more of the inputs is chosen, then a node
//! with fewer labels per core, then the node with the lowest id. Every label that a node receives lowers the parts of its score for load
//! and availability, so that labels spread unless the weights prevent it. In any case a node gets no more labels than its queue accepts.

use super::{OnlineView, PlacementRequest, Policy, PolicyChoice, Reason, labels_per_core};
use crate::score::{Weights, WeightsError, bucket};
use std::cmp::Reverse;

/// Policy that scores nodes by the weights of a job.
#[derive(Clone, Debug)]
pub struct ConstraintPolicy {
    name: String,
    weights: Weights,
}

impl ConstraintPolicy {
    /// Returns the policy for a profile of Table 2 or for weights, in the notation of a job after `constraint:`.
    ///
    /// # Errors
    /// The fault in the weights.
    pub fn by(weights: &str) -> Result<Self, WeightsError> {
        Ok(Self {
            name: format!("constraint:{weights}"),
            weights: weights.parse()?,
        })
    }
}

impl Policy for ConstraintPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn place(
        &self,
        _request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        let stores = view.by_score(&self.weights).iter();
        let scored = stores.filter(|store| store.has_space).map(|store| {
            let score = self.weights.score(&store.standing);
            (score, store)
        });
        let (score, best) = scored.min_by_key(|(score, store)| {
            (
                Reverse(bucket(*score)),
                Reverse(store.local_bytes),
                labels_per_core(store.outstanding, store.cores),
                store.estimate.node,
            )
        })?;
        let standing = best.standing;
        let reason = Reason::HighestScore { score, standing };
        Some(PolicyChoice {
            node: best.estimate.node,
            reason,
        })
    }

    fn weighs_waits(&self) -> bool {
        true
    }

    fn chosen(&mut self, _choice: &PolicyChoice) {}
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, store};
    use super::super::{Candidate, FullScan};
    use super::*;

    fn chosen(weights: &str, all: &[Candidate]) -> Option<u32> {
        let policy = ConstraintPolicy::by(weights).unwrap();
        let choice = policy.place(&request(), &mut FullScan::of(all))?;
        Some(choice.node.0)
    }

    /// Returns three candidates: a fast node, a node that draws little power, and a node with a free core.
    fn three() -> [Candidate; 3] {
        let mut all = [store(0), store(1), store(2)];
        for one in &mut all {
            one.standing.speed = 2;
            one.standing.energy = 2;
            one.standing.load = 500;
            one.standing.available = false;
        }
        all[0].standing.speed = 5;
        all[1].standing.energy = 5;
        all[2].standing.available = true;
        all
    }

    #[test]
    fn constraint_profile_chooses_its_best_node() {
        let all = three();
        assert_eq!(chosen("bandwidth", &all), Some(0));
        assert_eq!(chosen("energy", &all), Some(1));
        assert_eq!(chosen("low-latency", &all), Some(2));
        let policy = ConstraintPolicy::by("energy").unwrap();
        let choice = policy.place(&request(), &mut FullScan::of(&all)).unwrap();
        let reason = choice.reason.to_string();
        assert!(
            reason.contains("0.66") && reason.contains("energy class 5"),
            "{reason}"
        );
    }

    #[test]
    fn constraint_skips_full_and_breaks_ties_by_input_load_id() {
        let mut all = three();
        all[0].has_space = false;
        assert_ne!(chosen("speed=1", &all), Some(0));
        let mut all = [store(0), store(1), store(2)];
        assert_eq!(chosen("energy", &all), Some(0));
        all[0].outstanding = 1;
        assert_eq!(chosen("energy", &all), Some(1));
        all[2].local_bytes = 1;
        all[2].outstanding = 2;
        assert_eq!(chosen("energy", &all), Some(2));
        let full = all.map(|one| Candidate {
            has_space: false,
            ..one
        });
        assert_eq!(chosen("energy", &full), None);
    }

    #[test]
    fn constraint_ranks_zero_capacity_last() {
        let mut all = [store(0), store(1)];
        all[0].standing.capacity = crate::score::share(5, 0);
        all[1].standing.capacity = 20;
        assert_eq!(chosen("capacity=1", &all), Some(1));
    }
}
