//! Notes about inodes for nodes: this module records which notes are to be sent, and builds them (next: `server/src/notes.rs`).
//!
//! A note describes the state of an inode at the time of sending, not the change. The server reads the states of notes one after the other
//! and numbers the notes in the same order, so of two notes about an inode the note with the higher number has the later state.

use super::fault::Fault;
use super::paths::path_of;
use super::rules::definitions;
use super::transaction::Tx;
use super::vnode::{InodeRecord, NO_NODE};
use super::{attribute, ids, multi_writer, parts, tree};
use crate::Connection;
use crate::query;
use rusqlite::{OptionalExtension, params};
use std::collections::BTreeMap;
use std::ops::Range;
use tidemill_wire::v1::{self, Kind};

/// Value of the column `node` for a note to all nodes: every node stores notes about inodes without an object.
const ALL: i64 = NO_NODE;
/// Maximum number of rows in one batch of notes.
const ROWS_MAX: u32 = 1000;
/// Number of change numbers in one reserved block.
const NUMBERS: u64 = 1 << 14;
/// Maximum number of bytes of names and attributes in one batch of notes, not counting the last note.
const BYTES_MAX: usize = 4 << 20;

/// Rows of notes to one node: each inode, and the number of its changes up to the note.
pub type NoteRows = BTreeMap<u64, u64>;

/// Next batch of notes for a node.
#[derive(Debug)]
pub enum NextNotes {
    /// No notes wait.
    Nothing,
    /// Notes wait, but the given numbers can't be used: [`reserve`] must reserve others first.
    NoNumbers,
    /// The notes, numbered in the order of their rows.
    Notes {
        /// Rows from which the notes were built.
        rows: NoteRows,
        /// Notes to send.
        notes: Vec<v1::NameNote>,
    },
}

/// Records that an inode changed or was deleted, so that the nodes that know the inode receive a note.
pub fn changed(db: &Connection, vnode: &InodeRecord) -> Result<(), Fault> {
    // A file that was never sealed has no content to recover.
    if vnode.kind == Kind::File && vnode.version == 0 {
        return Ok(());
    }
    let node = if vnode.object == 0 { ALL } else { vnode.node };
    // Nodes with replicas of the file's version know the file, too.
    let sql = "INSERT INTO note SELECT ?1, ?2, 1 UNION ALL SELECT node, ?2, 1 FROM replica \
               WHERE object = ?3 AND node != ?1 AND want != 2 AND state >= 2 ON CONFLICT DO UPDATE SET changes = changes + 1";
    let (ino, object) = (vnode.ino.cast_signed(), vnode.object.cast_signed());
    query::execute(db, sql, params![node, ino, object])
}

/// Records that a node now has a replica of a version and needs a note about the version's file.
pub fn copied(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    let sql = "INSERT INTO note SELECT ?2, ino, 1 FROM held WHERE object = ?1 \
               ON CONFLICT DO UPDATE SET changes = changes + 1";
    query::execute(db, sql, params![object.cast_signed(), node])
}

/// Records that all nodes need a note about an inode.
pub(crate) fn changed_for_all(db: &Connection, ino: u64) -> Result<(), Fault> {
    changed_at(db, ALL, ino)
}

fn changed_at(db: &Connection, node: i64, ino: u64) -> Result<(), Fault> {
    let sql = "INSERT INTO note VALUES (?1, ?2, 1) ON CONFLICT DO UPDATE SET changes = changes + 1";
    query::execute(db, sql, params![node, ino.cast_signed()])
}

impl Tx<'_> {
    /// Records that nodes need a note about an inode, as [`changed`] does.
    pub fn note(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        changed(self.db, vnode)
    }

    /// Requests notes to all nodes about a file that now has an object: so far all nodes stored notes about it, from now on one node does.
    pub(crate) fn note_for_all(&self, ino: u64) -> Result<(), Fault> {
        changed_for_all(self.db, ino)
    }
}

/// Returns the nodes for which notes wait, and whether notes to all nodes wait.
pub fn waiting(db: &Connection) -> Result<(Vec<u32>, bool), Fault> {
    // Each step finds the next node in the index, so the number of notes does not matter.
    let sql = "WITH RECURSIVE waiting(node) AS (SELECT min(node) FROM note UNION ALL \
               SELECT (SELECT min(node) FROM note WHERE node > waiting.node) FROM waiting WHERE node IS NOT NULL) \
               SELECT node FROM waiting WHERE node IS NOT NULL";
    let nodes: Vec<i64> = query::rows(db, sql, [], |row| row.get(0))?;
    let for_all = nodes.contains(&ALL);
    let nodes = nodes
        .into_iter()
        .filter_map(|node| u32::try_from(node).ok());
    Ok((nodes.collect(), for_all))
}

/// Replaces each row for all nodes by one row for each node, if nodes exist.
pub fn spread(db: &Connection) -> Result<(), Fault> {
    let some = "SELECT ino FROM note WHERE node = ?1 ORDER BY ino LIMIT ?2";
    let copy = format!(
        "INSERT INTO note SELECT node.node, ino, 1 FROM ({some}) CROSS JOIN node \
         WHERE state != 3 ON CONFLICT DO UPDATE SET changes = changes + 1"
    );
    let copied = query::changed(db, &copy, params![ALL, ROWS_MAX])?;
    if copied > 0 {
        let remove = format!("DELETE FROM note WHERE node = ?1 AND ino IN ({some})");
        query::execute(db, &remove, params![ALL, ROWS_MAX])?;
    }
    Ok(())
}

/// Deletes the rows of notes that a node has confirmed.
pub fn done(db: &Connection, node: u32, rows: &NoteRows) -> Result<(), Fault> {
    let sql = "DELETE FROM note WHERE node = ?1 AND ino = ?2 AND changes = ?3";
    let mut statement = db.sql.prepare_cached(sql)?;
    for (ino, changes) in rows {
        statement.execute(params![node, ino.cast_signed(), changes.cast_signed()])?;
    }
    Ok(())
}

/// Reserves numbers for notes.
pub fn reserve(db: &Connection) -> Result<Range<u64>, Fault> {
    let first = ids::reserve(db, "change", NUMBERS)?;
    Ok(first..first + NUMBERS)
}

/// Deletes the rows of notes to a node that was removed from the cluster.
pub(super) fn forget_node(db: &Connection, node: u32) -> Result<(), Fault> {
    db.sql.execute("DELETE FROM note WHERE node = ?1", [node])?;
    Ok(())
}

/// Returns the next batch of notes for a node, without the rows that the node has confirmed and that are not deleted yet. The batch uses the
/// first of `numbers`, unless a node has raised the counter of numbers since their reservation.
pub fn next(
    db: &Connection,
    node: u32,
    (confirmed, numbers): (&NoteRows, &Range<u64>),
) -> Result<NextNotes, Fault> {
    let sql = "SELECT ino, changes FROM note WHERE node = ?1 ORDER BY ino LIMIT ?2";
    let mut statement = db.sql.prepare_cached(sql)?;
    let confirmed_rows = u32::try_from(confirmed.len()).unwrap_or(u32::MAX);
    let limit = ROWS_MAX.saturating_add(confirmed_rows);
    let found = statement.query_map(params![node, limit], |row| {
        let number = |at| query::unsigned(row, at);
        Ok((number(0)?, number(1)?))
    })?;
    let mut found = found.collect::<Result<Vec<_>, _>>()?;
    found.retain(|(ino, changes)| confirmed.get(ino) != Some(changes));
    if found.is_empty() {
        return Ok(NextNotes::Nothing);
    }
    let left = numbers.end - numbers.start;
    if ids::next(db, "change")? != numbers.end || left < found.len() as u64 {
        return Ok(NextNotes::NoNumbers);
    }
    let (mut rows, mut notes, mut bytes) = (NoteRows::new(), Vec::new(), 0);
    for (change, (ino, changes)) in numbers.clone().zip(found) {
        let mut note = note(db, ino, node)?;
        note.change = change;
        bytes += size_of(&note);
        rows.insert(ino, changes);
        notes.push(note);
        if bytes > BYTES_MAX {
            break;
        }
    }
    Ok(NextNotes::Notes { rows, notes })
}

/// Returns the number of bytes of a note's names and attributes.
fn size_of(note: &v1::NameNote) -> usize {
    let layout = note.layout.as_ref();
    note.target.len()
        + note.path.len()
        + note.places.iter().map(|one| one.name.len()).sum::<usize>()
        + note.xattrs.iter().map(|one| one.value.len()).sum::<usize>()
        + note.rule.as_ref().map_or(0, |rule| rule.text.len())
        + layout.map_or(0, |layout| layout.extents.len())
}

/// Returns the note for a node with an inode's present state.
fn note(db: &Connection, ino: u64, node: u32) -> Result<v1::NameNote, Fault> {
    if let Some(note) = definitions::note(db, ino)? {
        return Ok(note);
    }
    let Some(vnode) = InodeRecord::find(db, ino)? else {
        let sql = "SELECT object FROM version WHERE ino = ?1 ORDER BY version DESC LIMIT 1";
        let last: Option<i64> = query::find(db, sql, [ino.cast_signed()], |row| row.get(0))?;
        return Ok(v1::NameNote {
            ino,
            object: last.unwrap_or(0).cast_unsigned(),
            ..v1::NameNote::default()
        });
    };
    let (wanted, copied) = replicas(db, vnode.object, node)?;
    let layout = layout(db, &vnode)?;
    let whole = vnode.object != 0 && !vnode.has_parts();
    let elsewhere = whole && vnode.node != i64::from(node) && !copied;
    let path = match vnode.object {
        0 => None,
        _ => path_of(db, ino)?,
    };
    let places = tree::names_of(db, ino)?.into_iter();
    Ok(v1::NameNote {
        ino,
        change: 0,
        forget: elsewhere,
        kind: vnode.kind.into(),
        mode: vnode.mode,
        uid: vnode.uid,
        gid: vnode.gid,
        rdev: vnode.rdev,
        atime: vnode.atime,
        mtime: vnode.mtime,
        ctime: vnode.ctime,
        version: vnode.version,
        object: vnode.object,
        size: vnode.size,
        target: vnode.target,
        replicas: wanted,
        layout,
        rule: None,
        path: path.unwrap_or_default(),
        places: places
            .map(|(parent, name)| v1::NamePlace { parent, name })
            .collect(),
        xattrs: attribute::all(db, ino)?,
    })
}

/// Returns the layout of a version; `None` for a version that is one object.
fn layout(db: &Connection, vnode: &InodeRecord) -> Result<Option<v1::Layout>, Fault> {
    let parts = match vnode.has_parts() {
        true => parts::parts(db, vnode.object)?,
        false => None,
    };
    let Some((unit, rows)) = parts else {
        return Ok(None);
    };
    let extents = match unit {
        0 => multi_writer::extents(db, vnode.object)?,
        _ => Vec::new(),
    };
    let part = |row: parts::PartRow| v1::LayoutPart {
        object: row.object,
        node: row.node,
        size: row.size.unwrap_or(0),
        capability: Vec::new(),
    };
    Ok(Some(v1::Layout {
        unit,
        parts: rows.into_iter().map(part).collect(),
        extents,
    }))
}

/// Returns the wanted number of replicas of a version, and whether a node has a replica other than the first.
fn replicas(db: &Connection, object: u64, node: u32) -> Result<(u32, bool), Fault> {
    let sql = "SELECT replicas, EXISTS (SELECT 1 FROM replica WHERE replica.object = ?1 AND replica.node = ?2 \
               AND replica.node != version.node AND want != 2 AND state >= 2) \
               FROM version WHERE object = ?1";
    let mut statement = db.sql.prepare_cached(sql)?;
    let row = params![object.cast_signed(), node];
    let found = statement.query_row(row, |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(found.optional()?.unwrap_or((1, false)))
}
