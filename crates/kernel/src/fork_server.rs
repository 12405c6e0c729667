//! Starts children of this program without executing it again: a small process that was loaded once forks them.
//!
//! Loading the program takes longer than most kernels that are parts of it: tens of thousands of addresses in it
//! are set each time. So the first such kernel starts a server, which waits for orders on a socket, and each order
//! makes one child: a copy of the server that puts up the sandbox around itself, says so, and runs the kernel. The server
//! has run no user code and holds no secret; whatever a kernel does to its copy is gone with it.
//!
//! Children are made with the server's own parent (`CLONE_PARENT`), so that the element waits for them, measures
//! them and takes them with it when it ends, as those that it starts itself.

use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::Child;

use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::child::{run_task, serving};
use crate::error::SpawnError;
use crate::launcher::filters;
use crate::run::User;
use crate::sandbox::calls::Filters;
use crate::spawn::{self, Image, Process, Program};

/// What the child is told to be.
pub(crate) const KIND: &str = "fork-server";

/// The number that the first descriptor has which a child keeps; the others follow. All that the server has or
/// is sent lies below.
pub(crate) const KEPT_FIRST: RawFd = 200;

/// Longest order, in bytes. Runs with more arguments are started in the other way.
const ORDER_BYTES_MAX: usize = 64 << 10;

/// Most descriptors of an order; the system allows 253.
const DESCRIPTORS_MAX: usize = 128;

/// What comes with every order: the reply, three streams, the folder and the keeper.
const DESCRIPTORS_MIN: usize = 6;

/// What a child answers: its id, the step of the sandbox that failed and why, or -1 and 0.
type Answer = [i32; 3];

/// What a child is to do. Its descriptors come along: those of every order, the ruleset if there is one, and those it
/// keeps.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    args: Vec<String>,
    environment: Vec<String>,
    user: Option<(u32, u32)>,
    limits: Vec<(u32, u64, u64)>,
    idle: bool,
    /// Which filter of system calls: that of runs that own files, or the other.
    filter: Option<bool>,
    ruleset: bool,
}

/// The server as the element sees it. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ForkServer {
    socket: Option<OwnedFd>,
    process: Mutex<Child>,
}

impl ForkServer {
    /// Starts the server from `program`, an open file, in the control group with these doors, which its children share.
    pub(crate) fn start(program: &OwnedFd, doors: &[OwnedFd]) -> io::Result<Self> {
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let (own, other) = pair?;
        let mut command = serving(program.as_raw_fd(), KIND, other);
        let process = spawn::on_lasting_thread(move |_| command.spawn())??;
        for door in doors {
            let entered = rustix::io::write(door, process.id().to_string().as_bytes());
            if let Err(error) = entered {
                tracing::warn!(%error, "kernels are not bounded together");
            }
        }
        Ok(Self {
            socket: Some(own),
            process: Mutex::new(process),
        })
    }

    /// Starts a child as `image` says; `filter` says which filter of system calls it has. `None` if the server cannot
    /// do it: it is gone, or the order is too large.
    pub(crate) fn spawn(
        &self,
        image: &Image,
        filter: Option<bool>,
    ) -> Option<Result<Process, SpawnError>> {
        let text = |all: &[CString]| -> Option<Vec<String>> {
            let text = |one: &CString| one.to_str().ok().map(str::to_owned);
            all.iter().map(text).collect()
        };
        let order = Order {
            args: text(&image.args)?,
            environment: text(&image.environment)?,
            user: image.user.map(|user| (user.uid, user.gid)),
            limits: (image.limits.iter())
                .map(|(which, limit)| (*which, limit.rlim_cur, limit.rlim_max))
                .collect(),
            idle: image.idle,
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
        descriptors.extend([image.folder.as_fd(), image.keeper.as_fd()]);
        descriptors.extend(image.ruleset.iter().map(AsFd::as_fd));
        for lent in &image.kept {
            // SAFETY: whoever made the image holds them open.
            descriptors.push(unsafe { BorrowedFd::borrow_raw(*lent) });
        }
        if descriptors.len() > DESCRIPTORS_MAX {
            return None;
        }
        self.send(&order, &descriptors)?;
        drop(reply);
        started(reader)
    }

    fn send(&self, order: &[u8], descriptors: &[BorrowedFd<'_>]) -> Option<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut more = SendAncillaryBuffer::new(&mut space);
        if !more.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return None;
        }
        let socket = self.socket.as_ref()?;
        match sendmsg(
            socket,
            &[IoSlice::new(order)],
            &mut more,
            SendFlags::NOSIGNAL,
        ) {
            Ok(_) => Some(()),
            Err(error) => {
                tracing::warn!(%error, "the server that forks kernels does not listen");
                None
            }
        }
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        self.socket = None;
        if let Err(error) = self.process.lock().wait() {
            tracing::warn!(%error, "cannot wait for the server that forks kernels");
        }
    }
}

/// Waits until a child is confined, or says why it is not; `None` if it, or the server, is gone before.
fn started(mut reply: impl Read) -> Option<Result<Process, SpawnError>> {
    let mut bytes = [0; size_of::<Answer>()];
    reply.read_exact(&mut bytes).ok()?;
    let (words, _) = bytes.as_chunks();
    let [id, step, errno] = [0, 1, 2].map(|at| i32::from_ne_bytes(words[at]));
    let system = |errno| SpawnError::Process(io::Error::from_raw_os_error(errno));
    let Some(pid) = Pid::from_raw(id) else {
        return Some(Err(system(errno)));
    };
    if let Ok(step) = usize::try_from(step) {
        // SAFETY: waits for the child that ends; a null status and rusage are allowed.
        unsafe { libc::waitpid(id, std::ptr::null_mut(), 0) };
        return Some(Err(spawn::failed(step, errno)));
    }
    // It is this process's child, and stays there until that waits for it.
    let pidfd = pidfd_open(pid, PidfdFlags::empty());
    Some(match pidfd {
        Ok(pidfd) => Ok(Process { pid: id, pidfd }),
        Err(error) => {
            spawn::kill_group(id);
            Err(SpawnError::Process(error.into()))
        }
    })
}

/// The server's own part: it returns when the element is gone.
pub(crate) fn serve() {
    // Threads that start kernels take no signals, and this was inherited.
    // SAFETY: a zeroed set is valid storage for sigemptyset; nothing is handled here.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    let socket = io::stdin();
    let filters = filters().ok();
    let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    let mut order = vec![0; ORDER_BYTES_MAX];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut more = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut order)],
            &mut more,
            flags,
        );
        let length = match got {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(got) if got.bytes > 0 => got.bytes,
            Ok(_) | Err(_) => return,
        };
        let descriptors: Vec<OwnedFd> = more
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(all) => Some(all),
                _ => None,
            })
            .flatten()
            .collect();
        if descriptors.len() < DESCRIPTORS_MIN {
            continue;
        }
        // SAFETY: this process has one thread, so the copy of its memory is whole; it takes no new stack.
        let pid = unsafe {
            libc::syscall(
                libc::SYS_clone,
                libc::CLONE_PARENT | libc::SIGCHLD,
                0,
                0,
                0,
                0,
            )
        };
        match pid {
            0 => child(&order[..length], descriptors, filters, parent),
            pid if pid < 0 => {
                let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                answer(&descriptors[0], [0, -1, errno]);
            }
            _ => {}
        }
    }
}

fn answer(reply: &OwnedFd, answer: Answer) {
    let bytes: Vec<u8> = answer.into_iter().flat_map(i32::to_ne_bytes).collect();
    // An element that does not listen is gone, and this process goes with it.
    let _ = rustix::io::write(reply, &bytes);
}

/// A child says which step of its sandbox failed, and why, and ends.
fn refuse(reply: &OwnedFd, pid: i32, (step, errno): (usize, i32)) -> ! {
    answer(reply, [pid, i32::try_from(step).unwrap_or(0), errno]);
    std::process::exit(1)
}

/// A child's part: puts up the sandbox and runs the kernel.
fn child(
    order: &[u8],
    descriptors: Vec<OwnedFd>,
    filters: Option<&'static Filters>,
    parent: i32,
) -> ! {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let (reply, args, environment, kept) = {
        let Ok(order) = postcard::from_bytes::<Order>(order) else {
            refuse(&descriptors[0], pid, (0, libc::EBADMSG));
        };
        let mut all = descriptors.into_iter();
        let mut next = || all.next().expect("the server counts them");
        let reply = next();
        let mut image = Image {
            program: Program::File(-1),
            args: Vec::new(),
            environment: Vec::new(),
            streams: [next(), next(), next()],
            folder: next(),
            keeper: next(),
            kept: Vec::new(),
            doors: Vec::new(),
            user: order.user.map(|(uid, gid)| User { uid, gid }),
            limits: (order.limits.into_iter())
                .map(|(which, rlim_cur, rlim_max)| (which, libc::rlimit64 { rlim_cur, rlim_max }))
                .collect(),
            idle: order.idle,
            ruleset: None,
            filter: filters
                .zip(order.filter)
                .map(|(filters, owns)| filters.of(owns)),
        };
        if order.filter.is_some() && filters.is_none() {
            refuse(&reply, pid, (spawn::CALL_FILTER, libc::ENOSYS));
        }
        image.ruleset = if order.ruleset { all.next() } else { None };
        let kept: Vec<OwnedFd> = all.collect();
        let places = KEPT_FIRST..;
        for (place, kept) in places.zip(&kept) {
            // SAFETY: nothing here has these numbers.
            if unsafe { libc::dup2(kept.as_raw_fd(), place) } < 0 {
                refuse(&reply, pid, (spawn::DESCRIPTORS, libc::EMFILE));
            }
        }
        // SAFETY: this is a fresh process with one thread.
        if let Err(failure) = unsafe { spawn::confine_copy(&image, parent) } {
            refuse(&reply, pid, failure);
        }
        // They are closed all at once.
        let count = kept.len();
        std::mem::forget((image, kept));
        (reply, order.args, order.environment, count)
    };
    answer(&reply, [pid, -1, 0]);
    std::mem::forget(reply);
    let kept_end = KEPT_FIRST.cast_unsigned() + u32::try_from(kept).unwrap_or(0);
    // SAFETY: nothing uses those any more; what is kept and the streams stay.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, KEPT_FIRST.cast_unsigned() - 1, 0);
        libc::syscall(libc::SYS_close_range, kept_end, u32::MAX, 0);
        libc::clearenv();
    }
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
    fn an_order_survives_the_way() {
        let order = Order {
            args: vec!["a".into(), "ä\n".into()],
            environment: vec!["X=1".into()],
            user: Some((1, 2)),
            limits: vec![(3, u64::MAX, 5)],
            idle: true,
            filter: Some(false),
            ruleset: true,
        };
        let bytes = postcard::to_allocvec(&order).unwrap();
        let back: Order = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(format!("{order:?}"), format!("{back:?}"));
    }

    #[test]
    fn what_ends_without_an_answer_did_not_start() {
        let nothing: &[u8] = &[];
        assert!(started(nothing).is_none());
        let refused: Vec<u8> = [0_i32, -1, libc::EAGAIN]
            .into_iter()
            .flat_map(i32::to_ne_bytes)
            .collect();
        match started(refused.as_slice()) {
            Some(Err(SpawnError::Process(error))) => {
                assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
            }
            other => panic!("{other:?}"),
        }
    }
}
