//! Sends the records of the leader to the log, several at once (next: `log/src/replicator.rs`).
//!
//! Each piece is accepted only after the piece before it. After any error the publisher compares the end of the log with the pieces whose
//! answers are missing, and sends those again that the log does not have. If the log has a message of another server there, this server
//! does not lead any more.

use super::streams::{LogMessage, PIECE, PieceId, Streams, Term};
use crate::nats::CallError;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::publish::PublishAck;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_log::{Deposed, Record, RecordSender, Replicator, SnapshotFile};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// Pause before the publisher looks at the log again.
const AGAIN: Duration = Duration::from_millis(100);
/// Time for which the log may lack records that it has confirmed, since a NATS server that is cut off answers with an old state.
const SHORT_MAX: Duration = Duration::from_secs(30);

/// Work of the publisher.
#[derive(Debug)]
pub(super) enum Order {
    Record(Record),
    Snapshot(SnapshotFile),
}

/// Channel to the publisher. Unbounded, since the replicator limits the records on their way.
#[derive(Debug)]
pub(super) struct Orders(pub(super) UnboundedSender<Order>);

impl RecordSender for Orders {
    fn send(&self, record: Record) {
        // The publisher has ended only if this server does not lead any more.
        let _ = self.0.send(Order::Record(record));
    }

    fn store(&self, snapshot: SnapshotFile) {
        let _ = self.0.send(Order::Snapshot(snapshot));
    }
}

/// Piece of a record whose answer is missing.
#[derive(Debug)]
struct Piece {
    id: PieceId,
    bytes: Bytes,
}

/// State of the publisher.
pub(super) struct Publisher {
    pub(super) streams: Streams,
    pub(super) replicator: Arc<Replicator>,
    /// Number of the leadership, and random id of its records.
    pub(super) term: u64,
    pub(super) log: u32,
    /// Sequence number of the last message that the log has confirmed.
    pub(super) confirmed: Arc<AtomicU64>,
    /// Reason why the log can't be reached now.
    pub(super) trouble: Arc<Mutex<Option<String>>>,
    pending: VecDeque<Piece>,
    answers: FuturesOrdered<BoxFuture<'static, Result<PublishAck, PublishError>>>,
    /// Sequence number of the last piece of each record since the last snapshot.
    sequences: BTreeMap<u64, u64>,
    snapshots: Vec<SnapshotFile>,
    short: Option<Instant>,
}

impl Publisher {
    pub(super) fn new(
        streams: Streams,
        replicator: Arc<Replicator>,
        (term, log): (u64, u32),
        (confirmed, trouble): (Arc<AtomicU64>, Arc<Mutex<Option<String>>>),
    ) -> Self {
        Self {
            streams,
            replicator,
            term,
            log,
            confirmed,
            trouble,
            pending: VecDeque::new(),
            answers: FuturesOrdered::new(),
            sequences: BTreeMap::new(),
            snapshots: Vec::new(),
            short: None,
        }
    }

    fn last(&self) -> u64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Sends records until this server does not lead any more.
    pub(super) async fn run(mut self, mut orders: UnboundedReceiver<Order>) {
        loop {
            let done = tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.order(order).await,
                    None => return,
                },
                Some(answer) = self.answers.next() => self.answered(answer),
            };
            if let Err(why) = done
                && let Err(deposed) = self.recover(why).await
            {
                return self.replicator.depose(deposed);
            }
            self.store_snapshots();
        }
    }

    async fn order(&mut self, order: Order) -> Result<(), CallError> {
        let record = match order {
            Order::Record(record) => record,
            Order::Snapshot(snapshot) => {
                self.snapshots.push(snapshot);
                return Ok(());
            }
        };
        let bytes = Bytes::from(record.bytes);
        let parts = bytes.len().div_ceil(PIECE).max(1);
        let first = self.pending.len();
        for part in 0..parts {
            let end = bytes.len().min((part + 1) * PIECE);
            let id = PieceId {
                log: self.log,
                number: record.number,
                part,
                parts,
            };
            let bytes = bytes.slice(part * PIECE..end);
            self.pending.push_back(Piece { id, bytes });
        }
        self.send_from(first).await
    }

    /// Sends the pending pieces from an index on.
    async fn send_from(&mut self, first: usize) -> Result<(), CallError> {
        for (index, piece) in self.pending.iter().enumerate().skip(first) {
            let after = self.last() + index as u64;
            let sent = self.streams.send(&piece.id, piece.bytes.clone(), after);
            self.answers.push_back(sent.await?.into_future());
        }
        Ok(())
    }

    fn answered(&mut self, answer: Result<PublishAck, PublishError>) -> Result<(), CallError> {
        let stored = answer.map_err(|error| error.to_string())?;
        if stored.sequence != self.last() + 1 {
            return Err(format!("the log stored a record as {}", stored.sequence));
        }
        self.confirm();
        Ok(())
    }

    /// Records that the log has the first pending piece as its next message.
    fn confirm(&mut self) {
        let sequence = self.confirmed.fetch_add(1, Ordering::AcqRel) + 1;
        let Some(Piece { id, .. }) = self.pending.pop_front() else {
            return;
        };
        if id.part + 1 == id.parts {
            self.sequences.insert(id.number, sequence);
            self.replicator.acknowledge(id.number);
        }
    }

    /// Finds out which pieces the log has, and sends the others again.
    async fn recover(&mut self, why: CallError) -> Result<(), Deposed> {
        let mut why = why;
        loop {
            // Pieces whose answers are dropped here may still arrive: then the pieces that are sent again are refused.
            self.answers = FuturesOrdered::new();
            *self.trouble.lock() = Some(why);
            if let Some(deposed) = self.replicator.deposed() {
                return Err(deposed);
            }
            why = match self.compare().await {
                Ok(()) => match self.send_from(0).await {
                    Ok(()) => break,
                    Err(why) => why,
                },
                Err(CompareError::Deposed(deposed)) => return Err(deposed),
                Err(CompareError::Call(why)) => why,
            };
            tokio::time::sleep(AGAIN).await;
        }
        *self.trouble.lock() = None;
        Ok(())
    }

    async fn compare(&mut self) -> Result<(), CompareError> {
        let (_, last) = self.streams.ends().await?;
        if last < self.last() {
            let since = *self.short.get_or_insert_with(Instant::now);
            let why = format!(
                "the log ends at message {last}, before message {}, which it has confirmed: the NATS servers have lost data",
                self.last()
            );
            return match since.elapsed() < SHORT_MAX {
                true => Err(CompareError::Call(why)),
                false => Err(CompareError::Deposed(Deposed {
                    why,
                    by_other: false,
                })),
            };
        }
        self.short = None;
        // After a loss of data in NATS the term of another server may be among the messages that this server has sent.
        if let Some(term) = self.streams.last_term().await? {
            self.check(&term)?;
        }
        while self.last() < last {
            match (
                self.streams.message(self.last() + 1).await?,
                self.pending.front(),
            ) {
                (LogMessage::Piece(id, _), Some(piece)) if id == piece.id => self.confirm(),
                (LogMessage::Term(term), _) if term.term > self.term => self.check(&term)?,
                // A message of another client, or a copy of a message of the cluster.
                _ => {
                    self.confirmed.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        Ok(())
    }

    fn check(&self, term: &Term) -> Result<(), CompareError> {
        match term.term > self.term {
            true => Err(CompareError::Deposed(Deposed {
                why: format!("{} leads (term {})", term.address, term.term),
                by_other: true,
            })),
            false => Ok(()),
        }
    }

    /// Stores the snapshots whose last record the log has.
    fn store_snapshots(&mut self) {
        let sequences = &mut self.sequences;
        self.snapshots.retain_mut(|snapshot| {
            let number = snapshot.name.number;
            let Some(&sequence) = sequences.get(&number) else {
                return true;
            };
            *sequences = sequences.split_off(&number);
            let name = snapshot.name;
            let snapshot = SnapshotFile {
                path: std::mem::take(&mut snapshot.path),
                name,
            };
            let streams = self.streams.clone();
            tokio::spawn(async move {
                match streams.store_snapshot(&snapshot, sequence).await {
                    Ok(()) => tracing::debug!(%name, "a snapshot is in the replicated log"),
                    Err(why) => tracing::warn!(why, "can't store a snapshot in the log"),
                }
                let _ = tokio::fs::remove_file(&snapshot.path).await;
            });
            false
        });
    }
}

/// Reason why the end of the log could not be compared.
enum CompareError {
    Deposed(Deposed),
    Call(CallError),
}

impl From<CallError> for CompareError {
    fn from(why: CallError) -> Self {
        Self::Call(why)
    }
}
