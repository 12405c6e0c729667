//! Connections between ranks: from the network of one through its element and another one to that of the other.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::Objects;
use tidemill_client::objects::Remote;
use tidemill_core::id::LabelId;
use tidemill_kernel::peers::Network;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Bytes that are carried at once.
const PIECE_BYTES: usize = 256 << 10;

/// How long a rank is not told that another one has closed a connection: the end of that process is to be told first, as it is why.
const HELD: Duration = Duration::from_secs(10);

/// The places at which a rank reaches the others.
#[derive(Debug)]
pub(super) struct Relays {
    pub(super) label: LabelId,
    pub(super) rank: usize,
    pub(super) network: Arc<Network>,
    pub(super) objects: Objects,
    /// Where the ranks are, in their order.
    pub(super) peers: Arc<[Remote]>,
    /// Ranks and ports that it can reach by now.
    pub(super) open: BTreeSet<(usize, u16)>,
    /// Becomes true when the rank has ended and that was told.
    pub(super) ended: watch::Receiver<bool>,
}

impl Relays {
    /// The others listen there.
    pub(super) async fn reach(&mut self, ports: &[Vec<u16>]) -> io::Result<()> {
        let all = ports.iter().enumerate();
        let all = all.flat_map(|(peer, ports)| ports.iter().map(move |port| (peer, *port)));
        let all: Vec<_> = all.collect();
        for (peer, port) in all {
            if peer == self.rank || !self.open.insert((peer, port)) {
                continue;
            }
            let remote = self.peers.get(peer).ok_or(io::ErrorKind::InvalidData)?;
            let network = Arc::clone(&self.network);
            let listener = tokio::task::spawn_blocking(move || network.listen(peer, port));
            let listener = listener.await.map_err(io::Error::other)??;
            listener.set_nonblocking(true)?;
            let to = To {
                objects: self.objects.clone(),
                remote: remote.clone(),
                path: format!("/peer?label={}&rank={peer}&port={port}", self.label.0),
                ended: self.ended.clone(),
            };
            tokio::spawn(to.serve(TcpListener::from_std(listener)?));
        }
        Ok(())
    }
}

/// A port of another rank.
#[derive(Clone)]
struct To {
    objects: Objects,
    remote: Remote,
    path: String,
    ended: watch::Receiver<bool>,
}

impl To {
    async fn serve(self, listener: TcpListener) {
        let mut ended = self.ended.clone();
        loop {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return,
                came = listener.accept() => {
                    let Ok((tcp, _)) = came else { return };
                    tokio::spawn(self.clone().lead(tcp));
                }
            }
        }
    }

    async fn lead(self, tcp: TcpStream) {
        match self.objects.connection(&self.remote, &self.path).await {
            Ok(connection) => carry(tcp, connection, self.ended).await,
            // The rank sees its connection closed, as it would by a network.
            Err(error) => tracing::info!(%error, "a rank can't be reached by another one"),
        }
    }
}

/// Carries bytes both ways until the rank at the first end has ended, or both ways have.
pub(super) async fn carry(
    rank: TcpStream,
    other: impl AsyncRead + AsyncWrite,
    ended: watch::Receiver<bool>,
) {
    // They wait for answers.
    let _ = rank.set_nodelay(true);
    let (from_rank, to_rank) = rank.into_split();
    let (from_other, to_other) = tokio::io::split(other);
    let ways = async {
        tokio::join!(
            one_way(from_rank, to_other, ended.clone()),
            one_way(from_other, to_rank, ended.clone())
        )
    };
    let mut over = ended.clone();
    tokio::select! {
        _ = ways => {}
        _ = over.wait_for(|ended| *ended) => {}
    }
}

async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut ended: watch::Receiver<bool>,
) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let written = async {
            to.write_all(&piece[..length]).await?;
            to.flush().await
        };
        if written.await.is_err() {
            break;
        }
    }
    // Whichever comes first, it is closed.
    let _ = tokio::time::timeout(HELD, ended.wait_for(|ended| *ended)).await;
    let _ = to.shutdown().await;
}
