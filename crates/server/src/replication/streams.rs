//! The three JetStream streams of a replicated log: records and terms, snapshots, and the lease of the leader.
//!
//! | stream | subject | message |
//! |---|---|---|
//! | `TIDEMILL-LOG-<id>` | `tidemill.log.<id>.record` | a piece of a record |
//! | | `tidemill.log.<id>.term` | the start of a leadership ([`Term`]) |
//! | `TIDEMILL-SNAPSHOTS-<id>` | `tidemill.log.<id>.snapshot.<name>` | a piece of a snapshot |
//! | | `tidemill.log.<id>.newest` | the newest complete snapshot ([`Newest`]) |
//! | `TIDEMILL-LEASE-<id>` | `tidemill.log.<id>.lease` | the leader, renewed all the time ([`super::lease::Holder`]) |
//! | | `tidemill.log.<id>.standby.<name>` | a standby, renewed all the time |
//!
//! `<id>` is derived from the cluster's key. Records and snapshots are encrypted with that key, and the other messages are authenticated
//! with it, so other clients of the NATS servers can stop a cluster, but neither read nor change its state.

use crate::nats::{self, CallError, failed, find_stream, is_no_message, within};
use crate::queue::Address;
use async_nats::HeaderMap;
use async_nats::jetstream::context::{Context, ContextBuilder, PublishAckFuture};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{self, StorageType, Stream};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;
use tidemill_log::{FileName, LogKey, SnapshotFile};
use tidemill_wire::route;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Maximum length of a piece of a record or snapshot. NATS servers accept messages of 1 MiB by default.
pub(super) const PIECE: usize = 512 << 10;
/// Number of pieces of a snapshot on their way at once.
const PIECES: usize = 8;
/// Headers with the identity of a piece, and with the code that authenticates the piece.
const PIECE_HEADER: &str = "Tidemill-Piece";
const CODE_HEADER: &str = "Tidemill-Code";
/// Time limit for an answer to a renewal of the lease.
const RENEWED: Duration = Duration::from_millis(500);
/// Number of messages of the log that are read at once.
const MESSAGES: usize = 16;

/// Start of a leadership.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Term {
    /// Number of the leadership.
    pub(super) term: u64,
    /// Random id of its records.
    pub(super) log: u32,
    /// Address of the leader.
    pub(super) address: String,
}

/// The newest complete snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Newest {
    /// Name of the snapshot.
    pub(super) name: String,
    /// Sequence number of the last message of the log that the snapshot includes.
    pub(super) sequence: u64,
    /// Number of pieces.
    pub(super) pieces: u64,
}

/// Place of a piece in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PieceId {
    pub(super) log: u32,
    pub(super) number: u64,
    pub(super) part: usize,
    pub(super) parts: usize,
}

impl PieceId {
    fn text(&self) -> String {
        let Self {
            log,
            number,
            part,
            parts,
        } = self;
        format!("{log:08x}-{number}-{part}-{parts}")
    }

    fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(PIECE_HEADER)?.as_str();
        let mut parts = text.split('-');
        Some(Self {
            log: u32::from_str_radix(parts.next()?, 16).ok()?,
            number: parts.next()?.parse().ok()?,
            part: parts.next()?.parse().ok()?,
            parts: parts.next()?.parse().ok()?,
        })
    }
}

/// Message of the log.
#[derive(Debug)]
pub(super) enum LogMessage {
    Piece(PieceId, Bytes),
    Term(Term),
    /// Another client of the NATS servers has sent the message. It is as if it did not exist.
    Foreign,
}

/// Connection to the streams.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    id: String,
    key: [u8; 32],
    context: Context,
    lease_context: Context,
    log: Stream,
    snapshots: Stream,
    lease: Stream,
}

impl Streams {
    /// Connects to the NATS servers, and creates missing streams.
    pub(super) async fn open(address: &Address, key: &[u8]) -> Result<Self, CallError> {
        let id = LogKey::new(key).id();
        let name = format!("tidemill log {id}");
        let context = |client| ContextBuilder::new().timeout(nats::ANSWER).build(client);
        // Long records must not delay the lease.
        let lease_context = context(nats::connect(address, format!("{name}, lease")).await?);
        let context = context(nats::connect(address, name).await?);
        let wanted = |kind: &str, subjects: &[&str], last: bool| stream::Config {
            name: format!("TIDEMILL-{kind}-{id}"),
            description: Some("replicated log of a Tidemill cluster".into()),
            subjects: subjects
                .iter()
                .map(|subject| format!("tidemill.log.{id}.{subject}"))
                .collect(),
            storage: StorageType::File,
            num_replicas: address.replicas(),
            max_messages_per_subject: if last { 1 } else { -1 },
            allow_direct: false,
            ..stream::Config::default()
        };
        let log = find_stream(&context, wanted("LOG", &["record", "term"], false)).await?;
        let snapshots = wanted("SNAPSHOTS", &["snapshot.>", "newest"], false);
        let snapshots = find_stream(&context, snapshots).await?;
        let lease = wanted("LEASE", &["lease", "standby.*"], true);
        let lease = find_stream(&lease_context, lease).await?;
        Ok(Self {
            id,
            key: blake3::derive_key("tidemill 2026-11 messages of a replicated log", key),
            context,
            lease_context,
            log,
            snapshots,
            lease,
        })
    }

    fn subject(&self, name: &str) -> String {
        format!("tidemill.log.{}.{name}", self.id)
    }

    /// Returns the text of an authenticated message.
    fn sign<T: Serialize>(&self, subject: &str, value: &T) -> Bytes {
        let body = serde_json::to_vec(value).unwrap_or_default();
        let mut message = self.code(subject, &body).to_vec();
        message.extend(body);
        message.into()
    }

    /// Returns the content of an authenticated message.
    fn verify<T: DeserializeOwned>(&self, subject: &str, message: &[u8]) -> Option<T> {
        let (code, body) = message.split_first_chunk::<32>()?;
        // Hashes are compared in constant time.
        let expected = blake3::Hash::from_bytes(self.code(subject, body));
        if expected != blake3::Hash::from_bytes(*code) {
            return None;
        }
        serde_json::from_slice(body).ok()
    }

    fn code(&self, subject: &str, body: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(subject.as_bytes());
        hasher.update(&[0]);
        hasher.update(body);
        *hasher.finalize().as_bytes()
    }

    async fn last_of<T: DeserializeOwned>(
        &self,
        stream: &Stream,
        name: &str,
    ) -> Result<Option<(u64, T)>, CallError> {
        const WHAT: &str = "reading the log";
        let subject = self.subject(name);
        let last = async {
            match stream.get_last_raw_message_by_subject(&subject).await {
                Ok(message) => Ok(Some(message)),
                Err(error) if is_no_message(&error) => Ok(None),
                Err(error) => Err(failed(WHAT)(error)),
            }
        };
        let Some(message) = within(WHAT, last).await? else {
            return Ok(None);
        };
        match self.verify(&subject, &message.payload) {
            Some(value) => Ok(Some((message.sequence, value))),
            None => Err(format!("{WHAT}: another client has written to {subject}")),
        }
    }

    /// Returns the sequence numbers of the first and the last message of the log.
    pub(super) async fn ends(&self) -> Result<(u64, u64), CallError> {
        const WHAT: &str = "reading the state of the log";
        let info = async { self.log.get_info().await.map_err(failed(WHAT)) };
        let state = within(WHAT, info).await?.state;
        Ok((state.first_sequence, state.last_sequence))
    }

    /// Returns the last term, if the log still has its start.
    pub(super) async fn last_term(&self) -> Result<Option<Term>, CallError> {
        let last = self.last_of(&self.log, "term").await?;
        Ok(last.map(|(_, term)| term))
    }

    /// Returns a message of the log.
    pub(super) async fn message(&self, sequence: u64) -> Result<LogMessage, CallError> {
        const WHAT: &str = "reading a record";
        let message = async {
            let message = self.log.get_raw_message(sequence).await;
            message.map_err(failed(WHAT))
        };
        let StreamMessage {
            subject,
            headers,
            payload,
            ..
        } = within(WHAT, message).await?;
        Ok(self.read(&subject, &headers, payload))
    }

    fn read(&self, subject: &str, headers: &HeaderMap, payload: Bytes) -> LogMessage {
        if subject == self.subject("term") {
            return match self.verify(subject, &payload) {
                Some(term) => LogMessage::Term(term),
                None => LogMessage::Foreign,
            };
        }
        let code = headers.get(CODE_HEADER).map(|code| code.as_str());
        match PieceId::of(headers) {
            Some(id) if code == Some(&*self.piece_code(&id, &payload)) => {
                LogMessage::Piece(id, payload)
            }
            _ => LogMessage::Foreign,
        }
    }

    fn piece_code(&self, id: &PieceId, piece: &[u8]) -> String {
        route::hex(&self.code(&id.text(), piece))
    }

    /// Returns the messages of the log from one sequence number to another, both included.
    pub(super) async fn messages(
        &self,
        numbers: RangeInclusive<u64>,
    ) -> Result<Vec<LogMessage>, CallError> {
        let messages = futures_util::stream::iter(numbers.map(|number| self.message(number)));
        messages.buffered(MESSAGES).try_collect().await
    }

    /// Sends a piece of a record that must follow the message of a sequence number.
    pub(super) async fn send(
        &self,
        id: &PieceId,
        piece: Bytes,
        after: u64,
    ) -> Result<PublishAckFuture, CallError> {
        let message = PublishMessage::build()
            .header(PIECE_HEADER, id.text())
            .header(CODE_HEADER, self.piece_code(id, &piece))
            .payload(piece)
            .expected_last_sequence(after);
        let sent = self.context.send_publish(self.subject("record"), message);
        sent.await.map_err(failed("sending a record"))
    }

    /// Begins a leadership after the message of a sequence number. Returns the sequence number of its start; `None` if another server has
    /// written to the log.
    pub(super) async fn begin_term(
        &self,
        term: &Term,
        after: u64,
    ) -> Result<Option<u64>, CallError> {
        let subject = self.subject("term");
        let message = PublishMessage::build()
            .payload(self.sign(&subject, term))
            .expected_last_sequence(after);
        self.conditional((&self.context, subject), message, "beginning a leadership")
            .await
    }

    /// Publishes a message with a condition. Returns its sequence number; `None` if the condition does not hold.
    async fn conditional(
        &self,
        (context, subject): (&Context, String),
        message: PublishMessage,
        what: &'static str,
    ) -> Result<Option<u64>, CallError> {
        use async_nats::jetstream::context::PublishErrorKind;
        let sent = async {
            let sent = context.send_publish(subject, message).await;
            match sent.map_err(failed(what))?.await {
                Ok(stored) => Ok(Some(stored.sequence)),
                Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(None),
                Err(error) => Err(failed(what)(error)),
            }
        };
        within(what, sent).await
    }

    /// Returns the newest snapshot.
    pub(super) async fn newest(&self) -> Result<Option<Newest>, CallError> {
        let last = self.last_of(&self.snapshots, "newest").await?;
        Ok(last.map(|(_, newest)| newest))
    }

    /// Stores a snapshot, and removes older snapshots and the records that they would need.
    pub(super) async fn store_snapshot(
        &self,
        SnapshotFile { name, path }: &SnapshotFile,
        sequence: u64,
    ) -> Result<(), CallError> {
        const WHAT: &str = "storing a snapshot";
        let before = self.last_of::<Newest>(&self.snapshots, "newest").await?;
        let present = before.as_ref().map_or(0, |(number, _)| *number);
        let before = before.map(|(_, before)| before);
        let name = name.to_string();
        let subject = self.subject(&format!("snapshot.{}", name.replace('.', "-")));
        // Pieces of an earlier attempt.
        let purged = self.snapshots.purge().filter(&subject).await;
        purged.map_err(failed(WHAT))?;
        let mut file = tokio::fs::File::open(path).await.map_err(failed(WHAT))?;
        let (mut sent, mut pieces) = (VecDeque::new(), 0);
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read = (&mut file).take(PIECE as u64).read_to_end(&mut piece).await;
            let last = read.map_err(failed(WHAT))? == 0;
            while sent.len() >= PIECES || (last && !sent.is_empty()) {
                let stored: Option<PublishAckFuture> = sent.pop_front();
                if let Some(stored) = stored {
                    stored.await.map_err(failed(WHAT))?;
                }
            }
            if last {
                break;
            }
            let one = self.context.publish(subject.clone(), piece.into()).await;
            sent.push_back(one.map_err(failed(WHAT))?);
            pieces += 1;
        }
        let newest = Newest {
            name,
            sequence,
            pieces,
        };
        let place = self.subject("newest");
        let message = PublishMessage::build()
            .payload(self.sign(&place, &newest))
            .expected_last_subject_sequence(present);
        let stored = self.conditional((&self.context, place), message, WHAT);
        if stored.await?.is_none() {
            return Err(format!("{WHAT}: another server has stored one"));
        }
        self.remove_before(&subject, before).await
    }

    /// Removes the snapshots before the newest one, and the records before the snapshot that was the newest one.
    async fn remove_before(&self, subject: &str, before: Option<Newest>) -> Result<(), CallError> {
        const WHAT: &str = "removing old records";
        let Some(before) = before else {
            return Ok(());
        };
        let old = self.subject(&format!("snapshot.{}", before.name.replace('.', "-")));
        if old != subject {
            let purged = self.snapshots.purge().filter(&old).await;
            purged.map_err(failed(WHAT))?;
        }
        let purged = self.log.purge().sequence(before.sequence).await;
        purged.map(drop).map_err(failed(WHAT))
    }

    /// Copies a snapshot into a file.
    pub(super) async fn load_snapshot(
        &self,
        newest: &Newest,
        into: &Path,
    ) -> Result<FileName, CallError> {
        const WHAT: &str = "reading a snapshot";
        let name = newest.name.parse();
        let name = name.map_err(|()| format!("{WHAT}: {:?} is no name", newest.name))?;
        let filter = self.subject(&format!("snapshot.{}", newest.name.replace('.', "-")));
        let mut file = tokio::fs::File::create(into).await.map_err(failed(WHAT))?;
        let mut next = 1;
        for _ in 0..newest.pieces {
            let piece = async {
                let builder = self.snapshots.raw_message_builder();
                let piece = builder.sequence(next).next_by_subject(&filter).send().await;
                piece.map_err(failed(WHAT))
            };
            let piece: StreamMessage = within(WHAT, piece).await?;
            next = piece.sequence + 1;
            file.write_all(&piece.payload).await.map_err(failed(WHAT))?;
        }
        file.flush().await.map_err(failed(WHAT))?;
        Ok(name)
    }

    /// Returns the present lease, with the sequence number of its message.
    pub(super) async fn lease<T: DeserializeOwned>(&self) -> Result<Option<(u64, T)>, CallError> {
        self.last_of(&self.lease, "lease").await
    }

    /// Replaces the lease of a sequence number, 0 for none. Returns the new number; `None` if the lease has another number.
    pub(super) async fn renew_lease<T: Serialize>(
        &self,
        holder: &T,
        present: u64,
    ) -> Result<Option<u64>, CallError> {
        let subject = self.subject("lease");
        let message = PublishMessage::build()
            .payload(self.sign(&subject, holder))
            .expected_last_subject_sequence(present);
        let place = (&self.lease_context, subject);
        let renewed = self.conditional(place, message, "renewing the lease");
        let renewed = tokio::time::timeout(RENEWED, renewed).await;
        renewed.unwrap_or_else(|_| Err("renewing the lease: no answer".into()))
    }

    /// Tells the leader about a standby.
    pub(super) async fn report_standby<T: Serialize>(
        &self,
        name: &str,
        standby: &T,
    ) -> Result<(), CallError> {
        let subject = self.subject(&format!("standby.{name}"));
        let message = PublishMessage::build().payload(self.sign(&subject, standby));
        let place = (&self.lease_context, subject);
        let sent = self.conditional(place, message, "reporting a standby");
        sent.await.map(drop)
    }

    /// Returns the standbys that have ever reported themselves.
    pub(super) async fn standbys<T: DeserializeOwned>(&self) -> Result<Vec<T>, CallError> {
        const WHAT: &str = "reading the standbys";
        let prefix = self.subject("standby.");
        let found = async {
            let info = self.lease.info_with_subjects(format!("{prefix}*")).await;
            Ok(info.map_err(failed(WHAT))?.collect::<Vec<_>>().await)
        };
        let mut standbys = Vec::new();
        for found in within(WHAT, found).await? {
            let (subject, _) = found.map_err(failed(WHAT))?;
            if let Some(name) = subject.strip_prefix(&self.subject("")) {
                let last = self.last_of(&self.lease, name).await?;
                standbys.extend(last.map(|(_, standby)| standby));
            }
        }
        Ok(standbys)
    }
}
