//! Policy `write-amplification` (AnalyzeThis §6.3, "WA"): chooses the node that writes the fewest bytes in addition to the task's inputs.
//!
//! For a task t and every node e:
//!
//! ```text
//! WA(t, e) = (bytes of t's inputs + bytes of them that are not on e) / bytes of t's inputs
//! ```
//!
//! This equation is Eq. 1 with the intended sum, and 1 for a task without inputs. The denominator is the same for all nodes, so the bytes
//! to fetch are compared. Among several nodes with the least bytes, the next node in turn with capacity is chosen, as in the paper, where
//! turns decide all ties. If none of these nodes has capacity, the task waits for the next node in turn. Without ties this policy chooses
//! the same nodes as input locality.

use super::{OnlineView, PlacementRequest, Policy, PolicyChoice, PolicyState, Reason};
use tidemill_model::id::NodeId;

/// Policy that minimises writes to the devices of nodes.
#[derive(Clone, Debug, Default)]
pub struct WriteAmplification {
    last: Option<NodeId>,
}

impl Policy for WriteAmplification {
    fn name(&self) -> &'static str {
        "write-amplification"
    }

    fn place(
        &self,
        request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        let best = view.in_turn(self.last).iter().min_by_key(|store| {
            let node = store.estimate.node;
            let passed = Some(node) <= self.last;
            (
                store.estimate.transfer_bytes,
                !store.has_space,
                passed,
                node,
            )
        })?;
        let reason = Reason::LeastAmplification {
            input_bytes: request.input_bytes,
            transfer_bytes: best.estimate.transfer_bytes,
        };
        Some(PolicyChoice {
            node: best.estimate.node,
            reason,
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
    use super::super::Candidate;
    use super::super::FullScan;
    use super::super::tests::{request, store};
    use super::*;

    fn holding(id: u32, local_bytes: u64) -> Candidate {
        let mut candidate = store(id);
        candidate.local_bytes = local_bytes;
        candidate.estimate.transfer_bytes = 100 - local_bytes;
        candidate
    }

    fn turns(policy: &mut WriteAmplification, all: &[Candidate], count: usize) -> Vec<u32> {
        let mut turn = || {
            let choice = policy.place(&request(), &mut FullScan::of(all)).unwrap();
            policy.chosen(&choice);
            choice.node.0
        };
        (0..count).map(|_| turn()).collect()
    }

    #[test]
    fn write_amplification_fetches_least_bytes_even_if_full() {
        let mut all = [holding(0, 10), holding(1, 60), holding(2, 30)];
        all[1].has_space = false;
        let choice = WriteAmplification::default()
            .place(&request(), &mut FullScan::of(&all))
            .unwrap();
        assert_eq!(choice.node, NodeId(1));
        assert_eq!(
            choice.reason.to_string(),
            "fetching 40 bytes for 100 bytes of input amplifies writes 1.40 times, the least of all nodes"
        );
    }

    #[test]
    fn write_amplification_alternates_equals_and_prefers_free() {
        let mut all = [holding(0, 50), holding(1, 50), holding(2, 0)];
        let mut policy = WriteAmplification::default();
        assert_eq!(turns(&mut policy, &all, 3), [0, 1, 0]);
        all[1].has_space = false;
        assert_eq!(turns(&mut policy, &all, 2), [0, 0]);
        all[0].has_space = false;
        assert_eq!(turns(&mut policy, &all, 2), [1, 0]);
    }

    #[test]
    fn write_amplification_of_task_without_inputs_is_one() {
        let reason = Reason::LeastAmplification {
            input_bytes: 0,
            transfer_bytes: 0,
        };
        assert!(reason.to_string().contains("1.00 times"), "{reason}");
    }
}
