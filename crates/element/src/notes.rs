//! Notes about names: what the server says of inodes, kept for the day its database is lost.
//!
//! A note is about the object that the element has of a file, or about what has no object: a folder, a link, an empty
//! file. It goes with its object. One that says that a file was removed stays as long as the object, so that a rebuilt
//! namespace does not bring it back.

use crate::records::{attribute, has_object, set_attribute};
use prost::Message as _;
use rusqlite::{Connection, Result, params};
use tidemill_core::attribute::{name, object};
use tidemill_core::id::{Inode, ObjectId};
use tidemill_wire::v1;

/// Keeps notes, unless a later one is known; gives the highest change among them.
///
/// # Errors
/// If SQLite refuses.
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
    }
    Ok(notes.iter().map(|note| note.change).max().unwrap_or(0))
}

/// An object is removed: what was noted about it goes. To be called while its own attributes are there.
///
/// # Errors
/// If SQLite refuses.
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
    use tidemill_core::label::Owner;
    use tidemill_core::time::Time;

    fn database() -> (tempfile::TempDir, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("element.db");
        crate::db::Db::open(&path).unwrap().stop();
        let connection = Connection::open(&path).unwrap();
        (folder, connection)
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
    fn the_highest_change_holds() {
        let (_folder, db) = database();
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
    fn a_note_goes_with_its_object_and_a_removal_is_known_as_long_as_that_is_there() {
        let (_folder, db) = database();
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
        put(&db, &[note(8, 4, 0, &["folder"])]).unwrap();
        put(&db, &[note(8, 5, 0, &[])]).unwrap();
        assert_eq!(kept(&db, 8), None);
    }
}
