//! The side that is connected to.

use super::Problem;
use super::stream::{SEND_BYTES, Stream, below};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// How long a peer may take for its handshake, and how long it waits for a listener that has no certificate yet.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Handshakes at the same time; more connections wait in the system's queue.
const HANDSHAKES_MAX: usize = 256;

/// Pause after the system could give no connection, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Certificate, key and what is spoken inside; see [`super::identity`].
pub type Identity = Arc<rustls::ServerConfig>;

/// Accepts connections, each handshake beside the others.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    identity: Option<watch::Receiver<Option<Identity>>>,
    handshakes: JoinSet<Option<(Stream, SocketAddr)>>,
}

impl Listener {
    /// Without TLS.
    #[must_use]
    pub fn plain(tcp: TcpListener) -> Self {
        Self {
            tcp,
            identity: None,
            handshakes: JoinSet::new(),
        }
    }

    /// With TLS. `identity` may come later, and may change: each connection gets the one that is there when it
    /// begins.
    #[must_use]
    pub fn tls(tcp: TcpListener, identity: watch::Receiver<Option<Identity>>) -> Self {
        Self {
            tcp,
            identity: Some(identity),
            handshakes: JoinSet::new(),
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// The next connection that is ready, with the address of its other end. Peers that fail are told of in the
    /// log and left. May be dropped and called again.
    pub async fn accept(&mut self) -> (Stream, SocketAddr) {
        loop {
            let accepted = tokio::select! {
                accepted = self.tcp.accept(), if self.handshakes.len() < HANDSHAKES_MAX => accepted,
                Some(ended) = self.handshakes.join_next() => match ended {
                    Ok(Some(ready)) => return ready,
                    _ => continue,
                },
            };
            let (tcp, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection can't be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            if let Err(error) = tcp.set_nodelay(true) {
                tracing::debug!(%error, "a connection stays with Nagle's algorithm");
            }
            match &self.identity {
                None => return (Stream::Plain(tcp), peer),
                Some(identity) => {
                    self.handshakes.spawn(greet(tcp, peer, identity.clone()));
                }
            }
        }
    }
}

async fn greet(
    tcp: TcpStream,
    peer: SocketAddr,
    mut identity: watch::Receiver<Option<Identity>>,
) -> Option<(Stream, SocketAddr)> {
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
    match tokio::time::timeout(HANDSHAKE_MAX, handshake).await {
        Ok(Ok(tls)) => return Some((Stream::Tls(Box::new(tls.into())), peer)),
        Ok(Err(error)) => tell(peer, &error),
        Err(_) => tracing::debug!(%peer, "no TLS handshake in time"),
    }
    None
}

fn tell(peer: SocketAddr, error: &io::Error) {
    match Problem::of(error) {
        Some(Problem::Plain) => tracing::warn!(
            %peer,
            "a client speaks without TLS and was refused: let it use https://, or start this with --tls off"
        ),
        Some(Problem::OtherAuthority) => tracing::warn!(
            %peer,
            "a client trusts another authority than this array's: copy `token` from the server's folder to it again"
        ),
        Some(problem) => tracing::warn!(%peer, "a TLS handshake failed: {problem}"),
        // Whoever only looks whether somebody listens.
        None => tracing::debug!(%peer, %error, "a connection ended before its TLS handshake"),
    }
}
