//! A running kernel: waiting for it, cancelling it, and reporting how it ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::run::{Exit, RunEnd, RunUsage, StreamTail};
use crate::sandbox::group::Full;
use crate::watch::{Watched, groups};

/// Number of bytes that are read from a kernel's pipe at once.
const READ_BYTES: usize = 64 << 10;

/// Maximum time that remaining processes of a kernel may take to die after they were killed.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(2);
const LEFT_BEHIND_PAUSE: Duration = Duration::from_millis(1);

/// Texts on standard error that run-time libraries of common languages write after an allocation failed.
const OUT_OF_MEMORY_WORDS: &[&str] = &[
    "MemoryError",
    "Cannot allocate memory",
    "cannot allocate memory",
    "Out of memory",
    "out of memory",
    "bad_alloc",
    "OutOfMemoryError",
    "memory exhausted",
    "memory allocation of",
];

/// A started kernel. Dropping it kills the kernel.
#[derive(Debug)]
pub struct RunningKernel {
    watched: Arc<Watched>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

/// Handle to cancel a run and to show its output so far. It can be used from any thread, and has no limited lifetime.
#[derive(Clone, Debug)]
pub struct Control {
    watched: Arc<Watched>,
}

impl Control {
    /// Kills the kernel with all its processes. Has no effect if the kernel has ended.
    pub fn cancel(&self) {
        self.watched.kill(RunEnd::Cancelled);
    }

    /// Returns the last bytes of the kernel's standard output so far, unless an output file receives the standard output.
    #[must_use]
    pub fn stdout(&self) -> StreamTail {
        self.watched.stdout.lock().clone()
    }

    /// Returns the last bytes of the kernel's standard error so far.
    #[must_use]
    pub fn stderr(&self) -> StreamTail {
        self.watched.stderr.lock().clone()
    }
}

impl RunningKernel {
    pub(crate) fn new(watched: Arc<Watched>, stdout: Option<OwnedFd>, stderr: OwnedFd) -> Self {
        Self {
            watched,
            stdout,
            stderr: Some(stderr),
        }
    }

    /// Returns the id of the kernel's first process, which is also the id of its group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.watched.process.pid.cast_unsigned()
    }

    /// Returns a handle to cancel the kernel.
    #[must_use]
    pub fn control(&self) -> Control {
        Control {
            watched: Arc::clone(&self.watched),
        }
    }

    /// Waits until the kernel has ended and none of its processes is left. Blocks the thread.
    ///
    /// # Errors
    /// If the operating system cannot report how the kernel ended.
    pub fn wait(mut self) -> io::Result<Exit> {
        let mut buffer = vec![0; READ_BYTES];
        while !self.serve(&mut buffer, true, None)? {}
        let wall = self.watched.started.elapsed();
        let (status, used) = self.reap()?;
        // Remaining processes were killed with the kernel; their last output may still be in the pipes.
        let until = Instant::now() + LEFT_BEHIND_MAX;
        self.wait_for_left_behind(until);
        while (self.stdout.is_some() || self.stderr.is_some()) && Instant::now() < until {
            if self.serve(
                &mut buffer,
                false,
                Some(until.saturating_duration_since(Instant::now())),
            )? {
                break;
            }
        }
        let written = self.watched.written();
        let stderr = std::mem::take(&mut *self.watched.stderr.lock());
        let stdout = std::mem::take(&mut *self.watched.stdout.lock());
        let mut usage = *self.watched.orphans.lock();
        add(&mut usage, &used);
        let usage = RunUsage {
            wall,
            written_bytes: written.bytes,
            ..usage
        };
        let cause = self.watched.state.lock().cause;
        let limits = &self.watched.limits;
        let full = written.exceeds(limits.output_bytes)
            || (status != RunEnd::Code(0) && written.longest >= limits.output_bytes);
        let mut end = end(status, cause, full, &usage, limits.memory_bytes, &stderr);
        if end == RunEnd::Signal(libc::SIGKILL) {
            end = match self.watched.full() {
                Some(Full::Own) => RunEnd::MemoryLimit,
                Some(Full::OfAll) => RunEnd::GroupLimit,
                None => end,
            };
        }
        Ok(Exit {
            end,
            usage,
            stderr,
            stdout,
        })
    }

    /// Waits for an event and reads the contents of the kernel's pipes. Returns true when the process has ended, or, if `process` is false,
    /// when the time is over.
    fn serve(
        &mut self,
        buffer: &mut [u8],
        process: bool,
        time: Option<Duration>,
    ) -> io::Result<bool> {
        let time = time
            .map(Timespec::try_from)
            .transpose()
            .map_err(io::Error::other)?;
        let mut polled: Vec<PollFd<'_>> = [&self.stdout, &self.stderr]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        if process {
            polled.push(PollFd::new(&self.watched.process.pidfd, PollFlags::IN));
        }
        let ready = match poll(&mut polled, time.as_ref()) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let ended = process && polled.last().is_some_and(|fd| !fd.revents().is_empty());
        drain(&mut self.stdout, &self.watched.stdout, buffer)?;
        drain(&mut self.stderr, &self.watched.stderr, buffer)?;
        Ok(ended || ready == 0)
    }

    /// Kills the rest of the kernel's process group, then reaps the first process. This order, and the lock, ensure that the group's id
    /// still belongs to the group.
    fn reap(&self) -> io::Result<(RunEnd, libc::rusage)> {
        let mut state = self.watched.state.lock();
        self.watched.process.kill_group();
        let pid = self.watched.process.pid;
        let mut status = 0;
        // SAFETY: all-zero is a valid rusage.
        let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
        loop {
            // SAFETY: both pointers are to live, writable values of the right type.
            let result = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
            if result == pid {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        state.reaped = true;
        self.watched.keeper.ended(pid);
        let end = if libc::WIFSIGNALED(status) {
            RunEnd::Signal(libc::WTERMSIG(status))
        } else {
            RunEnd::Code(libc::WEXITSTATUS(status))
        };
        Ok((end, usage))
    }

    /// Waits for the end of killed processes, which may still write for a moment.
    fn wait_for_left_behind(&self, until: Instant) {
        // Processes whose parents ended without waiting for them are now children of this process.
        self.watched.reap_orphans();
        let group = || BTreeMap::from([(self.watched.process.pid, u32::MAX)]);
        while self.watched.process.has_group() && Instant::now() < until {
            // Ended processes that their parent has not waited for still count as existing.
            if groups(&group()).values().all(|group| group.live == 0) {
                // The last of them may have ended after the listing.
                self.watched.reap_orphans();
                return;
            }
            thread::sleep(LEFT_BEHIND_PAUSE);
            self.watched.reap_orphans();
        }
    }
}

/// Adds the usage of a process and of the processes that it waited for.
pub(crate) fn add(usage: &mut RunUsage, used: &libc::rusage) {
    usage.user_cpu += duration(used.ru_utime);
    usage.system_cpu += duration(used.ru_stime);
    let rss_bytes = used.ru_maxrss.cast_unsigned() << 10;
    usage.rss_bytes_max = usage.rss_bytes_max.max(rss_bytes);
}

impl Drop for RunningKernel {
    fn drop(&mut self) {
        if self.watched.state.lock().reaped {
            return;
        }
        self.watched.kill(RunEnd::Cancelled);
        if let Err(error) = self.reap() {
            tracing::warn!(%error, pid = self.watched.process.pid, "cannot wait for a killed kernel");
        }
    }
}

/// Reads all available bytes of a pipe; closes the pipe at its end.
fn drain(
    pipe: &mut Option<OwnedFd>,
    tail: &Mutex<StreamTail>,
    buffer: &mut [u8],
) -> io::Result<()> {
    while let Some(fd) = pipe {
        let fd: BorrowedFd<'_> = fd.as_fd();
        match rustix::io::read(fd, &mut *buffer) {
            Ok(0) => *pipe = None,
            Ok(count) => tail.lock().push(&buffer[..count]),
            Err(rustix::io::Errno::AGAIN) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn duration(time: libc::timeval) -> Duration {
    let micros = u32::try_from(time.tv_usec).unwrap_or(0);
    Duration::new(time.tv_sec.cast_unsigned(), micros * 1000)
}

/// Returns the cause of a run's end, from the system's status, the cause of a kill, and the evidence of exceeded limits.
fn end(
    status: RunEnd,
    cause: Option<RunEnd>,
    full: bool,
    usage: &RunUsage,
    memory_bytes: u64,
    stderr: &StreamTail,
) -> RunEnd {
    match (status, cause) {
        (_, Some(RunEnd::Cancelled)) => return RunEnd::Cancelled,
        (_, Some(RunEnd::OutputLimit)) => return RunEnd::OutputLimit,
        // The kernel may have succeeded just before it was killed.
        (RunEnd::Code(0), _) => {}
        (_, Some(cause)) => return cause,
        (RunEnd::Signal(libc::SIGXFSZ), None) => return RunEnd::OutputLimit,
        (RunEnd::Signal(libc::SIGXCPU), None) => return RunEnd::TimeLimit,
        _ => {}
    }
    if full {
        return RunEnd::OutputLimit;
    }
    if status == RunEnd::Code(0) {
        return status;
    }
    let near = usage.rss_bytes_max >= memory_bytes / 10 * 9;
    let crashed = matches!(
        status,
        RunEnd::Signal(libc::SIGSEGV | libc::SIGABRT | libc::SIGBUS | libc::SIGTRAP)
    );
    let text = stderr.text();
    if (near && crashed) || OUT_OF_MEMORY_WORDS.iter().any(|words| text.contains(words)) {
        return RunEnd::MemoryLimit;
    }
    status
}
