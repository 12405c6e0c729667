//! Run times per kernel: what the histories of all elements say, arranged by kernel, so that placing a task
//! looks its kernel up once and not once an element.

use super::element::Mean;
use crate::event::History;
use crate::id::ElementId;
use std::collections::BTreeMap;

/// Histories of all elements.
#[derive(Debug, Default)]
pub(super) struct Learned {
    kernels: BTreeMap<String, Runs>,
}

/// Runs of one kernel.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// On each element that ran it; no mean before the first run ended.
    pub(super) by_element: BTreeMap<ElementId, (History, Option<Mean>)>,
    /// On all of them together.
    pub(super) pooled: History,
}

impl Learned {
    pub(super) fn of(&self, kernel: &str) -> Option<&Runs> {
        self.kernels.get(kernel)
    }

    /// An element's history of a kernel is this now.
    pub(super) fn set(&mut self, kernel: &str, element: ElementId, history: History) {
        if !self.kernels.contains_key(kernel) {
            self.kernels.insert(kernel.to_owned(), Runs::default());
        }
        let Some(runs) = self.kernels.get_mut(kernel) else {
            return;
        };
        let known = (history, Mean::of(&history));
        let old = runs.by_element.insert(element, known);
        let old = old.map_or_else(History::default, |(old, _)| old);
        let pooled = &mut runs.pooled;
        let renew = |sum: u64, old: u64, new: u64| sum.saturating_sub(old).saturating_add(new);
        pooled.runs = renew(pooled.runs, old.runs, history.runs);
        pooled.total_ns = renew(pooled.total_ns, old.total_ns, history.total_ns);
        pooled.input_bytes = renew(pooled.input_bytes, old.input_bytes, history.input_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(runs: u64) -> History {
        History {
            runs,
            total_ns: 10 * runs,
            input_bytes: 100 * runs,
        }
    }

    #[test]
    fn the_pool_is_the_sum_of_what_each_element_said_last() {
        let mut learned = Learned::default();
        assert!(learned.of("mean").is_none());
        for (element, runs) in [(1, 3), (2, 4), (1, 5)] {
            learned.set("mean", ElementId(element), history(runs));
        }
        let runs = learned.of("mean").unwrap();
        assert_eq!(runs.pooled, history(9));
        assert_eq!(runs.by_element[&ElementId(1)].0, history(5));
    }
}
