//! Policy `round-robin` (AnalyzeThis §3.2, "RR"): chooses the next node in turn with capacity in its queue, whatever data it holds. This
//! policy levels load and moves the most data.

use super::{OnlineView, PlacementRequest, Policy, PolicyChoice, PolicyState, Reason};
use tidemill_model::id::NodeId;

/// Policy that uses the nodes in turn.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    last: Option<NodeId>,
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn place(
        &self,
        _request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        let stores = view.in_turn(self.last).iter();
        let free = stores.filter(|store| store.has_space);
        let nodes = free.map(|store| store.estimate.node);
        let next = nodes.min_by_key(|&node| (Some(node) <= self.last, node))?;
        Some(PolicyChoice {
            node: next,
            reason: Reason::Turn,
        })
    }

    fn memory(&self) -> PolicyState {
        PolicyState {
            last: self.last,
            source: None,
        }
    }

    fn restore(&mut self, memory: PolicyState) {
        self.last = memory.last;
    }

    fn chosen(&mut self, choice: &PolicyChoice) {
        self.last = Some(choice.node);
    }
}

#[cfg(test)]
mod tests {
    use super::super::FullScan;
    use super::super::tests::{request, store};
    use super::*;

    #[test]
    fn round_robin_alternates_and_skips_full_nodes() {
        let mut all = [store(0), store(1), store(2)];
        let mut policy = RoundRobin::default();
        let mut turn = |all: &[super::super::Candidate]| {
            let choice = policy.place(&request(), &mut FullScan::of(all)).unwrap();
            policy.chosen(&choice);
            choice.node.0
        };
        assert_eq!(
            [turn(&all), turn(&all), turn(&all), turn(&all)],
            [0, 1, 2, 0]
        );
        all[1].has_space = false;
        assert_eq!([turn(&all), turn(&all)], [2, 0]);
    }

    #[test]
    fn round_robin_chooses_nothing_if_all_are_full() {
        let all = [store(0), store(1)].map(|full| super::super::Candidate {
            has_space: false,
            ..full
        });
        assert_eq!(
            RoundRobin::default().place(&request(), &mut FullScan::of(&all)),
            None
        );
    }
}
