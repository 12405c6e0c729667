//! HTTP routes of channels; `tidemill_wire::route` lists them. They use the node's channels.

use super::kept::{Kept, RECORD_BYTES, Sent, Trouble};
use super::{Channel, ChannelError, Channels};
use crate::http::{Answer, Context, Refused, collect};
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
    BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, Batch, MESSAGE_BYTES_MAX, is_name,
};
use tidemill_core::id::ObjectId;
use tidemill_wire::capability::{Capability, rights};
use tidemill_wire::route::{
    ChannelReading, ChannelRoom, ChannelSending, ChannelState, Sent as SentReply,
};
use tokio::time::Instant;

/// Maximum waiting time of one request. A client that wants to wait longer repeats the request.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) fn routes() -> Router<Context> {
    Router::new()
        .route("/channels/{id}", get(state).post(make))
        .route("/channels/{id}/messages", get(receive).post(send))
        .route("/channels/{id}/room", get(room))
        .route(
            "/channels/{id}/readers/{name}",
            post(acknowledge).delete(forget),
        )
}

/// Channel of a request. Its methods run work on the channel on threads that may block.
struct Use {
    channels: Arc<Channels>,
    channel: Arc<Channel>,
    object: ObjectId,
}

impl Use {
    fn of(context: &Context, shown: &Capability, id: &str, wanted: u32) -> Result<Self, Refused> {
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
        work: impl FnOnce(&mut Kept) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Refused> {
        let (channels, channel) = (Arc::clone(&self.channels), Arc::clone(&self.channel));
        let object = self.object;
        let work = move || channels.with(object, &channel, work);
        Ok(tokio::task::spawn_blocking(work).await??)
    }

    /// Calls `work` after each change of the channel until it returns a value, or until the time is over.
    async fn until<T: Send + 'static>(
        &self,
        wait_ms: u64,
        work: impl Fn(&mut Kept) -> Result<Option<T>, Trouble> + Clone + Send + 'static,
    ) -> Result<Option<T>, Refused> {
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
    State(context): State<Context>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
) -> Answer {
    let object = context.authorize(&shown, &id, rights::CREATE)?;
    let channels = Arc::clone(&context.daemon().parts().channels);
    let capacity = channels.awaited(object).await.ok_or(ChannelError::None)?;
    tokio::task::spawn_blocking(move || channels.make(object, capacity)).await??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn state(
    State(context): State<Context>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
) -> Answer {
    let used = Use::of(&context, &shown, &id, 0)?;
    let state = used.with(|kept| {
        let log = &kept.log;
        let readers = log.readers().iter();
        let readers: BTreeMap<String, u64> = readers
            .map(|(name, reader)| (name.clone(), reader.next))
            .collect();
        Ok(ChannelState {
            first: log.head().1,
            next: log.next(),
            held_bytes: log.held_bytes(),
            capacity_bytes: log.capacity(),
            readers,
        })
    });
    Ok(Json(state.await?).into_response())
}

async fn send(
    State(context): State<Context>,
    Path(id): Path<String>,
    Query(ChannelSending { producer, sequence }): Query<ChannelSending>,
    Extension(shown): Extension<Capability>,
    body: Body,
) -> Answer {
    let used = Use::of(&context, &shown, &id, rights::SEND)?;
    let frames = {
        let _turn = context.body_of(shown.uid).await?;
        collect(body, usize::try_from(BATCH_BYTES_MAX).unwrap_or(usize::MAX)).await?
    };
    let batch = Batch {
        producer,
        sequence,
        count: count(&frames)?,
    };
    let sent = used.with(move |kept| kept.send(batch, &frames)).await?;
    let reply = match sent {
        Sent::Full => SentReply { first: None },
        Sent::As(first, new) => {
            if new {
                used.channel.changed.notify_waiters();
            }
            SentReply { first: Some(first) }
        }
    };
    Ok(Json(reply).into_response())
}

/// Returns the number of messages in a body.
fn count(frames: &Bytes) -> Result<u32, Refused> {
    let mut rest = &frames[..];
    let mut count = 0;
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>().ok_or(Refused::Bad(GARBAGE))?;
        let length = u32::from_le_bytes(*length);
        if u64::from(length) > MESSAGE_BYTES_MAX {
            return Err(Refused::TooLong(1 << 20));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        rest = after.get(length..).ok_or(Refused::Bad(GARBAGE))?;
        count += 1;
        if count > BATCH_MESSAGES_MAX {
            return Err(Refused::Bad("more messages than one request may send"));
        }
    }
    match count {
        0 => Err(Refused::Bad(GARBAGE)),
        count => Ok(count),
    }
}

const GARBAGE: &str =
    "the body is no messages, each after its length in four bytes, the lowest first";

/// Waits until that many bytes fit into the channel.
async fn room(
    State(context): State<Context>,
    Path(id): Path<String>,
    Query(ChannelRoom { bytes, wait_ms }): Query<ChannelRoom>,
    Extension(shown): Extension<Capability>,
) -> Answer {
    let used = Use::of(&context, &shown, &id, rights::SEND)?;
    let _turn = context.wait_of(shown.uid).await?;
    let fits = move |kept: &mut Kept| {
        let fits = kept.log.place(bytes.saturating_add(RECORD_BYTES));
        Ok(fits.map(|_| ()))
    };
    let fits = used.until(wait_ms, fits).await?;
    Ok(Json(fits.is_some()).into_response())
}

async fn receive(
    State(context): State<Context>,
    Path(id): Path<String>,
    Query(reading): Query<ChannelReading>,
    Extension(shown): Extension<Capability>,
) -> Answer {
    let ChannelReading {
        from,
        reader,
        read,
        bytes,
        wait_ms,
    } = reading;
    // A reader can block senders.
    let wanted = match reader {
        Some(_) => rights::RECEIVE | rights::SEND,
        None => rights::RECEIVE,
    };
    let used = Use::of(&context, &shown, &id, wanted)?;
    let bytes_max = bytes.unwrap_or(BATCH_BYTES_MAX);
    let _turn = context.wait_of(shown.uid).await?;
    let mut from = from;
    if let Some(name) = &reader {
        let name = reader_name(name)?;
        let begin = move |kept: &mut Kept| {
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
    let found = move |kept: &mut Kept| {
        let first = kept.log.head().1;
        let messages = kept.read(from.max(first), bytes_max)?;
        Ok((!messages.is_empty()).then_some(messages))
    };
    let messages = used.until(wait_ms, found).await?;
    Ok(messages.unwrap_or_default().into_response())
}

fn reader_name(name: &str) -> Result<String, Refused> {
    let good = is_name(name).then(|| name.to_owned());
    good.ok_or(Refused::Bad(
        "a reader's name has up to 64 letters, digits, dots, dashes and underscores, not a dot first",
    ))
}

#[derive(serde::Deserialize)]
struct Upto {
    read: u64,
}

async fn acknowledge(
    State(context): State<Context>,
    Path((id, name)): Path<(String, String)>,
    Query(Upto { read }): Query<Upto>,
    Extension(shown): Extension<Capability>,
) -> Answer {
    let used = Use::of(&context, &shown, &id, rights::RECEIVE | rights::SEND)?;
    let freed = used.with(move |kept| kept.acknowledge(&name, read)).await?;
    if freed {
        used.channel.changed.notify_waiters();
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn forget(
    State(context): State<Context>,
    Path((id, name)): Path<(String, String)>,
    Extension(shown): Extension<Capability>,
) -> Answer {
    let used = Use::of(&context, &shown, &id, rights::RECEIVE | rights::SEND)?;
    let freed = used.with(move |kept| kept.forget(&name)).await?;
    if freed {
        used.channel.changed.notify_waiters();
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
