//! The numeric kernels: `mean`, `max`, `min`, `stddev`, `linreg` over all inputs as one series.
//!
//! - **Sums.** Of integers they are exact. Of floats, blocks of 4096 values are added in lanes and the
//!   blocks with twice the precision: the error is at most 140 × 2⁻⁵³ times the sum of magnitudes, however
//!   long the series is. Blocks are counted over the whole series, so results are the same to the last bit
//!   however it is split into files, and whichever vector instructions the processor has.
//! - **NaN** makes the result of `mean`, `stddev` and `linreg` NaN. `max` and `min` pass over it, unless
//!   there is nothing else.
//! - **`stddev`** is that of a population (`ddof=0`) unless `ddof=1` asks for that of a sample.
//! - **`linreg`** fits value against index, from 0: slope, intercept, and r², which is NaN if all values
//!   are the same.

use std::marker::PhantomData;

use super::BuiltinError;
use super::series::{blocks, text_blocks};
use super::table::{Arg, Code, Kernel};
use super::values::{DTYPES, FORMAT, Numbers, OUT};
use crate::loops::number::{BlockMoments, Extreme, FloatSum, IntegerSum, Moments, Number};
use crate::loops::simd::{self, Level};

const DDOF: &[Arg] = &[Arg {
    key: "ddof",
    values: "0|1",
    default: "0",
    help: "0: of a population, 1: of a sample",
}];

macro_rules! kernel {
    ($name:literal, $statistic:ident, $help:literal, $args:expr) => {
        Kernel {
            name: $name,
            revision: 1,
            help: $help,
            args: $args,
            usage: None,
            code: Code::Whole(|options, inputs, out| {
                let ddof = u64::from(options.is("ddof", "1"));
                let dtype = options.text("dtype").unwrap_or_default();
                compute(Statistic::$statistic, inputs, dtype, ddof, Level::best())?
                    .write(options.is("out", "f64"), out)
            }),
        }
    };
}

/// This group's part of the table.
pub(super) const KERNELS: &[Kernel] = &[
    kernel!("mean", Mean, "mean of all values", &[FORMAT, OUT]),
    kernel!("max", Max, "largest value", &[FORMAT, OUT]),
    kernel!("min", Min, "smallest value", &[FORMAT, OUT]),
    kernel!("stddev", Stddev, "standard deviation", &[FORMAT, OUT, DDOF]),
    kernel!(
        "linreg",
        Linreg,
        "slope, intercept and r² of a line through value against index",
        &[FORMAT, OUT]
    ),
];

/// What to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statistic {
    Mean,
    Max,
    Min,
    Stddev,
    Linreg,
}

/// Independent sums of integers in one block.
const SUMS: usize = 64;

/// Computes `statistic` over all inputs as one series of `dtype`.
pub(crate) fn compute(
    statistic: Statistic,
    inputs: &[String],
    dtype: &str,
    ddof: u64,
    level: Level,
) -> Result<Numbers, BuiltinError> {
    let source = Source {
        inputs,
        text: dtype == "text",
    };
    match dtype {
        "f64" | "text" => source.compute::<f64>(statistic, ddof, level),
        "f32" => source.compute::<f32>(statistic, ddof, level),
        "i8" => source.compute::<i8>(statistic, ddof, level),
        "i16" => source.compute::<i16>(statistic, ddof, level),
        "i32" => source.compute::<i32>(statistic, ddof, level),
        "i64" => source.compute::<i64>(statistic, ddof, level),
        "u8" => source.compute::<u8>(statistic, ddof, level),
        "u16" => source.compute::<u16>(statistic, ddof, level),
        "u32" => source.compute::<u32>(statistic, ddof, level),
        "u64" => source.compute::<u64>(statistic, ddof, level),
        _ => Err(BuiltinError::Value {
            key: "dtype",
            value: dtype.to_owned(),
            valid: DTYPES.to_owned(),
        }),
    }
}

struct Source<'a> {
    inputs: &'a [String],
    text: bool,
}

impl Source<'_> {
    /// Folds all blocks, and gives the number of values, which is not 0.
    fn fold<T: Number>(&self, take: impl FnMut(&[u8])) -> Result<u64, BuiltinError> {
        let values = if self.text {
            text_blocks(self.inputs, take)
        } else {
            blocks(self.inputs, T::SIZE, take)
        }?;
        if values == 0 {
            Err(BuiltinError::Empty)
        } else {
            Ok(values)
        }
    }

    fn compute<T: Number>(
        &self,
        statistic: Statistic,
        ddof: u64,
        level: Level,
    ) -> Result<Numbers, BuiltinError> {
        match statistic {
            Statistic::Mean => self.mean::<T>(level),
            Statistic::Max => self.extreme_by_size::<T, true>(level),
            Statistic::Min => self.extreme_by_size::<T, false>(level),
            Statistic::Stddev => self.stddev::<T>(ddof, level),
            Statistic::Linreg => self.linreg::<T>(level),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "the result is rounded to f64")]
    fn mean<T: Number>(&self, level: Level) -> Result<Numbers, BuiltinError> {
        if T::INTEGER {
            let mut sum = 0_i128;
            let count = self.fold::<T>(|block| {
                sum += simd::run(level, IntegerSum::<T, SUMS>(block, PhantomData))
            })?;
            let (whole, part) = (sum / i128::from(count), sum % i128::from(count));
            return Ok(Numbers::floats(vec![
                whole as f64 + part as f64 / count as f64,
            ]));
        }
        let mut sum = DoubleSum::default();
        let count =
            self.fold::<T>(|block| sum.add(simd::run(level, FloatSum::<T>(block, PhantomData))))?;
        Ok(Numbers::floats(vec![sum.value() / count as f64]))
    }

    fn extreme_by_size<T: Number, const MAX: bool>(
        &self,
        level: Level,
    ) -> Result<Numbers, BuiltinError> {
        match T::SIZE {
            1 => self.extreme::<T, MAX, 256>(level),
            2 => self.extreme::<T, MAX, 128>(level),
            4 => self.extreme::<T, MAX, 64>(level),
            _ => self.extreme::<T, MAX, 64>(level),
        }
    }

    fn extreme<T: Number, const MAX: bool, const L: usize>(
        &self,
        level: Level,
    ) -> Result<Numbers, BuiltinError> {
        let mut best: Option<T> = None;
        self.fold::<T>(|block| {
            let Some(found) = simd::run(level, Extreme::<T, MAX, L>(block, PhantomData)) else {
                return;
            };
            let better = best.is_none_or(|best| if MAX { found > best } else { found < best });
            if better {
                best = Some(found);
            }
        })?;
        Ok(best.map_or_else(
            || Numbers::floats(vec![f64::NAN]),
            |best| Numbers {
                values: vec![best.to_f64() + 0.0],
                text: best.text(),
            },
        ))
    }

    fn moments<T: Number, const PRODUCTS: bool>(
        &self,
        level: Level,
    ) -> Result<Moments, BuiltinError> {
        let mut all = Moments::default();
        self.fold::<T>(|block| {
            all = join(
                all,
                simd::run(level, BlockMoments::<T, PRODUCTS>(block, PhantomData)),
            )
        })?;
        Ok(all)
    }

    #[allow(clippy::cast_precision_loss, reason = "ddof is small")]
    fn stddev<T: Number>(&self, ddof: u64, level: Level) -> Result<Numbers, BuiltinError> {
        let all = self.moments::<T, false>(level)?;
        if all.count <= ddof as f64 {
            return Err(BuiltinError::TooFew {
                kernel: "stddev",
                needed: ddof + 1,
            });
        }
        Ok(Numbers::floats(vec![
            (all.squares / (all.count - ddof as f64)).sqrt(),
        ]))
    }

    fn linreg<T: Number>(&self, level: Level) -> Result<Numbers, BuiltinError> {
        let all = self.moments::<T, true>(level)?;
        if all.count < 2.0 {
            return Err(BuiltinError::TooFew {
                kernel: "linreg",
                needed: 2,
            });
        }
        // Sum of squared distances of 0, 1, … n - 1 from their mean.
        let index_squares = all.count * (all.count * all.count - 1.0) / 12.0;
        let slope = all.products / index_squares;
        let intercept = all.mean - slope * (all.count - 1.0) / 2.0;
        let r2 = (all.products / index_squares) * (all.products / all.squares);
        Ok(Numbers::floats(vec![slope, intercept, r2]))
    }
}

/// Moments of two neighbouring parts of a series as one (Chan, Golub and LeVeque 1979).
fn join(a: Moments, b: Moments) -> Moments {
    if a.count == 0.0 {
        return b;
    }
    let count = a.count + b.count;
    let delta = b.mean - a.mean;
    let weight = a.count * (b.count / count);
    // The means of their indices are half of both lengths apart.
    let index_delta = count / 2.0;
    Moments {
        count,
        mean: a.mean + delta * (b.count / count),
        squares: a.squares + b.squares + delta * delta * weight,
        products: a.products + b.products + index_delta * delta * weight,
    }
}

/// A sum with twice the precision of `f64` (Knuth's two-sum).
#[derive(Clone, Copy, Debug, Default)]
struct DoubleSum {
    high: f64,
    low: f64,
}

impl DoubleSum {
    fn add(&mut self, value: f64) {
        let sum = self.high + value;
        let back = sum - self.high;
        self.low += (self.high - (sum - back)) + (value - back);
        self.high = sum;
    }

    fn value(self) -> f64 {
        // Infinity and NaN leave no meaningful error term.
        if self.high.is_finite() {
            self.high + self.low
        } else {
            self.high
        }
    }
}
