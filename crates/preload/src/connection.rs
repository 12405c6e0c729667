//! Requests to the file system: one request at a time on each connection; a few connections are kept (next: `mount/src/preload/socket.rs`).
//!
//! A connection is used by one thread at a time and only by the process that opened it: a child of `vfork`, which shares the memory of its
//! parent, opens a new connection for each request.

use crate::c;
use crate::target;
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use tidemill_preload_api::{Answer, LEAVES, Request};

const KEPT_MAX: usize = 16;
/// Lowest descriptor number of kept connections, above the numbers that programs rely on.
const DESCRIPTORS_AT: u64 = 768;
/// Maximum number of attempts to reach a busy file system, a millisecond apart.
const TRIES_MAX: u32 = 2000;
/// Size in bytes of the space for the descriptor of an answer, and for the credentials of a request.
const CONTROL_BYTES: usize = 64;

/// A kept connection: 0 for none, -1 for a connection in use, else the descriptor plus 1.
struct KeptConnection {
    descriptor: AtomicI32,
    /// Inode of the socket, because a program may have closed the descriptor and opened another file under its number.
    inode: AtomicU64,
}

static KEPT: [KeptConnection; KEPT_MAX] = [const {
    KeptConnection {
        descriptor: AtomicI32::new(0),
        inode: AtomicU64::new(0),
    }
}; KEPT_MAX];

/// Answer to a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Got {
    pub(crate) answer: Answer,
    /// Length of the answer's text in bytes.
    pub(crate) length: usize,
    /// Descriptor that is attached to the answer, or -1.
    pub(crate) descriptor: c_int,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestOutcome {
    Done(Got),
    /// The path leaves the cluster; the text has this length and contains the path on the host.
    Leaves(usize),
    Failed(c_int),
}

/// Texts of a request: path, second path or name, value.
pub(crate) type Texts<'a> = [&'a [u8]; 3];

/// Drops all connections after `fork`, because they belong to the parent.
pub(crate) fn forget() {
    for kept in &KEPT {
        let descriptor = kept.descriptor.swap(0, Ordering::Relaxed);
        if descriptor > 0 && is_socket(descriptor - 1, kept.inode.load(Ordering::Relaxed)) {
            close(descriptor - 1);
        }
    }
}

fn close(descriptor: c_int) {
    c::call(libc::SYS_close, [c::word(descriptor), 0, 0, 0, 0]);
}

fn inode(descriptor: c_int) -> Option<u64> {
    let mut stat: libc::stat = c::zeroed();
    let at = (&raw mut stat) as usize;
    let done = c::call(libc::SYS_fstat, [c::word(descriptor), at, 0, 0, 0]);
    (done == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

fn is_socket(descriptor: c_int, expected: u64) -> bool {
    inode(descriptor) == Some(expected)
}

/// Returns a connection, and its entry if the connection is kept.
fn take() -> Result<(c_int, Option<&'static KeptConnection>), c_int> {
    if target::is_child() {
        return connect().map(|descriptor| (descriptor, None));
    }
    let mut free = None;
    for kept in &KEPT {
        let known = kept.descriptor.load(Ordering::Relaxed);
        let claim = |known| {
            let (order, fail) = (Ordering::Acquire, Ordering::Relaxed);
            let claimed = kept.descriptor.compare_exchange(known, -1, order, fail);
            claimed.is_ok()
        };
        if known > 0 && claim(known) {
            if is_socket(known - 1, kept.inode.load(Ordering::Relaxed)) {
                return Ok((known - 1, Some(kept)));
            }
            free = Some(kept);
            break;
        }
        if known == 0 && claim(0) {
            free = Some(kept);
            break;
        }
    }
    let connected = connect();
    match (connected, free) {
        (Ok(descriptor), Some(kept)) => {
            kept.inode
                .store(inode(descriptor).unwrap_or(0), Ordering::Relaxed);
            Ok((descriptor, Some(kept)))
        }
        (Ok(descriptor), None) => Ok((descriptor, None)),
        (Err(errno), free) => {
            if let Some(kept) = free {
                kept.descriptor.store(0, Ordering::Release);
            }
            Err(errno)
        }
    }
}

fn put_back(descriptor: c_int, kept: Option<&KeptConnection>, good: bool) {
    match kept {
        Some(kept) if good => kept.descriptor.store(descriptor + 1, Ordering::Release),
        kept => {
            close(descriptor);
            if let Some(kept) = kept {
                kept.descriptor.store(0, Ordering::Release);
            }
        }
    }
}

fn connect() -> Result<c_int, c_int> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let made = c::call(
        libc::SYS_socket,
        [c::word(libc::AF_UNIX), c::word(kind), 0, 0, 0],
    );
    let descriptor = c::int(made);
    if descriptor < 0 {
        return Err(c::errno());
    }
    let high = usize::try_from(DESCRIPTORS_AT).unwrap_or(0);
    let raised = c::call(
        libc::SYS_fcntl,
        [
            c::word(descriptor),
            c::word(libc::F_DUPFD_CLOEXEC),
            high,
            0,
            0,
        ],
    );
    // If fewer files are allowed, the descriptor keeps its number.
    let descriptor = if raised >= 0 {
        close(descriptor);
        c::int(raised)
    } else {
        descriptor
    };
    let address = target::address();
    let at = (&raw const address) as usize;
    for _ in 0..TRIES_MAX {
        let words = [
            c::word(descriptor),
            at,
            size_of::<libc::sockaddr_un>(),
            0,
            0,
        ];
        if c::call(libc::SYS_connect, words) == 0 {
            return Ok(descriptor);
        }
        if ![libc::EAGAIN, libc::EINTR].contains(&c::errno()) {
            break;
        }
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let at = (&raw const pause) as usize;
        c::call(libc::SYS_nanosleep, [at, 0, 0, 0, 0]);
    }
    close(descriptor);
    // As for a mount whose process has died.
    Err(libc::ENOTCONN)
}

/// Sends a request with the rights of the effective user. Writes the text of the answer to `space`.
pub(crate) fn ask(request: Request, texts: Texts<'_>, space: &mut [u8]) -> RequestOutcome {
    ask_as(request, texts, space, false)
}

/// Sends a request like [`ask`]; with the rights of the real user if `really`, as `access` does.
pub(crate) fn ask_as(
    mut request: Request,
    texts: Texts<'_>,
    space: &mut [u8],
    really: bool,
) -> RequestOutcome {
    let mut before = [0; 300];
    let length = target::prefix(&mut before);
    let texts = [texts[0], texts[1], texts[2], &before[..length]];
    request.lengths = texts.map(|text| text.len() as u64);
    let head = request.encode();
    let saved = c::errno();
    loop {
        let (descriptor, kept) = match take() {
            Ok(taken) => taken,
            Err(errno) => return RequestOutcome::Failed(errno),
        };
        if let Err(errno) = send(descriptor, &head, texts, really) {
            put_back(descriptor, kept, false);
            // The connection belongs to a file system that has ended since: it did not receive the request.
            let old = kept.is_some() && [libc::EPIPE, libc::ECONNRESET].contains(&errno);
            if old || errno == libc::ENOTCONN {
                if old {
                    continue;
                }
                return RequestOutcome::Failed(libc::ENOTCONN);
            }
            return RequestOutcome::Failed(errno);
        }
        let got = receive(descriptor, space);
        put_back(descriptor, kept, got.is_ok());
        c::set_errno(saved);
        return match got {
            Ok(got) if got.answer.errno == LEAVES => RequestOutcome::Leaves(got.length),
            Ok(got) if got.answer.errno != 0 => {
                RequestOutcome::Failed(c_int::try_from(got.answer.errno).unwrap_or(libc::EIO))
            }
            Ok(got) => RequestOutcome::Done(got),
            Err(errno) => RequestOutcome::Failed(errno),
        };
    }
}

#[repr(C, align(8))]
struct ControlMessage([u8; CONTROL_BYTES]);

fn header(parts: &mut [libc::iovec], control: &mut ControlMessage) -> libc::msghdr {
    let mut message: libc::msghdr = c::zeroed();
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    message
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(),
        iov_len: bytes.len(),
    }
}

/// Sends a request and the credentials of its sender, which the Linux kernel checks.
fn send(descriptor: c_int, head: &[u8], texts: [&[u8]; 4], really: bool) -> Result<(), c_int> {
    let [a, b, v, d] = texts;
    let mut parts = [part(head), part(a), part(b), part(v), part(d)];
    let mut control = ControlMessage([0; CONTROL_BYTES]);
    let mut message = header(&mut parts, &mut control);
    let who = c::who(really);
    c::attach(&mut message, &who);
    loop {
        let at = (&raw const message) as usize;
        let words = [c::word(descriptor), at, c::word(libc::MSG_NOSIGNAL), 0, 0];
        if c::call(libc::SYS_sendmsg, words) >= 0 {
            return Ok(());
        }
        if c::errno() != libc::EINTR {
            return Err(c::errno());
        }
    }
}

fn receive(descriptor: c_int, space: &mut [u8]) -> Result<Got, c_int> {
    let mut head = [0; Answer::BYTES];
    let text = libc::iovec {
        iov_base: space.as_mut_ptr().cast(),
        iov_len: space.len(),
    };
    let mut parts = [
        libc::iovec {
            iov_base: head.as_mut_ptr().cast(),
            iov_len: head.len(),
        },
        text,
    ];
    let mut control = ControlMessage([0; CONTROL_BYTES]);
    let mut message = header(&mut parts, &mut control);
    let count = loop {
        let at = (&raw mut message) as usize;
        let flags = c::word(libc::MSG_CMSG_CLOEXEC);
        let count = c::call(libc::SYS_recvmsg, [c::word(descriptor), at, flags, 0, 0]);
        match count {
            -1 if c::errno() == libc::EINTR => {}
            count if count <= 0 => return Err(libc::ENOTCONN),
            count => break usize::try_from(count).unwrap_or(0),
        }
    };
    let answer = Answer::decode(&head).filter(|_| count >= Answer::BYTES);
    let answer = answer.ok_or(libc::EPROTO)?;
    let given = c::attached(&message);
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(libc::ERANGE);
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        // No descriptor number was free for it.
        return Err(libc::EMFILE);
    }
    Ok(Got {
        answer,
        length: count - Answer::BYTES,
        descriptor: given,
    })
}
