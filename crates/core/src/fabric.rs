//! Fabric schedulers: which core of an element runs a label (AnalyzeThis §6.2, the second of the two levels;
//! the first is [`crate::policy`]). A scheduler is a pure function of the cores' queues and its own small
//! state. To add one: a type here and a row in [`by_name`].
//!
//! A running element has one queue for all its cores, which is [`FirstFree`]. The others bind a label to a
//! core as soon as it may run, which a device with a queue per core has to do.

use crate::time::Span;
use std::fmt;

/// The scheduler of a running element, and of one that names none.
pub const DEFAULT: &str = "first-free";

/// Names that [`by_name`] knows, for help texts and errors.
pub const NAMES: [&str; 4] = [
    "first-free",
    "round-robin",
    "least-loaded",
    "shortest-expected",
];

/// A core as a scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Core {
    /// Labels that are bound to it, the one that it runs counted.
    pub labels: usize,
    /// Time that they were expected to take together when they were bound.
    pub expected: Span,
}

/// Chooses cores.
pub trait Fabric: fmt::Debug + Send {
    /// The core for the next label by its index; `None`: the label waits until a core has changed.
    fn pick(&mut self, cores: &[Core]) -> Option<usize>;
}

/// A core that has nothing to do takes the next label; until then labels wait together.
#[derive(Clone, Copy, Debug)]
pub struct FirstFree;

impl Fabric for FirstFree {
    fn pick(&mut self, cores: &[Core]) -> Option<usize> {
        cores.iter().position(|core| core.labels == 0)
    }
}

/// Cores in turn, whatever they have to do (AnalyzeThis §6.3).
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    next: usize,
}

impl Fabric for RoundRobin {
    fn pick(&mut self, cores: &[Core]) -> Option<usize> {
        let core = self.next.checked_rem(cores.len())?;
        self.next = core + 1;
        Some(core)
    }
}

/// The core with the fewest labels; of equals the first.
#[derive(Clone, Copy, Debug)]
pub struct LeastLoaded;

impl Fabric for LeastLoaded {
    fn pick(&mut self, cores: &[Core]) -> Option<usize> {
        (0..cores.len()).min_by_key(|&core| cores[core].labels)
    }
}

/// The core whose labels are expected to take the least time; of equals the one with fewer, then the first.
#[derive(Clone, Copy, Debug)]
pub struct ShortestExpected;

impl Fabric for ShortestExpected {
    fn pick(&mut self, cores: &[Core]) -> Option<usize> {
        (0..cores.len()).min_by_key(|&core| (cores[core].expected, cores[core].labels))
    }
}

/// No fabric scheduler has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no fabric scheduler `{name}`; known are {}", NAMES.join(", "))]
pub struct UnknownFabric {
    /// The name that was asked for.
    pub name: String,
}

/// Makes the scheduler of a name.
///
/// # Errors
/// [`UnknownFabric`] with the known names.
pub fn by_name(name: &str) -> Result<Box<dyn Fabric>, UnknownFabric> {
    match name {
        "first-free" => Ok(Box::new(FirstFree)),
        "round-robin" => Ok(Box::new(RoundRobin::default())),
        "least-loaded" => Ok(Box::new(LeastLoaded)),
        "shortest-expected" => Ok(Box::new(ShortestExpected)),
        _ => Err(UnknownFabric {
            name: name.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(state: &[(usize, u64)]) -> Vec<Core> {
        let core = |&(labels, ms)| Core {
            labels,
            expected: Span::from_millis(ms),
        };
        state.iter().map(core).collect()
    }

    fn picks(name: &str, cores: &[Core], count: usize) -> Vec<Option<usize>> {
        let mut fabric = by_name(name).unwrap();
        (0..count).map(|_| fabric.pick(cores)).collect()
    }

    #[test]
    fn each_scheduler_reads_what_it_is_named_for() {
        let busy = cores(&[(1, 900), (2, 10), (3, 5)]);
        assert_eq!(picks("first-free", &busy, 1), [None]);
        assert_eq!(
            picks("round-robin", &busy, 4),
            [Some(0), Some(1), Some(2), Some(0)]
        );
        assert_eq!(picks("least-loaded", &busy, 1), [Some(0)]);
        assert_eq!(picks("shortest-expected", &busy, 1), [Some(2)]);
        let free = cores(&[(1, 5), (0, 0), (0, 0)]);
        assert_eq!(picks("first-free", &free, 2), [Some(1), Some(1)]);
    }

    #[test]
    fn every_known_name_makes_a_scheduler_that_chooses_nothing_of_nothing() {
        for name in NAMES {
            assert_eq!(by_name(name).unwrap().pick(&[]), None, "{name}");
        }
        let error = by_name("fastest").unwrap_err().to_string();
        assert!(error.contains("`fastest`") && error.contains("least-loaded"));
    }
}
