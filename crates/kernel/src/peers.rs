//! The network of a kernel that is one of several processes (ranks): a namespace of its own in which nothing is but its peers.
//!
//! A small process, started for it, makes the namespace: a loopback device whose addresses are those of ranks, `198.18.0.1` for the
//! first. What a rank listens on it does by its own address; at those of others this program listens there itself, and carries what comes to
//! the one who is meant. So a kernel can reach its peers through whoever runs it, and nobody else: no device leads out.
//!
//! The process makes sockets as it is told, hands them over, and ends when it is told no more.

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

/// What the child is told to be.
pub(crate) const KIND: &str = "peers";

/// Most ranks of one run.
pub const RANKS_MAX: usize = 64;

/// Ports that one rank may listen on at a time.
const PORTS_MAX: usize = 16;

/// The only device there is.
const DEVICE: &[u8] = b"lo";

/// The state `TCP_LISTEN` as `/proc/net/tcp` writes it.
const LISTENS: &str = "0A";

/// What the process is told: what to do, which rank, which port.
const ORDER_BYTES: usize = 4;
const UP: u8 = 0;
const LISTEN: u8 = 1;
const CONNECT: u8 = 2;
const PORTS: u8 = 3;

/// Longest answer: an errno value or 0, and ports.
const ANSWER_BYTES: usize = 4 + 2 * PORTS_MAX;

/// The network of one rank. It is gone when this is dropped and nobody in it is left.
#[derive(Debug)]
pub struct Network {
    rank: u8,
    socket: Mutex<Option<OwnedFd>>,
    namespaces: Namespaces,
    process: Mutex<Child>,
}

impl Network {
    pub(crate) fn make(program: &OwnedFd, ids: Ids, rank: usize) -> io::Result<Self> {
        let rank = u8::try_from(rank)
            .ok()
            .filter(|rank| usize::from(*rank) < RANKS_MAX);
        let rank = rank.ok_or(io::ErrorKind::InvalidInput)?;
        let (own, mut process) = start_ordered(program, KIND)?;
        let made = (|| {
            // It says so when it is in its namespaces.
            answered(&own)?;
            let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
            let namespaces = Namespaces::of_process(pid.ok_or(io::ErrorKind::NotFound)?, ids)?;
            order(&own, UP, rank, 0)?;
            Ok(namespaces)
        })();
        let namespaces = made.inspect_err(|_: &io::Error| {
            // The first error is the one to tell.
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

    /// Listens in the place of another rank. Blocks for a moment.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen(&self, rank: usize, port: u16) -> io::Result<TcpListener> {
        let rank = u8::try_from(rank).map_err(io::Error::other)?;
        Ok(self.socket(LISTEN, rank, port)?.into())
    }

    /// Begins to connect to the kernel, as one of its peers. Blocks for a moment. The stream does not block; when it can be
    /// written to it is connected, or has an error to tell: the kernel need not accept it.
    ///
    /// # Errors
    /// What the system says: it may not listen there.
    pub fn connect(&self, port: u16) -> io::Result<TcpStream> {
        Ok(self.socket(CONNECT, self.rank, port)?.into())
    }

    /// The ports on which the kernel listens now. Blocks for a moment.
    ///
    /// # Errors
    /// What the system says.
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

impl Drop for Network {
    fn drop(&mut self) {
        *self.socket.lock() = None;
        if let Err(error) = self.process.lock().wait() {
            tracing::warn!(%error, "cannot wait for what made the network of a kernel");
        }
    }
}

type Answered = (Vec<u16>, Option<OwnedFd>);

fn order(socket: &impl AsFd, what: u8, rank: u8, port: u16) -> io::Result<Answered> {
    let [low, high] = port.to_le_bytes();
    send(socket, &[what, rank, low, high], &[])?;
    answered(socket)
}

fn answered(socket: &impl AsFd) -> io::Result<Answered> {
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

/// The process's own part: it returns when it is told no more.
pub(crate) fn serve() {
    let orders = io::stdin();
    // What asks the element to end must not end this one before its kernel.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let kinds = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;
    // SAFETY: takes a number, and this process has one thread.
    let entered = match unsafe { libc::unshare(kinds) } {
        0 => Ok(Answered::default()),
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

fn answer(to: &impl AsFd, done: io::Result<Answered>) -> io::Result<()> {
    let (errno, (ports, made)) = match done {
        Ok(answered) => (0, answered),
        Err(error) => (
            error.raw_os_error().unwrap_or(libc::EINVAL),
            Answered::default(),
        ),
    };
    let mut bytes = errno.to_le_bytes().to_vec();
    bytes.extend(ports.into_iter().flat_map(u16::to_le_bytes));
    let made: Vec<_> = made.iter().map(AsFd::as_fd).collect();
    send(to, &bytes, &made)
}

fn obey(what: u8, rank: u8, port: u16) -> io::Result<Answered> {
    let at = SocketAddrV4::new(address(rank), port);
    let made: OwnedFd = match what {
        UP => return up(rank).map(|()| Answered::default()),
        PORTS => return ports(rank).map(|ports| (ports, None)),
        LISTEN => TcpListener::bind(at)?.into(),
        CONNECT => begin_to_connect(at)?,
        _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    Ok((Vec::new(), Some(made)))
}

/// Connects without waiting until that is done: nothing else could be ordered meanwhile.
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

/// Of a range that is kept for tests of networks. It is none of those that mean the host itself: there libraries look whether
/// they are on one host, which here tells them nothing.
fn address(rank: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 0, rank + 1)
}

/// Gives the device its address. All of the network around it is this host then, as is so with loopback devices.
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
    // It takes the place of 127.0.0.1, which the device has now.
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
    // SAFETY: both requests take this structure, which lives meanwhile.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut *request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where somebody listens at a rank's own address, or at all.
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
    fn peer_that_never_accepts_blocks_nobody() {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        rustix::net::bind(&socket, &here).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let port = listener.local_addr().unwrap().port();
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let began = Instant::now();
        let begun: Vec<_> = (0..8).map(|_| begin_to_connect(at).unwrap()).collect();
        // Some are in its queue. For others there is no room: each would wait for two minutes.
        assert!(began.elapsed() < Duration::from_secs(60));
        assert_eq!(begun.len(), 8);
    }
}
