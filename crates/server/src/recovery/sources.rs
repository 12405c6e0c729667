//! Sources of a recovery: logs, and the nodes' databases, compared with the nodes' files.

use super::{NodeProblem, RecoverError, RecoverOptions, beside};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidemill_log::{LogKey, names_in};
use tidemill_meta::node_database::{KeptObject, NodeDatabase, NodeRecords};
use tidemill_model::id::ObjectId;
use tidemill_wire::route;

/// Length of a cluster's key.
const KEY_BYTES: usize = 32;

/// Where a recovery finds logs and nodes.
pub(super) struct Sources {
    pub(super) logs: Vec<PathBuf>,
    pub(super) nodes: Vec<RecoveredNode>,
}

pub(super) fn find(dir: &Path, sources: &[PathBuf]) -> Result<Sources, RecoverError> {
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
            found.nodes.push(read(source)?);
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

pub(super) fn key(
    dir: &Path,
    nodes: &[RecoveredNode],
    options: &RecoverOptions,
) -> Result<LogKey, RecoverError> {
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

/// Data of one node.
#[derive(Debug)]
pub(super) struct RecoveredNode {
    pub(super) path: PathBuf,
    pub(super) records: NodeRecords,
    /// Objects that have a row in the node's database, but no file any more.
    pub(super) missing: Vec<KeptObject>,
    /// Number of object files without a row in the node's database.
    pub(super) unknown: u64,
}

/// Reads the data of a node from the node's directory, or from a copy of its `node.db`.
fn read(path: &Path) -> Result<RecoveredNode, RecoverError> {
    recovered(path).map_err(|problem| RecoverError::Node {
        path: path.to_owned(),
        problem,
    })
}

fn recovered(path: &Path) -> Result<RecoveredNode, NodeProblem> {
    let directory = path.is_dir();
    let database = if directory {
        path.join("node.db")
    } else {
        path.to_owned()
    };
    if !database.is_file() {
        return Err(NodeProblem::NoDatabase);
    }
    let db = NodeDatabase::open(&database)?;
    // This check is first, since the cluster's identity may be only in the log.
    let log = std::fs::metadata(beside(&database, "-wal"));
    if !log.is_ok_and(|log| log.len() > 0) && db.is_behind(&database)? {
        return Err(NodeProblem::Behind);
    }
    let mut kept = RecoveredNode {
        path: path.to_owned(),
        records: db.records()?,
        missing: Vec::new(),
        unknown: 0,
    };
    if directory {
        kept.unknown = unknown(&db, path)?;
        let (intermediates, backend) = (intermediates(path), db.backend()?);
        let there = |object: &KeptObject| {
            let id = ObjectId(object.id);
            // A corrupt object has a file under this name.
            let corrupt = path.join("corrupt").join(format!("{:016x}", object.id));
            let intermediates = intermediates.contains(&object.id);
            let here = path.join(id.relative_path()).is_file();
            here || intermediates || backend.contains(&object.id) || corrupt.exists()
        };
        let missing = kept.records.objects.extract_if(.., |one| !there(one));
        kept.missing = missing.collect();
    }
    Ok(kept)
}

/// Returns the number of object files for which the node's database has no row: files that were being written, and files whose rows were
/// lost.
fn unknown(db: &NodeDatabase, node: &Path) -> Result<u64, NodeProblem> {
    let mut unknown = 0;
    let directories = std::fs::read_dir(node.join("objects"));
    for directory in directories.into_iter().flatten().flatten() {
        for file in std::fs::read_dir(directory.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = file.file_name();
            let id = name
                .to_str()
                .and_then(|name| u64::from_str_radix(name, 16).ok());
            if let Some(id) = id {
                unknown += u64::from(!db.knows(id)?);
            }
        }
    }
    Ok(unknown)
}

/// Returns the objects of in-memory intermediate files on the node (`node/src/memory_outputs.rs`). The name of such a file consists of the
/// object and a secret.
fn intermediates(node: &Path) -> BTreeSet<u64> {
    let files = std::fs::read_dir(node.join("intermediates"));
    let names = files.into_iter().flatten().flatten();
    let names = names.map(|file| file.file_name().to_string_lossy().into_owned());
    let object = |name: String| u64::from_str_radix(name.split_once('-')?.0, 16).ok();
    names.filter_map(object).collect()
}

/// Checks that all nodes belong to one cluster, and that each was given once.
pub(super) fn check(all: &[RecoveredNode]) -> Result<(), RecoverError> {
    let Some(first) = all.first() else {
        return Ok(());
    };
    let mut seen = BTreeSet::new();
    for kept in all {
        let (records, known) = (&kept.records, &first.records);
        let problem = if records.cluster != known.cluster || records.key != known.key {
            NodeProblem::OtherCluster(first.path.clone())
        } else if !seen.insert(records.node) {
            NodeProblem::Twice(records.node)
        } else {
            continue;
        };
        return Err(RecoverError::Node {
            path: kept.path.clone(),
            problem,
        });
    }
    Ok(())
}
