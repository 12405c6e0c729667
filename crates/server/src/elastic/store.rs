//! Stored states of nodes that are or were suspended, in the table `suspension`.

use crate::names::Fault;
use rusqlite::{Connection, params};
use tidemill_sched::elastic::Resumes;

/// Stored state of a node that is or was suspended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredElasticState {
    pub(crate) node: u32,
    pub(crate) suspended: bool,
    pub(crate) since: i64,
    pub(crate) resumes: Resumes,
}

/// Returns the stored states of all nodes.
pub(crate) fn all(db: &Connection) -> Result<Vec<StoredElasticState>, Fault> {
    let mut statement =
        db.prepare("SELECT node, suspended, since, resumes, resume_ns FROM suspension")?;
    let rows = statement.query_map([], |row| {
        Ok(StoredElasticState {
            node: row.get(0)?,
            suspended: row.get(1)?,
            since: row.get(2)?,
            resumes: Resumes {
                count: row.get::<_, i64>(3)?.cast_unsigned(),
                total_ns: row.get::<_, i64>(4)?.cast_unsigned(),
            },
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Stores whether a node is suspended, and the durations of its resumes so far.
pub(crate) fn keep(db: &Connection, kept: StoredElasticState) -> Result<(), Fault> {
    let sql = "INSERT INTO suspension(node, suspended, since, resumes, resume_ns) VALUES (?1, ?2, ?3, ?4, ?5) \
               ON CONFLICT DO UPDATE SET suspended = ?2, since = ?3, resumes = ?4, resume_ns = ?5";
    let (count, total) = (kept.resumes.count, kept.resumes.total_ns);
    let row = params![
        kept.node,
        kept.suspended,
        kept.since,
        count.cast_signed(),
        total.cast_signed()
    ];
    db.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Deletes the state of a node that was removed from the cluster.
pub(crate) fn forget(db: &Connection, node: u32) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM suspension WHERE node = ?1")?
        .execute([node])?;
    Ok(())
}
