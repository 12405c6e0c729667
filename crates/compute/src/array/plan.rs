//! Checked reductions of arrays, as walks over memory.
//!
//! A walk visits an array in its storage order, the slowest dimension first; a reduced dimension does not advance in the result.
//! Neighbouring dimensions that are taken completely, and that are all reduced or all kept, are merged into one.

use super::error::ArrayError;
use super::state::StateCells;
use super::{
    ArrayOperation, ArraySlice, ArraySpec, DIMENSIONS_MAX, Literal, MISSING_MAX, Missing,
    RAW_BYTES_MAX, RESULT_BYTES_MAX, codec, with_type,
};
use crate::loops::number::Number;

/// Spec of a reduction that passed all checks.
#[derive(Debug)]
pub struct ArrayPlan<'a> {
    pub(super) spec: &'a ArraySpec,
    raw_bytes: Option<usize>,
}

/// One dimension of a walk over an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WalkDimension {
    /// Number of selected indices of the dimension.
    pub(super) length: usize,
    /// Distance from one index to the next, in values.
    pub(super) step: isize,
    /// Distance from one index to the next, in cells of the result; `None` if the dimension is reduced.
    pub(super) cells: Option<isize>,
}

/// Walk over all selected values of an array.
#[derive(Debug)]
pub(super) struct ArrayWalk<'a> {
    pub(super) spec: &'a ArraySpec,
    /// Position of the first value in the array.
    pub(super) first: usize,
    /// Dimensions, the slowest first; the last dimension is processed in one step.
    pub(super) dimensions: Vec<WalkDimension>,
    /// Shape of the result.
    pub(super) shape: Vec<u64>,
    pub(super) cells: usize,
}

impl<'a> ArrayPlan<'a> {
    /// Checks everything of a spec that can be checked without the bytes.
    ///
    /// # Errors
    /// If the spec is invalid.
    pub fn new(spec: &'a ArraySpec) -> Result<Self, ArrayError> {
        codec::check(&spec.codecs)?;
        let raw_bytes = spec
            .shape
            .as_deref()
            .map(|shape| raw_bytes(shape, spec.dtype.size()));
        let dimensions = match &spec.shape {
            Some(shape) => shape.len(),
            None if spec.selection.is_some() => return Err(ArrayError::NeedsShape("`selection`")),
            None if spec.axes.is_some() => return Err(ArrayError::NeedsShape("`axis`")),
            None => 1,
        };
        check_selection(spec.selection.as_deref(), dimensions)?;
        check_axes(spec.axes.as_deref(), dimensions)?;
        check_missing(spec)?;
        Ok(Self {
            spec,
            raw_bytes: raw_bytes.transpose()?,
        })
    }

    /// Returns the size of the decoded array in bytes, if its shape is known.
    #[must_use]
    pub fn raw_bytes(&self) -> Option<usize> {
        self.raw_bytes
    }

    /// Returns the walk over an array of `found` decoded bytes.
    pub(super) fn of(&self, found: usize) -> Result<ArrayWalk<'a>, ArrayError> {
        let spec = self.spec;
        let size = spec.dtype.size();
        let shape = match (&spec.shape, self.raw_bytes) {
            (_, Some(expected)) if expected != found => {
                return Err(ArrayError::Size { found, expected });
            }
            (Some(shape), _) => shape.clone(),
            (None, _) if found > RAW_BYTES_MAX => return Err(ArrayError::TooLarge),
            (None, _) if !found.is_multiple_of(size) => {
                return Err(ArrayError::Ragged { found, size });
            }
            (None, _) => vec![(found / size) as u64],
        };
        walk(spec, &shape)
    }
}

fn raw_bytes(shape: &[u64], size: usize) -> Result<usize, ArrayError> {
    if shape.is_empty() || shape.len() > DIMENSIONS_MAX {
        return Err(ArrayError::Dimensions(shape.len()));
    }
    if let Some(empty) = shape.iter().position(|length| *length == 0) {
        return Err(ArrayError::EmptyDimension(empty));
    }
    let bytes = shape
        .iter()
        .try_fold(size as u64, |bytes, length| bytes.checked_mul(*length));
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes
        .filter(|bytes| *bytes <= RAW_BYTES_MAX)
        .ok_or(ArrayError::TooLarge)
}

fn check_selection(selection: Option<&[ArraySlice]>, dimensions: usize) -> Result<(), ArrayError> {
    let Some(slices) = selection else {
        return Ok(());
    };
    if slices.len() != dimensions {
        let given = slices.len();
        return Err(ArrayError::Selection { dimensions, given });
    }
    match slices.iter().position(|slice| slice.stride == 0) {
        Some(dimension) => Err(ArrayError::Stride(dimension)),
        None => Ok(()),
    }
}

fn check_axes(axes: Option<&[u32]>, dimensions: usize) -> Result<(), ArrayError> {
    let axes = axes.unwrap_or_default();
    if let Some(&axis) = axes.iter().find(|axis| **axis as usize >= dimensions) {
        return Err(ArrayError::Axis { axis, dimensions });
    }
    match axes.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => Err(ArrayError::AxesOrder),
    }
}

fn check_missing(spec: &ArraySpec) -> Result<(), ArrayError> {
    with_type!(spec.dtype, T => match &spec.missing {
        None => Ok(()),
        Some(Missing::Values(values)) if values.len() > MISSING_MAX => Err(ArrayError::ManyMissing),
        Some(Missing::Values(values)) => {
            values.iter().try_for_each(|value| literal::<T>(spec, *value).map(drop))
        }
        Some(Missing::Outside(least, most)) => {
            let least = least.map(|least| literal::<T>(spec, least)).transpose()?;
            let most = most.map(|most| literal::<T>(spec, most)).transpose()?;
            match (least, most) {
                (Some(least), Some(most)) if least >= most => {
                    Err(ArrayError::EmptyRange(least.text(), most.text()))
                }
                _ => Ok(()),
            }
        }
    })
}

/// Converts a number of a request to a value of the array, exactly: a number that the type cannot represent is refused. Only decimals for
/// floats are rounded, to finite values.
pub(super) fn literal<T: Number>(spec: &ArraySpec, value: Literal) -> Result<T, ArrayError> {
    let parsed = || T::parse(&value.to_string()).filter(|parsed| parsed.to_f64().is_finite());
    // Floats can represent only some integers.
    let is_exact = |parsed: &T, whole: i128| T::INTEGER || whole_of(parsed.to_f64()) == Some(whole);
    let bound = match value {
        Literal::Int(whole) => parsed().filter(|parsed| is_exact(parsed, whole.into())),
        Literal::Uint(whole) => parsed().filter(|parsed| is_exact(parsed, whole.into())),
        // From 2⁶³ on, the number may be an integer with more digits than a double has.
        Literal::Float(real) if T::INTEGER => whole_of(real)
            .filter(|whole| whole.unsigned_abs() < 1 << 63)
            .and_then(|whole| T::parse(&whole.to_string())),
        Literal::Float(real) => parsed().filter(|parsed| real == 0.0 || parsed.to_f64() != 0.0),
    };
    bound.ok_or_else(|| ArrayError::Missing {
        value: value.to_string(),
        dtype: spec.dtype,
    })
}

/// Returns the integer that is equal to a double, if there is one.
#[allow(clippy::cast_possible_truncation, reason = "it is whole and small")]
fn whole_of(real: f64) -> Option<i128> {
    (real.fract() == 0.0 && real.abs() < 1e30).then_some(real as i128)
}

/// Returns the first selected index and the number of selected indices.
pub(super) fn taken(slice: ArraySlice, length: u64) -> (u64, u64) {
    let (length, backwards) = (i128::from(length), slice.stride < 0);
    // The interval from `low` up to `high`, as the interface defines it for either direction.
    let place = |index: i64| {
        let moved = i128::from(index) + i128::from(backwards);
        if index < 0 {
            (moved + length).max(0)
        } else {
            moved.min(length)
        }
    };
    let (start, end) = (place(slice.start), place(slice.end));
    let (low, high) = if backwards {
        (end, start)
    } else {
        (start, end)
    };
    if high <= low {
        return (0, 0);
    }
    let stride = i128::from(slice.stride.unsigned_abs());
    let count = (high - low + stride - 1) / stride;
    let first = if backwards { high - 1 } else { low };
    let number = |value: i128| u64::try_from(value).unwrap_or(0);
    (number(first), number(count))
}

#[allow(
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    reason = "an array has no more than RAW_BYTES_MAX values"
)]
fn walk<'a>(spec: &'a ArraySpec, shape: &[u64]) -> Result<ArrayWalk<'a>, ArrayError> {
    let count = shape.len();
    let all = ArraySlice {
        start: 0,
        end: i64::MAX,
        stride: 1,
    };
    let slice = |axis: usize| spec.selection.as_ref().map_or(all, |slices| slices[axis]);
    let selects = spec.operation == ArrayOperation::Select;
    let reduced = |axis: usize| match &spec.axes {
        _ if selects => false,
        None => true,
        Some(axes) => axes.iter().any(|reduced| *reduced as usize == axis),
    };
    let selected: Vec<(u64, u64)> = (0..count)
        .map(|axis| taken(slice(axis), shape[axis]))
        .collect();
    let kept: Vec<usize> = (0..count).filter(|axis| !reduced(*axis)).collect();
    let result: Vec<u64> = kept.iter().map(|axis| selected[*axis].1).collect();
    let cells = result.iter().product::<u64>() as usize;
    if cells.saturating_mul(StateCells::bytes_each(spec)) > RESULT_BYTES_MAX {
        return Err(ArrayError::ResultTooLarge);
    }
    // If no axis is reduced, the result has the storage order of the array; otherwise its last axis is the fastest.
    let as_array = spec.fortran
        && (selects || spec.axes.as_ref().is_some_and(Vec::is_empty))
        && spec.operation != ArrayOperation::Count;
    let mut to_cells = vec![None; count];
    let mut stride = 1;
    let order: Box<dyn Iterator<Item = &usize>> = if as_array {
        Box::new(kept.iter())
    } else {
        Box::new(kept.iter().rev())
    };
    for axis in order {
        to_cells[*axis] = Some(stride);
        stride *= selected[*axis].1 as isize;
    }
    // From the fastest to the slowest.
    let memory: Box<dyn Iterator<Item = usize>> = if spec.fortran {
        Box::new(0..count)
    } else {
        Box::new((0..count).rev())
    };
    let (mut dimensions, mut first, mut stride) = (Vec::<WalkDimension>::new(), 0, 1_isize);
    for axis in memory {
        let (start, length) = selected[axis];
        first += start as usize * stride.unsigned_abs();
        // A stride that leaves the array at once is never used.
        let by = slice(axis).stride.clamp(-(1 << 40), 1 << 40) as isize;
        let dimension = WalkDimension {
            length: length as usize,
            step: by.saturating_mul(stride),
            cells: to_cells[axis],
        };
        match dimensions
            .last_mut()
            .and_then(|faster| joined(faster, &dimension))
        {
            Some(both) => *dimensions.last_mut().expect("there was one") = both,
            None => dimensions.push(dimension),
        }
        stride *= shape[axis] as isize;
    }
    dimensions.reverse();
    Ok(ArrayWalk {
        spec,
        first,
        dimensions,
        shape: result,
        cells,
    })
}

/// Returns two dimensions as one, if a walk over both dimensions is a walk over one.
fn joined(faster: &WalkDimension, slower: &WalkDimension) -> Option<WalkDimension> {
    let by = isize::try_from(faster.length).ok()?;
    let goes_on = |fast: isize, slow: isize| fast.checked_mul(by) == Some(slow);
    let alike = match (faster.cells, slower.cells) {
        (None, None) => true,
        (Some(fast), Some(slow)) => goes_on(fast, slow),
        _ => false,
    };
    (alike && goes_on(faster.step, slower.step)).then(|| WalkDimension {
        length: faster.length * slower.length,
        ..*faster
    })
}
