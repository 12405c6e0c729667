//! Rows of the node's database: objects, tasks, labels and the node's identity.
//!
//! The functions run inside a transaction of [`crate::db::Db`] and use the tables of `docs/formats.md`. The functions make no decisions.

use rusqlite::{Connection, OptionalExtension, Result, params};
use tidemill_model::attribute::{object, task};
use tidemill_model::id::{LabelId, ObjectId};
use tidemill_model::label::{Analysis, FailureKind, Outcome, Owner};
use tidemill_model::layout::{PartOf, Selection};
use tidemill_model::object::tag;
use tidemill_model::time::Time;
use tidemill_wire::capability::Attributes;
use tidemill_wire::v1::UsedIds;

/// Values of the column `object.kind`.
pub mod kind {
    /// The object is a data object: bytes.
    pub const DATA: i64 = 0;
    /// The object is the collection of a task.
    pub const TASK: i64 = 1;
    /// The object is a linked collection.
    pub const LINKED: i64 = 2;
    /// The object is the status object of the node.
    pub const STATUS: i64 = 3;
}

/// Values of the column `object.state`.
pub mod state {
    /// The object is the collection of a failed task.
    pub const FAILED: i64 = 0;
    /// The object is sealed, or is the collection of a task that succeeded.
    pub const SEALED: i64 = 1;
}

/// Values of the column `label.state`.
const QUEUED: i64 = 0;
const ENDED: i64 = 1;

/// Number of acknowledged labels that the database keeps, so that the node recognises a repeated label.
pub const ACKED_KEPT: i64 = 10_000;

/// Metadata of a sealed object: its owner, its file and its task. The database stores them as attributes of the object.
#[derive(Clone, Debug)]
pub struct ObjectRecord {
    /// Id of the object.
    pub id: ObjectId,
    /// Length of the object in bytes.
    pub size: u64,
    /// Owner of the object.
    pub owner: Owner,
    /// Inode of the object's file.
    pub inode: u64,
    /// Path of the object's file when the server signed the right to write it, or sent the label that wrote it; may be empty.
    pub path: Vec<u8>,
    /// Permission bits of the object's file, if known.
    pub mode: Option<u32>,
    /// Id of the task that wrote the object, if a task wrote the object.
    pub task: Option<u64>,
    /// Time at which the object was sealed.
    pub sealed_at: Time,
    /// Version that the object is a part of, if the object is a part.
    pub part: Option<PartOf>,
    /// BLAKE3 hash of the object's bytes, if already known.
    pub hash: Option<Hash>,
    /// Whether the object is stored in the memory for intermediate files.
    pub memory: bool,
}

/// BLAKE3 hash of an object's bytes.
pub type Hash = [u8; 32];

/// Length, hash and corruption of a sealed object, for comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectChecksum {
    /// Length of the object in bytes.
    pub size: u64,
    /// BLAKE3 hash of the object; `None` if the object has not been hashed yet.
    pub hash: Option<Hash>,
    /// Description of the object's corruption; `None` if the object is not corrupt.
    pub corruption: Option<String>,
}

impl ObjectRecord {
    /// Returns the record of an object that a client wrote and sealed, with the attributes that the server has signed.
    #[must_use]
    pub fn written(id: ObjectId, size: u64, signed: Attributes, sealed_at: Time) -> Self {
        Self {
            id,
            size,
            owner: Owner {
                uid: signed.uid,
                gid: signed.gid,
            },
            inode: signed.inode,
            path: signed.path,
            mode: Some(signed.mode),
            task: None,
            sealed_at,
            part: signed.part.and_then(|part| PartOf::from_bytes(&part)),
            hash: None,
            memory: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum AttributeValue<'a> {
    Number(u64),
    Text(&'a str),
}

/// Stores the row of a sealed object and its attributes. A second call replaces the row and the attributes.
///
/// # Errors
/// SQLite returns an error.
pub fn put_object(connection: &Connection, record: &ObjectRecord) -> Result<()> {
    put(connection, record.id, kind::DATA, state::SEALED)?;
    if let Some(hash) = &record.hash {
        set_hash(connection, record.id, hash)?;
    }
    let set = |number, value| set(connection, record.id, object::PAGE, number, value);
    set(object::SIZE, AttributeValue::Number(record.size))?;
    set(object::UID, AttributeValue::Number(record.owner.uid.into()))?;
    set(object::GID, AttributeValue::Number(record.owner.gid.into()))?;
    set(object::INODE, AttributeValue::Number(record.inode))?;
    if !record.path.is_empty() {
        set_attribute(
            connection,
            record.id,
            object::PAGE,
            object::PATH,
            &record.path,
        )?;
    }
    set(
        object::SEALED_AT,
        AttributeValue::Number(record.sealed_at.0),
    )?;
    if let Some(mode) = record.mode {
        set(object::MODE, AttributeValue::Number(mode.into()))?;
    }
    if record.memory {
        set(object::MEMORY, AttributeValue::Number(1))?;
    }
    if let Some(part) = record.part {
        set_attribute(
            connection,
            record.id,
            object::PAGE,
            object::PART,
            &part.to_bytes(),
        )?;
    }
    match record.task {
        Some(id) => set(object::TASK, AttributeValue::Number(id)),
        None => Ok(()),
    }
}

/// Returns the objects that are stored in the memory for intermediate files.
///
/// # Errors
/// SQLite returns an error.
pub(crate) fn in_memory(connection: &Connection) -> Result<Vec<ObjectId>> {
    let sql = "SELECT attribute.object FROM attribute JOIN object ON object.id = attribute.object
               WHERE page = ?1 AND number = ?2 AND kind = ?3";
    let mut rows = connection.prepare(sql)?;
    let row = params![object::PAGE, object::MEMORY, kind::DATA];
    let rows = rows.query_map(row, |row| row.get::<_, i64>(0))?;
    rows.map(|id| Ok(ObjectId(id?.cast_unsigned()))).collect()
}

/// Returns whether an object is recorded as sealed.
///
/// # Errors
/// SQLite returns an error.
pub fn has_object(connection: &Connection, id: ObjectId) -> Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM object WHERE id = ?1")?
        .exists([signed(id.0)])
}

/// Returns the length, the hash and the corruption of a sealed object.
///
/// # Errors
/// SQLite returns an error.
pub fn sum(connection: &Connection, id: ObjectId) -> Result<Option<ObjectChecksum>> {
    connection
        .prepare_cached(
            "SELECT value, hash, corruption FROM object JOIN attribute ON attribute.object = id
             WHERE id = ?1 AND kind = ?2 AND page = ?3 AND number = ?4",
        )?
        .query_row(
            params![signed(id.0), kind::DATA, object::PAGE, object::SIZE],
            |row| {
                let size: Vec<u8> = row.get(0)?;
                let hash: Option<Vec<u8>> = row.get(1)?;
                Ok(ObjectChecksum {
                    size: size.try_into().map_or(0, u64::from_le_bytes),
                    hash: hash.and_then(|hash| hash.try_into().ok()),
                    corruption: row.get(2)?,
                })
            },
        )
        .optional()
}

/// Returns up to `max` sealed objects that have not been hashed.
///
/// # Errors
/// SQLite returns an error.
pub fn unhashed(connection: &Connection, max: u32) -> Result<Vec<ObjectId>> {
    connection
        .prepare_cached(
            "SELECT id FROM object INDEXED BY object_unhashed
             WHERE kind = 0 AND hash IS NULL AND corruption IS NULL AND stub = 0 LIMIT ?1",
        )?
        .query_map([max], |row| {
            Ok(ObjectId(row.get::<_, i64>(0)?.cast_unsigned()))
        })?
        .collect()
}

/// Stores the hash of an object, if the database has the object without a hash.
///
/// # Errors
/// SQLite returns an error.
pub fn set_hash(connection: &Connection, id: ObjectId, hash: &Hash) -> Result<()> {
    connection
        .prepare_cached("UPDATE object SET hash = ?2 WHERE id = ?1 AND hash IS NULL")?
        .execute(params![signed(id.0), hash])?;
    Ok(())
}

/// Sets or clears the corruption of an object. Returns whether the database has the object.
///
/// # Errors
/// SQLite returns an error.
pub fn set_corruption(
    connection: &Connection,
    id: ObjectId,
    corruption: Option<&str>,
) -> Result<bool> {
    let changed = connection
        .prepare_cached("UPDATE object SET corruption = ?2 WHERE id = ?1")?
        .execute(params![signed(id.0), corruption])?;
    Ok(changed > 0)
}

/// Returns the corrupt objects with ids after `after`, in the order of their ids, each with a description of its corruption.
///
/// # Errors
/// SQLite returns an error.
pub fn corrupt(
    connection: &Connection,
    after: Option<ObjectId>,
    max: u32,
) -> Result<Vec<(ObjectId, String)>> {
    let after = after.map_or(i64::MIN, |after| signed(after.0));
    connection
        .prepare_cached(
            "SELECT id, corruption FROM object WHERE corruption IS NOT NULL AND id > ?1 ORDER BY id LIMIT ?2",
        )?
        .query_map(params![after, max], |row| {
            let id = ObjectId(row.get::<_, i64>(0)?.cast_unsigned());
            Ok((id, row.get(1)?))
        })?
        .collect()
}

/// Returns all data objects that the database records as sealed.
///
/// # Errors
/// SQLite returns an error.
pub fn data_objects(connection: &Connection) -> Result<Vec<ObjectId>> {
    connection
        .prepare_cached("SELECT id FROM object WHERE kind = ?1")?
        .query_map([kind::DATA], |row| {
            Ok(ObjectId(row.get::<_, i64>(0)?.cast_unsigned()))
        })?
        .collect()
}

/// Deletes an object and its attributes. Collections that contained the object keep its id, because lineage outlives data.
///
/// # Errors
/// SQLite returns an error.
pub fn remove_object(connection: &Connection, id: ObjectId) -> Result<()> {
    let id = signed(id.0);
    connection
        .prepare_cached("DELETE FROM object WHERE id = ?1")?
        .execute([id])?;
    connection
        .prepare_cached("DELETE FROM attribute WHERE object = ?1")?
        .execute([id])?;
    Ok(())
}

/// Stores an ended task: its collections and the last state of its tracker (AnalyzeThis, Fig. 3).
///
/// # Errors
/// SQLite returns an error.
pub fn put_task(
    connection: &Connection,
    analysis: &Analysis,
    owner: Owner,
    outcome: &Outcome,
) -> Result<()> {
    let collection = ObjectId::task_collection(analysis.task);
    let inputs = ObjectId::input_collection(analysis.task);
    let outputs = ObjectId::output_collection(analysis.task);
    // An earlier attempt of the task may have left attributes that this attempt does not have.
    remove_object(connection, collection)?;
    let ended = outcome.result.is_ok();
    let object_state = if ended { state::SEALED } else { state::FAILED };
    put(connection, collection, kind::TASK, object_state)?;
    put_collection(connection, inputs, analysis.inputs.iter().map(|i| i.object))?;
    let sealed = outcome.result.iter().flatten().map(|sealed| sealed.object);
    put_collection(connection, outputs, sealed)?;
    let args = serde_json::to_string(&analysis.args).unwrap_or_default();
    let selections = selections(analysis);
    let set = |number, value| set(connection, collection, task::PAGE, number, value);
    set(task::INPUTS, AttributeValue::Number(inputs.0))?;
    set(task::OUTPUTS, AttributeValue::Number(outputs.0))?;
    set(task::NAME, AttributeValue::Text(&analysis.name))?;
    set(task::JOB, AttributeValue::Number(analysis.job.0))?;
    set(task::KERNEL, AttributeValue::Text(analysis.kernel.name()))?;
    set(
        task::KERNEL_HASH,
        AttributeValue::Text(&outcome.kernel_hash),
    )?;
    set(task::ARGS, AttributeValue::Text(&args))?;
    if let Some(selections) = &selections {
        set(task::SELECTIONS, AttributeValue::Text(selections))?;
    }
    let name = if ended { "done" } else { "failed" };
    set(task::STATE, AttributeValue::Text(name))?;
    set(task::START, AttributeValue::Number(outcome.start.0))?;
    set(task::END, AttributeValue::Number(outcome.end.0))?;
    set(
        task::TRANSFERRED_BYTES,
        AttributeValue::Number(outcome.transferred_bytes),
    )?;
    set(task::READ_BYTES, AttributeValue::Number(outcome.read_bytes))?;
    set(
        task::WRITTEN_BYTES,
        AttributeValue::Number(outcome.written_bytes),
    )?;
    set(task::UID, AttributeValue::Number(owner.uid.into()))?;
    if let Some(exit) = exit_code(outcome) {
        set(task::EXIT, AttributeValue::Number(exit))?;
    }
    let reported = [
        (task::STDOUT, &outcome.stdout),
        (task::STDERR, &outcome.stderr),
    ];
    for (number, text) in reported {
        if !text.is_empty() {
            set(number, AttributeValue::Text(text))?;
        }
    }
    if let Err(failure) = &outcome.result {
        set(task::ERROR, AttributeValue::Text(&failure.message))?;
    }
    Ok(())
}

/// Returns the selections of a task's inputs as JSON; `None` if the task read all its inputs completely.
fn selections(analysis: &Analysis) -> Option<String> {
    let all = analysis.inputs.iter().map(|input| &input.selection);
    if all.clone().all(Selection::is_whole) {
        return None;
    }
    let texts: Vec<String> = all.map(ToString::to_string).collect();
    serde_json::to_string(&texts).ok()
}

fn exit_code(outcome: &Outcome) -> Option<u64> {
    match &outcome.result {
        Ok(_) => Some(0),
        Err(failure) => match failure.kind {
            FailureKind::Exit(code) => u64::try_from(code).ok(),
            FailureKind::Signal(signal) => u64::try_from(128 + i64::from(signal)).ok(),
            _ => None,
        },
    }
}

fn put(connection: &Connection, id: ObjectId, kind: i64, state: i64) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO object (id, kind, state, stub) VALUES (?1, ?2, ?3,
                 EXISTS (SELECT 1 FROM backend WHERE object = ?1 AND stub != 0))",
        )?
        .execute(params![signed(id.0), kind, state])?;
    Ok(())
}

fn put_collection(
    connection: &Connection,
    collection: ObjectId,
    members: impl Iterator<Item = ObjectId>,
) -> Result<()> {
    put(connection, collection, kind::LINKED, state::SEALED)?;
    connection
        .prepare_cached("DELETE FROM membership WHERE collection = ?1")?
        .execute([signed(collection.0)])?;
    let mut insert = connection.prepare_cached(
        "INSERT INTO membership (collection, position, object) VALUES (?1, ?2, ?3)",
    )?;
    for (position, member) in (0_i64..).zip(members) {
        insert.execute([signed(collection.0), position, signed(member.0)])?;
    }
    Ok(())
}

fn set(
    connection: &Connection,
    id: ObjectId,
    page: u32,
    number: u32,
    value: AttributeValue<'_>,
) -> Result<()> {
    match value {
        AttributeValue::Number(value) => {
            set_attribute(connection, id, page, number, &value.to_le_bytes())
        }
        AttributeValue::Text(value) => {
            set_attribute(connection, id, page, number, value.as_bytes())
        }
    }
}

/// Sets one attribute of an object.
///
/// # Errors
/// SQLite returns an error.
pub fn set_attribute(
    connection: &Connection,
    id: ObjectId,
    page: u32,
    number: u32,
    value: &[u8],
) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO attribute (object, page, number, value) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![signed(id.0), page, number, value])?;
    Ok(())
}

/// Sets attributes of the status object of the node.
///
/// # Errors
/// SQLite returns an error.
pub fn put_status(connection: &Connection, attributes: &[(u32, Vec<u8>)]) -> Result<()> {
    put(connection, ObjectId::STATUS, kind::STATUS, state::SEALED)?;
    let page = tidemill_model::attribute::status::PAGE;
    for (number, value) in attributes {
        set_attribute(connection, ObjectId::STATUS, page, *number, value)?;
    }
    Ok(())
}

/// Returns the value of one attribute of an object.
///
/// # Errors
/// SQLite returns an error.
pub fn attribute(
    connection: &Connection,
    id: ObjectId,
    page: u32,
    number: u32,
) -> Result<Option<Vec<u8>>> {
    connection
        .prepare_cached(
            "SELECT value FROM attribute WHERE object = ?1 AND page = ?2 AND number = ?3",
        )?
        .query_row(params![signed(id.0), page, number], |row| row.get(0))
        .optional()
}

/// Returns all attributes of an object as (page, number, value), in the order of page and number.
///
/// # Errors
/// SQLite returns an error.
pub fn attributes(connection: &Connection, id: ObjectId) -> Result<Vec<(u32, u32, Vec<u8>)>> {
    connection
        .prepare_cached(
            "SELECT page, number, value FROM attribute WHERE object = ?1 ORDER BY page, number",
        )?
        .query_map([signed(id.0)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect()
}

/// Returns the objects of a collection, in the order of the collection.
///
/// # Errors
/// SQLite returns an error.
pub fn members(connection: &Connection, collection: ObjectId) -> Result<Vec<ObjectId>> {
    connection
        .prepare_cached("SELECT object FROM membership WHERE collection = ?1 ORDER BY position")?
        .query_map([signed(collection.0)], |row| {
            Ok(ObjectId(row.get::<_, i64>(0)?.cast_unsigned()))
        })?
        .collect()
}

/// Row of the table of labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRecord {
    /// Id of the label.
    pub id: LabelId,
    /// Number of the label in the order of arrival.
    pub seq: u64,
    /// Protobuf message of the label; empty after the server acknowledged the label's outcome.
    pub payload: Vec<u8>,
    /// Protobuf message of the label's outcome, if the label has ended.
    pub outcome: Option<Vec<u8>>,
}

/// State of a label in the database before [`accept_label`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormerState {
    /// The label was unknown and is now stored.
    New,
    /// The label is queued or running.
    Queued,
    /// The label has ended with this outcome.
    Ended(Vec<u8>),
}

/// Stores a label unless the database has the label. Returns the label's state before the call.
///
/// # Errors
/// SQLite returns an error.
pub fn accept_label(connection: &Connection, label: &LabelRecord) -> Result<FormerState> {
    let known = connection
        .prepare_cached("SELECT outcome FROM label WHERE id = ?1")?
        .query_row([signed(label.id.0)], |row| row.get::<_, Option<Vec<u8>>>(0))
        .optional()?;
    match known {
        Some(Some(outcome)) => return Ok(FormerState::Ended(outcome)),
        Some(None) => return Ok(FormerState::Queued),
        None => {}
    }
    let state = if label.outcome.is_some() {
        ENDED
    } else {
        QUEUED
    };
    connection
        .prepare_cached(
            "INSERT INTO label (id, seq, payload, state, outcome, acked) VALUES (?1, ?2, ?3, ?4, ?5, 0)",
        )?
        .execute(params![
            signed(label.id.0),
            signed(label.seq),
            label.payload,
            state,
            label.outcome
        ])?;
    Ok(FormerState::New)
}

/// Stores the outcome of a label.
///
/// # Errors
/// SQLite returns an error.
pub fn end_label(connection: &Connection, id: LabelId, outcome: &[u8]) -> Result<()> {
    connection
        .prepare_cached("UPDATE label SET state = ?2, outcome = ?3 WHERE id = ?1")?
        .execute(params![signed(id.0), ENDED, outcome])?;
    Ok(())
}

/// Records that the server has stored the outcomes of these labels.
///
/// # Errors
/// SQLite returns an error.
pub fn ack_labels(connection: &Connection, ids: &[LabelId]) -> Result<()> {
    let mut ack = connection
        .prepare_cached("UPDATE label SET acked = 1, payload = X'' WHERE id = ?1 AND state = ?2")?;
    for id in ids {
        ack.execute(params![signed(id.0), ENDED])?;
    }
    Ok(())
}

/// Deletes acknowledged labels except the last [`ACKED_KEPT`].
///
/// # Errors
/// SQLite returns an error.
pub fn prune_labels(connection: &Connection) -> Result<usize> {
    connection
        .prepare_cached(
            "DELETE FROM label WHERE acked = 1 AND seq <= (SELECT max(seq) FROM label) - ?1",
        )?
        .execute([ACKED_KEPT])
}

/// Returns the labels whose outcomes the server has not acknowledged, in the order of arrival.
///
/// # Errors
/// SQLite returns an error.
pub fn open_labels(connection: &Connection) -> Result<Vec<LabelRecord>> {
    connection
        .prepare_cached("SELECT id, seq, payload, outcome FROM label WHERE acked = 0 ORDER BY seq")?
        .query_map([], label_of)?
        .collect()
}

/// Returns the acknowledged labels that the database keeps, with their outcomes.
///
/// # Errors
/// SQLite returns an error.
pub fn acked_labels(connection: &Connection) -> Result<Vec<LabelRecord>> {
    connection
        .prepare_cached("SELECT id, seq, payload, outcome FROM label WHERE acked = 1 ORDER BY seq")?
        .query_map([], label_of)?
        .collect()
}

fn label_of(row: &rusqlite::Row<'_>) -> Result<LabelRecord> {
    Ok(LabelRecord {
        id: LabelId(row.get::<_, i64>(0)?.cast_unsigned()),
        seq: row.get::<_, i64>(1)?.cast_unsigned(),
        payload: row.get(2)?,
        outcome: row.get(3)?,
    })
}

/// Returns the highest ids that the node has stored.
///
/// # Errors
/// If SQLite refuses.
pub fn used_ids(connection: &Connection) -> Result<UsedIds> {
    let highest = |sql: &str, ids: std::ops::Range<u64>| -> Result<u64> {
        let mut statement = connection.prepare_cached(sql)?;
        let ends = [ids.start.cast_signed(), ids.end.cast_signed()];
        let highest: i64 = statement.query_row(ends, |row| row.get(0))?;
        Ok(highest.cast_unsigned())
    };
    let objects = "SELECT coalesce(max(id), 0) FROM object WHERE id >= ?1 AND id < ?2";
    let labels = "SELECT coalesce(max(id), 0) FROM label WHERE id >= ?1 AND id < ?2";
    Ok(UsedIds {
        object: highest(objects, 0..tag::TASK)?,
        task: highest(objects, tag::TASK..tag::INPUTS)? & !tag::MASK,
        label: highest(labels, 0..tag::TASK)?,
    })
}

/// Returns the value of a key of the node's identity.
///
/// # Errors
/// SQLite returns an error.
pub fn identity(connection: &Connection, key: &str) -> Result<Option<Vec<u8>>> {
    connection
        .prepare_cached("SELECT value FROM identity WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

/// Sets the value of a key of the node's identity.
///
/// # Errors
/// SQLite returns an error.
pub fn set_identity(connection: &Connection, key: &str, value: &[u8]) -> Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO identity (key, value) VALUES (?1, ?2)")?
        .execute(params![key, value])?;
    Ok(())
}

/// Converts an id to a signed integer with the same bits, because SQLite has only signed integers.
fn signed(id: u64) -> i64 {
    id.cast_signed()
}
