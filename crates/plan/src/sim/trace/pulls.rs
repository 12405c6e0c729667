//! Measurements of pulls in a run: the latency of one pull, and the rate of links.

use super::{Trace, TraceTask, rate};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_core::time::Span;

/// Minimum size of a pull whose rate is meaningful for a link that is known to be faster, in bytes.
const MEASURED_BYTES_MIN: u64 = 1 << 20;

/// Measurements of pulls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pulls {
    /// Time from the request for an object to its first byte.
    pub(super) latency: Span,
    /// Rate of large pulls without their latencies; `None` if there were none.
    pub(super) bytes_per_sec: Option<u64>,
}

/// Pulls of one task.
struct Pull {
    bytes: u64,
    objects: u64,
    ns: u64,
}

impl Trace {
    /// Returns the median latency of tasks that pulled little, and the rate of all other tasks together.
    pub(super) fn pulls(&self) -> Pulls {
        let links = self.nodes.iter().map(|one| one.link_bytes_per_sec);
        let reported = links.max().unwrap_or(0);
        let (small, large): (Vec<Pull>, Vec<Pull>) = self.pulled().into_iter().partition(|pull| {
            let at_link = u128::from(pull.bytes) * 2_000_000_000;
            pull.bytes < MEASURED_BYTES_MIN && at_link < u128::from(pull.ns) * u128::from(reported)
        });
        let mut latencies: Vec<u64> = small.iter().map(|pull| pull.ns / pull.objects).collect();
        latencies.sort_unstable();
        let latency = latencies.get(latencies.len() / 2).copied().unwrap_or(0);
        // If the median of other tasks is far off, at least half of the time is left to the bytes.
        let bytes_ns = |pull: &Pull| {
            let waited = (pull.objects * latency).min(pull.ns / 2);
            (pull.bytes, pull.ns - waited)
        };
        Pulls {
            latency: Span(latency),
            bytes_per_sec: rate(large.iter().map(bytes_ns)),
        }
    }

    /// Returns every task that pulled data, with the objects that no earlier task pulled to its node.
    fn pulled(&self) -> Vec<Pull> {
        let files = self.files.iter().map(|file| (&file.path, file.node));
        let made = self.tasks.iter().flat_map(|task| {
            let outputs = task.outputs.iter();
            outputs.map(|output| (&output.path, task.node))
        });
        let homes: BTreeMap<&String, u32> = files.chain(made).collect();
        let ran = self.tasks.iter().filter(|task| task.reused_ns.is_none());
        let mut tasks: Vec<&TraceTask> = ran.collect();
        tasks.sort_by_key(|task| task.start_ns);
        let mut brought = BTreeSet::new();
        let mut pulls = Vec::new();
        for task in tasks {
            let elsewhere = |path: &&String| homes.get(*path) != Some(&task.node);
            let inputs = task.inputs.iter().filter(elsewhere);
            let new = inputs.filter(|path| brought.insert((task.node, *path)));
            let objects = (new.count() as u64).max(1);
            let ns = task.kernel_start_ns.saturating_sub(task.start_ns);
            if task.moved_bytes > 0 && ns > 0 {
                let bytes = task.moved_bytes;
                pulls.push(Pull { bytes, objects, ns });
            }
        }
        pulls
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TRACE;
    use super::*;

    /// Returns the trace with two tasks that pull `raw` for the second node and `part` for the first.
    fn trace(moved: [u64; 2], ns: [u64; 2]) -> Trace {
        let mut trace = Trace::parse("t.json", TRACE).unwrap();
        trace.tasks[1].node = 3;
        for (task, (bytes, ns)) in trace.tasks.iter_mut().zip(moved.into_iter().zip(ns)) {
            task.moved_bytes = bytes;
            task.kernel_start_ns = task.start_ns + ns;
        }
        trace
    }

    #[test]
    fn small_pulls_determine_latency_and_large_ones_rate() {
        let pulls = trace([100, 10_000_000], [5_000_000, 105_000_000]).pulls();
        let expected = Pulls {
            latency: Span::from_millis(5),
            bytes_per_sec: Some(100_000_000),
        };
        assert_eq!(pulls, expected);
    }

    #[test]
    fn small_pulls_alone_determine_no_rate() {
        let pulls = trace([100, 200], [5_000_000, 6_000_000]).pulls();
        assert_eq!(
            (pulls.latency, pulls.bytes_per_sec),
            (Span::from_millis(6), None)
        );
    }

    #[test]
    fn small_pulls_over_known_slow_link_determine_rate() {
        let mut trace = trace([1000, 0], [1_000_000_000, 0]);
        for node in &mut trace.nodes {
            node.link_bytes_per_sec = 1000;
        }
        let pulls = trace.pulls();
        assert_eq!((pulls.latency, pulls.bytes_per_sec), (Span(0), Some(1000)));
    }
}
