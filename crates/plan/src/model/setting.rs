//! Parameters of the equations: an application's run on a machine, and the place where the run's output is staged.

use crate::units::{Bytes, BytesPerSecond, JoulesPerByte, Seconds, SecondsPerByte, Watts};

/// One application that runs on a machine. The symbols in the fields' descriptions are those of the paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApplicationRun {
    /// N: number of compute nodes that simulate.
    pub nodes: f64,
    /// BW_PFS: bandwidth of the parallel file system for all nodes together.
    pub file_system: BytesPerSecond,
    /// BW_busylink: bandwidth of a link when all nodes use it.
    pub link: BytesPerSecond,
    /// m: size of a packet (flit) of the network.
    pub flit: Bytes,
    /// d: number of hops from the place of staging to the nearest I/O node.
    pub hops_to_io: f64,
    /// e(d): energy of moving data over the hops to the nearest I/O node, per byte.
    pub energy_to_io: JoulesPerByte,
    /// λ_a: rate of data to analyse that one node produces.
    pub analysis: BytesPerSecond,
    /// λ_c: rate of checkpoint data that one node produces; zero without checkpoints.
    pub checkpoint: BytesPerSecond,
    /// α: size of the output of analysis, as a share of its input.
    pub reduction: f64,
    /// t_iter: time from one output of the application to the next.
    pub interval: Seconds,
    /// t_sim: compute time of a run of the application.
    pub duration: Seconds,
    /// num_chkpts: number of checkpoints kept at the place of staging.
    pub checkpoints_kept: f64,
    /// f_op: space bought for each byte of space needed.
    pub overprovisioning: f64,
    /// f_restart: share of the output interval that reading a checkpoint may take.
    pub restart_fraction: f64,
    /// U_time: time from one upgrade of the machine to the next, which a device must survive.
    pub upgrade_interval: Seconds,
    /// P_idle of a simulation node: power while the node waits for I/O.
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

/// Kind of the place where a run's output is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageKind {
    /// A solid-state device with a controller that analyses: Active Flash.
    Device,
    /// A separate node with its memory: the paper's analysis node.
    Node,
}

/// Place of staging: one device or node that stages and analyses the output of R simulation nodes.
///
/// The paper's equations for analysis nodes are those for devices with other parameters, so one function serves devices and nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnalysisStage {
    /// Kind of the place of staging.
    pub kind: StageKind,
    /// C_SSD or C_mem: capacity of the device or node.
    pub capacity: Bytes,
    /// BW_sim-SSD or BW_mem: bandwidth of writes to the device or node.
    pub bandwidth: BytesPerSecond,
    /// 1 / BW_fm2c + 1 / BW_c2m: time of moving staged data to the cores, per byte; zero for a node.
    pub internal: SecondsPerByte,
    /// P_busy: power of the device or node when it is busy.
    pub busy: Watts,
    /// P_idle: power of the device or node when it is idle.
    pub idle: Watts,
    /// W_endurance: bytes that may be written during the life of the device; `None` if it does not wear out.
    pub endurance: Option<Bytes>,
    /// e(d_s): energy of moving data from a simulation node to the place of staging, per byte.
    pub energy_to_stage: JoulesPerByte,
}
