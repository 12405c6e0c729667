//! Hybrid (AnalyzeThis §3.2, "HY"): reduce tasks and unaligned tasks run on the host's node; another policy places all other tasks.
//!
//! - A *reduce* task has at least [`REDUCE_INPUTS_MIN`] inputs that are stored on at least [`REDUCE_HOLDERS_MIN`] nodes: its inputs
//!   would move in any case.
//! - *Unaligned* tasks are the last, incomplete wave of similar tasks: of n that became ready together on c storage cores the last n mod c,
//!   if n > c (a wave that is incomplete from the start has no stragglers).
//!
//! Without a host's node, or while its queue is full, the other policy decides.

use super::{Choice, Memory, Policy, Reason, Request, View};

/// Minimum number of inputs of a reduce task.
pub const REDUCE_INPUTS_MIN: usize = 3;
/// Minimum number of nodes that hold these inputs.
pub const REDUCE_HOLDERS_MIN: usize = 2;

/// Another policy combined with the host's node.
#[derive(Debug)]
pub struct Hybrid {
    base: Box<dyn Policy>,
    name: String,
}

impl Hybrid {
    /// Returns the policy with `base` for all tasks that are not the host's work.
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

    fn place(&self, request: &Request<'_>, view: &mut dyn View) -> Option<Choice> {
        let host = view
            .host()
            .filter(|host| host.room)
            .map(|host| host.estimate.node);
        let on_host = host.and_then(|node| {
            Some(Choice {
                node,
                reason: host_work(request, view)?,
            })
        });
        on_host.or_else(|| self.base.place(request, view))
    }

    fn memory(&self) -> Memory {
        self.base.memory()
    }

    fn restore(&mut self, memory: Memory) {
        self.base.restore(memory);
    }

    fn weighs_waits(&self) -> bool {
        self.base.weighs_waits()
    }

    fn chosen(&mut self, choice: &Choice) {
        if !matches!(
            choice.reason,
            Reason::Reduce { .. } | Reason::Unaligned { .. }
        ) {
            self.base.chosen(choice);
        }
    }
}

/// Returns the reason for which a task is the host's work, if it is.
fn host_work(request: &Request<'_>, view: &mut dyn View) -> Option<Reason> {
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
    use crate::event::Role;

    fn cluster() -> [Candidate; 5] {
        let host = Candidate {
            role: Role::Host,
            ..store(9)
        };
        [store(0), store(1), store(2), store(3), host]
    }

    fn chosen(request: &Request<'_>, all: &[Candidate]) -> u32 {
        let policy = Hybrid::over(Box::new(RoundRobin::default()));
        policy
            .place(request, &mut FullScan::of(all))
            .unwrap()
            .node
            .0
    }

    #[test]
    fn hybrid_sends_gathering_task_to_host() {
        let reduce = Request {
            inputs: 3,
            holders: 2,
            ..request()
        };
        assert_eq!(chosen(&reduce, &cluster()), 9);
        assert_eq!(
            chosen(
                &Request {
                    inputs: 2,
                    ..reduce
                },
                &cluster()
            ),
            0
        );
        assert_eq!(
            chosen(
                &Request {
                    holders: 1,
                    ..reduce
                },
                &cluster()
            ),
            0
        );
    }

    #[test]
    fn hybrid_sends_last_two_of_ten_on_four_cores_to_host() {
        let at = |left| Request {
            wave_left: left,
            wave_size: 10,
            ..request()
        };
        let places: Vec<u32> = (1..=10)
            .rev()
            .map(|left| chosen(&at(left), &cluster()))
            .collect();
        assert_eq!(places, [0, 0, 0, 0, 0, 0, 0, 0, 9, 9]);
        let one_wave = Request {
            wave_left: 1,
            wave_size: 3,
            ..request()
        };
        assert_eq!(chosen(&one_wave, &cluster()), 0);
    }

    #[test]
    fn hybrid_without_free_host_uses_inner_policy() {
        let reduce = Request {
            inputs: 3,
            holders: 2,
            ..request()
        };
        let mut all = cluster();
        assert_eq!(chosen(&reduce, &all[..4]), 0);
        all[4].room = false;
        assert_eq!(chosen(&reduce, &all), 0);
    }
}
