//! Random: any element whose queue has room, drawn from a seeded source. The yardstick for the others.

use super::{Choice, Memory, Policy, Reason, Request, View};
use crate::random::Source;

/// Draws elements; the same seed draws the same ones.
#[derive(Clone, Debug)]
pub struct Random {
    source: Source,
}

impl Random {
    /// A source that is told its seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self {
            source: Source::seeded(seed),
        }
    }
}

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn place(&self, _request: &Request<'_>, view: &mut dyn View) -> Option<Choice> {
        let drawn = self.source.clone().next_u64();
        let index = drawn.checked_rem(view.free() as u64)?;
        let element = view.nth_free(usize::try_from(index).ok()?)?;
        Some(Choice {
            element,
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
    use super::super::FullScan;
    use super::super::tests::{request, store};
    use super::*;

    fn sequence(seed: u64) -> Vec<u32> {
        let all = [store(0), store(1), store(2), store(3)];
        let mut policy = Random::seeded(seed);
        (0..400)
            .map(|_| {
                let choice = policy.place(&request(), &mut FullScan::of(&all)).unwrap();
                policy.chosen(&choice);
                choice.element.0
            })
            .collect()
    }

    #[test]
    fn a_seed_replays_its_draws_and_all_elements_come_up() {
        assert_eq!(sequence(5), sequence(5));
        assert_ne!(sequence(5), sequence(6));
        for id in 0..4 {
            let count = sequence(5).iter().filter(|&&drawn| drawn == id).count();
            assert!(
                (60..=140).contains(&count),
                "element {id} was drawn {count} times of 400"
            );
        }
    }
}
