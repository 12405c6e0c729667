//! Relays of connections between ranks: from the network of one rank through its node and another node to the network of the other rank.
//! The module listens and connects inside the ranks' networks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::Objects;
use tidemill_client::objects::ObjectAddress;
use tidemill_model::id::LabelId;
use tidemill_sandbox::peers::RankNetwork;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

/// Maximum number of bytes per read of a connection.
const PIECE_BYTES: usize = 256 << 10;

/// Delay of the report of a closed connection to a rank, because the end of the other process should be reported first.
const HELD: Duration = Duration::from_secs(10);

/// Maximum number of concurrent connections from a rank to other ranks, and from other ranks to it.
pub(super) const CONNECTIONS_MAX: usize = 256;

/// Time in which a rank must accept a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Listeners through which a rank reaches the other ranks.
#[derive(Debug)]
pub(super) struct Relays {
    pub(super) label: LabelId,
    pub(super) rank: usize,
    pub(super) network: Arc<RankNetwork>,
    pub(super) objects: Objects,
    /// Addresses of all ranks, in the order of the ranks.
    pub(super) peers: Arc<[ObjectAddress]>,
    /// Listeners for the ranks and ports that are reachable now.
    pub(super) open: BTreeMap<(usize, u16), Listening>,
    /// Permits for connections of the rank to other ranks.
    pub(super) space: Arc<Semaphore>,
    /// Becomes true when the rank has ended and its outcome was sent.
    pub(super) ended: watch::Receiver<bool>,
}

/// Listener that stands for another rank's port, until it is dropped.
#[derive(Debug)]
pub(super) struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Relays {
    /// Sets the ports on which the other ranks listen now, and closes all other listeners.
    pub(super) async fn reach(&mut self, ports: &[Vec<u16>]) -> io::Result<()> {
        let all = ports.iter().enumerate();
        let all = all.flat_map(|(peer, ports)| ports.iter().map(move |port| (peer, *port)));
        let all: BTreeSet<_> = all.collect();
        self.open.retain(|place, _| all.contains(place));
        for (peer, port) in all {
            if peer == self.rank || self.open.contains_key(&(peer, port)) {
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
                space: Arc::clone(&self.space),
            };
            let serving = tokio::spawn(to.serve(TcpListener::from_std(listener)?));
            let listening = Listening(serving.abort_handle());
            self.open.insert((peer, port), listening);
        }
        Ok(())
    }
}

/// Port of another rank.
#[derive(Clone)]
struct To {
    objects: Objects,
    remote: ObjectAddress,
    path: String,
    ended: watch::Receiver<bool>,
    space: Arc<Semaphore>,
}

impl To {
    async fn serve(self, listener: TcpListener) {
        let mut ended = self.ended.clone();
        // Without a permit, an accepted connection waits and later ones are not accepted.
        let accept = async || {
            let (tcp, _) = listener.accept().await.ok()?;
            let place = Arc::clone(&self.space).acquire_owned().await.ok()?;
            Some((tcp, place))
        };
        loop {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return,
                came = accept() => {
                    let Some((tcp, place)) = came else { return };
                    let to = self.clone();
                    tokio::spawn(async move {
                        to.lead(tcp).await;
                        drop(place);
                    });
                }
            }
        }
    }

    async fn lead(self, tcp: TcpStream) {
        match self.objects.connection(&self.remote, &self.path).await {
            Ok(connection) => carry(tcp, connection, self.ended).await,
            // The rank sees its connection closed, as on a network.
            Err(error) => tracing::info!(%error, "a rank can't be reached by another one"),
        }
    }
}

/// Waits until a connecting stream is connected. Fails after a time limit, because the rank may never accept the connection.
pub(super) async fn connected(tcp: std::net::TcpStream) -> io::Result<TcpStream> {
    let tcp = TcpStream::from_std(tcp)?;
    let ready = tokio::time::timeout(CONNECT_MAX, tcp.writable()).await;
    ready.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    match tcp.take_error()? {
        Some(error) => Err(error),
        None => Ok(tcp),
    }
}

/// Forwards bytes in both directions until the rank at the first end has ended or one direction has ended. The other direction then
/// continues briefly.
pub(super) async fn carry(
    rank: TcpStream,
    other: impl AsyncRead + AsyncWrite,
    ended: watch::Receiver<bool>,
) {
    // The ranks wait for answers, so small writes must not be delayed.
    let _ = rank.set_nodelay(true);
    let (from_rank, to_rank) = rank.into_split();
    let (from_other, to_other) = tokio::io::split(other);
    let ways = async {
        let mut there = pin!(one_way(from_rank, to_other, ended.clone()));
        let mut back = pin!(one_way(from_other, to_rank, ended.clone()));
        // An end that has closed one direction may read the last bytes of the other end.
        let _ = tokio::select! {
            () = &mut there => tokio::time::timeout(HELD, back).await,
            () = &mut back => tokio::time::timeout(HELD, there).await,
        };
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
    // The connection is closed at the end of the rank or after this time.
    let _ = tokio::time::timeout(HELD, ended.wait_for(|ended| *ended)).await;
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, served) = tokio::join!(client, listener.accept());
        (client.unwrap(), served.unwrap().0)
    }

    /// Starts forwarding between two connections. Returns the outer ends of the connections and the forwarding task.
    async fn carried() -> (TcpStream, TcpStream, tokio::task::JoinHandle<()>) {
        let (rank, inner) = pair().await;
        let (other, there) = pair().await;
        let carrying = tokio::spawn(async move {
            // The rank does not end before the connection.
            let (_running, ended) = watch::channel(false);
            carry(inner, there, ended).await;
        });
        (rank, other, carrying)
    }

    #[tokio::test]
    async fn rank_relay_forwards_both_directions_until_one_end_closes() {
        for first in [true, false] {
            let (mut rank, mut other, carrying) = carried().await;
            rank.write_all(b"there").await.unwrap();
            other.write_all(b"back").await.unwrap();
            let mut bytes = [0; 5];
            other.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"there");
            rank.read_exact(&mut bytes[..4]).await.unwrap();
            assert_eq!(&bytes[..4], b"back");
            // The other end stays open and sends nothing.
            let (dropped, _left) = if first { (rank, other) } else { (other, rank) };
            drop(dropped);
            let ends = tokio::time::timeout(HELD * 12, carrying).await;
            ends.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn rank_relay_abandons_unreachable_peer() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let begun = || {
            let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
            let socket = socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap();
            connect(&socket, &at).map(|()| socket)
        };
        let stream = std::net::TcpStream::connect(at).unwrap();
        stream.set_nonblocking(true).unwrap();
        assert!(connected(stream).await.is_ok());
        drop(listener);
        // No listener exists any more. The system may report this at once.
        if let Ok(socket) = begun() {
            assert!(connected(socket.into()).await.is_err());
        }
    }
}
