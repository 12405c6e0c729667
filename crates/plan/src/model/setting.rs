//! What the equations are about: an application's run on a machine, and where its output is staged.

use crate::units::{Bytes, BytesPerSecond, JoulesPerByte, Seconds, SecondsPerByte, Watts};

/// One application running on a machine. Symbols are the paper's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// N: compute nodes that simulate.
    pub nodes: f64,
    /// BW_PFS: bandwidth of the parallel file system, all nodes together.
    pub file_system: BytesPerSecond,
    /// BW_busylink: bandwidth of a link when all nodes use it.
    pub link: BytesPerSecond,
    /// m: the packet of the network.
    pub flit: Bytes,
    /// d: hops from where output is staged to the nearest I/O node.
    pub hops_to_io: f64,
    /// e(d): energy to move a byte over these hops.
    pub energy_to_io: JoulesPerByte,
    /// λ_a: data to analyse that one node makes.
    pub analysis: BytesPerSecond,
    /// λ_c: checkpoint data that one node makes; zero without checkpoints.
    pub checkpoint: BytesPerSecond,
    /// α: size of what analysis leaves, as a share of its input.
    pub reduction: f64,
    /// t_iter: time from one output to the next.
    pub interval: Seconds,
    /// t_sim: how long a run computes.
    pub duration: Seconds,
    /// num_chkpts: checkpoints kept where output is staged.
    pub checkpoints_kept: f64,
    /// f_op: space bought for each byte of space needed.
    pub overprovisioning: f64,
    /// f_restart: share of the interval that reading a checkpoint may take.
    pub restart_fraction: f64,
    /// U_time: time from one upgrade of the machine to the next, which a device must outlive.
    pub upgrade_interval: Seconds,
    /// P_idle of a simulation node: what it draws while it waits for I/O.
    pub waiting: Watts,
}

impl Run {
    /// λ_a + λ_c: all that one node makes.
    pub fn produced(&self) -> BytesPerSecond {
        self.analysis + self.checkpoint
    }

    /// α·λ_a + λ_c: what is left of one node's output when it goes to the file system.
    pub fn drained(&self) -> BytesPerSecond {
        self.analysis * self.reduction + self.checkpoint
    }

    /// BW_PFS / N: one node's share of the file system.
    pub fn file_system_share(&self) -> BytesPerSecond {
        self.file_system / self.nodes
    }
}

/// What kind of thing output is staged on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageKind {
    /// A solid-state device with a controller that analyses: Active Flash.
    Device,
    /// A node of its own with its memory: the paper's analysis node.
    Node,
}

/// One device or node that the output of R simulation nodes is staged on and analysed by.
///
/// The paper's equations for analysis nodes are those for devices with other parameters; so there is one function
/// for both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// Which of the two it is.
    pub kind: StageKind,
    /// C_SSD or C_mem: what it holds.
    pub capacity: Bytes,
    /// BW_sim-SSD or BW_mem: bandwidth into it.
    pub bandwidth: BytesPerSecond,
    /// 1 / BW_fm2c + 1 / BW_c2m: time that getting a byte of staged data to its cores takes; zero for a node.
    pub internal: SecondsPerByte,
    /// P_busy.
    pub busy: Watts,
    /// P_idle.
    pub idle: Watts,
    /// W_endurance: bytes that may be written in its life; none where nothing wears out.
    pub endurance: Option<Bytes>,
    /// e(d_s): energy to move a byte from a simulation node to it.
    pub energy_to_stage: JoulesPerByte,
}
