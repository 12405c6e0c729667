//! Inputs that are pipes: a streaming input is a pipe, which ends when the input's file is sealed.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::MapFlags;

use crate::prepare::{RESERVED, TEMPORARY};
use tidemill_compute::{BuiltinError, ChainLink, ChainSink, LinkError, SeriesFile, named_inputs};

/// Number of bytes that are read from a pipe at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Returns whether the input `name` is a pipe.
pub(super) fn is_pipe(name: &str) -> bool {
    fs::metadata(name).is_ok_and(|data| data.file_type().is_fifo())
}

/// Returns all data of a pipe, collected in a file without a name.
pub(super) fn gathered(name: &str) -> io::Result<SeriesFile> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory: PathBuf = [RESERVED, TEMPORARY].iter().collect();
    let path = directory.join(format!("gathered-{number}"));
    let mut options = File::options();
    let mut file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    io::copy(&mut File::open(name)?, &mut file)?;
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    SeriesFile::range(&file, 0, length, MapFlags::SHARED)
}

/// Returns whether built-in kernels must process their data as it arrives, because an input is streaming.
pub(super) fn any(first: &ChainLink, inputs: &[String]) -> bool {
    inputs.iter().any(|name| is_pipe(name))
        && !named_inputs(&first.name, &first.args)
            .iter()
            .any(|name| is_pipe(name))
}

/// Passes the data of the inputs through a chain of kernels, to its end.
pub(super) fn push(
    first: &ChainLink,
    inputs: &[String],
    mut sink: Box<dyn ChainSink>,
) -> Result<(), LinkError> {
    let named = named_inputs(&first.name, &first.args);
    let mut piece = vec![0; PIECE_BYTES];
    for name in inputs.iter().filter(|name| !named.contains(name)) {
        let failed = |source| {
            first.failed(BuiltinError::Read {
                name: name.clone(),
                source,
            })
        };
        let mut file = File::open(name).map_err(failed)?;
        loop {
            let count = match file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            let written = sink.write_all(&piece[..count]);
            written.map_err(|error| first.failed(BuiltinError::Write(error)))?;
        }
    }
    sink.finish()
}
