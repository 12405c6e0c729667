//! Jobs: a script becomes labels for nodes, and the outcomes of the labels become named outputs and lineage.
//!
//! `submit` turns a script into rows of the database. `driver` owns the dispatcher on a separate thread, passes events to the dispatcher
//! and executes its decisions. `persist` stores every decision before the decision takes effect, so that a server that is killed at any
//! moment loses nothing. `publish` names the outputs. `service` answers clients.

mod awaited;
mod blocks;
pub(crate) mod driver;
mod driver_records;
pub(crate) mod expiry;
pub(crate) mod finished;
pub(crate) mod inbox;
mod mapper;
pub(crate) mod mapper_jobs;
mod persist;
mod plan;
mod publish;
mod results;
pub(crate) mod service;
pub(crate) mod store;
pub(crate) mod submit;
mod trace;

use crate::cluster::DriverReport;
use std::collections::BTreeMap;
use tidemill_meta::jobs::output_paths::Anchors;
use tidemill_meta::jobs::outputs::OutputFiles;
use tidemill_model::event::JobSpec;
use tidemill_model::id::{JobId, TaskId};
use tidemill_sched::dispatch::NodeLoad;

/// Message for the dispatcher's driver.
#[derive(Debug)]
pub(crate) enum DriverMessage {
    /// A report of a node.
    Report(Box<DriverReport>),
    /// A job was accepted and is in the database.
    Submitted(Box<SubmittedJob>),
    /// Request for the state that a job would find at its start and that is not in the database.
    Plan(
        Box<SubmittedJob>,
        tokio::sync::oneshot::Sender<plan::ClusterView>,
    ),
    /// The owner of a job cancels the job.
    Cancel(JobId),
    /// The feed has new rows: files that jobs wait for may exist now.
    NamesChanged,
    /// Permissions changed: any files that jobs wait for may be readable now.
    RightsChanged,
    /// Objects wait to be removed from nodes.
    Garbage,
    /// Versions may lack replicas.
    Replicas,
    /// Objects wait to be read by a scrub.
    Scrub,
    /// The set of draining nodes changed, or files are to be migrated.
    Migrations,
    /// Request for the load of nodes.
    Load(tokio::sync::oneshot::Sender<Vec<NodeLoad>>),
    /// Request for the demand of waiting and running work for nodes.
    Demand(tokio::sync::oneshot::Sender<tidemill_sched::dispatch::Demand>),
    /// The server is shutting down.
    Stop,
}

/// A job in the form that the driver receives.
#[derive(Clone, Debug)]
pub(crate) struct SubmittedJob {
    /// The job for the dispatcher.
    pub(crate) spec: JobSpec,
    /// Supplementary group ids of the job's owner.
    pub(crate) groups: Vec<u32>,
    /// Whether outputs replace existing files.
    pub(crate) replace: bool,
    /// Whether tasks may be answered from cached results.
    pub(crate) cache: bool,
    /// Existing directories in which the outputs are created.
    pub(crate) anchors: Anchors,
    /// Time for which the outputs of each task are kept.
    pub(crate) lifetimes: Vec<tidemill_lang::job::Lifetime>,
    /// For a restored job: the output files of tasks that succeeded, if one of the outputs is a directory.
    pub(crate) files: BTreeMap<TaskId, OutputFiles>,
}
