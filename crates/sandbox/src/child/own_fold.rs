//! Runs a user's fold over whole inputs, a piece of an input, or partial states, in the same way for shared objects and for modules.

use std::io::{self, Write};

use super::abi::map;
use super::native::{NativeError, fill};
use super::pipes;
use crate::run::RunPart;
use tidemill_compute::{STATE_VERSION, SeriesFile};

/// Number of bytes that a fold gets per call: enough that calls cost nothing, few enough to stay in a cache.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Alignment of pieces in their input, in bytes: `TIDEMILL_PIECE_ALIGN` of the C header.
pub const PIECE_ALIGN: u64 = 4096;

/// Key that binds a partial state to its kernel and arguments.
pub(super) type FoldKey = [u8; 8];

/// Fold of a user. All functions return the kernel's exit code, 0 for success.
pub(super) trait OwnFold {
    fn update(&mut self, input: usize, offset: u64, piece: &[u8]) -> Result<u8, NativeError>;
    fn merge(&mut self, state: &[u8]) -> Result<u8, NativeError>;
    /// Makes the kernel append its state to output 0.
    fn state(&mut self) -> Result<u8, NativeError>;
    fn finish(&mut self) -> Result<u8, NativeError>;
    /// Writes bytes to output 0.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Runs the fold; returns the first exit code of the kernel that is not 0, or 0.
pub(super) fn run(
    fold: &mut dyn OwnFold,
    part: RunPart,
    key: FoldKey,
    inputs: &[String],
) -> Result<u8, NativeError> {
    let code = match part {
        RunPart::Whole => over(fold, inputs, 0, 0)?,
        RunPart::Piece { input, offset } => {
            if inputs.len() != 1 || !offset.is_multiple_of(PIECE_ALIGN) {
                return Err(NativeError::Piece);
            }
            over(fold, inputs, input, offset)?
        }
        RunPart::Merge | RunPart::Finish => merge(fold, key, inputs)?,
    };
    match part {
        _ if code != 0 => Ok(code),
        RunPart::Whole | RunPart::Finish => fold.finish(),
        RunPart::Piece { .. } | RunPart::Merge => {
            let head: Vec<u8> = [STATE_VERSION].into_iter().chain(key).collect();
            fold.write(&head).map_err(NativeError::Write)?;
            fold.state()
        }
    }
}

fn over(
    fold: &mut dyn OwnFold,
    inputs: &[String],
    first: usize,
    offset: u64,
) -> Result<u8, NativeError> {
    for (number, name) in (first..).zip(inputs) {
        if pipes::is_pipe(name) {
            let code = over_pipe(fold, (number, name), offset)?;
            if code != 0 {
                return Ok(code);
            }
            continue;
        }
        let file = map(name)?;
        for (at, piece) in (offset..)
            .step_by(PIECE_BYTES)
            .zip(file.chunks(PIECE_BYTES))
        {
            let code = fold.update(number, at, piece)?;
            if code != 0 {
                return Ok(code);
            }
        }
    }
    Ok(0)
}

/// Passes a streaming input to the fold, as its bytes arrive.
fn over_pipe(
    fold: &mut dyn OwnFold,
    (number, name): (usize, &str),
    mut offset: u64,
) -> Result<u8, NativeError> {
    let error = |source| NativeError::Input {
        name: name.to_owned(),
        source,
    };
    let mut pipe = std::fs::File::open(name).map_err(error)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = fill(&mut pipe, &mut piece).map_err(error)?;
        if length == 0 {
            return Ok(0);
        }
        let code = fold.update(number, offset, &piece[..length])?;
        if code != 0 {
            return Ok(code);
        }
        offset += length as u64;
    }
}

fn merge(fold: &mut dyn OwnFold, key: FoldKey, inputs: &[String]) -> Result<u8, NativeError> {
    for name in inputs {
        let file: SeriesFile = map(name)?;
        let wrong = |reason| NativeError::State {
            name: name.clone(),
            reason,
        };
        let Some(([version, of @ ..], state)) = file.split_first_chunk::<9>() else {
            return Err(wrong("it is too short"));
        };
        if *version != STATE_VERSION {
            return Err(wrong("it was written by another version"));
        }
        if *of != key {
            return Err(wrong("it is of another kernel or other arguments"));
        }
        let code = fold.merge(state)?;
        if code != 0 {
            return Ok(code);
        }
    }
    Ok(0)
}

/// Writes bytes to the first output, or to standard output if the kernel has no output.
pub(super) fn write_first(outputs: &mut [std::fs::File], bytes: &[u8]) -> io::Result<()> {
    match outputs {
        [] => io::stdout().write_all(bytes),
        [first, ..] => first.write_all(bytes),
    }
}
