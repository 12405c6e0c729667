//! Aborts the Linux kernel's connection of a mount whose process cannot end by itself, with the connection's `abort` file and a small
//! process.
//!
//! A thread that notifies the Linux kernel of a change may wait in the kernel for a directory's lock. A program that holds the lock waits
//! for an answer of the mount. If the answering threads are killed, neither the program nor the waiting thread ends: the thread keeps
//! `/dev/fuse` open. The kernel ends such a connection if a process writes to the connection's file `abort`.
//!
//! The mount writes to `abort` at its end. If the mount is killed, a small process writes to it instead: a shell that has only this file
//! and a pipe open. The other end of the pipe belongs to one thread of the mount. That thread has a separate table of open files, so that
//! the pipe is closed however long other threads wait.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::thread::UnshareFlags;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};

/// Directory of the Linux kernel's FUSE connections, if it is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Shell script that aborts the connection at its standard output, unless a line arrives before the end of its standard input.
const SCRIPT: &str = "trap '' HUP INT QUIT TERM; read -r over || echo 1";
/// Name of the shell in the list of processes.
const NAME: &str = "tidemill-mount-guard";
/// Highest descriptor of the standard streams.
const STANDARD: RawFd = 2;

/// Opens the file that aborts the connection of the mount with this device number, such as `0:98`.
pub(crate) fn connection(device: &str) -> io::Result<File> {
    let number = device.strip_prefix("0:").and_then(|n| n.parse().ok());
    let number: u32 = number.ok_or(io::ErrorKind::InvalidInput)?;
    let shared = format!("{CONNECTIONS}/{number}/abort");
    let open = |directory: BorrowedFd<'_>, path: &str| {
        openat(
            directory,
            path,
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    };
    let file = open(CWD, &shared).or_else(|_| {
        let directory = private_connections()?;
        open(directory.as_fd(), &format!("{number}/abort"))
    })?;
    Ok(file.into())
}

/// Mounts the directory of FUSE connections such that no other process sees the mount.
fn private_connections() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}

pub(crate) fn abort(mut connection: &File) {
    if let Err(error) = connection.write_all(b"1") {
        tracing::debug!("the Linux kernel's connection can't be closed: {error}");
    }
}

/// Handle of a process that aborts the connection of this process's mount when this process is killed. The process ends with the handle.
#[derive(Debug)]
pub(crate) struct Guard {
    connection: Arc<File>,
    /// Channel that is disconnected at the end. No message is ever sent.
    _alive: mpsc::Sender<()>,
}

impl Guard {
    /// Starts the guard process for the mount with this device number.
    ///
    /// # Errors
    /// The user may not abort the connection, or the host has no shell.
    pub(crate) fn start(device: &str) -> io::Result<Self> {
        Self::of(Arc::new(connection(device)?))
    }

    fn of(connection: Arc<File>) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let (tell, reported) = mpsc::channel();
        let held = connection.clone();
        std::thread::Builder::new()
            .name("mount-guard".into())
            .spawn(move || watch(&held, &tell, &ended))?;
        // The thread answers, or ends.
        reported.recv().map_err(io::Error::other)??;
        Ok(Self {
            connection,
            _alive: alive,
        })
    }

    /// Ends the connection now.
    pub(crate) fn abort(&self) {
        abort(&self.connection);
    }
}

/// Starts the guard process and ends it when `ended` is disconnected. The pipe of the process is closed when this thread ends for any
/// reason.
fn watch(connection: &File, tell: &mpsc::Sender<io::Result<()>>, ended: &mpsc::Receiver<()>) {
    let (mut child, mut pipe) = match started(connection) {
        Ok(started) => started,
        Err(error) => {
            // The other side waits for the message.
            let _ = tell.send(Err(error));
            return;
        }
    };
    let _ = tell.send(Ok(()));
    // No message is sent: this is the end.
    let _ = ended.recv();
    // If the process was killed, the write fails and nothing is left to do.
    let _ = pipe.write_all(b"over\n");
    let _ = child.wait();
}

/// Starts the guard process from this thread, which has no other open files afterwards.
fn started(connection: &File) -> io::Result<(Child, io::PipeWriter)> {
    own_table()?;
    close_all_but(connection.as_raw_fd())?;
    let (reader, writer) = io::pipe()?;
    let child = Command::new("/bin/sh")
        .args(["-c", SCRIPT, NAME])
        .env_clear()
        .current_dir("/")
        .process_group(0)
        .stdin(reader)
        .stdout(connection.try_clone()?)
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, writer))
}

/// Gives this thread a separate copy of the table of open files.
#[expect(
    deprecated,
    reason = "the replacement is unsafe, as a thread could lose the files of other threads"
)]
fn own_table() -> io::Result<()> {
    Ok(rustix::thread::unshare(UnshareFlags::FILES)?)
}

/// Closes all open files of this thread except `kept` and the standard streams; the thread must have a separate table of open files.
fn close_all_but(kept: RawFd) -> io::Result<()> {
    let mut open: Vec<RawFd> = Vec::new();
    for entry in std::fs::read_dir("/proc/thread-self/fd")? {
        let name = entry?.file_name();
        open.extend(name.to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    for file in open {
        if file > STANDARD && file != kept {
            // The descriptor of the directory that was read is closed already.
            let _ = nix::unistd::close(file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Starts the guard process from a thread that dies or reports its end. Returns the content of the file that the process writes.
    fn written(killed: bool) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let connection = file.as_file().try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut child, mut pipe) = started(&connection).unwrap();
            let process = Path::new("/proc").join(child.id().to_string());
            assert_eq!(process.join("cwd").read_link().unwrap(), Path::new("/"));
            // The start of the program opens libraries for a moment.
            let files = || process.join("fd").read_dir().unwrap().count();
            let begun = std::time::Instant::now();
            while files() != 3 && begun.elapsed().as_secs() < 10 {
                std::thread::yield_now();
            }
            assert_eq!(files(), 3);
            if !killed {
                pipe.write_all(b"over\n").unwrap();
            }
            drop(pipe);
            child.wait().unwrap();
        });
        thread.join().unwrap();
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn mount_guard_aborts_connection_of_killed_mount_only() {
        assert_eq!(written(true), "1\n");
        assert_eq!(written(false), "");
    }

    #[test]
    fn mount_guard_does_not_close_files_of_other_threads() {
        let kept = tempfile::NamedTempFile::new().unwrap();
        let (file, path) = tempfile::NamedTempFile::new().unwrap().into_parts();
        let guard = Guard::of(Arc::new(file)).unwrap();
        (&mut kept.as_file()).write_all(b"there").unwrap();
        drop(guard);
        assert_eq!(std::fs::read(kept.path()).unwrap(), b"there");
        assert_eq!(std::fs::read(path).unwrap(), b"");
    }

    #[test]
    fn fuse_connection_needs_valid_device_number() {
        assert!(connection("8:1").is_err());
        assert!(connection("0:x").is_err());
        assert!(connection("").is_err());
    }
}
