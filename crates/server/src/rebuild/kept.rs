//! Data of the nodes from which the server's database is recovered: the content of each node's database, compared with the node's files.
//! This module only reads.

use super::{NodeProblem, RecoverError, beside};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tidemill_meta::node_database::{KeptObject, NodeDatabase, NodeRecords};
use tidemill_meta::rules::definitions;
use tidemill_model::id::ObjectId;
use tidemill_wire::v1::NameNote;

/// Data of one node.
#[derive(Debug)]
pub(super) struct RecoveredNode {
    pub(super) path: PathBuf,
    /// Data from the node's database. Its notes are those about inodes.
    pub(super) records: NodeRecords,
    /// The server's notes about rules that the node has stored.
    pub(super) rules: Vec<NameNote>,
    /// Objects that have a row in the node's database, but no file any more.
    pub(super) missing: Vec<KeptObject>,
    /// Number of object files without a row in the node's database.
    pub(super) unknown: u64,
}

/// Reads the data of a node from the node's directory, or from a copy of its `node.db`.
pub(super) fn read(path: &Path) -> Result<RecoveredNode, RecoverError> {
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
    let mut records = db.records()?;
    let rules = records
        .notes
        .extract_if(.., |note| definitions::is_rule(note));
    let mut kept = RecoveredNode {
        path: path.to_owned(),
        rules: rules.collect(),
        records,
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

/// Gives each object the inode in the server's last note about the object. An object without a note keeps the inode of the capability that
/// the server signed before the object was written.
pub(super) fn assign_inodes_from_notes(all: &mut [RecoveredNode]) {
    let notes = all.iter().flat_map(|kept| &kept.records.notes);
    let mut last: BTreeMap<u64, &NameNote> = BTreeMap::new();
    for note in notes {
        let known = last.entry(note.ino).or_insert(note);
        if note.change > known.change {
            *known = note;
        }
    }
    // The map has the owner of each object of a version. If two files claim an object, the file that was changed last gets it.
    let mut owners: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for note in last.values() {
        let parts = note.layout.iter().flat_map(|layout| &layout.parts);
        let parts = parts.map(|part| part.object);
        for object in parts.chain([note.object]) {
            let owner = (note.change, note.ino);
            let known = owners.entry(object).or_insert(owner);
            *known = owner.max(*known);
        }
    }
    owners.remove(&0);
    for kept in all {
        for object in kept.records.objects.iter_mut().chain(&mut kept.missing) {
            if let Some(&(_, inode)) = owners.get(&object.id) {
                object.inode = inode;
            }
        }
    }
}

/// Checks that all nodes belong to one cluster, and that each was given once.
pub(super) fn check(all: &[RecoveredNode]) -> Result<(), RecoverError> {
    let Some(first) = all.first() else {
        return Err(RecoverError::NoNodes);
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
