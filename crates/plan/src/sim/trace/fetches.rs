//! Measurements of fetches in a run: the latency of one fetch, and the rate of links.

use super::{Trace, TraceTask, rate};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::time::Span;

/// Minimum size of a fetch whose rate is meaningful for a link that is known to be faster, in bytes.
const MEASURED_BYTES_MIN: u64 = 1 << 20;

/// Measurements of fetches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fetches {
    /// Time from the request for an object to its first byte.
    pub(super) latency: Span,
    /// Rate of large fetches without their latencies, in bytes per second; `None` if there were no large fetches.
    pub(super) bytes_per_sec: Option<u64>,
}

/// Fetches of one task.
struct Fetch {
    bytes: u64,
    objects: u64,
    ns: u64,
}

impl Trace {
    /// Returns the median latency of tasks that fetched few bytes, and the rate of all other tasks together.
    pub(super) fn fetches(&self) -> Fetches {
        let links = self.nodes.iter().map(|one| one.link_bytes_per_sec);
        let reported = links.max().unwrap_or(0);
        let (small, large): (Vec<Fetch>, Vec<Fetch>) =
            self.fetched().into_iter().partition(|fetch| {
                let at_link = u128::from(fetch.bytes) * 2_000_000_000;
                fetch.bytes < MEASURED_BYTES_MIN
                    && at_link < u128::from(fetch.ns) * u128::from(reported)
            });
        let mut latencies: Vec<u64> = small.iter().map(|fetch| fetch.ns / fetch.objects).collect();
        latencies.sort_unstable();
        let latency = latencies.get(latencies.len() / 2).copied().unwrap_or(0);
        // If the median of other tasks is far off, at least half of the time is left to the bytes.
        let bytes_ns = |fetch: &Fetch| {
            let waited = (fetch.objects * latency).min(fetch.ns / 2);
            (fetch.bytes, fetch.ns - waited)
        };
        Fetches {
            latency: Span(latency),
            bytes_per_sec: rate(large.iter().map(bytes_ns)),
        }
    }

    /// Returns every task that fetched data, with the objects that no earlier task fetched to its node.
    fn fetched(&self) -> Vec<Fetch> {
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
        let mut fetches = Vec::new();
        for task in tasks {
            let elsewhere = |path: &&String| homes.get(*path) != Some(&task.node);
            let inputs = task.inputs.iter().filter(elsewhere);
            let new = inputs.filter(|path| brought.insert((task.node, *path)));
            let objects = (new.count() as u64).max(1);
            let ns = task.kernel_start_ns.saturating_sub(task.start_ns);
            if task.transferred_bytes > 0 && ns > 0 {
                let bytes = task.transferred_bytes;
                fetches.push(Fetch { bytes, objects, ns });
            }
        }
        fetches
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TRACE;
    use super::*;

    /// Returns a trace with two tasks: they fetch `raw` to the second node and `part` to the first.
    fn trace(moved: [u64; 2], ns: [u64; 2]) -> Trace {
        let mut trace = Trace::parse("t.json", TRACE).unwrap();
        trace.tasks[1].node = 3;
        for (task, (bytes, ns)) in trace.tasks.iter_mut().zip(moved.into_iter().zip(ns)) {
            task.transferred_bytes = bytes;
            task.kernel_start_ns = task.start_ns + ns;
        }
        trace
    }

    #[test]
    fn small_fetches_determine_latency_and_large_ones_rate() {
        let fetches = trace([100, 10_000_000], [5_000_000, 105_000_000]).fetches();
        let expected = Fetches {
            latency: Span::from_millis(5),
            bytes_per_sec: Some(100_000_000),
        };
        assert_eq!(fetches, expected);
    }

    #[test]
    fn small_fetches_alone_determine_no_rate() {
        let fetches = trace([100, 200], [5_000_000, 6_000_000]).fetches();
        assert_eq!(
            (fetches.latency, fetches.bytes_per_sec),
            (Span::from_millis(6), None)
        );
    }

    #[test]
    fn small_fetches_over_known_slow_link_determine_rate() {
        let mut trace = trace([1000, 0], [1_000_000_000, 0]);
        for node in &mut trace.nodes {
            node.link_bytes_per_sec = 1000;
        }
        let fetches = trace.fetches();
        assert_eq!(
            (fetches.latency, fetches.bytes_per_sec),
            (Span(0), Some(1000))
        );
    }
}
