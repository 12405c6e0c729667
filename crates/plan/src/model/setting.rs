//! Parameters of the equations: an application's run on a machine, and the place where its output is staged.

use crate::units::{Bytes, BytesPerSecond, JoulesPerByte, Seconds, SecondsPerByte, Watts};

/// One application running on a machine. Symbols are those of the paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApplicationRun {
    /// N: number of compute nodes that simulate.
    pub nodes: f64,
    /// BW_PFS: bandwidth of the parallel file system, all nodes together.
    pub file_system: BytesPerSecond,
    /// BW_busylink: bandwidth of a link when all nodes use it.
    pub link: BytesPerSecond,
    /// m: size of a packet of the network.
    pub flit: Bytes,
    /// d: number of hops from the place of staging to the nearest I/O node.
    pub hops_to_io: f64,
    /// e(d): energy of moving a byte over these hops.
    pub energy_to_io: JoulesPerByte,
    /// λ_a: rate of data to analyse that one node produces.
    pub analysis: BytesPerSecond,
    /// λ_c: rate of checkpoint data that one node produces; zero without checkpoints.
    pub checkpoint: BytesPerSecond,
    /// α: size of the output of analysis, as a share of its input.
    pub reduction: f64,
    /// t_iter: time from one output to the next.
    pub interval: Seconds,
    /// t_sim: compute time of a run.
    pub duration: Seconds,
    /// num_chkpts: number of checkpoints kept at the place of staging.
    pub checkpoints_kept: f64,
    /// f_op: space bought for each byte of space needed.
    pub overprovisioning: f64,
    /// f_restart: share of the interval that reading a checkpoint may take.
    pub restart_fraction: f64,
    /// U_time: time from one upgrade of the machine to the next, which a device must survive.
    pub upgrade_interval: Seconds,
    /// P_idle of a simulation node: power while it waits for I/O.
    pub waiting: Watts,
}

impl ApplicationRun {
    /// Returns λ_a + λ_c: the rate of all data that one node produces.
    pub fn produced(&self) -> BytesPerSecond {
        self.analysis + self.checkpoint
    }

    /// Returns α·λ_a + λ_c: the rate of one node's output to the file system after analysis.
    pub fn staged_out(&self) -> BytesPerSecond {
        self.analysis * self.reduction + self.checkpoint
    }

    /// Returns BW_PFS / N: one node's share of the file system.
    pub fn file_system_share(&self) -> BytesPerSecond {
        self.file_system / self.nodes
    }
}

/// Kind of the place where output is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageKind {
    /// A solid-state device with a controller that analyses: Active Flash.
    Device,
    /// A separate node with its memory: the paper's analysis node.
    Node,
}

/// One device or node that stages and analyses the output of R simulation nodes.
///
/// The paper's equations for analysis nodes are those for devices with other parameters, so there is one function for both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnalysisStage {
    /// Kind of the place.
    pub kind: StageKind,
    /// C_SSD or C_mem: capacity.
    pub capacity: Bytes,
    /// BW_sim-SSD or BW_mem: bandwidth of writes.
    pub bandwidth: BytesPerSecond,
    /// 1 / BW_fm2c + 1 / BW_c2m: time of moving a byte of staged data to its cores; zero for a node.
    pub internal: SecondsPerByte,
    /// P_busy.
    pub busy: Watts,
    /// P_idle.
    pub idle: Watts,
    /// W_endurance: bytes that may be written during its life; `None` if it does not wear out.
    pub endurance: Option<Bytes>,
    /// e(d_s): energy of moving a byte from a simulation node to it.
    pub energy_to_stage: JoulesPerByte,
}
