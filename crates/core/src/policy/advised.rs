//! Advised: minimum wait with the host element as one more candidate, and energy as the second key.
//!
//! For a task t and every element e, the host's included:
//!
//! ```text
//! time(t, e)   = wait(t, e) + run(t, e)          with wait as in `min-wait`
//! energy(t, e) = busy power(e) · run(t, e) + idle power(e) · transfer(t, e) + link energy · bytes moved
//! ```
//!
//! The run time counts because the host's cores are of another kind; where all run a kernel equally fast, time
//! differs by the wait alone. Among elements whose time is within [`TIE_PERCENT`] of the least the one with the least
//! energy is chosen; further ties go as in `min-wait`. Powers are those of Active Flash (FAST 2013): a core of its
//! device for storage elements, a core of its analysis node for the host, the longer of its two ways for the link.

use super::{Candidate, Choice, Policy, Reason, Request, View};
use crate::event::Role;
use std::cmp::Reverse;

/// Times that differ by no more than this count as equal.
const TIE_PERCENT: u64 = 1;
/// A storage element's core at work (Table 2: 3 W, four cores) and waiting (0.09 W), in microwatts.
const STORE_MICROWATTS: (u64, u64) = (750_000, 22_500);
/// A host's core at work (§5: 190 W, eight cores) and waiting (63 W), in microwatts.
const HOST_MICROWATTS: (u64, u64) = (23_750_000, 7_875_000);
/// Moving a byte over the link (10 pJ/bit), in picojoules.
const LINK_PICOJOULES_PER_BYTE: u64 = 80;

/// Balances waiting, moving and running over all elements, the host's too.
#[derive(Clone, Copy, Debug)]
pub struct Advised;

impl Policy for Advised {
    fn name(&self) -> &'static str {
        "advised"
    }

    fn place(&self, _request: &Request<'_>, view: &mut dyn View) -> Option<Choice> {
        let first = view.ending_first(TIE_PERCENT);
        let bound_ns = within(first.iter().map(Candidate::end_ns).min()?, TIE_PERCENT);
        let equal = first.iter().filter(|one| one.end_ns() <= bound_ns);
        let best = equal.min_by_key(|one| {
            (
                energy_nj(one),
                Reverse(one.local_bytes),
                one.outstanding,
                one.estimate.element,
            )
        })?;
        let cost = &best.estimate;
        let reason = Reason::Advised {
            wait_ns: cost.wait_ns,
            transfer_ns: cost.transfer_ns,
            run_ns: cost.run_ns,
            energy_nj: energy_nj(best),
        };
        Some(Choice {
            element: cost.element,
            reason,
        })
    }

    fn chosen(&mut self, _choice: &Choice) {}
}

/// The latest of the times that are no more than so many per cent after one.
pub(crate) fn within(ns: u64, percent: u64) -> u64 {
    ns.saturating_add(ns / 100 * percent)
}

/// What the task would take there, in nanojoules.
fn energy_nj(one: &Candidate) -> u64 {
    let (busy, idle) = match one.role {
        Role::Store => STORE_MICROWATTS,
        Role::Host => HOST_MICROWATTS,
    };
    let cost = &one.estimate;
    // A microwatt for a nanosecond is a femtojoule.
    let cores_fj = u128::from(busy) * u128::from(cost.run_ns)
        + u128::from(idle) * u128::from(cost.transfer_ns);
    let link_pj = u128::from(LINK_PICOJOULES_PER_BYTE) * u128::from(cost.transfer_bytes);
    u64::try_from(cores_fj / 1_000_000 + link_pj / 1_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::FullScan;
    use super::super::tests::{request, store};
    use super::*;

    fn host(id: u32) -> Candidate {
        Candidate {
            role: Role::Host,
            ..store(id)
        }
    }

    fn chosen(all: &[Candidate]) -> u32 {
        Advised
            .place(&request(), &mut FullScan::of(all))
            .unwrap()
            .element
            .0
    }

    #[test]
    fn the_host_is_chosen_once_moving_there_and_running_faster_takes_less_time() {
        let mut all = [store(0), host(9)];
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
    fn equal_times_go_to_the_least_energy_before_anything_else() {
        let mut all = [host(0), store(1)];
        for one in &mut all {
            one.estimate.run_ns = 10_000;
        }
        all[1].outstanding = 3;
        assert_eq!(
            chosen(&all),
            1,
            "a storage core takes less than a host core"
        );
        all[1].estimate.wait_ns = 100;
        assert_eq!(chosen(&all), 1, "one per cent more time is still equal");
        all[1].estimate.wait_ns = 101;
        assert_eq!(chosen(&all), 0);
    }

    #[test]
    fn moving_costs_energy_and_further_ties_are_those_of_minimum_wait() {
        let mut all = [store(0), store(1), store(2)];
        all[0].estimate.transfer_bytes = 1_000_000;
        assert_eq!(chosen(&all), 1);
        all[1].outstanding = 1;
        assert_eq!(chosen(&all), 2);
        all[1].local_bytes = 1;
        assert_eq!(chosen(&all), 1);
    }

    #[test]
    fn energy_by_hand() {
        let mut one = host(0);
        one.estimate.run_ns = 2_000_000_000;
        one.estimate.transfer_ns = 1_000_000_000;
        one.estimate.transfer_bytes = 1_000_000_000;
        // 2 s · 23.75 W + 1 s · 7.875 W + 1 GB · 80 pJ/B
        assert_eq!(energy_nj(&one), 47_500_000_000 + 7_875_000_000 + 80_000_000);
    }

    #[test]
    fn without_a_history_and_without_a_host_it_is_minimum_wait() {
        let mut all = [store(0), store(1)];
        all[0].estimate.wait_ns = 500;
        all[1].estimate.transfer_ns = 400;
        assert_eq!(chosen(&all), 1);
        assert_eq!(
            super::super::MinWait
                .place(&request(), &mut FullScan::of(&all))
                .unwrap()
                .element
                .0,
            1
        );
    }

    #[test]
    fn costs_without_bound_do_not_overflow() {
        let mut one = host(4);
        one.estimate.run_ns = u64::MAX;
        one.estimate.transfer_ns = u64::MAX;
        one.estimate.transfer_bytes = u64::MAX;
        one.estimate.wait_ns = u64::MAX;
        assert_eq!(chosen(&[one]), 4);
    }
}
