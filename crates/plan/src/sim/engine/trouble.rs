//! Failures of runs in the simulation, and reports of elements whose devices have a bound.

use super::{Engine, Message, element_at, id_of, view};
use tidemill_core::event::{ElementView, Event};
use tidemill_core::id::{ElementId, LabelId};
use tidemill_core::label::{Failure, FailureKind, Outcome};
use tidemill_core::layout::RESERVE_BYTES;
use tidemill_core::time::Span;

/// Interval of reports of free space by elements whose devices have a bound.
const STATUS_PERIOD: Span = Span::from_secs(1);

impl Engine<'_> {
    /// Reports a label that failed, aborts the labels that waited for it, and gives its core to the next label.
    pub(super) fn on_failed(&mut self, label: u32) {
        let now = self.clock.now();
        let run = &mut self.runs[label as usize];
        let (node, kind, start) = (run.node, run.kind, run.times.start);
        let element = run.times.element;
        let cores = run.times.cores.clone();
        let followers = std::mem::take(&mut run.followers);
        let remote = std::mem::take(&mut run.remote);
        let needs = &self.workflow.tasks[run.task as usize].needs;
        let nodes = &mut self.nodes[node as usize];
        for (object, ..) in remote.into_iter().take(run.fetched) {
            nodes.pulled.give_back(object);
        }
        nodes.end(needs, &cores);
        self.counts.failed += 1;
        let lost = &mut self.lost[node as usize];
        lost.runs += 1;
        lost.time = lost.time + Span(now.since(start).0 * cores.len() as u64);
        let message = String::new();
        let outcome = Outcome {
            start,
            ..Outcome::at(now, Err(Failure { kind, message }))
        };
        self.send(Message::Report(Event::Finished {
            element,
            label: LabelId(label.into()),
            outcome: Box::new(outcome),
        }));
        for follower in followers {
            self.give_up(follower, FailureKind::Dependency);
        }
        self.tell_room(node);
        self.begin(node);
    }

    /// Returns an element's report of its device, if the device has a bound.
    pub(super) fn status(&self, node: u32) -> Option<Event> {
        let free = self.nodes[node as usize].free()?;
        let (element, role) = id_of(self.platform, node as usize);
        let platform = element_at(self.platform, node as usize);
        let view = ElementView {
            capacity_bytes: platform.capacity?,
            free_bytes: free,
            ..view(platform, role)
        };
        Some(Event::ElementStatus { element, view })
    }

    /// Reports free space once per period.
    pub(super) fn tell_room(&mut self, node: u32) {
        let now = self.clock.now();
        if now.since(self.told[node as usize]) < STATUS_PERIOD {
            return;
        }
        if let Some(status) = self.status(node) {
            self.told[node as usize] = now;
            self.send(Message::Report(status));
        }
    }

    /// Returns a message about an element that gets no work since its device is full, for people.
    pub(super) fn first_full(&self) -> Option<String> {
        let full = |node: &super::Node| node.free().is_some_and(|free| free < RESERVE_BYTES);
        let node = self.nodes.iter().position(full)?;
        let (element, _) = id_of(self.platform, node);
        Some(format!("the device of element {element} is full"))
    }
}

/// Returns the reason for which an output was not written, for people.
pub(super) fn full(element: ElementId, bytes: u64) -> String {
    let needed = tidemill_core::shown::bytes(bytes);
    format!("the device of element {element} is full, {needed} did not fit")
}
