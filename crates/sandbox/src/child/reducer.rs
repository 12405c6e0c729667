//! Child process that reduces arrays, one order after the other, until its socket is closed: see [`crate::reducing`].

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::mm::MapFlags;
use serde::Serialize;

use crate::fork_server::receive;
use crate::reduce_workers::{ANSWER_BYTES_MAX, ORDER_BYTES_MAX, ReducerAnswer, length};
use tidemill_compute::SeriesFile;
use tidemill_compute::array::{ArrayError, Reducer};
use tidemill_compute::reduction::{BoxFold, ReductionBatch};
use tidemill_compute::work::{ArrayReduction, ReducerError, ReducerWork, StoredBytes};

/// A multiple of every possible page size.
const PAGE_BYTES: u64 = 64 << 10;

/// Serves the socket that is this process's standard input; returns the exit code.
pub(super) fn serve() -> u8 {
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else {
        return 1;
    };
    let mut socket = UnixStream::from(socket);
    let mut worker = ReducerWorker::default();
    loop {
        match worker.turn(&mut socket) {
            Ok(true) => {}
            Ok(false) => return 0,
            Err(error) => {
                super::complain(&format!("reducer: {error}"));
                return 1;
            }
        }
    }
}

#[derive(Default)]
struct ReducerWorker {
    reducer: Reducer,
    /// Bytes that were collected, in a buffer that may be larger than the bytes.
    gathered: Vec<u8>,
}

impl ReducerWorker {
    /// Executes the next order from the socket; returns `false` if the socket is closed.
    fn turn(&mut self, socket: &mut UnixStream) -> io::Result<bool> {
        let Some((file, work)) = work(socket)? else {
            return Ok(false);
        };
        // The sender has checked the work already. If it did not, the sent bytes cannot be distinguished from the next order.
        work.check().map_err(io::Error::other)?;
        let (mut answer, failed) = match self.carry_out(&file, &work, socket)? {
            Ok(answer) => (answer, 0),
            Err(trouble) => (
                postcard::to_allocvec(&trouble).map_err(io::Error::other)?,
                1,
            ),
        };
        answer.push(failed);
        socket.write_all(&length(answer.len(), ANSWER_BYTES_MAX)?)?;
        socket.write_all(&answer)?;
        Ok(true)
    }

    fn carry_out(
        &mut self,
        file: &File,
        work: &ReducerWork,
        socket: &mut UnixStream,
    ) -> io::Result<ReducerAnswer> {
        match work {
            ReducerWork::Array(order) => match order.pieces[..] {
                [StoredBytes::Held { offset, length }] => {
                    self.in_place(file, order, (offset, length))
                }
                _ => {
                    let count = self.gather(&order.pieces, file, socket)?;
                    packed(self.reducer.reduce(&order.spec, &self.gathered[..count]))
                }
            },
            ReducerWork::Batch(batch) => self.fold(file, batch, socket),
        }
    }

    /// Folds one piece of an array after the other, and reads each piece into the same buffer: mapping a file costs more than copying
    /// pieces that stay in the cache. The bytes that were sent are always read to their end.
    fn fold(
        &mut self,
        file: &File,
        batch: &ReductionBatch,
        socket: &mut UnixStream,
    ) -> io::Result<ReducerAnswer> {
        let mut folding =
            BoxFold::new(batch.task.clone(), batch.cells.clone()).map_err(ReducerError::from);
        let size = file.metadata()?.len();
        for item in &batch.items {
            let beyond = |piece: &StoredBytes| match piece {
                StoredBytes::Held { offset, length } => {
                    offset.checked_add(*length).is_none_or(|end| end > size)
                }
                StoredBytes::Sent(_) | StoredBytes::Hole(_) => false,
            };
            let stored = match item.bytes[..] {
                [piece] if beyond(&piece) => Err(beyond_the_end()),
                _ => {
                    let count = self.gather(&item.bytes, file, socket)?;
                    Ok(&self.gathered[..count])
                }
            };
            let added = match &mut folding {
                Ok(folding) => {
                    stored.and_then(|stored| folding.add(item, stored).map_err(ReducerError::from))
                }
                Err(_) => Ok(()),
            };
            if let Err(mut trouble) = added {
                trouble.message = format!("chunk {}: {}", item.chunk, trouble.message);
                folding = Err(trouble);
            }
        }
        match folding {
            Ok(folding) => packed(Ok(folding.finish())),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    /// Collects the bytes of a piece from their locations in a contiguous buffer; returns their number.
    fn gather(
        &mut self,
        pieces: &[StoredBytes],
        file: &File,
        socket: &mut UnixStream,
    ) -> io::Result<usize> {
        let mut end = 0;
        for piece in pieces {
            let start = end;
            let (StoredBytes::Held { length, .. }
            | StoredBytes::Sent(length)
            | StoredBytes::Hole(length)) = piece;
            end += usize::try_from(*length).map_err(io::Error::other)?;
            if self.gathered.len() < end {
                self.gathered.resize(end, 0);
            }
            let bytes = &mut self.gathered[start..end];
            match piece {
                StoredBytes::Held { offset, .. } => file.read_exact_at(bytes, *offset)?,
                StoredBytes::Sent(_) => socket.read_exact(bytes)?,
                StoredBytes::Hole(_) => bytes.fill(0),
            }
        }
        Ok(end)
    }

    /// Returns the bytes of a piece where they are in the mapped file, without a copy.
    fn in_place(
        &mut self,
        file: &File,
        order: &ArrayReduction,
        (offset, length): (u64, u64),
    ) -> io::Result<ReducerAnswer> {
        let size = file.metadata()?.len();
        let Some((mapped, lead)) = map(file, size, (offset, length))? else {
            return Ok(Err(beyond_the_end()));
        };
        packed(self.reducer.reduce(&order.spec, &mapped[lead..]))
    }
}

/// Maps bytes of a file of this size; returns the mapping and the number of bytes before the requested ones. Returns `None` if they are
/// after the end of the file.
fn map(
    file: &File,
    size: u64,
    (offset, length): (u64, u64),
) -> io::Result<Option<(SeriesFile, usize)>> {
    if offset.checked_add(length).is_none_or(|end| end > size) {
        return Ok(None);
    }
    let lead = usize::try_from(offset % PAGE_BYTES).map_err(io::Error::other)?;
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    let mapped = SeriesFile::range(file, offset - lead as u64, lead + length, flags)?;
    Ok(Some((mapped, lead)))
}

fn beyond_the_end() -> ReducerError {
    ReducerError {
        message: "the bytes lie beyond the end of the file".to_owned(),
        of_data: true,
    }
}

fn packed<T: Serialize>(made: Result<T, ArrayError>) -> io::Result<ReducerAnswer> {
    match made {
        Ok(made) => postcard::to_allocvec(&made)
            .map(Ok)
            .map_err(io::Error::other),
        Err(error) => Ok(Err(ReducerError::from(error))),
    }
}

/// Receives the next work and its file from the socket.
fn work(socket: &mut UnixStream) -> io::Result<Option<(File, ReducerWork)>> {
    let mut head = [0; 4];
    let (got, descriptors) = receive(socket, &mut head)?;
    if got == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut head[got..])?;
    let length = u32::from_le_bytes(head) as usize;
    let file: Option<OwnedFd> = descriptors.into_iter().next();
    let file = file.filter(|_| length <= ORDER_BYTES_MAX);
    let file = file.ok_or(io::ErrorKind::InvalidData)?;
    let mut work = vec![0; length];
    socket.read_exact(&mut work)?;
    let work = postcard::from_bytes(&work).map_err(io::Error::other)?;
    Ok(Some((file.into(), work)))
}
