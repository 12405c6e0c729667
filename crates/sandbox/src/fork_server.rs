//! Fork server: a small process that loads this program once and forks children that run kernels, without executing the program again. It
//! receives orders on a socket from the launcher, and answers on the same socket.
//!
//! Loading the program takes longer than most kernels that are parts of it, because each load relocates tens of thousands of addresses. So
//! the first such kernel starts a server, which waits for orders on a socket. Each order makes one child: a copy of the server that sets up
//! the sandbox around itself, reports this, and runs the kernel. The server has run no user code and holds no secret: each order is
//! overwritten after use, and changes that a kernel makes to its copy end with the copy. The server reports the id of the child, never the
//! child itself, because the child belongs to a user.
//!
//! Children get the server's own parent (`CLONE_PARENT`). So the node waits for children, measures them and ends them when it ends, exactly
//! like children that it starts itself.

use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::Child;

use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

use crate::child::{run_task, serving};
use crate::error::SpawnError;
use crate::launcher::filters;
use crate::run::User;
use crate::sandbox::calls::{self, Filters};
use crate::spawn::{self, ExecTarget, Process, ProcessImage};

/// Argument that makes a child process of the node a fork server.
pub(crate) const KIND: &str = "fork-server";

/// Number of the first descriptor that a child keeps; its other kept descriptors have the next numbers. All descriptors that the server has
/// or receives have lower numbers.
pub(crate) const KEPT_FIRST: RawFd = 200;

/// Maximum size of an order, in bytes. Runs with more arguments are started by executing the program.
const ORDER_BYTES_MAX: usize = 64 << 10;

/// Maximum number of descriptors in an order; the system allows 253.
const DESCRIPTORS_MAX: usize = 128;

/// Number of descriptors in every order: the reply, three standard streams and the private directory.
const DESCRIPTORS_MIN: usize = 5;

/// Answer of the fork server: the id of the child, whose process descriptor is attached, or a negative error number if the child could not
/// be made.
type ForkAnswer = i32;

/// Answer of a child: the failed step of its sandbox and the error number, or -1 and 0. The server has reported the child's id before.
type ChildAnswer = [i32; 2];

/// Order for a child. Descriptors are sent with the order: those of every order, the namespaces, the ruleset if there is one, and the
/// descriptors that the child keeps.
#[derive(Debug, Serialize, Deserialize)]
struct ForkRequest {
    args: Vec<String>,
    environment: Vec<String>,
    user: Option<(u32, u32)>,
    limits: Vec<(u32, u64, u64)>,
    idle: bool,
    namespaces: usize,
    /// Filter of system calls for the child: the filter of runs that own files, or the other filter.
    filter: Option<calls::FilterKind>,
    ruleset: bool,
}

/// Handle of the node to the fork server. The server ends when this handle is dropped.
#[derive(Debug)]
pub(crate) struct ForkServer {
    /// Socket of the server, locked from an order until the server has answered.
    socket: Mutex<Option<OwnedFd>>,
    process: Mutex<Child>,
}

/// Starts a process of this program that receives orders as packets ([`send`]) and ends when the socket is closed.
pub(crate) fn start_ordered(program: &OwnedFd, kind: &str) -> io::Result<(OwnedFd, Child)> {
    let pair = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let (own, other) = pair?;
    let mut command = serving(program.as_raw_fd(), kind, other);
    let process = spawn::on_lasting_thread(move |_| command.spawn())??;
    Ok((own, process))
}

impl ForkServer {
    /// Starts the fork server from `program`, an open file, in the control group of `doors`. Its children are in the same group.
    pub(crate) fn start(program: &OwnedFd, doors: &[OwnedFd]) -> io::Result<Self> {
        let (own, process) = start_ordered(program, KIND)?;
        for door in doors {
            let entered = rustix::io::write(door, process.id().to_string().as_bytes());
            if let Err(error) = entered {
                tracing::warn!(%error, "kernels have no common limit");
            }
        }
        Ok(Self {
            socket: Mutex::new(Some(own)),
            process: Mutex::new(process),
        })
    }

    /// Starts a child as `image` describes, with the filter of system calls `filter`. Returns `None` if the server cannot start it: the
    /// server has ended, or the order is too large.
    pub(crate) fn spawn(
        &self,
        image: &ProcessImage,
        filter: Option<calls::FilterKind>,
    ) -> Option<Result<Process, SpawnError>> {
        let text = |all: &[CString]| -> Option<Vec<String>> {
            let text = |one: &CString| one.to_str().ok().map(str::to_owned);
            all.iter().map(text).collect()
        };
        let order = ForkRequest {
            args: text(&image.args)?,
            environment: text(&image.environment)?,
            user: image.user.map(|user| (user.uid, user.gid)),
            limits: (image.limits.iter())
                .map(|(which, limit)| (*which, limit.rlim_cur, limit.rlim_max))
                .collect(),
            idle: image.idle,
            namespaces: image.namespaces.len(),
            filter,
            ruleset: image.ruleset.is_some(),
        };
        let order = postcard::to_allocvec(&order).ok()?;
        if order.len() > ORDER_BYTES_MAX {
            return None;
        }
        let (reader, reply) = io::pipe().ok()?;
        let mut descriptors = vec![reply.as_fd()];
        descriptors.extend(image.streams.iter().map(AsFd::as_fd));
        descriptors.push(image.directory.as_fd());
        // SAFETY: the creator of the image holds them open.
        let lent = |lent: &RawFd| unsafe { BorrowedFd::borrow_raw(*lent) };
        descriptors.extend(image.namespaces.iter().map(lent));
        descriptors.extend(image.ruleset.iter().map(AsFd::as_fd));
        descriptors.extend(image.kept.iter().map(lent));
        if descriptors.len() > DESCRIPTORS_MAX {
            return None;
        }
        let process = match self.order(&order, &descriptors)? {
            Ok(process) => process,
            Err(error) => return Some(Err(SpawnError::Process(error))),
        };
        drop(reply);
        Some(started(reader, process))
    }

    /// Sends the order for a child; returns `None` if the server has ended.
    fn order(&self, order: &[u8], descriptors: &[BorrowedFd<'_>]) -> Option<io::Result<Process>> {
        let socket = self.socket.lock();
        let socket = socket.as_ref()?;
        send(socket, order, descriptors)
            .and_then(|()| made(socket))
            .inspect_err(|error| tracing::warn!(%error, "the server that forks kernels has ended"))
            .ok()
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        *self.socket.lock() = None;
        if let Err(error) = self.process.lock().wait() {
            tracing::warn!(%error, "cannot wait for the server that forks kernels");
        }
    }
}

/// Sends bytes together with descriptors through a socket.
pub(crate) fn send(
    socket: &impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut more = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !more.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut more, flags)?;
    Ok(())
}

/// Receives bytes together with descriptors from a socket. Returns the number of bytes, 0 when the socket is closed.
pub(crate) fn receive(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut more = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut more, flags) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got?,
        }
    };
    let descriptors = more.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(all) => Some(all),
        _ => None,
    });
    Ok((got.bytes, descriptors.flatten().collect()))
}

/// Receives the child process that the server made. The server sends the id, since a child belongs to a user and could lie.
fn made(socket: &impl AsFd) -> io::Result<io::Result<Process>> {
    let mut bytes = [0; size_of::<ForkAnswer>()];
    let (length, descriptors) = receive(socket, &mut bytes)?;
    if length < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let pid = ForkAnswer::from_ne_bytes(bytes);
    Ok(match descriptors.into_iter().next() {
        Some(pidfd) if pid > 0 => Ok(Process { pid, pidfd }),
        None if pid > 0 => {
            // This process has no free descriptor for the child, so it cannot watch the child.
            end(pid);
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        }
        _ => Err(io::Error::from_raw_os_error(pid.saturating_neg())),
    })
}

/// Kills a child that was not waited for, with its process group, and waits for its end.
fn end(pid: ForkAnswer) {
    // SAFETY: these take numbers, which are the child's until it has been waited for; a null status is allowed.
    unsafe {
        // The child may not yet have the group with its number.
        libc::kill(pid, libc::SIGKILL);
        libc::kill(-pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// Waits until a child is confined, or returns the error that the child reports.
fn started(mut reply: impl Read, process: Process) -> Result<Process, SpawnError> {
    let mut bytes = [0; size_of::<ChildAnswer>()];
    let answered = reply.read_exact(&mut bytes);
    let (words, _) = bytes.as_chunks();
    let [step, errno] = [0, 1].map(|at| i32::from_ne_bytes(words[at]));
    let failure = match (answered, usize::try_from(step)) {
        (Ok(()), Err(_)) => return Ok(process),
        (Ok(()), Ok(step)) => spawn::failed(step, errno),
        (Err(error), _) => SpawnError::Process(error),
    };
    end(process.pid);
    Err(failure)
}

/// Runs the fork server; returns when the node has ended.
pub(crate) fn serve() {
    // Threads that start kernels block all signals, and this process inherited their mask. SAFETY: a zeroed set is valid storage for
    // sigemptyset; no handler is installed here.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    if rustix::process::geteuid().is_root() {
        spawn::show_memory(false);
    }
    let socket = io::stdin();
    let filters = filters().ok();
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    let mut order = vec![0; ORDER_BYTES_MAX];
    while let Ok((length @ 1.., descriptors)) = receive(&socket, &mut order) {
        if descriptors.len() < DESCRIPTORS_MIN {
            return;
        }
        let made = match copy() {
            Ok(None) => child(&order[..length], descriptors, filters, parent),
            Ok(Some((pid, pidfd))) => {
                // The descriptors are closed before any other process knows the child, which may end at once: then no process holds the
                // child's outputs open.
                drop(descriptors);
                send(&socket, &pid.to_ne_bytes(), &[pidfd.as_fd()])
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
                send(&socket, &(-errno).to_ne_bytes(), &[])
            }
        };
        if made.is_err() {
            return;
        }
        // The next child belongs to another user.
        order[..length].fill(0);
    }
}

/// Makes a copy of this process with the same parent; returns `None` in the copy.
fn copy() -> io::Result<Option<(ForkAnswer, OwnedFd)>> {
    let mut pidfd: RawFd = -1;
    // SAFETY: this process has one thread, so the copy of its memory is whole; it takes no new stack, and the
    // descriptor is stored in a live variable.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::CLONE_PARENT | libc::CLONE_PIDFD | libc::SIGCHLD,
            0,
            &raw mut pidfd,
            0,
            0,
        )
    };
    match i32::try_from(pid) {
        Ok(0) => Ok(None),
        // SAFETY: clone succeeded, so it stored a descriptor that is ours alone.
        Ok(pid) if pid > 0 => Ok(Some((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reports the failed step of a child's sandbox and its cause, or success.
fn answer(reply: &OwnedFd, answer: ChildAnswer) {
    let bytes: Vec<u8> = answer.into_iter().flat_map(i32::to_ne_bytes).collect();
    // If the node does not listen, it has ended, and this process ends with it.
    let _ = rustix::io::write(reply, &bytes);
}

fn refuse(reply: &OwnedFd, (step, errno): (usize, i32)) -> ! {
    answer(reply, [i32::try_from(step).unwrap_or(0), errno]);
    std::process::exit(1)
}

/// Runs in a child: sets up the sandbox and runs the kernel.
fn child(
    order: &[u8],
    descriptors: Vec<OwnedFd>,
    filters: Option<&'static Filters>,
    parent: i32,
) -> ! {
    spawn::heed_signals();
    let (reply, args, environment, kept) = {
        let Ok(order) = postcard::from_bytes::<ForkRequest>(order) else {
            refuse(&descriptors[0], (0, libc::EBADMSG));
        };
        let mut all = descriptors.into_iter();
        let mut next = || all.next().expect("the server counts them");
        let reply = next();
        let mut image = ProcessImage {
            program: ExecTarget::File(-1),
            args: Vec::new(),
            environment: Vec::new(),
            streams: [next(), next(), next()],
            directory: next().into(),
            kept: Vec::new(),
            doors: Vec::new(),
            namespaces: Vec::new(),
            user: order.user.map(|(uid, gid)| User { uid, gid }),
            limits: (order.limits.into_iter())
                .map(|(which, rlim_cur, rlim_max)| (which, libc::rlimit64 { rlim_cur, rlim_max }))
                .collect(),
            idle: order.idle,
            ruleset: None,
            filter: filters
                .zip(order.filter)
                .map(|(filters, kind)| filters.of(kind)),
        };
        if order.filter.is_some() && filters.is_none() {
            refuse(&reply, (spawn::CALL_FILTER, libc::ENOSYS));
        }
        let namespaces: Vec<OwnedFd> = all.by_ref().take(order.namespaces).collect();
        image.namespaces = namespaces.iter().map(AsRawFd::as_raw_fd).collect();
        image.ruleset = if order.ruleset { all.next() } else { None };
        let kept: Vec<OwnedFd> = all.collect();
        let places = KEPT_FIRST..;
        for (place, kept) in places.zip(&kept) {
            // SAFETY: nothing here has these numbers.
            if unsafe { libc::dup2(kept.as_raw_fd(), place) } < 0 {
                refuse(&reply, (spawn::DESCRIPTORS, libc::EMFILE));
            }
        }
        // SAFETY: this is a fresh process with one thread.
        if let Err(failure) = unsafe { spawn::confine_copy(&image, parent) } {
            refuse(&reply, failure);
        }
        // All of these descriptors are closed at once below.
        let count = kept.len();
        std::mem::forget((image, kept, namespaces));
        (reply, order.args, order.environment, count)
    };
    answer(&reply, [-1, 0]);
    std::mem::forget(reply);
    let kept_end = KEPT_FIRST.cast_unsigned() + u32::try_from(kept).unwrap_or(0);
    // SAFETY: no code uses the closed descriptors any more; the kept descriptors and the streams stay open.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, KEPT_FIRST.cast_unsigned() - 1, 0);
        libc::syscall(libc::SYS_close_range, kept_end, u32::MAX, 0);
        libc::clearenv();
    }
    // A program has this right after `execve`, too: it may inspect itself.
    spawn::show_memory(true);
    for variable in environment {
        if let Some((name, value)) = variable.split_once('=') {
            // SAFETY: this process has one thread.
            unsafe { std::env::set_var(name, value) };
        }
    }
    std::process::exit(run_task(args.into_iter().skip(2)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_server_order_round_trips_through_encoding() {
        let order = ForkRequest {
            args: vec!["a".into(), "ä\n".into()],
            environment: vec!["X=1".into()],
            user: Some((1, 2)),
            limits: vec![(3, u64::MAX, 5)],
            idle: true,
            namespaces: 3,
            filter: Some(calls::FilterKind {
                owns_files: false,
                has_peers: true,
            }),
            ruleset: true,
        };
        let bytes = postcard::to_allocvec(&order).unwrap();
        let back: ForkRequest = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(format!("{order:?}"), format!("{back:?}"));
    }

    #[test]
    #[allow(clippy::zombie_processes, reason = "it is waited for by its number")]
    fn fork_server_kills_child_without_free_descriptor() {
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let (own, server) = pair.unwrap();
        let child = std::process::Command::new("/bin/sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        // The server answers like this when no descriptor is free.
        let pid = ForkAnswer::try_from(child.id()).unwrap();
        send(&server, &pid.to_ne_bytes(), &[]).unwrap();
        let refused = made(&own).unwrap().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
        // SAFETY: asks for a number.
        let there = unsafe { libc::kill(pid, 0) };
        assert_eq!(there, -1);
    }

    #[test]
    #[allow(
        clippy::zombie_processes,
        reason = "a process that did not start was waited for"
    )]
    fn fork_server_child_without_answer_counts_as_not_started() {
        let end = |answer: &[u8]| {
            let child = std::process::Command::new("/bin/true").spawn().unwrap();
            let pid = i32::try_from(child.id()).unwrap();
            let place = rustix::process::Pid::from_raw(pid).unwrap();
            let pidfd = rustix::process::pidfd_open(place, rustix::process::PidfdFlags::empty());
            let pidfd = pidfd.unwrap();
            started(answer, Process { pid, pidfd })
        };
        let words = |words: ChildAnswer| words.map(i32::to_ne_bytes).concat();
        assert!(matches!(end(&[]), Err(SpawnError::Process(_))));
        let refused = words([i32::try_from(spawn::CALL_FILTER).unwrap(), libc::EAGAIN]);
        match end(&refused) {
            Err(SpawnError::Sandbox { source, .. }) => {
                assert_eq!(source.raw_os_error(), Some(libc::EAGAIN));
            }
            other => panic!("{other:?}"),
        }
        assert!(end(&words([-1, 0])).is_ok());
    }
}
