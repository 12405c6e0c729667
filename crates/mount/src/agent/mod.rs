//! Agent of a user: carries out the labels that the user's applications publish, and serves labels to programs in any language, at a socket
//! of the user and, if an address is given, at a port of this host.

mod labels;

use labels::AgentLabels;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use tidemill_wire::labels::labels_server::LabelsServer;
use tidemill_wire::local::ShortPath;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

/// The socket, and the token for TCP clients, in the directory of labels.
const SOCKET: &str = "agent.sock";
const TOKEN: &str = "agent.token";
/// Maximum size of a received message, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of requests of one connection at once, and of streams among them.
const REQUESTS_MAX: u32 = 256;
/// Number of random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Reason why the agent can't run or can't serve labels.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Other hosts could reach the address.
    #[error(
        "--listen: labels are served to this host only, as connections to this port are not encrypted: give 127.0.0.1:PORT or [::1]:PORT"
    )]
    Reachable,
    /// The agent can't carry out labels.
    #[error(transparent)]
    Label(#[from] tidemill_label::Error),
    /// The socket, the token or the port can't be used.
    #[error("{0}: {1}")]
    Serve(String, io::Error),
}

/// Returns a function that names the place of an error.
fn at<E: Into<io::Error>>(place: impl Into<String>) -> impl FnOnce(E) -> AgentError {
    move |error| AgentError::Serve(place.into(), error.into())
}

/// Runs the agent: until all applications have ended, or, with `stays` or an address, until the process ends. `directory` is the directory
/// of the logs.
///
/// # Errors
/// Other hosts can reach the address, the directory of logs can't be used, or labels can't be served. A failure to serve does not stop
/// published labels.
pub fn run(
    directory: Option<&Path>,
    stays: bool,
    listen: Option<SocketAddr>,
) -> Result<(), AgentError> {
    if listen.is_some_and(|address| !address.ip().is_loopback()) {
        return Err(AgentError::Reachable);
    }
    // The whole session of the application that started this process may be killed.
    let _ = rustix::process::setsid();
    let mut served = Ok(());
    let begins = |directory: &Path| {
        served = start(directory, listen);
        if let Err(error) = &served {
            tracing::warn!("labels are not served by gRPC: {error}");
        }
    };
    let stays = stays || listen.is_some();
    tidemill_label::agent::run(directory, stays, |what| tracing::warn!("{what}"), begins)?;
    served
}

/// Serves until the process ends.
fn start(directory: &Path, listen: Option<SocketAddr>) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("labels")
        .enable_all()
        .build()
        .map_err(at("can't start threads"))?;
    let labels = AgentLabels::new(directory);
    let guard = runtime.enter();
    let socket = bind(&directory.join(SOCKET))?;
    let user = rustix::process::geteuid().as_raw();
    let own = InterceptedService::new(service(labels.clone()), move |request: Request<()>| {
        of_user(user, request)
    });
    let server = Server::builder()
        .max_concurrent_streams(REQUESTS_MAX)
        .add_service(own);
    runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(socket)));
    if let Some(address) = listen {
        let token: Arc<str> = new_token(&directory.join(TOKEN))?.into();
        let listener = listener(address).map_err(at(format!("--listen {address}")))?;
        let own = InterceptedService::new(service(labels), move |request: Request<()>| {
            with_token(&token, request)
        });
        let server = Server::builder()
            .max_concurrent_streams(REQUESTS_MAX)
            .add_service(own);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    }
    drop(guard);
    // The service lives as long as the process.
    std::mem::forget(runtime);
    Ok(())
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    tracing::info!("labels are served at {}", listener.local_addr()?);
    Ok(listener)
}

fn service(labels: AgentLabels) -> LabelsServer<AgentLabels> {
    LabelsServer::new(labels)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// Makes a socket for this user alone, in place of the socket of an agent that has ended.
fn bind(path: &Path) -> Result<UnixListener, AgentError> {
    let place = path.display().to_string();
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(place)(error)),
        _ => {}
    }
    // The directory is closed to all others; so is the socket, from its creation on.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = ShortPath::of(path).and_then(UnixListener::bind);
    rustix::process::umask(before);
    let own = |socket| {
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(socket)
    };
    bound.and_then(own).map_err(at(place))
}

/// Makes a token that only this user can read.
fn new_token(path: &Path) -> Result<String, AgentError> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    // One call returns so few bytes completely.
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(at("no random bytes"))?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let _ = std::fs::remove_file(path);
    let mut how = OpenOptions::new();
    let opened = how.write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| file.write_all(token.as_bytes()));
    written.map_err(at(path.display().to_string()))?;
    Ok(token)
}

fn of_user(user: u32, request: Request<()>) -> Result<Request<()>, Status> {
    let peer = request.extensions().get::<UdsConnectInfo>();
    let peer = peer.and_then(|peer| peer.peer_cred).map(|peer| peer.uid());
    match peer {
        Some(peer) if peer == user || peer == 0 => Ok(request),
        _ => Err(Status::permission_denied(format!(
            "these are labels of user {user}"
        ))),
    }
}

fn with_token(token: &str, request: Request<()>) -> Result<Request<()>, Status> {
    let given = request.metadata().get("authorization");
    let given = given.and_then(|given| given.to_str().ok()?.strip_prefix("Bearer "));
    match given {
        Some(given) if same(given.as_bytes(), token.as_bytes()) => Ok(request),
        _ => Err(Status::unauthenticated(format!(
            "send the token in {TOKEN}, in the directory of labels, as `authorization: Bearer TOKEN`"
        ))),
    }
}

/// Compares two texts in a time that does not depend on the position of the first difference.
fn same(given: &[u8], is: &[u8]) -> bool {
    let differs = given.iter().zip(is).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == is.len() && differs == 0
}
