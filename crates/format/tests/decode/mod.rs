//! Decodes pieces to values, for tests: slow, and as simple as possible.

#![allow(clippy::unwrap_used, reason = "a part of tests")]

use std::io::Read;

use tidemill_format::{
    Bytes as _, Endian, FileSpan, Filter, IndexRange, Storage, Variable, VariableExtent,
    VariableSource, pieces,
};

fn bytes_of(span: &FileSpan, store: VariableSource<'_>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(span.size).unwrap()];
    match (store, &span.file) {
        (VariableSource::File(file), None) => file.read_at(span.offset, &mut bytes).unwrap(),
        (VariableSource::Directory(_), None) => {
            // All bytes are in the zip file, whose name only the tests know.
            let zip = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/three.zarr.zip");
            std::fs::File::open(zip)
                .unwrap()
                .read_at(span.offset, &mut bytes)
                .unwrap();
        }
        (VariableSource::Directory(directory), Some(path)) => {
            directory.read_at(path, span.offset, &mut bytes).unwrap()
        }
        _ => panic!("{span:?}"),
    }
    bytes
}

fn unshuffled(bytes: &[u8], element: usize) -> Vec<u8> {
    let count = bytes.len() / element;
    let mut plain: Vec<u8> = (0..count * element)
        .map(|at| bytes[at % element * count + at / element])
        .collect();
    plain.extend(&bytes[count * element..]);
    plain
}

/// Returns the bytes of a chunk before filters were applied; `None` for a filter that tests cannot reverse.
fn decoded(mut bytes: Vec<u8>, filters: &[Filter], mask: u32) -> Option<Vec<u8>> {
    for (number, filter) in filters.iter().enumerate().rev() {
        if mask >> number.min(31) & 1 == 1 {
            continue;
        }
        let mut plain = Vec::new();
        match filter {
            Filter::Deflate => {
                flate2::read::ZlibDecoder::new(&*bytes)
                    .read_to_end(&mut plain)
                    .unwrap();
            }
            Filter::Gzip => {
                flate2::read::GzDecoder::new(&*bytes)
                    .read_to_end(&mut plain)
                    .unwrap();
            }
            Filter::Zstd => plain = zstd::decode_all(&*bytes).unwrap(),
            Filter::Shuffle { element } => plain = unshuffled(&bytes, *element as usize),
            Filter::Fletcher32 | Filter::Crc32c => plain = bytes[..bytes.len() - 4].to_vec(),
            Filter::Transpose { .. } => plain = bytes,
            _ => return None,
        }
        bytes = plain;
    }
    Some(bytes)
}

/// Returns the position of an element in a chunk whose dimensions are stored in another order.
fn position(index: &[u64], shape: &[u64], filters: &[Filter]) -> usize {
    let order = filters.iter().find_map(|filter| match filter {
        Filter::Transpose { order } => {
            Some(order.iter().map(|at| *at as usize).collect::<Vec<_>>())
        }
        _ => None,
    });
    let order = order.unwrap_or_else(|| (0..index.len()).collect());
    let at = order
        .iter()
        .fold(0, |position, at| position * shape[*at] + index[*at]);
    usize::try_from(at).unwrap()
}

/// Returns all indices of some ranges; the last dimension changes fastest.
fn indices(ranges: &[IndexRange]) -> Vec<Vec<u64>> {
    ranges.iter().fold(vec![vec![]], |all, range| {
        let with = |index: Vec<u64>| {
            (0..range.count())
                .map(move |n| [index.clone(), vec![range.start + n * range.step]].concat())
        };
        all.into_iter().flat_map(with).collect()
    })
}

fn put(
    piece: &VariableExtent,
    variable: &Variable,
    filters: &[Filter],
    store: VariableSource<'_>,
    counts: &[u64],
    into: &mut [u8],
) -> Option<()> {
    let size = variable.data_type.size as usize;
    let bytes = piece
        .span
        .as_ref()
        .map(|span| decoded(bytes_of(span, store), filters, piece.mask));
    let bytes = match bytes {
        Some(bytes) => Some(bytes?),
        None => None,
    };
    let firsts: Vec<IndexRange> = piece
        .within
        .iter()
        .map(|range| IndexRange::all(range.count()))
        .collect();
    for (index, relative) in indices(&piece.within).into_iter().zip(indices(&firsts)) {
        let to = relative
            .iter()
            .zip(&piece.at)
            .zip(counts)
            .fold(0, |at, ((n, first), count)| at * count + first + n);
        let to = usize::try_from(to).unwrap() * size;
        let element = match &bytes {
            None => variable.fill.clone().unwrap_or_else(|| vec![0; size]),
            Some(bytes) => {
                let mut at = position(&index, &piece.shape, filters) * size;
                if let Some(stride) = piece.stride {
                    let row = position(&index[1..], &piece.shape[1..], &[]) * size;
                    at = usize::try_from(index[0] * stride).unwrap() + row;
                }
                bytes[at..at + size].to_vec()
            }
        };
        into[to..to + size].copy_from_slice(&element);
    }
    Some(())
}

/// Returns the values of a selection in hexadecimal, least significant byte of each value first.
pub(crate) fn values(
    variable: &Variable,
    ranges: &[IndexRange],
    store: VariableSource<'_>,
    piece_bytes: u64,
) -> Option<String> {
    let size = variable.data_type.size as usize;
    let counts: Vec<u64> = ranges.iter().map(IndexRange::count).collect();
    let all = usize::try_from(counts.iter().product::<u64>()).unwrap();
    let mut values = vec![0xee; all * size];
    let filters = match &variable.storage {
        Storage::Chunked(chunked) => chunked.filters.as_slice(),
        _ => &[],
    };
    for piece in pieces(variable, ranges, store, piece_bytes).unwrap() {
        put(
            &piece.unwrap(),
            variable,
            filters,
            store,
            &counts,
            &mut values,
        )?;
    }
    let word = match variable.data_type.kind {
        tidemill_format::DataKind::Text => 1,
        tidemill_format::DataKind::Complex => size / 2,
        _ => size,
    };
    if variable.data_type.order == Endian::Big {
        values.chunks_exact_mut(word).for_each(<[u8]>::reverse);
    }
    Some(values.iter().map(|byte| format!("{byte:02x}")).collect())
}
