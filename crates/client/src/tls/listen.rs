//! Listener that accepts connections, with or without TLS, and returns them to its caller, such as the server or a node.

use super::TlsProblem;
use super::stream::{SEND_BYTES, SocketStream, below};
use crate::connections::{Guests, PeerKind, Seated};
use crate::log_limit::LogLimit;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Maximum time of a peer's handshake, and maximum time that a peer waits for a listener without a certificate.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Pause after the operating system could not accept a connection, for example for lack of file descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Certificate, key and inner protocol of a listener; see [`super::identity`].
pub type ServerIdentity = Arc<rustls::ServerConfig>;

/// Limit of log lines about failed handshakes.
static FAILED: LogLimit = LogLimit::new();

/// Limit of log lines about connections that could not be accepted, on any listener.
static REFUSED: LogLimit = LogLimit::new();

/// Logs that a connection could not be accepted, and pauses for [`ACCEPT_PAUSE`].
pub async fn could_not_accept(error: &io::Error) {
    if let Some(left_out) = REFUSED.may() {
        tracing::warn!(%error, left_out, "a connection can't be accepted");
    }
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// An accepted connection, with the address of its other end.
type AcceptedConnection = (Seated<SocketStream>, SocketAddr);

/// Listener that accepts connections, with concurrent handshakes. However many peers are silent, it serves the next peer: see [`Guests`].
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    guests: Guests,
    identity: Option<watch::Receiver<Option<ServerIdentity>>>,
    handshakes: JoinSet<Option<AcceptedConnection>>,
}

impl Listener {
    /// Returns a listener, with TLS if there is an `identity`. The identity may arrive later, and may change: each connection uses the
    /// identity at its start. Each ordinary user may have `each_max` connections. Must be called on a runtime.
    #[must_use]
    pub fn new(
        tcp: TcpListener,
        identity: Option<watch::Receiver<Option<ServerIdentity>>>,
        each_max: usize,
    ) -> Self {
        let guests = Guests::new(each_max);
        guests.watch();
        Self {
            tcp,
            guests,
            identity,
            handshakes: JoinSet::new(),
        }
    }

    /// Returns the address of the listener.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Returns the next connection that is ready, with the address of its other end. Connections whose handshake fails are logged and
    /// dropped. The future may be dropped and the call repeated.
    pub async fn accept(&mut self) -> AcceptedConnection {
        loop {
            let accepted = tokio::select! {
                accepted = self.tcp.accept() => accepted,
                Some(ended) = self.handshakes.join_next() => match ended {
                    Ok(Some(ready)) => return ready,
                    _ => continue,
                },
            };
            let (tcp, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    could_not_accept(&error).await;
                    continue;
                }
            };
            if let Err(error) = tcp.set_nodelay(true) {
                tracing::debug!(%error, "Nagle's algorithm can't be switched off for a connection");
            }
            let place = self.guests.seat((), PeerKind::Unauthenticated);
            match &self.identity {
                None => return (place.with(SocketStream::Plain(tcp)), peer),
                Some(identity) => {
                    let identity = identity.clone();
                    self.handshakes.spawn(greet(place, tcp, peer, identity));
                }
            }
        }
    }
}

async fn greet(
    place: Seated<()>,
    tcp: TcpStream,
    peer: SocketAddr,
    mut identity: watch::Receiver<Option<ServerIdentity>>,
) -> Option<AcceptedConnection> {
    let handshake = async {
        let identity = identity.wait_for(Option::is_some).await;
        let identity = identity.ok().and_then(|identity| identity.clone());
        let identity = identity.ok_or(io::ErrorKind::NotConnected)?;
        let limited = |tls: &mut rustls::ServerConnection| {
            tls.set_buffer_limit(Some(SEND_BYTES));
        };
        let tcp = below(tcp);
        TlsAcceptor::from(identity).accept_with(tcp, limited).await
    };
    let ended = tokio::select! {
        ended = tokio::time::timeout(HANDSHAKE_MAX, handshake) => ended,
        () = place.asked_to_go() => return None,
    };
    match ended {
        Ok(Ok(tls)) => {
            let stream = SocketStream::Tls(Box::new(tls.into()));
            return Some((place.with(stream), peer));
        }
        Ok(Err(error)) => tell(peer, &error),
        Err(_) => tracing::debug!(%peer, "no TLS handshake in time"),
    }
    None
}

fn tell(peer: SocketAddr, error: &io::Error) {
    let Some(problem) = TlsProblem::of(error) else {
        // The peer only checks whether the port is open.
        tracing::debug!(%peer, %error, "a connection ended before its TLS handshake");
        return;
    };
    let Some(left_out) = FAILED.may() else { return };
    match problem {
        TlsProblem::Plain => tracing::warn!(
            %peer, left_out,
            "a client speaks without TLS and was refused: let it use https://, or start this daemon with --tls off"
        ),
        TlsProblem::OtherCa => tracing::warn!(
            %peer, left_out,
            "a client trusts another CA than this cluster's: copy `token` from the server's directory to it again"
        ),
        problem => tracing::warn!(%peer, left_out, "a TLS handshake failed: {problem}"),
    }
}
