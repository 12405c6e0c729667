//! Policy `min-wait` (AnalyzeThis §3.2, "MW"): chooses the node with the least expected wait.
//!
//! For a task t and every node e:
//!
//! ```text
//! wait(t, e)     = free(e) + transfer(t, e)
//! free(e)        = 0 while a core of e is free, else
//!                  (expected run and transfer times of e's outstanding labels
//!                   − what the running ones have spent of them) / cores(e)
//! transfer(t, e) = bytes of t's inputs that are not on e / link rate of e
//! ```
//!
//! A label that was sent together with a label that it waits for takes no core of e before that label has ended. A running label counts for
//! at least a quarter of its expected time, however long it has run. A run without any known run time counts for
//! [`UNKNOWN_RUN`](crate::dispatch::UNKNOWN_RUN), so that such runs spread.
//!
//! `free` is the paper's "expected free time", stored as the remaining time so that errors of old estimates vanish as labels end. Ties are
//! decided for the node with more of the inputs, then fewer outstanding labels, then the lowest id.

use super::{Candidate, OnlineView, PlacementRequest, Policy, PolicyChoice, Reason};
use std::cmp::Reverse;

/// Policy that balances waiting against fetching inputs.
#[derive(Clone, Copy, Debug)]
pub struct MinWait;

impl Policy for MinWait {
    fn name(&self) -> &'static str {
        "min-wait"
    }

    fn place(
        &self,
        _request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        least(view).as_ref().map(choice)
    }

    fn weighs_waits(&self) -> bool {
        true
    }

    fn chosen(&mut self, _choice: &PolicyChoice) {}
}

/// Returns the storage node with the least wait.
pub(super) fn least(view: &mut dyn OnlineView) -> Option<Candidate> {
    let stores = view.by_wait().iter();
    let least = stores.min_by_key(|store| {
        let cost = &store.estimate;
        let wait_ns = cost.wait_ns.saturating_add(cost.transfer_ns);
        (
            wait_ns,
            Reverse(store.local_bytes),
            store.outstanding,
            cost.node,
        )
    });
    least.copied()
}

/// Returns the policy's answer for the node that [`least`] returned.
pub(super) fn choice(best: &Candidate) -> PolicyChoice {
    let cost = &best.estimate;
    let reason = Reason::LeastWait {
        wait_ns: cost.wait_ns,
        transfer_ns: cost.transfer_ns,
    };
    PolicyChoice {
        node: cost.node,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::super::FullScan;
    use super::super::tests::{request, store};
    use super::*;

    fn chosen(all: &[Candidate]) -> u32 {
        MinWait
            .place(&request(), &mut FullScan::of(all))
            .unwrap()
            .node
            .0
    }

    #[test]
    fn min_wait_moves_task_if_faster_than_waiting() {
        let mut all = [store(0), store(1)];
        all[0].local_bytes = 100;
        all[1].estimate.transfer_ns = 10;
        all[0].estimate.wait_ns = 9;
        assert_eq!(chosen(&all), 0);
        all[0].estimate.wait_ns = 11;
        assert_eq!(chosen(&all), 1);
    }

    #[test]
    fn min_wait_breaks_ties_by_locality_load_id() {
        let mut all = [store(0), store(1), store(2)];
        assert_eq!(chosen(&all), 0);
        all[0].outstanding = 1;
        assert_eq!(chosen(&all), 1);
        all[2].local_bytes = 1;
        assert_eq!(chosen(&all), 2);
    }
}
