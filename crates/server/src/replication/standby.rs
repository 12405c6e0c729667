//! A server that follows the log of its leader, until it leads itself.

use super::lease::{HeldLease, Holder, Standby, TAKEOVER};
use super::streams::{LogMessage, Streams, Term};
use super::{Marker, PROMOTE_FILE, ReplicationError};
use crate::log_copies::ATTACHED;
use crate::nats::CallError;
use crate::serve::{Role, private};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidemill_log::{Follower, LogKey};

/// Interval at which a standby looks at the lease, and reports itself.
const LOOK: Duration = Duration::from_millis(200);
/// Interval at which a standby reads the log, and maximum number of messages that it reads at once.
const READ: Duration = Duration::from_millis(25);
const MESSAGES_MAX: u64 = 64;
/// Pause after an error.
const AGAIN: Duration = Duration::from_millis(250);

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
    /// Sequence number of the lease that this server has taken.
    taken: Option<u64>,
    standby: Standby,
    marker: Marker,
}

/// The lease, as this server has seen it.
#[derive(Default)]
struct SeenLease {
    sequence: Option<u64>,
    holder: Option<Holder>,
    /// Time since when it has not changed; `None` while it can't be read.
    changed: Option<Instant>,
}

impl SeenLease {
    /// Returns whether the leader has not renewed the lease for so long that this server may try to lead. A leader that is cut off and knows
    /// no standby answers reads without a limit. Then only its own directory may lead, since no other process uses the directory.
    fn is_over(&self, name: &str, role: Role) -> bool {
        let over = self
            .changed
            .is_some_and(|changed| changed.elapsed() >= TAKEOVER);
        over && match &self.holder {
            Some(holder) if holder.standbys.iter().any(|known| known == name) => true,
            Some(holder) => holder.name == name,
            None => role == Role::Leader,
        }
    }
}

/// The state from which a server leads.
pub(crate) struct Won {
    pub(super) streams: Streams,
    pub(super) term: Term,
    /// Sequence number of the start of the leadership.
    pub(super) sequence: u64,
    pub(super) lease: HeldLease,
    /// Lease of the leader before.
    pub(super) before: Option<Holder>,
    /// Id of the cluster.
    pub(super) cluster: u64,
}

impl Following {
    /// Restores the state of the newest snapshot.
    pub(super) async fn begin(
        streams: Streams,
        directory: &Path,
        key: &LogKey,
        (marker, address): (&Marker, &str),
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
            name: marker.name.clone(),
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
            taken: None,
            standby,
            marker: marker.clone(),
        })
    }

    /// Follows the log until this server leads.
    pub(super) async fn follow(mut self, role: Role) -> Result<Won, ReplicationError> {
        loop {
            match self.follow_once(role).await {
                Ok((term, sequence, lease)) => {
                    let before = self.seen.holder.as_ref();
                    let holder = Holder::of(&term, &self.standby.name, before);
                    let lease = HeldLease::hold(self.streams.clone(), holder, lease);
                    if std::fs::remove_file(self.directory.join(PROMOTE_FILE)).is_ok() {
                        // The leader before may answer until its last lease ends.
                        tokio::time::sleep(TAKEOVER).await;
                    }
                    let cluster = self.follower.cluster();
                    self.finish()?;
                    return Ok(Won {
                        streams: self.streams,
                        term,
                        sequence,
                        lease,
                        before: self.seen.holder,
                        cluster,
                    });
                }
                Err(ReplicationError::Call(why)) => {
                    tracing::warn!(why, "the replicated log can't be followed now");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Follows the log until this server leads, or a call fails.
    async fn follow_once(&mut self, role: Role) -> Result<(Term, u64, u64), ReplicationError> {
        let mut looked = None::<Instant>;
        loop {
            self.read().await?;
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
                let seen = self.look().await;
                if seen.is_err() {
                    self.seen.changed = None;
                }
                seen?;
                looked = Some(Instant::now());
                let promoted = self.is_promoted();
                let may = self.has_lease() || self.seen.is_over(&self.standby.name, role);
                if (promoted || may)
                    && let Some(won) = self.try_to_lead(promoted).await?
                {
                    return Ok(won);
                }
            }
            tokio::time::sleep(READ).await;
        }
    }

    /// Applies all messages that the log has.
    async fn read(&mut self) -> Result<(), ReplicationError> {
        let (first, last) = self.streams.ends().await?;
        if last < self.sequence {
            // A NATS server that is cut off answers with an old state.
            let known = self.sequence;
            return Err(ReplicationError::Lost { last, known }.to_string().into());
        }
        while self.sequence < last {
            if first > self.sequence + 1 {
                return Err(ReplicationError::Behind);
            }
            let end = last.min(self.sequence + MESSAGES_MAX);
            let messages = self.streams.messages(self.sequence + 1..=end).await?;
            for message in messages {
                self.apply(message)?;
                self.sequence += 1;
            }
        }
        Ok(())
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
        self.marker.note(&self.directory, self.sequence);
        self.standby.report += 1;
        self.standby.sequence = self.sequence;
        let name = self.standby.name.clone();
        Ok(self.streams.report_standby(&name, &self.standby).await?)
    }

    /// Tries to begin a leadership, if this server has the whole log.
    async fn try_to_lead(&mut self, promoted: bool) -> Result<Option<(Term, u64, u64)>, CallError> {
        let (_, last) = self.streams.ends().await?;
        if last != self.sequence && !promoted {
            return Ok(None);
        }
        let known = self.streams.last_term().await?;
        let known = known.map_or(0, |term| term.term);
        let term = Term {
            term: self.term.max(known) + 1,
            log: u32::from_le_bytes(tidemill_meta::random::random()),
            address: self.standby.address.clone(),
        };
        let holder = Holder::of(&term, &self.standby.name, self.seen.holder.as_ref());
        let present = self.seen.sequence.unwrap_or(0);
        let Some(lease) = self.streams.renew_lease(&holder, present).await? else {
            return Ok(None);
        };
        // The leader before can't renew its lease any more. It may still have added a record: then this server reads it first.
        self.seen.sequence = Some(lease);
        self.taken = Some(lease);
        let begun = self.streams.begin_term(&term, self.sequence).await?;
        Ok(begun.map(|sequence| (term, sequence, lease)))
    }

    /// Returns whether this server has taken the lease, and no other server since then.
    fn has_lease(&self) -> bool {
        self.taken.is_some() && self.taken == self.seen.sequence
    }

    /// Returns whether an administrator wants this server to lead.
    fn is_promoted(&self) -> bool {
        self.directory.join(PROMOTE_FILE).exists()
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
