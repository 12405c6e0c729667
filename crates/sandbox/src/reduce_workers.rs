//! Child processes that reduce arrays. Each child serves the requests of one user, one after the other. So the code that decodes users'
//! bytes is confined like a kernel, and requests do not wait for the start of a process.
//!
//! A request is an [`ArrayReduction`] and an open file; the child answers with the values alone. If a child dies or takes too long, only
//! its current request fails.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{PrepareError, SpawnError};
use crate::fork_server::send;
use crate::launcher::Launcher;
use crate::private::remove_directory;
use crate::run::{CodeSource, InputsAs, Run, RunLimits, User};
use crate::running::RunningKernel;
use tidemill_compute::array::{RAW_BYTES_MAX, RESULT_BYTES_MAX, Reduced};
use tidemill_compute::work::{ArrayReduction, ReducerError, ReducerWork};

/// Maximum lifetime of a child process.
pub const CHILD_MAX: Duration = Duration::from_secs(600);

/// Maximum duration of a request.
pub const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Maximum memory of one child, in bytes: the stored bytes, two buffers to decode them, and the result.
const CHILD_BYTES_MAX: u64 = 3 * RAW_BYTES_MAX as u64 + 4 * RESULT_BYTES_MAX as u64;

/// Maximum size of an order, in bytes.
pub(crate) const ORDER_BYTES_MAX: usize = 4 << 20;

/// Answer of a child: the result in postcard, or the error. The last byte of the message distinguishes result and error.
pub(crate) type ReducerAnswer = Result<Vec<u8>, ReducerError>;

/// Reason why a reduction has no result.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// The request or the stored bytes are invalid.
    #[error(transparent)]
    Refused(#[from] ReducerError),
    /// The child has ended, or was killed, and cannot be used any more.
    #[error("the process that decodes the array ended: {0}")]
    Ended(String),
    /// The request took too long, and the child was killed.
    #[error("decoding the array took longer than {} s", REQUEST_MAX.as_secs())]
    Slow,
    /// The child could not be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The child could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The socket of the child could not be made.
    #[error("can't make a socket: {0}")]
    Socket(#[from] io::Error),
}

/// A child that reduces arrays. The child is killed when this value is dropped.
#[derive(Debug)]
pub struct Reducing {
    socket: UnixStream,
    running: Option<RunningKernel>,
    limits: RunLimits,
    directory: PathBuf,
}

impl Launcher {
    /// Starts a child that reduces arrays with the rights of `user`. `directory` is its private directory, which must not exist and is
    /// removed in the end.
    ///
    /// # Errors
    /// If the child cannot be started.
    pub fn start_reducing(
        &self,
        directory: &Path,
        user: Option<User>,
    ) -> Result<Reducing, ReduceError> {
        let (own, other) = UnixStream::pair()?;
        own.set_read_timeout(Some(REQUEST_MAX))?;
        own.set_write_timeout(Some(REQUEST_MAX))?;
        // The code is this program itself; see `prepare_reducer`.
        let mut run = Run::new(CodeSource::Builtin(String::new()), directory);
        run.user = user;
        if user.is_none() {
            run.inputs_as = InputsAs::Symlink;
        }
        run.limits = RunLimits {
            time: CHILD_MAX + REQUEST_MAX,
            memory_bytes: CHILD_BYTES_MAX,
            output_bytes: 1,
            processes: 1,
            ..RunLimits::default()
        };
        let mut reducing = Reducing {
            socket: own,
            running: None,
            limits: run.limits,
            directory: directory.to_owned(),
        };
        let prepared = self.prepare_reducer(run, File::from(OwnedFd::from(other)))?;
        reducing.running = Some(self.spawn(&prepared)?);
        Ok(reducing)
    }
}

impl Reducing {
    /// Reduces an array in the child. `sent` contains the bytes that are sent with the order.
    ///
    /// # Errors
    /// If the child refuses the request, or ends.
    pub fn reduce(
        &mut self,
        order: &ArrayReduction,
        file: &File,
        sent: &[u8],
    ) -> Result<Reduced, ReduceError> {
        let answer = self.carry_out(&ReducerWork::Array(order.clone()), file, sent)?;
        postcard::from_bytes(&answer).map_err(|error| ReduceError::Ended(error.to_string()))
    }

    /// Executes work in the child. The result is in postcard: a [`Reduced`] of an array, a [`State`](tidemill_compute::reduction::BoxState) of a
    /// batch. `sent` contains the bytes that are sent with the work.
    ///
    /// # Errors
    /// If the child refuses the work, or ends.
    pub fn carry_out(
        &mut self,
        work: &ReducerWork,
        file: &File,
        sent: &[u8],
    ) -> Result<Vec<u8>, ReduceError> {
        if work.check()? != sent.len() as u64 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        match self.ask(work, file, sent) {
            Ok(answer) => Ok(answer?),
            Err(error) => Err(self.ended(&error)),
        }
    }

    fn ask(&mut self, work: &ReducerWork, file: &File, sent: &[u8]) -> io::Result<ReducerAnswer> {
        let work = postcard::to_allocvec(work).map_err(io::Error::other)?;
        let length = length(work.len(), ORDER_BYTES_MAX)?;
        send(&self.socket, &length, &[file.as_fd()])?;
        self.socket.write_all(&work)?;
        self.socket.write_all(sent)?;
        let answer = read_message(&mut self.socket, ANSWER_BYTES_MAX)?;
        let mut answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
        match answer.pop() {
            Some(0) => Ok(Ok(answer)),
            Some(_) => postcard::from_bytes(&answer)
                .map(Err)
                .map_err(io::Error::other),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Kills the child and returns the reason why the child cannot be used any more.
    fn ended(&mut self, error: &io::Error) -> ReduceError {
        let timed_out = matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        );
        let Some(running) = self.running.take() else {
            return ReduceError::Ended(error.to_string());
        };
        if timed_out {
            drop(running);
            return ReduceError::Slow;
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        ReduceError::Ended(match running.wait() {
            Ok(exit) => exit.message(&self.limits),
            Err(error) => error.to_string(),
        })
    }

    /// Returns whether the child accepts another request.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the id of the child process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(RunningKernel::pid)
    }
}

impl Drop for Reducing {
    fn drop(&mut self) {
        self.running = None;
        if let Err(error) = remove_directory(&self.directory) {
            tracing::warn!(directory = %self.directory.display(), %error, "the directory of a child can't be removed");
        }
    }
}

/// Maximum size of an answer, in bytes: a result with its counts.
pub(crate) const ANSWER_BYTES_MAX: usize = 2 * RESULT_BYTES_MAX + (1 << 20);

/// Returns the length of a message as the prefix that is sent before it.
pub(crate) fn length(bytes: usize, most: usize) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= most);
    length
        .map(u32::to_le_bytes)
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Reads a message that follows its length; returns `None` if the socket is closed.
fn read_message(from: &mut impl Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if from.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    from.read_exact(&mut message)?;
    Ok(Some(message))
}
