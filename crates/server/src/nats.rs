//! Connections to NATS servers with JetStream, for the queue of labels and the replicated log (next: `server/src/queue/nats.rs`,
//! `server/src/replication/mod.rs`).
//!
//! **Invariant**: every wait of [`within`] ends after [`ANSWER`].

use crate::queue::Address;
use crate::queue::address::Secret;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, GetStreamErrorKind};
use async_nats::jetstream::stream::{self, LastRawMessageError, LastRawMessageErrorKind, Stream};
use async_nats::{Client, ConnectOptions};
use std::fmt::Display;
use std::time::Duration;

/// Time limit for an answer of the NATS servers.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);

/// Interval of requests to a NATS server that must be answered; the third one without an answer ends the connection.
const PING: Duration = Duration::from_secs(1);

/// Reason why a call to the NATS servers failed.
pub(crate) type CallError = String;

/// Returns a function that adds the name of the failed action to an error.
pub(crate) fn failed<E: Display>(what: &'static str) -> impl Fn(E) -> CallError {
    move |error| format!("{what}: {error}")
}

/// Waits for an action, at most as long as an answer may take.
pub(crate) async fn within<T>(
    what: &'static str,
    doing: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let done = tokio::time::timeout(ANSWER, doing).await;
    done.unwrap_or_else(|_| Err(format!("{what}: no answer for {} s", ANSWER.as_secs())))
}

/// Connects to NATS servers, under a name that their administrators see.
pub(crate) async fn connect(address: &Address, name: String) -> Result<Client, CallError> {
    let mut options = ConnectOptions::new()
        .name(name)
        .connection_timeout(ANSWER)
        .ping_interval(PING)
        .request_timeout(Some(ANSWER));
    options = match address.secret() {
        None => options,
        Some(Secret::Token(token)) => options.token(token.clone()),
        Some(Secret::User(user, password)) => {
            options.user_and_password(user.clone(), password.clone())
        }
    };
    let servers = address.servers().to_vec();
    options.connect(servers).await.map_err(failed("connecting"))
}

/// Returns a stream, and creates the stream if it is missing.
pub(crate) async fn find_stream(
    context: &Context,
    wanted: stream::Config,
) -> Result<Stream, CallError> {
    let found = match context.get_stream(&wanted.name).await {
        Ok(found) => found,
        Err(error) if is_gone(&error.kind()) => {
            let made = context.create_stream(wanted).await;
            return made.map_err(failed("creating the stream"));
        }
        Err(error) => return Err(failed("looking for the stream")(error)),
    };
    let is = &found.cached_info().config;
    if is.retention != wanted.retention || is.subjects != wanted.subjects || is.no_ack {
        let name = &wanted.name;
        return Err(format!(
            "stream {name} has other settings than Tidemill uses; remove it, and Tidemill recreates it"
        ));
    }
    if is.num_replicas != wanted.num_replicas {
        let mut config = is.clone();
        config.num_replicas = wanted.num_replicas;
        let changed = context.update_stream(config).await;
        changed.map_err(failed("changing the number of replicas"))?;
    }
    Ok(found)
}

fn is_gone(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

/// Whether a stream has no message with the subject that was asked for.
pub(crate) fn is_no_message(error: &LastRawMessageError) -> bool {
    match error.kind() {
        LastRawMessageErrorKind::NoMessageFound => true,
        LastRawMessageErrorKind::JetStream(error) => {
            error.error_code() == ErrorCode::NO_MESSAGE_FOUND
        }
        _ => false,
    }
}
