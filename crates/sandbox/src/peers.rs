//! Network of a kernel that is one of several processes (ranks): a namespace that contains only its peers.
//!
//! A small process makes the namespace: a loopback device whose addresses are those of ranks, `198.18.0.1` for the first. A rank listens on
//! its own address. On the addresses of other ranks, this program listens itself, and forwards each connection to the rank that has the
//! address. So a kernel reaches its peers, and nothing else, through the program that runs it: no device leads outside.
//!
//! The small process makes sockets on order, sends them back, and ends when its order socket is closed.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Child;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::fork_server::{receive, send, start_ordered};
use crate::sandbox::ids::Ids;
use crate::sandbox::namespaces::Namespaces;

/// Argument that makes a child process a network of peers.
pub(crate) const KIND: &str = "peers";

/// Maximum number of ranks in one run.
pub const RANKS_MAX: usize = 64;

/// Maximum number of ports that one rank may listen on at a time.
const PORTS_MAX: usize = 16;

/// The only device of the namespace.
const DEVICE: &[u8] = b"lo";

/// The socket state `TCP_LISTEN` in the notation of `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// Size of an order to the network's process, in bytes: the kind, the rank and the port.
const ORDER_BYTES: usize = 4;
const UP: u8 = 0;
const LISTEN: u8 = 1;
const CONNECT: u8 = 2;
const PORTS: u8 = 3;

/// Maximum size of an answer of the network's process, in bytes: an errno value or 0, and ports.
const ANSWER_BYTES: usize = 4 + 2 * PORTS_MAX;

/// Network of one rank. It is deleted when this value is dropped and no process is left in the network.
#[derive(Debug)]
pub struct RankNetwork {
    rank: u8,
    socket: Mutex<Option<OwnedFd>>,
    namespaces: Namespaces,
    process: Mutex<Child>,
}

impl RankNetwork {
    pub(crate) fn make(program: &OwnedFd, ids: Ids, rank: usize) -> io::Result<Self> {
        let rank = u8::try_from(rank)
            .ok()
            .filter(|rank| usize::from(*rank) < RANKS_MAX);
        let rank = rank.ok_or(io::ErrorKind::InvalidInput)?;
        let (own, mut process) = start_ordered(program, KIND)?;
        let made = (|| {
            // The process answers when it is in its namespaces.
            answered(&own)?;
            let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
            let namespaces = Namespaces::of_process(pid.ok_or(io::ErrorKind::NotFound)?, ids)?;
            order(&own, UP, rank, 0)?;
            Ok(namespaces)
        })();
        let namespaces = made.inspect_err(|_: &io::Error| {
            // The first error is the one to report.
            let _ = process.kill().and_then(|()| process.wait());
        })?;
        Ok(Self {
            rank,
            socket: Mutex::new(Some(own)),
            namespaces,
            process: Mutex::new(process),
        })
    }

    pub(crate) fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Listens on the address of another rank of the run. Blocks for a moment.
    ///
    /// # Errors
    /// The error that the operating system reports.
    pub fn listen(&self, rank: usize, port: u16) -> io::Result<TcpListener> {
        let rank = u8::try_from(rank).map_err(io::Error::other)?;
        Ok(self.socket(LISTEN, rank, port)?.into())
    }

    /// Starts a connection to the kernel, as one of its peers. Blocks for a moment. The stream does not block. When it becomes writable, it
    /// is connected or has an error to report: the kernel need not accept the connection.
    ///
    /// # Errors
    /// The error that the operating system reports: the kernel may not listen on the port.
    pub fn connect(&self, port: u16) -> io::Result<TcpStream> {
        Ok(self.socket(CONNECT, self.rank, port)?.into())
    }

    /// Returns the ports on which the kernel listens now. Blocks for a moment.
    ///
    /// # Errors
    /// The error that the operating system reports.
    pub fn ports(&self) -> io::Result<Vec<u16>> {
        let socket = self.socket.lock();
        let socket = socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let (ports, _) = order(socket, PORTS, self.rank, 0)?;
        Ok(ports)
    }

    fn socket(&self, what: u8, rank: u8, port: u16) -> io::Result<OwnedFd> {
        let socket = self.socket.lock();
        let socket = socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let (_, made) = order(socket, what, rank, port)?;
        Ok(made.ok_or(io::ErrorKind::UnexpectedEof)?)
    }
}

impl Drop for RankNetwork {
    fn drop(&mut self) {
        *self.socket.lock() = None;
        if let Err(error) = self.process.lock().wait() {
            tracing::warn!(%error, "cannot wait for the process that made the network of a kernel");
        }
    }
}

type PeerPorts = (Vec<u16>, Option<OwnedFd>);

fn order(socket: &impl AsFd, what: u8, rank: u8, port: u16) -> io::Result<PeerPorts> {
    let [low, high] = port.to_le_bytes();
    send(socket, &[what, rank, low, high], &[])?;
    answered(socket)
}

fn answered(socket: &impl AsFd) -> io::Result<PeerPorts> {
    let mut bytes = [0; ANSWER_BYTES];
    let (length, made) = receive(socket, &mut bytes)?;
    let (errno, ports) = bytes[..length]
        .split_first_chunk::<4>()
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    match i32::from_le_bytes(*errno) {
        0 => {
            let (ports, _) = ports.as_chunks();
            let ports = ports.iter().map(|port| u16::from_le_bytes(*port));
            Ok((ports.collect(), made.into_iter().next()))
        }
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Runs the process of a network; returns when its order socket is closed.
pub(crate) fn serve() {
    let orders = io::stdin();
    // A signal that asks the node to end must not end this process before its kernel.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let kinds = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
    // SAFETY: takes a number, and this process has one thread.
    let entered = match unsafe { libc::unshare(kinds) } {
        0 => Ok(PeerPorts::default()),
        _ => Err(io::Error::last_os_error()),
    };
    let failed = entered.is_err();
    if answer(&orders, entered).is_err() || failed {
        return;
    }
    let mut bytes = [0; ORDER_BYTES];
    while let Ok((ORDER_BYTES, _)) = receive(&orders, &mut bytes) {
        let [what, rank, low, high] = bytes;
        let done = obey(what, rank, u16::from_le_bytes([low, high]));
        if answer(&orders, done).is_err() {
            return;
        }
    }
}

fn answer(to: &impl AsFd, done: io::Result<PeerPorts>) -> io::Result<()> {
    let (errno, (ports, made)) = match done {
        Ok(answered) => (0, answered),
        Err(error) => (
            error.raw_os_error().unwrap_or(libc::EINVAL),
            PeerPorts::default(),
        ),
    };
    let mut bytes = errno.to_le_bytes().to_vec();
    bytes.extend(ports.into_iter().flat_map(u16::to_le_bytes));
    let made: Vec<_> = made.iter().map(AsFd::as_fd).collect();
    send(to, &bytes, &made)
}

fn obey(what: u8, rank: u8, port: u16) -> io::Result<PeerPorts> {
    let at = SocketAddrV4::new(address(rank), port);
    let made: OwnedFd = match what {
        UP => return up(rank).map(|()| PeerPorts::default()),
        PORTS => return ports(rank).map(|ports| (ports, None)),
        LISTEN => TcpListener::bind(at)?.into(),
        CONNECT => begin_to_connect(at)?,
        _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    Ok((Vec::new(), Some(made)))
}

/// Starts a connection without waiting for its completion: the process could accept no other order until then.
fn begin_to_connect(at: SocketAddrV4) -> io::Result<OwnedFd> {
    let (kind, flags) = (
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
    );
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    match rustix::net::connect(&socket, &at) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the address of a rank, from a range that is reserved for tests of networks. Addresses of the host itself are not used: from such
/// addresses, libraries conclude that ranks are on one host, which is not certain.
fn address(rank: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 0, rank + 1)
}

/// Gives the loopback device the address of a rank. All addresses of the network around it then belong to this host.
fn up(rank: u8) -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: a zeroed request is a valid one.
    let mut request = unsafe { std::mem::zeroed::<libc::ifreq>() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
    control(&socket, libc::SIOCSIFFLAGS, &mut request)?;
    // The address replaces 127.0.0.1, which the device has now.
    let own = libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).map_err(io::Error::other)?,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address(rank).octets()),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: both are plain memory of the same size.
    request.ifr_ifru.ifru_addr =
        unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(own) };
    control(&socket, libc::SIOCSIFADDR, &mut request)
}

fn control(socket: &OwnedFd, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: both requests take this structure, which lives longer than the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut *request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the ports on which a process listens, at the rank's own address or at any address.
fn ports(rank: u8) -> io::Result<Vec<u16>> {
    let own = u32::from_ne_bytes(address(rank).octets());
    let text = fs::read_to_string("/proc/self/net/tcp")?;
    let listens = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (at, port) = words.next()?.split_once(':')?;
        let at = u32::from_str_radix(at, 16).ok()?;
        let here = words.nth(1)? == LISTENS && (at == own || at == 0);
        here.then(|| u16::from_str_radix(port, 16).ok()).flatten()
    });
    let mut ports: Vec<u16> = listens.collect();
    ports.sort_unstable();
    ports.dedup();
    ports.truncate(PORTS_MAX);
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn rank_that_never_accepts_blocks_no_other_rank() {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        rustix::net::bind(&socket, &here).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let port = listener.local_addr().unwrap().port();
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let began = Instant::now();
        let begun: Vec<_> = (0..8).map(|_| begin_to_connect(at).unwrap()).collect();
        // Some connections are in the kernel's queue. The queue has no space for the others; each of them would wait for two minutes.
        assert!(began.elapsed() < Duration::from_secs(60));
        assert_eq!(begun.len(), 8);
    }
}
