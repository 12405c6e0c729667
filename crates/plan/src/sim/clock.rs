//! Virtual clock: returns the next planned event; simultaneous events are returned in the order in which they were planned.

use super::flow::FlowId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidemill_model::time::Time;

/// Direction of messages; messages in the same direction stay in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MessageDirection {
    /// From the server to nodes.
    Down,
    /// From nodes to the server.
    Up,
}

/// Planned event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlannedEvent {
    /// The end of a label's step with a fixed time.
    Step(u32),
    /// The possible end of a data flow.
    Flow(FlowId),
    /// The arrival of the oldest message in this direction.
    Mail(MessageDirection),
    /// A check for nodes that must be resumed or suspended.
    Look,
    /// The end of a node's resumption.
    Up(u32),
}

/// Virtual clock with the planned events.
#[derive(Debug, Default)]
pub(super) struct Clock {
    now: Time,
    planned: BinaryHeap<Reverse<(Time, u64, PlannedEvent)>>,
    count: u64,
}

impl Clock {
    pub(super) fn now(&self) -> Time {
        self.now
    }

    pub(super) fn plan(&mut self, at: Time, wake: PlannedEvent) {
        debug_assert!(at >= self.now, "the clock never runs backwards");
        self.count += 1;
        self.planned.push(Reverse((at, self.count, wake)));
    }

    /// Moves the clock to the next planned event and returns the event.
    pub(super) fn next(&mut self) -> Option<PlannedEvent> {
        let Reverse((at, _, wake)) = self.planned.pop()?;
        self.now = at;
        Some(wake)
    }
}
