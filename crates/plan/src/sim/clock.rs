//! The virtual clock: what happens next, ties in the order in which it was planned.

use super::flow::FlowId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidemill_core::time::Time;

/// A way of messages: they stay in order on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// From the server to elements.
    Down,
    /// From elements to the server.
    Up,
}

/// What a moment was planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wake {
    /// A label's step that takes a fixed time has ended.
    Step(u32),
    /// A flow may have ended.
    Flow(FlowId),
    /// The oldest message on its way in this direction arrives.
    Mail(Direction),
    /// It is looked which elements are needed.
    Look,
    /// An element is awake.
    Up(u32),
}

/// The clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    now: Time,
    planned: BinaryHeap<Reverse<(Time, u64, Wake)>>,
    count: u64,
}

impl Clock {
    pub(super) fn now(&self) -> Time {
        self.now
    }

    pub(super) fn plan(&mut self, at: Time, wake: Wake) {
        debug_assert!(at >= self.now, "the clock never goes back");
        self.count += 1;
        self.planned.push(Reverse((at, self.count, wake)));
    }

    /// Moves to the next moment that something was planned for.
    pub(super) fn next(&mut self) -> Option<Wake> {
        let Reverse((at, _, wake)) = self.planned.pop()?;
        self.now = at;
        Some(wake)
    }
}
