//! Jobs: from a script to labels, and from outcomes to names and lineage.
//!
//! `submit` turns a script into rows of the database. `driver` owns the dispatcher on a separate thread, passes events to it and
//! carries out its decisions. `persist` stores every decision before it takes effect, so that a server that is killed at any moment
//! loses nothing. `publish` names the outputs. `service` answers clients.

mod blocks;
pub(crate) mod driver;
mod driver_records;
pub(crate) mod expiry;
pub(crate) mod finished;
pub(crate) mod inbox;
pub(crate) mod joins;
mod mapper;
pub(crate) mod mapper_jobs;
pub(crate) mod outbox;
pub(crate) mod output_paths;
mod persist;
mod plan;
mod publish;
mod results;
pub(crate) mod service;
pub(crate) mod spec;
pub(crate) mod store;
pub(crate) mod submit;
mod trace;
mod view;

use crate::cluster::DriverReport;
use std::collections::BTreeMap;
use tidemill_core::dispatch::NodeLoad;
use tidemill_core::event::{JobSpec, OutputSpec};
use tidemill_core::id::{JobId, TaskId};
use tidemill_core::object::Placed;

/// Message for the driver.
#[derive(Debug)]
pub(crate) enum DriverMessage {
    /// A report of a node.
    Report(Box<DriverReport>),
    /// A job was accepted and is in the database.
    Submitted(Box<SubmittedJob>),
    /// Request for the state that a job would find and that is not in the database.
    Plan(
        Box<SubmittedJob>,
        tokio::sync::oneshot::Sender<plan::ClusterView>,
    ),
    /// The owner cancels a job.
    Cancel(JobId),
    /// Names changed: files that jobs wait for may exist now.
    NamesChanged,
    /// Objects wait for their removal.
    Garbage,
    /// Versions may lack replicas.
    Replicas,
    /// Objects wait to be read and compared by a scrub.
    Scrub,
    /// The set of nodes that are being emptied changed, or files are to be moved.
    Migrations,
    /// Request for the load of nodes.
    Load(tokio::sync::oneshot::Sender<Vec<NodeLoad>>),
    /// Request for the nodes that are needed.
    Demand(tokio::sync::oneshot::Sender<tidemill_core::dispatch::Demand>),
    /// The server stops.
    Stop,
}

/// Files that a task has made, each as an output of its own.
pub(crate) type OutputFiles = Vec<(OutputSpec, Placed)>;

/// A job in the form that the driver receives.
#[derive(Clone, Debug)]
pub(crate) struct SubmittedJob {
    /// The job for the dispatcher.
    pub(crate) spec: JobSpec,
    /// Supplementary groups of the owner.
    pub(crate) groups: Vec<u32>,
    /// Whether existing outputs are replaced.
    pub(crate) replace: bool,
    /// Whether cached results are used.
    pub(crate) cache: bool,
    /// Existing directories that the outputs are created in.
    pub(crate) anchors: output_paths::Anchors,
    /// How long each task's outputs are kept.
    pub(crate) lifetimes: Vec<tidemill_core::job::Lifetime>,
    /// For a restored job: the files of tasks that succeeded, if one of their outputs is a directory.
    pub(crate) files: BTreeMap<TaskId, OutputFiles>,
}

/// Returns the dispatcher's name of a path that a job waits for. It includes the job's owner, because another user may not be able
/// to read the same file.
pub(crate) fn awaited_key(uid: u32, path: &str) -> String {
    format!("{uid}:{path}")
}
