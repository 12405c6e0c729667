//! Runs labels on a fixed set of threads.
//!
//! Which label is next, and that how it ended is kept and reported, is in [`crate::labels`]; what one label does is
//! in [`crate::task`].

use crate::db::Db;
use crate::error::Error;
use crate::flash_model::FlashModel;
use crate::labels::{Labels, failed};
use crate::pull::Pulls;
use crate::records;
use crate::reports::Reports;
use crate::runner::Runner;
use crate::status::Counters;
use crate::store::Store;
use crate::task::{self, Work};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_core::id::{ElementId, ObjectId};
use tidemill_core::label::FailureKind;

/// What the executor works with.
#[derive(Debug)]
pub struct Parts {
    /// Whose labels these are.
    pub element: ElementId,
    /// The element's folder.
    pub folder: PathBuf,
    /// Objects.
    pub store: Arc<dyn Store>,
    /// Rows.
    pub db: Db,
    /// Objects of other elements.
    pub pulls: Arc<Pulls>,
    /// Kernels.
    pub runner: Runner,
    /// Counters.
    pub counters: Arc<Counters>,
    /// What the writes do to the flash below.
    pub flash: Arc<FlashModel>,
    /// The way to the server.
    pub reports: Arc<Reports>,
}

/// Runs labels. Dropping it without [`Executor::stop`] leaves its threads running.
#[derive(Debug)]
pub struct Executor {
    parts: Arc<Parts>,
    labels: Arc<Labels>,
    workers: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Executor {
    /// Takes up what was queued when the element stopped, and starts `cores` threads.
    ///
    /// # Errors
    /// If the database or the folder can't be read, or a thread can't be started.
    pub fn start(parts: Parts, cores: u32) -> Result<Self, Error> {
        clear(&parts.folder.join("run"))?;
        let labels = Labels::open(
            parts.element,
            parts.db.clone(),
            Arc::clone(&parts.flash),
            Arc::clone(&parts.reports),
            task::now,
        )?;
        let parts = Arc::new(parts);
        let mut workers = Vec::new();
        for core in 0..cores {
            let (parts, labels) = (Arc::clone(&parts), Arc::clone(&labels));
            let worker = std::thread::Builder::new()
                .name(format!("kernel-{core}"))
                .spawn(move || work(&parts, &labels))
                .map_err(Error::Thread)?;
            workers.push(worker);
        }
        Ok(Self {
            parts,
            labels,
            workers: Mutex::new(workers),
        })
    }

    /// What it works with.
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What it runs.
    #[must_use]
    pub fn labels(&self) -> &Arc<Labels> {
        &self.labels
    }

    /// Kills what runs and ends the threads. What had not ended is run again at the next start. Blocks.
    pub fn stop(&self) {
        self.labels.stop();
        for worker in self.workers.lock().drain(..) {
            if worker.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

/// A worker thread.
fn work(parts: &Parts, labels: &Arc<Labels>) {
    while let Some((id, live)) = labels.next() {
        let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            task::run(parts, &live, &|phase| labels.on_phase(id, phase))
        }))
        .unwrap_or_else(|_| {
            let message = "the element itself failed on this label; see its log".to_owned();
            let mut outcome = failed(live.start, FailureKind::Device, message);
            outcome.end = task::now();
            Work::without_effect(outcome)
        });
        if !labels.end(id, work) {
            return;
        }
        task::clean(parts, id);
    }
}

/// Empties a folder that tasks may pass through but not read.
fn clear(folder: &std::path::Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |source| Error::Folder {
        path: folder.to_owned(),
        source,
    };
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).map_err(failed)
}

impl Parts {
    /// Removes objects and what is kept of them. Blocks.
    pub fn remove(&self, objects: &[ObjectId]) {
        for &object in objects.iter().filter(|object| object.is_data()) {
            self.counters.on_removed(object);
            if let Err(error) = self.store.remove(object) {
                tracing::error!(%error, %object, "an object can't be removed");
            }
        }
        let objects = objects.to_vec();
        let change = move |connection: &rusqlite::Connection| {
            for &object in &objects {
                records::remove_object(connection, object)?;
            }
            Ok(objects)
        };
        let flash = Arc::clone(&self.flash);
        self.db.submit(false, change, move |result| match result {
            Ok(objects) => objects
                .into_iter()
                .for_each(|object| flash.on_removed(object)),
            Err(error) => tracing::error!(%error, "removed objects could not be forgotten"),
        });
    }
}
