//! Which elements that sleep are needed, and which that are up are not.

use super::class::ClassNumber;
use super::element::{Presence, expected_run};
use super::task::is_end;
use super::{Dispatcher, EXPECTED_MAX, Line, UNKNOWN_RUN};
use crate::id::{ElementId, JobId, TaskId};
use crate::layout::Selection;
use crate::object::Placed;
use crate::time::{Span, Time};
use std::collections::BTreeSet;

/// What is wanted of elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Those that sleep and have what something waits for.
    pub wanted: BTreeSet<ElementId>,
    /// Those that have labels, or what a job that has not ended reads.
    pub used: BTreeSet<ElementId>,
    /// Time of a core that all that is ready or was sent takes on storage elements.
    pub work: Span,
    /// Cores of the storage elements that are up.
    pub cores: u64,
    /// Those that sleep and could run tasks that are ready, for which none that is up has room.
    pub able: BTreeSet<ElementId>,
}

impl Dispatcher {
    /// What is wanted of elements now. In proportion to the tasks that have not ended: for a look now and then.
    #[must_use]
    pub fn demand(&self, now: Time) -> Demand {
        let mut demand = Demand::default();
        let mut work = 0_u64;
        for (id, element) in self.elements.iter() {
            if !element.outstanding.is_empty() || self.errands.any(id) {
                demand.used.insert(id);
            }
            if element.up() && element.view.role == crate::event::Role::Store {
                let cores = u64::from(element.view.offers.cores);
                demand.cores += cores;
                let left = element.all_left(now).0.saturating_mul(cores);
                work = work.saturating_add(left);
            }
        }
        for (line, tasks) in &self.lines {
            self.demand_room(*line, tasks, &mut demand);
            for &(_, task) in tasks {
                work = work.saturating_add(self.expected_of_ready(task));
                demand.wanted.extend(self.task(task).spec.element);
            }
        }
        for (&id, task) in self.tasks.iter() {
            if is_end(task.state) {
                continue;
            }
            for index in 0..task.spec.inputs.len() {
                if let Some(placed) = self.input(id, index) {
                    self.demand_input(placed, self.selection(id, index), &mut demand);
                }
            }
        }
        let asleep = |id: &ElementId| self.presence(*id) == Presence::Asleep;
        demand.wanted.extend(&demand.used);
        demand.wanted.retain(asleep);
        demand.work = Span(work);
        demand
    }

    /// Time of cores that a task that waits should take, wherever it runs.
    fn expected_of_ready(&self, id: TaskId) -> u64 {
        let task = self.task(id);
        let inputs = (0..task.spec.inputs.len()).filter_map(|index| {
            let placed = self.input(id, index)?;
            Some(self.bytes_of(placed, self.selection(id, index)))
        });
        let bytes = inputs.fold(0, u64::saturating_add);
        let known = expected_run(&self.learned.of(task.kernel).pooled, bytes);
        let run = known.unwrap_or(UNKNOWN_RUN).min(EXPECTED_MAX);
        run.0
            .saturating_mul(u64::from(task.spec.needs.cores.max(1)))
    }

    /// Who could run what stands in a line: one of them is wanted where no element that is up can.
    fn demand_room(&self, line: Line, tasks: &BTreeSet<(JobId, TaskId)>, demand: &mut Demand) {
        let classes: BTreeSet<ClassNumber> = match line {
            Line::Any(class) | Line::Barred(class) => [class].into(),
            // Of those that are up their policy chose one whose queue is full.
            Line::At(_) => tasks
                .iter()
                .map(|&(_, task)| self.task(task).class)
                .collect(),
            Line::Fresh | Line::Pinned(_) => return,
        };
        for class in classes {
            let asleep = self.elements.iter();
            let asleep = asleep.filter(|(_, element)| element.presence == Presence::Asleep);
            let mut able = asleep
                .map(|(id, _)| id)
                .filter(|&id| self.could_awake(class, id));
            if matches!(line, Line::Barred(_)) {
                demand.wanted.extend(able.next());
            } else {
                demand.able.extend(able);
            }
        }
    }

    /// An input that can be read is used wherever it is; one that can't is wanted.
    fn demand_input(&self, placed: Placed, selection: &Selection, demand: &mut Demand) {
        if let Some(parts) = self.copies.selected(placed.object, selection) {
            for (part, _) in parts {
                self.demand_input(part, &Selection::WHOLE, demand);
            }
            return;
        }
        let nearest = self.nearest(placed, selection).element;
        if self.up(nearest) {
            demand.used.insert(nearest);
        } else {
            demand.wanted.insert(nearest);
        }
    }

    /// An element that sleeps and has a copy of an object.
    pub(super) fn asleep_with(&self, placed: Placed) -> Option<ElementId> {
        let lasting = self.copies.lasting(placed.object);
        let mut copies = std::iter::once(placed.element).chain(lasting);
        copies.find(|&element| {
            self.presence(element) == Presence::Asleep
                && !self.copies.is_gone(placed.object, element)
        })
    }
}
