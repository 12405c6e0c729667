//! Walks along the directory tree: from an inode up to the root, and from a directory down a path. Each walk is one SQL statement, however
//! deep the directory is.

use super::attribute::{
    DIRECTORY_DURABLE, DIRECTORY_NODE, DIRECTORY_REPLICAS, DIRECTORY_STRIPES, DIRECTORY_TIER, WAIT,
};
use super::fault::Fault;
use super::transaction::DEPTH_MAX;
use super::vnode::{InodeRecord, select_vnodes};
use crate::Connection;
use rusqlite::params;
use tidemill_model::id::Inode;

const ROOT: i64 = Inode::ROOT.0.cast_signed();
/// Maximum number of rows of a walk towards the root: an inode and the directories above it.
const ROWS_MAX: u32 = DEPTH_MAX + 1;

/// Calls `visit` with the record of an inode, and then with the record of each directory above it up to the root, until `visit` returns
/// `false`. For a file with several names, the walk follows one of the names.
pub(super) fn upward(
    db: &Connection,
    ino: u64,
    mut visit: impl FnMut(InodeRecord) -> Result<bool, Fault>,
) -> Result<(), Fault> {
    let mut statement = db.sql.prepare_cached(select_vnodes!(
        "FROM (WITH RECURSIVE up AS (SELECT * FROM inode WHERE ino = ?1 UNION ALL SELECT inode.* FROM up \
         CROSS JOIN inode ON inode.ino = CASE up.parent WHEN 0 THEN (SELECT parent FROM dirent WHERE dirent.ino = up.ino LIMIT 1) \
         ELSE up.parent END WHERE up.ino != ?2 LIMIT ?3) SELECT * FROM up) AS inode"
    ))?;
    let mut rows = statement.query(params![ino.cast_signed(), ROOT, ROWS_MAX])?;
    while let Some(row) = rows.next()? {
        if !visit(InodeRecord::from_row(row)?)? {
            break;
        }
    }
    Ok(())
}

/// Returns the record of a directory and of the entries along a path below it, up to the first name that does not exist.
pub(super) fn downward(
    db: &Connection,
    directory: u64,
    names: &[&[u8]],
) -> Result<Vec<InodeRecord>, Fault> {
    let mut statement = db.sql.prepare_cached(select_vnodes!(
        "FROM (WITH RECURSIVE down(ino, rest) AS (VALUES (?1, ?2) UNION ALL \
         SELECT dirent.ino, substr(rest, instr(rest, x'2f') + 1) FROM down \
         CROSS JOIN dirent ON dirent.parent = down.ino AND name = substr(rest, 1, instr(rest, x'2f') - 1) WHERE rest != x'') \
         SELECT ino FROM down) AS walk CROSS JOIN inode ON inode.ino = walk.ino"
    ))?;
    let mut path = Vec::new();
    for name in names {
        path.extend_from_slice(name);
        path.push(b'/');
    }
    let row = params![directory.cast_signed(), path];
    let rows = statement.query_map(row, InodeRecord::from_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the present path of an inode: any of its paths for a file with several names; `None` if the inode has no name.
pub fn path_of(db: &Connection, ino: u64) -> Result<Option<Vec<u8>>, Fault> {
    if ino == Inode::ROOT.0 {
        return Ok(Some(b"/".to_vec()));
    }
    let sql = "WITH RECURSIVE up(parent, name) AS (SELECT * FROM (SELECT parent, name FROM dirent WHERE ino = ?1 LIMIT 1) \
               UNION ALL SELECT dirent.parent, dirent.name FROM up CROSS JOIN dirent ON dirent.ino = up.parent \
               WHERE up.parent != ?2 LIMIT ?3) SELECT parent, name FROM up";
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut rows = statement.query(params![ino.cast_signed(), ROOT, DEPTH_MAX])?;
    let (mut names, mut top) = (Vec::<Vec<u8>>::new(), None);
    while let Some(row) = rows.next()? {
        top = Some(row.get(0)?);
        names.push(row.get(1)?);
    }
    let below_root = top == Some(ROOT);
    Ok(below_root.then(|| {
        let names = names.iter().rev();
        names
            .flat_map(|name| [b"/", name.as_slice()].concat())
            .collect()
    }))
}

/// Attributes of a directory that apply to the files below it, each from the directory itself or its nearest ancestor with the attribute.
#[derive(Clone, Debug, Default)]
pub(super) struct Inherited {
    values: Vec<(Vec<u8>, Vec<u8>)>,
    /// Number of directories up to the root.
    pub(super) directories: u64,
}

impl Inherited {
    pub(super) fn of(db: &Connection, directory: u64) -> Result<Self, Fault> {
        let sql = "WITH RECURSIVE up(ino, parent) AS (SELECT ino, parent FROM inode WHERE ino = ?1 \
                   UNION ALL SELECT inode.ino, inode.parent FROM up CROSS JOIN inode ON inode.ino = up.parent \
                   WHERE up.ino != ?2 LIMIT ?3) \
                   SELECT up.ino, name, value FROM up LEFT JOIN xattr ON xattr.ino = up.ino AND name IN (?4, ?5, ?6, ?7, ?8, ?9)";
        let mut statement = db.sql.prepare_cached(sql)?;
        let mut rows = statement.query(params![
            directory.cast_signed(),
            ROOT,
            DEPTH_MAX,
            DIRECTORY_NODE,
            DIRECTORY_REPLICAS,
            DIRECTORY_STRIPES,
            DIRECTORY_TIER,
            DIRECTORY_DURABLE,
            WAIT,
        ])?;
        let (mut found, mut last) = (Self::default(), None::<i64>);
        while let Some(row) = rows.next()? {
            let ino = row.get(0)?;
            found.directories += u64::from(last.replace(ino) != Some(ino));
            let name: Option<Vec<u8>> = row.get(1)?;
            if let Some(name) = name.filter(|name| found.get(name).is_none()) {
                found.values.push((name, row.get(2)?));
            }
        }
        Ok(found)
    }

    /// Returns the value of an attribute.
    pub(super) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let mut values = self.values.iter();
        let found = values.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_slice())
    }
}

#[cfg(test)]
mod tests;
