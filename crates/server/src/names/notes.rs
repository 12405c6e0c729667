//! Notes about inodes for elements: the rows that say which are to be sent, and what is sent.
//!
//! A note says how things are when it is sent, not what was changed. Its number is taken in the transaction that reads
//! it, so of two notes about an inode the one with the higher number is the later.

use super::copies::CURRENT;
use super::fault::Fault;
use super::ids;
use super::node::{NO_ELEMENT, Node};
use super::transaction::{Tx, path_of};
use super::{parts, together};
use crate::rules::noted;
use rusqlite::{Connection, OptionalExtension, params};
use tidemill_wire::v1::{self, Kind};

/// Stands for all elements in the table: what has no object is noted by every one.
const ALL: i64 = NO_ELEMENT;
/// Rows looked at in one go.
const ROWS_MAX: u32 = 1000;
/// Bytes of names and attributes in one batch, the last note not counted.
const BYTES_MAX: usize = 4 << 20;

/// Rows that a batch was made of.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Inode, and how often it had been changed.
    pub(crate) rows: Vec<(u64, u64)>,
    /// The highest change of the batch.
    pub(crate) last: u64,
}

/// A node is different now, or gone: the elements that know it are to hear of it.
pub(crate) fn changed(db: &Connection, node: &Node) -> Result<(), Fault> {
    // A file that was never sealed has nothing that could be brought back.
    if node.kind == Kind::File && node.version == 0 {
        return Ok(());
    }
    let element = if node.object == 0 { ALL } else { node.element };
    // Those that have copies of its version know it, too.
    let sql = "INSERT INTO note SELECT ?1, ?2, 1 UNION ALL SELECT element, ?2, 1 FROM copy \
               WHERE object = ?3 AND state = ?4 ON CONFLICT DO UPDATE SET changes = changes + 1";
    let (ino, object) = (node.ino.cast_signed(), node.object.cast_signed());
    db.prepare_cached(sql)?
        .execute(params![element, ino, object, CURRENT])?;
    Ok(())
}

/// An element has a copy of a version now, and is to hear of its file.
pub(crate) fn copied(db: &Connection, object: u64, element: u32) -> Result<(), Fault> {
    let sql = "INSERT INTO note SELECT ?2, ino, 1 FROM held WHERE object = ?1 \
               ON CONFLICT DO UPDATE SET changes = changes + 1";
    db.prepare_cached(sql)?
        .execute(params![object.cast_signed(), element])?;
    Ok(())
}

/// All elements are to hear of what has this number.
pub(crate) fn changed_for_all(db: &Connection, ino: u64) -> Result<(), Fault> {
    changed_at(db, ALL, ino)
}

fn changed_at(db: &Connection, element: i64, ino: u64) -> Result<(), Fault> {
    let sql = "INSERT INTO note VALUES (?1, ?2, 1) ON CONFLICT DO UPDATE SET changes = changes + 1";
    db.prepare_cached(sql)?
        .execute(params![element, ino.cast_signed()])?;
    Ok(())
}

impl Tx<'_> {
    /// See [`changed`].
    pub(crate) fn note(&self, node: &Node) -> Result<(), Fault> {
        changed(self.db, node)
    }

    /// A file that had no object has one now, so that of all elements only one knows it.
    pub(crate) fn note_for_all(&self, ino: u64) -> Result<(), Fault> {
        changed_for_all(self.db, ino)
    }
}

/// Whether an element has something to hear.
pub(crate) fn waiting(db: &Connection, element: u32) -> Result<bool, Fault> {
    exists(db, element.into())
}

/// Whether there are rows for all elements.
pub(crate) fn waiting_for_all(db: &Connection) -> Result<bool, Fault> {
    exists(db, ALL)
}

fn exists(db: &Connection, element: i64) -> Result<bool, Fault> {
    let mut statement = db.prepare_cached("SELECT 1 FROM note WHERE element = ?1")?;
    Ok(statement.exists([element])?)
}

/// Makes rows of each element of those for all, if there are elements.
pub(crate) fn spread(db: &Connection) -> Result<(), Fault> {
    let some = "SELECT ino FROM note WHERE element = ?1 ORDER BY ino LIMIT ?2";
    let copy = format!(
        "INSERT INTO note SELECT element.element, ino, 1 FROM ({some}) CROSS JOIN element \
         WHERE true ON CONFLICT DO UPDATE SET changes = changes + 1"
    );
    let copied = db.prepare_cached(&copy)?.execute(params![ALL, ROWS_MAX])?;
    if copied > 0 {
        let remove = format!("DELETE FROM note WHERE element = ?1 AND ino IN ({some})");
        db.prepare_cached(&remove)?
            .execute(params![ALL, ROWS_MAX])?;
    }
    Ok(())
}

/// An element has the notes that were made of these rows.
pub(crate) fn done(db: &Connection, element: u32, rows: &[(u64, u64)]) -> Result<(), Fault> {
    let sql = "DELETE FROM note WHERE element = ?1 AND ino = ?2 AND changes = ?3";
    let mut statement = db.prepare_cached(sql)?;
    for (ino, changes) in rows {
        statement.execute(params![element, ino.cast_signed(), changes.cast_signed()])?;
    }
    Ok(())
}

/// The next notes for an element, if there are any.
pub(crate) fn take(
    db: &Connection,
    element: u32,
) -> Result<Option<(Batch, Vec<v1::NameNote>)>, Fault> {
    let sql = "SELECT ino, changes FROM note WHERE element = ?1 ORDER BY ino LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params![element, ROWS_MAX], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok((number(0)?, number(1)?))
    })?;
    let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
    let (mut notes, mut bytes) = (Vec::new(), 0);
    for (ino, _) in &rows {
        let note = note(db, *ino, element)?;
        bytes += note.target.len() + note.path.len();
        bytes += note.places.iter().map(|one| one.name.len()).sum::<usize>();
        bytes += note.xattrs.iter().map(|one| one.value.len()).sum::<usize>();
        bytes += note.rule.as_ref().map_or(0, |rule| rule.text.len());
        bytes += note.layout.as_ref().map_or(0, |layout| layout.pieces.len());
        notes.push(note);
        if bytes > BYTES_MAX {
            break;
        }
    }
    if notes.is_empty() {
        return Ok(None);
    }
    rows.truncate(notes.len());
    let first = ids::reserve(db, "change", notes.len() as u64)?;
    for (change, note) in (first..).zip(&mut notes) {
        note.change = change;
    }
    let last = first + notes.len() as u64 - 1;
    Ok(Some((Batch { rows, last }, notes)))
}

/// What an element is to know of an inode now.
fn note(db: &Connection, ino: u64, element: u32) -> Result<v1::NameNote, Fault> {
    if let Some(note) = noted::note(db, ino)? {
        return Ok(note);
    }
    let Some(node) = Node::find(db, ino)? else {
        let sql = "SELECT object FROM version WHERE ino = ?1 ORDER BY version DESC LIMIT 1";
        let mut statement = db.prepare_cached(sql)?;
        let last: Option<i64> = statement
            .query_row([ino.cast_signed()], |row| row.get(0))
            .optional()?;
        return Ok(v1::NameNote {
            ino,
            object: last.unwrap_or(0).cast_unsigned(),
            ..v1::NameNote::default()
        });
    };
    let (wanted, copied) = copies(db, node.object, element)?;
    let layout = layout(db, &node)?;
    let whole = node.object != 0 && !node.has_parts();
    let elsewhere = whole && node.element != i64::from(element) && !copied;
    let path = match node.object {
        0 => None,
        _ => path_of(db, ino)?,
    };
    let mut names = db.prepare_cached("SELECT parent, name FROM dirent WHERE ino = ?1")?;
    let places = names.query_map([ino.cast_signed()], |row| {
        Ok(v1::NamePlace {
            parent: row.get::<_, i64>(0)?.cast_unsigned(),
            name: row.get(1)?,
        })
    })?;
    let mut values = db.prepare_cached("SELECT name, value FROM xattr WHERE ino = ?1")?;
    let xattrs = values.query_map([ino.cast_signed()], |row| {
        Ok(v1::NameXattr {
            name: row.get(0)?,
            value: row.get(1)?,
        })
    })?;
    Ok(v1::NameNote {
        ino,
        change: 0,
        forget: elsewhere,
        kind: node.kind.into(),
        mode: node.mode,
        uid: node.uid,
        gid: node.gid,
        rdev: node.rdev,
        atime: node.atime,
        mtime: node.mtime,
        ctime: node.ctime,
        version: node.version,
        object: node.object,
        size: node.size,
        target: node.target,
        copies: wanted,
        layout,
        rule: None,
        path: path.unwrap_or_default(),
        places: places.collect::<Result<_, _>>()?,
        xattrs: xattrs.collect::<Result<_, _>>()?,
    })
}

/// What a version is made of that lies in several objects.
fn layout(db: &Connection, node: &Node) -> Result<Option<v1::Layout>, Fault> {
    let parts = match node.has_parts() {
        true => parts::parts(db, node.object)?,
        false => None,
    };
    let Some((unit, rows)) = parts else {
        return Ok(None);
    };
    let pieces = match unit {
        0 => together::pieces(db, node.object)?,
        _ => Vec::new(),
    };
    let part = |row: parts::Row| v1::LayoutPart {
        object: row.object,
        element: row.element,
        size: row.size.unwrap_or(0),
        capability: Vec::new(),
    };
    Ok(Some(v1::Layout {
        unit,
        parts: rows.into_iter().map(part).collect(),
        pieces,
    }))
}

/// How many copies there are to be of a version, and whether an element has one beside the first.
fn copies(db: &Connection, object: u64, element: u32) -> Result<(u32, bool), Fault> {
    let sql = "SELECT copies, EXISTS (SELECT 1 FROM copy WHERE object = ?1 AND element = ?2 AND state = ?3) \
               FROM version WHERE object = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let row = params![object.cast_signed(), element, CURRENT];
    let found = statement.query_row(row, |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(found.optional()?.unwrap_or((1, false)))
}
