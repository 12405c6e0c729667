//! Executor of labels on a fixed set of threads: one thread per core, threads for tasks without a core, and a few threads for labels that
//! run no kernel. The module starts the threads and cleans the directory `run`.
//!
//! [`crate::labels`] chooses the next label, and stores and reports the outcome; [`crate::task`] executes one label.

use crate::backend::{self, Backend};
use crate::db::Db;
use crate::error::Error;
use crate::fetch::Fetcher;
use crate::flash_model::FlashModel;
use crate::labels::{Live, NodeLabels, failed};
use crate::programs::KnownPrograms;
use crate::records;
use crate::replicas;
use crate::reports::Reports;
use crate::runner::Runner;
use crate::scrub;
use crate::status::NodeCounters;
use crate::store::Store;
use crate::task::{self, LabelEffects};
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_model::id::{LabelId, NodeId, ObjectId};
use tidemill_model::label::{FailureKind, Label, Lane, Operation};
use tidemill_model::processor_share::ProcessorPace;
use tidemill_model::resources::{LIGHT_MAX, Offers};
use tidemill_wire::v1;

/// Number of threads for labels that copy objects.
const COPIES: usize = 2;
/// Number of threads for labels that copy objects on a node with a backend, where each waits for the external store.
const COPIES_BACKEND: usize = 8;

/// Components of a node that its executor uses.
#[derive(Debug)]
pub struct ExecutorParts {
    /// Id of the node that owns the labels.
    pub node: NodeId,
    /// Data directory of the node.
    pub directory: PathBuf,
    /// Store of the node's objects.
    pub store: Arc<dyn Store>,
    /// The store in `store`, if the node has a backend.
    pub(crate) backend: Option<Arc<Backend>>,
    /// Database of the node.
    pub db: Db,
    /// Client that fetches objects from other nodes.
    pub fetcher: Arc<Fetcher>,
    /// Runner of the node's kernels.
    pub runner: Runner,
    /// Counters of the node's work.
    pub counters: Arc<NodeCounters>,
    /// Model of the flash device that the node's writes wear.
    pub flash: Arc<FlashModel>,
    /// Share of the processors that kernels leave to writers.
    pub(crate) pace: Arc<Mutex<ProcessorPace>>,
    /// Programs about which the server has asked, and whether the host has them.
    pub programs: KnownPrograms,
    /// Queue of reports to the server.
    pub reports: Arc<Reports>,
    /// Rate of background reads: see [`crate::NodeConfig::scrub_bytes_per_sec`].
    pub scrub_bytes_per_sec: Option<u64>,
}

/// Executor of a node's labels. If it is dropped without [`Executor::stop`], its threads continue to run.
#[derive(Debug)]
pub struct Executor {
    parts: Arc<ExecutorParts>,
    labels: Arc<NodeLabels>,
    workers: Mutex<Vec<std::thread::JoinHandle<()>>>,
    /// Ids of ended labels whose files the last [`Executor::sweep`] found in `run/`.
    left: Mutex<BTreeSet<LabelId>>,
}

impl Executor {
    /// Queues the labels that were queued when the node stopped, and starts the threads. `offers` are the node's resources.
    ///
    /// # Errors
    /// The database or the directory can't be read, or a thread can't be started.
    pub fn start(parts: ExecutorParts, offers: Offers) -> Result<Self, Error> {
        clear(&parts.directory.join("run"))?;
        parts.remove_unkept()?;
        let cores = offers.cores;
        let labels = NodeLabels::open(
            (parts.node, offers),
            parts.db.clone(),
            Arc::clone(&parts.flash),
            Arc::clone(&parts.reports),
            task::now,
        )?;
        scrub::settle(&parts)?;
        scrub::mark_lost_memory(&parts)?;
        let parts = Arc::new(parts);
        let mut workers = Vec::new();
        let cores = (0..cores).map(|core| (Lane::Kernel, format!("kernel-{core}")));
        let light = (0..LIGHT_MAX).map(|number| (Lane::Light, format!("light-{number}")));
        let copies = match parts.backend {
            Some(_) => COPIES_BACKEND,
            None => COPIES,
        };
        let copies = (0..copies).map(|copy| (Lane::Copy, format!("copy-{copy}")));
        let removal = (Lane::Remove, "remove".to_owned());
        let verify = (Lane::Verify, "verify".to_owned());
        let mut spawn = |name: String, run: fn(&ExecutorParts, &Arc<NodeLabels>, Lane), lane| {
            let (parts, labels) = (Arc::clone(&parts), Arc::clone(&labels));
            let worker = std::thread::Builder::new().name(name);
            let worker = worker.spawn(move || run(&parts, &labels, lane));
            workers.push(worker.map_err(Error::Thread)?);
            Ok::<_, Error>(())
        };
        for (lane, name) in cores.chain(light).chain(copies).chain([removal, verify]) {
            spawn(name, work, lane)?;
        }
        if parts.backend.is_some() {
            let upload: fn(&ExecutorParts, &Arc<NodeLabels>, Lane) =
                |parts, labels, _| backend::keep_uploading(parts, labels);
            spawn("upload".to_owned(), upload, Lane::Verify)?;
        }
        if parts.scrub_bytes_per_sec.is_some() {
            let hash: fn(&ExecutorParts, &Arc<NodeLabels>, Lane) =
                |parts, labels, _| scrub::hash_continuously(parts, labels);
            spawn("hash".to_owned(), hash, Lane::Verify)?;
        }
        Ok(Self {
            parts,
            labels,
            workers: Mutex::new(workers),
            left: Mutex::default(),
        })
    }

    /// Returns the components that the executor uses.
    #[must_use]
    pub fn parts(&self) -> &Arc<ExecutorParts> {
        &self.parts
    }

    /// Returns the labels that the executor runs.
    #[must_use]
    pub fn labels(&self) -> &Arc<NodeLabels> {
        &self.labels
    }

    /// Removes files in `run/` that could not be removed when their labels ended. Blocks.
    pub fn sweep(&self) {
        let parts = self.parts();
        let before = std::mem::take(&mut *self.left.lock());
        let mut left = BTreeSet::new();
        for entry in std::fs::read_dir(parts.directory.join("run"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            // The name is `7`, `7.copy` or `7.0.again`; spare directories have other names.
            let label = name.to_str().and_then(|name| name.split('.').next());
            let Some(label) = label.and_then(|label| label.parse().ok()).map(LabelId) else {
                continue;
            };
            let (live, seen) = (self.labels.is_live(label), before.contains(&label));
            // The worker of a label that has just ended is still cleaning up: the next sweep checks it again.
            if !live && seen {
                task::clean(parts, label);
                let _ = std::fs::remove_file(entry.path());
            } else if !live {
                left.insert(label);
            }
        }
        *self.left.lock() = left;
    }

    /// Kills the running kernels and ends the threads. Labels that have not ended run again at the next start. Blocks.
    pub fn stop(&self) {
        self.labels.stop();
        for worker in self.workers.lock().drain(..) {
            if worker.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

/// Executes labels of a lane until the node stops; the main loop of a worker thread.
fn work(parts: &ExecutorParts, labels: &Arc<NodeLabels>, lane: Lane) {
    if lane == Lane::Verify {
        scrub::lower_priority();
    }
    while let Some(next) = labels.next(lane) {
        let taken = match lane {
            Lane::Copy => replicas::make(parts, labels, replicas::with_more(labels, next)),
            _ => vec![next],
        };
        for (id, live) in taken {
            if !run(parts, labels, (id, &live)) {
                return;
            }
        }
    }
}

/// Executes a label. Returns whether the thread may execute more labels.
fn run(parts: &ExecutorParts, labels: &Arc<NodeLabels>, (id, live): (LabelId, &Live)) -> bool {
    let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let phase = |phase| labels.on_phase(id, phase);
        match &live.label.operation {
            Operation::Verify { idle, objects, .. } => {
                phase("running");
                scrub::verify(parts, live, labels, *idle, objects)
            }
            _ => task::run(parts, live, &phase),
        }
    }))
    .unwrap_or_else(|_| {
        let message = "the node itself failed on this label; see its log".to_owned();
        let mut outcome = failed(live.start, FailureKind::Device, message);
        outcome.end = task::now();
        LabelEffects::without_effect(outcome)
    });
    if matches!(&work.outcome.result, Err(failure) if failure.kind == FailureKind::Unfit) {
        // The programs are reported before the outcome, so that the server has the current list when it places the task again.
        parts.look_for_programs();
    }
    if !labels.end(id, work) {
        return false;
    }
    task::clean(parts, id);
    true
}

/// Empties a directory that tasks may traverse but not list.
fn clear(directory: &std::path::Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |source| Error::Directory {
        path: directory.to_owned(),
        source,
    };
    crate::directory::empty(directory).map_err(failed)?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o711)).map_err(failed)
}

impl ExecutorParts {
    /// Reports to the server which of the requested programs were installed or removed. Blocks.
    pub(crate) fn look_for_programs(&self) {
        let has = |name: &str| self.runner.has_program(name);
        self.programs.look(has, |news| {
            self.reports.send(v1::from_node::Message::Programs(news));
        });
    }

    /// Returns the limit of background reads in bytes per second, which yield to all other work.
    pub(crate) fn rate(&self) -> u64 {
        self.scrub_bytes_per_sec
            .unwrap_or(crate::config::SCRUB_BYTES_PER_SEC_DEFAULT)
    }

    /// Removes the files of outputs that the store has and the database does not have, because their label was interrupted.
    fn remove_unkept(&self) -> Result<(), Error> {
        for record in self.db.read(records::open_labels)? {
            let label = v1::Label::decode(&*record.payload);
            if let Ok(label) = label
                && let Ok(label) = Label::try_from(&label)
                && record.outcome.is_none()
            {
                // The label may be cancelled before it runs again.
                self.remove_unkept_of(&label);
            }
        }
        Ok(())
    }

    fn remove_unkept_of(&self, label: &Label) {
        for range in label.operation.makes() {
            // The files of a directory were stored in order: after the first missing one, no more exist.
            let mut objects = range.map(ObjectId);
            while objects
                .next()
                .is_some_and(|object| self.remove_if_unkept(object))
            {}
        }
    }

    /// Removes an object that the database does not have. Returns whether the object existed.
    pub(crate) fn remove_if_unkept(&self, object: ObjectId) -> bool {
        let kept = self
            .db
            .read(|connection| records::has_object(connection, object));
        match kept {
            Ok(true) => true,
            Ok(false) => self.store.remove(object).unwrap_or_else(|error| {
                tracing::warn!(%error, %object, "an output of an interrupted label can't be removed");
                true
            }),
            Err(error) => {
                tracing::warn!(%error, "outputs of interrupted labels can't be removed");
                false
            }
        }
    }
}
