//! Converts a selection of a variable to the pieces of the file that contain it.
//!
//! A piece is a separate array: bytes that decode to a shape, the requested part of that shape, and its place in the result. Pieces are
//! returned one at a time, in the order of the result's outer dimensions, so that a selection of any size needs almost no memory.

use serde::{Deserialize, Serialize};

use crate::model::{Chunk, Index};
use crate::{Bytes, Chunked, Directory, Error, Result, Storage, Variable, hdf5, zarr};

/// Maximum number of unneeded bytes that are read together with their neighbours, instead of making two pieces.
const GAP_BYTES: u64 = 64 << 10;

/// Distance of records, in bytes, beyond which each record is a separate piece.
const APART_BYTES: u64 = 4 << 10;

/// Selected indices of one dimension: `start`, `start + step`, … before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IndexRange {
    /// First selected index.
    pub start: u64,
    /// Index after the last selected index.
    pub end: u64,
    /// Distance from a selected index to the next; 1 selects all indices.
    pub step: u64,
}

impl IndexRange {
    /// Returns all indices of a dimension.
    pub fn all(size: u64) -> Self {
        Self {
            start: 0,
            end: size,
            step: 1,
        }
    }

    /// Returns the number of selected indices.
    pub fn count(&self) -> u64 {
        self.end
            .saturating_sub(self.start)
            .div_ceil(self.step.max(1))
    }

    /// Returns the number of indices from the first to the last, including both ends.
    fn extent(&self) -> u64 {
        (self.count().saturating_sub(1)) * self.step + u64::from(self.count() > 0)
    }

    /// Returns the `count` selected indices from the `first`-th on.
    fn slice(&self, first: u64, count: u64) -> Self {
        let start = self.start + first * self.step;
        Self {
            start,
            end: start + count.saturating_sub(1) * self.step + u64::from(count > 0),
            step: self.step,
        }
    }

    fn moved(&self, back: u64) -> Self {
        Self {
            start: self.start - back,
            end: self.end - back,
            step: self.step,
        }
    }

    /// Returns the number of selected indices before `low`, and the selected indices from `low` to before `high`.
    fn between(&self, low: u64, high: u64) -> (u64, Self) {
        let before = low
            .saturating_sub(self.start)
            .div_ceil(self.step)
            .min(self.count());
        let up_to = high
            .saturating_sub(self.start)
            .div_ceil(self.step)
            .min(self.count());
        (before, self.slice(before, up_to.saturating_sub(before)))
    }
}

/// Consecutive bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSpan {
    /// Path of the file, if the variable's source is a directory of files.
    pub file: Option<String>,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Number of bytes in the span.
    pub size: u64,
}

/// Piece of a variable: stored bytes, and the requested part of the array that they decode to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableExtent {
    /// Number of the piece's chunk among the variable's chunks; 0 if the variable has no chunks.
    pub chunk: u64,
    /// Location of the piece's bytes; `None` if no bytes were written, so all values are the fill value.
    pub span: Option<FileSpan>,
    /// Bit mask of filters that were not applied to the piece (see [`Chunk::mask`]).
    pub mask: u32,
    /// Shape of the array that the piece's bytes decode to.
    pub shape: Vec<u64>,
    /// Distance from one index of the first dimension to the next, in bytes, if bytes of other variables are in between; `None` otherwise.
    pub stride: Option<u64>,
    /// Requested part of the array that the bytes decode to.
    pub within: Vec<IndexRange>,
    /// Place of the piece's first requested value in the result.
    pub at: Vec<u64>,
}

impl VariableExtent {
    /// Returns the piece's own bytes: the bytes of each record, if bytes of other variables are between records.
    pub fn spans(&self) -> impl Iterator<Item = FileSpan> + '_ {
        let rows = self.stride.and(self.shape.first()).copied().unwrap_or(1);
        let stride = self.stride.unwrap_or(0);
        self.span.iter().flat_map(move |span| {
            let size = span
                .size
                .saturating_sub(rows.saturating_sub(1).saturating_mul(stride));
            let row = move |row| FileSpan {
                offset: span.offset.saturating_add(stride.saturating_mul(row)),
                size,
                ..span.clone()
            };
            (0..rows).map(row)
        })
    }
}

/// Source of a variable's bytes.
#[derive(Clone, Copy)]
pub enum VariableSource<'a> {
    /// The bytes are in a file.
    File(&'a dyn Bytes),
    /// The bytes are in a directory of files (or a zip file, which counts as a directory).
    Directory(&'a dyn Directory),
}

impl std::fmt::Debug for VariableSource<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::File(_) => "File",
            Self::Directory(_) => "Directory",
        })
    }
}

/// Returns the pieces of a selection, one after the other. A piece of contiguous data has at most `piece_bytes` bytes, or one element.
///
/// # Errors
/// If the selection does not fit the variable, or if the variable's chunk index cannot be read.
pub fn pieces<'a>(
    variable: &'a Variable,
    selection: &[IndexRange],
    store: VariableSource<'a>,
    piece_bytes: u64,
) -> Result<Pieces<'a>> {
    check(variable, selection)?;
    // A longer step also selects only the first index.
    let shortened = |(range, size): (&IndexRange, u64)| IndexRange {
        step: range.step.min(size.max(1)),
        ..*range
    };
    let selection: Vec<IndexRange> = selection
        .iter()
        .zip(variable.shape())
        .map(shortened)
        .collect();
    let selection = selection.as_slice();
    let empty = selection.iter().any(|range| range.count() == 0);
    let unsupported = |what: &str| Error::Unsupported {
        variable: variable.path.clone(),
        what: what.into(),
    };
    let ways = match (&variable.storage, store) {
        (Storage::Elsewhere(what), _) => return Err(unsupported(what)),
        _ if empty => Ways::Runs(ContiguousRuns::default()),
        (Storage::Contiguous { offset }, VariableSource::File(bytes)) => {
            Ways::Runs(ContiguousRuns::new(
                variable,
                selection,
                *offset,
                None,
                bytes.size(),
                piece_bytes,
            ))
        }
        (Storage::Records { offset, stride }, VariableSource::File(bytes)) => {
            Ways::Runs(ContiguousRuns::new(
                variable,
                selection,
                *offset,
                Some(*stride),
                bytes.size(),
                piece_bytes,
            ))
        }
        (Storage::Absent, _) => Ways::Absent(false),
        (Storage::Chunked(chunked), store) => {
            Ways::Chunks(ChunkGrid::new(variable, selection, chunked, store)?)
        }
        (_, VariableSource::Directory(_)) => {
            return Err(unsupported(
                "storage in one file, of which this is a directory",
            ));
        }
    };
    Ok(Pieces {
        variable,
        selection: selection.to_vec(),
        ways,
    })
}

fn check(variable: &Variable, selection: &[IndexRange]) -> Result<()> {
    let wrong = |dimension: &str, why: String| Error::Selection {
        variable: variable.path.clone(),
        dimension: dimension.into(),
        why,
    };
    if selection.len() != variable.dimensions.len() {
        let why = format!(
            "{} ranges for {} dimensions",
            selection.len(),
            variable.dimensions.len()
        );
        return Err(wrong("(all)", why));
    }
    for (range, dimension) in selection.iter().zip(&variable.dimensions) {
        if range.step == 0 {
            return Err(wrong(&dimension.name, "a step of 0".into()));
        }
        if range.start > range.end || range.end > dimension.size {
            let why = format!(
                "{} to {} of {} indices",
                range.start, range.end, dimension.size
            );
            return Err(wrong(&dimension.name, why));
        }
    }
    Ok(())
}

/// Iterator over the pieces of a selection; see [`pieces`].
#[derive(Debug)]
pub struct Pieces<'a> {
    variable: &'a Variable,
    selection: Vec<IndexRange>,
    ways: Ways<'a>,
}

#[derive(Debug)]
enum Ways<'a> {
    Runs(ContiguousRuns),
    Chunks(ChunkGrid<'a>),
    /// One piece of fill values for the whole selection, and whether the piece was returned.
    Absent(bool),
}

impl Iterator for Pieces<'_> {
    type Item = Result<VariableExtent>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.ways {
            Ways::Runs(runs) => runs.next(self.variable, &self.selection),
            Ways::Chunks(grid) => grid.next(self.variable, &self.selection),
            Ways::Absent(reported) => (!std::mem::replace(reported, true)).then(|| {
                let at = vec![0; self.selection.len()];
                Ok(VariableExtent {
                    chunk: 0,
                    span: None,
                    mask: 0,
                    shape: self.variable.shape(),
                    stride: None,
                    within: self.selection.clone(),
                    at,
                })
            }),
        }
    }
}

/// Pieces of contiguous data: boxes whose inner dimensions are complete.
#[derive(Debug, Default)]
struct ContiguousRuns {
    offset: u64,
    file_size: u64,
    /// Distance from one index to the next in each dimension, in bytes.
    strides: Vec<u64>,
    /// Distance from one record to the next in bytes, if bytes of other variables are in between.
    apart: Option<u64>,
    /// Dimension that is cut: dimensions before it advance index by index, and dimensions after it are complete.
    cut: usize,
    /// Number of indices of dimension `cut` in a piece.
    rows: u64,
    /// Indices of the next piece; `None` at the end.
    next: Option<Vec<u64>>,
}

impl ContiguousRuns {
    fn new(
        variable: &Variable,
        selection: &[IndexRange],
        offset: u64,
        record: Option<u64>,
        file_size: u64,
        piece_bytes: u64,
    ) -> Self {
        let shape = variable.shape();
        let rank = shape.len();
        let mut strides = vec![u64::from(variable.data_type.size); rank];
        for inner in (1..rank).rev() {
            strides[inner - 1] = strides[inner].saturating_mul(shape[inner]);
        }
        let dense = strides.first().copied();
        if let (Some(record), Some(first)) = (record, strides.first_mut()) {
            *first = record;
        }
        // Short slices of other variables between records are read together with the records.
        let apart = record.filter(|record| Some(*record) != dense);
        let near = apart.is_none_or(|record| record <= APART_BYTES);
        let mut cut = rank.saturating_sub(1);
        while cut > usize::from(!near) {
            let row = strides[cut - 1];
            let whole = selection[cut] == IndexRange::all(shape[cut]);
            if row > piece_bytes || !(whole || row <= GAP_BYTES) {
                break;
            }
            cut -= 1;
        }
        let rows = match (selection.get(cut), strides.get(cut)) {
            (Some(_), Some(_)) if !near && cut == 0 => 1,
            (Some(range), Some(stride))
                if range.step == 1 || range.step.saturating_mul(*stride) <= GAP_BYTES =>
            {
                (piece_bytes / stride.saturating_mul(range.step).max(1)).max(1)
            }
            _ => 1,
        };
        Self {
            offset,
            file_size,
            strides,
            apart,
            cut,
            rows,
            next: Some(vec![0; cut + usize::from(rank > 0)]),
        }
    }

    fn next(
        &mut self,
        variable: &Variable,
        selection: &[IndexRange],
    ) -> Option<Result<VariableExtent>> {
        let at = self.next.clone()?;
        let rank = selection.len();
        let mut piece = VariableExtent {
            chunk: 0,
            span: None,
            mask: 0,
            shape: vec![],
            stride: None,
            within: vec![],
            at: vec![0; rank],
        };
        let mut offset = self.offset;
        let mut size = u64::from(variable.data_type.size);
        for (dimension, range) in selection.iter().enumerate() {
            let taken = match dimension.cmp(&self.cut) {
                std::cmp::Ordering::Less => range.slice(at[dimension], 1),
                std::cmp::Ordering::Equal => {
                    range.slice(at[dimension], self.rows.min(range.count() - at[dimension]))
                }
                std::cmp::Ordering::Greater => IndexRange::all(variable.dimensions[dimension].size),
            };
            if dimension <= self.cut {
                piece.at[dimension] = at[dimension];
                offset = offset.saturating_add(taken.start.saturating_mul(self.strides[dimension]));
                piece.shape.push(taken.extent());
                piece.within.push(taken.moved(taken.start));
            } else {
                piece.shape.push(taken.end);
                piece.within.push(*range);
            }
            size = size.saturating_mul(piece.shape[dimension]);
        }
        if let (Some(record), 0, Some(rows @ 2..)) = (self.apart, self.cut, piece.shape.first()) {
            size = (rows - 1)
                .saturating_mul(record)
                .saturating_add(size / rows);
            piece.stride = Some(record);
        }
        self.step(selection);
        let end = offset.saturating_add(size);
        if end > self.file_size {
            self.next = None;
            let what = "a variable's data";
            return Some(Err(Error::Truncated {
                what,
                offset,
                end,
                size: self.file_size,
            }));
        }
        piece.span = Some(FileSpan {
            file: None,
            offset,
            size,
        });
        Some(Ok(piece))
    }

    fn step(&mut self, selection: &[IndexRange]) {
        let Some(next) = &mut self.next else { return };
        for dimension in (0..next.len()).rev() {
            next[dimension] += if dimension == self.cut { self.rows } else { 1 };
            if next[dimension] < selection[dimension].count() {
                return;
            }
            next[dimension] = 0;
        }
        self.next = None;
    }
}

/// Pieces of chunked data: each piece is a chunk.
#[derive(Debug)]
struct ChunkGrid<'a> {
    chunked: &'a Chunked,
    /// Number of chunks along each dimension.
    counts: Vec<u64>,
    places: ChunkPlaces<'a>,
    /// Place of the next chunk in the grid; `None` at the end.
    next: Option<Vec<u64>>,
}

#[derive(Debug)]
enum ChunkPlaces<'a> {
    Table { chunks: Vec<Chunk>, file_size: u64 },
    Files(zarr::Lookup<'a>),
}

impl<'a> ChunkGrid<'a> {
    fn new(
        variable: &Variable,
        selection: &[IndexRange],
        chunked: &'a Chunked,
        store: VariableSource<'a>,
    ) -> Result<Self> {
        let places = match (&chunked.index, store) {
            (Index::Hdf5(index), VariableSource::File(bytes)) => ChunkPlaces::Table {
                chunks: hdf5::chunks(variable, chunked, index, bytes)?,
                file_size: bytes.size(),
            },
            (Index::Zarr(index), VariableSource::Directory(directory)) => {
                ChunkPlaces::Files(zarr::Lookup::new(index, directory))
            }
            _ => {
                let what =
                    "a directory where a file is to be, or a file where a directory is to be"
                        .into();
                return Err(Error::Unsupported {
                    variable: variable.path.clone(),
                    what,
                });
            }
        };
        let counts = grid(variable, chunked)?;
        let next = selection
            .iter()
            .zip(&chunked.shape)
            .map(|(range, size)| range.start / size)
            .collect();
        Ok(Self {
            chunked,
            counts,
            places,
            next: Some(next),
        })
    }

    fn next(
        &mut self,
        variable: &Variable,
        selection: &[IndexRange],
    ) -> Option<Result<VariableExtent>> {
        let place = self.next.clone()?;
        let mut piece = VariableExtent {
            chunk: place
                .iter()
                .zip(&self.counts)
                .fold(0, |number, (at, count)| number * count + at),
            span: None,
            mask: 0,
            shape: self.chunked.shape.clone(),
            stride: None,
            within: vec![],
            at: vec![],
        };
        for ((range, at), size) in selection.iter().zip(&place).zip(&self.chunked.shape) {
            let low = at * size;
            let (before, wanted) = range.between(low, low.saturating_add(*size));
            piece.at.push(before);
            piece.within.push(wanted.moved(low));
        }
        self.step(selection);
        let found = self.places.find(&piece, &place, variable).map(|found| {
            if let Some((span, mask)) = found {
                (piece.span, piece.mask) = (Some(span), mask);
            }
            piece
        });
        if found.is_err() {
            self.next = None;
        }
        Some(found)
    }

    /// Advances to the next chunk that the selection needs: steps of the selection may be longer than chunks.
    fn step(&mut self, selection: &[IndexRange]) {
        let Some(next) = &mut self.next else { return };
        for dimension in (0..next.len()).rev() {
            let (range, size) = (&selection[dimension], self.chunked.shape[dimension]);
            let (before, _) = range.between((next[dimension] + 1).saturating_mul(size), u64::MAX);
            if before < range.count() {
                next[dimension] = (range.start + before * range.step) / size;
                return;
            }
            next[dimension] = range.start / size;
        }
        self.next = None;
    }
}

impl ChunkPlaces<'_> {
    fn find(
        &mut self,
        piece: &VariableExtent,
        place: &[u64],
        variable: &Variable,
    ) -> Result<Option<(FileSpan, u32)>> {
        match self {
            Self::Files(lookup) => Ok(lookup.find(place)?.map(|span| (span, 0))),
            Self::Table { chunks, file_size } => {
                let Ok(found) = chunks.binary_search_by_key(&piece.chunk, |chunk| chunk.number)
                else {
                    return Ok(None);
                };
                let Chunk {
                    offset, size, mask, ..
                } = chunks[found];
                let end = offset.saturating_add(size);
                if end > *file_size {
                    let why = format!(
                        "chunk {place:?} of {} ends at {end} of {file_size} bytes",
                        variable.path
                    );
                    return Err(Error::Corrupt {
                        what: "index of chunks",
                        offset,
                        why,
                    });
                }
                Ok(Some((
                    FileSpan {
                        file: None,
                        offset,
                        size,
                    },
                    mask,
                )))
            }
        }
    }
}

/// Returns the number of chunks of a variable along each dimension.
pub(crate) fn grid(variable: &Variable, chunked: &Chunked) -> Result<Vec<u64>> {
    let wrong = |what: String| Error::Unsupported {
        variable: variable.path.clone(),
        what,
    };
    if chunked.shape.len() != variable.dimensions.len() || chunked.shape.contains(&0) {
        return Err(wrong(format!("chunks of the shape {:?}", chunked.shape)));
    }
    let counts: Vec<u64> = variable
        .shape()
        .iter()
        .zip(&chunked.shape)
        .map(|(size, chunk)| size.div_ceil(*chunk))
        .collect();
    counts
        .iter()
        .try_fold(1_u64, |all, count| all.checked_mul(*count))
        .map(|_| counts)
        .ok_or_else(|| wrong("more chunks than 64 bits can count".into()))
}
