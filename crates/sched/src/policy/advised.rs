//! Policy `advised`: minimum wait with the server cores as one more candidate.
//!
//! For the task t, the storage node e that `min-wait` would choose, and the server cores:
//!
//! ```text
//! time(t, e) = wait(t, e) + transfer(t, e) + run(t, e)
//! ```
//!
//! The run time counts because the server cores differ in speed from the nodes. The server cores are chosen if they save more than
//! [`TIE_PERCENT`] of the time: otherwise moving bytes does not pay. Without server cores this policy is `min-wait`.

use super::{OnlineView, PlacementRequest, Policy, PolicyChoice, Reason, min_wait};

/// Maximum difference between two times that count as equal, in percent.
const TIE_PERCENT: u64 = 1;

/// Policy that balances waiting, fetching inputs and running over storage nodes and the server cores.
#[derive(Clone, Copy, Debug)]
pub struct Advised;

impl Policy for Advised {
    fn name(&self) -> &'static str {
        "advised"
    }

    fn place(
        &self,
        _request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        let store = min_wait::least(view);
        let Some(server_cores) = view.server_cores() else {
            return store.as_ref().map(min_wait::choice);
        };
        let enough = |store: &super::Candidate| {
            let saved = store.end_ns().saturating_sub(server_cores.end_ns());
            saved <= store.end_ns() / 100 * TIE_PERCENT
        };
        let best = store.filter(enough).unwrap_or(server_cores);
        let cost = &best.estimate;
        let reason = Reason::Advised {
            wait_ns: cost.wait_ns,
            transfer_ns: cost.transfer_ns,
            run_ns: cost.run_ns,
        };
        Some(PolicyChoice {
            node: cost.node,
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
    use super::super::FullScan;
    use super::super::tests::{request, store};
    use super::super::{Candidate, Role};
    use super::*;

    fn server_cores(id: u32) -> Candidate {
        Candidate {
            role: Role::ServerCores,
            ..store(id)
        }
    }

    fn chosen(all: &[Candidate]) -> u32 {
        Advised
            .place(&request(), &mut FullScan::of(all))
            .unwrap()
            .node
            .0
    }

    #[test]
    fn advised_chooses_server_cores_if_transfer_and_run_are_faster() {
        let mut all = [store(0), server_cores(9)];
        all[0].estimate.run_ns = 1_000;
        all[1].estimate.run_ns = 200;
        all[1].estimate.transfer_ns = 900;
        assert_eq!(chosen(&all), 0);
        all[1].estimate.transfer_ns = 700;
        assert_eq!(chosen(&all), 9);
        all[1].estimate.wait_ns = 200;
        assert_eq!(chosen(&all), 0);
    }

    #[test]
    fn advised_prefers_storage_at_equal_time() {
        let mut all = [server_cores(0), store(1)];
        for one in &mut all {
            one.estimate.run_ns = 10_000;
        }
        all[1].outstanding = 3;
        assert_eq!(chosen(&all), 1);
        all[1].estimate.wait_ns = 100;
        assert_eq!(chosen(&all), 1, "one per cent more time is still equal");
        all[1].estimate.wait_ns = 110;
        assert_eq!(chosen(&all), 0);
        assert_eq!(chosen(&[server_cores(0)]), 0, "there is no other");
    }

    #[test]
    fn advised_without_server_cores_equals_min_wait() {
        let mut all = [store(0), store(1)];
        all[0].estimate.wait_ns = 500;
        all[0].estimate.run_ns = 1;
        all[1].estimate.transfer_ns = 400;
        all[1].estimate.run_ns = 1_000;
        let answer = |policy: &dyn Policy| policy.place(&request(), &mut FullScan::of(&all));
        assert_eq!(answer(&Advised), answer(&super::super::MinWait));
        assert_eq!(chosen(&all), 1);
    }

    #[test]
    fn advised_never_overflows_at_largest_costs() {
        let mut one = server_cores(4);
        one.estimate.run_ns = u64::MAX;
        one.estimate.transfer_ns = u64::MAX;
        one.estimate.transfer_bytes = u64::MAX;
        one.estimate.wait_ns = u64::MAX;
        assert_eq!(chosen(&[one]), 4);
    }
}
