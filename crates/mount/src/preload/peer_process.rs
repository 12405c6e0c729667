//! The process at the other end of a connection, whose rights the file system may read from `/proc`.
//!
//! A message names its sender, but the process id may belong to another process by the time the request is served. This module holds a
//! descriptor of the process that connected, so the process id is valid while the process lives. For another sender the file system uses
//! nothing of `/proc`: a child that sends on the connection of its parent has no supplementary groups.

use crate::fs::Caller;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use std::cell::RefCell;
use std::rc::Rc;

/// The process that opened the connection.
#[derive(Debug)]
pub(super) struct PeerProcess {
    pid: u32,
    /// Descriptor of the process; `None` if the process ended before it was examined.
    process: Option<OwnedFd>,
}

thread_local! {
    /// The connected process whose request this thread serves.
    static PEER: RefCell<Option<Rc<PeerProcess>>> = const { RefCell::new(None) };
}

/// Guard that removes the thread's peer when it is dropped, also if a request panics.
struct PeerGuard;

impl Drop for PeerGuard {
    fn drop(&mut self) {
        PEER.set(None);
    }
}

impl PeerProcess {
    /// Returns the process that opened a connection.
    pub(super) fn of(connection: &OwnedFd) -> Result<Self, Errno> {
        let pid = socket_peercred(connection)?.pid;
        let connected =
            nix::sys::socket::getsockopt(connection, nix::sys::socket::sockopt::PeerPidfd);
        let process = match connected {
            Ok(process) => Some(process),
            // Before Linux 6.5 the process is opened by its number. Each request checks the present owner of the number again.
            Err(nix::errno::Errno::ENOPROTOOPT) => pidfd_open(pid, PidfdFlags::empty()).ok(),
            Err(_) => None,
        };
        Ok(Self {
            pid: pid.as_raw_nonzero().get().cast_unsigned(),
            process,
        })
    }

    fn lives(&self) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        let mut ended = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
        poll(&mut ended, Some(&Timespec::default())) == Ok(0)
    }
}

/// Serves a request that arrived over the connection of `peer`.
pub(super) fn serve<T>(peer: &Rc<PeerProcess>, request: impl FnOnce() -> T) -> T {
    PEER.set(Some(peer.clone()));
    let _served = PeerGuard;
    request()
}

/// Whether the caller is the process that connected, and lives, so that all data that was read by its process id is its own data.
pub(super) fn is(caller: Caller) -> bool {
    let peer = PEER.with_borrow(Clone::clone);
    peer.is_some_and(|peer| peer.pid == caller.pid && peer.lives())
}

/// Returns the content of a file of the caller's directory in `/proc`, if the caller is the process that connected, and lives.
pub(super) fn read(caller: Caller, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", caller.pid)).ok()?;
    is(caller).then_some(text)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, socket_with,
    };
    use std::path::Path;
    use std::process::{Command, Stdio};

    fn caller(pid: u32) -> Caller {
        Caller {
            uid: 5,
            gid: 5,
            pid,
        }
    }

    fn accepted(listener: &OwnedFd) -> PeerProcess {
        PeerProcess::of(&accept_with(listener, SocketFlags::CLOEXEC).unwrap()).unwrap()
    }

    pub(in crate::preload) fn own(directory: &Path) -> Rc<PeerProcess> {
        let path = directory.join("own");
        let listener = super::super::socket::listener(&path).unwrap();
        let kind = SocketType::SEQPACKET;
        let client = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        Rc::new(accepted(&listener))
    }

    #[test]
    fn peer_reads_proc_of_connected_process_only() {
        let directory = tempfile::tempdir().unwrap();
        let peer = own(directory.path());
        let pid = std::process::id();
        assert_eq!(peer.pid, pid);
        assert!(serve(&peer, || read(caller(pid), "status")).is_some());
        // Outside of a request, and for another process, no file can be read.
        assert!(read(caller(pid), "status").is_none());
        assert!(serve(&peer, || read(caller(1), "status")).is_none());
    }

    #[test]
    fn peer_reads_no_proc_files_of_ended_process() {
        let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = rustix::process::Pid::from_child(&process);
        let peer = Rc::new(PeerProcess {
            pid: process.id(),
            process: pidfd_open(id, PidfdFlags::empty()).ok(),
        });
        let asked = || serve(&peer, || read(caller(peer.pid), "status"));
        assert!(asked().is_some());
        process.kill().unwrap();
        process.wait().unwrap();
        // The number may belong to another process by now: this one, for example.
        assert!(asked().is_none());
        let reused = Rc::new(PeerProcess {
            pid: std::process::id(),
            process: peer.process.as_ref().map(|p| p.try_clone().unwrap()),
        });
        assert!(serve(&reused, || read(caller(reused.pid), "status")).is_none());
    }
}
