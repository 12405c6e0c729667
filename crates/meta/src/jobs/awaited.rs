//! Files that jobs wait for.

use super::placed;
use crate::Connection;
use crate::Fault;
use crate::query::{execute, rows};
use rusqlite::params;
use std::collections::BTreeMap;
use tidemill_model::id::JobId;
use tidemill_model::object::Placed;

/// Records the paths of the files that a user's job waits for.
pub fn insert<'a>(
    db: &Connection,
    job: JobId,
    uid: u32,
    paths: impl Iterator<Item = &'a str>,
) -> Result<(), Fault> {
    let sql = "INSERT OR IGNORE INTO awaited(job, path, uid) VALUES (?1, ?2, ?3)";
    let mut insert = db.sql.prepare_cached(sql)?;
    for path in paths {
        insert.execute(params![job.0.cast_signed(), path, uid])?;
    }
    Ok(())
}

/// Returns the files that a job waited for and that exist now, with the versions that the job reads.
pub fn resolved_inputs(db: &Connection, job: JobId) -> Result<BTreeMap<String, Placed>, Fault> {
    let sql = "SELECT object, node, size, path FROM awaited WHERE job = ?1 AND object != -1";
    rows(db, sql, [job.0.cast_signed()], |row| {
        Ok((row.get(3)?, placed(row)?))
    })
}

/// Records the version of an awaited file that the jobs of a user will read.
pub fn resolve(
    db: &Connection,
    uid: u32,
    path: &str,
    Placed { object, node, size }: Placed,
) -> Result<(), Fault> {
    let sql = "UPDATE awaited SET object = ?3, node = ?4, size = ?5 WHERE uid = ?1 AND path = ?2 AND object = -1";
    let (object, size) = (object.0.cast_signed(), size.cast_signed());
    execute(db, sql, params![uid, path, object, node.0, size])
}
