//! Objects that nodes hold according to the namespace, to be compared with the nodes' real content. This module records unknown objects for
//! removal (next: `server/src/removal.rs`).

use super::fault::Fault;
use super::placement::replicas;
use super::shared::NamesShared;
use super::transaction::Tx;
use super::vnode::Caller;
use crate::Connection;
use crate::jobs::outbox;
use crate::query::unsigned;
use rusqlite::params;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_wire::v1::Kind;

/// The sealed version of a file, as a check of nodes needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedVersion {
    /// Inode of the file that has the version.
    pub ino: u64,
    /// Number of bytes of the object: the whole version, or the part of the version that the object stores.
    pub size: u64,
    /// Numeric ids of the user and the group that own the file at present.
    pub owner: (u32, u32),
    /// Present permission bits of the file, with setuid, setgid and sticky but without the kind.
    pub mode: u32,
}

/// Returns the objects of a node that are the sealed versions of files.
pub fn of_node(db: &Connection, node: u32) -> Result<BTreeMap<u64, SealedVersion>, Fault> {
    let sql = "SELECT object, ino, size, uid, gid, mode FROM inode WHERE node = ?1 AND object != 0 AND kind = ?2 \
               UNION ALL SELECT part.part, inode.ino, part.size, inode.uid, inode.gid, inode.mode FROM part \
               CROSS JOIN version ON version.object = part.object \
               CROSS JOIN inode ON inode.ino = version.ino AND inode.object = part.object WHERE part.node = ?1 \
               UNION ALL SELECT replica.object, inode.ino, held.size, inode.uid, inode.gid, inode.mode FROM replica \
               CROSS JOIN held ON held.object = replica.object \
               CROSS JOIN inode ON inode.ino = held.ino AND inode.object = held.version \
               WHERE want != 2 AND replica.node = ?1 AND replica.state >= 2 AND held.node != ?1";
    let mut statement = db.sql.prepare(sql)?;
    let rows = statement.query_map(params![node, Kind::File as i32], |row| {
        let held = SealedVersion {
            ino: unsigned(row, 1)?,
            size: unsigned(row, 2)?,
            owner: (row.get(3)?, row.get(4)?),
            mode: row.get(5)?,
        };
        Ok((unsigned(row, 0)?, held))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the objects of the file at a path, or of all files below the directory at the path.
pub fn objects_below(
    db: &Connection,
    shared: &NamesShared,
    path: &[u8],
) -> Result<BTreeSet<u64>, Fault> {
    let root = Caller::root();
    let top = Tx::new(db, shared, &root, 0, 0).resolve(path, true)?;
    let mut objects = BTreeSet::new();
    let mut directories = Vec::new();
    let mut take = |ino: u64, kind: i32, object: u64, directories: &mut Vec<u64>| {
        if kind == Kind::Directory as i32 {
            directories.push(ino);
        } else if object != 0 {
            objects.insert(object);
        }
    };
    take(top.ino, top.kind as i32, top.object, &mut directories);
    let sql = "SELECT inode.ino, kind, object FROM dirent CROSS JOIN inode ON inode.ino = dirent.ino \
               WHERE dirent.parent = ?1";
    let mut statement = db.sql.prepare_cached(sql)?;
    while let Some(directory) = directories.pop() {
        let mut rows = statement.query([directory.cast_signed()])?;
        while let Some(row) = rows.next()? {
            let number = |column| unsigned(row, column);
            take(number(0)?, row.get(1)?, number(2)?, &mut directories);
        }
    }
    Ok(objects)
}

/// Returns the objects of a node that the namespace does not know: objects without a version, writer, label or pending removal.
pub fn unknown(
    db: &Connection,
    shared: &NamesShared,
    node: u32,
    objects: &[u64],
) -> Result<BTreeSet<u64>, Fault> {
    let mut unknown = BTreeSet::new();
    if objects.is_empty() {
        return Ok(unknown);
    }
    let outputs = outputs(db)?;
    let to_be_made = |object: u64| {
        let before = outputs.range(..=object).next_back();
        before.is_some_and(|(_, &end)| object < end)
    };
    let mut known = db.sql.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM version WHERE object = ?1 AND removed = 0 AND (replicas = 1 OR node = ?2))
             OR EXISTS (SELECT 1 FROM part WHERE part = ?1 AND node = ?2)
             OR EXISTS (SELECT 1 FROM replica WHERE object = ?1 AND node = ?2 AND state > 0)
             OR EXISTS (SELECT 1 FROM writing WHERE object = ?1)",
    )?;
    for &object in objects {
        let listed: bool =
            known.query_row(params![object.cast_signed(), node], |row| row.get(0))?;
        if !listed && !to_be_made(object) && !shared.object_held(object) {
            unknown.insert(object);
        }
    }
    Ok(unknown)
}

/// Returns the object ids that unfinished labels may create, as ranges of start and end.
fn outputs(db: &Connection) -> Result<BTreeMap<u64, u64>, Fault> {
    let labels = outbox::of(db, None)?.into_iter();
    let made = labels.flat_map(|(_, label)| label.operation.makes());
    Ok(made.map(|range| (range.start, range.end)).collect())
}

/// Schedules the removal, at time `at`, of those objects of a node that the namespace does not know. Returns these objects.
pub fn remove_unknown(
    db: &Connection,
    shared: &NamesShared,
    node: u32,
    objects: &[u64],
    at: i64,
) -> Result<BTreeSet<u64>, Fault> {
    let unknown = unknown(db, shared, node, objects)?;
    let held = of_node(db, node)?;
    for &object in &unknown {
        // A version's row may be lost or corrupt; the file's bytes must survive that.
        if !held.contains_key(&object) {
            replicas::remove_replica(db, object, node, at)?;
        }
    }
    Ok(unknown)
}
