//! Policy `minmax` (LABIOS §3.5.2): places tasks that are ready at the same time together. The placement minimises time and energy within
//! the capacity of queues and devices of nodes: a multidimensional knapsack, which is NP-hard.
//!
//! A task t that node e gets after others of the batch costs
//!
//! ```text
//! cost(t, e)    = wait(e) + queue(e) + service(t, e) + energy(t, e)
//! service(t, e) = transfer(t, e) + run(t, e)
//! queue(e)      = 0 while the batch gave e fewer tasks than it has idle cores, else
//!                 service times of the tasks that the batch gave e before / cores(e)
//! energy(t, e)  = service(t, e) · power(e) / the least power of all nodes
//! power(e)      = watts(e) / cores(e)
//! ```
//!
//! so time and energy weigh alike: a node that draws twice as much power must be twice as fast. A node without configured power counts like
//! the node that draws the most; if no node has configured power, energy counts for nothing.
//!
//! **Approximate dynamic programming** (after Bertsimas, Demir 2002): tasks are stages. The state consists of the free capacity of queues
//! and devices, and of the tasks given to each node. Of the states after a stage, only the [`BEAM`] cheapest are kept, and equal states are
//! merged. Each task is tried on its [`CHOICES`] cheapest nodes only. The result is then improved by moving tasks between its nodes and
//! exchanging pairs, in [`PASSES`] passes, or one pass for large batches. The tests compare small batches with the optimum of an exact
//! search.
//!
//! A node gets at most as many tasks as its queue has places for, and no more input than its device has space for. If no device has enough
//! space, the node with the most space is chosen: only the task itself finds out whether its input fits in the end.

use super::{
    Candidate, OnlineView, PlacementQuestion, PlacementRequest, Policy, PolicyChoice, Reason,
};
use crate::dispatch::UNKNOWN_RUN;
use std::cmp::Reverse;
use tidemill_model::id::NodeId;
use tidemill_model::layout::RESERVE_BYTES;

/// Maximum number of tasks that the policy places together.
pub const BATCH_MAX: usize = 64;
/// Number of cheapest states that are kept after each stage.
pub const BEAM: usize = 8;
/// Number of nodes on which each task is tried.
pub const CHOICES: usize = 8;

/// Number of passes over all tasks and pairs of tasks; the next constant is the number of tasks beyond which only one pass is made.
pub const PASSES: usize = 2;
const PASSES_TASKS_MAX: usize = 16;

/// Additional cost of a task whose input does not fit on the node, and the maximum cost without this addition: the cost of a batch of such
/// tasks does not overflow.
const MISFIT: u64 = 1 << 56;

/// Policy that places batches of tasks with the least time and energy.
#[derive(Clone, Copy, Debug)]
pub struct Minmax;

impl Policy for Minmax {
    fn name(&self) -> &'static str {
        "minmax"
    }

    fn place(
        &self,
        request: &PlacementRequest<'_>,
        view: &mut dyn OnlineView,
    ) -> Option<PolicyChoice> {
        let ask = PlacementQuestion {
            request: *request,
            candidates: view.stores().to_vec(),
        };
        self.place_all(&mut [ask]).pop()?
    }

    fn batch_max(&self) -> usize {
        BATCH_MAX
    }

    fn place_all(&self, batch: &mut [PlacementQuestion<'_>]) -> Vec<Option<PolicyChoice>> {
        let problem = AssignmentProblem::of(batch);
        let chosen = problem.solve();
        let together = chosen.iter().flatten().count();
        let choice = |(ask, chosen): (&PlacementQuestion<'_>, Option<usize>)| {
            let best = ask.candidates.get(chosen?)?;
            let reason = Reason::CheapestPlan {
                together,
                wait_ns: best.estimate.wait_ns,
                service_ns: service(best),
                watts_milli: best.watts_milli,
            };
            Some(PolicyChoice {
                node: best.estimate.node,
                reason,
            })
        };
        batch.iter().zip(chosen).map(choice).collect()
    }

    fn weighs_waits(&self) -> bool {
        true
    }

    fn chosen(&mut self, _choice: &PolicyChoice) {}
}

/// Returns the time for which a task occupies a core of a node.
fn service(on: &Candidate) -> u64 {
    let run = match on.estimate.run_ns {
        0 => UNKNOWN_RUN.0,
        known => known,
    };
    on.estimate.transfer_ns.saturating_add(run)
}

/// State of a node before the batch.
#[derive(Clone, Copy, Debug)]
struct BatchNode {
    node: NodeId,
    cores: u64,
    idle: u64,
    slots: u64,
    space_bytes: u64,
}

impl BatchNode {
    fn of(one: &Candidate) -> Self {
        let cores = u64::from(one.cores.max(1));
        Self {
            node: one.estimate.node,
            cores,
            idle: cores.saturating_sub(one.outstanding as u64),
            slots: one.slots as u64,
            space_bytes: one.free_bytes.saturating_sub(RESERVE_BYTES),
        }
    }
}

/// Possible node of a task, with the task's cost on the node.
#[derive(Clone, Copy, Debug)]
struct Choosable {
    site: usize,
    /// Index of the node among the task's candidates.
    place: usize,
    /// Cost of the task on the node before the batch gave the node any task.
    cost: u64,
    service: u64,
}

/// Assignment problem: possible nodes of each task, and the costs of the task on each of them.
#[derive(Debug)]
struct AssignmentProblem {
    /// Nodes in the order of ids.
    sites: Vec<BatchNode>,
    /// Input size of each task in bytes, and its possible nodes, in the order of `sites`.
    tasks: Vec<(u64, Vec<Choosable>)>,
}

/// Number and size of the tasks that the batch gave a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AssignedTasks {
    tasks: u64,
    bytes: u64,
    service: u64,
}

impl AssignedTasks {
    fn and(self, bytes: u64, service: u64) -> Self {
        Self {
            tasks: self.tasks + 1,
            bytes: self.bytes.saturating_add(bytes),
            service: self.service.saturating_add(service),
        }
    }
}

/// Placement of the first tasks of a batch.
#[derive(Clone, Debug, Default)]
struct PlacementState {
    cost: u64,
    /// Tasks given to each node, in the order of `sites`, and a digest of these tasks.
    given: Vec<(usize, AssignedTasks)>,
    digest: u64,
    /// Last step of the placement: an index into the list of steps.
    step: Option<usize>,
}

/// Placement of one task, linked to the step before it.
#[derive(Clone, Copy, Debug)]
struct PlacementStep {
    before: Option<usize>,
    place: Option<usize>,
}

impl PlacementState {
    fn given(&self, site: usize) -> AssignedTasks {
        let at = self.given.binary_search_by_key(&site, |(site, _)| *site);
        at.map_or_else(|_| AssignedTasks::default(), |at| self.given[at].1)
    }

    fn give(&mut self, site: usize, bytes: u64, service: u64) {
        let at = self.given.binary_search_by_key(&site, |(site, _)| *site);
        let at = at.unwrap_or_else(|at| {
            self.given.insert(at, (site, AssignedTasks::default()));
            at
        });
        let given = &mut self.given[at].1;
        self.digest ^= digest(site, given);
        *given = given.and(bytes, service);
        self.digest ^= digest(site, given);
    }
}

/// Returns a number that differs for nearly all pairs of node and given tasks.
fn digest(site: usize, given: &AssignedTasks) -> u64 {
    let numbers = [site as u64, given.tasks, given.bytes, given.service];
    numbers.iter().fold(1, |sum: u64, &number| {
        let mixed = (sum ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    })
}

impl AssignmentProblem {
    fn of(batch: &mut [PlacementQuestion<'_>]) -> Self {
        for ask in &mut *batch {
            let id = |one: &Candidate| one.estimate.node;
            if !ask.candidates.is_sorted_by_key(id) {
                ask.candidates.sort_unstable_by_key(id);
            }
        }
        let mut sites: Vec<BatchNode> = Vec::new();
        for ask in &*batch {
            let mut known = sites.iter().map(|site| site.node);
            let same = |one: &Candidate| known.by_ref().any(|id| id == one.estimate.node);
            if !ask.candidates.iter().all(same) {
                sites.extend(ask.candidates.iter().map(BatchNode::of));
                sites.sort_by_key(|site| site.node);
                sites.dedup_by_key(|site| site.node);
            }
        }
        let (most, least) = powers(batch);
        let tasks = batch.iter().map(|ask| {
            let mut passed = sites.iter().enumerate();
            let all = ask.candidates.iter().enumerate();
            let choosable = all.filter_map(|(place, one)| {
                let (site, at) = passed.find(|(_, site)| site.node == one.estimate.node)?;
                let service = service(one);
                let energy = match power(one).or(most) {
                    Some(power) => multiply_divide(service, power, least.max(1)),
                    None => 0,
                };
                let cost = one.estimate.wait_ns.saturating_add(service);
                (at.slots > 0).then_some(Choosable {
                    site,
                    place,
                    cost: cost.saturating_add(energy),
                    service,
                })
            });
            (ask.request.input_bytes, choosable.collect())
        });
        let tasks = tasks.collect();
        Self { sites, tasks }
    }

    /// Returns the additional cost of a task on a node that already has given tasks; `None` if the node's queue is full.
    fn add(&self, given: AssignedTasks, bytes: u64, one: &Choosable) -> Option<u64> {
        let site = &self.sites[one.site];
        if given.tasks >= site.slots {
            return None;
        }
        let queue = match given.tasks < site.idle {
            true => 0,
            false => given.service / site.cores,
        };
        let lacking = given.bytes.saturating_add(bytes);
        let lacking = lacking.saturating_sub(site.space_bytes);
        let misfit = match lacking {
            0 => 0,
            lacking => MISFIT + (lacking >> 10),
        };
        let cost = one.cost.saturating_add(queue).min(MISFIT / 2);
        Some(cost.saturating_add(misfit))
    }

    /// Returns the index of each task's node among the task's candidates. If a task does not fit in the first order, the order with the
    /// largest inputs first is tried and used if it is cheaper.
    fn solve(&self) -> Vec<Option<usize>> {
        let mut order: Vec<usize> = (0..self.tasks.len()).collect();
        let mut found = self.places(&order);
        let cost = self.cost(&found);
        if cost >= MISFIT {
            order.sort_by_key(|&task| Reverse(self.tasks[task].0));
            let other = self.places(&order);
            if self.cost(&other) < cost {
                found = other;
            }
        }
        if found.len() > 1 {
            Exchange::of(self, &found).improve(&mut found);
        }
        found
    }

    /// Returns the cost of a placement with the tasks in their order. A task without a node costs nothing.
    fn cost(&self, places: &[Option<usize>]) -> u64 {
        let mut state = PlacementState::default();
        for ((bytes, choosable), place) in self.tasks.iter().zip(places) {
            let one = choosable.iter().find(|one| Some(one.place) == *place);
            if let Some(one) = one {
                let added = self.add(state.given(one.site), *bytes, one);
                state.cost = state.cost.saturating_add(added.unwrap_or(MISFIT));
                state.give(one.site, *bytes, one.service);
            }
        }
        state.cost
    }

    /// Returns the placement of the tasks in the given order, in which each task is a stage.
    fn places(&self, order: &[usize]) -> Vec<Option<usize>> {
        let mut steps: Vec<PlacementStep> = Vec::new();
        let mut beam = vec![PlacementState::default()];
        let mut dense = vec![AssignedTasks::default(); self.sites.len()];
        let mut tried: Vec<(u64, usize)> = Vec::new();
        for &task in order {
            let (bytes, choosable) = &self.tasks[task];
            let best = &beam[0];
            for &(site, given) in &best.given {
                dense[site] = given;
            }
            tried.clear();
            let costs = choosable.iter().enumerate();
            tried.extend(
                costs.filter_map(|(at, one)| Some((self.add(dense[one.site], *bytes, one)?, at))),
            );
            for &(site, _) in &best.given {
                dense[site] = AssignedTasks::default();
            }
            if tried.len() > CHOICES {
                tried.select_nth_unstable(CHOICES - 1);
                tried.truncate(CHOICES);
            }
            let choices = tried.iter().map(|&(_, at)| choosable[at]);
            let choices: Vec<Choosable> = choices.collect();
            beam = self.stage(&beam, *bytes, &choices, &mut steps);
        }
        let mut step = beam[0].step;
        let mut places = vec![None; self.tasks.len()];
        for &task in order.iter().rev() {
            let Some(PlacementStep { before, place }) = step.map(|at| steps[at]) else {
                break;
            };
            places[task] = place;
            step = before;
        }
        places
    }

    /// Returns the cheapest states after placing one more task, the cheapest first. A task without a possible node is left out.
    fn stage(
        &self,
        beam: &[PlacementState],
        bytes: u64,
        choices: &[Choosable],
        steps: &mut Vec<PlacementStep>,
    ) -> Vec<PlacementState> {
        let mut leads: Vec<(u64, usize, usize)> = Vec::with_capacity(beam.len() * choices.len());
        for (from, state) in beam.iter().enumerate() {
            for (to, one) in choices.iter().enumerate() {
                let added = self.add(state.given(one.site), bytes, one);
                leads.extend(added.map(|added| (state.cost.saturating_add(added), from, to)));
            }
        }
        leads.sort_unstable();
        let mut next: Vec<PlacementState> = Vec::with_capacity(BEAM);
        for (cost, from, to) in leads {
            let one = choices[to];
            let mut state = beam[from].clone();
            state.give(one.site, bytes, one.service);
            let known = |other: &PlacementState| other.digest == state.digest;
            if next.iter().any(known) {
                continue;
            }
            state.cost = cost;
            state.step = Some(steps.len());
            steps.push(PlacementStep {
                before: beam[from].step,
                place: Some(one.place),
            });
            next.push(state);
            if next.len() == BEAM {
                break;
            }
        }
        if next.is_empty() {
            next.extend_from_slice(beam);
            for state in &mut next {
                let before = state.step.replace(steps.len());
                let place = None;
                steps.push(PlacementStep { before, place });
            }
        }
        next
    }
}

/// Placement that is being improved by exchanges: the tasks of each node.
#[derive(Debug)]
struct Exchange<'a> {
    problem: &'a AssignmentProblem,
    /// Nodes that have at least one task.
    sites: Vec<usize>,
    /// Each task on each node of `sites`, task by task; `None` where the task can't be placed.
    on: Vec<Option<Choosable>>,
    /// Tasks of each node, in order, and the cost of these tasks.
    lists: Vec<(Vec<usize>, u64)>,
    /// Node of each task.
    at: Vec<Option<usize>>,
}

impl<'a> Exchange<'a> {
    fn of(problem: &'a AssignmentProblem, places: &[Option<usize>]) -> Self {
        let tasks = || problem.tasks.iter().zip(places);
        let site = |(task, place): (&(u64, Vec<Choosable>), &Option<usize>)| {
            let one = task.1.iter().find(|one| Some(one.place) == *place);
            one.map(|one| one.site)
        };
        let mut sites: Vec<usize> = tasks().filter_map(site).collect();
        sites.sort_unstable();
        sites.dedup();
        let on = problem.tasks.iter().flat_map(|(_, choosable)| {
            sites.iter().map(|site| {
                let at = choosable.binary_search_by_key(site, |one| one.site);
                at.ok().map(|at| choosable[at])
            })
        });
        let mut this = Self {
            problem,
            on: on.collect(),
            lists: vec![(Vec::new(), 0); sites.len()],
            at: tasks()
                .map(|one| sites.binary_search(&site(one)?).ok())
                .collect(),
            sites,
        };
        for (task, at) in this.at.iter().enumerate() {
            if let Some(at) = at {
                this.lists[*at].0.push(task);
            }
        }
        for at in 0..this.lists.len() {
            this.lists[at].1 = this.cost(at, None, None).unwrap_or(u64::MAX);
        }
        this
    }

    /// Returns the cost of a node's tasks without one task and with another task; `None` if this is impossible.
    fn cost(&self, at: usize, without: Option<usize>, with: Option<usize>) -> Option<u64> {
        let (mut given, mut sum, mut with) = (AssignedTasks::default(), 0_u64, with);
        let mut add = |task: usize| {
            let one = self.on[task * self.sites.len() + at]?;
            let bytes = self.problem.tasks[task].0;
            sum = sum.saturating_add(self.problem.add(given, bytes, &one)?);
            given = given.and(bytes, one.service);
            Some(())
        };
        for &task in &self.lists[at].0 {
            if let Some(new) = with.take_if(|new| *new < task) {
                add(new)?;
            }
            if Some(task) != without {
                add(task)?;
            }
        }
        if let Some(new) = with {
            add(new)?;
        }
        Some(sum)
    }

    /// Moves a task from one node to another, and another task back if one is given, if this is cheaper. Returns whether tasks were moved.
    fn exchange(
        &mut self,
        (task, from): (usize, usize),
        (to, back): (usize, Option<usize>),
    ) -> bool {
        let before = self.lists[from].1.saturating_add(self.lists[to].1);
        let there = self.cost(to, back, Some(task));
        let Some(there) = there.filter(|cost| *cost < before) else {
            return false;
        };
        let here = self.cost(from, Some(task), back);
        let Some(here) = here.filter(|cost| cost.saturating_add(there) < before) else {
            return false;
        };
        let moved = std::iter::once((task, from, to)).chain(back.map(|back| (back, to, from)));
        for (task, from, to) in moved {
            self.lists[from].0.retain(|one| *one != task);
            let place = self.lists[to].0.partition_point(|one| *one < task);
            self.lists[to].0.insert(place, task);
            self.at[task] = Some(to);
        }
        self.lists[from].1 = here;
        self.lists[to].1 = there;
        true
    }

    fn improve(mut self, places: &mut [Option<usize>]) {
        let passes = if self.at.len() > PASSES_TASKS_MAX {
            1
        } else {
            PASSES
        };
        for _ in 0..passes {
            let mut better = false;
            for task in 0..self.at.len() {
                for to in 0..self.sites.len() {
                    if let Some(from) = self.at[task].filter(|from| *from != to) {
                        better |= self.exchange((task, from), (to, None));
                    }
                }
                for other in task + 1..self.at.len() {
                    if let (Some(from), Some(to)) = (self.at[task], self.at[other])
                        && from != to
                    {
                        better |= self.exchange((task, from), (to, Some(other)));
                    }
                }
            }
            if !better {
                break;
            }
        }
        for (task, at) in self.at.iter().enumerate() {
            let one = at.and_then(|at| self.on[task * self.sites.len() + at]);
            places[task] = one.map(|one| one.place);
        }
    }
}

/// Returns the power of a node per core, in thousandths of a watt; `None` if no power is configured.
fn power(one: &Candidate) -> Option<u64> {
    (one.watts_milli > 0).then(|| (one.watts_milli / u64::from(one.cores.max(1))).max(1))
}

/// Returns the largest and the smallest power per core among all nodes.
fn powers(batch: &[PlacementQuestion<'_>]) -> (Option<u64>, u64) {
    let all = || {
        batch
            .iter()
            .flat_map(|ask| &ask.candidates)
            .filter_map(power)
    };
    (all().max(), all().min().unwrap_or(1))
}

/// Returns `a · b / c`, or the largest number if the result is larger.
fn multiply_divide(a: u64, b: u64, c: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b) / u128::from(c);
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, store};
    use super::super::{FullScan, by_name};
    use super::*;
    use tidemill_model::random::RandomSource;

    const GIB: u64 = 1 << 30;

    fn ask(input_bytes: u64, candidates: &[Candidate]) -> PlacementQuestion<'static> {
        PlacementQuestion {
            request: super::super::PlacementRequest {
                input_bytes,
                ..request()
            },
            candidates: candidates.to_vec(),
        }
    }

    fn places(mut batch: Vec<PlacementQuestion<'_>>) -> Vec<Option<u32>> {
        let choices = Minmax.place_all(&mut batch);
        let node = |choice: Option<PolicyChoice>| Some(choice?.node.0);
        choices.into_iter().map(node).collect()
    }

    /// Returns a candidate node on which a task runs for `run_ns` nanoseconds.
    fn site(id: u32, run_ns: u64, watts: u64) -> Candidate {
        let mut one = store(id);
        one.slots = 8;
        one.estimate.run_ns = run_ns;
        one.watts_milli = watts * 1000;
        one
    }

    #[test]
    fn minmax_prefers_faster_node_and_weighs_energy_like_time() {
        let all = [site(0, 1000, 0), site(1, 3000, 0)];
        let batch = vec![ask(0, &all), ask(0, &all), ask(0, &all), ask(0, &all)];
        let on_slow = places(batch).iter().filter(|id| **id == Some(1)).count();
        assert_eq!(on_slow, 1, "1 + 2 + 3 and 3 thousand is the least");
        // Node 0 is three times as fast for four times the power: node 1 is chosen until the wait in its queue outweighs this.
        let all = [site(0, 1000, 40), site(1, 2900, 10)];
        assert_eq!(
            places(vec![ask(0, &all)]),
            [Some(0)],
            "1 + 4 against 2.9 + 2.9"
        );
        let all = [site(0, 1000, 50), site(1, 2900, 10)];
        assert_eq!(
            places(vec![ask(0, &all)]),
            [Some(1)],
            "1 + 5 against 2.9 + 2.9"
        );
        // A node without configured power counts as the one that draws the most.
        let all = [site(0, 1000, 0), site(1, 1000, 10), site(2, 1000, 50)];
        assert_eq!(places(vec![ask(0, &all)]), [Some(1)]);
    }

    #[test]
    fn minmax_never_exceeds_queue_or_device_space() {
        let mut all = [site(0, 1, 0), site(1, 1000, 0)];
        all[0].slots = 2;
        let batch = || vec![ask(0, &all), ask(0, &all), ask(0, &all)];
        let chosen = places(batch());
        assert_eq!(chosen.iter().filter(|id| **id == Some(0)).count(), 2);
        // A device has space for one of the inputs, or for none.
        all[0].free_bytes = RESERVE_BYTES + GIB;
        let two = vec![ask(GIB, &all), ask(GIB, &all)];
        let chosen = places(two);
        assert_eq!(chosen.iter().filter(|id| **id == Some(0)).count(), 1);
        all[0].free_bytes = 0;
        assert_eq!(places(vec![ask(GIB, &all)]), [Some(1)]);
        all[1].free_bytes = 0;
        all[0].free_bytes = RESERVE_BYTES + GIB / 2;
        assert_eq!(
            places(vec![ask(GIB, &all)]),
            [Some(0)],
            "it lacks the least"
        );
        let full = all.map(|one| Candidate { slots: 0, ..one });
        assert_eq!(places(vec![ask(0, &full), ask(0, &full)]), [None; 2]);
        assert_eq!(places(vec![ask(0, &[]), ask(0, &all)]), [None, Some(0)]);
    }

    #[test]
    fn minmax_never_overflows_at_extreme_costs() {
        let mut liar = site(7, u64::MAX, 0);
        liar.estimate.transfer_ns = u64::MAX;
        liar.estimate.wait_ns = u64::MAX;
        liar.watts_milli = u64::MAX;
        liar.free_bytes = 0;
        liar.slots = usize::MAX;
        liar.cores = 0;
        let batch = vec![ask(u64::MAX, &[liar]); BATCH_MAX];
        assert_eq!(places(batch), [Some(7); BATCH_MAX]);
        // A node with almost no power gets as many tasks as its queue takes, and no more.
        let mut thrifty = site(0, 1_000_000, 1);
        thrifty.watts_milli = 1;
        let honest = [thrifty, site(1, 1_000_000, 100), site(2, 1_000_000, 100)];
        let chosen = places(vec![ask(0, &honest); 20]);
        assert_eq!(chosen.iter().filter(|id| **id == Some(0)).count(), 8);
        assert!(chosen.iter().all(Option::is_some));
    }

    #[test]
    fn minmax_treats_one_task_as_batch_and_breaks_ties_by_id() {
        let all = [site(3, 5, 0), site(1, 5, 0), site(2, 9, 0)];
        let policy = by_name("minmax", 0).unwrap();
        let choice = policy.place(&request(), &mut FullScan::of(&all)).unwrap();
        assert_eq!(choice.node.0, 1);
        assert_eq!(places(vec![ask(100, &all)]), [Some(1)]);
    }

    /// Returns the smallest cost of all tasks together, by exhaustive search.
    fn optimum(problem: &AssignmentProblem, task: usize, state: &PlacementState, best: u64) -> u64 {
        let Some((bytes, choosable)) = problem.tasks.get(task) else {
            return state.cost;
        };
        choosable.iter().fold(best, |best, one| {
            let given = state.given(one.site);
            let Some(added) = problem.add(given, *bytes, one) else {
                return best;
            };
            let mut next = state.clone();
            next.cost += added;
            if next.cost >= best {
                return best;
            }
            next.give(one.site, *bytes, one.service);
            optimum(problem, task + 1, &next, best)
        })
    }

    /// Returns nodes that differ in speed, power, load and space, and tasks with inputs on different nodes.
    fn case(source: &mut RandomSource) -> Vec<PlacementQuestion<'static>> {
        let nodes = 2 + source.below(3);
        let mut all: Vec<Candidate> = (0..nodes).map(store).collect();
        for one in &mut all {
            one.cores = 1 + source.below(3);
            one.slots = 2 + source.below(4) as usize;
            one.outstanding = source.below(3) as usize;
            one.watts_milli = u64::from(source.below(4)) * 20_000;
            one.free_bytes = RESERVE_BYTES + u64::from(source.below(40)) * 100;
            one.estimate.wait_ns = u64::from(source.below(3000));
            one.estimate.run_ns = u64::from(1 + source.below(3000));
        }
        let slots: usize = all.iter().map(|one| one.slots).sum();
        let tasks = slots.min(2 + source.below(6) as usize);
        let mut batch = Vec::new();
        for _ in 0..tasks {
            let bytes = u64::from(source.below(1000));
            let factor = u64::from(1 + source.below(3));
            let holder = source.below(nodes);
            let mut here = all.clone();
            for one in &mut here {
                let away = one.estimate.node.0 != holder;
                one.estimate.transfer_ns = if away { bytes } else { 0 };
                one.estimate.run_ns *= factor;
            }
            batch.push(ask(bytes, &here));
        }
        batch
    }

    /// docs/scheduling.md contains the costs that this test checks.
    #[test]
    fn minmax_small_batches_cost_near_the_optimum() {
        let mut source = RandomSource::seeded(16);
        let (mut over, mut worst, mut exact, mut tight) = (0.0, 0.0_f64, 0, 0);
        let cases = 1000;
        for _ in 0..cases {
            let mut batch = case(&mut source);
            let problem = AssignmentProblem::of(&mut batch);
            let least = optimum(&problem, 0, &PlacementState::default(), u64::MAX);
            let found = problem.cost(&problem.solve());
            assert!(found >= least, "nothing is cheaper than the optimum");
            exact += i32::from(found == least);
            if found >= MISFIT {
                // An input fits on no device, or the search found no placement in which it fits.
                tight += i32::from(least < MISFIT);
                continue;
            }
            let distance = (found - least) as f64 / least as f64;
            over += distance;
            worst = worst.max(distance);
        }
        let mean = 100.0 * over / f64::from(cases);
        let worst = 100.0 * worst;
        println!(
            "optimal {exact} of {cases}, mean {mean:.3} % over, worst {worst:.2} % over, {tight} fit and were not found to"
        );
        assert!(exact >= 940 && mean < 0.2 && worst < 23.0 && tight == 0);
    }
}
