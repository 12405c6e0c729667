//! Processes that outlive the command that started them. They have sessions of their own and pid files, and end by
//! signals.
//!
//! A pid file contains the pid and the start time of the process. So a process that got the same pid later is never
//! signalled. Signals use a pidfd, which always refers to one process.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time that a killed process may need to end.
const ENDING_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to lock its pid file.
const ENDING_PERIOD: Duration = Duration::from_millis(5);
/// Flag of the Linux kernel for a thread that ends.
const EXITING: u64 = 4;
/// The bit of SIGKILL among pending signals.
const KILLED: u64 = 1 << 8;

/// Flags of the commands that stay in the foreground: `server run`, `node run`, `mount`.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Foreground {
    /// File for process id and start time. A second process with the same file does not start
    #[arg(long, value_name = "FILE", help_heading = "Process", hide = true)]
    pub(crate) pid_file: Option<PathBuf>,
    /// Start a new session, to survive the end of the caller's session
    #[arg(long, help_heading = "Process", hide = true)]
    pub(crate) own_session: bool,
}

/// Error of a pid file or a signal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    /// Another process holds the file.
    #[error(
        "already running: {0} is held by another process; stop that one first (`tidemill down`)"
    )]
    Held(String),
    /// A file can't be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A process can't be signalled.
    #[error("can't signal process {pid}: {source}; stop it as the user who started it")]
    Signal {
        /// The process.
        pid: i32,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// Pid file, locked while the process runs and removed at its end.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    _locked: File,
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The file may be removed already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Foreground {
    /// Applies the flags. Keep the result until the process ends.
    ///
    /// # Errors
    /// If another process holds the pid file.
    pub(crate) fn enter(&self) -> Result<Option<PidFile>, ProcessError> {
        if self.own_session {
            // This fails only for the leader of a process group.
            let _ = rustix::process::setsid();
        }
        open_many_files();
        self.pid_file.as_deref().map(write_pid_file).transpose()
    }
}

/// Raises the limit of open files to its maximum. A mount needs a descriptor for each file that programs have open, a server
/// one for each connection.
fn open_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("no more files than before can be open at once: {error}");
    }
}

fn write_pid_file(path: &Path) -> Result<PidFile, ProcessError> {
    let at = |source| ProcessError::File {
        path: path.display().to_string(),
        source,
    };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(at)?;
    }
    let mut file = lock(path).map_err(at)?.ok_or_else(|| {
        // The holder still runs, or did not end in time.
        ProcessError::Held(path.display().to_string())
    })?;
    let pid = std::process::id();
    let began = start_time(i32::try_from(pid).unwrap_or(0)).unwrap_or(0);
    file.set_len(0).map_err(at)?;
    file.write_all(format!("{pid} {began}\n").as_bytes())
        .map_err(at)?;
    Ok(PidFile {
        path: path.into(),
        _locked: file,
    })
}

/// Opens and locks a pid file; returns `None` if another process holds the file. A killed process keeps its locks until its
/// last thread has ended, so this waits for that end.
fn lock(path: &Path) -> std::io::Result<Option<File>> {
    let deadline = Instant::now() + ENDING_PATIENCE;
    loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        // The previous holder removes the file at its end, and a lock on the removed file is worthless.
        let there = std::fs::metadata(path).ok();
        let ours = file.metadata()?;
        if locked
            && there.is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
        {
            return Ok(Some(file));
        }
        let held = !locked && running(path).is_some_and(|holder| !holder.ending);
        if held || Instant::now() > deadline {
            return Ok(None);
        }
        std::thread::sleep(ENDING_PERIOD);
    }
}

/// A process that a pid file names and that still runs.
#[derive(Debug)]
pub(crate) struct RunningProcess {
    /// Pid of the process.
    pub(crate) pid: i32,
    /// Whether the process was killed, but has not ended in time, for example because it waits for a disk.
    pub(crate) ending: bool,
    handle: OwnedFd,
}

/// Returns the process of a pid file, if that very process still runs. If the process was killed, this waits for its end: a
/// killed process holds its files and locks until then.
pub(crate) fn running(pid_file: &Path) -> Option<RunningProcess> {
    let text = std::fs::read_to_string(pid_file).ok()?;
    let mut words = text.split_whitespace();
    let pid: i32 = words.next()?.parse().ok()?;
    let began: u64 = words.next()?.parse().ok()?;
    let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // The start time is read after the handle was opened, so a later reuse of the pid can't be confused with it.
    if start_time(pid)? != began {
        return None;
    }
    let mut running = RunningProcess {
        pid,
        ending: is_ending(pid),
        handle,
    };
    let patience = if running.ending {
        ENDING_PATIENCE
    } else {
        Duration::ZERO
    };
    if running.wait(patience) {
        return None;
    }
    running.ending |= is_ending(pid);
    Some(running)
}

impl RunningProcess {
    /// Asks the process to end.
    ///
    /// # Errors
    /// If the process belongs to another user.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(ProcessError::Signal {
                pid: self.pid,
                source: errno.into(),
            }),
        }
    }

    /// Waits until the process has ended; returns `false` if it runs longer than `limit`.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&limit)), Ok(count) if count > 0)
    }
}

/// Returns the fields of `/proc/PID/stat` from the third on.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses; the name may contain spaces and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Returns the start time of a process, in clock ticks since boot.
fn start_time(pid: i32) -> Option<u64> {
    stat(pid)?.get(19)?.parse().ok()
}

/// Whether a process was killed or is ending. Its first thread may have ended while other threads still run.
fn is_ending(pid: i32) -> bool {
    let Some(fields) = stat(pid) else { return true };
    let state = fields.first().map(String::as_str);
    let flags: u64 = fields
        .get(6)
        .and_then(|flags| flags.parse().ok())
        .unwrap_or(0);
    if matches!(state, Some("Z" | "X")) || flags & EXITING != 0 {
        return true;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| {
        let (name, mask) = line.split_once(':')?;
        let counts = matches!(name, "SigPnd" | "ShdPnd");
        counts.then(|| u64::from_str_radix(mask.trim(), 16).unwrap_or(0))
    });
    pending.fold(0, |all, mask| all | mask) & KILLED != 0
}

/// Replaces this process by a new run of its program, with the same arguments and pid, and with `variable` set or unset.
/// Returns only if that fails, with the error.
pub(crate) fn again(variable: &str, set: bool) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    // An upgrade may have replaced the file of the program.
    let program = program.to_string_lossy();
    let program = program.strip_suffix(" (deleted)").unwrap_or(&program);
    let mut command = std::process::Command::new(program);
    command.args(std::env::args_os().skip(1));
    match set {
        true => command.env(variable, "1"),
        false => command.env_remove(variable),
    };
    command.exec()
}

/// Starts this program in the background with other arguments and an optional variable of the environment. Its output is
/// appended to `log`.
///
/// # Errors
/// If the log can't be written or the program can't be started.
pub(crate) fn start(
    arguments: &[std::ffi::OsString],
    variable: Option<(&str, &str)>,
    pid_file: &Path,
    log: &Path,
) -> Result<std::process::Child, ProcessError> {
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |source| ProcessError::File { path, source }
    };
    if let Some(parent) = log.parent() {
        std::fs::create_dir_all(parent).map_err(at(parent))?;
    }
    let out = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(at(log))?;
    let err = out.try_clone().map_err(at(log))?;
    let program = std::env::current_exe().map_err(at(Path::new("/proc/self/exe")))?;
    std::process::Command::new(&program)
        .args(arguments)
        .envs(variable)
        .arg("--own-session")
        .arg("--pid-file")
        .arg(pid_file)
        .current_dir("/")
        .stdin(std::process::Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(at(&program))
}

/// Returns the last lines of a log, which explain why a process ended.
pub(crate) fn tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// If signals can't be caught.
pub(crate) async fn asked_to_end() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_limit_is_raised_to_hard_limit() {
        use rustix::process::{Resource, getrlimit};
        open_many_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn running_identifies_process_by_pid_and_start_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.pid");
        assert!(running(&path).is_none());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let began = start_time(pid).unwrap();
        std::fs::write(&path, format!("{pid} {began}\n")).unwrap();
        let found = running(&path).unwrap();
        assert_eq!(found.pid, pid);

        // The same pid, but another start: another process, which is left alone.
        std::fs::write(&path, format!("{pid} {}\n", began + 1)).unwrap();
        assert!(running(&path).is_none());

        assert!(!found.wait(Duration::ZERO));
        found.signal(Signal::TERM).unwrap();
        assert!(found.wait(Duration::from_secs(60)));
        child.wait().unwrap();
        found.signal(Signal::TERM).unwrap();
    }

    #[test]
    fn pid_file_is_exclusive_and_removed_on_drop() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/p.pid");
        let held = write_pid_file(&path).unwrap();
        assert_eq!(
            running(&path).unwrap().pid,
            i32::try_from(std::process::id()).unwrap()
        );
        assert!(matches!(write_pid_file(&path), Err(ProcessError::Held(_))));
        drop(held);
        assert!(!path.exists());
    }

    /// A killed process keeps its lock for a moment. The next process waits until the lock is released.
    #[test]
    fn pid_file_waits_for_stale_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.pid");
        let left = File::create(&path).unwrap();
        flock(&left, FlockOperation::NonBlockingLockExclusive).unwrap();
        std::fs::write(&path, "999999999 1\n").unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || write_pid_file(&path)
        });
        drop(left);
        let held = waiting.join().unwrap().unwrap();
        assert!(running(&path).is_some());
        drop(held);
    }

    #[test]
    fn killed_process_is_not_running() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.pid");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        std::fs::write(&path, format!("{pid} {}\n", start_time(pid).unwrap())).unwrap();
        assert!(!running(&path).unwrap().ending);
        child.kill().unwrap();
        // Nobody has collected it yet.
        assert!(running(&path).is_none());
        child.wait().unwrap();
        assert!(running(&path).is_none());
    }
}
