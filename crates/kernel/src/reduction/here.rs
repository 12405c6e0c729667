//! Reductions of files on this machine, and readers for the few values of coordinates, wherever they are stored.

use std::fs::File;
use std::path::PathBuf;

use tidemill_format::zip::Zip;
use tidemill_format::{Bytes, Format, Header, Piece, Range, Span, Store, Variable, pieces};

use super::error::{Error, Result};
use super::filters::coding;
use super::pass::Pass;
use super::plan::{FilePlan, Input, Plan, plan};
use super::query::Query;
use super::slabs::Cells;
use super::state::{State, Sums, as_usize, real, total};
use super::table::Table;
use super::task::{Target, Task, Wants};
use super::{Folding, PIECE_BYTES, STATE_BYTES_MAX, around, item};
use crate::array::{ArrayError, RAW_BYTES_MAX};
use crate::reducing::Piece as Stored;

/// Number of bytes of a coordinate that are read at once.
const COORDINATE_PIECE: u64 = 4 << 20;

/// Reads the header of a file; a zip file is a directory from then on.
///
/// # Errors
/// If the file has no known format.
pub fn header(name: &str, store: Store<'_>) -> Result<Header> {
    let header = match store {
        Store::File(bytes) => tidemill_format::read(bytes),
        Store::Directory(directory) => tidemill_format::zarr::read(directory),
    };
    header.map_err(|source| Error::of(name, source))
}

/// Reduces files that can be read here. If the result is too large to be found at once, returns its outline, whose values [`slabs`]
/// finds.
///
/// # Errors
/// If the files cannot be reduced as requested.
pub fn reduce(query: &Query, inputs: &[Input<'_>], mut done: impl FnMut(u64)) -> Result<Table> {
    let plan = plan(query, inputs)?;
    match plan.is_large() {
        true => plan.outline(),
        false => found(&plan, inputs, &mut done),
    }
}

/// Receives the values of some cells of a result.
pub type Put<'a> = dyn FnMut(&Cells, &Table) -> Result<()> + 'a;

/// Reduces like [`reduce`], slab by slab.
///
/// # Errors
/// Like [`reduce`], or if the slabs cannot be written.
pub fn slabs(
    query: &Query,
    inputs: &[Input<'_>],
    mut done: impl FnMut(u64),
    put: &mut Put<'_>,
) -> Result<()> {
    for (cells, slab) in plan(query, inputs)?.slabs() {
        put(&cells, &found(&slab, inputs, &mut done)?)?;
    }
    Ok(())
}

pub(super) fn found(
    plan: &Plan,
    inputs: &[Input<'_>],
    done: &mut impl FnMut(u64),
) -> Result<Table> {
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
pub enum Opened {
    /// A file.
    File(File),
    /// A directory.
    Directory(PathBuf),
}

impl Opened {
    fn store(&self) -> Store<'_> {
        match self {
            Self::File(file) => Store::File(file),
            Self::Directory(directory) => Store::Directory(directory),
        }
    }

    fn file(&self) -> Option<&File> {
        match self {
            Self::File(file) => Some(file),
            Self::Directory(_) => None,
        }
    }
}

/// Runs a function with the headers of open files.
///
/// # Errors
/// If a header cannot be read, or if the function fails.
pub fn with_files<T>(
    files: &[(String, Opened)],
    run: impl FnOnce(&[Input<'_>]) -> Result<T>,
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
    let input = |place: usize| Input {
        name: &files[place].0,
        header: &headers[place],
        store: zips[place]
            .as_ref()
            .map_or_else(|| files[place].1.store(), |zip| Store::Directory(zip)),
        bytes: files[place].1.file().map(|file| file as &dyn Bytes),
    };
    let inputs: Vec<Input<'_>> = (0..files.len()).map(input).collect();
    run(&inputs)
}

/// Merges the state of some pieces of a file into the whole state.
///
/// # Errors
/// If the state does not fit.
pub fn merge(file: &FilePlan, all: &mut State, some: State) -> Result<()> {
    let some = match file.unpack {
        Some((scale, offset)) => some.unpacked(scale, offset),
        None => some,
    };
    Ok(all.merge(&some)?)
}

fn fold(
    (pass, file): (&Pass<'_>, &FilePlan),
    input: Input<'_>,
    all: &mut State,
    done: &mut impl FnMut(u64),
) -> Result<()> {
    let format = |source| Error::of(input.name, source);
    let found =
        pieces(&file.variable, &file.selection, input.store, PIECE_BYTES).map_err(format)?;
    let mut folding: Option<Folding> = None;
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
                Some(Folding::new(pass.task(file, &wide), wide).map_err(|_| Error::PieceTooLarge)?);
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

fn at_chunk(file: &str, variable: &Variable, piece: &Piece, source: ArrayError) -> Error {
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

fn read(input: Input<'_>, span: &Span, into: &mut Vec<u8>) -> Result<()> {
    if span.size > RAW_BYTES_MAX as u64 {
        return Err(ArrayError::TooLarge.into());
    }
    into.resize(as_usize(span.size), 0);
    let read = match (input.store, &span.file, input.bytes) {
        (Store::Directory(directory), Some(file), _) => directory.read_at(file, span.offset, into),
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
/// If the values cannot be read.
pub fn values(input: Input<'_>, variable: &Variable) -> Result<Vec<f64>> {
    let meaning = variable.meaning(input.header.format);
    let meaning = meaning.map_err(|source| Error::of(input.name, source))?;
    let coding = coding(input.name, variable, meaning.unsigned)?;
    let selection: Vec<Range> = variable.shape().into_iter().map(Range::all).collect();
    let wants = Wants {
        sum: true,
        ..Wants::default()
    };
    let task = Task {
        targets: vec![Target::Kept(0); selection.len()],
        ..coding.task(&meaning, wants)
    };
    let count = selection.iter().map(Range::count).collect::<Vec<_>>();
    let mut folding = Folding::new(task, (vec![0; count.len()], count))?;
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
        Sums::None => Vec::new(),
        Sums::Whole(all) => all.into_iter().map(real).collect(),
        Sums::Real(all) => all.into_iter().map(total).collect(),
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
