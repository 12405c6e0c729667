//! Sends elements the namespace's facts about inodes, so that a lost database can be rebuilt from them. Next: `element/src`, which stores
//! the notes.
//!
//! Each change of an inode only writes a row in the table `note` in its own transaction. This module processes the rows in the
//! background, one batch per element at a time: it reads, numbers and sends them, and removes them when the element has stored them. A
//! row that was changed in the meantime stays.

use crate::array::Array;
use crate::names::Fault;
use crate::names::commit::Database;
use crate::names::notes::{self, Batch};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1::{self, to_element::Message as To};
use tokio::sync::Notify;

/// Interval in which rows are looked for. A second change of the same inode within this time costs nothing.
const PERIOD: Duration = Duration::from_millis(500);

/// Last change that each element has stored, by connection.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    last: Mutex<BTreeMap<u32, (u64, u64)>>,
    news: Notify,
}

impl Noted {
    /// Records that an element has stored notes up to this change.
    pub(crate) fn on_noted(&self, element: u32, epoch: u64, change: u64) {
        self.last.lock().insert(element, (epoch, change));
        self.news.notify_one();
    }

    fn has(&self, sent: &Sent, element: u32) -> bool {
        let last = self.last.lock().get(&element).copied();
        last.is_some_and(|(epoch, change)| epoch == sent.epoch && change >= sent.batch.last)
    }
}

/// A sent batch.
#[derive(Debug)]
struct Sent {
    epoch: u64,
    batch: Batch,
}

/// Sends notes to elements as long as the server runs.
pub(crate) async fn run(database: Arc<Database>, array: Arc<Array>) {
    let mut sent = BTreeMap::new();
    loop {
        let pause = tokio::time::timeout(PERIOD, array.noted().news.notified());
        if pause.await.is_err() {
            // Rows for all elements are spread here, so that a busy namespace collects many first.
            if let Err(fault) = spread(&database).await {
                fault.put_off("notes about names are put off");
            }
        }
        for element in array.up() {
            if let Err(fault) = one_element(&database, &array, element, &mut sent).await {
                fault.put_off("notes about names are put off");
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

async fn one_element(
    database: &Database,
    array: &Array,
    element: u32,
    sent: &mut BTreeMap<u32, Sent>,
) -> Result<(), Fault> {
    let Some(epoch) = array.epoch(element) else {
        return Ok(());
    };
    let done = match sent.remove(&element) {
        Some(before) if array.noted().has(&before, element) => before.batch.rows,
        Some(before) if before.epoch == epoch => {
            sent.insert(element, before);
            return Ok(());
        }
        // The batch was lost with its connection, but its rows are still in the table.
        _ => Vec::new(),
    };
    if done.is_empty() && !database.read(|db| notes::waiting(db, element))? {
        return Ok(());
    }
    let next = move |db: &rusqlite::Connection| {
        notes::done(db, element, &done)?;
        notes::take(db, element)
    };
    let Some((batch, notes)) = database.write(next).await? else {
        return Ok(());
    };
    if array.send(element, To::Notes(v1::NameNotes { notes })) {
        sent.insert(element, Sent { epoch, batch });
    }
    Ok(())
}
