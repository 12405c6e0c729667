//! What else a side has to do (A1, A2): until a core is free, and what share of a processor a kernel gets then.
//!
//! Kernels of an element end; other programs of its machine are taken to go on for ever. Host and element may be on one
//! machine: then what runs on the element takes from the host, and both take from each other when they run at once.

use crate::units::Seconds;

/// The processors of a machine at this moment, as one more kernel finds them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// How many it has.
    pub processors: u32,
    /// Share of one that one more kernel gets: measured, whatever the reason is.
    pub share: f64,
    /// The same while the other side runs one more kernel, too.
    pub share_beside: f64,
    /// Kernels of elements that run on it.
    pub running: u32,
    /// Until those and all that waits for their cores have ended.
    pub left: Seconds,
}

impl Machine {
    /// With nothing else to do.
    pub const fn idle(processors: u32) -> Self {
        Self {
            processors,
            share: 1.0,
            share_beside: 1.0,
            running: 0,
            left: Seconds::ZERO,
        }
    }

    /// The share once so many of the kernels that ran when it was measured have ended. Those that want processors have
    /// turns of the same length, so 1 / share of them are on a processor.
    fn share_without(&self, ended: u32) -> f64 {
        let on_one = 1.0 / self.share - f64::from(ended) / f64::from(self.processors.max(1));
        (1.0 / on_one.max(1.0)).max(self.share)
    }
}

/// What an element has to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queue {
    /// Kernels that it runs at once.
    pub cores: u32,
    /// Kernels that run.
    pub running: u32,
    /// Kernels that wait for its cores.
    pub queued: u32,
    /// Until those that run and those that wait have ended, its cores sharing the work.
    pub left: Seconds,
}

/// What a side has to do, as a kernel finds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Kernels that may run there at once.
    pub cores: u32,
    /// Until it has a core for another one (A1).
    pub wait: Seconds,
    /// Share of a processor that the kernel gets at first (A2).
    pub share: f64,
    /// How long, from when it begins.
    pub crowded: Seconds,
    /// Share that it gets after that.
    pub share_later: f64,
    /// Share that it gets, all the time, if the other side works on a part of the input.
    pub share_beside: f64,
}

impl Load {
    /// Nothing else to do.
    pub const fn none(cores: u32) -> Self {
        Self {
            cores,
            wait: Seconds::ZERO,
            share: 1.0,
            crowded: Seconds::ZERO,
            share_later: 1.0,
            share_beside: 1.0,
        }
    }

    /// Of a host, which takes a kernel at once whatever else runs: an operating system shares, it does not queue.
    pub fn of_host(machine: &Machine) -> Self {
        Self {
            cores: machine.processors,
            wait: Seconds::ZERO,
            share: machine.share,
            crowded: machine.left,
            share_later: machine.share_without(machine.running),
            share_beside: machine.share_beside.min(machine.share),
        }
    }

    /// Of an element. One with a free core begins at once, beside what runs. Else the kernel waits for its turn: AnalyzeThis
    /// §3.2's expected free time; then the element's other kernels have ended, and those of others go on.
    pub fn of_element(queue: &Queue, machine: &Machine) -> Self {
        let share_later = machine.share_without(machine.running);
        let full = queue.running.saturating_add(queue.queued) >= queue.cores;
        let (wait, ended) = if full {
            // What began since the machine was looked at is not in its share.
            (queue.left, queue.running.min(machine.running))
        } else {
            (Seconds::ZERO, 0)
        };
        let left = (machine.left.get() - wait.get()).max(0.0);
        Self {
            cores: queue.cores,
            wait,
            share: machine.share_without(ended),
            crowded: Seconds::new(left),
            share_later,
            share_beside: machine.share_beside.min(machine.share),
        }
    }

    /// How long a kernel takes that would take `work` on a processor of its own (A3).
    pub(super) fn run(&self, work: Seconds) -> Seconds {
        let first = self.crowded * self.share;
        if first >= work {
            return work / self.share;
        }
        self.crowded + (work - first) / self.share_later
    }
}
