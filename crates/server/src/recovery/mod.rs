//! Recovery of a lost server database.
//!
//! The database is restored from its log, which two nodes copy (next: `log/src/restore.rs`). Files that were sealed after the end of the
//! log are added from the nodes that store them. Without a log, all files are added so, with the path, owner and mode that the server signed
//! when they were created. Data that only the server knew is lost then: see `docs/health.md`.

mod files;
mod sources;
mod tasks;

use crate::{clock, serve};
use sources::{RecoveredNode, Sources};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidemill_log::{RestoreError, restore};
use tidemill_meta::node_database::NodeTask;
use tidemill_meta::placement::nodes;
use tidemill_meta::settings::Rebuilt;
use tidemill_meta::vnode::InodeRecord;
use tidemill_meta::{Connection, Fault, OpenError, SqliteNames, ids, schema, settings};
use tidemill_model::id::Inode;

pub use tidemill_log::Restored;
pub use tidemill_meta::node_database::NodeProblem;

/// Number of ids left free after the largest known id. The gap exceeds the number of ids that clients can have reserved.
const GAP: u64 = 1 << 32;
/// Number of jobs and tasks that clients may know although neither the log nor a node does.
const NUMBERED_GAP: u64 = 1000;

/// Wishes for a recovery.
#[derive(Clone, Debug, Default)]
pub struct RecoverOptions {
    /// Moment of the wanted state, in nanoseconds since the epoch; `None` for the last state.
    pub until: Option<i64>,
    /// File with the cluster's key, if no node is given.
    pub key: Option<PathBuf>,
    /// Whether to restore and compare everything, and to change nothing.
    pub dry_run: bool,
    /// Owner and group of the root directory, if there is no log.
    pub root_owner: (u32, u32),
}

/// Result of a recovery.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The state that was restored from a log; `None` if no source has one.
    pub restored: Option<Restored>,
    /// Nodes whose objects were compared with the database.
    pub nodes: Vec<u32>,
    /// Given nodes that were removed from the cluster before. They stay removed.
    pub removed: Vec<u32>,
    /// Nodes that were not given although nodes with higher numbers were given.
    pub absent: Vec<u32>,
    /// Files that are not in the log, and were added from nodes under their path at their creation.
    pub added: Vec<PathBuf>,
    /// Files that are not in the log, and were added in `/lost+found`.
    pub lost_and_found: Vec<LostFoundEntry>,
    /// Number of tasks without a log whose lineage was added from nodes.
    pub tasks: usize,
    /// Paths of files whose bytes no node has, although all nodes on which they were have been given.
    pub missing: Vec<PathBuf>,
    /// Number of objects on nodes that belong to no file of the database and were left where they are.
    pub unknown: u64,
    /// Files of the server's directory that were restored.
    pub attached: Vec<String>,
}

impl Recovered {
    /// Returns whether something is missing in the recovered database.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.restored.as_ref().is_none_or(Restored::is_incomplete) || !self.missing.is_empty()
    }
}

/// A file that was added in `/lost+found`.
#[derive(Debug)]
pub struct LostFoundEntry {
    /// Present path.
    pub path: PathBuf,
    /// Path at the file's creation. Another file has that path, or the owner may not create a file there; empty if it is unknown.
    pub was: PathBuf,
}

/// Reason why a database could not be recovered. Nothing was changed in that case.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The server's directory already contains a database.
    #[error("{0} exists; move it elsewhere first if it is corrupt or belongs to another cluster")]
    Exists(PathBuf),
    /// A server runs in the directory, or the directory can't be used.
    #[error(transparent)]
    Directory(#[from] crate::StartError),
    /// Neither a log nor a directory of a node was given.
    #[error("no log and no node to read: name the directories of all nodes, or copies of the log")]
    NoSource,
    /// A moment was given, and no source has a log.
    #[error("no source has a log of the server's database, which --until needs")]
    NoLog,
    /// The data of a node can't be used.
    #[error("{path}: {problem}")]
    Node {
        /// Directory or database of the node.
        path: PathBuf,
        /// Reason of the failure.
        problem: NodeProblem,
    },
    /// A file can't be written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The new database can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No database can be restored from the log.
    #[error(transparent)]
    Log(#[from] RestoreError),
    /// The log is encrypted, and the cluster's key is not known.
    #[error(
        "the log is encrypted: name the directory of a node, or the file with the cluster's key (--key): {path}: {source}"
    )]
    NoKey {
        /// File in which the key was looked for.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A row of the new database can't be written.
    #[error("can't write the new database: {0}")]
    Write(#[from] Fault),
}

/// Creates `server.db` in a server's directory from the log in that directory and in `sources`: directories of nodes, copies of their
/// `node.db`, and directories with files of the log. Nodes may run during the recovery. All of the cluster's nodes should be given: files
/// that are not in the log are added only from nodes that are given.
///
/// # Errors
/// If a database exists already, or a source can't be used. Nothing is changed in that case.
pub fn recover(
    dir: &Path,
    sources: &[PathBuf],
    options: &RecoverOptions,
) -> Result<Recovered, RecoverError> {
    let mut sources = sources::find(dir, sources)?;
    if sources.logs.is_empty() && sources.nodes.is_empty() {
        return Err(RecoverError::NoSource);
    }
    if sources.logs.is_empty() && options.until.is_some() {
        return Err(RecoverError::NoLog);
    }
    sources::check(&sources.nodes)?;
    let removed = sources.nodes.extract_if(.., |node| node.records.removed);
    let removed: Vec<u32> = removed.map(|node| node.records.node).collect();
    let (_lock, database) = prepare(dir)?;
    let fresh = beside(&database, ".recovered");
    remove(&fresh);
    let made = written(&fresh, dir, (&sources, &removed), options);
    let mut recovered = match made {
        Ok(recovered) => recovered,
        Err(error) => {
            remove(&fresh);
            return Err(error);
        }
    };
    if options.dry_run {
        remove(&fresh);
        return Ok(recovered);
    }
    if let Some(restored) = &recovered.restored {
        recovered.attached = attach(dir, restored)?;
    }
    install(dir, &fresh, &database)?;
    let _ = std::fs::remove_file(fresh.with_extension("reserve"));
    Ok(recovered)
}

fn remove(database: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(beside(database, suffix));
    }
    let _ = std::fs::remove_file(database.with_extension("reserve"));
}

/// Writes the recovered database to the file `fresh`.
fn written(
    fresh: &Path,
    dir: &Path,
    (sources, removed): (&Sources, &[u32]),
    options: &RecoverOptions,
) -> Result<Recovered, RecoverError> {
    let Sources { logs, nodes } = sources;
    let mut recovered = Recovered {
        nodes: nodes.iter().map(|node| node.records.node).collect(),
        removed: removed.to_vec(),
        absent: absent(nodes, removed),
        unknown: nodes.iter().map(|node| node.unknown).sum(),
        ..Recovered::default()
    };
    match logs.is_empty() {
        true => begin(fresh, (nodes, removed), options.root_owner)?,
        false => {
            let key = sources::key(dir, nodes, options)?;
            let restored = restore(logs, &key, options.until, fresh)?;
            if let Some(node) = nodes.first()
                && node.records.cluster != restored.cluster.to_le_bytes()
            {
                return Err(RecoverError::Node {
                    path: node.path.clone(),
                    problem: NodeProblem::OtherCluster(logs[0].clone()),
                });
            }
            recovered.restored = Some(restored);
        }
    }
    let names = SqliteNames::open(fresh, options.root_owner)?;
    leave_gaps(&names, nodes, recovered.restored.as_ref())?;
    files::add(&names, nodes, options, &mut recovered)?;
    if recovered.restored.is_none() {
        let ended = tasks::ended(nodes);
        recovered.tasks = ended.len();
        names
            .database()
            .write_blocking(move |db| tasks::insert(db, &ended))?;
    }
    // Objects without a file stay for a week if a part of the state was left out.
    let how = match recovered.is_incomplete() {
        true => Rebuilt::Incomplete,
        false if options.until.is_some() || recovered.unknown > 0 => Rebuilt::WithOrphans,
        false => Rebuilt::Complete,
    };
    let mark = move |db: &Connection| settings::set_rebuilt(db, clock::now_ns(), how);
    names.database().write_blocking(mark)?;
    names.database().close();
    drop(names);
    schema::empty_log(fresh)?;
    Ok(recovered)
}

/// Creates a database without files that has the identity of the nodes' cluster.
fn begin(
    fresh: &Path,
    (nodes, removed): (&[RecoveredNode], &[u32]),
    root_owner: (u32, u32),
) -> Result<(), RecoverError> {
    let first = nodes.first().ok_or(RecoverError::NoSource)?;
    let made = serve::private().open(fresh);
    made.map_err(|source| file_error(fresh, source))?;
    schema::create_filled(fresh, |db| {
        settings::insert_identity(db, &first.records.key, &first.records.cluster)?;
        let root = InodeRecord::directory(Inode::ROOT.0, 0o755, root_owner, clock::now_ns());
        root.insert(db)?;
        for node in removed {
            nodes::insert_removed(db, *node)?;
        }
        Ok(())
    })
}

/// Raises the counters of ids, so that no id is assigned twice: the lost server may have issued ids that neither the log nor a node has.
fn leave_gaps(
    names: &SqliteNames,
    nodes: &[RecoveredNode],
    restored: Option<&Restored>,
) -> Result<(), Fault> {
    let largest = |of: fn(&RecoveredNode) -> u64| nodes.iter().map(of).max().unwrap_or(0) + 1;
    let object = |node: &RecoveredNode| {
        let parts = node.records.objects.iter().filter_map(|object| object.part);
        let versions = parts.map(|part| part.version.0).max().unwrap_or(0);
        node.records.object_max.max(versions)
    };
    let inode = |node: &RecoveredNode| {
        let inodes = node.records.objects.iter().map(|object| object.inode);
        inodes.max().unwrap_or(0)
    };
    let task = |node: &RecoveredNode| {
        let tasks = node.records.tasks.iter().map(|task| task.task);
        tasks.max().unwrap_or(0)
    };
    let job = |node: &RecoveredNode| {
        let jobs = node.records.tasks.iter().map(NodeTask::job);
        jobs.max().unwrap_or(0)
    };
    let used = [
        ("object", largest(object)),
        ("inode", largest(inode)),
        ("label", largest(|node| node.records.label_max)),
        ("task", largest(task)),
        ("job", largest(job)),
    ];
    let log = restored.map(|restored| (restored.term_max, restored.logs.clone()));
    names.database().write_blocking(move |db| {
        if let Some((term, logs)) = log {
            settings::raise_term(db, term)?;
            settings::add_logs(db, &logs)?;
        }
        ids::raise(db, &used)?;
        for kind in ["inode", "object", "label", "session"] {
            ids::leave_gap(db, kind, GAP)?;
        }
        ["job", "task", "rule"]
            .iter()
            .try_for_each(|kind| ids::leave_gap(db, kind, NUMBERED_GAP))
    })
}

/// Returns the numbers below the highest that belong to no given node.
fn absent(nodes: &[RecoveredNode], removed: &[u32]) -> Vec<u32> {
    let given = nodes.iter().map(|node| node.records.node);
    let given: BTreeSet<u32> = given.chain(removed.iter().copied()).collect();
    let last = given.last().copied().unwrap_or(0);
    (0..last).filter(|node| !given.contains(node)).collect()
}

fn file_error(path: &Path, source: std::io::Error) -> RecoverError {
    RecoverError::File {
        path: path.to_owned(),
        source,
    }
}

/// Creates and locks a server's directory. Returns the lock, and the path of the database, which does not exist.
fn prepare(dir: &Path) -> Result<(std::fs::File, PathBuf), RecoverError> {
    let database = dir.join("server.db");
    std::fs::create_dir_all(dir).map_err(|source| file_error(dir, source))?;
    let lock = serve::lock(dir)?;
    // A server that started without its database creates an empty file before it fails.
    if std::fs::metadata(&database).is_ok_and(|meta| meta.len() > 0) {
        return Err(RecoverError::Exists(database));
    }
    Ok((lock, database))
}

/// Makes a complete database, whose write-ahead log is empty, the server's database.
fn install(dir: &Path, fresh: &Path, database: &Path) -> Result<(), RecoverError> {
    let synced = std::fs::File::open(fresh).and_then(|made| made.sync_all());
    synced.map_err(|source| file_error(fresh, source))?;
    // SQLite would use the log of the lost database for the new database.
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(beside(database, suffix));
    }
    std::fs::rename(fresh, database).map_err(|source| file_error(database, source))?;
    let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|source| file_error(dir, source))
}

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Restores the files of the server's directory that do not exist.
fn attach(dir: &Path, restored: &Restored) -> Result<Vec<String>, RecoverError> {
    let mut names = Vec::new();
    for file in &restored.attached {
        let plain = Path::new(&file.name).file_name() == Some(file.name.as_ref());
        let path = dir.join(&file.name);
        if !plain || path.exists() {
            continue;
        }
        let mut options = serve::private();
        let written = options
            .create_new(true)
            .open(&path)
            .and_then(|mut to| std::io::Write::write_all(&mut to, &file.content));
        written.map_err(|source| RecoverError::File { path, source })?;
        names.push(file.name.clone());
    }
    Ok(names)
}
