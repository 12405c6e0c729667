//! Notes of the server about names: statements about inodes, stored in the node's database as a backup of the server's database.
//!
//! A note describes the node's object of a file, or an inode without an object: a directory, a link, an empty file. A note is removed
//! together with its object. A note that a file was removed stays as long as the object, so that recovery does not restore the file.
//!
//! A note also states the attributes of the objects of a file. After a note, only the server sets these attributes.

use crate::db::{Db, DbError};
use crate::records::{attribute, has_object, note_change, set_attribute};
use prost::Message as _;
use rusqlite::{Connection, Result, params};
use tidemill_model::attribute::{name, object};
use tidemill_model::display::escaped;
use tidemill_model::id::{Inode, ObjectId};
use tidemill_model::layout::PartOf;
use tidemill_wire::v1;

/// Maximum number of notes in a message that waits for the commit of another change.
const RIDING_MAX: usize = 64;

/// Urgency of the commit of a message with notes.
#[derive(Clone, Copy, Debug)]
pub struct Urgency {
    /// Number of notes in the message.
    pub count: usize,
    /// Whether the notes must survive power loss before the server learns that the node has stored them.
    pub durable: bool,
    /// Whether other work of the node waits for the notes.
    pub awaited: bool,
}

/// Stores the notes of a message with `put`, and calls `done` with the result. A few notes wait for the commit of another change. Many
/// notes, and notes for which other work waits, have a commit of their own.
pub fn keep<T: Send + 'static>(
    db: &Db,
    urgency: Urgency,
    put: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    done: impl FnOnce(std::result::Result<T, DbError>) + Send + 'static,
) {
    match urgency.awaited || urgency.count > RIDING_MAX {
        true => db.submit(urgency.durable, put, done),
        false => db.ride(urgency.durable, put, done),
    }
}

/// Stores notes, unless the database has a later note about the same inode. Returns the highest change number among the notes.
///
/// # Errors
/// SQLite returns an error.
pub fn put(connection: &Connection, notes: &[v1::NameNote]) -> Result<u64> {
    for note in notes {
        let id = ObjectId::of_inode(Inode(note.ino));
        if number(connection, id, name::PAGE, name::CHANGE)?
            .is_some_and(|known| known > note.change)
        {
            continue;
        }
        forget(connection, id)?;
        let about = ObjectId(note.object);
        let removed = note.places.is_empty() && note.ino != Inode::ROOT.0;
        let there = note.object != 0 && has_object(connection, about)?;
        if note.forget || (removed && !there) {
            continue;
        }
        let set = |number, value: &[u8]| set_attribute(connection, id, name::PAGE, number, value);
        set(name::CHANGE, &note.change.to_le_bytes())?;
        set(name::NOTE, &note.encode_to_vec())?;
        if note.object != 0 {
            set(name::OBJECT, &note.object.to_le_bytes())?;
        }
        match removed {
            // Another file may have the name by now.
            true => remove(connection, about, object::PATH)?,
            false => attest(connection, note)?,
        }
    }
    let highest = notes.iter().map(|note| note.change).max().unwrap_or(0);
    note_change(connection, highest)?;
    Ok(highest)
}

/// Returns the objects of the file that a note describes.
pub(crate) fn objects_of(note: &v1::NameNote) -> impl Iterator<Item = ObjectId> {
    let parts = note.layout.iter().flat_map(|layout| &layout.parts);
    let parts = parts.map(|part| part.object);
    let all = std::iter::once(note.object).chain(parts);
    all.filter(|&object| object != 0).map(ObjectId)
}

/// Records the attributes of a file's objects that a note states.
fn attest(connection: &Connection, note: &v1::NameNote) -> Result<()> {
    for about in objects_of(note) {
        if !has_object(connection, about)? {
            continue;
        }
        let set = |number, value: &[u8]| {
            if attribute(connection, about, object::PAGE, number)?.as_deref() == Some(value) {
                return Ok(());
            }
            set_attribute(connection, about, object::PAGE, number, value)
        };
        set(object::INODE, &note.ino.to_le_bytes())?;
        if !note.path.is_empty() {
            set(object::PATH, &note.path)?;
        }
        match part_of(note, about) {
            Some(part) => set(object::PART, &part.to_bytes())?,
            None => remove(connection, about, object::PART)?,
        }
        if attribute(connection, about, object::PAGE, object::UID)?.is_none() {
            set(object::UID, &u64::from(note.uid).to_le_bytes())?;
            set(object::GID, &u64::from(note.gid).to_le_bytes())?;
            set(object::MODE, &u64::from(note.mode & 0o7777).to_le_bytes())?;
        }
    }
    Ok(())
}

/// Returns the objects of a file whose lengths on this node differ from the lengths in the server's note, each with the reason. The writer
/// of such an object declared a false length when it sealed the file.
pub(crate) fn of_false_length(
    connection: &Connection,
    note: &v1::NameNote,
) -> Result<Vec<(ObjectId, String)>> {
    let mut found = Vec::new();
    // A note about a file that was removed or that is on other nodes has no length.
    if note.version == 0 || note.places.is_empty() || note.forget {
        return Ok(found);
    }
    for about in objects_of(note) {
        let size = match &note.layout {
            None => note.size,
            Some(layout) => match layout.parts.iter().find(|part| part.object == about.0) {
                // The extents may cover less than the whole part.
                Some(part) if layout.unit != 0 => part.size,
                _ => continue,
            },
        };
        let known = crate::records::sum(connection, about)?;
        if let Some(known) = known
            && known.size != size
            && known.corruption.is_none()
        {
            let what = format!(
                "has {} bytes, and was sealed as a file of {size}",
                known.size
            );
            found.push((about, what));
        }
    }
    Ok(found)
}

/// Checks, like [`of_false_length`], an object that was sealed after the note was received.
pub(crate) fn is_of_false_length(
    connection: &Connection,
    ino: u64,
    object: ObjectId,
) -> Result<Option<String>> {
    let Some(note) = noted(connection, ino)? else {
        return Ok(None);
    };
    let found = of_false_length(connection, &note)?;
    let mut found = found.into_iter().filter(|(about, _)| *about == object);
    Ok(found.next().map(|(_, what)| what))
}

fn noted(connection: &Connection, ino: u64) -> Result<Option<v1::NameNote>> {
    let note = attribute(
        connection,
        ObjectId::of_inode(Inode(ino)),
        name::PAGE,
        name::NOTE,
    )?;
    Ok(note.and_then(|note| v1::NameNote::decode(note.as_slice()).ok()))
}

/// Removes an attribute of an object's file from the object.
fn remove(connection: &Connection, id: ObjectId, number: u32) -> Result<()> {
    let sql = "DELETE FROM attribute WHERE object = ?1 AND page = ?2 AND number = ?3";
    let row = params![id.0.cast_signed(), object::PAGE, number];
    connection.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Returns the version that an object is a part of, according to a note.
fn part_of(note: &v1::NameNote, part: ObjectId) -> Option<PartOf> {
    let layout = note.layout.as_ref()?;
    let index = layout.parts.iter().position(|one| one.object == part.0)?;
    Some(PartOf {
        version: ObjectId(note.object),
        index: index as u64,
        width: layout.parts.len() as u64,
        unit: layout.unit,
    })
}

/// Returns the path of an object's file according to the server, and whether the object is a part of the file; `None` if the last note
/// about the file does not name the object.
///
/// # Errors
/// SQLite returns an error.
pub(crate) fn place_of(connection: &Connection, id: ObjectId) -> Result<Option<(String, bool)>> {
    // Only the note says which object is the file's.
    let Some(inode) = number(connection, id, object::PAGE, object::INODE)? else {
        return Ok(None);
    };
    let Some(note) = noted(connection, inode)? else {
        return Ok(None);
    };
    if note.places.is_empty() || !objects_of(&note).any(|about| about == id) {
        return Ok(None);
    }
    let part = part_of(&note, id).is_some();
    let path = Some(&note.path).filter(|path| !path.is_empty());
    Ok(path.map(|path| (escaped(path), part)))
}

/// Removes the notes about an object that is being removed. Must be called before the object's own attributes are removed.
///
/// # Errors
/// SQLite returns an error.
pub fn forget_with(connection: &Connection, removed: ObjectId) -> Result<()> {
    let Some(inode) = number(connection, removed, object::PAGE, object::INODE)? else {
        return Ok(());
    };
    let id = ObjectId::of_inode(Inode(inode));
    if number(connection, id, name::PAGE, name::OBJECT)? == Some(removed.0) {
        forget(connection, id)?;
    }
    Ok(())
}

fn forget(connection: &Connection, id: ObjectId) -> Result<()> {
    let sql = "DELETE FROM attribute WHERE object = ?1 AND page = ?2";
    connection
        .prepare_cached(sql)?
        .execute(params![id.0.cast_signed(), name::PAGE])?;
    Ok(())
}

fn number(connection: &Connection, id: ObjectId, page: u32, number: u32) -> Result<Option<u64>> {
    let value = attribute(connection, id, page, number)?;
    Ok(value
        .and_then(|value| value.try_into().ok())
        .map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{ObjectRecord, put_object, remove_object};
    use tidemill_model::label::Owner;
    use tidemill_model::time::Time;

    fn database() -> (tempfile::TempDir, Connection) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.db");
        crate::db::Db::open(&path).unwrap().stop();
        let connection = Connection::open(&path).unwrap();
        (directory, connection)
    }

    fn seal(connection: &Connection, id: u64, inode: u64) {
        let record = ObjectRecord {
            hash: None,
            memory: false,
            id: ObjectId(id),
            size: 1,
            owner: Owner { uid: 1, gid: 1 },
            inode,
            path: "/a".into(),
            mode: None,
            task: None,
            sealed_at: Time(1),
            part: None,
        };
        put_object(connection, &record).unwrap();
    }

    fn note(ino: u64, change: u64, object: u64, names: &[&str]) -> v1::NameNote {
        let place = |name: &&str| v1::NamePlace {
            parent: 1,
            name: name.as_bytes().to_vec(),
        };
        v1::NameNote {
            ino,
            change,
            object,
            places: names.iter().map(place).collect(),
            ..v1::NameNote::default()
        }
    }

    fn kept(connection: &Connection, ino: u64) -> Option<v1::NameNote> {
        let id = ObjectId::of_inode(Inode(ino));
        let value = attribute(connection, id, name::PAGE, name::NOTE).unwrap()?;
        Some(v1::NameNote::decode(value.as_slice()).unwrap())
    }

    #[test]
    fn object_path_is_known_after_note_of_server() {
        let (_directory, db) = database();
        let path = |id: u64| place_of(&db, ObjectId(id)).unwrap().map(|(path, _)| path);
        let noted = |change, object, path: &str| v1::NameNote {
            path: path.into(),
            mode: 0o640,
            ..note(7, change, object, &["a"])
        };
        seal(&db, 5, 7);
        assert_eq!(path(5), None, "only a task's label named it");
        put(&db, &[noted(1, 5, "/x/a")]).unwrap();
        assert_eq!(path(5).as_deref(), Some("/x/a"));
        put(&db, &[noted(2, 5, "/y/a")]).unwrap();
        assert_eq!(path(5).as_deref(), Some("/y/a"));
        // No note names object 6, though it was signed for the same inode.
        seal(&db, 6, 7);
        assert_eq!(path(6), None);
        put(&db, &[noted(3, 6, "/y/a")]).unwrap();
        assert_eq!((path(5), path(6).as_deref()), (None, Some("/y/a")));
        put(&db, &[note(7, 4, 6, &[])]).unwrap();
        assert_eq!(path(6).as_deref(), None, "it was removed");
    }

    #[test]
    fn note_sets_attributes_of_object_without_owner() {
        let (_directory, db) = database();
        for id in [5_u64, 6] {
            seal(&db, id, 3);
            let sql = "DELETE FROM attribute WHERE object = ?1 AND page = ?2 AND number = ?3";
            db.execute(sql, params![id.cast_signed(), object::PAGE, object::UID])
                .unwrap();
        }
        let part = |object| v1::LayoutPart {
            object,
            ..v1::LayoutPart::default()
        };
        let layout = v1::Layout {
            unit: 4096,
            parts: vec![part(5), part(6)],
            extents: Vec::new(),
        };
        assert_eq!(place_of(&db, ObjectId(6)).unwrap(), None);
        let noted = v1::NameNote {
            path: "/a".into(),
            uid: 71,
            gid: 72,
            mode: 0o600,
            layout: Some(layout),
            ..note(7, 1, 9, &["a"])
        };
        put(&db, &[noted]).unwrap();
        let value = |number| attribute(&db, ObjectId(6), object::PAGE, number).unwrap();
        for (number, expected) in [
            (object::INODE, 7),
            (object::UID, 71),
            (object::GID, 72),
            (object::MODE, 0o600_u64),
        ] {
            assert_eq!(value(number), Some(expected.to_le_bytes().to_vec()));
        }
        let of = PartOf {
            version: ObjectId(9),
            index: 1,
            width: 2,
            unit: 4096,
        };
        assert_eq!(value(object::PART), Some(of.to_bytes().to_vec()));
        let place = place_of(&db, ObjectId(6)).unwrap();
        assert_eq!(place, Some(("/a".into(), true)));
    }

    #[test]
    fn note_reports_object_whose_length_differs() {
        let (_directory, db) = database();
        seal(&db, 5, 7);
        let size = crate::records::sum(&db, ObjectId(5)).unwrap().unwrap().size;
        let noted = |size| v1::NameNote {
            size,
            version: 1,
            ..note(7, 1, 5, &["a"])
        };
        assert_eq!(of_false_length(&db, &noted(size)).unwrap(), []);
        // A file that was removed has no length; its object may still be read.
        let removed = v1::NameNote {
            version: 1,
            ..note(7, 1, 5, &[])
        };
        assert_eq!(of_false_length(&db, &removed).unwrap(), []);
        assert_eq!(of_false_length(&db, &note(7, 1, 5, &["a"])).unwrap(), []);
        let found = of_false_length(&db, &noted(1 << 62)).unwrap();
        assert_eq!(found.len(), 1);
        assert!(
            found[0].1.contains(&format!("has {size} bytes")),
            "{found:?}"
        );
        // An unsealed object is unknown. Once it is sealed, it is compared with the note.
        let late = v1::NameNote {
            size: size + 1,
            version: 1,
            ..note(8, 2, 6, &["b"])
        };
        assert_eq!(of_false_length(&db, &late).unwrap(), []);
        put(&db, &[late]).unwrap();
        seal(&db, 6, 8);
        assert!(is_of_false_length(&db, 8, ObjectId(6)).unwrap().is_some());
        assert_eq!(is_of_false_length(&db, 7, ObjectId(5)).unwrap(), None);
        // A part of a striped file has its own length.
        let part = |object, size| v1::LayoutPart {
            object,
            size,
            ..v1::LayoutPart::default()
        };
        for (unit, wrong) in [(4096, 1), (0, 0)] {
            let striped = v1::NameNote {
                layout: Some(v1::Layout {
                    unit,
                    parts: vec![part(5, size), part(6, size + 1)],
                    extents: Vec::new(),
                }),
                version: 1,
                ..note(9, 3, 10, &["c"])
            };
            assert_eq!(of_false_length(&db, &striped).unwrap().len(), wrong);
        }
    }

    /// An object was signed as a part of a version, and the server notes later that the object is a whole file.
    #[test]
    fn note_of_whole_object_removes_part_set_by_client() {
        let (_directory, db) = database();
        seal(&db, 5, 7);
        let part = PartOf {
            version: ObjectId(9),
            index: 0,
            width: 2,
            unit: 4096,
        };
        set_attribute(
            &db,
            ObjectId(5),
            object::PAGE,
            object::PART,
            &part.to_bytes(),
        )
        .unwrap();
        let noted = v1::NameNote {
            path: "/a".into(),
            ..note(7, 1, 5, &["a"])
        };
        put(&db, &[noted]).unwrap();
        let part = attribute(&db, ObjectId(5), object::PAGE, object::PART).unwrap();
        assert_eq!(part, None);
        let place = place_of(&db, ObjectId(5)).unwrap();
        assert_eq!(place, Some(("/a".into(), false)));
    }

    #[test]
    fn note_with_highest_change_wins() {
        let (_directory, db) = database();
        seal(&db, 5, 7);
        assert_eq!(
            put(&db, &[note(7, 3, 5, &["b"]), note(7, 2, 5, &["a"])]).unwrap(),
            3
        );
        assert_eq!(kept(&db, 7), Some(note(7, 3, 5, &["b"])));
        put(&db, &[note(7, 4, 5, &["c"])]).unwrap();
        assert_eq!(kept(&db, 7), Some(note(7, 4, 5, &["c"])));
    }

    #[test]
    fn note_is_removed_with_last_object_of_its_inode() {
        let (_directory, db) = database();
        for id in [5, 6] {
            seal(&db, id, 7);
        }
        put(&db, &[note(7, 1, 6, &["a"])]).unwrap();
        remove_object(&db, ObjectId(5)).unwrap();
        assert!(kept(&db, 7).is_some(), "it is about the later version");
        put(&db, &[note(7, 2, 6, &[])]).unwrap();
        assert_eq!(kept(&db, 7), Some(note(7, 2, 6, &[])));
        remove_object(&db, ObjectId(6)).unwrap();
        assert_eq!(kept(&db, 7), None);
        put(&db, &[note(7, 3, 6, &[])]).unwrap();
        assert_eq!(
            kept(&db, 7),
            None,
            "there is nothing left that it could bring back"
        );
        put(&db, &[note(8, 4, 0, &["directory"])]).unwrap();
        put(&db, &[note(8, 5, 0, &[])]).unwrap();
        assert_eq!(kept(&db, 8), None);
    }
}
