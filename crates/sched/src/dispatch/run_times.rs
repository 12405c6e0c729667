//! Run times per kernel: the histories of all nodes, arranged by kernel, so that placing a task needs one look-up instead of one per node.
//!
//! A kernel's name is looked up when a job or a status arrives; after that the kernel is named by its number.

use super::node::Mean;
use super::table::IdTable;
use std::collections::BTreeMap;
use tidemill_model::event::History;
use tidemill_model::id::NodeId;

/// Number of a kernel, in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KernelNumber(u32);

/// Run-time histories of all kernels on all nodes.
#[derive(Debug, Default)]
pub(super) struct Learned {
    numbers: BTreeMap<String, KernelNumber>,
    kernels: Vec<KernelRuns>,
}

/// Run-time histories of one kernel.
#[derive(Debug, Default)]
pub(super) struct KernelRuns {
    /// History on each node that ran the kernel; no mean before the first run has ended.
    pub(super) by_node: IdTable<NodeId, (History, Option<Mean>)>,
    /// Combined history of the kernel on all nodes.
    pub(super) pooled: History,
}

impl Learned {
    /// Returns the number of a kernel, and assigns one to an unknown kernel.
    pub(super) fn number(&mut self, kernel: &str) -> KernelNumber {
        if let Some(&number) = self.numbers.get(kernel) {
            return number;
        }
        let count = u32::try_from(self.kernels.len());
        let number = KernelNumber(count.expect("names of 2^32 kernels do not fit in memory"));
        self.numbers.insert(kernel.to_owned(), number);
        self.kernels.push(KernelRuns::default());
        number
    }

    fn runs(&mut self, kernel: KernelNumber) -> &mut KernelRuns {
        &mut self.kernels[kernel.0 as usize]
    }

    pub(super) fn of(&self, kernel: KernelNumber) -> &KernelRuns {
        &self.kernels[kernel.0 as usize]
    }

    /// Returns a node's run-time histories by kernel.
    pub(super) fn on(&self, node: NodeId) -> BTreeMap<String, History> {
        let known = |(name, &number): (&String, &KernelNumber)| {
            let (history, _) = self.of(number).by_node.get(&node)?;
            Some((name.clone(), *history))
        };
        self.numbers.iter().filter_map(known).collect()
    }

    /// Stores a node's report on a kernel, unless more runs are known already from outcomes that arrived after the node's status was taken.
    /// Returns the kernel if it was unknown before.
    pub(super) fn report(
        &mut self,
        kernel: &str,
        node: NodeId,
        history: History,
    ) -> Option<KernelNumber> {
        let number = self.number(kernel);
        let runs = self.runs(number);
        let new = runs.pooled.runs == 0 && history.runs > 0;
        let known = runs.by_node.get(&node);
        if known.is_none_or(|(known, _)| known.runs <= history.runs) {
            runs.set(node, history);
        }
        new.then_some(number)
    }

    /// Records a successful run of a kernel, together with the node's history.
    pub(super) fn add(
        &mut self,
        kernel: KernelNumber,
        node: NodeId,
        (run_ns, read_bytes): (u64, u64),
    ) -> History {
        let runs = self.runs(kernel);
        let known = runs.by_node.get(&node);
        let mut history = known.map_or_else(History::default, |(history, _)| *history);
        history.runs += 1;
        history.total_ns = history.total_ns.saturating_add(run_ns);
        history.input_bytes = history.input_bytes.saturating_add(read_bytes);
        runs.set(node, history);
        history
    }
}

impl KernelRuns {
    /// Replaces the history of the kernel on a node.
    fn set(&mut self, node: NodeId, history: History) {
        let known = (history, Mean::of(&history));
        let old = self.by_node.insert(node, known);
        let old = old.map_or_else(History::default, |(old, _)| old);
        let pooled = &mut self.pooled;
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
    fn pooled_run_times_sum_latest_report_of_each_node() {
        let mut learned = Learned::default();
        for (node, runs) in [(1, 3), (2, 4), (1, 5)] {
            learned.report("mean", NodeId(node), history(runs));
        }
        let mean = learned.number("mean");
        assert_eq!(learned.of(mean).pooled, history(9));
        let added = learned.add(mean, NodeId(2), (10, 100));
        assert_eq!((added, learned.of(mean).pooled), (history(5), history(10)));
    }

    #[test]
    fn run_times_ignore_report_with_fewer_runs() {
        let mut learned = Learned::default();
        let node = NodeId(1);
        learned.report("mean", node, history(3));
        learned.report("mean", node, history(2));
        learned.report("sum", NodeId(2), history(1));
        let known = BTreeMap::from([("mean".to_owned(), history(3))]);
        assert_eq!(learned.on(node), known);
    }
}
