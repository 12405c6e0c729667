//! What has been found so far, and the values that come of it.

use super::error::ArrayError;
use super::pass::{Adds, Compensated, add_compensated, with_nan};
use super::{Dtype, Operation, Spec, with_type};
use serde::{Deserialize, Serialize};

/// What is known of each value of a result. States of pieces of one array merge.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    pub(super) operation: Operation,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    /// Of each value of the result, or of all together where values are selected.
    pub(super) counts: Vec<i64>,
    pub(super) cells: Cells,
}

/// One for each value of the result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Cells {
    /// The counts are the values.
    Counted,
    /// Sums of integers, modulo 2^64.
    Whole(Vec<u64>),
    /// Sums of floats, and what was lost in rounding them.
    Rounded(Vec<Compensated>),
    /// Little-endian values, which are smallest or largest ones.
    Extreme(Vec<u8>),
    /// Little-endian values.
    Selected(Vec<u8>),
}

/// A result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduced {
    /// The type of its values.
    pub dtype: Dtype,
    /// Its dimensions; none if it is one value.
    pub shape: Vec<u64>,
    /// Its values, little-endian.
    pub bytes: Vec<u8>,
    /// How many values each is made of; one number for all if they were selected.
    pub counts: Vec<i64>,
}

impl Cells {
    /// Bytes that are held for each cell of a result.
    pub(super) fn bytes_each(spec: &Spec) -> usize {
        let counted = 8;
        match spec.operation {
            Operation::Select => spec.dtype.size(),
            Operation::Count => counted,
            Operation::Min | Operation::Max => counted + spec.dtype.size(),
            Operation::Sum => counted + size_of::<Compensated>(),
        }
    }
}

impl State {
    /// Adds what was found in another piece of the same array.
    ///
    /// # Errors
    /// If that is of another reduction, or values were selected rather than reduced.
    pub fn merge(&mut self, other: &Self) -> Result<(), ArrayError> {
        let same = self.operation == other.operation
            && self.dtype == other.dtype
            && self.shape == other.shape
            && self.counts.len() == other.counts.len();
        if !same {
            return Err(ArrayError::OtherReduction);
        }
        match (&mut self.cells, &other.cells) {
            (Cells::Counted, Cells::Counted) => {}
            (Cells::Whole(own), Cells::Whole(more)) if own.len() == more.len() => {
                let both = own.iter_mut().zip(more);
                both.for_each(|(own, more)| *own = own.wrapping_add(*more));
            }
            (Cells::Rounded(own), Cells::Rounded(more)) if own.len() == more.len() => {
                for (own, (sum, lost)) in own.iter_mut().zip(more) {
                    let (total, small) = add_compensated(*own, *sum);
                    *own = (total, small + lost);
                }
            }
            (Cells::Extreme(own), Cells::Extreme(more)) if own.len() == more.len() => {
                let max = self.operation == Operation::Max;
                with_type!(self.dtype, T => better::<T>(own, more, max));
            }
            _ => return Err(ArrayError::OtherReduction),
        }
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
        Ok(())
    }

    /// The values.
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
            Cells::Counted => {
                dtype = Dtype::Int64;
                counts
                    .iter()
                    .flat_map(|count| count.to_le_bytes())
                    .collect()
            }
            // As the type wraps.
            Cells::Whole(sums) => {
                let low = |sum: u64| sum.to_le_bytes().into_iter().take(size);
                sums.into_iter().flat_map(low).collect()
            }
            Cells::Rounded(sums) => rounded(&sums, dtype),
            Cells::Extreme(mut values) => {
                with_type!(dtype, T => of_none::<T>(&mut values, &counts, operation == Operation::Max));
                values
            }
            Cells::Selected(values) => values,
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
    // What is lost in infinity is none.
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

/// What is the extreme of no values at all: the other end of the type.
fn of_none<T: Adds>(values: &mut [u8], counts: &[i64], max: bool) {
    let none = if max { T::LEAST } else { T::MOST };
    for (value, count) in values.chunks_exact_mut(T::SIZE).zip(counts) {
        if *count == 0 {
            none.write(value);
        }
    }
}
