//! Namespaces of kernels: a user namespace, in which kernels have their owners' numbers and over which they have no rights, and in it an
//! empty network and empty messages and memory of System V.
//!
//! The namespaces are made once for all kernels of a launcher. Making a network takes longer than most kernels run, and kernels cannot
//! change these namespaces because the filter denies the calls. Processes outside have no rights over processes within, whatever their
//! user.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use super::ids::{self, Ids, KERNELS, KERNELS_FROM};

/// Kinds of namespaces, in the order in which they are entered: entering the first gives the rights to enter the next ones.
const KINDS: [&str; 3] = ["user", "net", "ipc"];

const FLAGS: libc::c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC;

/// Open namespaces. They exist as long as this value or a process in them.
#[derive(Debug)]
pub(crate) struct Namespaces {
    open: [OwnedFd; KINDS.len()],
}

impl Namespaces {
    /// Makes the namespaces of kernels, and tries to enter them.
    ///
    /// # Errors
    /// If this process has no right to make or enter namespaces.
    pub(crate) fn make(ids: Ids) -> io::Result<Self> {
        let parent = rustix::process::getpid().as_raw_nonzero().get();
        // SAFETY: the child is a copy of this process with this thread only; it makes bare system calls until it is ended.
        let pid = fork(FLAGS, || unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            // A descriptor that this process closes, for example of a lock, must not stay open here.
            libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
            while libc::getppid() == parent {
                libc::pause();
            }
            0
        })?;
        let made = Self::of_process(pid, ids);
        // The end of a pipe cannot signal this: another copy of this process could hold the pipe open.
        let ended = rustix::process::kill_process(pid, Signal::KILL);
        ended.and_then(|()| waitpid(Some(pid), WaitOptions::empty()))?;
        let made = made?;
        made.try_out()?;
        Ok(made)
    }

    /// Opens the namespaces that a child of this process has just entered, and maps their users.
    ///
    /// # Errors
    /// The error that the operating system reports.
    pub(crate) fn of_process(pid: Pid, ids: Ids) -> io::Result<Self> {
        map(pid, ids).and_then(|()| Self::open(pid))
    }

    fn open(pid: Pid) -> io::Result<Self> {
        let directory = of(pid).join("ns");
        let open = |kind: &str| File::open(directory.join(kind)).map(OwnedFd::from);
        let [user, net, ipc] = KINDS.map(open);
        Ok(Self {
            open: [user?, net?, ipc?],
        })
    }

    /// Checks the namespaces by entering them: some systems let all users make namespaces, but allow no operation in them.
    fn try_out(&self) -> io::Result<()> {
        let descriptors = self.descriptors();
        let enter = |one: &BorrowedFd<'_>| {
            // SAFETY: takes numbers, and concerns the copy only.
            unsafe { libc::setns(one.as_raw_fd(), 0) == 0 }
        };
        let pid = fork(0, || i32::from(!descriptors.iter().all(enter)))?;
        let ended = waitpid(Some(pid), WaitOptions::empty())?;
        match ended.and_then(|(_, status)| status.exit_status()) {
            Some(0) => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
        }
    }

    /// Returns the descriptors of the namespaces in the order in which they must be entered.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; KINDS.len()] {
        self.open.each_ref().map(AsFd::as_fd)
    }
}

fn of(pid: Pid) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_nonzero().to_string())
}

/// Makes a copy of this process that ends with the result of `child`.
fn fork(flags: libc::c_int, child: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: the call gets no stack and stores nothing. The callers are responsible for the code of the copy, see there.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        let code = child();
        // SAFETY: ends the copy without running handlers of this process.
        unsafe { libc::_exit(code) }
    }
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.ok_or_else(io::Error::last_os_error)
}

/// Sets the user numbers within the user namespace of a process.
fn map(pid: Pid, ids: Ids) -> io::Result<()> {
    let directory = of(pid);
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let kernels = || format!("0 {KERNELS_FROM} {KERNELS}");
    let (users, groups) = match ids {
        Ids::OfKernels => (kernels(), kernels()),
        Ids::OfOwners if uid.is_root() => {
            (same("/proc/self/uid_map")?, same("/proc/self/gid_map")?)
        }
        Ids::OfOwners => {
            fs::write(directory.join("setgroups"), "deny")?;
            let own = |id: u32| format!("{id} {id} 1");
            (own(uid.as_raw()), own(gid.as_raw()))
        }
    };
    fs::write(directory.join("uid_map"), users)?;
    fs::write(directory.join("gid_map"), groups)
}

/// Returns a map in which all users that this process knows keep their numbers.
fn same(path: &str) -> io::Result<String> {
    let line = |(first, count)| format!("{first} {first} {count}\n");
    Ok(ids::ranges(path)?.into_iter().map(line).collect())
}
