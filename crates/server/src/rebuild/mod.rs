//! Recreates a lost server database from the data of the nodes. This module reads the nodes' databases and writes `server.db`.
//!
//! Nodes store attributes of their objects and task collections: their origin, their owner, and the path at the time of their seal.
//! They also store the server's later notes about inodes: names, parents, versions, modes, owners, times, extended attributes. A note
//! takes precedence over the attributes of its object, and a later note over an earlier one. Data that only the server knew is lost: see
//! `docs/health.md`.

mod files;
mod kept;
mod log;
mod parts;
mod tree;

use crate::clock;
use crate::serve;
use files::RecoveredFiles;
use kept::RecoveredNode;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tidemill_log::RestoreError;
use tidemill_meta::jobs::data::{self, TaskInput};
use tidemill_meta::jobs::records::{self, EndedJob, EndedTask};
use tidemill_meta::jobs::spec::StoredTask;
use tidemill_meta::node_database::NodeTask;
use tidemill_meta::placement::nodes;
use tidemill_meta::rules::definitions;
use tidemill_meta::{Connection, Fault, OpenError, ids, schema, settings, version};
use tidemill_model::attribute::task as page;
use tidemill_model::event::OutputSpec;
use tidemill_model::id::{Inode, JobId, NodeId, ObjectId, TaskId};
use tidemill_model::object::Placed;
use tidemill_wire::v1::{NameNote, State};

pub use log::{LogRecovery, RecoveredFromLog, recover};
pub use tidemill_log::Restored;
pub use tidemill_meta::node_database::NodeProblem;

/// Number of ids left free after the largest id that a node knows. The gap exceeds the number of ids that clients can have reserved.
const GAP: u64 = 1 << 32;

/// Result of recovering the server's database.
#[derive(Debug, Default)]
pub struct Rebuilt {
    /// Nodes whose databases were read: these nodes are the members of the cluster.
    pub nodes: Vec<u32>,
    /// Given nodes that were removed from the cluster before. The nodes stay removed, and their data was not read.
    pub removed: Vec<u32>,
    /// Number of recovered files.
    pub files: usize,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Number of directories, without the root.
    pub directories: usize,
    /// Number of tasks whose lineage was recovered.
    pub tasks: usize,
    /// Number of recovered rules. Earlier runs of the rules are not recovered.
    pub rules: usize,
    /// Names of rules that were attributes of directories which no longer exist, or which have another rule.
    pub rules_left: Vec<String>,
    /// Files and directories in `/lost+found`, which could not get their former path.
    pub apart: Vec<LostFoundEntry>,
    /// Files at the path that the server reported to a node at their creation, with the version number 1 and the time of their seal, since
    /// no later note about the files exists.
    pub unnoted: Vec<PathBuf>,
    /// Files whose bytes are no longer on any node.
    pub missing: Vec<PathBuf>,
    /// Number of data files on nodes that the nodes' databases do not contain.
    pub unknown: u64,
    /// Nodes that were not given although nodes with higher numbers were given.
    pub absent: Vec<u32>,
    /// Whether the recovered database is incomplete: files have lost their bytes, or nodes have objects that their databases lack.
    pub less: bool,
}

/// A file or directory that was recovered into `/lost+found`.
#[derive(Debug)]
pub struct LostFoundEntry {
    /// Present path below `/lost+found`.
    pub path: PathBuf,
    /// Former path. Another file has that path now, the path is invalid, or its directory is unknown.
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
    /// No directory of a node was given.
    #[error("no node to read: name the directories of all nodes, or copies of their node.db")]
    NoNodes,
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

/// Creates `server.db` in a server's directory from the directories of nodes, or from copies of their `node.db`.
///
/// Nodes may run during the recovery. All of the cluster's nodes should be given: the new database does not know the files of nodes that
/// are not given, though the bytes remain on these nodes. Directories and files without an owner get `root_owner`.
///
/// # Errors
/// If a database already exists, or a node's database can't be read. Nothing is changed in that case.
pub fn rebuild(
    dir: &Path,
    nodes: &[PathBuf],
    root_owner: (u32, u32),
) -> Result<Rebuilt, RecoverError> {
    let all = nodes.iter().map(|path| kept::read(path));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    kept::check(&all)?;
    let removed = all.extract_if(.., |kept| kept.records.removed);
    let removed: Vec<u32> = removed.map(|kept| kept.records.node).collect();
    if all.is_empty() {
        return Err(RecoverError::NoNodes);
    }
    kept::assign_inodes_from_notes(&mut all);
    let (_lock, database) = prepare(dir)?;
    let fresh = beside(&database, ".rebuilt");
    let _ = std::fs::remove_file(&fresh);
    let made = serve::private().open(&fresh);
    let made = made.map_err(|source| file_error(&fresh, source))?;
    let rebuilt = write(&fresh, (&all, &removed), root_owner)?;
    drop(made);
    install(dir, &fresh, &database)?;
    Ok(rebuilt)
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

fn write(
    path: &Path,
    (all, removed): (&[RecoveredNode], &[u32]),
    root_owner: (u32, u32),
) -> Result<Rebuilt, RecoverError> {
    schema::create_filled(path, |db| {
        let mut rebuilt = fill(db, all, root_owner)?;
        for node in removed {
            nodes::insert_removed(db, *node)?;
        }
        rebuilt.absent.retain(|node| !removed.contains(node));
        rebuilt.removed = removed.to_vec();
        Ok(rebuilt)
    })
}

fn fill(
    db: &Connection,
    all: &[RecoveredNode],
    root_owner: (u32, u32),
) -> Result<Rebuilt, RecoverError> {
    let first = &all[0].records;
    settings::insert_identity(db, &first.key, &first.cluster)?;
    let gathered = parts::gather(all);
    let mut files = RecoveredFiles::new(all, &gathered, root_owner);
    files.noted();
    files.unnoted();
    let mut rebuilt = files.write(db)?;
    let notes = all.iter().flat_map(|kept| &kept.rules);
    (rebuilt.rules, rebuilt.rules_left) = definitions::restore(db, notes)?;
    rebuilt.nodes = all.iter().map(|kept| kept.records.node).collect();
    let mut tasks: BTreeMap<u64, &NodeTask> = BTreeMap::new();
    for task in all.iter().flat_map(|kept| &kept.records.tasks) {
        let known = tasks.entry(task.task).or_insert(task);
        let better = (task.done, task.number(page::END)) > (known.done, known.number(page::END));
        if better {
            *known = task;
        }
    }
    rebuilt.tasks = tasks.len();
    look_back(&mut rebuilt, all);
    settings::set_rebuilt(db, clock::now_ns(), rebuilt.less)?;
    put_jobs(db, &tasks)?;
    raise_counters(db, all, &tasks, files.tree.new_ino())?;
    Ok(rebuilt)
}

/// Compares the recovered files with the objects of the nodes, and sets the counts of missing and unknown objects.
fn look_back(rebuilt: &mut Rebuilt, all: &[RecoveredNode]) {
    let known: usize = all.iter().map(|kept| kept.records.objects.len()).sum();
    rebuilt.unknown = all.iter().map(|kept| kept.unknown).sum();
    let given: BTreeSet<u32> = all.iter().map(|kept| kept.records.node).collect();
    let last = given.last().copied().unwrap_or(0);
    rebuilt.absent = (0..last).filter(|node| !given.contains(node)).collect();
    rebuilt.less = !rebuilt.missing.is_empty() || rebuilt.unknown > known as u64;
}

/// Inserts the jobs whose ended tasks are known, and those tasks with their inputs and outputs.
fn put_jobs(db: &Connection, tasks: &BTreeMap<u64, &NodeTask>) -> Result<(), Fault> {
    let mut jobs: BTreeMap<u64, Vec<&NodeTask>> = BTreeMap::new();
    for task in tasks.values() {
        jobs.entry(task.job()).or_default().push(task);
    }
    for (job, tasks) in &jobs {
        let first = tasks.iter().map(|task| task.number(page::START)).min();
        let last = tasks.iter().map(|task| task.number(page::END)).max();
        let done = tasks.iter().all(|task| task.done);
        let ended = EndedJob {
            job: JobId(*job),
            name: format!("job {job}, rebuilt"),
            uid: tasks.first().map_or(0, |task| task.uid()),
            state: ended_state(done),
            submitted: first.unwrap_or(0).cast_signed(),
            ended: last.unwrap_or(0).cast_signed(),
        };
        records::insert_ended_job(db, &ended)?;
    }
    for (changed, task) in (1..).zip(tasks.values()) {
        put_task(db, task, changed)?;
    }
    Ok(())
}

fn ended_state(done: bool) -> State {
    if done { State::Done } else { State::Failed }
}

fn put_task(db: &Connection, task: &NodeTask, changed: u64) -> Result<(), Fault> {
    let spec = StoredTask::ended(task.text(page::NAME), task.text(page::KERNEL), task.args());
    let ended = EndedTask {
        task: TaskId(task.task),
        job: JobId(task.job()),
        spec: serde_json::to_string(&spec).unwrap_or_default(),
        state: ended_state(task.done),
        changed,
        node: NodeId(task.node),
        start: task.number(page::START).cast_signed(),
        end: task.number(page::END).cast_signed(),
        read_bytes: task.number(page::READ_BYTES),
        written_bytes: task.number(page::WRITTEN_BYTES),
        transferred_bytes: task.number(page::TRANSFERRED_BYTES),
        kernel_hash: task.text(page::KERNEL_HASH),
        error: task.text(page::ERROR),
        stderr: task.text(page::STDERR),
        stdout: task.text(page::STDOUT),
    };
    records::insert_ended_task(db, &ended)?;
    if !task.done {
        return Ok(());
    }
    let mut selections = task.selections().into_iter();
    for (seq, &object) in (0..).zip(&task.inputs) {
        let input = TaskInput {
            name: &name_of(db, object)?.0,
            object,
            selection: &selections.next().unwrap_or_default(),
        };
        data::put_input(db, TaskId(task.task), seq, input)?;
    }
    let output = |&object: &u64| {
        let (name, file) = name_of(db, object)?;
        let (ino, size) = file.unwrap_or((0, 0));
        let output = OutputSpec {
            name,
            path: String::new(),
            part: false,
            memory: false,
            inode: Inode(ino),
        };
        let placed = Placed {
            object: ObjectId(object),
            node: NodeId(task.node),
            size,
        };
        Ok((output, placed))
    };
    let outputs = task.outputs.iter().map(output);
    let outputs = outputs.collect::<Result<Vec<_>, Fault>>()?;
    data::put_outputs(db, TaskId(task.task), &outputs)
}

/// Returns the last component of an object's path, with the inode and size of its file. For an object of no known version, returns the id.
fn name_of(db: &Connection, object: u64) -> Result<(String, Option<(u64, u64)>), Fault> {
    Ok(match version::file_of(db, object)? {
        Some((path, ino, size)) => {
            let path = String::from_utf8_lossy(&path).into_owned();
            let name = path.rsplit('/').next().unwrap_or_default();
            (name.to_owned(), Some((ino, size)))
        }
        None => (format!("object {object}"), None),
    })
}

fn notes(kept: &RecoveredNode, of: fn(&NameNote) -> u64) -> u64 {
    kept.records.notes.iter().map(of).max().unwrap_or(0)
}

/// Raises the id counters above all ids in the nodes' databases, so that no id is assigned twice.
fn raise_counters(
    db: &Connection,
    all: &[RecoveredNode],
    tasks: &BTreeMap<u64, &NodeTask>,
    inode: u64,
) -> Result<(), Fault> {
    let largest = |of: fn(&RecoveredNode) -> u64| all.iter().map(of).max().unwrap_or(0);
    let job = tasks.values().map(|task| task.job()).max().unwrap_or(0);
    let used = [
        ("inode", inode),
        (
            "object",
            largest(|kept| {
                let parts = kept.records.objects.iter().filter_map(|object| object.part);
                let versions = parts.map(|part| part.version.0).max().unwrap_or(0);
                kept.records.object_max.max(versions)
            }),
        ),
        ("label", largest(|kept| kept.records.label_max)),
        ("job", job),
        ("task", tasks.keys().next_back().copied().unwrap_or(0)),
        (
            "rule",
            largest(|kept| {
                kept.rules
                    .iter()
                    .map(definitions::number)
                    .max()
                    .unwrap_or(0)
            }),
        ),
        ("session", 0),
        ("change", largest(|kept| notes(kept, |note| note.change))),
    ];
    ids::raise(db, &used.map(|(name, used)| (name, used + GAP)))
}
