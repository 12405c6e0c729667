//! Policy `hybrid` (AnalyzeThis §3.2, "HY"): reduce and unaligned tasks run on the server cores; another policy places all other tasks.
//!
//! - A *reduce* task has at least [`REDUCE_INPUTS_MIN`] inputs that are stored on at least [`REDUCE_HOLDERS_MIN`] nodes: its inputs
//!   would be fetched in any case.
//! - *Unaligned* tasks are the last, incomplete wave of similar tasks: of n tasks that became ready together on c storage cores the last n
//!   mod c tasks, if n > c (a wave that is incomplete from the start has no stragglers).
//!
//! Without server cores, or while the queue of the server cores is full, the other policy decides.

use super::{OnlineView, PlacementRequest, Policy, PolicyChoice, PolicyState, Reason};

/// Minimum number of inputs of a reduce task.
pub const REDUCE_INPUTS_MIN: usize = 3;
/// Minimum number of nodes that hold the inputs of a reduce task.
pub const REDUCE_HOLDERS_MIN: usize = 2;

/// Another policy combined with the server cores.
#[derive(Debug)]
pub struct Hybrid {
    base: Box<dyn Policy>,
    name: String,
}

impl Hybrid {
    /// Returns the policy with `base` for all tasks that do not run on the server cores.
    #[must_use]
    pub fn over(base: Box<dyn Policy>) -> Self {
        let name = format!("hybrid:{}", base.name());
        Self { base, name }
    }
}

impl Policy for Hybrid {
    fn name(&self) -> &str {
        &self.name
    }

    fn place(
        &self,
        request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        let server_cores = view
            .server_cores()
            .filter(|server_cores| server_cores.has_space)
            .map(|server_cores| server_cores.estimate.node);
        let on_server_cores = server_cores.and_then(|node| {
            Some(PolicyChoice {
                node,
                reason: server_cores_work(request, view)?,
            })
        });
        on_server_cores.or_else(|| self.base.place(request, view))
    }

    fn memory(&self) -> PolicyState {
        self.base.memory()
    }

    fn restore(&mut self, memory: PolicyState) {
        self.base.restore(memory);
    }

    fn weighs_waits(&self) -> bool {
        self.base.weighs_waits()
    }

    fn chosen(&mut self, choice: &PolicyChoice) {
        if !matches!(
            choice.reason,
            Reason::Reduce { .. } | Reason::Unaligned { .. }
        ) {
            self.base.chosen(choice);
        }
    }
}

/// Returns the reason for which a task should run on the server cores, if there is a reason.
fn server_cores_work(request: &PlacementRequest<'_>, view: &mut dyn OnlineView) -> Option<Reason> {
    if request.inputs >= REDUCE_INPUTS_MIN && request.holders >= REDUCE_HOLDERS_MIN {
        return Some(Reason::Reduce {
            inputs: request.inputs,
            holders: request.holders,
        });
    }
    let cores = view.store_cores();
    let remainder = request.wave_size.checked_rem(cores)?;
    let unaligned = request.wave_size > cores && request.wave_left <= remainder;
    unaligned.then_some(Reason::Unaligned {
        left: request.wave_left,
        size: request.wave_size,
        cores,
    })
}

#[cfg(test)]
mod tests {
    use super::super::FullScan;
    use super::super::tests::{request, store};
    use super::super::{Candidate, RoundRobin};
    use super::*;
    use tidemill_model::event::Role;

    fn cluster() -> [Candidate; 5] {
        let server_cores = Candidate {
            role: Role::ServerCores,
            ..store(9)
        };
        [store(0), store(1), store(2), store(3), server_cores]
    }

    fn chosen(request: &PlacementRequest<'_>, all: &[Candidate]) -> u32 {
        let policy = Hybrid::over(Box::new(RoundRobin::default()));
        policy
            .place(request, &mut FullScan::of(all))
            .unwrap()
            .node
            .0
    }

    #[test]
    fn hybrid_sends_gathering_task_to_server_cores() {
        let reduce = PlacementRequest {
            inputs: 3,
            holders: 2,
            ..request()
        };
        assert_eq!(chosen(&reduce, &cluster()), 9);
        assert_eq!(
            chosen(
                &PlacementRequest {
                    inputs: 2,
                    ..reduce
                },
                &cluster()
            ),
            0
        );
        assert_eq!(
            chosen(
                &PlacementRequest {
                    holders: 1,
                    ..reduce
                },
                &cluster()
            ),
            0
        );
    }

    #[test]
    fn hybrid_sends_last_two_of_ten_on_four_cores_to_server_cores() {
        let at = |left| PlacementRequest {
            wave_left: left,
            wave_size: 10,
            ..request()
        };
        let places: Vec<u32> = (1..=10)
            .rev()
            .map(|left| chosen(&at(left), &cluster()))
            .collect();
        assert_eq!(places, [0, 0, 0, 0, 0, 0, 0, 0, 9, 9]);
        let one_wave = PlacementRequest {
            wave_left: 1,
            wave_size: 3,
            ..request()
        };
        assert_eq!(chosen(&one_wave, &cluster()), 0);
    }

    #[test]
    fn hybrid_without_free_server_cores_uses_inner_policy() {
        let reduce = PlacementRequest {
            inputs: 3,
            holders: 2,
            ..request()
        };
        let mut all = cluster();
        assert_eq!(chosen(&reduce, &all[..4]), 0);
        all[4].has_space = false;
        assert_eq!(chosen(&reduce, &all), 0);
    }
}
