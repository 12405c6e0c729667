//! Policy `input-locality` (AnalyzeThis §3.2, "IL"): chooses the node that holds the largest part of the inputs, even if other nodes are
//! idle. This policy moves the least data, and may overload one node.
//!
//! Ties (a task without inputs, or equal parts) are decided for the node with the shortest wait, then the fewest outstanding labels per
//! core, then the lowest id. If the chosen node is full, the task waits for it.

use super::{OnlineView, PlacementRequest, Policy, PolicyChoice, Reason, labels_per_core};
use std::cmp::Reverse;

/// Policy that places tasks on the nodes that store their inputs.
#[derive(Clone, Copy, Debug)]
pub struct InputLocality;

impl Policy for InputLocality {
    fn name(&self) -> &'static str {
        "input-locality"
    }

    fn place(
        &self,
        request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        let best = view.by_wait().iter().min_by_key(|store| {
            let estimate = &store.estimate;
            (
                Reverse(store.local_bytes),
                estimate.wait_ns,
                labels_per_core(store.outstanding, store.cores),
                estimate.node,
            )
        })?;
        let reason = Reason::MostInput {
            local_bytes: best.local_bytes,
            input_bytes: request.input_bytes,
        };
        Some(PolicyChoice {
            node: best.estimate.node,
            reason,
        })
    }

    fn chosen(&mut self, _choice: &PolicyChoice) {}
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, store};
    use super::super::{Candidate, FullScan};
    use super::*;

    fn chosen(all: &[Candidate]) -> u32 {
        InputLocality
            .place(&request(), &mut FullScan::of(all))
            .unwrap()
            .node
            .0
    }

    #[test]
    fn input_locality_follows_largest_input_even_if_full() {
        let mut all = [store(0), store(1), store(2)];
        all[1].local_bytes = 60;
        all[2].local_bytes = 40;
        all[1].has_space = false;
        all[1].estimate.wait_ns = 1 << 40;
        assert_eq!(chosen(&all), 1);
    }

    #[test]
    fn input_locality_breaks_ties_by_load_then_id() {
        let mut all = [store(0), store(1), store(2)];
        assert_eq!(chosen(&all), 0);
        all[0].outstanding = 1;
        assert_eq!(chosen(&all), 1);
        all[1].estimate.wait_ns = 5;
        assert_eq!(chosen(&all), 2);
    }
}
