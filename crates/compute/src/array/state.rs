//! Partial states of reductions, and the values that follow from them.

use super::error::ArrayError;
use super::pass::{Adds, Compensated, add_compensated, with_nan};
use super::{ArrayOperation, ArraySpec, Dtype, with_type};
use serde::{Deserialize, Serialize};

/// Partial state of a reduction. States of pieces of the same array can be merged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ArrayState {
    pub(super) operation: ArrayOperation,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    /// Count for each value of the result, or one count for all values if they are selected.
    pub(super) counts: Vec<i64>,
    pub(super) cells: StateCells,
}

/// State of the result's values, one cell for each value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum StateCells {
    /// The counts are the values of the result.
    Counted,
    /// Sums of integers, modulo 2^64.
    Whole(Vec<u64>),
    /// Sums of floats, with their rounding errors.
    Rounded(Vec<Compensated>),
    /// Smallest or largest values so far, little-endian.
    Extreme(Vec<u8>),
    /// Selected values, little-endian.
    Selected(Vec<u8>),
}

/// Result of a reduction of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduced {
    /// Type of the result's values.
    pub dtype: Dtype,
    /// Shape of the result; empty for a single value.
    pub shape: Vec<u64>,
    /// Values of the result, little-endian.
    pub bytes: Vec<u8>,
    /// Number of array values in each result value; one number for all values if they were selected.
    pub counts: Vec<i64>,
}

impl StateCells {
    /// Returns the number of bytes for each cell of a result.
    pub(super) fn bytes_each(spec: &ArraySpec) -> usize {
        let counted = 8;
        match spec.operation {
            ArrayOperation::Select => spec.dtype.size(),
            ArrayOperation::Count => counted,
            ArrayOperation::Min | ArrayOperation::Max => counted + spec.dtype.size(),
            ArrayOperation::Sum => counted + size_of::<Compensated>(),
        }
    }
}

impl ArrayState {
    /// Merges the state of another piece of the same array.
    ///
    /// # Errors
    /// If the other state belongs to another reduction, or if values were selected and not reduced.
    pub fn merge(&mut self, other: &Self) -> Result<(), ArrayError> {
        let same = self.operation == other.operation
            && self.dtype == other.dtype
            && self.shape == other.shape
            && self.counts.len() == other.counts.len();
        if !same {
            return Err(ArrayError::OtherReduction);
        }
        match (&mut self.cells, &other.cells) {
            (StateCells::Counted, StateCells::Counted) => {}
            (StateCells::Whole(own), StateCells::Whole(more)) if own.len() == more.len() => {
                let both = own.iter_mut().zip(more);
                both.for_each(|(own, more)| *own = own.wrapping_add(*more));
            }
            (StateCells::Rounded(own), StateCells::Rounded(more)) if own.len() == more.len() => {
                for (own, (sum, lost)) in own.iter_mut().zip(more) {
                    let (total, small) = add_compensated(*own, *sum);
                    *own = (total, small + lost);
                }
            }
            (StateCells::Extreme(own), StateCells::Extreme(more)) if own.len() == more.len() => {
                let max = self.operation == ArrayOperation::Max;
                with_type!(self.dtype, T => better::<T>(own, more, max));
            }
            _ => return Err(ArrayError::OtherReduction),
        }
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
        Ok(())
    }

    /// Returns the values of the result.
    #[must_use]
    pub fn finish(self) -> Reduced {
        let Self {
            operation,
            mut dtype,
            shape,
            counts,
            cells,
        } = self;
        let size = dtype.size();
        let bytes = match cells {
            StateCells::Counted => {
                dtype = Dtype::Int64;
                counts
                    .iter()
                    .flat_map(|count| count.to_le_bytes())
                    .collect()
            }
            // Sums wrap as the type does.
            StateCells::Whole(sums) => {
                let low = |sum: u64| sum.to_le_bytes().into_iter().take(size);
                sums.into_iter().flat_map(low).collect()
            }
            StateCells::Rounded(sums) => rounded(&sums, dtype),
            StateCells::Extreme(mut values) => {
                with_type!(dtype, T => of_none::<T>(&mut values, &counts, operation == ArrayOperation::Max));
                values
            }
            StateCells::Selected(values) => values,
        };
        Reduced {
            dtype,
            shape,
            bytes,
            counts,
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "it is rounded to the type of the array"
)]
fn rounded(sums: &[Compensated], dtype: Dtype) -> Vec<u8> {
    // The rounding error of an infinite sum is ignored.
    let total = |(sum, lost): &Compensated| if sum.is_finite() { sum + lost } else { *sum };
    let totals = sums.iter().map(total);
    match dtype {
        Dtype::Float32 => totals.flat_map(|sum| (sum as f32).to_le_bytes()).collect(),
        _ => totals.flat_map(f64::to_le_bytes).collect(),
    }
}

fn better<T: Adds>(own: &mut [u8], more: &[u8], max: bool) {
    for (own, more) in own
        .chunks_exact_mut(T::SIZE)
        .zip(more.chunks_exact(T::SIZE))
    {
        let (a, b) = (T::read(more), T::read(own));
        let best = if max {
            with_nan::<T, true>(a, b)
        } else {
            with_nan::<T, false>(a, b)
        };
        best.write(own);
    }
}

/// Sets the extremes of result values without array values: the opposite end of the type.
fn of_none<T: Adds>(values: &mut [u8], counts: &[i64], max: bool) {
    let none = if max { T::LEAST } else { T::MOST };
    for (value, count) in values.chunks_exact_mut(T::SIZE).zip(counts) {
        if *count == 0 {
            none.write(value);
        }
    }
}
