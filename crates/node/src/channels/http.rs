//! Handlers of the HTTP routes of channels, which `tidemill_wire::route` lists. The handlers use the node's channels.

use super::ring_file::{OpenChannel, OpenChannelError, RECORD_BYTES, SendOutcome};
use super::{ChannelError, Channels, UsedChannel};
use crate::http::{HttpContext, HttpRefusal, HttpResult, collect};
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::channel::{
    BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, MESSAGE_BYTES_MAX, MessageBatch, is_name,
};
use tidemill_core::id::ObjectId;
use tidemill_wire::capability::{Capability, rights};
use tidemill_wire::route::{
    ChannelReading, ChannelSending, ChannelSpace, ChannelState, SentMessages as SentReply,
};
use tokio::time::Instant;

/// Maximum time that one request waits. A client that wants to wait longer repeats the request.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) fn routes() -> Router<HttpContext> {
    Router::new()
        .route("/channels/{id}", get(state).post(make))
        .route("/channels/{id}/messages", get(receive).post(send))
        .route("/channels/{id}/space", get(space))
        .route(
            "/channels/{id}/consumers/{name}",
            post(acknowledge).delete(forget),
        )
}

/// Channel of a request. The methods run work on the channel on threads that may block.
struct Use {
    channels: Arc<Channels>,
    channel: Arc<UsedChannel>,
    object: ObjectId,
}

impl Use {
    fn of(
        context: &HttpContext,
        shown: &Capability,
        id: &str,
        wanted: u32,
    ) -> Result<Self, HttpRefusal> {
        let object = context.authorize(shown, id, wanted)?;
        let channels = Arc::clone(&context.daemon().parts().channels);
        let channel = channels.find(object)?;
        Ok(Self {
            channels,
            channel,
            object,
        })
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut OpenChannel) -> Result<T, OpenChannelError> + Send + 'static,
    ) -> Result<T, HttpRefusal> {
        let (channels, channel) = (Arc::clone(&self.channels), Arc::clone(&self.channel));
        let object = self.object;
        let work = move || channels.with(object, &channel, work);
        Ok(tokio::task::spawn_blocking(work).await??)
    }

    /// Calls `work` after each change of the channel until it returns a value, or until the time limit.
    async fn until<T: Send + 'static>(
        &self,
        wait_ms: u64,
        work: impl Fn(&mut OpenChannel) -> Result<Option<T>, OpenChannelError> + Clone + Send + 'static,
    ) -> Result<Option<T>, HttpRefusal> {
        let until = Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
        loop {
            let mut changed = std::pin::pin!(self.channel.changed.notified());
            changed.as_mut().enable();
            if let Some(done) = self.with(work.clone()).await? {
                return Ok(Some(done));
            }
            if tokio::time::timeout_at(until, changed).await.is_err() {
                return Ok(None);
            }
        }
    }
}

/// Creates a channel that the server has announced.
async fn make(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::CREATE)?;
    let channels = Arc::clone(&context.daemon().parts().channels);
    let capacity = channels.awaited(object).await.ok_or(ChannelError::None)?;
    tokio::task::spawn_blocking(move || channels.make(object, capacity)).await??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn state(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let used = Use::of(&context, &shown, &id, 0)?;
    let state = used.with(|kept| {
        let log = &kept.log;
        let consumers = log.consumers().iter();
        let consumers: BTreeMap<String, u64> = consumers
            .map(|(name, consumer)| (name.clone(), consumer.next))
            .collect();
        Ok(ChannelState {
            first: log.head().1,
            next: log.next(),
            held_bytes: log.held_bytes(),
            capacity_bytes: log.capacity(),
            consumers,
        })
    });
    Ok(Json(state.await?).into_response())
}

async fn send(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(ChannelSending { producer, sequence }): Query<ChannelSending>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> HttpResult {
    let used = Use::of(&context, &shown, &id, rights::SEND)?;
    let frames = {
        let _turn = context.body_of(shown.uid).await?;
        collect(body, usize::try_from(BATCH_BYTES_MAX).unwrap_or(usize::MAX)).await?
    };
    let batch = MessageBatch {
        producer,
        sequence,
        count: count(&frames)?,
    };
    let sent = used.with(move |kept| kept.send(batch, &frames)).await?;
    let reply = match sent {
        SendOutcome::Full => SentReply { first: None },
        SendOutcome::As(first, new) => {
            if new {
                used.channel.changed.notify_waiters();
            }
            SentReply { first: Some(first) }
        }
    };
    Ok(Json(reply).into_response())
}

/// Returns the number of messages in a request's body.
fn count(frames: &Bytes) -> Result<u32, HttpRefusal> {
    let mut rest = &frames[..];
    let mut count = 0;
    while !rest.is_empty() {
        let (length, after) = rest
            .split_first_chunk::<4>()
            .ok_or(HttpRefusal::Bad(GARBAGE))?;
        let length = u32::from_le_bytes(*length);
        if u64::from(length) > MESSAGE_BYTES_MAX {
            return Err(HttpRefusal::TooLong(1 << 20));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        rest = after.get(length..).ok_or(HttpRefusal::Bad(GARBAGE))?;
        count += 1;
        if count > BATCH_MESSAGES_MAX {
            return Err(HttpRefusal::Bad("more messages than one request may send"));
        }
    }
    match count {
        0 => Err(HttpRefusal::Bad(GARBAGE)),
        count => Ok(count),
    }
}

const GARBAGE: &str =
    "the body is not a list of messages, each after its length in four bytes, the lowest first";

/// Waits until the requested number of bytes fits into the channel.
async fn space(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(ChannelSpace { bytes, wait_ms }): Query<ChannelSpace>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let used = Use::of(&context, &shown, &id, rights::SEND)?;
    let _turn = context.wait_of(shown.uid).await?;
    let fits = move |kept: &mut OpenChannel| {
        let fits = kept.log.place(bytes.saturating_add(RECORD_BYTES));
        Ok(fits.map(|_| ()))
    };
    let fits = used.until(wait_ms, fits).await?;
    Ok(Json(fits.is_some()).into_response())
}

async fn receive(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(reading): Query<ChannelReading>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let ChannelReading {
        from,
        consumer,
        read,
        bytes,
        wait_ms,
    } = reading;
    // A consumer can block senders.
    let wanted = match consumer {
        Some(_) => rights::RECEIVE | rights::SEND,
        None => rights::RECEIVE,
    };
    let used = Use::of(&context, &shown, &id, wanted)?;
    let bytes_max = bytes.unwrap_or(BATCH_BYTES_MAX);
    let _turn = context.wait_of(shown.uid).await?;
    let mut from = from;
    if let Some(name) = &consumer {
        let name = consumer_name(name)?;
        let begin = move |kept: &mut OpenChannel| {
            let next = kept.begin(&name, from)?;
            match read {
                Some(read) => Ok((read, kept.acknowledge(&name, read)?)),
                None => Ok((next, true)),
            }
        };
        let (next, freed) = used.with(begin).await?;
        if freed {
            used.channel.changed.notify_waiters();
        }
        from = Some(next);
    }
    let from = from.unwrap_or(0);
    let found = move |kept: &mut OpenChannel| {
        let first = kept.log.head().1;
        let messages = kept.read(from.max(first), bytes_max)?;
        Ok((!messages.is_empty()).then_some(messages))
    };
    let messages = used.until(wait_ms, found).await?;
    Ok(messages.unwrap_or_default().into_response())
}

fn consumer_name(name: &str) -> Result<String, HttpRefusal> {
    let good = is_name(name).then(|| name.to_owned());
    good.ok_or(HttpRefusal::Bad(
        "a consumer's name has up to 64 letters, digits, dots, dashes and underscores, not a dot first",
    ))
}

#[derive(serde::Deserialize)]
struct Upto {
    read: u64,
}

async fn acknowledge(
    State(context): State<HttpContext>,
    Path((id, name)): Path<(String, String)>,
    Query(Upto { read }): Query<Upto>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let used = Use::of(&context, &shown, &id, rights::RECEIVE | rights::SEND)?;
    let freed = used.with(move |kept| kept.acknowledge(&name, read)).await?;
    if freed {
        used.channel.changed.notify_waiters();
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn forget(
    State(context): State<HttpContext>,
    Path((id, name)): Path<(String, String)>,
    Extension(shown): Extension<Capability>,
) -> HttpResult {
    let used = Use::of(&context, &shown, &id, rights::RECEIVE | rights::SEND)?;
    let freed = used.with(move |kept| kept.forget(&name)).await?;
    if freed {
        used.channel.changed.notify_waiters();
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
