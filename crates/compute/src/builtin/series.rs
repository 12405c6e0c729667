//! Reads the inputs of a built-in kernel: as one series of numbers in blocks, or as bytes.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::BuiltinError;
use super::table::{FoldInput, KernelOptions, ReadyKernel};
use super::values::size_of_dtype;
use crate::fold::{Fold, Stream};
use crate::threads::{Pile, in_threads};

/// File that is mapped for reading. Inputs are sealed, so no process changes or truncates the file while it is mapped.
#[derive(Debug)]
pub struct SeriesFile {
    start: *const u8,
    length: usize,
}

impl SeriesFile {
    /// Maps a whole file; an empty file needs no mapping.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped.
    pub fn open(name: &str) -> io::Result<Self> {
        let file = File::open(name)?;
        let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mapped = Self::range(&file, 0, length, MapFlags::SHARED)?;
        if length > 0 {
            // SAFETY: the advice concerns the mapping just made, and does not change its contents. A failed request is no error.
            let _ = unsafe {
                rustix::mm::madvise(mapped.start.cast_mut().cast(), length, Advice::Sequential)
            };
        }
        Ok(mapped)
    }

    /// Maps a byte range of a file from a multiple of the page size on; an empty range needs no mapping.
    ///
    /// # Errors
    /// If the bytes cannot be mapped.
    pub fn range(file: &File, offset: u64, length: usize, flags: MapFlags) -> io::Result<Self> {
        if length == 0 {
            return Ok(Self {
                start: ptr::NonNull::dangling().as_ptr(),
                length,
            });
        }
        // SAFETY: a new shared read-only mapping, at an address of the system's choice.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                length,
                ProtFlags::READ,
                flags,
                file.as_fd(),
                offset,
            )?
        };
        Ok(Self {
            start: start.cast(),
            length,
        })
    }
}

// SAFETY: the mapping is only read.
unsafe impl Send for SeriesFile {}
// SAFETY: as above.
unsafe impl Sync for SeriesFile {}

impl Deref for SeriesFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`, is readable over its whole length, and its file is
        // sealed; an empty slice may have any aligned address.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl Drop for SeriesFile {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: the mapping was made in `range`, and no slice of it outlives `self`. There is no remedy if the call fails.
            let _ = unsafe { rustix::mm::munmap(self.start.cast_mut().cast(), self.length) };
        }
    }
}

/// Number of bytes that a thread processes at a time.
const SHARE_BYTES: usize = 8 << 20;

/// Number of bytes of numbers parsed from text that are passed on at a time.
const PIECE_BYTES: usize = 32 << 10;

pub(crate) fn open(name: &str) -> Result<SeriesFile, BuiltinError> {
    SeriesFile::open(name).map_err(|source| BuiltinError::Read {
        name: name.to_owned(),
        source,
    })
}

/// Adds all inputs to a fold. If `threads=` is more than one, each thread has a fold, and the states of the folds are merged.
pub(crate) fn fold(
    inputs: &[String],
    input: FoldInput,
    options: &KernelOptions,
    mut fold: Box<dyn Fold>,
) -> Result<Box<dyn Fold>, BuiltinError> {
    if input == FoldInput::Values && options.is("dtype", "text") {
        let mut offset = 0;
        text_pieces(inputs, |piece| {
            fold.update(offset, piece)?;
            offset += piece.len() as u64;
            Ok(())
        })?;
        return Ok(fold);
    }
    let threads = options.threads()?;
    let mut offset = 0;
    for name in inputs {
        let file = open(name)?;
        if input == FoldInput::Values {
            whole_values(name, &file, size_of_dtype(options))?;
        }
        if threads == 1 || file.len() < 2 * SHARE_BYTES {
            fold.update(offset, &file)?;
        } else {
            share(offset, &file, options, threads, &mut *fold)?;
        }
        offset += file.len() as u64;
        // A gap separates texts.
        offset += u64::from(input == FoldInput::Bytes);
    }
    Ok(fold)
}

/// Adds a file to a fold, one share of bytes at a time on any free thread.
fn share(
    offset: u64,
    file: &[u8],
    options: &KernelOptions,
    threads: usize,
    fold: &mut dyn Fold,
) -> Result<(), BuiltinError> {
    let mut shares = Vec::new();
    let (mut at, mut rest) = (offset, file);
    while !rest.is_empty() {
        // Shares begin at the start of blocks of values.
        let to_next = SHARE_BYTES - usize::try_from(at % SHARE_BYTES as u64).unwrap_or_default();
        let (share, others) = rest.split_at(rest.len().min(to_next));
        shares.push((at, share));
        at += share.len() as u64;
        rest = others;
    }
    shares.reverse();
    let threads = threads.min(shares.len());
    let shares = Pile::new(shares);
    let states = in_threads(vec![(); threads], |()| {
        let (_, ReadyKernel::Fold(mut part)) = options.kernel.code.make(options)? else {
            unreachable!("the same arguments made a fold before");
        };
        while let Some((at, share)) = shares.take() {
            part.update(at, share)?;
        }
        part.state()
    });
    states.into_iter().try_for_each(|state| fold.merge(&state?))
}

/// Passes all inputs through a stream, which writes its output.
pub(crate) fn stream(
    inputs: &[String],
    input: FoldInput,
    options: &KernelOptions,
    stream: &mut dyn Stream,
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    if input == FoldInput::Values && options.is("dtype", "text") {
        return text_pieces(inputs, |piece| stream.push(piece, out));
    }
    for (number, name) in inputs.iter().enumerate() {
        let file = open(name)?;
        if input == FoldInput::Values {
            whole_values(name, &file, size_of_dtype(options))?;
        } else if number > 0 {
            stream.next_input(out)?;
        }
        stream.push(&file, out)?;
    }
    Ok(())
}

/// All inputs of a kernel in memory: mapped, or converted from text to little-endian `f64`.
#[derive(Debug)]
pub(crate) enum SeriesInputs {
    Mapped(SeriesFile),
    Read(Vec<u8>),
}

impl Deref for SeriesInputs {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Read(bytes) => bytes,
        }
    }
}

/// Returns all inputs in memory, for kernels that read them several times.
pub(crate) fn memory(
    inputs: &[String],
    options: &KernelOptions,
) -> Result<Vec<SeriesInputs>, BuiltinError> {
    if options.is("dtype", "text") {
        let mut all = Vec::new();
        text_pieces(inputs, |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        return Ok(vec![SeriesInputs::Read(all)]);
    }
    let map = |name: &String| {
        let file = open(name)?;
        whole_values(name, &file, size_of_dtype(options))?;
        Ok(SeriesInputs::Mapped(file))
    };
    inputs.iter().map(map).collect()
}

/// Checks that a file contains a whole number of values.
pub(crate) fn whole_values(name: &str, file: &[u8], size: usize) -> Result<(), BuiltinError> {
    if file.len().is_multiple_of(size) {
        return Ok(());
    }
    Err(BuiltinError::Torn {
        name: name.to_owned(),
        bytes: file.len() as u64,
        size,
    })
}

/// Parses decimal numbers between white space and passes them on as little-endian `f64`, many at a time.
pub(crate) fn text_pieces(
    inputs: &[String],
    mut take: impl FnMut(&[u8]) -> Result<(), BuiltinError>,
) -> Result<(), BuiltinError> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    for name in inputs {
        let file = open(name)?;
        for (line, text) in (1_u64..).zip(file.split(|byte| *byte == b'\n')) {
            let words = text.split(u8::is_ascii_whitespace);
            for word in words.filter(|word| !word.is_empty()) {
                let value = std::str::from_utf8(word)
                    .ok()
                    .and_then(|word| word.parse::<f64>().ok());
                let value = value.ok_or_else(|| BuiltinError::NotANumber {
                    name: name.clone(),
                    line,
                    word: String::from_utf8_lossy(word).into_owned(),
                })?;
                piece.extend(value.to_le_bytes());
            }
            if piece.len() >= PIECE_BYTES {
                take(&piece)?;
                piece.clear();
            }
        }
    }
    take(&piece)
}
