//! What a kernel can be made of: a fold, which takes its input in any pieces, or a stream, which gives bytes
//! for bytes. Knows no kernel; those are in `builtin`.
//!
//! **The law of folds.** However the input is cut into pieces, in whatever order they come and whatever partial
//! states are merged in whatever order: the result is the same, bit for bit. So a kernel may run on a whole
//! file, on stripes, or on a write buffer, and what several elements found is put together by anyone.

use std::fmt::Debug;
use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::builtin::BuiltinError;

/// Version of the form in which partial states are written.
pub const STATE_VERSION: u8 = 1;

/// A kernel that takes its input in pieces; see the law above.
pub(crate) trait Fold: Send + Debug {
    /// Takes in a piece that begins at `offset` of the input. Pieces do not overlap.
    ///
    /// Between two inputs that are no series (files of text, say) lies a gap of at least one byte.
    fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuiltinError>;

    /// What was found so far, without the kernel's arguments.
    fn state(&self) -> Result<Vec<u8>, BuiltinError>;

    /// Takes in what another fold of the same kernel and arguments found in other pieces.
    fn merge(&mut self, state: &[u8]) -> Result<(), BuiltinError>;

    /// Writes the result. All pieces have been taken in.
    fn finish(self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError>;
}

/// A kernel that gives bytes as bytes come, in order and in bounded memory unless it says otherwise.
pub(crate) trait Stream: Send + Debug {
    /// Takes the next piece and writes what follows from it.
    fn push(&mut self, bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError>;

    /// What comes now is another input. Most take all as one.
    fn next_input(&mut self, _: &mut dyn Write) -> Result<(), BuiltinError> {
        Ok(())
    }

    /// Writes the rest. The input is at its end.
    fn finish(self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError>;
}

/// Writes a state as bytes.
pub(crate) fn encode<S: Serialize>(state: &S) -> Result<Vec<u8>, BuiltinError> {
    postcard::to_allocvec(state).map_err(|_| BuiltinError::State("it is too large"))
}

/// Reads what [`encode`] wrote.
pub(crate) fn decode<S: DeserializeOwned>(bytes: &[u8]) -> Result<S, BuiltinError> {
    match postcard::take_from_bytes(bytes) {
        Ok((state, [])) => Ok(state),
        _ => Err(BuiltinError::State("it is damaged")),
    }
}

/// A running fold of a built-in kernel; [`crate::fold_builtin`] makes one.
///
/// A state is [`STATE_VERSION`], then the first 8 bytes of the blake3 hash of the kernel's name, revision and
/// arguments, then what the kernel keeps, as postcard writes it. It is merged only into a fold of the same kernel
/// with the same arguments.
#[derive(Debug)]
pub struct Folding {
    pub(crate) fold: Box<dyn Fold>,
    pub(crate) key: [u8; 8],
}

impl Folding {
    /// Takes in a piece that begins at byte `offset` of the input. Pieces must not overlap, and all bytes of
    /// the input must be in one. Inputs that are not to be one text (no line or word spans them) lie at least
    /// one byte apart.
    ///
    /// # Errors
    /// If the kernel cannot take these bytes.
    pub fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuiltinError> {
        self.fold.update(offset, bytes)
    }

    /// The partial state.
    ///
    /// # Errors
    /// If it cannot be written as bytes.
    pub fn state(&self) -> Result<Vec<u8>, BuiltinError> {
        let mut state = vec![STATE_VERSION];
        state.extend(self.key);
        state.extend(self.fold.state()?);
        Ok(state)
    }

    /// Takes in a partial state, of other pieces than those taken in here.
    ///
    /// # Errors
    /// If it is damaged, or is of another kernel, of other arguments or of another version.
    pub fn merge(&mut self, state: &[u8]) -> Result<(), BuiltinError> {
        let Some(([version, key @ ..], body)) = state.split_first_chunk::<9>() else {
            return Err(BuiltinError::State("it is too short"));
        };
        if *version != STATE_VERSION {
            return Err(BuiltinError::State("it was written by another version"));
        }
        if *key != self.key {
            return Err(BuiltinError::State(
                "it is of another kernel or other arguments",
            ));
        }
        self.fold.merge(body)
    }

    /// Writes the result.
    ///
    /// # Errors
    /// If there is no result (no values, say), or it cannot be written.
    pub fn finish(self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        self.fold.finish(out)
    }
}

/// A running stream of a built-in kernel, writing to `next`; [`crate::stream_builtin`] makes one. What is
/// written to it is pushed through the kernel, so that streams are put together by writing one into another.
#[derive(Debug)]
pub struct Streaming<W: Write> {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) next: W,
}

impl<W: Write> Streaming<W> {
    /// Writes the rest, and gives back what was written to.
    ///
    /// # Errors
    /// If the input ended too early, or what comes next cannot be written to.
    pub fn finish(mut self) -> Result<W, BuiltinError> {
        self.stream.finish(&mut self.next)?;
        Ok(self.next)
    }
}

impl<W: Write> Write for Streaming<W> {
    /// Pushes all of `bytes`. A [`BuiltinError`] of the kernel is inside the error.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.push(bytes, &mut self.next) {
            Ok(()) => Ok(bytes.len()),
            Err(BuiltinError::Write(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.next.flush()
    }
}
