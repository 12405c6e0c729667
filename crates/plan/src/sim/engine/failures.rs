//! Failures of runs in the simulation, and reports of nodes whose devices have a capacity limit.

use super::{Engine, EngineMessage, id_of, node_at, view};
use tidemill_model::event::{Event, NodeView};
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::{Failure, FailureKind, Outcome};
use tidemill_model::layout::RESERVE_BYTES;
use tidemill_model::time::Span;

/// Interval at which nodes whose devices have a capacity limit report their free space.
const STATUS_PERIOD: Span = Span::from_secs(1);

impl Engine<'_> {
    /// Reports a label that failed, aborts the labels that waited for it, and gives its core to the next label.
    pub(super) fn on_failed(&mut self, label: u32) {
        let now = self.clock.now();
        let run = &mut self.runs[label as usize];
        let (station, kind, start) = (run.station, run.kind, run.times.start);
        let node = run.times.node;
        let cores = run.times.cores.clone();
        let followers = std::mem::take(&mut run.followers);
        let remote = std::mem::take(&mut run.remote);
        let needs = &self.workflow.tasks[run.task as usize].needs;
        let stations = &mut self.stations[station as usize];
        for (object, ..) in remote.into_iter().take(run.fetched) {
            stations.input_cache.give_back(object);
        }
        stations.end(needs, &cores);
        self.counts.failed += 1;
        let lost = &mut self.lost[station as usize];
        lost.runs += 1;
        lost.time = lost.time + Span(now.since(start).0 * cores.len() as u64);
        let message = String::new();
        let outcome = Outcome {
            start,
            ..Outcome::at(now, Err(Failure { kind, message }))
        };
        self.send(EngineMessage::Report(Event::Finished {
            node,
            label: LabelId(label.into()),
            outcome: Box::new(outcome),
        }));
        for follower in followers {
            self.abandon(follower, FailureKind::Dependency);
        }
        self.tell_space(station);
        self.begin(station);
    }

    /// Returns a node's report of the free space on its device, if the device has a capacity limit.
    pub(super) fn status(&self, station: u32) -> Option<Event> {
        let free = self.stations[station as usize].free()?;
        let (node, role) = id_of(self.platform, station as usize);
        let platform = node_at(self.platform, station as usize);
        let view = NodeView {
            capacity_bytes: platform.capacity?,
            free_bytes: free,
            ..view(platform, role)
        };
        Some(Event::NodeStatus { node, view })
    }

    /// Reports the free space of a station's device once per period.
    pub(super) fn tell_space(&mut self, station: u32) {
        let now = self.clock.now();
        if now.since(self.reported[station as usize]) < STATUS_PERIOD {
            return;
        }
        if let Some(status) = self.status(station) {
            self.reported[station as usize] = now;
            self.send(EngineMessage::Report(status));
        }
    }

    /// Returns a message for people about the first node that gets no work because its device is full.
    pub(super) fn first_full(&self) -> Option<String> {
        let full =
            |station: &super::Station| station.free().is_some_and(|free| free < RESERVE_BYTES);
        let station = self.stations.iter().position(full)?;
        let (node, _) = id_of(self.platform, station);
        Some(format!("the device of node {node} is full"))
    }
}

/// Returns the reason for which an output was not written to a full device, for people.
pub(super) fn full(node: NodeId, bytes: u64) -> String {
    let needed = tidemill_model::display::bytes(bytes);
    format!("the device of node {node} is full, {needed} did not fit")
}
