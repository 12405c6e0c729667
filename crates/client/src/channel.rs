//! Channels of workspaces: ordered messages between programs, which a node stores (next: `node/src`).
//!
//! The server returns the node and the capability; afterwards the client needs only the node. Sent messages have their numbers when
//! [`Channel::send`] returns, and survive the kill of every process. A request whose answer was lost is repeated, and has its effect once.

use crate::error::Error;
use crate::objects::{ObjectAddress, Objects, address, lost};
use crate::server::Server;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::{Method, Request};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};
use tidemill_core::id::{NodeId, ObjectId};
use tidemill_wire::route::{CAPABILITY_HEADER, ChannelReading, ChannelState, SentMessages, hex};
use tidemill_wire::v1;

/// Pause before a request to an unreachable server or node is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time that one request waits for messages or space.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time after the requested wait after which an answer counts as lost.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number of the message. The numbers of a channel begin with 0 and have no gaps.
    pub number: u64,
    /// Content of the message.
    pub bytes: Bytes,
}

/// A channel of a workspace, as one producer or consumer uses it.
#[derive(Debug)]
pub struct Channel {
    server: Server,
    objects: Objects,
    request: v1::ChannelRequest,
    remote: Option<ObjectAddress>,
    producer: u64,
    sequence: u64,
    /// Whether the result of the last send is unknown.
    unsure: bool,
}

/// Returns messages in the form of a request's body: each message with its length before it.
#[must_use]
pub fn framed(messages: &[Bytes]) -> Bytes {
    let all: usize = messages.iter().map(|message| 4 + message.len()).sum();
    let mut frames = BytesMut::with_capacity(all);
    for message in messages {
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        frames.extend_from_slice(&length.to_le_bytes());
        frames.extend_from_slice(message);
    }
    frames.freeze()
}

/// Returns the messages of an answer's body; `None` if the body is invalid.
fn messages(mut body: Bytes) -> Option<Vec<Message>> {
    if body.is_empty() {
        return Some(Vec::new());
    }
    let mut number = u64::from_le_bytes(*body.first_chunk()?);
    let _ = body.split_to(8);
    let mut messages = Vec::new();
    while !body.is_empty() {
        let length = u32::from_le_bytes(*body.first_chunk()?);
        let length = usize::try_from(length).ok()?;
        let _ = body.split_to(4);
        if body.len() < length {
            return None;
        }
        let bytes = body.split_to(length);
        messages.push(Message { number, bytes });
        number += 1;
    }
    Some(messages)
}

impl Channel {
    /// Returns an existing channel. The function sends no request; the first use of the channel does.
    #[must_use]
    pub fn new(
        server: &Server,
        credentials: v1::Credentials,
        workspace: &str,
        channel: &str,
    ) -> Self {
        Self {
            objects: server.objects(),
            server: server.clone(),
            request: v1::ChannelRequest {
                credentials: Some(credentials),
                workspace: workspace.to_owned(),
                channel: channel.to_owned(),
            },
            remote: None,
            producer: 0,
            sequence: 0,
            unsure: true,
        }
    }

    /// Creates a channel with a capacity in bytes (0: 16 MiB), in memory if its workspace's directory requests memory and there is memory.
    ///
    /// # Errors
    /// A channel with this name exists, there are too many channels, or the workspace or every node has too little space. After an error no
    /// part of the channel remains.
    pub async fn create(
        server: &Server,
        credentials: v1::Credentials,
        (workspace, channel): (&str, &str),
        capacity_bytes: u64,
    ) -> Result<(Self, v1::Channel), Error> {
        let request = v1::CreateChannelRequest {
            credentials: Some(credentials.clone()),
            workspace: workspace.to_owned(),
            channel: channel.to_owned(),
            capacity_bytes,
        };
        let made = server.workspaces().create_channel(request).await;
        let made = made.map_err(|status| server.explain(status))?.into_inner();
        let mut channel = Self::new(server, credentials, workspace, channel);
        let remote = remote(&made);
        if let Err(error) = channel.ask(&remote, (Method::POST, ""), Bytes::new()).await {
            let removed = server
                .workspaces()
                .remove_channel(channel.request.clone())
                .await;
            if let Err(status) = removed {
                tracing::warn!(%status, "a channel that could not be created is still listed");
            }
            return Err(error);
        }
        channel.remote = Some(remote);
        Ok((channel, made))
    }

    async fn ask(
        &self,
        remote: &ObjectAddress,
        (method, path): (Method, &str),
        body: Bytes,
    ) -> Result<Bytes, Error> {
        let request = Request::builder()
            .method(method)
            .uri(format!(
                "{}/channels/{:016x}{path}",
                address(remote),
                remote.object.0
            ))
            .header(CAPABILITY_HEADER, hex(&remote.capability));
        let answer = async {
            let limit = WAIT_MAX + ANSWER_MAX;
            let response = self.objects.send_within(limit, remote, request, body);
            let response = response.await?;
            let body = response.into_body().collect().await;
            Ok(body.map_err(|error| lost(remote, &error))?.to_bytes())
        };
        let late = |_| Error::Node {
            url: remote.url.to_string(),
            reason: "it does not answer".to_owned(),
        };
        let answer = tokio::time::timeout(WAIT_MAX + ANSWER_MAX, answer).await;
        answer.map_err(late)?
    }

    /// Sends a request to the node until the time `until`, also across restarts of the node or the server.
    async fn asked(
        &mut self,
        until: Instant,
        question: (Method, &str),
        body: &Bytes,
    ) -> Result<Bytes, Error> {
        let mut renewed = false;
        loop {
            let asked = match self.opened().await {
                Ok(remote) => self.ask(&remote, question.clone(), body.clone()).await,
                Err(error) => Err(error),
            };
            match asked {
                // The right has expired, or was revoked.
                Err(Error::NodeRefused { status: 403, .. }) if !renewed => {
                    renewed = true;
                    self.remote = None;
                }
                Err(error) if error.is_lost() && Instant::now() < until => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    // A restarted node may have another address. Without a server the right remains in use as it is.
                    if matches!(error, Error::Node { .. })
                        && let Ok(remote) = self.open().await
                    {
                        self.remote = Some(remote);
                    }
                }
                other => return other,
            }
        }
    }

    async fn open(&self) -> Result<ObjectAddress, Error> {
        let opened = self
            .server
            .workspaces()
            .open_channel(self.request.clone())
            .await;
        let opened = opened.map_err(|status| self.server.explain(status))?;
        Ok(remote(&opened.into_inner()))
    }

    async fn opened(&mut self) -> Result<ObjectAddress, Error> {
        if let Some(remote) = &self.remote {
            return Ok(remote.clone());
        }
        let remote = self.open().await?;
        self.remote = Some(remote.clone());
        Ok(remote)
    }

    /// Sends all messages or none, and waits for space. Returns the number of the first message; the others follow it.
    ///
    /// # Errors
    /// [`Error::ChannelFull`] if the channel has no space in time. If neither the node nor the server can be reached in time, it is unknown
    /// whether the messages were stored.
    pub async fn send(&mut self, messages: &[Bytes], wait: Duration) -> Result<u64, Error> {
        if std::mem::replace(&mut self.unsure, true) {
            // The outcome of the earlier request must not be taken for the outcome of this request.
            self.producer = RandomState::new().hash_one((std::process::id(), Instant::now()));
            self.sequence = 0;
        }
        let until = Instant::now() + wait;
        let frames = framed(messages);
        let path = format!(
            "/messages?producer={}&sequence={}",
            self.producer, self.sequence
        );
        loop {
            let body = self.asked(until, (Method::POST, &path), &frames).await?;
            let sent: SentMessages =
                serde_json::from_slice(&body).map_err(|_| Error::Answer("send"))?;
            if let Some(first) = sent.first {
                self.sequence += messages.len() as u64;
                self.unsure = false;
                return Ok(first);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.unsure = false;
                return Err(Error::ChannelFull(self.request.channel.clone()));
            }
            let (bytes, wait_ms) = (frames.len(), millis(left));
            let path = format!("/space?bytes={bytes}&wait_ms={wait_ms}");
            self.asked(until, (Method::GET, &path), &Bytes::new())
                .await?;
        }
    }

    /// Receives messages in their order, and waits for the next messages. Returns no message if none arrived in time.
    ///
    /// # Errors
    /// Neither the node nor the server can be reached in time, or the channel was deleted.
    pub async fn receive(
        &mut self,
        reading: &ChannelReading,
        wait: Duration,
    ) -> Result<Vec<Message>, Error> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut path = format!("/messages?wait_ms={}", millis(left));
            let numbers = [
                ("from", reading.from),
                ("read", reading.read),
                ("bytes", reading.bytes),
            ];
            for (name, number) in numbers {
                if let Some(number) = number {
                    path.push_str(&format!("&{name}={number}"));
                }
            }
            if let Some(consumer) = &reading.consumer {
                path.push_str(&format!("&consumer={consumer}"));
            }
            let body = self
                .asked(until, (Method::GET, &path), &Bytes::new())
                .await?;
            let received = messages(body).ok_or(Error::Answer("receive"))?;
            if !received.is_empty() || Instant::now() >= until {
                return Ok(received);
            }
        }
    }

    /// Confirms that a consumer has read all messages before `next`. Messages that all consumers have read are dropped.
    ///
    /// # Errors
    /// The channel has no consumer with this name, or neither the node nor the server can be reached in time.
    pub async fn acknowledge(
        &mut self,
        consumer: &str,
        next: u64,
        wait: Duration,
    ) -> Result<(), Error> {
        let path = format!("/consumers/{consumer}?read={next}");
        let until = Instant::now() + wait;
        self.asked(until, (Method::POST, &path), &Bytes::new())
            .await
            .map(drop)
    }

    /// Removes a consumer, so that the channel no longer keeps messages for it.
    ///
    /// # Errors
    /// The channel has no consumer with this name, or neither the node nor the server can be reached.
    pub async fn forget(&mut self, consumer: &str) -> Result<(), Error> {
        let path = format!("/consumers/{consumer}");
        self.asked(Instant::now(), (Method::DELETE, &path), &Bytes::new())
            .await
            .map(drop)
    }

    /// Returns the state of the channel.
    ///
    /// # Errors
    /// The channel cannot be reached, or was deleted.
    pub async fn state(&mut self) -> Result<ChannelState, Error> {
        let body = self
            .asked(Instant::now(), (Method::GET, ""), &Bytes::new())
            .await?;
        serde_json::from_slice(&body).map_err(|_| Error::Answer("channel"))
    }
}

fn remote(channel: &v1::Channel) -> ObjectAddress {
    ObjectAddress {
        node: NodeId(channel.node),
        url: channel.url.as_str().into(),
        object: ObjectId(channel.object),
        capability: channel.capability.clone(),
    }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.min(WAIT_MAX).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_messages_decode_and_refuse_truncation() {
        let sent = [Bytes::from("one"), Bytes::new(), Bytes::from(vec![7; 300])];
        let mut body = 41_u64.to_le_bytes().to_vec();
        body.extend(framed(&sent));
        let read = messages(body.clone().into()).unwrap();
        let numbers: Vec<u64> = read.iter().map(|message| message.number).collect();
        assert_eq!(numbers, [41, 42, 43]);
        let bytes: Vec<Bytes> = read.into_iter().map(|message| message.bytes).collect();
        assert_eq!(bytes, sent);
        assert_eq!(messages(Bytes::new()), Some(Vec::new()));
        let whole = [8, 8 + 4 + 3, 8 + 4 + 3 + 4, body.len()];
        for end in 1..=body.len() {
            let cut = messages(body[..end].to_vec().into());
            assert_eq!(cut.is_some(), whole.contains(&end), "{end}");
        }
    }
}
