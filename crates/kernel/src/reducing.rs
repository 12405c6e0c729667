//! Children that reduce arrays: each serves one user, request after request, so that what decodes users' bytes is confined as
//! kernels are, and starting it is no part of a request.
//!
//! A request is an [`Order`] and an open file; the child answers with the values alone. One that dies, or takes too long, takes
//! nobody's request with it but the one that it had.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::array::{ArrayError, RAW_BYTES_MAX, RESULT_BYTES_MAX, Reduced, Spec};
use crate::error::{PrepareError, SpawnError};
use crate::fork_server::send;
use crate::launcher::Launcher;
use crate::private::remove_folder;
use crate::reduction::{Batch, Item};
use crate::run::{Code, InputsAs, Limits, Run, User};
use crate::running::Running;

/// How long one child is used, whatever it does.
pub const CHILD_MAX: Duration = Duration::from_secs(600);

/// How long one request may take.
pub const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Memory of one child: what was stored, two buffers to decode it, and the result.
const CHILD_BYTES_MAX: u64 = 3 * RAW_BYTES_MAX as u64 + 4 * RESULT_BYTES_MAX as u64;

/// Longest order, in bytes.
pub(crate) const ORDER_BYTES_MAX: usize = 4 << 20;

/// Pieces of one array.
pub const PIECES_MAX: usize = 1 << 16;

/// Bytes that an array may have as it is stored.
pub const STORED_BYTES_MAX: u64 = RAW_BYTES_MAX as u64;

/// Bytes that may be sent with an order.
pub const SENT_BYTES_MAX: usize = 64 << 20;

/// Where stored bytes are, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// In the file that comes with the order.
    Held {
        /// From here on.
        offset: u64,
        /// So many.
        length: u64,
    },
    /// Among the bytes that come with it.
    Sent(u64),
    /// Zeros that nobody wrote.
    Hole(u64),
}

/// A reduction and what it is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// What is to be done.
    pub spec: Spec,
    /// The stored bytes.
    pub pieces: Vec<Piece>,
}

/// What is done to the bytes of one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    /// One array is reduced to its [`Reduced`].
    Array(Order),
    /// Pieces of a variable are folded to their [`State`](crate::reduction::State).
    Batch(Batch),
}

impl Work {
    /// Where all of its bytes are, in order.
    pub fn pieces(&self) -> Box<dyn Iterator<Item = &Piece> + '_> {
        match self {
            Self::Array(order) => Box::new(order.pieces.iter()),
            Self::Batch(batch) => Box::new(batch.items.iter().flat_map(|item| &item.bytes)),
        }
    }

    /// The same with its bytes at other places, as many as there are.
    #[must_use]
    pub fn moved(mut self, to: impl IntoIterator<Item = Piece>) -> Self {
        let places: Box<dyn Iterator<Item = &mut Piece>> = match &mut self {
            Self::Array(order) => Box::new(order.pieces.iter_mut()),
            Self::Batch(batch) => Box::new(
                batch
                    .items
                    .iter_mut()
                    .flat_map(|item: &mut Item| &mut item.bytes),
            ),
        };
        places.zip(to).for_each(|(place, to)| *place = to);
        self
    }

    /// Bytes that are sent with it.
    ///
    /// # Errors
    /// If there are more of anything than there may be.
    pub fn check(&self) -> Result<u64, Trouble> {
        let (mut all, mut sent, mut count) = (0_u64, 0_u64, 0_usize);
        for piece in self.pieces() {
            let (Piece::Held { length, .. } | Piece::Sent(length) | Piece::Hole(length)) = piece;
            (all, count) = (all.saturating_add(*length), count + 1);
            if let Piece::Sent(length) = piece {
                sent = sent.saturating_add(*length);
            }
        }
        if all > STORED_BYTES_MAX || sent > SENT_BYTES_MAX as u64 || count > PIECES_MAX {
            return Err(ArrayError::TooLarge.into());
        }
        if let Self::Array(order) = self {
            crate::array::Plan::new(&order.spec)?;
        }
        Ok(sent)
    }
}

impl Order {
    /// Bytes that are sent with it.
    ///
    /// # Errors
    /// If there are more of anything than there may be.
    pub fn check(&self) -> Result<u64, Trouble> {
        Work::Array(self.clone()).check()
    }
}

/// A request that a child refuses, and could carry out no better a second time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Trouble {
    /// What is wrong.
    pub message: String,
    /// Whether it is the stored bytes.
    pub of_data: bool,
}

impl From<ArrayError> for Trouble {
    fn from(error: ArrayError) -> Self {
        Self {
            message: error.to_string(),
            of_data: error.is_of_data(),
        }
    }
}

/// What a child answers: what was made, in postcard. Its last byte says whether it is that or trouble.
pub(crate) type Answer = Result<Vec<u8>, Trouble>;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// The request or the bytes are at fault.
    #[error(transparent)]
    Refused(#[from] Trouble),
    /// The child has ended, or was: it is of no further use.
    #[error("the process that decodes the array ended: {0}")]
    Ended(String),
    /// It took too long and was ended.
    #[error("decoding the array took longer than {} s", REQUEST_MAX.as_secs())]
    Slow,
    /// There is no child.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// There is no child.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// There is no child.
    #[error("can't make a socket: {0}")]
    Socket(#[from] io::Error),
}

/// A child that reduces. It is killed when this is dropped.
#[derive(Debug)]
pub struct Reducing {
    socket: UnixStream,
    running: Option<Running>,
    limits: Limits,
    folder: PathBuf,
}

impl Launcher {
    /// Starts a child that reduces with the rights of `user`. `folder` is its private one, which must not exist and is
    /// removed in the end.
    ///
    /// # Errors
    /// If none can be started.
    pub fn start_reducing(
        &self,
        folder: &Path,
        user: Option<User>,
    ) -> Result<Reducing, ReduceError> {
        let (own, other) = UnixStream::pair()?;
        own.set_read_timeout(Some(REQUEST_MAX))?;
        own.set_write_timeout(Some(REQUEST_MAX))?;
        // The code is this program's own; see `prepare_reducer`.
        let mut run = Run::new(Code::Builtin(String::new()), folder);
        run.user = user;
        if user.is_none() {
            run.inputs_as = InputsAs::Symlink;
        }
        run.limits = Limits {
            time: CHILD_MAX + REQUEST_MAX,
            memory_bytes: CHILD_BYTES_MAX,
            output_bytes: 1,
            processes: 1,
            ..Limits::default()
        };
        let mut reducing = Reducing {
            socket: own,
            running: None,
            limits: run.limits,
            folder: folder.to_owned(),
        };
        let prepared = self.prepare_reducer(run, File::from(OwnedFd::from(other)))?;
        reducing.running = Some(self.spawn(&prepared)?);
        Ok(reducing)
    }
}

impl Reducing {
    /// Has an array reduced. `sent` are the bytes that come with the order.
    ///
    /// # Errors
    /// If the child refuses, or ends.
    pub fn reduce(
        &mut self,
        order: &Order,
        file: &File,
        sent: &[u8],
    ) -> Result<Reduced, ReduceError> {
        let answer = self.carry_out(&Work::Array(order.clone()), file, sent)?;
        postcard::from_bytes(&answer).map_err(|error| ReduceError::Ended(error.to_string()))
    }

    /// Has work done; what it gives is in postcard: a [`Reduced`] of an array, a [`State`](crate::reduction::State) of a batch. `sent` are the bytes that
    /// come with it.
    ///
    /// # Errors
    /// If the child refuses, or ends.
    pub fn carry_out(
        &mut self,
        work: &Work,
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

    fn ask(&mut self, work: &Work, file: &File, sent: &[u8]) -> io::Result<Answer> {
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

    /// Why the child is of no further use.
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

    /// Whether it can be asked again.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.running.is_some()
    }

    /// The id of the process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(Running::pid)
    }
}

impl Drop for Reducing {
    fn drop(&mut self) {
        self.running = None;
        if let Err(error) = remove_folder(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "the folder of a child can't be removed");
        }
    }
}

/// Longest answer: a result with its counts.
pub(crate) const ANSWER_BYTES_MAX: usize = 2 * RESULT_BYTES_MAX + (1 << 20);

/// The length of a message as it is sent before it.
pub(crate) fn length(bytes: usize, most: usize) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= most);
    length
        .map(u32::to_le_bytes)
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// A message behind its length; `None` if there is no more.
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
