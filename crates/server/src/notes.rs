//! Sends nodes the facts of the namespace about inodes, so that a lost server database can be recovered from the nodes. Next: `node/src`,
//! which stores the notes.
//!
//! Each change of an inode only writes a row in the table `note` in its own transaction. This module processes the rows in the background,
//! one batch per node at a time: it reads the rows, numbers and sends the notes, and deletes the rows when the node has stored the notes. A
//! row that was changed in the meantime stays. Neither the numbers nor the deletion need a transaction of their own: the numbers come from
//! a reserved block, and the deletion is part of the next transaction. If there is none for some seconds, the rows get one. A restarted
//! server sends the notes of rows that remain again.

use crate::chores::{Chore, Due, Step};
use crate::cluster::Cluster;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::commit::Database;
use tidemill_meta::notes::{self, NextNotes, NoteRows};
use tidemill_meta::wakes::{COMMIT, NODES, NOTED, Wakes};
use tidemill_meta::{Connection, Fault};
use tidemill_model::timers::Signals;
use tidemill_wire::v1::{self, to_node::Message as To};

/// Time for which the first change waits for others, so that a busy namespace collects many. A second change of the same inode within
/// this time causes no second note.
const GATHER_NS: i64 = 500_000_000;
/// Number of rows of confirmed notes to one node that wait for no other transaction, and (`CONFIRMED_NS`) the longest time for which rows
/// wait for another transaction.
const CONFIRMED_MAX: usize = 1000;
const CONFIRMED_NS: i64 = 5_000_000_000;
/// Shortest time between two looks at the rows.
const REST: Duration = Duration::from_millis(50);

/// Number of the last change that each node has stored, by the node's connection.
#[derive(Debug)]
pub(crate) struct NotedChanges {
    last: Mutex<BTreeMap<u32, (u64, u64)>>,
    wakes: Arc<Wakes>,
}

impl NotedChanges {
    pub(crate) fn new(wakes: Arc<Wakes>) -> Self {
        Self {
            last: Mutex::default(),
            wakes,
        }
    }

    /// Records that a node has stored the notes up to this change.
    pub(crate) fn on_noted(&self, node: u32, epoch: u64, change: u64) {
        self.last.lock().insert(node, (epoch, change));
        self.wakes.wake(NOTED);
    }

    fn has(&self, sent: &SentBatch, node: u32) -> bool {
        let last = self.last.lock().get(&node).copied();
        last.is_some_and(|(epoch, change)| epoch == sent.epoch && change >= sent.last)
    }
}

/// A batch of notes that was sent to a node and is not confirmed yet.
#[derive(Debug)]
struct SentBatch {
    epoch: u64,
    rows: NoteRows,
    /// Highest number in the batch.
    last: u64,
}

/// Notes to one node.
#[derive(Debug, Default)]
struct NodeNotes {
    sent: Option<SentBatch>,
    /// Rows of confirmed notes that the next transaction deletes.
    confirmed: Arc<Mutex<NoteRows>>,
    /// Number of commits before a look that found no notes.
    looked: Option<u64>,
}

impl NodeNotes {
    /// Deletes the rows of confirmed notes with the next transaction.
    fn delete(&self, database: &Database, node: u32, rows: NoteRows) {
        self.confirmed.lock().extend(&rows);
        let (confirmed, deleted) = (self.confirmed.clone(), rows.clone());
        let done = move || {
            let mut confirmed = confirmed.lock();
            confirmed.retain(|ino, changes| deleted.get(ino) != Some(changes));
        };
        database.ride(move |db| notes::done(db, node, &rows), done);
    }
}

/// Sends notes to nodes.
pub(crate) struct NameNotes {
    database: Arc<Database>,
    cluster: Arc<Cluster>,
    nodes: BTreeMap<u32, NodeNotes>,
    /// Reserved numbers of notes.
    numbers: Range<u64>,
    /// Time at which rows were first seen that wait for others.
    gathers: Option<i64>,
    /// Nodes that are due: their rows have waited long enough, or they have confirmed a batch.
    due: Vec<u32>,
    /// Whether rows for all nodes are due.
    for_all: bool,
    /// Time at which rows of confirmed notes began to wait for another transaction.
    confirmed_since: Option<i64>,
}

impl NameNotes {
    pub(crate) fn new(database: &Arc<Database>, cluster: &Arc<Cluster>) -> Self {
        Self {
            database: database.clone(),
            cluster: cluster.clone(),
            nodes: BTreeMap::new(),
            numbers: 0..0,
            gathers: None,
            due: Vec::new(),
            for_all: false,
            confirmed_since: None,
        }
    }

    /// Returns the time at which the rows of confirmed notes are deleted without another transaction; `None` if there are no such rows.
    fn confirmed_until(&mut self, now: i64) -> Option<i64> {
        let any = |of: &NodeNotes| !of.confirmed.lock().is_empty();
        if !self.nodes.values().any(any) {
            self.confirmed_since = None;
            return None;
        }
        // The clock may have been set back.
        let since = self.confirmed_since.filter(|since| *since <= now);
        let since = *self.confirmed_since.insert(since.unwrap_or(now));
        Some(since.saturating_add(CONFIRMED_NS))
    }

    async fn one_node(&mut self, node: u32) -> Result<(), Fault> {
        let Some(epoch) = self.cluster.epoch(node) else {
            return Ok(());
        };
        let of = self.nodes.entry(node).or_default();
        match of.sent.take() {
            Some(sent) if self.cluster.noted().has(&sent, node) => {
                of.delete(&self.database, node, sent.rows);
            }
            Some(sent) if sent.epoch == epoch => {
                of.sent = Some(sent);
                return Ok(());
            }
            // The batch was lost with its connection, but its rows are still in the table.
            _ => {}
        }
        if of.confirmed.lock().len() >= CONFIRMED_MAX {
            // The transaction also deletes the rows.
            self.database.write(|_| Ok(())).await?;
        }
        let commits = self.database.commits();
        // The rows are copied before the table is read: a deleted row may be followed by a new row of the same inode.
        let confirmed = of.confirmed.lock().clone();
        let next = |db: &Connection| notes::next(db, node, (&confirmed, &self.numbers));
        let mut found = self.database.read(next)?;
        if matches!(found, NextNotes::NoNumbers) {
            self.numbers = self.database.write(notes::reserve).await?;
            let next = |db: &Connection| notes::next(db, node, (&confirmed, &self.numbers));
            found = self.database.read(next)?;
        }
        let NextNotes::Notes { rows, notes } = found else {
            of.looked = Some(commits);
            return Ok(());
        };
        self.numbers.start += notes.len() as u64;
        let last = self.numbers.start - 1;
        let sent = self.cluster.send(node, To::Notes(v1::NameNotes { notes }));
        of.sent = sent.then_some(SentBatch { epoch, rows, last });
        Ok(())
    }
}

impl Chore for NameNotes {
    fn delays(&self) -> &'static str {
        "notes about names are postponed"
    }

    fn woken_by(&self) -> Signals {
        COMMIT.and(NODES).and(NOTED)
    }

    fn rest(&self) -> Duration {
        REST
    }

    fn due(&mut self, now: i64) -> Result<Due, Fault> {
        let commits = self.database.commits();
        let (waiting, for_all) = self.database.read(notes::waiting)?;
        let epochs = self.cluster.epochs();
        for (node, of) in &mut self.nodes {
            of.sent = of
                .sent
                .take()
                .filter(|sent| epochs.get(node) == Some(&sent.epoch));
        }
        let noted = self.cluster.noted();
        let confirmed = self.nodes.iter().filter(|(node, of)| {
            let mut sent = of.sent.iter();
            sent.any(|sent| noted.has(sent, **node))
        });
        self.due = confirmed.map(|(&node, _)| node).collect();
        let is_new = |of: &NodeNotes| of.sent.is_none() && of.looked != Some(commits);
        let ready =
            |node: &u32| epochs.contains_key(node) && self.nodes.get(node).is_none_or(is_new);
        let ready: Vec<u32> = waiting.into_iter().filter(ready).collect();
        self.for_all = false;
        if for_all && !epochs.is_empty() || !ready.is_empty() {
            let since = *self.gathers.get_or_insert(now);
            // The clock may have been set back.
            if (0..GATHER_NS).contains(&(now - since)) {
                return Ok(match self.due.is_empty() {
                    true => Due::At(since + GATHER_NS),
                    false => Due::NOW,
                });
            }
            self.due.extend(ready);
            self.for_all = for_all;
        }
        self.gathers = None;
        let until = self.confirmed_until(now);
        Ok(match self.due.is_empty() && !self.for_all {
            true => until.into(),
            false => Due::NOW,
        })
    }

    fn step(&mut self, now: i64) -> Step<'_> {
        Box::pin(async move {
            if self.confirmed_until(now).is_some_and(|until| until <= now) {
                // The transaction also deletes the rows.
                self.database.write(|_| Ok(())).await?;
            }
            if std::mem::take(&mut self.for_all) {
                self.database.write(notes::spread).await?;
            }
            for node in std::mem::take(&mut self.due) {
                self.one_node(node).await?;
            }
            Ok(Due::NOW)
        })
    }
}
