//! Recreates a lost server database from the data of the nodes. This module reads the nodes' databases and writes `server.db`.
//!
//! Nodes store attributes of their objects and task collections: their origin, their owner, and the path at the time of their seal.
//! They also store the server's later notes about inodes: names, parents, versions, modes, owners, times, extended attributes. A note
//! takes precedence over the attributes of its object, and a later note over an earlier one. Data that only the server knew is lost: see
//! `docs/health.md`.

mod files;
mod kept;
mod parts;
mod tree;

use crate::clock;
use crate::jobs::spec::StoredTask;
use crate::jobs::store::state_number;
use crate::names::{Fault, OpenError, schema};
use crate::rules::noted;
use crate::serve;
use files::RecoveredFiles;
use kept::{NodeTask, RecoveredNode};
use rusqlite::{Connection, OptionalExtension as _, params};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tidemill_model::attribute::task as page;
use tidemill_wire::v1::{NameNote, State};

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
    /// A row of the new database can't be written.
    #[error("can't write the new database: {0}")]
    Write(#[from] Fault),
}

/// Reason why a node can't be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeProblem {
    /// The node has no database.
    #[error("node.db is missing")]
    NoDatabase,
    /// The node was never part of a cluster.
    #[error("this node was never part of a cluster")]
    Unattached,
    /// The node's database is a copy of a database in use, without its log.
    #[error(
        "this is a copy of the database of a running node, without its log (node.db-wal): the last writes are missing; give the node's directory, or a copy that `sqlite3 node.db '.backup COPY'` makes, or stop the node and copy node.db then"
    )]
    Behind,
    /// The node belongs to another cluster.
    #[error("this node belongs to another cluster than {0}")]
    OtherCluster(PathBuf),
    /// The node was given twice.
    #[error("node {0} was given before")]
    Twice(u32),
    /// The node's database has the format of another release.
    #[error("the tables of node.db have version {0}, which this release can't read")]
    Version(i64),
    /// A note of the server in the node's database can't be decoded.
    #[error("a note about a name is corrupt: {0}")]
    Note(#[from] prost::DecodeError),
    /// SQLite returned an error.
    #[error("node.db can't be read: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

impl From<rusqlite::Error> for RecoverError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Write(error.into())
    }
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
    let database = dir.join("server.db");
    let all = nodes.iter().map(|path| kept::read(path));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    kept::check(&all)?;
    let removed = all.extract_if(.., |kept| kept.removed);
    let removed: Vec<u32> = removed.map(|kept| kept.node).collect();
    if all.is_empty() {
        return Err(RecoverError::NoNodes);
    }
    kept::assign_inodes_from_notes(&mut all);
    let file = |path: &Path, source| RecoverError::File {
        path: path.to_owned(),
        source,
    };
    std::fs::create_dir_all(dir).map_err(|source| file(dir, source))?;
    let _lock = serve::lock(dir)?;
    // A server that started without its database creates an empty file before it fails.
    if std::fs::metadata(&database).is_ok_and(|meta| meta.len() > 0) {
        return Err(RecoverError::Exists(database));
    }
    let fresh = beside(&database, ".rebuilt");
    let _ = std::fs::remove_file(&fresh);
    let made = serve::private().open(&fresh);
    let made = made.map_err(|source| file(&fresh, source))?;
    let rebuilt = write(&fresh, (&all, &removed), root_owner)?;
    made.sync_all().map_err(|source| file(&fresh, source))?;
    // SQLite would use the log of the lost database for the new database.
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(beside(&database, suffix));
    }
    std::fs::rename(&fresh, &database).map_err(|source| file(&database, source))?;
    let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|source| file(dir, source))?;
    Ok(rebuilt)
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
    let mut db = schema::open_writer(path)?;
    let transaction = db.transaction()?;
    let mut rebuilt = fill(&transaction, all, root_owner)?;
    for node in removed {
        let sql = "INSERT INTO removed VALUES (?1, ?2)";
        transaction.execute(sql, params![node, clock::now_ns()])?;
    }
    rebuilt.absent.retain(|node| !removed.contains(node));
    rebuilt.removed = removed.to_vec();
    transaction.commit()?;
    // Only the database file itself is moved to its place, so its log must be empty.
    db.pragma_update(None, "journal_mode", "DELETE")?;
    Ok(rebuilt)
}

fn fill(
    db: &Connection,
    all: &[RecoveredNode],
    root_owner: (u32, u32),
) -> Result<Rebuilt, RecoverError> {
    let first = &all[0];
    let sql = "INSERT INTO setting VALUES ('key', ?1), ('cluster_id', ?2)";
    db.execute(sql, params![first.key, first.cluster])?;
    let gathered = parts::gather(all);
    let mut files = RecoveredFiles::new(all, &gathered, root_owner);
    files.noted();
    files.unnoted();
    let mut rebuilt = files.write(db)?;
    let notes = all.iter().flat_map(|kept| &kept.rules);
    (rebuilt.rules, rebuilt.rules_left) = noted::bring_back(db, notes)?;
    rebuilt.nodes = all.iter().map(|kept| kept.node).collect();
    let mut tasks: BTreeMap<u64, &NodeTask> = BTreeMap::new();
    for task in all.iter().flat_map(|kept| &kept.tasks) {
        let known = tasks.entry(task.task).or_insert(task);
        let better = (task.done, task.number(page::END)) > (known.done, known.number(page::END));
        if better {
            *known = task;
        }
    }
    rebuilt.tasks = tasks.len();
    look_back(&mut rebuilt, all);
    note(db, rebuilt.less)?;
    put_jobs(db, &tasks)?;
    raise_counters(db, all, &tasks, files.tree.new_ino())?;
    Ok(rebuilt)
}

/// Compares the recovered files with the objects of the nodes, and sets the counts of missing and unknown objects.
fn look_back(rebuilt: &mut Rebuilt, all: &[RecoveredNode]) {
    let known: usize = all.iter().map(|kept| kept.objects.len()).sum();
    rebuilt.unknown = all.iter().map(|kept| kept.unknown).sum();
    let given: BTreeSet<u32> = all.iter().map(|kept| kept.node).collect();
    let last = given.last().copied().unwrap_or(0);
    rebuilt.absent = (0..last).filter(|node| !given.contains(node)).collect();
    rebuilt.less = !rebuilt.missing.is_empty() || rebuilt.unknown > known as u64;
}

/// Key in the table `setting` whose value has the time of the recovery, and whether the result was incomplete.
const REBUILT: &str = "rebuilt";

fn note(db: &Connection, less: bool) -> Result<(), Fault> {
    let mut value = clock::now_ns().to_le_bytes().to_vec();
    value.push(u8::from(less));
    let sql = "INSERT OR REPLACE INTO setting VALUES (?1, ?2)";
    db.execute(sql, params![REBUILT, value])?;
    Ok(())
}

/// Returns the time at which the database was recovered, and whether the result was incomplete; `None` if it was never recovered.
pub(crate) fn noted_at(db: &Connection) -> Result<Option<(i64, bool)>, Fault> {
    let sql = "SELECT value FROM setting WHERE name = ?1";
    let value: Option<Vec<u8>> = db.query_row(sql, [REBUILT], |row| row.get(0)).optional()?;
    let at = |value: &[u8]| {
        Some((
            i64::from_le_bytes(*value.first_chunk()?),
            value.last() == Some(&1),
        ))
    };
    Ok(value.as_deref().and_then(at))
}

/// Inserts the jobs whose ended tasks are known, and those tasks with their inputs and outputs.
fn put_jobs(db: &Connection, tasks: &BTreeMap<u64, &NodeTask>) -> Result<(), Fault> {
    let mut jobs: BTreeMap<u64, Vec<&NodeTask>> = BTreeMap::new();
    for task in tasks.values() {
        jobs.entry(task.job()).or_default().push(task);
    }
    let sql = "INSERT INTO job(job, name, source, workdir, uid, gid, groups, policy, state, submitted, ended, script) \
               VALUES (?1, ?2, '', '', ?3, 0, '[]', NULL, ?4, ?5, ?6, '')";
    let mut insert = db.prepare(sql)?;
    for (job, tasks) in &jobs {
        let first = tasks.iter().map(|task| task.number(page::START)).min();
        let last = tasks.iter().map(|task| task.number(page::END)).max();
        let done = tasks.iter().all(|task| task.done);
        insert.execute(params![
            job.cast_signed(),
            format!("job {job}, rebuilt"),
            tasks.first().map_or(0, |task| task.uid()),
            state_number(if done { State::Done } else { State::Failed }),
            first.unwrap_or(0).cast_signed(),
            last.unwrap_or(0).cast_signed(),
        ])?;
    }
    for (changed, task) in (1_i64..).zip(tasks.values()) {
        put_task(db, task, changed)?;
    }
    Ok(())
}

fn put_task(db: &Connection, task: &NodeTask, changed: i64) -> Result<(), Fault> {
    let spec = StoredTask::ended(task.text(page::NAME), task.text(page::KERNEL), task.args());
    let id = task.task.cast_signed();
    let number = |number: u32| task.number(number).cast_signed();
    let sql = "INSERT INTO task(task, job, spec, state, changed, tries, node, start, kernel_start, end, \
               read_bytes, written_bytes, transferred_bytes, kernel_hash, error, stderr, stdout) \
               VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
    db.prepare_cached(sql)?.execute(params![
        id,
        task.job().cast_signed(),
        serde_json::to_string(&spec).unwrap_or_default(),
        state_number(if task.done {
            State::Done
        } else {
            State::Failed
        }),
        changed,
        task.node,
        number(page::START),
        number(page::END),
        number(page::READ_BYTES),
        number(page::WRITTEN_BYTES),
        number(page::TRANSFERRED_BYTES),
        task.text(page::KERNEL_HASH),
        task.text(page::ERROR),
        task.text(page::STDERR),
        task.text(page::STDOUT),
    ])?;
    if !task.done {
        return Ok(());
    }
    let mut selections = task.selections().into_iter();
    for (seq, object) in (0_u32..).zip(&task.inputs) {
        let sql = "INSERT INTO task_input VALUES (?1, ?2, ?3, ?4, ?5)";
        let (name, _) = name_of(db, *object)?;
        let selection = selections.next().unwrap_or_default();
        db.prepare_cached(sql)?
            .execute(params![id, seq, name, object.cast_signed(), selection])?;
    }
    for (seq, object) in (0_u32..).zip(&task.outputs) {
        let (name, file) = name_of(db, *object)?;
        let (ino, size) = file.unwrap_or((0, 0));
        let sql = "INSERT INTO task_output VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let row = params![id, seq, name, ino, object.cast_signed(), task.node, size];
        db.prepare_cached(sql)?.execute(row)?;
    }
    Ok(())
}

/// Returns the last component of an object's path, with the inode and size of its file. For an object of no known version, returns the id.
fn name_of(db: &Connection, object: u64) -> Result<(String, Option<(i64, i64)>), Fault> {
    let found = db
        .prepare_cached("SELECT path, ino, size FROM version WHERE object = ?1")?
        .query_row([object.cast_signed()], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, (row.get(1)?, row.get(2)?)))
        })
        .optional()?;
    Ok(match found {
        Some((path, file)) => {
            let path = String::from_utf8_lossy(&path).into_owned();
            let name = path.rsplit('/').next().unwrap_or_default();
            (name.to_owned(), Some(file))
        }
        None => (format!("object {object}"), None),
    })
}

fn notes(kept: &RecoveredNode, of: fn(&NameNote) -> u64) -> u64 {
    kept.notes.iter().map(of).max().unwrap_or(0)
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
                let parts = kept.objects.iter().filter_map(|object| object.part);
                let versions = parts.map(|part| part.version.0).max().unwrap_or(0);
                kept.object_max.max(versions)
            }),
        ),
        ("label", largest(|kept| kept.label_max)),
        ("job", job),
        ("task", tasks.keys().next_back().copied().unwrap_or(0)),
        (
            "rule",
            largest(|kept| kept.rules.iter().map(noted::number).max().unwrap_or(0)),
        ),
        ("session", 0),
        ("change", largest(|kept| notes(kept, |note| note.change))),
    ];
    for (name, used) in used {
        let next = (used + GAP).cast_signed();
        db.execute(
            "UPDATE counter SET next = ?2 WHERE name = ?1",
            params![name, next],
        )?;
    }
    Ok(())
}
