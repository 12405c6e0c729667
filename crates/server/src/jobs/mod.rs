//! Jobs: from a script to labels, and from outcomes to names and lineage.
//!
//! `submit` turns a script into rows of the database; `driver` owns the dispatcher on a thread of its
//! own, feeds it what happens and carries out what it decides; `persist` keeps every decision before it
//! takes effect, so that a server that is killed at any moment loses nothing; `publish` gives outputs
//! their names; `service` answers clients.

pub(crate) mod asked;
mod blocks;
pub(crate) mod driver;
pub(crate) mod expiry;
pub(crate) mod finished;
pub(crate) mod inbox;
pub(crate) mod joins;
mod mapper;
mod memo;
pub(crate) mod outbox;
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
pub(crate) mod way;

use crate::array::Report;
use std::collections::BTreeMap;
use tidemill_core::dispatch::ElementLoad;
use tidemill_core::event::{JobSpec, OutputSpec};
use tidemill_core::id::{JobId, TaskId};
use tidemill_core::object::Placed;

/// What the driver is told.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// From an element.
    Report(Box<Report>),
    /// A job was accepted and is in the database.
    Submitted(Box<Accepted>),
    /// Somebody asks what a job would find that is not in the database.
    Plan(Box<Accepted>, tokio::sync::oneshot::Sender<plan::Sight>),
    /// The owner cancels a job.
    Cancel(JobId),
    /// Names changed: files that jobs wait for may have come into being.
    NamesChanged,
    /// There are objects to be removed.
    Garbage,
    /// There are versions that may lack copies.
    Copies,
    /// There are objects to be read and compared.
    Scrub,
    /// Elements are emptied, or no more, or files are to move.
    Moves,
    /// Somebody asks what elements have to do.
    Load(tokio::sync::oneshot::Sender<Vec<ElementLoad>>),
    /// Somebody asks which elements are needed.
    Demand(tokio::sync::oneshot::Sender<tidemill_core::dispatch::Demand>),
    /// The server stops.
    Stop,
}

/// Files that a task has made, each as an output of its own.
pub(crate) type Files = Vec<(OutputSpec, Placed)>;

/// A job as the driver takes it.
#[derive(Clone, Debug)]
pub(crate) struct Accepted {
    /// For the dispatcher.
    pub(crate) spec: JobSpec,
    /// The owner's supplementary groups.
    pub(crate) groups: Vec<u32>,
    /// Whether outputs that exist are replaced.
    pub(crate) replace: bool,
    /// Whether remembered results are used.
    pub(crate) cache: bool,
    /// The folders that its outputs go to.
    pub(crate) anchors: way::Anchors,
    /// How long each task's outputs are kept.
    pub(crate) lifetimes: Vec<tidemill_core::job::Lifetime>,
    /// Of a job that is brought back: the files of tasks that ended well, if one of their outputs is a folder.
    pub(crate) files: BTreeMap<TaskId, Files>,
}

/// How a path that a job waits for is named to the dispatcher: with the job's owner, since a file that
/// one user may read need not be one that another may.
pub(crate) fn awaited_key(uid: u32, path: &str) -> String {
    format!("{uid}:{path}")
}
