//! Walks over an array and adds each block to the result.

use super::error::ArrayError;
use super::pass::{self, Adds, Compensated, ValueRule};
use super::plan::{ArrayWalk, WalkDimension, literal};
use super::state::{ArrayState, StateCells};
use super::values::{BLOCK, RawValues};
use super::{ArrayOperation, ArraySpec, Missing, with_type};
use crate::loops::number::{Number, bytes_of};
use crate::loops::simd::Level;
use std::marker::PhantomData;

/// Destination of the values of an array: the cells of a result.
trait ValueSink<T> {
    /// Returns the value that stands for missing values.
    fn neutral(&self) -> T;
    /// Adds all values of a block to the result's cell `cell`.
    fn all(&mut self, level: Level, cell: usize, block: &[u8]);
    /// Adds each value of a block to a separate cell, from `cell` on.
    fn each(&mut self, level: Level, cell: usize, block: &[u8]);
    fn cells(self: Box<Self>) -> StateCells;
}

pub(super) fn fold(walk: &ArrayWalk<'_>, values: &RawValues<'_>) -> Result<ArrayState, ArrayError> {
    with_type!(walk.spec.dtype, T => fold_as::<T>(walk, values))
}

fn fold_as<T: SumValue>(
    walk: &ArrayWalk<'_>,
    values: &RawValues<'_>,
) -> Result<ArrayState, ArrayError> {
    let spec = walk.spec;
    let sink: Box<dyn ValueSink<T>> = match spec.operation {
        ArrayOperation::Count => Box::new(CountSink),
        _ if keeps_values(spec) => {
            Box::new(SelectSink::<T>(vec![0; walk.cells * T::SIZE], PhantomData))
        }
        ArrayOperation::Sum => T::summing(walk.cells),
        ArrayOperation::Min => Box::new(ExtremeSink::<T, false>(vec![T::HIGHEST; walk.cells])),
        _ => Box::new(ExtremeSink::<T, true>(vec![T::LOWEST; walk.cells])),
    };
    let counts = match spec.operation {
        ArrayOperation::Select => vec![0; 1],
        _ => vec![0; walk.cells],
    };
    let mut fold = ArrayFold {
        level: Level::best(),
        keep: keep(spec)?,
        keeps_values: keeps_values(spec),
        one_count: spec.operation == ArrayOperation::Select,
        sink,
        counts,
        buffers: Default::default(),
    };
    fold.walk(walk, values);
    Ok(ArrayState {
        operation: spec.operation,
        dtype: spec.dtype,
        shape: walk.shape.clone(),
        counts: fold.counts,
        cells: fold.sink.cells(),
    })
}

/// Returns whether the result contains unchanged values of the array, including missing ones. This is also true of a reduction over no
/// axes.
fn keeps_values(spec: &ArraySpec) -> bool {
    match spec.operation {
        ArrayOperation::Select => true,
        ArrayOperation::Count => false,
        _ => spec.axes.as_ref().is_some_and(Vec::is_empty),
    }
}

fn keep<T: Number>(spec: &ArraySpec) -> Result<ValueRule<T>, ArrayError> {
    // If one number describes all values, NaN is outside the range of valid values; elsewhere NaN is not missing.
    let nan_is_missing = match spec.operation {
        ArrayOperation::Select => true,
        ArrayOperation::Count => spec.axes.is_none(),
        _ => false,
    };
    Ok(match &spec.missing {
        None => ValueRule::All,
        Some(Missing::Values(missing)) => match missing.as_slice() {
            [one] => ValueRule::Not(literal(spec, *one)?),
            many => {
                let many = many.iter().map(|one| literal(spec, *one));
                ValueRule::NoneOf(many.collect::<Result<_, _>>()?)
            }
        },
        Some(Missing::Outside(least, most)) => {
            let least = least.map(|least| literal(spec, least)).transpose()?;
            let most = most.map(|most| literal(spec, most)).transpose()?;
            let range = (least.unwrap_or(T::LOWEST), most.unwrap_or(T::HIGHEST));
            match nan_is_missing && !T::INTEGER {
                true => ValueRule::Valid(range.0, range.1),
                false => ValueRule::Within(range.0, range.1),
            }
        }
    })
}

struct ArrayFold<T> {
    level: Level,
    keep: ValueRule<T>,
    keeps_values: bool,
    one_count: bool,
    sink: Box<dyn ValueSink<T>>,
    counts: Vec<i64>,
    buffers: [Vec<u8>; 3],
}

impl<T: Number> ArrayFold<T> {
    fn walk(&mut self, walk: &ArrayWalk<'_>, values: &RawValues<'_>) {
        let empty = walk
            .dimensions
            .iter()
            .any(|dimension| dimension.length == 0);
        let Some((inner, outer)) = walk.dimensions.split_last().filter(|_| !empty) else {
            return;
        };
        let mut at = vec![0_usize; outer.len()];
        let (mut value, mut cell) = (walk.first.cast_signed(), 0_isize);
        loop {
            self.row(inner, values, (value, cell));
            let mut place = outer.len();
            loop {
                let Some(slower) = place.checked_sub(1) else {
                    return;
                };
                place = slower;
                let (step, cells) = (outer[place].step, outer[place].cells.unwrap_or(0));
                if at[place] + 1 < outer[place].length {
                    at[place] += 1;
                    (value, cell) = (value + step, cell + cells);
                    break;
                }
                // This dimension starts again, and the next slower one continues.
                let back = std::mem::take(&mut at[place]).cast_signed();
                (value, cell) = (value - back * step, cell - back * cells);
            }
        }
    }

    fn row(
        &mut self,
        inner: &WalkDimension,
        values: &RawValues<'_>,
        (mut value, mut cell): (isize, isize),
    ) {
        let at_once = (BLOCK - 1) / inner.step.unsigned_abs().max(1) + 1;
        let mut left = inner.length;
        let [mut read, mut picked, masked] = std::mem::take(&mut self.buffers);
        self.buffers[2] = masked;
        while left > 0 {
            let count = left.min(at_once);
            let block = gather::<T>(values, value, (inner.step, count), &mut read, &mut picked);
            self.block(block, cell, inner.cells);
            left -= count;
            if left > 0 {
                value += count.cast_signed() * inner.step;
                cell += count.cast_signed() * inner.cells.unwrap_or(0);
            }
        }
        [self.buffers[0], self.buffers[1]] = [read, picked];
    }

    /// Adds the values of a block to cells that are `cells` apart in the result, or all to one cell.
    fn block(&mut self, block: &[u8], cell: isize, cells: Option<isize>) {
        let (count, cell) = (block.len() / T::SIZE, cell.unsigned_abs());
        let mut buffer = std::mem::take(&mut self.buffers[2]);
        let (mut values, mut kept) = (block, count as u64);
        if self.keep != ValueRule::All {
            buffer.resize(BLOCK * T::SIZE, 0);
            let masked = &mut buffer[..block.len()];
            kept = pass::mask(self.level, block, &self.keep, self.sink.neutral(), masked);
            if !self.keeps_values {
                values = masked;
            }
        }
        match cells {
            None => {
                self.sink.all(self.level, cell, values);
                self.counts[cell] += kept.cast_signed();
            }
            Some(1) => {
                self.sink.each(self.level, cell, values);
                self.count_each(block, cell, kept);
            }
            Some(apart) => {
                let pairs = values
                    .chunks_exact(T::SIZE)
                    .zip(block.chunks_exact(T::SIZE));
                for (place, (value, before)) in pairs.enumerate() {
                    let cell = cell.wrapping_add_signed(place.cast_signed() * apart);
                    self.sink.each(self.level, cell, value);
                    if !self.one_count {
                        pass::count_each(before, &self.keep, &mut self.counts[cell..=cell]);
                    }
                }
                if self.one_count {
                    self.counts[0] += kept.cast_signed();
                }
            }
        }
        self.buffers[2] = buffer;
    }

    fn count_each(&mut self, block: &[u8], cell: usize, kept: u64) {
        match self.one_count {
            true => self.counts[0] += kept.cast_signed(),
            false => {
                let counts = &mut self.counts[cell..][..block.len() / T::SIZE];
                pass::count_each(block, &self.keep, counts);
            }
        }
    }
}

/// Collects values that are `step` apart in memory into a contiguous block.
fn gather<'a, T: Number>(
    values: &'a RawValues<'_>,
    first: isize,
    (step, count): (isize, usize),
    read: &'a mut Vec<u8>,
    picked: &'a mut Vec<u8>,
) -> &'a [u8] {
    let (apart, size) = (step.unsigned_abs(), T::SIZE);
    let span = (count - 1) * apart + 1;
    let low = if step < 0 {
        first.unsigned_abs() + 1 - span
    } else {
        first.unsigned_abs()
    };
    let block = values.block(low, span, read);
    if step == 1 || count == 1 {
        return block;
    }
    picked.resize(BLOCK * size, 0);
    for (place, to) in picked.chunks_exact_mut(size).take(count).enumerate() {
        let from = if step < 0 { count - 1 - place } else { place } * apart;
        to.copy_from_slice(&block[from * size..][..size]);
    }
    &picked[..count * size]
}

struct CountSink;

impl<T: Number> ValueSink<T> for CountSink {
    fn neutral(&self) -> T {
        T::default()
    }
    fn all(&mut self, _: Level, _: usize, _: &[u8]) {}
    fn each(&mut self, _: Level, _: usize, _: &[u8]) {}
    fn cells(self: Box<Self>) -> StateCells {
        StateCells::Counted
    }
}

struct SelectSink<T>(Vec<u8>, PhantomData<T>);

impl<T: Number> ValueSink<T> for SelectSink<T> {
    fn neutral(&self) -> T {
        T::default()
    }
    fn all(&mut self, level: Level, cell: usize, block: &[u8]) {
        self.each(level, cell, block);
    }
    fn each(&mut self, _: Level, cell: usize, block: &[u8]) {
        self.0[cell * T::SIZE..][..block.len()].copy_from_slice(block);
    }
    fn cells(self: Box<Self>) -> StateCells {
        StateCells::Selected(self.0)
    }
}

struct ExtremeSink<T, const MAX: bool>(Vec<T>);

impl<T: Number, const MAX: bool> ValueSink<T> for ExtremeSink<T, MAX> {
    fn neutral(&self) -> T {
        pass::worst::<T, MAX>()
    }
    fn all(&mut self, level: Level, cell: usize, block: &[u8]) {
        let (best, nan) = pass::extreme::<T, MAX>(level, block);
        // This is rare, and any NaN is correct.
        let nan = nan.then(|| first_nan::<T>(block)).flatten();
        self.0[cell] = pass::with_nan::<T, MAX>(nan.unwrap_or(best), self.0[cell]);
    }
    fn each(&mut self, level: Level, cell: usize, block: &[u8]) {
        pass::extreme_each::<T, MAX>(level, block, &mut self.0[cell..][..block.len() / T::SIZE]);
    }
    fn cells(self: Box<Self>) -> StateCells {
        StateCells::Extreme(bytes_of(&self.0).to_vec())
    }
}

#[allow(clippy::eq_op, reason = "only NaN is not itself")]
fn first_nan<T: Number>(block: &[u8]) -> Option<T> {
    block
        .chunks_exact(T::SIZE)
        .map(T::read)
        .find(|value| value != value)
}

/// Type with sums.
trait SumValue: Adds {
    fn summing(cells: usize) -> Box<dyn ValueSink<Self>>;
}

struct IntegerSums(Vec<u64>);
struct Rounded(Vec<Compensated>);

impl<T: Adds<Sum = u64>> ValueSink<T> for IntegerSums {
    fn neutral(&self) -> T {
        T::default()
    }
    fn all(&mut self, level: Level, cell: usize, block: &[u8]) {
        self.0[cell] = self.0[cell].wrapping_add(pass::sum::<T>(level, block));
    }
    fn each(&mut self, level: Level, cell: usize, block: &[u8]) {
        pass::add_each::<T>(level, block, &mut self.0[cell..][..block.len() / T::SIZE]);
    }
    fn cells(self: Box<Self>) -> StateCells {
        StateCells::Whole(self.0)
    }
}

impl<T: Adds<Sum = f64>> ValueSink<T> for Rounded {
    fn neutral(&self) -> T {
        T::default()
    }
    fn all(&mut self, level: Level, cell: usize, block: &[u8]) {
        let (sum, lost) = match T::SIZE {
            8 => pass::sum_compensated::<T>(level, block),
            _ => (pass::sum::<T>(level, block), 0.0),
        };
        let (sum, more) = pass::add_compensated(self.0[cell], sum);
        self.0[cell] = (sum, more + lost);
    }
    fn each(&mut self, level: Level, cell: usize, block: &[u8]) {
        pass::add_each_float::<T>(level, block, &mut self.0[cell..][..block.len() / T::SIZE]);
    }
    fn cells(self: Box<Self>) -> StateCells {
        StateCells::Rounded(self.0)
    }
}

macro_rules! summed {
    ($sink:ident of $none:expr; $($type:ty),*) => {
        $(impl SumValue for $type {
            fn summing(cells: usize) -> Box<dyn ValueSink<Self>> {
                Box::new($sink(vec![$none; cells]))
            }
        })*
    };
}
summed!(IntegerSums of 0; i8, i16, i32, i64, u8, u16, u32, u64);
summed!(Rounded of (0.0, 0.0); f32, f64);
