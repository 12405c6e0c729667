//! A server that follows the log of its leader, until it leads itself.

use super::ReplicationError;
use super::lease::{Holder, Standby, TAKEOVER};
use super::streams::{LogMessage, Streams, Term};
use crate::log_copies::ATTACHED;
use crate::nats::CallError;
use crate::serve::{Role, private};
use futures_util::StreamExt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidemill_log::{Follower, LogKey};

/// Interval at which a standby looks at the lease, and reports itself.
const LOOK: Duration = Duration::from_millis(200);
/// Pause after an error.
const AGAIN: Duration = Duration::from_secs(1);

/// A server that follows the log.
pub(super) struct Following {
    streams: Streams,
    follower: Follower,
    /// Path of the database that follows.
    database: PathBuf,
    directory: PathBuf,
    /// Sequence number of the last message that was read, and the number of the last term.
    sequence: u64,
    term: u64,
    /// Pieces of a record that is not complete yet, and the index of the next piece.
    pieces: Vec<u8>,
    part: usize,
    seen: SeenLease,
    standby: Standby,
}

/// The lease, as this server has seen it.
#[derive(Default)]
struct SeenLease {
    sequence: Option<u64>,
    holder: Option<Holder>,
    changed: Option<Instant>,
    /// Last time at which the lease could be read.
    looked: Option<Instant>,
}

impl SeenLease {
    /// Returns whether the leader has not renewed the lease for so long that another server may try to lead. `any` allows a server that the
    /// leader does not know.
    fn is_over(&self, name: &str, any: bool) -> bool {
        // While the lease can't be read, nothing is known about it.
        let fresh = self
            .looked
            .is_some_and(|looked| looked.elapsed() < 2 * LOOK);
        let over = self
            .changed
            .is_some_and(|changed| changed.elapsed() >= TAKEOVER);
        let known = match &self.holder {
            Some(holder) => any || holder.standbys.iter().any(|known| known == name),
            None => true,
        };
        fresh && over && known
    }
}

/// The state from which a server leads.
pub(crate) struct Won {
    pub(super) streams: Streams,
    pub(super) term: Term,
    /// Sequence number of the start of the leadership.
    pub(super) sequence: u64,
    /// Id of the cluster.
    pub(super) cluster: u64,
}

impl Following {
    /// Restores the state of the newest snapshot.
    pub(super) async fn begin(
        streams: Streams,
        directory: &Path,
        key: &LogKey,
        (name, address): (&str, &str),
    ) -> Result<Self, ReplicationError> {
        let newest = streams
            .newest()
            .await?
            .ok_or(ReplicationError::NoSnapshot)?;
        let snapshot = directory.join(super::SNAPSHOT_FILE);
        let named = streams.load_snapshot(&newest, &snapshot).await?;
        let database = directory.join("standby.db");
        let restored = {
            let (snapshot, database, key) = (snapshot.clone(), database.clone(), key.clone());
            let restore = move || Follower::restore(&database, &key, (named, &snapshot));
            tokio::task::spawn_blocking(restore).await
        };
        let _ = std::fs::remove_file(&snapshot);
        let follower = restored.map_err(|_| ReplicationError::Ended)??;
        let standby = Standby {
            name: name.into(),
            address: address.into(),
            sequence: newest.sequence,
            report: 0,
        };
        Ok(Self {
            streams,
            follower,
            database,
            directory: directory.into(),
            sequence: newest.sequence,
            term: named.term,
            pieces: Vec::new(),
            part: 0,
            seen: SeenLease::default(),
            standby,
        })
    }

    /// Follows the log until this server leads.
    pub(super) async fn follow(mut self, role: Role) -> Result<Won, ReplicationError> {
        loop {
            match self.follow_once(role).await {
                Ok(Some((term, sequence))) => {
                    let cluster = self.follower.cluster();
                    self.finish()?;
                    return Ok(Won {
                        streams: self.streams,
                        term,
                        sequence,
                        cluster,
                    });
                }
                Ok(None) => {}
                Err(ReplicationError::Call(why)) => {
                    tracing::warn!(why, "the replicated log can't be followed now");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Follows the log until this server leads, or the messages end.
    async fn follow_once(&mut self, role: Role) -> Result<Option<(Term, u64)>, ReplicationError> {
        let (first, last) = self.streams.ends().await?;
        if last < self.sequence {
            return Err(ReplicationError::Lost {
                last,
                known: self.sequence,
            });
        }
        if first > self.sequence + 1 {
            return Err(ReplicationError::Behind);
        }
        let messages = self.streams.messages(self.sequence + 1).await?;
        tokio::pin!(messages);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = messages.next() => {
                    let Some(message) = message else { return Ok(None) };
                    let (sequence, message) = message?;
                    if sequence != self.sequence + 1 {
                        return Err(ReplicationError::Behind);
                    }
                    self.apply(message)?;
                    self.sequence = sequence;
                }
                _ = look.tick() => {
                    self.look().await?;
                    let any = role == Role::Leader;
                    if self.seen.is_over(&self.standby.name, any)
                        && let Some(won) = self.try_to_lead().await?
                    {
                        return Ok(Some(won));
                    }
                }
            }
        }
    }

    fn apply(&mut self, message: LogMessage) -> Result<(), ReplicationError> {
        let (id, bytes) = match message {
            LogMessage::Foreign => return Ok(()),
            LogMessage::Term(term) => {
                if term.term > self.term {
                    // A record that its leader could not complete was never acknowledged.
                    self.pieces.clear();
                    self.part = 0;
                    self.follower.begin_term(term.term, term.log);
                    self.term = term.term;
                }
                return Ok(());
            }
            LogMessage::Piece(id, bytes) => (id, bytes),
        };
        let name = self.follower.name();
        let expected = (name.number + 1, self.part);
        if id.log != name.log || (id.number, id.part) < expected {
            // A copy of an earlier message.
            return Ok(());
        }
        if (id.number, id.part) > expected {
            return Err(ReplicationError::Behind);
        }
        self.pieces.extend(&bytes);
        if id.part + 1 < id.parts {
            self.part = id.part + 1;
            return Ok(());
        }
        self.part = 0;
        let record = std::mem::take(&mut self.pieces);
        tokio::task::block_in_place(|| self.follower.apply(&record))?;
        Ok(())
    }

    /// Looks at the lease, and reports this standby.
    async fn look(&mut self) -> Result<(), ReplicationError> {
        let found = self.streams.lease::<Holder>().await?;
        let now = Instant::now();
        let sequence = found.as_ref().map(|(sequence, _)| *sequence);
        if sequence != self.seen.sequence || self.seen.changed.is_none() {
            self.seen.changed = Some(now);
            self.seen.sequence = sequence;
            self.seen.holder = found.map(|(_, holder)| holder);
        }
        self.seen.looked = Some(now);
        if self.standby.sequence != self.sequence {
            super::note_sequence(&self.directory, self.sequence)?;
        }
        self.standby.report += 1;
        self.standby.sequence = self.sequence;
        let name = self.standby.name.clone();
        Ok(self.streams.report_standby(&name, &self.standby).await?)
    }

    /// Tries to begin a leadership, if this server has the whole log.
    async fn try_to_lead(&self) -> Result<Option<(Term, u64)>, CallError> {
        let (_, last) = self.streams.ends().await?;
        if last != self.sequence {
            return Ok(None);
        }
        let known = self.streams.last_term().await?;
        let known = known.map_or(0, |term| term.term);
        let term = Term {
            term: self.term.max(known) + 1,
            log: u32::from_le_bytes(tidemill_meta::random::random()),
            address: self.standby.address.clone(),
        };
        let begun = self.streams.begin_term(&term, self.sequence).await?;
        Ok(begun.map(|sequence| (term, sequence)))
    }

    /// Makes the database that follows the database of the server.
    fn finish(&self) -> Result<(), ReplicationError> {
        self.follower.end()?;
        for file in self.follower.attached() {
            if ATTACHED.contains(&&*file.name) {
                let path = self.directory.join(&file.name);
                let mut file_ = private().truncate(true).open(path)?;
                file_.write_all(&file.content)?;
                file_.sync_all()?;
            }
        }
        for old in ["server.db-wal", "server.db-shm"] {
            match std::fs::remove_file(self.directory.join(old)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        std::fs::rename(&self.database, self.directory.join("server.db"))?;
        Ok(())
    }
}
