//! A small process beside the element that outlives it for a moment, to kill what its kernels started.
//!
//! A kernel's first process dies with its element (`PR_SET_PDEATHSIG`), but that holds for no process it
//! started in turn. So every kernel announces its process group here before it executes its program, the
//! element takes it back at the end, and when the element is gone (the pipe ends) the rest is killed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Child;

use parking_lot::Mutex;

use super::serving;
use crate::spawn::kill_group;

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

    /// Where a new process writes its id.
    pub(crate) fn announce(&self) -> io::Result<OwnedFd> {
        let pipe = self.pipe.as_ref();
        pipe.expect("the pipe is closed only on drop").try_clone()
    }

    /// Takes a group back that has ended.
    pub(crate) fn ended(&self, pid: i32) {
        let told = self.announce().map(File::from);
        if let Err(error) = told.and_then(|mut pipe| pipe.write_all(&(-pid).to_ne_bytes())) {
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
    groups.into_iter().for_each(kill_group);
}
