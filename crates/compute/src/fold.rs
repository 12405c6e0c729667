//! The two interfaces of kernels: a fold accepts its input in any pieces; a stream turns bytes into bytes. This module contains no
//! particular kernel; the kernels are in `builtin`.
//!
//! **Merge invariance.** The result of a fold is the same, bit for bit, however the input is cut into pieces, in whatever order the pieces
//! arrive, and in whatever order partial states are merged. So a kernel may run on a whole file, on stripes, or on a write buffer, and any
//! process can merge the partial states of several nodes.

use std::fmt::Debug;
use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::builtin::BuiltinError;

/// Version of the format in which partial states are stored.
pub const STATE_VERSION: u8 = 1;

/// Kernel that accepts its input in pieces, with merge invariance (see the module).
pub(crate) trait Fold: Send + Debug {
    /// Processes a piece that begins at `offset` of the input. Pieces do not overlap.
    ///
    /// Between two inputs that are no series (files of text, for example) the offsets have a gap of at least one byte.
    fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuiltinError>;

    /// Returns the partial state of the pieces so far, without the kernel's arguments.
    fn state(&self) -> Result<Vec<u8>, BuiltinError>;

    /// Merges the state of another fold of the same kernel and arguments, made from other pieces.
    fn merge(&mut self, state: &[u8]) -> Result<(), BuiltinError>;

    /// Writes the result of the fold after all pieces have been processed.
    fn finish(self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError>;
}

/// Kernel that writes output as input arrives, in order and in bounded memory unless its description says otherwise.
pub(crate) trait Stream: Send + Debug {
    /// Processes the next piece of the input and writes the output that follows from the piece.
    fn push(&mut self, bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError>;

    /// Marks the start of another input. Most streams treat all inputs as one.
    fn next_input(&mut self, _: &mut dyn Write) -> Result<(), BuiltinError> {
        Ok(())
    }

    /// Writes the rest of the output at the end of the input.
    fn finish(self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError>;
}

/// Serialises the partial state of a fold.
pub(crate) fn encode<S: Serialize>(state: &S) -> Result<Vec<u8>, BuiltinError> {
    postcard::to_allocvec(state).map_err(|_| BuiltinError::State("it is too large"))
}

/// Deserialises a partial state that [`encode`] wrote.
pub(crate) fn decode<S: DeserializeOwned>(bytes: &[u8]) -> Result<S, BuiltinError> {
    match postcard::take_from_bytes(bytes) {
        Ok((state, [])) => Ok(state),
        _ => Err(BuiltinError::State("it is corrupt")),
    }
}

/// Running fold of a built-in kernel; [`crate::fold_builtin`] returns such a fold.
///
/// A stored partial state consists of [`STATE_VERSION`], the first 8 bytes of the blake3 hash of the kernel's name, revision and arguments,
/// and the kernel's own state in postcard format. It is merged only into a fold of the same kernel with the same arguments.
#[derive(Debug)]
pub struct Folding {
    pub(crate) fold: Box<dyn Fold>,
    pub(crate) key: [u8; 8],
}

impl Folding {
    /// Processes a piece that begins at byte `offset` of the input. Pieces must not overlap, and each byte of the input must be in one
    /// piece. If inputs are not one text (no line or word spans them), leave a gap of at least one byte between them.
    ///
    /// # Errors
    /// If the kernel cannot process the bytes of the piece.
    pub fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuiltinError> {
        self.fold.update(offset, bytes)
    }

    /// Returns the partial state of the fold.
    ///
    /// # Errors
    /// If the partial state cannot be serialised.
    pub fn state(&self) -> Result<Vec<u8>, BuiltinError> {
        let mut state = vec![STATE_VERSION];
        state.extend(self.key);
        state.extend(self.fold.state()?);
        Ok(state)
    }

    /// Merges the partial state of pieces that this fold has not processed.
    ///
    /// # Errors
    /// If the partial state is corrupt, or belongs to another kernel, other arguments or another version.
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

    /// Writes the result of the fold.
    ///
    /// # Errors
    /// If the fold has no result (for example without values), or if the result cannot be written.
    pub fn finish(self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        self.fold.finish(out)
    }
}

/// Running stream of a built-in kernel that writes to `next`; [`crate::stream_builtin`] returns such a stream. All bytes that are written
/// to the stream pass through the kernel. Streams are chained by writing one stream into another.
#[derive(Debug)]
pub struct Streaming<W: Write> {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) next: W,
}

impl<W: Write> Streaming<W> {
    /// Writes the rest of the output, and returns the writer `next`.
    ///
    /// # Errors
    /// If the input ended too early, or if the writer fails.
    pub fn finish(mut self) -> Result<W, BuiltinError> {
        self.stream.finish(&mut self.next)?;
        Ok(self.next)
    }
}

impl<W: Write> Write for Streaming<W> {
    /// Passes all of `bytes` through the kernel. The returned error contains the kernel's [`BuiltinError`].
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
