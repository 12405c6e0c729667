//! Leader of a task with ranks. The leader starts ranks on other nodes over connections, distributes the values of each barrier, and writes
//! the output of all ranks to one file.
//!
//! All ranks end with the first rank that fails, and with the connections of the leader's node if that node is killed.

use super::{ALIVE_EVERY, BarrierValues, RankLocation, Word, receive_soon, send_word};
use crate::executor::ExecutorParts;
use crate::fetch::{FetchError, InputLocations};
use crate::labels::Live;
use crate::task::{failure, input_locations};
use prost::Message as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::time::Duration;
use tidemill_client::objects::{DedicatedConnection, ObjectAddress};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::label::{Analysis, Failure, FailureKind, Kernel, Outcome, TAIL_BYTES_MAX};
use tidemill_model::time::Span;
use tidemill_sandbox::peers::RANKS_MAX;
use tidemill_wire::v1;
use tokio::io::{AsyncRead, AsyncReadExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Time limit for a node's answer that it starts a rank.
const OPEN_MAX: Duration = Duration::from_secs(30);

/// Time in which other ranks may still report their outcome after a failure, because another rank may have caused the failure.
const CAUSES: Duration = Duration::from_secs(2);

/// Interval of checks whether the label was cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Number of lines, and of characters, of a failed rank's standard error in the message of the failure.
const LINES: usize = 3;
const PRINTED_MAX: usize = 500;

/// Maximum number of bytes per read of a rank's output.
const PIECE_BYTES: usize = 1 << 20;

/// Resource use and printed output of all ranks of a task.
#[derive(Debug, Default)]
pub(crate) struct LeadResult {
    pub(crate) cpu: Span,
    pub(crate) memory_bytes: u64,
    pub(crate) transferred_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) kernel_hash: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl LeadResult {
    fn add(&mut self, rank: usize, outcome: &Outcome) {
        self.cpu = self.cpu + outcome.cpu;
        self.memory_bytes = self.memory_bytes.max(outcome.memory_bytes);
        self.transferred_bytes += outcome.transferred_bytes;
        self.read_bytes += outcome.read_bytes;
        self.kernel_hash.clone_from(&outcome.kernel_hash);
        for (all, printed) in [
            (&mut self.stdout, &outcome.stdout),
            (&mut self.stderr, &outcome.stderr),
        ] {
            for line in printed.lines() {
                let line = format!("[{rank}] {line}\n");
                if all.len() + line.len() <= TAIL_BYTES_MAX {
                    all.push_str(&line);
                }
            }
        }
    }
}

/// Runs a task on all its nodes and writes the output of its ranks to a file, in their order. Blocks.
///
/// # Errors
/// The failure of the rank that failed first.
pub(crate) fn lead(
    (parts, live): (&ExecutorParts, &Live),
    analysis: &Analysis,
    (out, led): (&mut File, &mut LeadResult),
) -> Result<(), Failure> {
    if !matches!(analysis.kernel, Kernel::Native { .. }) {
        let what = "with mpi, the kernel must be a shared object of your own";
        return Err(failure(FailureKind::Kernel, what.to_owned()));
    }
    let places = places((parts, live), analysis)?;
    let label = live.message().encode_to_vec();
    parts.fetcher.runtime().block_on(async {
        loop {
            let mut run = RunningRanks::start(parts, &label, &places).await?;
            let limit = analysis.limits.output_bytes;
            let stale = run.until_ended(live).await;
            for (rank, outcome) in run.outcomes() {
                led.add(rank, outcome);
            }
            if !stale? {
                return run.gather(out, limit).await;
            }
            tracing::debug!(label = %live.label.id, "bytes that ranks have read were changed: the ranks run again");
        }
    })
}

/// Returns the locations of the ranks: each node that has a part of their input, in the order of the parts.
fn places(
    of: (&ExecutorParts, &Live),
    analysis: &Analysis,
) -> Result<Vec<(RankLocation, ObjectAddress)>, Failure> {
    let unknown = |error: FetchError| failure(FailureKind::Input, error.to_string());
    let mut places: Vec<(RankLocation, ObjectAddress)> = Vec::new();
    let inputs = analysis.inputs.iter().enumerate();
    for (index, input) in inputs.filter(|(_, input)| !analysis.kernel.is_in(&input.name)) {
        let InputLocations {
            layout,
            capabilities,
        } = input_locations(of, index, input).map_err(unknown)?;
        for (part, capability) in layout.parts().iter().zip(capabilities) {
            let Some(replica) = part.replicas.first() else {
                continue;
            };
            if places.iter().any(|(place, _)| place.node == replica.node.0) {
                continue;
            }
            let place = RankLocation {
                node: replica.node.0,
                object: part.object.0,
                capability,
            };
            let remote = place.remote(of.0).map_err(unknown)?;
            places.push((place, remote));
        }
    }
    match places.len() {
        0 => Err(failure(
            FailureKind::Kernel,
            "no node has a part of its inputs".into(),
        )),
        1..=RANKS_MAX => Ok(places),
        more => {
            let what = format!(
                "its inputs are on {more} nodes, and at most {RANKS_MAX} ranks can be started"
            );
            Err(failure(FailureKind::Kernel, what))
        }
    }
}

impl RankLocation {
    pub(super) fn remote(&self, parts: &ExecutorParts) -> Result<ObjectAddress, FetchError> {
        let node = NodeId(self.node);
        parts
            .fetcher
            .remote(node, ObjectId(self.object), &self.capability)
    }
}

type RankMessage = (usize, io::Result<Word>);

/// State of a rank, as the leader knows it.
struct RankState {
    node: u32,
    to: WriteHalf<DedicatedConnection>,
    from: Option<JoinHandle<Option<ReadHalf<DedicatedConnection>>>>,
    waits: Option<BarrierValues>,
    ended: Option<Outcome>,
}

impl Drop for RankState {
    fn drop(&mut self) {
        if let Some(from) = &self.from {
            from.abort();
        }
    }
}

/// State of all running ranks of a task.
struct RunningRanks {
    ranks: Vec<RankState>,
    heard: mpsc::Receiver<RankMessage>,
    stale: bool,
    failed: Vec<(usize, Failure)>,
}

impl RunningRanks {
    async fn start(
        parts: &ExecutorParts,
        label: &[u8],
        places: &[(RankLocation, ObjectAddress)],
    ) -> Result<Self, Failure> {
        let objects = parts.fetcher.objects();
        let (tell, heard) = mpsc::channel(places.len().max(1));
        let all: Vec<RankLocation> = places.iter().map(|(place, _)| place.clone()).collect();
        let mut ranks = Vec::new();
        for (rank, (place, remote)) in places.iter().enumerate() {
            let unstarted =
                |why: String| lost(rank, place.node, &format!("it can't be started: {why}"));
            let opened = timeout(OPEN_MAX, objects.connection(remote, "/rank")).await;
            let opened = opened.map_err(|_| unstarted("the node does not answer".into()))?;
            let (from, mut to) =
                tokio::io::split(opened.map_err(|error| unstarted(error.to_string()))?);
            let begin = Word::Begin {
                label: label.to_vec(),
                rank,
                places: all.clone(),
            };
            let sent = send_word(&mut to, &begin).await;
            sent.map_err(|error| unstarted(error.to_string()))?;
            ranks.push(RankState {
                node: place.node,
                to,
                from: Some(tokio::spawn(listen(rank, from, tell.clone()))),
                waits: None,
                ended: None,
            });
        }
        Ok(Self {
            ranks,
            heard,
            stale: false,
            failed: Vec::new(),
        })
    }
}

/// Forwards the messages of a rank until it has ended. Returns the connection, from which the rank's output can then be read.
async fn listen<R: AsyncRead + Unpin>(
    rank: usize,
    mut from: R,
    tell: mpsc::Sender<RankMessage>,
) -> Option<R> {
    loop {
        let heard = receive_soon(&mut from).await;
        let last = !matches!(heard, Ok(Word::Waits(_) | Word::Alive));
        let ended = matches!(heard, Ok(Word::Ended { .. }));
        tell.send((rank, heard)).await.ok()?;
        if last {
            return ended.then_some(from);
        }
    }
}

/// Returns the failure for a rank that can't be reached. A later attempt, or an attempt on another node, may succeed.
fn lost(rank: usize, node: u32, why: &str) -> Failure {
    failure(
        FailureKind::Input,
        format!("rank {rank} (node {node}): {why}"),
    )
}

impl RunningRanks {
    fn outcomes(&self) -> impl Iterator<Item = (usize, &Outcome)> {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter_map(|(rank, one)| Some((rank, one.ended.as_ref()?)))
    }

    /// Waits until all ranks have ended. Returns whether a rank has read other bytes than were finally sealed.
    async fn until_ended(&mut self, live: &Live) -> Result<bool, Failure> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        let mut alive = tokio::time::interval(ALIVE_EVERY);
        let mut until = None;
        while self.ranks.iter().any(|rank| rank.ended.is_none()) {
            tokio::select! {
                heard = self.heard.recv() => match heard {
                    Some((rank, heard)) => self.on_heard(rank, heard).await,
                    None => break,
                },
                _ = alive.tick() => self.tell_all(&Word::Alive).await,
                _ = look.tick() => if live.control.is_cancelled() {
                    return Err(crate::runner::cancelled());
                },
            }
            if !self.failed.is_empty() {
                let until = *until.get_or_insert_with(|| Instant::now() + CAUSES);
                if Instant::now() >= until {
                    break;
                }
            }
        }
        // If several ranks have failed, one of them may have caused the other failures.
        let own = |(_, failed): &&(usize, Failure)| match failed.kind {
            FailureKind::Exit(_) => 1,
            _ => 0,
        };
        match self.failed.iter().min_by_key(own) {
            Some((_, failed)) => Err(failed.clone()),
            None => Ok(self.stale),
        }
    }

    async fn on_heard(&mut self, rank: usize, heard: io::Result<Word>) {
        let node = self.ranks[rank].node;
        match heard {
            Ok(Word::Alive) => return,
            Ok(Word::Waits(round)) => self.ranks[rank].waits = Some(round),
            Ok(Word::Ended { outcome, stale }) => {
                let outcome = v1::LabelOutcome::decode(outcome.as_slice()).ok();
                let outcome = outcome.and_then(|outcome| Outcome::try_from(&outcome).ok());
                if let Some(Err(failed)) = outcome.as_ref().map(|outcome| &outcome.result) {
                    let message = format!("rank {rank} (node {node}): {}", failed.message);
                    self.failed.push((
                        rank,
                        failure(failed.kind, with_words(message, outcome.as_ref())),
                    ));
                }
                self.stale |= stale;
                let unread = || Outcome::at(crate::task::now(), Ok(Vec::new()));
                self.ranks[rank].ended = Some(outcome.unwrap_or_else(unread));
            }
            Ok(_) | Err(_) => {
                let why = match heard {
                    Err(error) => format!("its node is lost: {error}"),
                    Ok(_) => "its node sent an invalid message".to_owned(),
                };
                self.failed.push((rank, lost(rank, node, &why)));
                let failed = failure(FailureKind::NodeLost, why);
                self.ranks[rank].ended = Some(Outcome::at(crate::task::now(), Err(failed)));
            }
        }
        if !self.failed.is_empty() {
            return;
        }
        if self.ranks.iter().all(|rank| rank.waits.is_some()) {
            self.go().await;
        }
    }

    async fn go(&mut self) {
        let mut ports = Vec::new();
        let mut values = Vec::new();
        for rank in &mut self.ranks {
            let round = rank.waits.take().unwrap_or_default();
            ports.push(round.ports);
            values.extend(round.values);
        }
        self.tell_all(&Word::Go { ports, values }).await;
    }

    /// Sends a message to all ranks. The reader of a lost connection detects the loss.
    async fn tell_all(&mut self, word: &Word) {
        for rank in &mut self.ranks {
            let _ = send_word(&mut rank.to, word).await;
        }
    }

    /// Writes the output of all ranks to `out`, in the order of the ranks.
    async fn gather(&mut self, out: &mut File, limit: u64) -> Result<(), Failure> {
        let mut left = limit;
        for rank in 0..self.ranks.len() {
            let node = self.ranks[rank].node;
            let unavailable = |error: io::Error| {
                lost(
                    rank,
                    node,
                    &format!("its results are not available: {error}"),
                )
            };
            let from = match self.ranks[rank].from.take() {
                Some(from) => from.await.ok().flatten(),
                None => None,
            };
            let mut from = from.ok_or_else(|| unavailable(io::ErrorKind::NotConnected.into()))?;
            let to = &mut self.ranks[rank].to;
            send_word(to, &Word::Give).await.map_err(unavailable)?;
            let mut size = from.read_u64_le().await.map_err(unavailable)?;
            left = left.checked_sub(size).ok_or_else(|| {
                let what =
                    format!("the outputs of all ranks together exceed the limit of {limit} bytes");
                failure(FailureKind::OutputLimit, what)
            })?;
            let mut piece = vec![0; PIECE_BYTES];
            let mut sent_at = Instant::now();
            while size > 0 {
                let most = usize::try_from(size).unwrap_or(usize::MAX).min(PIECE_BYTES);
                let got = timeout(super::SILENT_MAX, from.read(&mut piece[..most])).await;
                let got = got.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                let got = got.and_then(|got| match got {
                    0 => Err(io::ErrorKind::UnexpectedEof.into()),
                    got => Ok(got),
                });
                let got = got.map_err(unavailable)?;
                out.write_all(&piece[..got]).map_err(|error| {
                    failure(
                        FailureKind::Device,
                        format!("the output of the ranks can't be stored: {error}"),
                    )
                })?;
                size -= got as u64;
                if sent_at.elapsed() >= ALIVE_EVERY {
                    self.tell_all(&Word::Alive).await;
                    sent_at = Instant::now();
                }
            }
        }
        Ok(())
    }
}

/// Appends the last lines of the kernel's standard error to a message.
fn with_words(mut message: String, outcome: Option<&Outcome>) -> String {
    let printed = outcome.map_or("", |outcome| outcome.stderr.trim());
    let mut lines: Vec<&str> = printed.lines().rev().take(LINES).collect();
    lines.reverse();
    if !lines.is_empty() {
        message.push_str("; it printed: ");
        message.extend(lines.join("; ").chars().take(PRINTED_MAX));
    }
    message
}
