//! `tidemill channel bench`: measures messages from a sender to a receiver.

use crate::context::{CommandContext, credentials};
use crate::format::Span;
use crate::output::Message;
use crate::output::messages::ChannelRates;
use anyhow::Context as _;
use bytes::Bytes;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidemill_client::channel::Channel;
use tidemill_client::{Error, Server};
use tidemill_wire::route::ChannelReading;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill channel bench m51                           in your workspace m51
  tidemill channel bench m51 --bytes 1024 --batch 64

The command creates a channel `bench` in the workspace, and deletes it at the end.";

/// Name of the channel.
const NAME: &str = "bench";
/// Capacity of the channel.
const CAPACITY_BYTES: u64 = 64 << 20;
const WAIT: Duration = Duration::from_secs(30);

/// Measure the time and rate of messages through a channel. A second connection receives them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Workspace name
    workspace: String,
    /// Size of a message, in bytes
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    bytes: usize,
    /// Number of messages of the first test, which sends each message after the receipt of the previous message
    #[arg(long, value_name = "COUNT", default_value_t = 2000)]
    turns: u32,
    /// Number of messages of the second test, which sends as fast as the receiver accepts
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    messages: u64,
    /// Number of messages in each request of the second test
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    batch: usize,
}

pub(super) async fn run(
    args: Args,
    context: &CommandContext,
    server: &Server,
) -> anyhow::Result<ExitCode> {
    let names = (args.workspace.as_str(), NAME);
    let (sender, made) = Channel::create(server, credentials(), names, CAPACITY_BYTES).await?;
    let measured = measure(&args, server, sender).await;
    let request = v1::ChannelRequest {
        credentials: Some(credentials()),
        workspace: args.workspace.clone(),
        channel: NAME.to_owned(),
    };
    let deleted = server.workspaces().remove_channel(request).await;
    let (mut times, took) = measured?;
    deleted.context("the channel could not be deleted")?;
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied();
    let nanos = |time: Option<Duration>| u64::try_from(time.unwrap_or_default().as_nanos());
    let (p50_ns, p99_ns) = (Span(nanos(at(50))?), Span(nanos(at(99))?));
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = args.messages as f64 / took.as_secs_f64().max(1e-9);
    let text = format!(
        "send to receive {p50_ns} (p50), {p99_ns} (p99); {rate:.0} messages/s of {} bytes, {} at once",
        args.bytes, args.batch,
    );
    let rates = ChannelRates {
        bytes: args.bytes,
        memory: made.memory,
        p50_ns,
        p99_ns,
        batch: args.batch,
        messages_per_s: rate,
    };
    context.output.finish(&Message(text, rates))
}

/// Returns the time of each turn, and the time of all messages of the second test.
async fn measure(
    args: &Args,
    server: &Server,
    mut sender: Channel,
) -> Result<(Vec<Duration>, Duration), Error> {
    let message = Bytes::from(vec![b'm'; args.bytes]);
    let (turns, all) = (u64::from(args.turns), args.messages);
    let (notices, mut heard) = tokio::sync::mpsc::unbounded_channel::<u64>();
    let mut receiver = Channel::new(server, credentials(), &args.workspace, NAME);
    // Registers the consumer before the first message is sent. Otherwise nothing would hold the message.
    let mut reading = ChannelReading {
        consumer: Some(NAME.to_owned()),
        ..ChannelReading::default()
    };
    receiver.receive(&reading, Duration::ZERO).await?;
    let receives = async move {
        let mut next = 0;
        while next < turns + all {
            let received = receiver.receive(&reading, WAIT).await?;
            let Some(last) = received.last() else {
                return Err(Error::Answer("receive"));
            };
            next = last.number + 1;
            reading.read = Some(next);
            // If this fails, the receiver has stopped already.
            let _ = notices.send(next);
        }
        Ok(())
    };
    let sends = async {
        let mut times = Vec::with_capacity(args.turns as usize);
        for turn in 1..=turns {
            let began = Instant::now();
            sender.send(std::slice::from_ref(&message), WAIT).await?;
            while heard.recv().await.is_some_and(|next| next < turn) {}
            times.push(began.elapsed());
        }
        let batch = vec![message.clone(); args.batch.max(1)];
        let (began, mut sent) = (Instant::now(), 0);
        while sent < all {
            let left = usize::try_from(all - sent).unwrap_or(usize::MAX);
            let now = &batch[..batch.len().min(left)];
            sender.send(now, WAIT).await?;
            sent += now.len() as u64;
        }
        while heard.recv().await.is_some_and(|next| next < turns + all) {}
        Ok((times, began.elapsed()))
    };
    // The receiver has a thread of its own.
    let receives = tokio::spawn(receives);
    let sent = sends.await;
    match sent {
        Ok(sent) => {
            let received = receives.await;
            received
                .map_err(|_| Error::Answer("receive"))?
                .map(|()| sent)
        }
        Err(error) => {
            receives.abort();
            Err(error)
        }
    }
}
