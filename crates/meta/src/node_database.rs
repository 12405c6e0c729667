//! A node's stored data about its objects and tasks, read from the node's database (`docs/formats-node.md`). This module only reads. The
//! server recovers a lost database of its own from the data (next: `server/src/recovery`).

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use tidemill_model::attribute::{object, task};
use tidemill_model::layout::PartOf;
use tidemill_model::object::tag;

/// Version of the tables in a node's database.
const SCHEMA_VERSION: i64 = 1;

/// Length of the head of an SQLite file, and offset and value of the byte that marks a write-ahead log.
const HEAD_BYTES: u64 = 20;
const LOGGED_AT: usize = 18;
const LOGGED: u8 = 2;

/// Values of the column for the kind of an object in a node's database.
const DATA: i64 = 0;
const TASK: i64 = 1;

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
    /// SQLite returned an error.
    #[error("node.db can't be read: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// Data of one node, as read from the node's database.
#[derive(Debug)]
pub struct NodeRecords {
    /// Number of the node in its cluster.
    pub node: u32,
    /// Id of the cluster to which the node belongs: 8 bytes, little-endian.
    pub cluster: Vec<u8>,
    /// Key of the cluster with which the node verifies capabilities: 32 bytes.
    pub key: Vec<u8>,
    /// Data objects of the node that have attributes, in the order of their ids.
    pub objects: Vec<KeptObject>,
    /// Tasks that ended on the node, in the order of their ids.
    pub tasks: Vec<NodeTask>,
    /// Highest id of a label in the node's queue; 0 if the queue is empty.
    pub label_max: u64,
    /// Highest id of a data object that the node stores or that is an input or output of a task on the node; 0 if there is none.
    pub object_max: u64,
    /// Whether the server removed the node from the cluster earlier (`node/src/daemon.rs`).
    pub removed: bool,
}

/// A sealed object that the node stores.
#[derive(Clone, Debug)]
pub struct KeptObject {
    /// Id of the object, which is the same for all replicas.
    pub id: u64,
    /// Number of the node that stores this replica.
    pub node: u32,
    /// Number of bytes of the object.
    pub size: u64,
    /// Numeric user id of the object's owner; 0 if the node has not stored an owner.
    pub uid: u32,
    /// Numeric group id of the object's owner; 0 if the node has not stored a group.
    pub gid: u32,
    /// Inode of the file to which the object belongs; 0 if the node has not stored an inode.
    pub inode: u64,
    /// Path of the file when the server signed the right to write the object, or that of a label that wrote it; empty if it is unknown.
    pub path: Vec<u8>,
    /// Permission bits of the file at the seal; `None` for outputs of tasks and for replicas.
    pub mode: Option<u32>,
    /// Task that wrote the object; 0 for objects from clients and for replicas.
    pub task: u64,
    /// Time of the seal, or of the creation of the replica, in nanoseconds since the Unix epoch; 0 if the time is unknown.
    pub sealed_at: u64,
    /// Version that contains the object as a part, and the number of the part; `None` if the object is a whole version.
    pub part: Option<PartOf>,
}

/// A task that ended on the node.
#[derive(Clone, Debug)]
pub struct NodeTask {
    /// Id of the task, without the tag of its collection.
    pub task: u64,
    /// Number of the node on which the task ended.
    pub node: u32,
    /// Whether the task succeeded.
    pub done: bool,
    attributes: PageValues,
    /// Objects that the task read, in the order of the label's inputs.
    pub inputs: Vec<u64>,
    /// Objects that the task wrote, in the order of the label's outputs.
    pub outputs: Vec<u64>,
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
    pub fn named(&self) -> bool {
        self.task == 0 && !self.path.is_empty()
    }
}

impl NodeTask {
    /// Returns the integer with this attribute number (`tidemill_model::attribute::task`); 0 if the attribute is absent.
    pub fn number(&self, number: u32) -> u64 {
        self.attributes.number(number).unwrap_or(0)
    }

    /// Returns the text with this attribute number (`tidemill_model::attribute::task`); empty if the attribute is absent.
    pub fn text(&self, number: u32) -> String {
        self.attributes.text(number)
    }

    /// Returns the id of the task's job; 0 if the node has not stored a job.
    pub fn job(&self) -> u64 {
        self.number(task::JOB)
    }

    /// Returns the numeric user id of the task's owner; 0 if the node has not stored an owner.
    pub fn uid(&self) -> u32 {
        self.attributes.small(task::UID).unwrap_or(0)
    }

    /// Returns the arguments of the task's kernel; empty if the stored arguments are absent or malformed.
    pub fn args(&self) -> Vec<String> {
        serde_json::from_str(&self.text(task::ARGS)).unwrap_or_default()
    }

    /// Returns the selection that the task read of each input; empty if the task read all bytes of all inputs.
    pub fn selections(&self) -> Vec<String> {
        serde_json::from_str(&self.text(task::SELECTIONS)).unwrap_or_default()
    }
}

/// The open database of a node.
#[derive(Debug)]
pub struct NodeDatabase(Connection);

impl NodeDatabase {
    /// Opens the database of a node, which may run, for reading.
    pub fn open(path: &Path) -> Result<Self, NodeProblem> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags)?;
        db.busy_timeout(std::time::Duration::from_secs(5))?;
        Ok(Self(db))
    }

    /// Whether the database at `path`, which has no log, is a copy of a database in use whose log contained the last rows
    /// (`node/src/reserve.rs`).
    pub fn is_behind(&self, path: &Path) -> Result<bool, NodeProblem> {
        let tables = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'identity'";
        if !self.0.prepare(tables)?.exists([])? {
            // All rows may be in the log.
            let mut head = Vec::new();
            let file = std::fs::File::open(path);
            let read = file.and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
            let logged = head.get(LOGGED_AT).is_none_or(|&version| version == LOGGED);
            return Ok(read.is_ok() && logged);
        }
        Ok(identity(&self.0, "log")?.is_some_and(|value| value == [1]))
    }

    /// Whether the database has a row for an object.
    pub fn knows(&self, object: u64) -> Result<bool, NodeProblem> {
        let mut known = self
            .0
            .prepare_cached("SELECT 1 FROM object WHERE id = ?1")?;
        Ok(known.exists([object.cast_signed()])?)
    }

    /// Returns the objects that the node stores in its backend (`node/src/backend`).
    pub fn backend(&self) -> Result<BTreeSet<u64>, NodeProblem> {
        let mut statement = self
            .0
            .prepare("SELECT object FROM backend WHERE deleted = 0")?;
        let rows = statement.query_map([], |row| Ok(row.get::<_, i64>(0)?.cast_unsigned()))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the node's data about its objects and tasks.
    pub fn records(&self) -> Result<NodeRecords, NodeProblem> {
        rows(&self.0)
    }
}

fn identity(db: &Connection, key: &str) -> Result<Option<Vec<u8>>, NodeProblem> {
    let sql = "SELECT value FROM identity WHERE key = ?1";
    Ok(db.query_row(sql, [key], |row| row.get(0)).optional()?)
}

fn rows(db: &Connection) -> Result<NodeRecords, NodeProblem> {
    let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != SCHEMA_VERSION {
        return Err(NodeProblem::Version(version));
    }
    let identity = |key| identity(db, key)?.ok_or(NodeProblem::Unattached);
    let node = String::from_utf8_lossy(&identity("node")?).into_owned();
    let node = node.parse().map_err(|_| NodeProblem::Unattached)?;
    let mut kept = NodeRecords {
        node,
        cluster: identity("cluster")?,
        key: identity("key")?,
        objects: Vec::new(),
        tasks: Vec::new(),
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
