//! A node's stored data about its objects and tasks, read from the node's database (`docs/formats-node.md`). This module only reads.

use super::{NodeProblem, RecoverError};
use crate::rules::noted;
use prost::Message as _;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use tidemill_model::attribute::{name, object, task};
use tidemill_model::layout::PartOf;
use tidemill_model::object::tag;
use tidemill_wire::v1::NameNote;

/// Version of the tables in a node's database.
const SCHEMA_VERSION: i64 = 1;

/// Length of the head of an SQLite file, and offset and value of the byte that marks a write-ahead log.
const HEAD_BYTES: u64 = 20;
const LOGGED_AT: usize = 18;
const LOGGED: u8 = 2;

/// Values of the column for the kind of an object in a node's database.
const DATA: i64 = 0;
const TASK: i64 = 1;

/// Data of one node, as read from the node's database.
#[derive(Debug)]
pub(super) struct RecoveredNode {
    pub(super) path: PathBuf,
    pub(super) node: u32,
    pub(super) cluster: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) objects: Vec<KeptObject>,
    pub(super) tasks: Vec<NodeTask>,
    /// The server's notes about inodes that the node has stored.
    pub(super) notes: Vec<NameNote>,
    /// The server's notes about rules that the node has stored.
    pub(super) rules: Vec<NameNote>,
    /// Objects that have a row in the node's database, but no file any more.
    pub(super) missing: Vec<KeptObject>,
    /// Number of object files without a row in the node's database.
    pub(super) unknown: u64,
    pub(super) label_max: u64,
    pub(super) object_max: u64,
    /// Whether the server removed the node from the cluster earlier (`node/src/daemon.rs`).
    pub(super) removed: bool,
}

/// A sealed object that the node stores.
#[derive(Clone, Debug)]
pub(super) struct KeptObject {
    pub(super) id: u64,
    pub(super) node: u32,
    pub(super) size: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) inode: u64,
    pub(super) path: Vec<u8>,
    pub(super) mode: Option<u32>,
    pub(super) task: u64,
    pub(super) sealed_at: u64,
    pub(super) part: Option<PartOf>,
}

/// A task that ended on the node.
#[derive(Clone, Debug)]
pub(super) struct NodeTask {
    pub(super) task: u64,
    pub(super) node: u32,
    pub(super) done: bool,
    attributes: PageValues,
    pub(super) inputs: Vec<u64>,
    pub(super) outputs: Vec<u64>,
}

/// Values of one page of attributes, by their numbers.
#[derive(Clone, Debug, Default)]
struct PageValues(BTreeMap<u32, Vec<u8>>);

impl PageValues {
    fn number(&self, number: u32) -> Option<u64> {
        let bytes = self.0.get(&number)?.as_slice().try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn small(&self, number: u32) -> Option<u32> {
        self.number(number)?.try_into().ok()
    }

    fn bytes(&self, number: u32) -> &[u8] {
        self.0.get(&number).map(Vec::as_slice).unwrap_or_default()
    }

    fn text(&self, number: u32) -> String {
        String::from_utf8_lossy(self.bytes(number)).into_owned()
    }
}

impl KeptObject {
    /// Whether the server provided the path of the object. The path of a task's output is set by the job, whatever the owner's rights.
    pub(super) fn named(&self) -> bool {
        self.task == 0 && !self.path.is_empty()
    }
}

impl NodeTask {
    pub(super) fn number(&self, number: u32) -> u64 {
        self.attributes.number(number).unwrap_or(0)
    }

    pub(super) fn text(&self, number: u32) -> String {
        self.attributes.text(number)
    }

    pub(super) fn job(&self) -> u64 {
        self.number(task::JOB)
    }

    pub(super) fn uid(&self) -> u32 {
        self.attributes.small(task::UID).unwrap_or(0)
    }

    pub(super) fn args(&self) -> Vec<String> {
        serde_json::from_str(&self.text(task::ARGS)).unwrap_or_default()
    }

    /// Returns the selection that the task read of each input; empty if the task read all bytes of all inputs.
    pub(super) fn selections(&self) -> Vec<String> {
        serde_json::from_str(&self.text(task::SELECTIONS)).unwrap_or_default()
    }
}

/// Reads the data of a node from the node's directory, or from a copy of its `node.db`.
pub(super) fn read(path: &Path) -> Result<RecoveredNode, RecoverError> {
    let at = |problem| RecoverError::Node {
        path: path.to_owned(),
        problem,
    };
    let directory = path.is_dir();
    let database = if directory {
        path.join("node.db")
    } else {
        path.to_owned()
    };
    if !database.is_file() {
        return Err(at(NodeProblem::NoDatabase));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(&database, flags).map_err(|e| at(e.into()))?;
    db.busy_timeout(std::time::Duration::from_secs(5))
        .map_err(|e| at(e.into()))?;
    // This check is first, since the cluster's identity may be only in the log.
    if is_behind(&db, &database).map_err(at)? {
        return Err(at(NodeProblem::Behind));
    }
    let mut kept = rows(&db, path).map_err(at)?;
    if directory {
        kept.unknown = unknown(&db, path).map_err(at)?;
        let (intermediates, backend) = (intermediates(path), backend(&db).map_err(at)?);
        let there = |object: &KeptObject| {
            let id = tidemill_model::id::ObjectId(object.id);
            // A corrupt object has a file under this name.
            let corrupt = path.join("corrupt").join(format!("{:016x}", object.id));
            let intermediates = intermediates.contains(&object.id);
            let here = path.join(id.relative_path()).is_file();
            here || intermediates || backend.contains(&object.id) || corrupt.exists()
        };
        kept.missing = kept.objects.extract_if(.., |one| !there(one)).collect();
    }
    Ok(kept)
}

/// Whether the database is a copy of a database in use, without the log that contains the last rows (`node/src/reserve.rs`).
fn is_behind(db: &Connection, database: &Path) -> Result<bool, NodeProblem> {
    let log = std::fs::metadata(super::beside(database, "-wal"));
    if log.is_ok_and(|log| log.len() > 0) {
        return Ok(false);
    }
    let tables = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'identity'";
    if !db.prepare(tables)?.exists([])? {
        // All rows may be in the log.
        let mut head = Vec::new();
        let file = std::fs::File::open(database);
        let read = file.and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
        return Ok(read.is_ok() && head.get(LOGGED_AT).is_none_or(|&version| version == LOGGED));
    }
    let sql = "SELECT value FROM identity WHERE key = 'log'";
    let value: Option<Vec<u8>> = db.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(value.is_some_and(|value| value == [1]))
}

/// Returns the number of object files for which the node's database has no row: files that were being written, and files whose rows were
/// lost.
fn unknown(db: &Connection, node: &Path) -> Result<u64, NodeProblem> {
    let mut known = db.prepare("SELECT 1 FROM object WHERE id = ?1")?;
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
                unknown += u64::from(!known.exists([id.cast_signed()])?);
            }
        }
    }
    Ok(unknown)
}

/// Returns the objects that the node stores in its backend (`node/src/backend`).
fn backend(db: &Connection) -> Result<BTreeSet<u64>, NodeProblem> {
    let mut statement = db.prepare("SELECT object FROM backend WHERE deleted = 0")?;
    let rows = statement.query_map([], |row| Ok(row.get::<_, i64>(0)?.cast_unsigned()))?;
    Ok(rows.collect::<Result<_, _>>()?)
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

fn rows(db: &Connection, path: &Path) -> Result<RecoveredNode, NodeProblem> {
    let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != SCHEMA_VERSION {
        return Err(NodeProblem::Version(version));
    }
    let identity = |key: &str| -> Result<Vec<u8>, NodeProblem> {
        let sql = "SELECT value FROM identity WHERE key = ?1";
        let value = db.query_row(sql, [key], |row| row.get(0)).optional()?;
        value.ok_or(NodeProblem::Unattached)
    };
    let node = String::from_utf8_lossy(&identity("node")?).into_owned();
    let node = node.parse().map_err(|_| NodeProblem::Unattached)?;
    let (rules, notes) = notes(db)?.into_iter().partition(noted::is_rule);
    let mut kept = RecoveredNode {
        path: path.to_owned(),
        node,
        cluster: identity("cluster")?,
        key: identity("key")?,
        objects: Vec::new(),
        tasks: Vec::new(),
        notes,
        rules,
        missing: Vec::new(),
        unknown: 0,
        label_max: largest(db, "SELECT max(id) FROM label")?,
        object_max: 0,
        removed: identity("removed").is_ok(),
    };
    let sealed = sealed(db)?;
    let members = members(db)?;
    let data = |id: &u64| *id & tag::MASK == tag::DATA;
    let known = members.values().flatten().chain(sealed.keys());
    kept.object_max = known.copied().filter(data).max().unwrap_or(0);
    read_attributes(db, &sealed, |id, kind, attributes| match kind {
        DATA => kept.objects.push(object(id, node, &attributes)),
        TASK => {
            let task = id & !tag::MASK;
            let collection = |tag: u64| members.get(&(tag | task)).cloned().unwrap_or_default();
            kept.tasks.push(NodeTask {
                task,
                node,
                done: sealed.get(&id).is_some_and(|(_, state)| *state == 1),
                attributes,
                inputs: collection(tag::INPUTS),
                outputs: collection(tag::OUTPUTS),
            });
        }
        _ => {}
    })?;
    Ok(kept)
}

/// Returns the server's notes about names.
fn notes(db: &Connection) -> Result<Vec<NameNote>, NodeProblem> {
    let sql = "SELECT value FROM attribute WHERE object >= ?1 AND object < ?2 AND page = ?3 AND number = ?4";
    let mut statement = db.prepare(sql)?;
    let end = tag::INODE + (1 << 60);
    let row = params![
        tag::INODE.cast_signed(),
        end.cast_signed(),
        name::PAGE,
        name::NOTE
    ];
    let mut rows = statement.query(row)?;
    let mut notes = Vec::new();
    while let Some(row) = rows.next()? {
        let value: Vec<u8> = row.get(0)?;
        notes.push(NameNote::decode(value.as_slice()).map_err(NodeProblem::Note)?);
    }
    Ok(notes)
}

fn largest(db: &Connection, sql: &str) -> Result<u64, NodeProblem> {
    let found: Option<i64> = db.query_row(sql, [], |row| row.get(0))?;
    Ok(found.unwrap_or(0).cast_unsigned())
}

/// Returns the kind and the state of all objects and task collections, by their ids.
fn sealed(db: &Connection) -> Result<BTreeMap<u64, (i64, i64)>, NodeProblem> {
    let mut statement = db.prepare("SELECT id, kind, state FROM object")?;
    let rows = statement.query_map([], |row| {
        let id: i64 = row.get(0)?;
        Ok((id.cast_unsigned(), (row.get(1)?, row.get(2)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn members(db: &Connection) -> Result<BTreeMap<u64, Vec<u64>>, NodeProblem> {
    let sql = "SELECT collection, object FROM membership ORDER BY collection, position";
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut members: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (collection, object): (i64, i64) = (row.get(0)?, row.get(1)?);
        let list = members.entry(collection.cast_unsigned()).or_default();
        list.push(object.cast_unsigned());
    }
    Ok(members)
}

/// Calls `take` with the page of attributes of each object, in the order of the objects' ids.
fn read_attributes(
    db: &Connection,
    sealed: &BTreeMap<u64, (i64, i64)>,
    mut take: impl FnMut(u64, i64, PageValues),
) -> Result<(), NodeProblem> {
    let mut statement = db.prepare(
        "SELECT object, number, value FROM attribute WHERE page = ?1 ORDER BY object, number",
    )?;
    for (kind, page) in [(DATA, object::PAGE), (TASK, task::PAGE)] {
        let mut rows = statement.query([page])?;
        let mut current: Option<(u64, PageValues)> = None;
        let mut give = |done: Option<(u64, PageValues)>| {
            if let Some((id, attributes)) = done
                && sealed.get(&id).is_some_and(|(known, _)| *known == kind)
            {
                take(id, kind, attributes);
            }
        };
        while let Some(row) = rows.next()? {
            let id = row.get::<_, i64>(0)?.cast_unsigned();
            if current.as_ref().is_none_or(|(known, _)| *known != id) {
                give(current.replace((id, PageValues::default())));
            }
            if let Some((_, attributes)) = &mut current {
                attributes.0.insert(row.get(1)?, row.get(2)?);
            }
        }
        give(current);
    }
    Ok(())
}

fn object(id: u64, node: u32, attributes: &PageValues) -> KeptObject {
    KeptObject {
        id,
        node,
        size: attributes.number(object::SIZE).unwrap_or(0),
        uid: attributes.small(object::UID).unwrap_or(0),
        gid: attributes.small(object::GID).unwrap_or(0),
        inode: attributes.number(object::INODE).unwrap_or(0),
        path: attributes.bytes(object::PATH).to_vec(),
        mode: attributes.small(object::MODE),
        task: attributes.number(object::TASK).unwrap_or(0),
        sealed_at: attributes.number(object::SEALED_AT).unwrap_or(0),
        part: attributes
            .0
            .get(&object::PART)
            .and_then(|bytes| PartOf::from_bytes(bytes)),
    }
}

/// Gives each object the inode in the server's last note about the object. An object without a note keeps the inode of the capability that
/// the server signed before the object was written.
pub(super) fn assign_inodes_from_notes(all: &mut [RecoveredNode]) {
    let notes = all.iter().flat_map(|kept| &kept.notes);
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
        for object in kept.objects.iter_mut().chain(&mut kept.missing) {
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
        let problem = if kept.cluster != first.cluster || kept.key != first.key {
            NodeProblem::OtherCluster(first.path.clone())
        } else if !seen.insert(kept.node) {
            NodeProblem::Twice(kept.node)
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
