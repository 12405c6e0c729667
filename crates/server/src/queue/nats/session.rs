//! A connection to the NATS servers of the queue, and the labels received through the connection.
//!
//! **Invariant**: every wait in this module ends within [`ANSWER`], or within twice that time while a batch is received. Each wait covers
//! at most [`CHUNK`] labels.

use super::QueueIdentity;
use super::in_flight::{InFlight, Receipt};
use crate::nats::{ANSWER, CallError, connect, failed, find_stream, within};
use async_nats::Client;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::{
    self, ConsumerErrorKind, RetentionPolicy, StorageType, Stream,
};
use async_nats::jetstream::{ErrorCode, Message};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::Label;

/// Maximum number of labels that are sent or received together.
const CHUNK: usize = 500;
const CHUNK_BYTES: usize = 4 << 20;
/// Name of the NATS consumer that receives labels from the stream.
const CONSUMER: &str = "dispatcher";
/// Time limit for acknowledgements. Labels may take hours, so they are delivered again when a session begins, and not after a time.
const PATIENCE: Duration = Duration::from_secs(365 * 86_400);
const ACK: &[u8] = b"+ACK";

impl QueueIdentity {
    fn stream(&self) -> String {
        format!("TIDEMILL-{:016x}", self.cluster)
    }

    fn subject(&self, node: &dyn Display) -> String {
        format!("tidemill.{:016x}.{node}", self.cluster)
    }

    fn stream_config(&self) -> stream::Config {
        stream::Config {
            name: self.stream(),
            description: Some(
                "labels of a Tidemill cluster; each is removed when its end is known".into(),
            ),
            subjects: vec![self.subject(&'*')],
            retention: RetentionPolicy::WorkQueue,
            storage: StorageType::File,
            num_replicas: self.address.replicas(),
            ..stream::Config::default()
        }
    }
}

/// The session with the NATS servers, as described in the module's documentation.
pub(super) struct NatsSession {
    pub(super) held: InFlight,
    place: QueueIdentity,
    client: Client,
    context: Context,
    consumer: Consumer<pull::Config>,
    /// Number of messages that were no labels of this cluster, and the subject of one such message, until they are logged.
    foreign: (u64, String),
}

impl std::fmt::Debug for NatsSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

impl NatsSession {
    /// Connects to the NATS servers, creates missing parts of the queue and receives all labels in the stream.
    pub(super) async fn open(place: &QueueIdentity) -> Result<Self, CallError> {
        let name = format!("tidemill cluster {:016x}", place.cluster);
        let client = connect(&place.address, name).await?;
        let context = ContextBuilder::new().timeout(ANSWER).build(client.clone());
        let stream = find_stream(&context, place.stream_config()).await?;
        let consumer = take_over(&stream).await?;
        let mut session = Self {
            held: InFlight::default(),
            place: place.clone(),
            client,
            context,
            consumer,
            foreign: Default::default(),
        };
        session.read_all().await?;
        tracing::info!(queue = %place.address, stream = place.stream(), "labels wait in NATS");
        Ok(session)
    }

    async fn read_all(&mut self) -> Result<(), CallError> {
        const WHAT: &str = "reading the stream";
        loop {
            let batch = self.consumer.fetch().max_messages(CHUNK);
            let batch = within(WHAT, async { batch.messages().await.map_err(failed(WHAT)) });
            if self.take(batch.await?).await? == 0 {
                self.tell_foreign();
                return Ok(());
            }
        }
    }

    /// Receives all labels that the stream has for this consumer.
    pub(super) async fn pull(&mut self) -> Result<(), CallError> {
        const WHAT: &str = "fetching labels";
        while self.held.coming() > 0 {
            let count = self.held.coming().min(CHUNK);
            let batch = self.consumer.batch().max_messages(count).expires(ANSWER);
            let batch = within(WHAT, async { batch.messages().await.map_err(failed(WHAT)) });
            if self.take(batch.await?).await? == 0 {
                return Err(format!("{WHAT}: some stored labels were not received"));
            }
        }
        self.tell_foreign();
        Ok(())
    }

    /// Stores received labels and returns the number of received messages.
    async fn take(&mut self, mut batch: pull::Batch) -> Result<usize, CallError> {
        const WHAT: &str = "receiving labels";
        let mut taken = 0;
        let mut foreign = Vec::new();
        loop {
            let next = tokio::time::timeout(2 * ANSWER, batch.next()).await;
            let Some(message) = next.map_err(failed(WHAT))? else {
                break;
            };
            let message = message.map_err(failed(WHAT))?;
            let number = message.info().map_err(failed(WHAT))?.stream_sequence;
            let receipt = message.reply.clone();
            self.held.arrived(number);
            match self.open_label(&message) {
                Some((node, label)) => self.held.keep(node, label, receipt),
                None => {
                    self.foreign = (self.foreign.0 + 1, message.subject.to_string());
                    foreign.push(receipt);
                }
            }
            taken += 1;
        }
        for receipt in foreign.into_iter().flatten() {
            self.done_with(receipt).await?;
        }
        Ok(taken)
    }

    fn tell_foreign(&mut self) {
        let (messages, subject) = std::mem::take(&mut self.foreign);
        if messages > 0 {
            tracing::warn!(
                messages,
                subject,
                "a message that is not a label of this cluster was removed from its queue"
            );
        }
    }

    fn open_label(&self, message: &Message) -> Option<(NodeId, Label)> {
        let (_, node) = message.subject.rsplit_once('.')?;
        let node = NodeId(node.parse().ok()?);
        Some((node, self.place.seal.open(node, &message.payload)?))
    }

    /// Adds labels to the stream that the stream does not have. Labels that are too large for a message stay in the session's memory: the
    /// server's database has all labels.
    pub(super) async fn enqueue(
        &mut self,
        node: NodeId,
        labels: Vec<Label>,
    ) -> Result<(), CallError> {
        let labels = labels.into_iter().map(|label| (label.id, label));
        let mut labels: BTreeMap<LabelId, Label> = labels.collect();
        labels.retain(|&id, _| !self.held.knows(node, id));
        let subject = self.place.subject(&node.0);
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        for label in labels.into_values() {
            let message = self.place.seal.seal(node, &label);
            if message.len() > self.client.max_payload() {
                self.held.keep(node, label, None);
                continue;
            }
            bytes += message.len();
            chunk.push((label.id, message));
            if chunk.len() >= CHUNK || bytes >= CHUNK_BYTES {
                let chunk = std::mem::take(&mut chunk);
                within("storing labels", self.publish(&subject, chunk)).await?;
                bytes = 0;
            }
        }
        within("storing labels", self.publish(&subject, chunk)).await
    }

    async fn publish(
        &mut self,
        subject: &str,
        messages: Vec<(LabelId, Vec<u8>)>,
    ) -> Result<(), CallError> {
        const WHAT: &str = "storing labels";
        let mut stored = Vec::new();
        for (label, message) in messages {
            let sent = self.context.publish(subject.to_owned(), message.into());
            stored.push((label, sent.await.map_err(failed(WHAT))?));
        }
        for (label, stored) in stored {
            let number = stored.await.map_err(failed(WHAT))?.sequence;
            self.held.sent(number, label);
        }
        Ok(())
    }

    /// Removes acknowledged labels from the stream.
    pub(super) async fn acknowledge(
        &mut self,
        node: NodeId,
        labels: &[LabelId],
    ) -> Result<(), CallError> {
        self.pull().await?;
        let receipts = self.held.forget(node, labels);
        for chunk in receipts.chunks(CHUNK) {
            within("removing labels", self.remove(chunk)).await?;
        }
        Ok(())
    }

    /// Acknowledges messages. NATS processes messages in order, so the function waits only for the last answer.
    async fn remove(&self, receipts: &[Receipt]) -> Result<(), CallError> {
        let Some((last, others)) = receipts.split_last() else {
            return Ok(());
        };
        for receipt in others {
            self.done_with(receipt.clone()).await?;
        }
        let answered = self.client.request(last.clone(), ACK.into()).await;
        answered.map(drop).map_err(failed("removing labels"))
    }

    async fn done_with(&self, receipt: Receipt) -> Result<(), CallError> {
        const WHAT: &str = "removing a message";
        let sent = async {
            self.client
                .publish(receipt, ACK.into())
                .await
                .map_err(failed(WHAT))
        };
        within(WHAT, sent).await
    }
}

fn was_gone(kind: &ConsumerErrorKind) -> bool {
    matches!(kind, ConsumerErrorKind::JetStream(error) if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
}

/// Creates a consumer that replaces the last session's consumer. The new consumer receives all labels in the stream.
async fn take_over(stream: &Stream) -> Result<Consumer<pull::Config>, CallError> {
    if let Err(error) = stream.delete_consumer(CONSUMER).await
        && !was_gone(&error.kind())
    {
        return Err(failed("removing the last session's consumer")(error));
    }
    let config = pull::Config {
        durable_name: Some(CONSUMER.into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: PATIENCE,
        max_ack_pending: -1,
        ..pull::Config::default()
    };
    stream
        .create_consumer(config)
        .await
        .map_err(failed("creating a consumer"))
}
