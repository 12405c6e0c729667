//! Body of an answer that contains a range of an object's bytes, with read-ahead. The module only reads the object.

use crate::http::PIECE_BYTES;
use crate::store::ReadAt;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Number of pieces that are read ahead while the previous piece is being sent.
const AHEAD: usize = 2;

/// Maximum number of buffers that are kept for reuse, because the first use of new memory is slow.
const BUFFERS_MAX: usize = 64;

/// Pool of buffers that hold one piece each.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    buffers: Mutex<Vec<Vec<u8>>>,
}

/// Buffer that returns to its pool after the last of its bytes was sent.
struct Pooled {
    buffer: Vec<u8>,
    length: usize,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut buffers = self.pool.buffers.lock();
        if buffers.len() < BUFFERS_MAX {
            buffers.push(std::mem::take(&mut self.buffer));
        }
    }
}

/// Returns a stream of the bytes of a range. The stream ends with an error if the object is shorter than the range.
pub(crate) fn stream(
    bytes: Arc<dyn ReadAt>,
    range: Range<u64>,
    pool: &Arc<Pool>,
) -> impl Stream<Item = std::io::Result<Bytes>> + use<> {
    let pool = Arc::clone(pool);
    stream::iter(pieces(range))
        .map(move |piece| {
            let (bytes, pool) = (Arc::clone(&bytes), Arc::clone(&pool));
            async move {
                tokio::task::spawn_blocking(move || read(&*bytes, &piece, pool))
                    .await
                    .map_err(std::io::Error::other)?
            }
        })
        .buffered(AHEAD)
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let step = PIECE_BYTES as u64;
    let mut start = range.start;
    std::iter::from_fn(move || {
        let piece = start..range.end.min(start.saturating_add(step));
        start = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Reads the bytes of several ranges, one range after the other, into one buffer.
pub(crate) fn gather(bytes: &dyn ReadAt, ranges: &[(u64, u64)]) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for &(start, end) in ranges {
        let mut filled = all.len();
        all.resize(filled + usize::try_from(end - start).unwrap_or(0), 0);
        let mut at = start;
        while at < end {
            let count = bytes.read_at(at, &mut all[filled..])?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            filled += count;
            at += count as u64;
        }
    }
    Ok(all)
}

fn read(bytes: &dyn ReadAt, piece: &Range<u64>, pool: Arc<Pool>) -> std::io::Result<Bytes> {
    let length = usize::try_from(piece.end - piece.start).map_err(std::io::Error::other)?;
    let mut buffer = if length < PIECE_BYTES / 4 {
        vec![0; length]
    } else {
        let kept = pool.buffers.lock().pop();
        kept.unwrap_or_else(|| vec![0; PIECE_BYTES])
    };
    let count = bytes.read_at(piece.start, &mut buffer[..length])?;
    if count < length {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    if buffer.len() < PIECE_BYTES {
        return Ok(buffer.into());
    }
    Ok(Bytes::from_owner(Pooled {
        buffer,
        length,
        pool,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_body_pieces_cover_range_without_gaps() {
        let step = PIECE_BYTES as u64;
        let all: Vec<_> = pieces(5..2 * step + 7).collect();
        assert_eq!(
            all,
            [
                5..step + 5,
                step + 5..2 * step + 5,
                2 * step + 5..2 * step + 7
            ]
        );
        assert_eq!(pieces(4..4).count(), 0);
    }
}
