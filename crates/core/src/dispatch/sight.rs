//! View of the array for a policy that places a task: computes its costs only on the elements that the policy requests.

use super::element::{Element, Mean, expected_run, transfer};
use super::elements::Elements;
use super::learned::{Learned, Runs};
use super::place::Reads;
use super::roll::Roll;
use super::task::Task;
use crate::event::{Estimate, Role};
use crate::id::ElementId;
use crate::policy::{Among, Candidate, View};
use crate::resources::Needs;
use crate::score::Weights;
use crate::time::{Span, Time};
use std::iter::Peekable;

/// Number of storage elements up to which examining all is less work than keeping them in order.
const SCAN_MAX: usize = 16;

/// View of the array for one task.
#[derive(Debug)]
pub(super) struct Sight<'a> {
    elements: &'a mut Elements,
    costs: Costs<'a>,
    now: Time,
    /// Elements that can't run the task, that failed it before, or that are full of data, in order of ids. If no other storage element is
    /// online, only those that can't run the task.
    unfit: Vec<ElementId>,
    lists: Lists,
}

/// Reused lists of a view.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Result of the last query.
    shown: Vec<Candidate>,
    found: Vec<ElementId>,
}

/// Data for computing the costs of a task.
#[derive(Debug)]
struct Costs<'a> {
    needs: &'a Needs,
    now: Time,
    reads: &'a Reads,
    runs: &'a Runs,
    pooled: Option<Span>,
    earliest: Span,
    /// Last computed transfer: bytes, rate and time. Most elements pull the same bytes at the same rate.
    pulled: (u64, u64, Span),
}

impl Costs<'_> {
    /// Returns whether the task needs one core and nothing else, so that it waits as long as all other tasks.
    fn is_plain(&self) -> bool {
        self.needs.cores == 1 && self.needs.only_cores()
    }

    /// Returns the candidate of an element. `local_bytes` is the size of the inputs on the element, and `own` is its own mean run, if it
    /// has one.
    fn on(
        &mut self,
        (id, element): (ElementId, &Element),
        wait: Span,
        local_bytes: u64,
        own: Option<Mean>,
    ) -> Candidate {
        let view = &element.view;
        let transfer_bytes = self.reads.bytes - local_bytes;
        let run = own.map(|mean| mean.scaled(self.reads.bytes));
        let rate = view.link_bytes_per_sec;
        if (transfer_bytes, rate) != (self.pulled.0, self.pulled.1) {
            self.pulled = (transfer_bytes, rate, transfer(transfer_bytes, rate));
        }
        let wait = if self.is_plain() {
            wait
        } else {
            element.wait_for(self.needs, wait, self.now)
        };
        Candidate {
            role: view.role,
            cores: view.offers.cores,
            room: element.room(),
            outstanding: element.outstanding.len(),
            local_bytes,
            slots: element.slots(),
            free_bytes: view.free_bytes,
            watts_milli: view.watts_milli,
            standing: element.standing(),
            estimate: Estimate {
                element: id,
                wait_ns: wait.max(self.earliest).0,
                transfer_ns: self.pulled.2.0,
                transfer_bytes,
                run_ns: run.or(self.pooled).unwrap_or_default().0,
            },
        }
    }
}

impl<'a> Sight<'a> {
    /// Returns the view for a task. `earliest` is the time until which the task waits in any case; `barred` elements can't run it, in
    /// order.
    pub(super) fn new(
        elements: &'a mut Elements,
        learned: &'a Learned,
        (task, barred): (&'a Task, &[ElementId]),
        reads: &'a Reads,
        (earliest, now): (Span, Time),
        lists: Lists,
    ) -> Self {
        elements.renew(now);
        let runs = learned.of(task.kernel);
        let stores = elements.stores();
        let mut unfit: Vec<ElementId> = elements.full().union(&task.avoid).copied().collect();
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
            elements,
            costs: Costs {
                needs: &task.spec.needs,
                now,
                reads,
                runs,
                pooled: expected_run(&runs.pooled, reads.bytes),
                earliest,
                pulled: (0, 0, Span::default()),
            },
            now,
            unfit,
            lists,
        }
    }

    /// Returns the costs of the task on an element; `None` if it must not run on it.
    pub(super) fn candidate(&mut self, id: ElementId) -> Option<Candidate> {
        if self.unfit.binary_search(&id).is_ok() {
            return None;
        }
        let (element, wait) = self.elements.up(id, self.now)?;
        let runs = self.costs.runs;
        let own = runs.by_element.get(&id).and_then(|(_, mean)| *mean);
        let held = self.costs.reads.held(id);
        Some(self.costs.on((id, element), wait, held, own))
    }

    fn roll(&self, of: Among) -> &Roll {
        match of {
            Among::Stores => self.elements.stores(),
            Among::Open => self.elements.open(),
        }
    }

    /// Returns the lists for reuse.
    pub(super) fn into_lists(self) -> Lists {
        self.lists
    }

    /// Returns the elements that were found, and the storage elements that hold inputs.
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

/// Returns whether an element differs from the others by more than its load.
fn apart(id: ElementId, reads: &Reads, unfit: &[ElementId]) -> bool {
    reads.held(id) > 0 || unfit.binary_search(&id).is_ok()
}

/// Returns the value of an element in a series in the order of elements, and skips earlier elements.
fn at<'a, V>(
    series: &mut Peekable<impl Iterator<Item = (&'a ElementId, &'a V)>>,
    element: ElementId,
) -> Option<&'a V> {
    while series.next_if(|(other, _)| **other < element).is_some() {}
    series
        .next_if(|(other, _)| **other == element)
        .map(|(_, value)| value)
}

impl Sight<'_> {
    /// Returns all elements on which the task may be placed, including the host's.
    pub(super) fn all(&mut self) -> &[Candidate] {
        let (costs, unfit, shown) = (&mut self.costs, &self.unfit, &mut self.lists.shown);
        let (reads, runs) = (costs.reads, costs.runs);
        // Elements, histories and bytes held are all in the order of elements, so they are read in parallel.
        let mut runs = runs.by_element.iter().peekable();
        let held = reads.local.iter().map(|(id, bytes)| (id, bytes));
        let mut held = held.peekable();
        shown.clear();
        self.elements.for_each_up(self.now, |id, element, wait| {
            let own = at(&mut runs, id).and_then(|(_, mean)| *mean);
            let held = at(&mut held, id).copied().unwrap_or_default();
            if unfit.binary_search(&id).is_err() {
                shown.push(costs.on((id, element), wait, held, own));
            }
        });
        &self.lists.shown
    }
}

impl Sight<'_> {
    /// Returns the same as [`Self::all`], without the host's element.
    pub(super) fn all_stores(&mut self) -> &[Candidate] {
        self.all();
        self.lists.shown.retain(|one| one.role == Role::Store);
        &self.lists.shown
    }
}

impl View for Sight<'_> {
    fn by_wait(&mut self) -> &[Candidate] {
        let (reads, earliest) = (self.costs.reads, self.costs.earliest);
        self.lists.found.clear();
        if self.elements.stores().len() <= SCAN_MAX || !self.costs.is_plain() {
            let stores = self.elements.stores().iter();
            let others = stores.filter(|&&id| reads.held(id) == 0);
            self.lists.found.extend(others);
        } else {
            let apart = |id| apart(id, reads, &self.unfit);
            let found = &mut self.lists.found;
            self.elements.least(self.now, earliest, apart, found);
        }
        self.show_with_holders()
    }

    fn in_turn(&mut self, last: Option<ElementId>) -> &[Candidate] {
        let next = |ids: &Roll| {
            let mut turn = ids.turn(last);
            let next = turn.find(|&&id| !apart(id, self.costs.reads, &self.unfit));
            next.copied()
        };
        let next = next(self.elements.open()).or_else(|| next(self.elements.stores()));
        self.lists.found.clear();
        self.lists.found.extend(next);
        self.show_with_holders()
    }

    fn by_score(&mut self, weights: &Weights) -> &[Candidate] {
        self.lists.found.clear();
        let best = self
            .elements
            .best(weights, |id| apart(id, self.costs.reads, &self.unfit));
        self.lists.found.extend(best);
        self.show_with_holders()
    }

    fn stores(&mut self) -> &[Candidate] {
        self.all_stores()
    }

    fn count(&mut self, of: Among) -> usize {
        self.roll(of).count(&self.unfit)
    }

    fn nth(&mut self, of: Among, index: usize) -> Option<ElementId> {
        self.roll(of).nth(index, &self.unfit)
    }

    fn host(&mut self) -> Option<Candidate> {
        let mut hosts = self.elements.hosts().iter();
        let host = *hosts.find(|id| self.unfit.binary_search(id).is_err())?;
        self.candidate(host)
    }

    fn store_cores(&mut self) -> u64 {
        let stores = self.elements.stores();
        let unfit = self.unfit.iter().filter(|id| stores.contains(id));
        let cores =
            unfit.filter_map(|id| Some(u64::from(self.elements.get(id)?.view.offers.cores)));
        self.elements.store_cores() - cores.sum::<u64>()
    }
}
