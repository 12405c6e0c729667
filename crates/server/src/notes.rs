//! Sends nodes the facts of the namespace about inodes, so that a lost server database can be recovered from the nodes. Next: `node/src`,
//! which stores the notes.
//!
//! Each change of an inode only writes a row in the table `note` in its own transaction. This module processes the rows in the background,
//! one batch per node at a time: it reads the rows, numbers and sends the notes, and deletes the rows when the node has stored the notes. A
//! row that was changed in the meantime stays.

use crate::cluster::Cluster;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::notes::{self, NoteRows};
use tidemill_meta::{Connection, Fault};
use tidemill_wire::v1::{self, to_node::Message as To};
use tokio::sync::Notify;

/// Interval at which the server looks for rows of notes. A second change of the same inode within the interval causes no second note.
const PERIOD: Duration = Duration::from_millis(500);

/// Number of the last change that each node has stored, by the node's connection.
#[derive(Debug, Default)]
pub(crate) struct NotedChanges {
    last: Mutex<BTreeMap<u32, (u64, u64)>>,
    news: Notify,
}

impl NotedChanges {
    /// Records that a node has stored the notes up to this change.
    pub(crate) fn on_noted(&self, node: u32, epoch: u64, change: u64) {
        self.last.lock().insert(node, (epoch, change));
        self.news.notify_one();
    }

    fn has(&self, sent: &SentBatch, node: u32) -> bool {
        let last = self.last.lock().get(&node).copied();
        last.is_some_and(|(epoch, change)| epoch == sent.epoch && change >= sent.batch.last)
    }
}

/// A batch of notes that was sent to a node and is not confirmed yet.
#[derive(Debug)]
struct SentBatch {
    epoch: u64,
    batch: NoteRows,
}

/// Sends notes to nodes as long as the server runs.
pub(crate) async fn run(database: Arc<Database>, cluster: Arc<Cluster>) {
    let mut sent = BTreeMap::new();
    loop {
        let pause = tokio::time::timeout(PERIOD, cluster.noted().news.notified());
        if pause.await.is_err() {
            // Rows for all nodes are spread here, so that a busy namespace collects many first.
            if let Err(fault) = spread(&database).await {
                fault.log_delay("notes about names are postponed");
            }
        }
        for node in cluster.up() {
            if let Err(fault) = one_node(&database, &cluster, node, &mut sent).await {
                fault.log_delay("notes about names are postponed");
            }
        }
    }
}

async fn spread(database: &Database) -> Result<(), Fault> {
    if database.read(notes::waiting_for_all)? {
        database.write(notes::spread).await?;
    }
    Ok(())
}

async fn one_node(
    database: &Database,
    cluster: &Cluster,
    node: u32,
    sent: &mut BTreeMap<u32, SentBatch>,
) -> Result<(), Fault> {
    let Some(epoch) = cluster.epoch(node) else {
        return Ok(());
    };
    let done = match sent.remove(&node) {
        Some(before) if cluster.noted().has(&before, node) => before.batch.rows,
        Some(before) if before.epoch == epoch => {
            sent.insert(node, before);
            return Ok(());
        }
        // The batch was lost with its connection, but its rows are still in the table.
        _ => Vec::new(),
    };
    if done.is_empty() && !database.read(|db| notes::waiting(db, node))? {
        return Ok(());
    }
    let next = move |db: &Connection| {
        notes::done(db, node, &done)?;
        notes::take(db, node)
    };
    let Some((batch, notes)) = database.write(next).await? else {
        return Ok(());
    };
    if cluster.send(node, To::Notes(v1::NameNotes { notes })) {
        sent.insert(node, SentBatch { epoch, batch });
    }
    Ok(())
}
