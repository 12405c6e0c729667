//! Reads the inputs of a built-in kernel: as one series of numbers in blocks, or as bytes.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::BuiltinError;
use super::table::{Input, Made, Options};
use super::values::size_of_dtype;
use crate::fold::{Fold, Stream};
use crate::threads::{Pile, in_threads};

/// A file mapped to be read. Inputs are sealed, so nobody changes or shortens them meanwhile.
#[derive(Debug)]
pub(crate) struct Mapped {
    start: *const u8,
    length: usize,
}

impl Mapped {
    /// Maps a whole file; an empty one needs no mapping.
    ///
    /// # Errors
    /// If it cannot be opened or mapped.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let file = File::open(name)?;
        let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mapped = Self::range(&file, 0, length, MapFlags::SHARED)?;
        if length > 0 {
            // SAFETY: the advice concerns the mapping just made, and does not change what it holds. It is only
            // advice, so failing is no error.
            let _ = unsafe {
                rustix::mm::madvise(mapped.start.cast_mut().cast(), length, Advice::Sequential)
            };
        }
        Ok(mapped)
    }

    /// Maps bytes of a file from a multiple of the size of a page on; none need no mapping.
    ///
    /// # Errors
    /// If they cannot be mapped.
    pub(crate) fn range(
        file: &File,
        offset: u64,
        length: usize,
        flags: MapFlags,
    ) -> io::Result<Self> {
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
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `self`, is readable over its whole length, and its file is
        // sealed; an empty slice may have any aligned address.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: the mapping was made in `range`, and no slice of it outlives `self`. Nothing can be done
            // should it fail.
            let _ = unsafe { rustix::mm::munmap(self.start.cast_mut().cast(), self.length) };
        }
    }
}

/// Bytes that a thread takes at a time.
const SHARE_BYTES: usize = 8 << 20;

/// Bytes of numbers read from text that are handed on at a time.
const PIECE_BYTES: usize = 32 << 10;

pub(crate) fn open(name: &str) -> Result<Mapped, BuiltinError> {
    Mapped::open(name).map_err(|source| BuiltinError::Read {
        name: name.to_owned(),
        source,
    })
}

/// Takes all inputs into a fold: into several on as many threads, if `threads=` says so, whose states are merged.
pub(crate) fn fold(
    inputs: &[String],
    input: Input,
    options: &Options,
    mut fold: Box<dyn Fold>,
) -> Result<Box<dyn Fold>, BuiltinError> {
    if input == Input::Values && options.is("dtype", "text") {
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
        if input == Input::Values {
            whole_values(name, &file, size_of_dtype(options))?;
        }
        if threads == 1 || file.len() < 2 * SHARE_BYTES {
            fold.update(offset, &file)?;
        } else {
            share(offset, &file, options, threads, &mut *fold)?;
        }
        offset += file.len() as u64;
        // A gap keeps texts apart.
        offset += u64::from(input == Input::Bytes);
    }
    Ok(fold)
}

/// Takes a file into a fold, a share at a time on whichever thread is free.
fn share(
    offset: u64,
    file: &[u8],
    options: &Options,
    threads: usize,
    fold: &mut dyn Fold,
) -> Result<(), BuiltinError> {
    let mut shares = Vec::new();
    let (mut at, mut rest) = (offset, file);
    while !rest.is_empty() {
        // Cut where blocks of values begin.
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
        let (_, Made::Fold(mut part)) = options.kernel.code.make(options)? else {
            unreachable!("the same arguments made a fold before");
        };
        while let Some((at, share)) = shares.take() {
            part.update(at, share)?;
        }
        part.state()
    });
    states.into_iter().try_for_each(|state| fold.merge(&state?))
}

/// Pushes all inputs through a stream.
pub(crate) fn stream(
    inputs: &[String],
    input: Input,
    options: &Options,
    stream: &mut dyn Stream,
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    if input == Input::Values && options.is("dtype", "text") {
        return text_pieces(inputs, |piece| stream.push(piece, out));
    }
    for (number, name) in inputs.iter().enumerate() {
        let file = open(name)?;
        if input == Input::Values {
            whole_values(name, &file, size_of_dtype(options))?;
        } else if number > 0 {
            stream.next_input(out)?;
        }
        stream.push(&file, out)?;
    }
    Ok(())
}

/// All inputs as they are in memory: mapped, or read from text as little-endian `f64`.
#[derive(Debug)]
pub(crate) enum Memory {
    Mapped(Mapped),
    Read(Vec<u8>),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Read(bytes) => bytes,
        }
    }
}

/// All inputs, for kernels that pass over them several times.
pub(crate) fn memory(inputs: &[String], options: &Options) -> Result<Vec<Memory>, BuiltinError> {
    if options.is("dtype", "text") {
        let mut all = Vec::new();
        text_pieces(inputs, |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        return Ok(vec![Memory::Read(all)]);
    }
    let map = |name: &String| {
        let file = open(name)?;
        whole_values(name, &file, size_of_dtype(options))?;
        Ok(Memory::Mapped(file))
    };
    inputs.iter().map(map).collect()
}

/// Checks that a file holds whole values.
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

/// Reads decimals between white space and gives them as little-endian `f64`, many at a time.
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
