//! Stored states of nodes that are or were suspended: the table `sleep`.

use crate::names::Fault;
use rusqlite::{Connection, params};
use tidemill_core::elastic::Wakes;

/// Stored state of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) node: u32,
    pub(crate) asleep: bool,
    pub(crate) since: i64,
    pub(crate) wakes: Wakes,
}

/// Returns all stored states.
pub(crate) fn all(db: &Connection) -> Result<Vec<Kept>, Fault> {
    let mut statement = db.prepare("SELECT node, asleep, since, wakes, wake_ns FROM sleep")?;
    let rows = statement.query_map([], |row| {
        Ok(Kept {
            node: row.get(0)?,
            asleep: row.get(1)?,
            since: row.get(2)?,
            wakes: Wakes {
                count: row.get::<_, i64>(3)?.cast_unsigned(),
                total_ns: row.get::<_, i64>(4)?.cast_unsigned(),
            },
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Stores whether a node is suspended, and the times that it took to wake.
pub(crate) fn keep(db: &Connection, kept: Kept) -> Result<(), Fault> {
    let sql = "INSERT INTO sleep(node, asleep, since, wakes, wake_ns) VALUES (?1, ?2, ?3, ?4, ?5) \
               ON CONFLICT DO UPDATE SET asleep = ?2, since = ?3, wakes = ?4, wake_ns = ?5";
    let (count, total) = (kept.wakes.count, kept.wakes.total_ns);
    let row = params![
        kept.node,
        kept.asleep,
        kept.since,
        count.cast_signed(),
        total.cast_signed()
    ];
    db.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Deletes the state of a node that was removed from the cluster.
pub(crate) fn forget(db: &Connection, node: u32) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM sleep WHERE node = ?1")?
        .execute([node])?;
    Ok(())
}
