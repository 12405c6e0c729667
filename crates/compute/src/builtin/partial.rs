//! Folds over data on several nodes: a task instance folds its piece, as bytes of the whole data, and writes its partial state; one more
//! task merges the states. By the merge invariance of folds the result equals the result over the whole data, bit for bit.

use std::io::Write;

use super::series::open;
use super::{BuiltinError, fold_builtin};
use serde::Deserialize;

/// First argument of a kernel that writes the partial state of a task instance's piece, as the parser of job scripts writes it
/// (`tidemill_lang::job`).
pub const PARTIAL: &str = " partial";
/// First argument of a kernel that merges the partial states of task instances into the result.
pub const MERGE: &str = " merge";
/// Number of bytes that a fold processes at a time.
const TAKEN_BYTES: usize = 8 << 20;

/// Part of a fold's work that a run of the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartialKind {
    State,
    Result,
}

/// Returns the part of its work that a kernel does, and the kernel's own arguments; `None` if the kernel does all of its work.
pub(super) fn asked(args: &[String]) -> Option<(PartialKind, &[String])> {
    let (first, rest) = args.split_first()?;
    match first.as_str() {
        PARTIAL => Some((PartialKind::State, rest)),
        MERGE => Some((PartialKind::Result, rest)),
        _ => None,
    }
}

pub(super) fn run(
    asked: PartialKind,
    (name, args): (&str, &[String]),
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let mut folding = fold_builtin(name, args)?;
    if asked == PartialKind::Result {
        for input in inputs {
            folding.merge(&open(input)?)?;
        }
        return folding.finish(out);
    }
    for input in inputs {
        let bytes = open(input)?;
        for (begin, length, offset) in InputLayout::of(input)?.extents(bytes.len())? {
            let mut at = offset;
            for taken in bytes
                .get(begin..begin + length)
                .unwrap_or_default()
                .chunks(TAKEN_BYTES)
            {
                folding.update(at, taken)?;
                at += taken.len() as u64;
            }
        }
    }
    out.write_all(&folding.state()?)
        .map_err(BuiltinError::Write)
}

/// Part of a file, or of a variable, that an input of a task contains, in the form of `TIDEMILL_LAYOUT`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct InputLayout {
    input: String,
    /// Part of a striped file: the part's number, the number of parts, and the size of a stripe in bytes.
    part: Option<u64>,
    unit: Option<u64>,
    width: Option<u64>,
    /// Byte ranges of the part, or of the file.
    bytes: Option<Vec<(u64, u64)>>,
    /// Whether there are more byte ranges than the list contains.
    #[serde(default)]
    more: bool,
    /// Size of a value of the variable, in bytes.
    itemsize: Option<u64>,
    #[serde(default)]
    shape: Vec<u64>,
    chunks: Option<Vec<Corner>>,
}

/// Values of a variable: a box of indices, or, if the shape is a single number, contiguous values.
#[derive(Debug, Deserialize)]
struct Corner {
    start: Vec<u64>,
    shape: Vec<u64>,
}

/// Byte ranges of an input and their positions in the whole data: start, length, start in the whole.
pub(super) type InputExtents = Vec<(usize, usize, u64)>;

impl InputLayout {
    /// Returns the layout of an input of the task; an input without a layout has all of its bytes at their own positions.
    fn of(input: &str) -> Result<Self, BuiltinError> {
        let Ok(text) = std::env::var("TIDEMILL_LAYOUT") else {
            return Ok(Self::default());
        };
        let all: Vec<Self> = serde_json::from_str(&text).map_err(|_| unknown())?;
        Ok(all
            .into_iter()
            .find(|one| one.input == input)
            .unwrap_or_default())
    }

    /// Parses one entry of the variable `TIDEMILL_LAYOUT`.
    pub(super) fn read(text: &str) -> Result<Self, BuiltinError> {
        serde_json::from_str(text).map_err(|_| unknown())
    }

    /// Returns the positions of `length` bytes of the input in the whole data.
    pub(super) fn extents(&self, length: usize) -> Result<InputExtents, BuiltinError> {
        if self.more {
            return Err(unknown());
        }
        let mut found = ExtentCursor {
            all: Vec::new(),
            at: 0,
            length,
        };
        if let (Some(chunks), Some(size)) = (&self.chunks, self.itemsize) {
            for one in chunks {
                self.boxed(one, size, &mut found)?;
            }
        } else if let (Some(part), Some(unit @ 1..), Some(width @ 1..)) =
            (self.part, self.unit, self.width)
        {
            let whole = vec![(0, length as u64)];
            for &(mut at, end) in self.bytes.as_ref().unwrap_or(&whole) {
                while at < end {
                    let (stripe, within) = (at / unit, at % unit);
                    let taken = (unit - within).min(end - at);
                    let begin = stripe
                        .checked_mul(width)
                        .and_then(|stripe| stripe.checked_add(part)?.checked_mul(unit));
                    found.take(taken, begin.ok_or_else(unknown)? + within)?;
                    at += taken;
                }
            }
        } else if let Some(ranges) = &self.bytes {
            for (begin, end) in ranges {
                found.take(end.saturating_sub(*begin), *begin)?;
            }
        } else {
            found.take(length as u64, 0)?;
        }
        match found.at == length {
            true => Ok(found.all),
            false => Err(unknown()),
        }
    }

    fn boxed(&self, one: &Corner, size: u64, found: &mut ExtentCursor) -> Result<(), BuiltinError> {
        let mut step = size;
        let mut steps = vec![0; self.shape.len()];
        for (to, length) in steps.iter_mut().zip(&self.shape).rev() {
            *to = step;
            step = step.checked_mul(*length).ok_or_else(unknown)?;
        }
        let begin: u64 = one
            .start
            .iter()
            .zip(&steps)
            .map(|(index, step)| index.saturating_mul(*step))
            .sum();
        let Some((&row, outer)) = one
            .shape
            .split_last()
            .filter(|_| one.shape.len() == steps.len())
        else {
            return found.take(
                one.shape.iter().product::<u64>().saturating_mul(size),
                begin,
            );
        };
        let rows = outer.iter().product::<u64>();
        for number in 0..rows {
            let (mut rest, mut at) = (number, begin);
            for (length, step) in outer.iter().zip(&steps).rev() {
                at += rest % length * step;
                rest /= length;
            }
            found.take(row.saturating_mul(size), at)?;
        }
        Ok(())
    }
}

struct ExtentCursor {
    all: InputExtents,
    at: usize,
    length: usize,
}

impl ExtentCursor {
    /// Adds the next bytes of the input at `offset` of the whole data.
    fn take(&mut self, length: u64, offset: u64) -> Result<(), BuiltinError> {
        let length = usize::try_from(length).map_err(|_| unknown())?;
        let end = self
            .at
            .checked_add(length)
            .filter(|end| *end <= self.length)
            .ok_or_else(unknown)?;
        self.all.push((self.at, length, offset));
        self.at = end;
        Ok(())
    }
}

fn unknown() -> BuiltinError {
    BuiltinError::Held("the positions of its piece in the whole are not known: the piece has too many ranges; store it in larger chunks or stripes".to_owned())
}
