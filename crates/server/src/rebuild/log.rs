//! Recovery of the server's database from its log, which nodes copy (next: `log/src/restore.rs`).
//!
//! The restored database has everything that the last segment has. Files that were sealed after the last segment are added from the nodes
//! that store them.

use super::kept::{self, RecoveredNode};
use super::{GAP, RecoverError, beside, install, prepare};
use crate::{clock, serve};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use tidemill_log::{LogKey, Restored, names_in, restore};
use tidemill_meta::node_database::{KeptObject, NodeProblem};
use tidemill_meta::shared::Spaces;
use tidemill_meta::{
    Caller, Connection, Fault, Names as _, NamesRequest, SqliteNames, ids, schema, settings,
    version,
};
use tidemill_model::id::NodeId;
use tidemill_model::layout::FreeSpace;
use tidemill_wire::route;
use tidemill_wire::v1::{self, Kind, name_op::Op};

/// Time before the end of the log from which on an object that the database does not know is added: the clocks of nodes differ.
const BEFORE_END_NS: u64 = 60_000_000_000;
/// Length of a cluster's key.
const KEY_BYTES: usize = 32;
/// Directory for files whose path is taken.
const LOST: &str = "/lost+found";
/// Number of jobs and tasks that clients may know although neither the log nor a node does.
const NUMBERED_GAP: u64 = 1000;

/// Wishes for a recovery from a log.
#[derive(Clone, Debug, Default)]
pub struct LogRecovery {
    /// Moment of the wanted state, in nanoseconds since the epoch; `None` for the last state.
    pub until: Option<i64>,
    /// File with the cluster's key, if no node is given.
    pub key: Option<PathBuf>,
    /// Whether to restore and compare everything, and to change nothing.
    pub dry_run: bool,
}

/// Result of a recovery from a log.
#[derive(Debug)]
pub struct RecoveredFromLog {
    /// The restored state.
    pub restored: Restored,
    /// Nodes whose objects were compared with the database.
    pub nodes: Vec<u32>,
    /// Files that were sealed after the end of the log, and were added.
    pub added: Vec<PathBuf>,
    /// Number of objects on nodes that belong to no file of the database and were left where they are.
    pub unknown: u64,
    /// Files of the server's directory that were restored.
    pub attached: Vec<String>,
}

/// Where a recovery finds logs and nodes.
struct Sources {
    logs: Vec<PathBuf>,
    nodes: Vec<RecoveredNode>,
}

fn find(dir: &Path, sources: &[PathBuf]) -> Result<Sources, RecoverError> {
    let mut found = Sources {
        logs: Vec::new(),
        nodes: Vec::new(),
    };
    if has_log(&dir.join("log")) {
        found.logs.push(dir.join("log"));
    }
    for source in sources {
        let mut used = false;
        for log in [source.join("log"), source.clone()] {
            if has_log(&log) {
                found.logs.push(log);
                used = true;
            }
        }
        if !used || source.join("node.db").exists() {
            found.nodes.push(kept::read(source)?);
        }
    }
    found.logs.sort();
    found.logs.dedup();
    Ok(found)
}

/// Returns whether a directory has a file of a log.
fn has_log(directory: &Path) -> bool {
    names_in(directory).is_ok_and(|names| !names.is_empty())
}

fn key(dir: &Path, nodes: &[RecoveredNode], options: &LogRecovery) -> Result<LogKey, RecoverError> {
    if let Some(node) = nodes.first()
        && options.key.is_none()
    {
        return Ok(LogKey::new(&node.records.key));
    }
    let path = options.key.clone();
    let path = path.unwrap_or_else(|| dir.join(crate::log_copies::KEY_FILE));
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|source| RecoverError::NoKey {
        path: path.clone(),
        source,
    })?;
    let key = route::parse_hex(text.trim()).filter(|key| key.len() == KEY_BYTES);
    let key = key.ok_or_else(|| RecoverError::NoKey {
        path,
        source: std::io::Error::other("it is not the key of a cluster"),
    })?;
    Ok(LogKey::new(&key))
}

/// Creates `server.db` in a server's directory from the log in that directory and in `sources`: directories of nodes, and directories with
/// files of the log. Returns `None` if no source has a log.
///
/// # Errors
/// If a database exists already, no snapshot can be used, or the cluster's key is missing. Nothing is changed in that case.
pub fn recover(
    dir: &Path,
    sources: &[PathBuf],
    options: &LogRecovery,
) -> Result<Option<RecoveredFromLog>, RecoverError> {
    let Sources { logs, mut nodes } = find(dir, sources)?;
    if logs.is_empty() {
        return Ok(None);
    }
    if !nodes.is_empty() {
        kept::check(&nodes)?;
    }
    nodes.retain(|node| !node.records.removed);
    let key = key(dir, &nodes, options)?;
    let (_lock, database) = prepare(dir)?;
    let fresh = beside(&database, ".restored");
    let result = restored(&fresh, (&logs, &key), &nodes, options);
    let recovered = match result {
        Ok(recovered) => recovered,
        Err(error) => {
            remove(&fresh);
            return Err(error);
        }
    };
    if options.dry_run {
        remove(&fresh);
        return Ok(Some(recovered));
    }
    let attached = attach(dir, &recovered.restored)?;
    install(dir, &fresh, &database)?;
    let _ = std::fs::remove_file(fresh.with_extension("reserve"));
    Ok(Some(RecoveredFromLog {
        attached,
        ..recovered
    }))
}

fn remove(database: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(beside(database, suffix));
    }
    let _ = std::fs::remove_file(database.with_extension("reserve"));
}

fn restored(
    fresh: &Path,
    (logs, key): (&[PathBuf], &LogKey),
    nodes: &[RecoveredNode],
    options: &LogRecovery,
) -> Result<RecoveredFromLog, RecoverError> {
    remove(fresh);
    let restored = restore(logs, key, options.until, fresh)?;
    if let Some(node) = nodes.first()
        && node.records.cluster != restored.cluster.to_le_bytes()
    {
        return Err(RecoverError::Node {
            path: node.path.clone(),
            problem: NodeProblem::OtherCluster(logs[0].clone()),
        });
    }
    let names = SqliteNames::open(fresh, (0, 0))?;
    let (term, logs) = (restored.term_max, restored.logs.clone());
    let job = nodes.iter().flat_map(|node| &node.records.tasks);
    let job = job.map(|task| task.job()).max().unwrap_or(0);
    // The lost server may have issued ids after the end of the log, also those of the files to add.
    names.database().write_blocking(move |db| {
        settings::raise_term(db, term)?;
        settings::add_logs(db, &logs)?;
        ids::raise(db, &[("job", job)])?;
        for kind in ["inode", "object", "label", "session", "change"] {
            ids::leave_gap(db, kind, GAP)?;
        }
        ["job", "task", "rule"]
            .iter()
            .try_for_each(|kind| ids::leave_gap(db, kind, NUMBERED_GAP))
    })?;
    let (added, unknown) = add(&names, nodes, &restored, options)?;
    // Objects without a file stay for a week if a part of the state was left out.
    let incomplete = restored.is_incomplete() || options.until.is_some() || unknown > 0;
    let rebuilt = move |db: &Connection| settings::set_rebuilt(db, clock::now_ns(), incomplete);
    names.database().write_blocking(rebuilt)?;
    names.database().close();
    drop(names);
    schema::empty_log(fresh)?;
    Ok(RecoveredFromLog {
        restored,
        nodes: nodes.iter().map(|node| node.records.node).collect(),
        added,
        unknown,
        attached: Vec::new(),
    })
}

/// Adds the files that were sealed after the end of the log. Returns their paths, and the number of other objects that belong to no file.
fn add(
    names: &SqliteNames,
    nodes: &[RecoveredNode],
    restored: &Restored,
    options: &LogRecovery,
) -> Result<(Vec<PathBuf>, u64), RecoverError> {
    let mut objects: BTreeMap<u64, &KeptObject> = BTreeMap::new();
    for object in nodes.iter().flat_map(|node| &node.records.objects) {
        let known = objects.entry(object.id).or_insert(object);
        // The oldest replica is the first.
        if object.sealed_at < known.sealed_at {
            *known = object;
        }
    }
    // The files are on these nodes already, whether the nodes run or not.
    let store = nodes.iter().map(|node| FreeSpace {
        node: NodeId(node.records.node),
        free_bytes: u64::MAX >> 1,
        answers: true,
        leaving: false,
        memory: false,
        burst: false,
        backend: false,
    });
    names.shared().set_spaces(Spaces {
        store: store.collect(),
        ..Spaces::default()
    });
    let since = restored.time.unsigned_abs().saturating_sub(BEFORE_END_NS);
    let mut objects: Vec<&KeptObject> = objects.into_values().collect();
    objects.sort_by_key(|object| (object.sealed_at, object.id));
    let (mut added, mut unknown) = (Vec::new(), 0);
    for object in objects {
        let is_known = |db: &Connection| version::is_known(db, object.id);
        if names.database().read(is_known)? {
            continue;
        }
        let file = object.task == 0 && object.part.is_none() && object.inode > 1;
        if options.until.is_some() || !file || object.sealed_at < since {
            unknown += 1;
            continue;
        }
        match add_file(names, object)? {
            Some(path) => added.push(OsString::from_vec(path).into()),
            None => unknown += 1,
        }
    }
    Ok((added, unknown))
}

/// Adds one file, or a version of a file. Returns its path; `None` if the namespace refuses it.
fn add_file(names: &SqliteNames, object: &KeptObject) -> Result<Option<Vec<u8>>, Fault> {
    let known = names.database().read(|db| {
        let file = tidemill_meta::vnode::InodeRecord::find(db, object.inode)?;
        match file {
            Some(_) => tidemill_meta::path_of(db, object.inode),
            None => Ok(None),
        }
    })?;
    let seal = v1::Seal {
        ino: object.inode,
        object: object.id,
        size: object.size,
        mtime: object.sealed_at.cast_signed(),
        ..v1::Seal::default()
    };
    if let Some(path) = known {
        let begin = v1::NewVersion {
            ino: object.inode,
            object: object.id,
            node: Some(object.node),
            steal: true,
            ..v1::NewVersion::default()
        };
        let done = apply(names, [Op::NewVersion(begin), Op::Seal(seal)])?;
        return Ok(done.then_some(path));
    }
    let create = |path: Vec<u8>| v1::Create {
        name: path,
        kind: Kind::File.into(),
        mode: object.mode.unwrap_or(0o600) & 0o7777,
        ino: object.inode,
        object: object.id,
        node: Some(object.node),
        uid: object.uid,
        gid: object.gid,
        make_parents: true,
        stub: true,
        ..v1::Create::default()
    };
    let lost = format!("{LOST}/object{}", object.id).into_bytes();
    for path in [object.path.clone(), lost] {
        // The server tells nodes the path of a file some time after its creation.
        if path.is_empty() {
            continue;
        }
        let ops = [Op::Create(create(path.clone())), Op::Seal(seal.clone())];
        if apply(names, ops)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Applies two operations that belong together. Returns whether the namespace accepted both.
fn apply(names: &SqliteNames, ops: [Op; 2]) -> Result<bool, Fault> {
    let request = NamesRequest {
        caller: Caller::root(),
        session: 0,
        durable: false,
        ops: ops.map(|op| v1::NameOp { op: Some(op) }).to_vec(),
    };
    let results = names.apply_blocking(request)?;
    let refused = results.iter().find_map(|result| match &result.result {
        Some(v1::name_result::Result::Error(error)) => Some(error),
        _ => None,
    });
    if let Some(error) = refused {
        tracing::warn!(error = %error.message, "a file that was sealed after the end of the log can't be added");
    }
    Ok(results.len() == 2 && refused.is_none())
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
