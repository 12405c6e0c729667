//! Load of a side (A1, A2): computes the time until a core is free, and the share of a processor that a kernel gets after that time.
//!
//! Kernels of a node end; other programs of its machine are assumed to run forever. Client and node may be on the same machine: then the
//! node's load reduces the client's share, and the two sides reduce each other's share when they run at once.

use crate::units::Seconds;

/// State of the processors of a machine, as one more kernel finds them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachineLoad {
    /// Number of processors of the machine.
    pub processors: u32,
    /// Measured share of a processor that one more kernel gets, whatever the reason for the share is.
    pub share: f64,
    /// Share of a processor that one more kernel gets while the other side runs one more kernel, too.
    pub share_beside: f64,
    /// Number of nodes' kernels that run on the machine.
    pub running: u32,
    /// Time until these kernels and all labels that wait for their cores have ended.
    pub left: Seconds,
}

impl MachineLoad {
    /// Returns the load of a machine on which nothing else runs.
    pub const fn idle(processors: u32) -> Self {
        Self {
            processors,
            share: 1.0,
            share_beside: 1.0,
            running: 0,
            left: Seconds::ZERO,
        }
    }

    /// Returns the share after `ended` of the kernels that ran during the measurement have ended. Programs that want processors get time
    /// slices of the same length, so 1 / share programs share a processor.
    fn share_without(&self, ended: u32) -> f64 {
        let on_one = 1.0 / self.share - f64::from(ended) / f64::from(self.processors.max(1));
        (1.0 / on_one.max(1.0)).max(self.share)
    }
}

/// Queue of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SideQueue {
    /// Number of kernels that the node runs at once.
    pub cores: u32,
    /// Number of kernels that run on the node.
    pub running: u32,
    /// Number of kernels that wait for cores of the node.
    pub queued: u32,
    /// Time until running and waiting kernels have ended, if the node's cores share the work.
    pub left: Seconds,
}

/// Load of a side, as one more kernel finds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Number of kernels that may run on the side at once.
    pub cores: u32,
    /// Time until the side has a core for another kernel (A1).
    pub wait: Seconds,
    /// Share of a processor that the kernel gets at first (A2).
    pub share: f64,
    /// Time for which the kernel gets this initial share, from its start.
    pub crowded: Seconds,
    /// Share of a processor that the kernel gets after the time `crowded`.
    pub share_later: f64,
    /// Share of a processor that the kernel gets throughout if the other side works on a part of the input.
    pub share_beside: f64,
}

impl Load {
    /// Returns the load of a side on which nothing else runs.
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

    /// Returns the load of a client, on which a kernel starts at once whatever else runs: an operating system shares processors and does not
    /// queue kernels.
    pub fn of_client(machine: &MachineLoad) -> Self {
        Self {
            cores: machine.processors,
            wait: Seconds::ZERO,
            share: machine.share,
            crowded: machine.left,
            share_later: machine.share_without(machine.running),
            share_beside: machine.share_beside.min(machine.share),
        }
    }

    /// Returns the load of a node. If a core is free, the kernel starts at once, in parallel to the running kernels. Otherwise the kernel
    /// waits for its turn: the expected free time of AnalyzeThis §3.2. At that time the node's other kernels have ended, and other programs
    /// still run.
    pub fn of_node(queue: &SideQueue, machine: &MachineLoad) -> Self {
        let share_later = machine.share_without(machine.running);
        let full = queue.running.saturating_add(queue.queued) >= queue.cores;
        let (wait, ended) = if full {
            // Kernels that began after the measurement are not in the machine's share.
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

    /// Returns the run time of a kernel that needs `work` on a processor without other load (A3).
    pub(super) fn run(&self, work: Seconds) -> Seconds {
        let first = self.crowded * self.share;
        if first >= work {
            return work / self.share;
        }
        self.crowded + (work - first) / self.share_later
    }
}
