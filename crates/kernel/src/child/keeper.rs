//! A small process beside the element that outlives it for a moment, to kill what its kernels started.
//!
//! A kernel's first process dies with its element (`PR_SET_PDEATHSIG`), but that holds for no process it
//! started in turn. So the element names every kernel's process group here, takes it back at the end, and when the
//! element is gone (the pipe ends) the rest is killed. No kernel ever has this pipe, nor a say in what goes through it.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Child;

use parking_lot::Mutex;

use super::serving;

/// What the child is told to be.
pub(super) const KIND: &str = "keeper";

/// The keeper as the element sees it. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    pipe: Option<OwnedFd>,
    process: Mutex<Child>,
}

impl Keeper {
    /// Starts the keeper from `program`, an open file.
    pub(crate) fn start(program: &OwnedFd) -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // A keeper that is stuck must not hold up kernels.
        rustix::io::ioctl_fionbio(&writer, true)?;
        let process = Mutex::new(serving(program.as_raw_fd(), KIND, reader).spawn()?);
        Ok(Self {
            pipe: Some(writer),
            process,
        })
    }

    /// Names a group that was just started. Until then its first process alone dies with this one, and has had no time
    /// for another.
    pub(crate) fn started(&self, pid: i32) {
        self.tell(pid);
    }

    /// Takes a group back that has ended.
    pub(crate) fn ended(&self, pid: i32) {
        self.tell(-pid);
    }

    fn tell(&self, word: i32) {
        let pipe = self.pipe.as_ref();
        let pipe = pipe.expect("the pipe is closed only on drop");
        // So few bytes are written whole.
        if let Err(error) = rustix::io::write(pipe, &word.to_ne_bytes()) {
            tracing::warn!(%error, "the keeper of kernels does not listen");
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.pipe = None;
        if let Err(error) = self.process.lock().wait() {
            tracing::warn!(%error, "cannot wait for the keeper of kernels");
        }
    }
}

/// The keeper's own part: it returns when the element is gone and all its kernels are killed.
pub(super) fn keep() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: ignoring a signal runs no code. What asks the element to end must not end the keeper.
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
        // Nobody is left who could have waited for its processes, but the system.
        // SAFETY: kill has no memory effects.
        unsafe { libc::kill(-id, libc::SIGKILL) };
    }
}
