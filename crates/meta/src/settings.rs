//! Settings of the cluster and the mounts that may have locks.

use super::fault::Fault;
use crate::Connection;
use crate::query::{execute, find};
use rusqlite::params;
use tidemill_wire::capability::CapabilityKey;

/// Name of the setting with the time of the recovery of this database, and whether the recovered database was incomplete.
const REBUILT: &str = "rebuilt";
/// Name of the setting with the number of the last term of the log.
const TERM: &str = "log_term";
/// Name of the setting with the terms and ids of the logs, and maximum number of logs.
const LOGS: &str = "logs";
const LOGS_MAX: usize = 4096;
/// Name of the setting with the sessions of the mounts that may have locks.
const LOCKERS: &str = "lockers";

/// Returns the value of a setting.
pub fn get(db: &Connection, name: &str) -> Result<Option<Vec<u8>>, Fault> {
    let sql = "SELECT value FROM setting WHERE name = ?1";
    find(db, sql, [name], |row| row.get(0))
}

/// Stores the value of a setting.
pub fn set(db: &Connection, name: &str, value: &[u8]) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO setting VALUES (?1, ?2)";
    execute(db, sql, params![name, value])
}

/// Stores the key for capabilities and the id of a new or recovered cluster.
pub fn insert_identity(db: &Connection, key: &[u8], cluster: &[u8]) -> Result<(), Fault> {
    set(db, "key", key)?;
    set(db, "cluster_id", cluster)
}

/// Returns the key for capabilities.
pub fn key(db: &Connection) -> Result<CapabilityKey, Fault> {
    let key = get(db, "key")?.unwrap_or_default();
    CapabilityKey::from_slice(&key).map_err(|_| Fault::Malformed("the cluster's key is corrupt"))
}

/// Returns the cluster's id, which was created with the cluster.
pub fn cluster_id(db: &Connection) -> Result<u64, Fault> {
    get(db, "cluster_id")?
        .and_then(|bytes| bytes.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or(Fault::Malformed("the cluster's id is corrupt"))
}

/// Begins a log with the next term above `above`, and returns the term. Each start of a server is a term.
pub fn begin_log(db: &Connection, above: u64, id: u32) -> Result<u64, Fault> {
    let term = above.max(last_term(db)?) + 1;
    set(db, TERM, &term.to_le_bytes())?;
    add_logs(db, &[(term, id)])?;
    Ok(term)
}

/// Raises the number of the last term of the log, so that the next term is above all terms that have files.
pub fn raise_term(db: &Connection, last: u64) -> Result<(), Fault> {
    let last = last.max(last_term(db)?);
    set(db, TERM, &last.to_le_bytes())
}

fn last_term(db: &Connection) -> Result<u64, Fault> {
    let last = get(db, TERM)?.and_then(|bytes| bytes.try_into().ok());
    Ok(last.map_or(0, u64::from_le_bytes))
}

/// Returns the terms and ids of the last logs that belong to this database.
pub fn logs(db: &Connection) -> Result<Vec<(u64, u32)>, Fault> {
    let logs = get(db, LOGS)?.unwrap_or_default();
    let (logs, _) = logs.as_chunks::<12>();
    let log = |bytes: &[u8; 12]| {
        let (term, id) = bytes.split_first_chunk()?;
        Some((
            u64::from_le_bytes(*term),
            u32::from_le_bytes(id.try_into().ok()?),
        ))
    };
    Ok(logs.iter().filter_map(log).collect())
}

/// Records that logs belong to this database, whether it continues them or replaces them.
pub fn add_logs(db: &Connection, new: &[(u64, u32)]) -> Result<(), Fault> {
    let mut all = logs(db)?;
    all.retain(|log| !new.contains(log));
    all.extend(new);
    let old = all.len().saturating_sub(LOGS_MAX);
    let bytes = |(term, id): &(u64, u32)| [&term.to_le_bytes()[..], &id.to_le_bytes()].concat();
    let logs: Vec<u8> = all[old..].iter().flat_map(bytes).collect();
    set(db, LOGS, &logs)
}

/// Completeness of a recovered database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuilt {
    /// Everything was found.
    Complete,
    /// Something was not found.
    Incomplete,
    /// The state that was asked for was found, but nodes have objects that belong to no file in it.
    WithOrphans,
}

/// Records that this database was recovered, and whether the result was complete.
pub fn set_rebuilt(db: &Connection, at: i64, how: Rebuilt) -> Result<(), Fault> {
    let mut value = at.to_le_bytes().to_vec();
    value.push(how as u8);
    set(db, REBUILT, &value)
}

/// Returns the time at which the database was recovered, and whether the result was complete; `None` if it was never recovered.
pub fn rebuilt(db: &Connection) -> Result<Option<(i64, Rebuilt)>, Fault> {
    let at = |value: &[u8]| {
        let how = match value.last() {
            Some(1) => Rebuilt::Incomplete,
            Some(2) => Rebuilt::WithOrphans,
            _ => Rebuilt::Complete,
        };
        Some((i64::from_le_bytes(*value.first_chunk()?), how))
    };
    Ok(get(db, REBUILT)?.as_deref().and_then(at))
}

/// Returns the sessions of mounts that may have locks.
pub fn lockers(db: &Connection) -> Result<Vec<u64>, Fault> {
    let sessions = get(db, LOCKERS)?.unwrap_or_default();
    let (sessions, _) = sessions.as_chunks();
    Ok(sessions.iter().copied().map(u64::from_le_bytes).collect())
}

/// Records whether a mount may have locks from now on.
pub fn set_locker(db: &Connection, session: u64, has: bool) -> Result<(), Fault> {
    let mut sessions = lockers(db)?;
    sessions.retain(|one| *one != session);
    sessions.extend(has.then_some(session));
    let sessions: Vec<u8> = sessions.into_iter().flat_map(u64::to_le_bytes).collect();
    set(db, LOCKERS, &sessions)
}
