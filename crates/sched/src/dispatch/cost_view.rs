//! View of the cluster for a policy that places a task: computes its costs only on the nodes that the policy requests.

use super::id_set::IdSet;
use super::node::{Mean, NodeState, expected_run, transfer};
use super::nodes::Nodes;
use super::place::TaskReads;
use super::run_times::{KernelRuns, Learned};
use super::task::DispatchedTask;
use crate::policy::{Candidate, CountedNodes, OnlineView};
use crate::score::Weights;
use std::iter::Peekable;
use tidemill_model::event::{Estimate, Role};
use tidemill_model::id::NodeId;
use tidemill_model::resources::Needs;
use tidemill_model::time::{Span, Time};

/// Number of storage nodes up to which examining all nodes is less work than keeping the nodes in order.
const SCAN_MAX: usize = 16;

/// View of the cluster for placing one task.
#[derive(Debug)]
pub(super) struct CostView<'a> {
    nodes: &'a mut Nodes,
    costs: TaskCosts<'a>,
    now: Time,
    /// Nodes that can't run the task, that failed it before, or that are full of data, in order of ids. If no other storage node is online,
    /// only the nodes that can't run the task.
    unfit: Vec<NodeId>,
    lists: ViewLists,
}

/// Lists that one view after the other reuses.
#[derive(Debug, Default)]
pub(super) struct ViewLists {
    /// Candidates that the last query returned.
    shown: Vec<Candidate>,
    found: Vec<NodeId>,
}

/// Data for computing the costs of a task.
#[derive(Debug)]
struct TaskCosts<'a> {
    needs: &'a Needs,
    now: Time,
    reads: &'a TaskReads,
    runs: &'a KernelRuns,
    pooled: Option<Span>,
    earliest: Span,
    /// Last computed transfer of inputs: bytes, rate and time. Most nodes fetch the same bytes at the same rate.
    fetched: (u64, u64, Span),
}

impl TaskCosts<'_> {
    /// Returns whether the task needs one core and nothing else, so that it waits on a node as long as any other such task.
    fn is_plain(&self) -> bool {
        self.needs.cores == 1 && self.needs.only_cores()
    }

    /// Returns the costs of the task on a node as a candidate. `local_bytes` is the size of the inputs on the node, and `own` is the node's
    /// own mean run time, if the node has run the kernel.
    fn on(
        &mut self,
        (id, node): (NodeId, &NodeState),
        wait: Span,
        local_bytes: u64,
        own: Option<Mean>,
    ) -> Candidate {
        let view = &node.view;
        let transfer_bytes = self.reads.bytes - local_bytes;
        let run = own.map(|mean| mean.scaled(self.reads.bytes));
        let rate = view.link_bytes_per_sec;
        if (transfer_bytes, rate) != (self.fetched.0, self.fetched.1) {
            self.fetched = (transfer_bytes, rate, transfer(transfer_bytes, rate));
        }
        let wait = if self.is_plain() {
            wait
        } else {
            node.wait_for(self.needs, wait, self.now)
        };
        Candidate {
            role: view.role,
            cores: view.offers.cores,
            has_space: node.has_space(),
            outstanding: node.outstanding.len(),
            local_bytes,
            slots: node.slots(),
            free_bytes: view.free_bytes,
            watts_milli: view.watts_milli,
            standing: node.standing(),
            estimate: Estimate {
                node: id,
                wait_ns: wait.max(self.earliest).0,
                transfer_ns: self.fetched.2.0,
                transfer_bytes,
                run_ns: run.or(self.pooled).unwrap_or_default().0,
            },
        }
    }
}

impl<'a> CostView<'a> {
    /// Returns the view for a task. `earliest` is the time until which the task waits in any case; the nodes `barred`, in order of ids,
    /// can't run the task.
    pub(super) fn new(
        nodes: &'a mut Nodes,
        learned: &'a Learned,
        (task, barred): (&'a DispatchedTask, &[NodeId]),
        reads: &'a TaskReads,
        (earliest, now): (Span, Time),
        lists: ViewLists,
    ) -> Self {
        nodes.renew(now);
        let runs = learned.of(task.kernel);
        let stores = nodes.stores();
        let mut unfit: Vec<NodeId> = nodes.full().union(&task.avoid).copied().collect();
        if !barred.is_empty() {
            unfit.extend(barred);
            unfit.sort_unstable();
            unfit.dedup();
        }
        if unfit.iter().filter(|id| stores.contains(id)).count() == stores.len() {
            unfit.clear();
            unfit.extend(barred);
        }
        Self {
            nodes,
            costs: TaskCosts {
                needs: &task.spec.needs,
                now,
                reads,
                runs,
                pooled: expected_run(&runs.pooled, reads.bytes),
                earliest,
                fetched: (0, 0, Span::default()),
            },
            now,
            unfit,
            lists,
        }
    }

    /// Returns the costs of the task on a node; `None` if the task must not run on the node.
    pub(super) fn candidate(&mut self, id: NodeId) -> Option<Candidate> {
        if self.unfit.binary_search(&id).is_ok() {
            return None;
        }
        let (node, wait) = self.nodes.up(id, self.now)?;
        let runs = self.costs.runs;
        let own = runs.by_node.get(&id).and_then(|(_, mean)| *mean);
        let held = self.costs.reads.held(id);
        Some(self.costs.on((id, node), wait, held, own))
    }

    fn roll(&self, of: CountedNodes) -> &IdSet {
        match of {
            CountedNodes::Stores => self.nodes.stores(),
            CountedNodes::Open => self.nodes.open(),
        }
    }

    /// Returns the lists of the view, to reuse them for the next task.
    pub(super) fn into_lists(self) -> ViewLists {
        self.lists
    }

    /// Returns the nodes that the query found, and the storage nodes that hold inputs of the task.
    fn show_with_holders(&mut self) -> &[Candidate] {
        self.lists.shown.clear();
        let local = self.costs.reads.local.iter();
        let holders = local.filter(|(_, bytes)| *bytes > 0).map(|(id, _)| *id);
        self.lists.found.extend(holders);
        for index in 0..self.lists.found.len() {
            let candidate = self.candidate(self.lists.found[index]);
            let candidate = candidate.filter(|one| one.role == Role::Store);
            self.lists.shown.extend(candidate);
        }
        &self.lists.shown
    }
}

/// Returns whether a node differs from other nodes by more than its load.
fn apart(id: NodeId, reads: &TaskReads, unfit: &[NodeId]) -> bool {
    reads.held(id) > 0 || unfit.binary_search(&id).is_ok()
}

/// Returns the value of node `id` in a series in order of node ids, and skips the values of earlier nodes.
fn at<'a, V>(
    series: &mut Peekable<impl Iterator<Item = (&'a NodeId, &'a V)>>,
    node: NodeId,
) -> Option<&'a V> {
    while series.next_if(|(other, _)| **other < node).is_some() {}
    series
        .next_if(|(other, _)| **other == node)
        .map(|(_, value)| value)
}

impl CostView<'_> {
    /// Returns all nodes on which the task may be placed, including the server cores.
    pub(super) fn all(&mut self) -> &[Candidate] {
        let (costs, unfit, shown) = (&mut self.costs, &self.unfit, &mut self.lists.shown);
        let (reads, runs) = (costs.reads, costs.runs);
        // Nodes, histories and bytes held are all in the order of nodes, so they are read in parallel.
        let mut runs = runs.by_node.iter().peekable();
        let held = reads.local.iter().map(|(id, bytes)| (id, bytes));
        let mut held = held.peekable();
        shown.clear();
        self.nodes.for_each_up(self.now, |id, node, wait| {
            let own = at(&mut runs, id).and_then(|(_, mean)| *mean);
            let held = at(&mut held, id).copied().unwrap_or_default();
            if unfit.binary_search(&id).is_err() {
                shown.push(costs.on((id, node), wait, held, own));
            }
        });
        &self.lists.shown
    }
}

impl CostView<'_> {
    /// Returns the same as [`Self::all`], without the server cores.
    pub(super) fn all_stores(&mut self) -> &[Candidate] {
        self.all();
        self.lists.shown.retain(|one| one.role == Role::Store);
        &self.lists.shown
    }
}

impl OnlineView for CostView<'_> {
    fn by_wait(&mut self) -> &[Candidate] {
        let (reads, earliest) = (self.costs.reads, self.costs.earliest);
        self.lists.found.clear();
        if self.nodes.stores().len() <= SCAN_MAX || !self.costs.is_plain() {
            let stores = self.nodes.stores().iter();
            let others = stores.filter(|&&id| reads.held(id) == 0);
            self.lists.found.extend(others);
        } else {
            let apart = |id| apart(id, reads, &self.unfit);
            let found = &mut self.lists.found;
            self.nodes.least(self.now, earliest, apart, found);
        }
        self.show_with_holders()
    }

    fn in_turn(&mut self, last: Option<NodeId>) -> &[Candidate] {
        let next = |ids: &IdSet| {
            let mut turn = ids.turn(last);
            let next = turn.find(|&&id| !apart(id, self.costs.reads, &self.unfit));
            next.copied()
        };
        let next = next(self.nodes.open()).or_else(|| next(self.nodes.stores()));
        self.lists.found.clear();
        self.lists.found.extend(next);
        self.show_with_holders()
    }

    fn by_score(&mut self, weights: &Weights) -> &[Candidate] {
        self.lists.found.clear();
        let best = self
            .nodes
            .best(weights, |id| apart(id, self.costs.reads, &self.unfit));
        self.lists.found.extend(best);
        self.show_with_holders()
    }

    fn stores(&mut self) -> &[Candidate] {
        self.all_stores()
    }

    fn count(&mut self, of: CountedNodes) -> usize {
        self.roll(of).count(&self.unfit)
    }

    fn nth(&mut self, of: CountedNodes, index: usize) -> Option<NodeId> {
        self.roll(of).nth(index, &self.unfit)
    }

    fn server_cores(&mut self) -> Option<Candidate> {
        let mut server_cores = self.nodes.server_cores().iter();
        let server_cores = *server_cores.find(|id| self.unfit.binary_search(id).is_err())?;
        self.candidate(server_cores)
    }

    fn store_cores(&mut self) -> u64 {
        let stores = self.nodes.stores();
        let unfit = self.unfit.iter().filter(|id| stores.contains(id));
        let cores = unfit.filter_map(|id| Some(u64::from(self.nodes.get(id)?.view.offers.cores)));
        self.nodes.store_cores() - cores.sum::<u64>()
    }
}
