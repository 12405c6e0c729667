//! Status of the nodes at the start of each job.

use crate::Connection;
use crate::Fault;
use crate::query::execute;
use prost::Message;
use rusqlite::params;
use tidemill_model::id::JobId;
use tidemill_wire::v1;

/// Stores the status of nodes at the start of a job.
pub fn put(db: &Connection, job: JobId, nodes: &[v1::Node]) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO job_node(job, node, status) VALUES (?1, ?2, ?3)";
    let mut insert = db.sql.prepare_cached(sql)?;
    for node in nodes {
        insert.execute(params![
            job.0.cast_signed(),
            node.node,
            node.encode_to_vec()
        ])?;
    }
    Ok(())
}

/// Returns the status of nodes at the start of a job, in the order of their ids.
pub fn of_job(db: &Connection, job: JobId) -> Result<Vec<v1::Node>, Fault> {
    let sql = "SELECT status FROM job_node WHERE job = ?1 ORDER BY node";
    let mut statement = db.sql.prepare_cached(sql)?;
    let rows = statement.query_map([job.0.cast_signed()], |row| row.get::<_, Vec<u8>>(0))?;
    let mut nodes = Vec::new();
    for row in rows {
        let status = v1::Node::decode(row?.as_slice())
            .map_err(|error| Fault::Corrupt(format!("nodes of job {job}: {error}")))?;
        nodes.push(status);
    }
    Ok(nodes)
}

/// Deletes the status of nodes at the start of a job.
pub fn delete(db: &Connection, job: JobId) -> Result<(), Fault> {
    let sql = "DELETE FROM job_node WHERE job = ?1";
    execute(db, sql, [job.0.cast_signed()])
}
