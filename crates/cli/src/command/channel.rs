//! `tidemill channel`: messages in one order, through a workspace.

mod bench;

use crate::context::{CommandContext, credentials};
use crate::format::{self, ByteSize, TimeLength};
use crate::output::Message;
use crate::output::messages::{DeletedConsumer, ReceivedMessage, SentMessages};
use crate::output::workspace::{self, Channels, ListedChannel};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidemill_client::channel::{self, Channel};
use tidemill_client::{Error, Server};
use tidemill_core::channel::{BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, MESSAGE_BYTES_MAX, is_name};
use tidemill_wire::route::{self, ChannelReading};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill channel create m51 steps --capacity 64MiB           create a channel in the workspace m51
  tidemill channel send m51 steps step.dat --wait --timeout 1m     send a file as a message; wait for space
  ./simulate | tidemill channel send m51 steps --lines         send each line as a message
  tidemill channel receive m51 steps --from 7                  message 7, or the next message that exists
  tidemill channel receive m51 steps --consumer plot --wait    wait for the next message of this consumer
  tidemill channel receive m51 steps --consumer plot -n 100 --json
  tidemill channel list m51
  tidemill channel delete-consumer m51 steps plot              the channel keeps no more messages for it
  tidemill channel delete m51 steps
  tidemill channel bench m51                                   measure messages through the workspace m51

A message is deleted when all named consumers have received it. Without consumers, all messages are kept.";

/// Time that a sender or a receiver waits for an offline node, unless it waits longer for messages or space.
const PATIENCE: Duration = Duration::from_secs(10);
/// Wait without a limit: centuries.
const UNLIMITED: Duration = Duration::from_nanos(u64::MAX);
/// Bytes of lines that are sent at once.
const LINES_BYTES: u64 = 256 << 10;

/// Manage channels: send messages through a workspace and receive them in the order of sending
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ChannelCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ChannelCommand {
    /// Create a channel in a workspace
    Create {
        /// Workspace name
        workspace: String,
        /// Channel name
        channel: String,
        /// Capacity of the channel. The server reserves it at once in the workspace's quota and on a node [default: 16MiB]
        #[arg(long, value_name = "SIZE")]
        capacity: Option<ByteSize>,
    },
    /// List the channels of a workspace
    List {
        /// Workspace name
        workspace: String,
    },
    /// Send files, or standard input, as messages
    Send(Send),
    /// Print messages
    Receive(Receive),
    /// Delete a channel and its messages
    Delete {
        /// Workspace name
        workspace: String,
        /// Channel name
        channel: String,
    },
    /// Delete a consumer, so that the channel keeps no messages for it
    DeleteConsumer {
        /// Workspace name
        workspace: String,
        /// Channel name
        channel: String,
        /// Consumer name
        consumer: String,
    },
    Bench(bench::Args),
}

#[derive(Debug, clap::Args)]
struct Send {
    /// Workspace name
    workspace: String,
    /// Channel name
    channel: String,
    /// Files of up to 1 MiB, each a message [default: standard input]
    files: Vec<PathBuf>,
    /// Send each line of standard input as a message
    #[arg(long, conflicts_with = "files")]
    lines: bool,
    /// Wait for space in the channel
    #[arg(long)]
    wait: bool,
    /// Maximum time of --wait, such as 30s [default: no limit]
    #[arg(long, value_name = "TIME", requires = "wait")]
    timeout: Option<TimeLength>,
}

#[derive(Debug, clap::Args)]
struct Receive {
    /// Workspace name
    workspace: String,
    /// Channel name
    channel: String,
    /// Name of a consumer. The channel remembers its position: a printed message counts as received
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Number of the first message, or of the next message that exists. A consumer continues there
    #[arg(long, value_name = "NUMBER")]
    from: Option<u64>,
    /// Number of messages
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1)]
    count: u64,
    /// Print a line feed after each message, for messages of --lines
    #[arg(long)]
    lines: bool,
    /// Wait for each message
    #[arg(long)]
    wait: bool,
    /// Maximum time of --wait for each message, such as 30s [default: no limit]
    #[arg(long, value_name = "TIME", requires = "wait")]
    timeout: Option<TimeLength>,
}

/// Returns the longest time that `--wait` and `--timeout` allow.
pub(super) fn wait_limit(wait: bool, timeout: Option<TimeLength>) -> Duration {
    match (wait, timeout) {
        (false, _) => Duration::ZERO,
        (true, None) => UNLIMITED,
        (true, Some(TimeLength(timeout))) => timeout,
    }
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    match args.command {
        ChannelCommand::Create {
            workspace,
            channel,
            capacity,
        } => {
            let capacity = capacity.map_or(0, |ByteSize(bytes)| bytes);
            let names = (workspace.as_str(), channel.as_str());
            let made = Channel::create(&server, credentials(), names, capacity).await;
            let (_, made) = made?;
            let kept = if made.memory { "in memory" } else { "on disk" };
            let text = format!("channel {channel} is created, {kept} of node {}", made.node);
            context
                .output
                .show(&Message(text, workspace::Channel::from(&made)))?;
        }
        ChannelCommand::List { workspace } => list(&workspace, context, &server).await?,
        ChannelCommand::Send(args) => send(args, context, &server).await?,
        ChannelCommand::Receive(args) => receive(&args, context, &server).await?,
        ChannelCommand::Bench(args) => return bench::run(args, context, &server).await,
        ChannelCommand::DeleteConsumer {
            workspace,
            channel,
            consumer,
        } => {
            need_name(&consumer)?;
            let mut used = Channel::new(&server, credentials(), &workspace, &channel);
            used.forget(&consumer).await?;
            let text = format!("consumer {consumer} of channel {channel} is deleted");
            let deleted = DeletedConsumer {
                workspace,
                channel,
                consumer,
            };
            context.output.show(&Message(text, deleted))?;
        }
        ChannelCommand::Delete { workspace, channel } => {
            let request = v1::ChannelRequest {
                credentials: Some(credentials()),
                workspace,
                channel,
            };
            let deleted = server.answer(server.workspaces().remove_channel(request).await)?;
            let text = format!("channel {} is deleted", deleted.channel);
            context
                .output
                .show(&Message(text, workspace::Channel::from(&deleted)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn need_name(consumer: &str) -> anyhow::Result<()> {
    if !is_name(consumer) {
        bail!(
            "bad consumer name: {consumer:?}; give up to 64 letters, digits, dots, dashes and underscores, not a dot first"
        );
    }
    Ok(())
}

async fn list(workspace: &str, context: &CommandContext, server: &Server) -> anyhow::Result<()> {
    let request = v1::WorkspaceRequest {
        credentials: Some(credentials()),
        name: workspace.to_owned(),
    };
    let listed = server.answer(server.workspaces().channels(request).await)?;
    let mut all = Vec::new();
    for channel in listed.channels {
        let mut used = Channel::new(server, credentials(), workspace, &channel.channel);
        let state = match channel.lost {
            true => None,
            // An offline node cannot report the state of its channels.
            false => used.state().await.ok(),
        };
        let state = state.as_ref().map(Into::into);
        all.push(ListedChannel {
            channel: (&channel).into(),
            state,
        });
    }
    context.output.show(&Channels(all))?;
    Ok(())
}

/// Sender of messages to a channel, which waits for space.
struct Sender {
    channel: Channel,
    wait: Duration,
    sent: Option<(u64, u64)>,
}

impl Sender {
    async fn send(&mut self, messages: &[Bytes]) -> anyhow::Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let first = self.channel.send(messages, self.wait).await?;
        let last = first + messages.len() as u64 - 1;
        self.sent = Some((self.sent.map_or(first, |(first, _)| first), last));
        Ok(())
    }
}

async fn send(args: Send, context: &CommandContext, server: &Server) -> anyhow::Result<()> {
    let mut sender = Sender {
        channel: Channel::new(server, credentials(), &args.workspace, &args.channel),
        wait: wait_limit(args.wait, args.timeout),
        sent: None,
    };
    if args.lines {
        send_lines(&mut sender).await?;
    } else if args.files.is_empty() {
        let message = read(std::io::stdin().lock(), "standard input")?;
        sender.send(&[message]).await?;
    }
    for path in &args.files {
        let shown = path.display().to_string();
        let file = std::fs::File::open(path).with_context(|| shown.clone())?;
        sender.send(&[read(file, &shown)?]).await?;
    }
    let text = match sender.sent {
        None => "there was nothing to send".to_owned(),
        Some((first, last)) if first == last => format!("message {first}"),
        Some((first, last)) => format!("messages {first} to {last}, if nobody else sent between"),
    };
    let (first, last) = sender.sent.unzip();
    let (workspace, channel) = (args.workspace, args.channel);
    let sent = SentMessages {
        workspace,
        channel,
        first,
        last,
    };
    context.output.show(&Message(text, sent))?;
    Ok(())
}

/// Reads a message of at most the maximum size.
fn read(from: impl Read, what: &str) -> anyhow::Result<Bytes> {
    let mut message = Vec::new();
    let mut from = from.take(MESSAGE_BYTES_MAX + 1);
    from.read_to_end(&mut message)
        .with_context(|| what.to_owned())?;
    need_short(&message, what)?;
    Ok(message.into())
}

fn need_short(message: &[u8], what: &str) -> anyhow::Result<()> {
    if message.len() as u64 > MESSAGE_BYTES_MAX {
        bail!(
            "{what} is longer than the maximum of a message, {}: put it into a file of the workspace, and send the file's name",
            format::bytes(MESSAGE_BYTES_MAX)
        );
    }
    Ok(())
}

/// Sends lines as they arrive, as many at once as are available.
async fn send_lines(sender: &mut Sender) -> anyhow::Result<()> {
    let mut lines = BufReader::with_capacity(1 << 16, std::io::stdin().lock());
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        let mut one = (&mut lines).take(MESSAGE_BYTES_MAX + 2);
        let ended = one.read_until(b'\n', &mut line).context("standard input")? == 0;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if !ended {
            need_short(&line, "a line")?;
            bytes += line.len() as u64 + 4;
            batch.push(Bytes::from(line));
        }
        let full = bytes >= LINES_BYTES || batch.len() as u64 >= BATCH_MESSAGES_MAX.into();
        if ended || full || lines.buffer().is_empty() {
            sender.send(&batch).await?;
            (batch, bytes) = (Vec::new(), 0);
        }
        if ended {
            return Ok(());
        }
    }
}

async fn receive(args: &Receive, context: &CommandContext, server: &Server) -> anyhow::Result<()> {
    if let Some(consumer) = &args.consumer {
        need_name(consumer)?;
    }
    let mut channel = Channel::new(server, credentials(), &args.workspace, &args.channel);
    let wait = wait_limit(args.wait, args.timeout);
    let mut reading = ChannelReading {
        from: args.from,
        consumer: args.consumer.clone(),
        ..ChannelReading::default()
    };
    let mut left = args.count;
    while left > 0 {
        let received = patient(&mut channel, &reading, wait).await?;
        if received.is_empty() {
            let got = args.count - left;
            bail!(
                "channel {} has no further message for you yet, after {}",
                args.channel,
                format::count(got, "message")
            );
        }
        let many = usize::try_from(left).unwrap_or(usize::MAX);
        let taken = &received[..received.len().min(many)];
        write(taken, args.lines, context)?;
        left -= taken.len() as u64;
        let next = taken.last().map_or(0, |message| message.number + 1);
        match &args.consumer {
            // Acknowledges the last printed message, so that it is not printed again.
            Some(consumer) if left == 0 => {
                channel
                    .acknowledge(consumer, next, wait.max(PATIENCE))
                    .await?;
            }
            Some(_) => (reading.from, reading.read) = (None, Some(next)),
            None => reading.from = Some(next),
        }
    }
    Ok(())
}

/// Receives messages, and retries while the node is offline for a moment.
async fn patient(
    channel: &mut Channel,
    reading: &ChannelReading,
    wait: Duration,
) -> Result<Vec<channel::Message>, Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        match channel.receive(reading, wait).await {
            Err(error) if error.is_lost() && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            other => return other,
        }
    }
}

fn write(
    messages: &[channel::Message],
    lines: bool,
    context: &CommandContext,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for message in messages {
        if context.output.json {
            let text = String::from_utf8(message.bytes.to_vec()).ok();
            context.output.step(&Message(
                String::new(),
                ReceivedMessage {
                    number: message.number,
                    hex: text.is_none().then(|| route::hex(&message.bytes)),
                    text,
                },
            ))?;
        } else {
            out.write_all(&message.bytes)?;
            if lines {
                out.write_all(b"\n")?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

// A batch of lines is one request.
const _: () = assert!(LINES_BYTES + MESSAGE_BYTES_MAX + 8 < BATCH_BYTES_MAX);
