//! Reductions of files on this machine, and readers for the few values of coordinates, wherever they are stored.

use std::fs::File;
use std::path::PathBuf;

use tidemill_format::zip::Zip;
use tidemill_format::{
    Bytes, FileSpan, Format, Header, IndexRange, Variable, VariableExtent, VariableSource, pieces,
};

use super::error::{Error, Result};
use super::filters::coding;
use super::pass::Pass;
use super::plan::{FilePlan, ReductionInput, ReductionPlan, plan};
use super::query::ReductionQuery;
use super::slabs::CellRange;
use super::state::{BoxState, CellSums, as_usize, real, total};
use super::table::ResultTable;
use super::task::{DimensionTarget, ReductionTask, WantedResults};
use super::{BoxFold, PIECE_BYTES, STATE_BYTES_MAX, around, item};
use crate::array::{ArrayError, RAW_BYTES_MAX};
use crate::work::StoredBytes as Stored;

/// Number of bytes of a coordinate that are read at once.
const COORDINATE_PIECE: u64 = 4 << 20;

/// Reads the header of a file; a zip file is treated as a directory.
///
/// # Errors
/// If the file has no known format.
pub fn header(name: &str, store: VariableSource<'_>) -> Result<Header> {
    let header = match store {
        VariableSource::File(bytes) => tidemill_format::read(bytes),
        VariableSource::Directory(directory) => tidemill_format::zarr::read(directory),
    };
    header.map_err(|source| Error::of(name, source))
}

/// Reduces files that this process can read. If the result is too large to be computed at once, returns its outline, whose values [`slabs`]
/// computes.
///
/// # Errors
/// If the files cannot be reduced as requested.
pub fn reduce(
    query: &ReductionQuery,
    inputs: &[ReductionInput<'_>],
    mut done: impl FnMut(u64),
) -> Result<ResultTable> {
    let plan = plan(query, inputs)?;
    match plan.is_large() {
        true => plan.outline(),
        false => found(&plan, inputs, &mut done),
    }
}

/// Function that receives the values of some cells of a result.
pub type CellReceiver<'a> = dyn FnMut(&CellRange, &ResultTable) -> Result<()> + 'a;

/// Reduces files like [`reduce`], one slab after the other.
///
/// # Errors
/// Errors of [`reduce`], or if the slabs cannot be written.
pub fn slabs(
    query: &ReductionQuery,
    inputs: &[ReductionInput<'_>],
    mut done: impl FnMut(u64),
    put: &mut CellReceiver<'_>,
) -> Result<()> {
    for (cells, slab) in plan(query, inputs)?.slabs() {
        put(&cells, &found(&slab, inputs, &mut done)?)?;
    }
    Ok(())
}

pub(super) fn found(
    plan: &ReductionPlan,
    inputs: &[ReductionInput<'_>],
    done: &mut impl FnMut(u64),
) -> Result<ResultTable> {
    let mut pass = plan.pass()?;
    loop {
        let mut all = pass.state();
        for file in &plan.files {
            fold((&pass, file), inputs[file.input], &mut all, done)?;
        }
        if !pass.next(&all)? {
            return Ok(pass.table(&all));
        }
    }
}

/// Input of a reduction: a file, or a directory with a Zarr array.
#[derive(Debug)]
pub enum LocalInput {
    /// The input is a file.
    File(File),
    /// The input is a directory with a Zarr array.
    Directory(PathBuf),
}

impl LocalInput {
    fn store(&self) -> VariableSource<'_> {
        match self {
            Self::File(file) => VariableSource::File(file),
            Self::Directory(directory) => VariableSource::Directory(directory),
        }
    }

    fn file(&self) -> Option<&File> {
        match self {
            Self::File(file) => Some(file),
            Self::Directory(_) => None,
        }
    }
}

/// Calls a function with the headers of open files.
///
/// # Errors
/// If a header cannot be read, or if the function fails.
pub fn with_files<T>(
    files: &[(String, LocalInput)],
    run: impl FnOnce(&[ReductionInput<'_>]) -> Result<T>,
) -> Result<T> {
    let mut headers = Vec::new();
    for (name, file) in files {
        headers.push(header(name, file.store())?);
    }
    let mut zips = Vec::new();
    for ((name, file), header) in files.iter().zip(&headers) {
        let file = file
            .file()
            .filter(|_| matches!(header.format, Format::Zarr(_)));
        let zip = file.map(|file| Zip::open(file)).transpose();
        zips.push(zip.map_err(|source| Error::of(name, source))?);
    }
    let input = |place: usize| ReductionInput {
        name: &files[place].0,
        header: &headers[place],
        store: zips[place].as_ref().map_or_else(
            || files[place].1.store(),
            |zip| VariableSource::Directory(zip),
        ),
        bytes: files[place].1.file().map(|file| file as &dyn Bytes),
    };
    let inputs: Vec<ReductionInput<'_>> = (0..files.len()).map(input).collect();
    run(&inputs)
}

/// Merges the state of some pieces of a file into the whole state.
///
/// # Errors
/// If the state of the pieces does not fit the whole state.
pub fn merge(file: &FilePlan, all: &mut BoxState, some: BoxState) -> Result<()> {
    let some = match file.unpack {
        Some((scale, offset)) => some.unpacked(scale, offset),
        None => some,
    };
    Ok(all.merge(&some)?)
}

fn fold(
    (pass, file): (&Pass<'_>, &FilePlan),
    input: ReductionInput<'_>,
    all: &mut BoxState,
    done: &mut impl FnMut(u64),
) -> Result<()> {
    let format = |source| Error::of(input.name, source);
    let found =
        pieces(&file.variable, &file.selection, input.store, PIECE_BYTES).map_err(format)?;
    let mut folding: Option<BoxFold> = None;
    let mut stored = Vec::new();
    for piece in found {
        let piece = piece.map_err(format)?;
        let one = item(
            &piece,
            piece
                .span
                .iter()
                .map(|span| Stored::Held {
                    offset: span.offset,
                    length: span.size,
                })
                .collect(),
        );
        let cells = file.task.cells(&one);
        let now = folding
            .as_ref()
            .map_or_else(|| cells.clone(), |folding| around(folding.cells(), &cells));
        if folding
            .as_ref()
            .is_none_or(|folding| *folding.cells() != now)
        {
            folding
                .take()
                .map(|folding| merge(file, all, folding.finish()))
                .transpose()?;
            // Uses as much of the result as the limit allows, so that not every piece needs a new state.
            let whole = (all.at.clone(), all.shape.clone());
            let wide = if bytes_of(pass.cell_bytes(file), &whole) <= STATE_BYTES_MAX as u64 {
                whole
            } else {
                cells
            };
            folding =
                Some(BoxFold::new(pass.task(file, &wide), wide).map_err(|_| Error::PieceTooLarge)?);
        }
        let Some(folding) = &mut folding else {
            continue;
        };
        if let Some(span) = &piece.span {
            read(input, span, &mut stored)?;
        }
        folding
            .add(&one, &stored)
            .map_err(|source| at_chunk(input.name, &file.variable, &piece, source))?;
        done(piece.span.as_ref().map_or(0, |span| span.size));
    }
    folding.map_or(Ok(()), |folding| merge(file, all, folding.finish()))
}

fn bytes_of(cell: usize, cells: &(Vec<u64>, Vec<u64>)) -> u64 {
    cells
        .1
        .iter()
        .fold(cell as u64, |all, length| all.saturating_mul(*length))
}

fn at_chunk(file: &str, variable: &Variable, piece: &VariableExtent, source: ArrayError) -> Error {
    Error::Chunk {
        file: file.into(),
        variable: variable.path.clone(),
        chunk: piece.chunk,
        place: piece
            .span
            .as_ref()
            .map(|span| format!(" (bytes {} to {})", span.offset, span.offset + span.size)),
        source: Box::new(source),
    }
}

fn read(input: ReductionInput<'_>, span: &FileSpan, into: &mut Vec<u8>) -> Result<()> {
    if span.size > RAW_BYTES_MAX as u64 {
        return Err(ArrayError::TooLarge.into());
    }
    into.resize(as_usize(span.size), 0);
    let read = match (input.store, &span.file, input.bytes) {
        (VariableSource::Directory(directory), Some(file), _) => {
            directory.read_at(file, span.offset, into)
        }
        (_, _, Some(bytes)) => bytes.read_at(span.offset, into),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    read.map_err(|source| Error::Io {
        file: input.name.into(),
        source,
    })
}

/// Returns the values of a variable of one dimension, unpacked according to its attributes; NaN for missing values.
///
/// # Errors
/// If the values of the variable cannot be read.
pub fn values(input: ReductionInput<'_>, variable: &Variable) -> Result<Vec<f64>> {
    let meaning = variable.meaning(input.header.format);
    let meaning = meaning.map_err(|source| Error::of(input.name, source))?;
    let coding = coding(input.name, variable, meaning.unsigned)?;
    let selection: Vec<IndexRange> = variable.shape().into_iter().map(IndexRange::all).collect();
    let wants = WantedResults {
        sum: true,
        ..WantedResults::default()
    };
    let task = ReductionTask {
        targets: vec![DimensionTarget::Kept(0); selection.len()],
        ..coding.task(&meaning, wants)
    };
    let count = selection.iter().map(IndexRange::count).collect::<Vec<_>>();
    let mut folding = BoxFold::new(task, (vec![0; count.len()], count))?;
    let format = |source| Error::of(input.name, source);
    let mut stored = Vec::new();
    for piece in pieces(variable, &selection, input.store, COORDINATE_PIECE).map_err(format)? {
        let piece = piece.map_err(format)?;
        let bytes = piece.span.iter().map(|span| Stored::Held {
            offset: span.offset,
            length: span.size,
        });
        let one = item(&piece, bytes.collect());
        if let Some(span) = &piece.span {
            read(input, span, &mut stored)?;
        }
        folding
            .add(&one, &stored)
            .map_err(|source| at_chunk(input.name, variable, &piece, source))?;
    }
    let state = folding.finish();
    let sums: Vec<f64> = match state.sums {
        CellSums::None => Vec::new(),
        CellSums::Whole(all) => all.into_iter().map(real).collect(),
        CellSums::Real(all) => all.into_iter().map(total).collect(),
    };
    let (scale, offset) = (
        meaning.scale_factor.unwrap_or(1.0),
        meaning.add_offset.unwrap_or(0.0),
    );
    let value = |(sum, count): (f64, &u64)| {
        if *count == 0 {
            f64::NAN
        } else {
            sum * scale + offset
        }
    };
    Ok(sums.into_iter().zip(&state.counts).map(value).collect())
}
