//! Keeper: a small process that outlives the node for a moment, to kill the processes that the node's kernels started. It receives process
//! groups from the launcher through a pipe.
//!
//! A kernel's first process dies with its node (`PR_SET_PDEATHSIG`), but processes that the kernel started do not. So the node reports
//! every kernel's process group to the keeper, and its end. When the node has ended (the pipe ends), the keeper kills the remaining groups.
//! No kernel ever has access to this pipe or influence on its contents.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Child;

use parking_lot::Mutex;

use super::serving;

/// Argument that makes a child process of the node a keeper.
pub(super) const KIND: &str = "keeper";

/// Handle of the node to its keeper. The keeper ends when this handle is dropped.
#[derive(Debug)]
pub(crate) struct KeeperHandle {
    pipe: Option<OwnedFd>,
    process: Mutex<Child>,
}

impl KeeperHandle {
    /// Starts the keeper from `program`, an open file.
    pub(crate) fn start(program: &OwnedFd) -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // A keeper that hangs must not delay kernels.
        rustix::io::ioctl_fionbio(&writer, true)?;
        let process = Mutex::new(serving(program.as_raw_fd(), KIND, reader).spawn()?);
        Ok(Self {
            pipe: Some(writer),
            process,
        })
    }

    /// Reports a process group that was just started. Before the report only the group's first process dies with this process, and it has
    /// not run long enough to start another process.
    pub(crate) fn started(&self, pid: i32) {
        self.tell(pid);
    }

    /// Reports that a process group has ended.
    pub(crate) fn ended(&self, pid: i32) {
        self.tell(-pid);
    }

    fn tell(&self, word: i32) {
        let pipe = self.pipe.as_ref();
        let pipe = pipe.expect("the pipe is closed only on drop");
        // A message of this size is always written completely.
        if let Err(error) = rustix::io::write(pipe, &word.to_ne_bytes()) {
            tracing::warn!(%error, "the keeper of kernels does not listen");
        }
    }
}

impl Drop for KeeperHandle {
    fn drop(&mut self) {
        self.pipe = None;
        if let Err(error) = self.process.lock().wait() {
            tracing::warn!(%error, "cannot wait for the keeper of kernels");
        }
    }
}

/// Runs the keeper; returns when the node has ended and all its kernels are killed.
pub(super) fn keep() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: ignoring a signal runs no code. A signal that asks the node to end must not end the keeper.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut groups = BTreeSet::new();
    let mut message = [0; size_of::<i32>()];
    let mut pipe = io::stdin().lock();
    while pipe.read_exact(&mut message).is_ok() {
        let id = i32::from_ne_bytes(message);
        if id > 0 {
            groups.insert(id);
        } else {
            groups.remove(&-id);
        }
    }
    for id in groups {
        // Only the system can still have waited for its processes. SAFETY: kill has no memory effects.
        unsafe { libc::kill(-id, libc::SIGKILL) };
    }
}
