//! Starts a rank on request of a leader, speaks PMI with the rank, and sends its outcome and output to the leader (next:
//! `node/src/ranks/lead.rs`).

use super::pmi::{Pmi, PmiRequest};
use super::relay::{CONNECTIONS_MAX, Relays, carry, connected};
use super::{
    ALIVE_EVERY, BarrierValues, RankLocation, Word, receive_soon, receive_word, send_word,
};
use crate::daemon::Daemon;
use crate::executor::ExecutorParts;
use crate::http::{HttpContext, HttpRefusal, HttpResult};
use crate::labels::Live;
use crate::task::{self, RankParameters, RankResult, failure, now};
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::objects::DedicatedConnection;
use tidemill_model::id::{LabelId, ObjectId};
use tidemill_model::label::{Failure, FailureKind, Operation, Outcome};
use tidemill_sandbox::peers::{RANKS_MAX, RankNetwork};
use tidemill_wire::capability::{Capability, rights};
use tidemill_wire::route::RANK_PROTOCOL;
use tidemill_wire::v1;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

/// Maximum number of ranks that a node serves concurrently.
const SERVED_MAX: usize = RANKS_MAX;

/// Time limit for the first message, which names the rank to start.
const BEGIN_MAX: Duration = Duration::from_secs(30);

/// Maximum number of bytes of a rank's output per write.
const PIECE_BYTES: usize = 1 << 20;

/// Ranks that a node serves.
#[derive(Debug)]
pub(crate) struct Ranks {
    served: Mutex<BTreeMap<(LabelId, usize), Reached>>,
    places: Arc<Semaphore>,
}

impl Default for Ranks {
    fn default() -> Self {
        Self {
            served: Mutex::default(),
            places: Arc::new(Semaphore::new(SERVED_MAX)),
        }
    }
}

/// Access to a running rank, for connections of other nodes.
#[derive(Clone, Debug)]
struct Reached {
    uid: u32,
    network: Arc<RankNetwork>,
    /// Permits for connections of other ranks.
    space: Arc<Semaphore>,
    ended: watch::Receiver<bool>,
}

/// Entry of a rank in the list of served ranks; dropping it removes the entry.
struct ListedRank<'a>(&'a Ranks, (LabelId, usize));

impl Drop for ListedRank<'_> {
    fn drop(&mut self) {
        self.0.served.lock().remove(&self.1);
    }
}

pub(crate) fn routes() -> Router<HttpContext> {
    Router::new()
        .route("/objects/{id}/rank", post(rank))
        .route("/objects/{id}/peer", post(peer))
}

async fn rank(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Extension(shown): Extension<Capability>,
    mut request: Request,
) -> HttpResult {
    let object = context.authorize(&shown, &id, rights::READ | rights::RANK)?;
    let daemon = context.shared_daemon();
    // The node stays active while the rank runs.
    let answering = daemon.traffic.begin();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(connection) = upgrade.await {
            serve(&daemon, (&shown, object), TokioIo::new(connection)).await;
        }
        drop(answering);
    });
    switched()
}

#[derive(serde::Deserialize)]
struct PeerRank {
    label: u64,
    rank: usize,
    port: u16,
}

async fn peer(
    State(context): State<HttpContext>,
    Path(id): Path<String>,
    Query(PeerRank { label, rank, port }): Query<PeerRank>,
    Extension(shown): Extension<Capability>,
    mut request: Request,
) -> HttpResult {
    context.authorize(&shown, &id, rights::READ | rights::RANK)?;
    let daemon = context.shared_daemon();
    let reached = daemon
        .ranks
        .served
        .lock()
        .get(&(LabelId(label), rank))
        .cloned();
    let reached = reached.filter(|reached| reached.uid == shown.uid);
    let reached = reached.ok_or(HttpRefusal::Missing("such rank"))?;
    let Reached { network, ended, .. } = reached;
    let place = reached.space.try_acquire_owned();
    let place = place.map_err(|_| HttpRefusal::Missing("space for another connection"))?;
    let begun = tokio::task::spawn_blocking(move || network.connect(port)).await?;
    let tcp = match begun {
        Ok(tcp) => connected(tcp).await,
        Err(error) => Err(error),
    };
    let tcp = tcp.map_err(|_| HttpRefusal::Missing("such port"))?;
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(connection) = upgrade.await {
            carry(tcp, TokioIo::new(connection), ended).await;
        }
        drop(place);
    });
    switched()
}

fn switched() -> HttpResult {
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, RANK_PROTOCOL)
        .body(Body::empty())
        .map_err(|_| HttpRefusal::Bad("the answer can't be encoded"))
}

/// Request of a leader to run a rank.
struct RankRequest {
    live: Live,
    rank: usize,
    places: Vec<RankLocation>,
}

impl RankRequest {
    fn new(word: Word, (shown, object): (&Capability, ObjectId)) -> Option<Self> {
        let Word::Begin {
            label,
            rank,
            places,
        } = word
        else {
            return None;
        };
        let message = v1::Label::decode(label.as_slice()).ok()?;
        let live = Live::of(&message)?;
        let Operation::Analyse(analysis) = &live.label.operation else {
            return None;
        };
        // The capability names the user, and proves that the server has sent a label to run this task on that node.
        let here = places.get(rank)?;
        let allowed = live.label.owner.uid == shown.uid
            && here.object == object.0
            && here.node == shown.node.0
            && analysis.runtime_environment.is_ranked()
            && places.len() <= RANKS_MAX;
        allowed.then_some(Self { live, rank, places })
    }
}

async fn serve(
    daemon: &Arc<Daemon>,
    shown: (&Capability, ObjectId),
    connection: DedicatedConnection,
) {
    let (mut from, mut to) = tokio::io::split(connection);
    let begin = timeout(BEGIN_MAX, receive_word(&mut from)).await;
    let begin = begin.ok().and_then(Result::ok);
    // An invalid request gets no answer.
    let Some(asked) = begin.and_then(|word| RankRequest::new(word, shown)) else {
        return;
    };
    if let Err(failed) = ServedRank::run(daemon, asked, (from, &mut to)).await {
        let outcome = Outcome::at(now(), Err(failed));
        let _ = send_word(&mut to, &ended(&outcome, false)).await;
    }
}

fn ended(outcome: &Outcome, stale: bool) -> Word {
    let outcome = v1::LabelOutcome::from(outcome).encode_to_vec();
    Word::Ended { outcome, stale }
}

/// State of a running rank, on the node that serves the rank.
struct ServedRank<'a> {
    to: &'a mut WriteHalf<DedicatedConnection>,
    words: mpsc::Receiver<Word>,
    pmi: Pmi,
    relays: Relays,
    live: Live,
    /// Exit code with which the kernel aborted all ranks, as text.
    abort: Option<String>,
}

type RankHandle = tokio::task::JoinHandle<RankResult>;

impl ServedRank<'_> {
    async fn run(
        daemon: &Arc<Daemon>,
        asked: RankRequest,
        (from, to): (
            ReadHalf<DedicatedConnection>,
            &mut WriteHalf<DedicatedConnection>,
        ),
    ) -> Result<(), Failure> {
        let RankRequest { live, rank, places } = asked;
        let executor = Arc::clone(daemon.parts_shared());
        let device = |why: String| failure(FailureKind::Device, why);
        let busy = || device(format!("this node runs {SERVED_MAX} ranks already"));
        let _place = daemon
            .ranks
            .places
            .clone()
            .try_acquire_owned()
            .map_err(|_| busy())?;
        let peers: Result<Vec<_>, _> = places.iter().map(|place| place.remote(&executor)).collect();
        let peers = peers.map_err(|error| failure(FailureKind::Input, error.to_string()))?;
        let network = network(&executor, rank).await?;
        let (starter, pmi) = starter(places.len())
            .map_err(|error| device(format!("a rank can't be started: {error}")))?;
        let (over, ended) = watch::channel(false);
        let key = (live.label.id, rank);
        let reached = Reached {
            uid: live.label.owner.uid,
            network: Arc::clone(&network),
            space: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            ended: ended.clone(),
        };
        if daemon.ranks.served.lock().insert(key, reached).is_some() {
            tracing::debug!(label = %key.0, rank, "a rank is started while an earlier one ends");
        }
        let _listed = ListedRank(&daemon.ranks, key);
        let joined = RankParameters {
            rank,
            size: places.len(),
            network: Arc::clone(&network),
            starter,
        };
        let (kernel, running) = (live.clone(), Arc::clone(&executor));
        let kernel = tokio::task::spawn_blocking(move || task::run_rank(&running, &kernel, joined));
        let (tell, words) = mpsc::channel(4);
        let listening = tokio::spawn(listen(from, tell));
        let mut served = ServedRank {
            to,
            words,
            pmi,
            relays: Relays {
                label: key.0,
                rank,
                network,
                objects: executor.fetcher.objects(),
                peers: peers.into(),
                open: BTreeMap::new(),
                space: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
                ended,
            },
            live,
            abort: None,
        };
        let ranked = served.until_ended(kernel).await;
        if let Some(ranked) = ranked {
            served.tell(&ranked, &over).await;
            task::forget_rank(&executor, key.0, rank);
        }
        over.send_replace(true);
        listening.abort();
        Ok(())
    }

    /// Serves the rank until its kernel has ended; `None` if the outcome is unknown.
    async fn until_ended(&mut self, mut kernel: RankHandle) -> Option<RankResult> {
        let mut alive = tokio::time::interval(ALIVE_EVERY);
        let mut speaks = true;
        let mut leads = true;
        loop {
            tokio::select! {
                ranked = &mut kernel => return ranked.ok(),
                wish = self.pmi.wish(), if speaks => match wish {
                    PmiRequest::Wait(round) => leads &= self.waits(round).await.is_ok(),
                    // The process waits to be killed.
                    PmiRequest::Abort(code) => {
                        self.abort = Some(code);
                        self.live.control.cancel();
                    }
                    PmiRequest::Gone => speaks = false,
                },
                word = self.words.recv(), if leads => match word {
                    Some(Word::Alive) => {}
                    Some(Word::Go { ports, values }) => leads &= self.go(ports, values).await.is_ok(),
                    _ => leads = false,
                },
                _ = alive.tick(), if leads => leads &= send_word(self.to, &Word::Alive).await.is_ok(),
            }
            if !leads {
                self.live.control.cancel();
            }
        }
    }

    async fn waits(&mut self, round: BarrierValues) -> io::Result<()> {
        let network = Arc::clone(&self.relays.network);
        let ports = tokio::task::spawn_blocking(move || network.ports()).await;
        let ports = ports.map_err(io::Error::other)??;
        send_word(self.to, &Word::Waits(BarrierValues { ports, ..round })).await
    }

    async fn go(&mut self, ports: Vec<Vec<u16>>, values: Vec<(String, String)>) -> io::Result<()> {
        self.relays.reach(&ports).await?;
        // A kernel that has ended needs no answer.
        let _ = self.pmi.go(values).await;
        Ok(())
    }

    /// Sends the outcome of the rank to the leader, and the rank's output if the leader asks for it.
    async fn tell(&mut self, ranked: &RankResult, over: &watch::Sender<bool>) {
        let mut outcome = ranked.outcome.clone();
        if let (Some(code), Err(failed)) = (&self.abort, &mut outcome.result) {
            *failed = failure(
                FailureKind::Exit(code.parse().unwrap_or(1)),
                format!("it aborted all ranks, with code {code}"),
            );
        }
        if outcome.result.is_ok() && !ranked.stale && !self.pmi.came_back {
            let what = "it ended before func returned";
            outcome.result = Err(failure(FailureKind::Kernel, what.to_owned()));
        }
        let sent = send_word(self.to, &ended(&outcome, ranked.stale)).await;
        // Only now may others see their connections closed.
        over.send_replace(true);
        let (Ok(()), Some(made)) = (sent, &ranked.made) else {
            return;
        };
        loop {
            match self.words.recv().await {
                Some(Word::Alive) => {}
                Some(Word::Give) => break,
                _ => return,
            }
        }
        if let Err(error) = give(made, self.to).await {
            tracing::debug!(%error, "the output of a rank can't be sent");
        }
    }
}

async fn give(
    made: &tidemill_sandbox::PrivateFile,
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let size = made.size()?;
    to.write_u64_le(size).await?;
    let mut file = made.file().try_clone()?.take(size);
    let mut sent = 0;
    let mut piece = vec![0; PIECE_BYTES];
    while sent < size {
        let length = file.read(&mut piece)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(&piece[..length]).await?;
        sent += length as u64;
    }
    to.flush().await
}

/// Creates the standard input of a kernel, and the other end of its connection.
fn starter(size: usize) -> io::Result<(OwnedFd, Pmi)> {
    let (starter, own) = StdUnixStream::pair()?;
    own.set_nonblocking(true)?;
    Ok((starter.into(), Pmi::new(UnixStream::from_std(own)?, size)))
}

async fn network(parts: &Arc<ExecutorParts>, rank: usize) -> Result<Arc<RankNetwork>, Failure> {
    let parts = Arc::clone(parts);
    let made = tokio::task::spawn_blocking(move || parts.runner.network(rank)).await;
    made.unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|error| {
            let what = format!(
                "this host gives kernels no network of their own (namespaces of users): {error}"
            );
            failure(FailureKind::Unfit, what)
        })
}

/// Forwards the messages of the leader until the leader's connection ends.
async fn listen(mut from: impl AsyncRead + Unpin, tell: mpsc::Sender<Word>) {
    while let Ok(word) = receive_soon(&mut from).await {
        if tell.send(word).await.is_err() {
            return;
        }
    }
}
