//! Statistics of all values, in one pass and in one fold for any set of requested statistics: `count`, `min`, `max`, `sum`, `mean`,
//! `stddev`, `linreg`, and `stats` for several.
//!
//! - **Sums of integers are exact**, of squares and of products with the index too, and each result is rounded once: `sum` is exact, `mean`
//!   and all three of `linreg` are the `f64` nearest to the true value, `stddev` is less than one unit in the last place from it.
//! - **Floats** are summed in blocks of 4096 values that begin at multiples of 4096, around a value of the block (or its mean), and the
//!   results of blocks are combined exactly. So results do not depend on how the input was cut: a fold keeps the bytes of incomplete
//!   blocks, which are none if pieces start and end at multiples of 32 KiB (`f64`) or 16 KiB (`f32`). With s the true standard deviation
//!   of the population: the error of `mean` is at most 320 × 2⁻⁵³ × s and half a unit in its last place, that of `sum` n times that, that
//!   of `stddev` at most 3 × 10⁻¹³ × s, whatever the mean is. Blocks with values that are missing or not finite are summed exactly.
//! - **NaN** makes `sum`, `mean`, `stddev` and `linreg` NaN. `max` and `min` ignore it, unless all values are NaN. Infinities make `sum`
//!   and `mean` infinite, or NaN if there are both, the others NaN.
//! - **`stddev`** is that of a population (`ddof=0`) unless `ddof=1` requests that of a sample.
//! - **`linreg`** fits value against index, from 0: slope, intercept, and r², which is NaN if all values are the same.

use std::collections::BTreeMap;
use std::io::Write;

use num_bigint::BigInt;
use serde::{Deserialize, Serialize};

use super::BuiltinError;
use super::table::{BuiltinKernel, FoldInput, KernelArgument, KernelConstructor, KernelOptions};
use super::values::{FORMAT, NumericResult, ORDER, OUT, Take, fold_of_dtype, missing};
use crate::exact_sums::{self, Exact, ratio};
use crate::fold::Fold;
use crate::loops::extremes::extremes;
use crate::loops::moments::centred::Centred;
use crate::loops::moments::{
    BLOCK, BLOCK_OF_PRODUCTS, BlockTotals, LimbSums, SumKinds, SummedBlocks,
};
use crate::loops::simd::Level;

const DDOF: &[KernelArgument] = &[KernelArgument {
    key: "ddof",
    values: "0|1",
    default: "0",
    help: "0: standard deviation of a population, 1: of a sample",
}];

const OF: &[KernelArgument] = &[KernelArgument {
    key: "of",
    values: "LIST",
    default: "count,min,max,mean,stddev",
    help: "statistics, separated by commas: count, min, max, sum, mean, stddev, linreg",
}];

macro_rules! kernel {
    ($name:literal, $revision:literal, $statistic:ident, $help:literal, $args:expr) => {
        BuiltinKernel {
            name: $name,
            revision: $revision,
            help: $help,
            args: $args,
            usage: None,
            prepare: None,
            code: KernelConstructor::Fold(FoldInput::Values, |options| {
                fold(options, vec![Statistic::$statistic], false)
            }),
        }
    };
}

/// Kernels for statistics, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[
    kernel!("count", 1, Count, "number of values", &[FORMAT, OUT, ORDER]),
    kernel!("max", 1, Max, "largest value", &[FORMAT, OUT, ORDER]),
    kernel!("min", 1, Min, "smallest value", &[FORMAT, OUT, ORDER]),
    kernel!("sum", 1, Sum, "sum of all values", &[FORMAT, OUT, ORDER]),
    kernel!("mean", 2, Mean, "mean of all values", &[FORMAT, OUT, ORDER]),
    kernel!(
        "stddev",
        2,
        Stddev,
        "standard deviation",
        &[FORMAT, OUT, DDOF, ORDER]
    ),
    kernel!(
        "linreg",
        2,
        Linreg,
        "slope, intercept and r² of the line through value against index",
        &[FORMAT, OUT, ORDER]
    ),
    BuiltinKernel {
        name: "stats",
        revision: 1,
        help: "several statistics in one pass, a line each: its name and its value",
        args: &[OF, FORMAT, OUT, DDOF, ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Fold(FoldInput::Values, |options| {
            let of = options.text("of").unwrap_or_default();
            let statistics: Option<Vec<_>> = of.split(',').map(Statistic::find).collect();
            let valid = "count, min, max, sum, mean, stddev, linreg, separated by commas";
            let statistics = statistics.ok_or_else(|| options.wrong("of", of, valid))?;
            fold(options, statistics, true)
        }),
    },
];

/// Statistic that a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistic {
    Count,
    Min,
    Max,
    Sum,
    Mean,
    Stddev,
    Linreg,
}

impl Statistic {
    const ALL: [(&'static str, Self); 7] = [
        ("count", Self::Count),
        ("min", Self::Min),
        ("max", Self::Max),
        ("sum", Self::Sum),
        ("mean", Self::Mean),
        ("stddev", Self::Stddev),
        ("linreg", Self::Linreg),
    ];

    fn find(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(known, _)| *known == name)
            .map(|(_, statistic)| statistic)
    }

    fn name(self) -> &'static str {
        let mut all = Self::ALL.into_iter();
        all.find(|(_, known)| *known == self)
            .map_or("", |(name, _)| name)
    }

    /// Returns the sums that the statistic needs; `None` if it needs none.
    fn want(self) -> Option<SumKinds> {
        match self {
            Self::Count | Self::Min | Self::Max => None,
            Self::Sum | Self::Mean => Some(SumKinds::Sum),
            Self::Stddev => Some(SumKinds::Squares),
            Self::Linreg => Some(SumKinds::Products),
        }
    }
}

fn fold(
    options: &KernelOptions,
    statistics: Vec<Statistic>,
    named: bool,
) -> Result<Box<dyn Fold>, BuiltinError> {
    let want = statistics
        .iter()
        .filter_map(|statistic| statistic.want())
        .max();
    let settings = StatisticsSettings {
        statistics,
        named,
        want,
        ddof: u64::from(options.is("ddof", "1")),
        raw: options.is("out", "f64"),
    };
    fold_of_dtype!(options, |T| {
        missing::<T>(options).map(|missing| Statistics::<T> {
            missing_value: missing,
            settings,
            ..Statistics::default()
        })
    })
}

/// Statistics that a run of a kernel computes.
#[derive(Debug, Default)]
struct StatisticsSettings {
    statistics: Vec<Statistic>,
    /// Whether the name of each statistic is written before its result.
    named: bool,
    want: Option<SumKinds>,
    ddof: u64,
    raw: bool,
}

/// Partial state of the requested statistics.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Statistics<T: SummedBlocks> {
    #[serde(skip)]
    settings: StatisticsSettings,
    #[serde(skip)]
    missing_value: Option<T>,
    /// Number of values so far, including missing values.
    count: u64,
    missing: u64,
    /// Sum of the indices of missing values; the next field is the sum of the squares of these indices.
    missing_index: u128,
    missing_index_squares: Exact,
    nan: u64,
    infinite: u64,
    minus_infinite: u64,
    extremes: Option<(T, T)>,
    /// Sum of values that are neither missing nor infinite nor NaN.
    sum: Exact,
    squares: Exact,
    products: Exact,
    /// Bytes of incomplete blocks, by block and by the index of the first value, if blocks must be complete.
    parts: BTreeMap<u64, BTreeMap<u64, Vec<u8>>>,
    #[serde(skip)]
    grid: i32,
    #[serde(skip)]
    sifted: Vec<u8>,
}

impl<T: SummedBlocks> Statistics<T> {
    fn extreme(&mut self, found: (T, T)) {
        self.extremes = Some(self.extremes.map_or(found, |known| {
            (found.0.smaller(known.0), found.1.larger(known.1))
        }));
    }

    /// Processes a block of values. All sums except those of products are added to `together`.
    fn block(&mut self, first: u64, values: &[u8], together: &mut BlockTotals) {
        let missing = self.missing_value.is_some_and(|missing| {
            let mut values = values.chunks_exact(T::SIZE);
            values.any(|value| T::read(value).same(missing))
        });
        if missing {
            return self.sift(first, values);
        }
        let level = Level::best();
        let Some(want) = self.settings.want else {
            if let Some(found) = extremes(level, values) {
                self.extreme(found);
            }
            return;
        };
        if !T::INTEGER {
            match T::centred(level, want, values) {
                Some(found) => self.centred(want, first, values.len() / T::SIZE, &found),
                None => self.sift(first, values),
            }
            return;
        }
        match T::moments(level, want, values, &mut self.grid) {
            Some(found) => {
                self.extreme((found.least, found.greatest));
                if want == SumKinds::Products {
                    found.sums.products(first, &mut self.products);
                }
                if let Some(sums) = together.add(&found.sums) {
                    self.add(want, &sums);
                }
            }
            None => self.sift(first, values),
        }
    }

    /// Adds the sums of a block around a centre; this step does not round.
    fn centred(&mut self, want: SumKinds, first: u64, count: usize, found: &Centred<T>) {
        self.extreme((found.least, found.greatest));
        let (centre, exponent) = exact_sums::parts(found.centre);
        let (distances, distances_exponent) = exact_sums::parts(found.distances);
        let (centre, distances, count) = (i128::from(centre), i128::from(distances), count as i128);
        self.sum.add(centre * count, exponent);
        self.sum.add(distances, distances_exponent);
        if want >= SumKinds::Squares {
            self.squares.add(centre * centre * count, 2 * exponent);
            self.squares
                .add(2 * centre * distances, exponent + distances_exponent);
            self.squares.add_f64(found.squares);
        }
        if want == SumKinds::Products {
            let first = i128::from(first);
            let indices = first * count + count * (count - 1) / 2;
            self.products.add(centre * indices, exponent);
            self.products.add(distances * first, distances_exponent);
            self.products.add_f64(found.products);
        }
    }

    /// Adds the sums of a block, except sums of products.
    fn add(&mut self, want: SumKinds, sums: &LimbSums) {
        sums.sum(&mut self.sum);
        if want >= SumKinds::Squares {
            sums.squares(&mut self.squares);
        }
    }

    /// Processes a block with values that are missing, infinite or NaN, or with magnitudes that are too far apart: counts the special
    /// values, and sums the block with zeros in their place.
    fn sift(&mut self, first: u64, values: &[u8]) {
        let mut sifted = std::mem::take(&mut self.sifted);
        sifted.clear();
        sifted.extend_from_slice(values);
        for (index, bytes) in (first..).zip(sifted.chunks_exact_mut(T::SIZE)) {
            let value = T::read(bytes);
            if self
                .missing_value
                .is_some_and(|missing| value.same(missing))
            {
                self.missing += 1;
                self.missing_index += u128::from(index);
                let index = i128::from(index);
                self.missing_index_squares.add(index * index, 0);
                bytes.fill(0);
                continue;
            }
            let number = value.to_f64();
            if number.is_nan() {
                self.nan += 1;
                bytes.fill(0);
                continue;
            }
            self.extreme((value, value));
            if number.is_infinite() {
                self.infinite += u64::from(number > 0.0);
                self.minus_infinite += u64::from(number < 0.0);
                bytes.fill(0);
            }
        }
        if let Some(want) = self.settings.want {
            self.sum_sifted(want, first, &sifted);
        }
        self.sifted = sifted;
    }

    fn sum_sifted(&mut self, want: SumKinds, first: u64, values: &[u8]) {
        if let Some(found) = T::moments(Level::best(), want, values, &mut self.grid) {
            self.add(want, &found.sums);
            if want == SumKinds::Products {
                found.sums.products(first, &mut self.products);
            }
            return;
        }
        // Only floats do not fit, and each of them is exactly an `f64`.
        for (index, bytes) in (first..).zip(values.chunks_exact(T::SIZE)) {
            let (mantissa, exponent) = exact_sums::parts(T::read(bytes).to_f64());
            let mantissa = i128::from(mantissa);
            self.sum.add(mantissa, exponent);
            if want >= SumKinds::Squares {
                self.squares.add(mantissa * mantissa, 2 * exponent);
            }
            if want >= SumKinds::Products {
                self.products.add(mantissa * i128::from(index), exponent);
            }
        }
    }

    /// Returns the number of values so far that are not missing.
    fn there(&self) -> u64 {
        self.count - self.missing
    }

    /// Returns the sum of the values if some of them are not finite.
    fn not_finite(&self) -> Option<f64> {
        match (self.nan, self.infinite, self.minus_infinite) {
            (0, 0, 0) => None,
            (0, _, 0) => Some(f64::INFINITY),
            (0, 0, _) => Some(f64::NEG_INFINITY),
            _ => Some(f64::NAN),
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "counts are given as f64 where asked"
    )]
    fn result(&self, statistic: Statistic) -> Result<NumericResult, BuiltinError> {
        let there = self.there();
        let needed = match statistic {
            Statistic::Count | Statistic::Sum => 0,
            Statistic::Stddev => self.settings.ddof + 1,
            Statistic::Linreg => 2,
            _ => 1,
        };
        if there == 0 && needed > 0 {
            return Err(BuiltinError::Empty);
        }
        if there < needed {
            let kernel = statistic.name();
            return Err(BuiltinError::TooFew { kernel, needed });
        }
        let extreme = |best: fn((T, T)) -> T| {
            let Some(best) = self.extremes.map(best) else {
                return NumericResult::floats(vec![f64::NAN]);
            };
            let values = vec![best.to_f64() + 0.0];
            let text = best.text();
            NumericResult { values, text }
        };
        Ok(match statistic {
            Statistic::Count => NumericResult {
                values: vec![there as f64],
                text: there.to_string(),
            },
            Statistic::Min => extreme(|(least, _)| least),
            Statistic::Max => extreme(|(_, greatest)| greatest),
            Statistic::Sum if T::INTEGER => NumericResult {
                values: vec![self.sum.value()],
                text: self.sum.whole().to_string(),
            },
            Statistic::Sum => {
                NumericResult::floats(vec![self.not_finite().unwrap_or_else(|| self.sum.value())])
            }
            Statistic::Mean => NumericResult::floats(vec![
                self.not_finite()
                    .unwrap_or_else(|| self.sum.value_over(&there.into())),
            ]),
            Statistic::Stddev => NumericResult::floats(vec![self.stddev()]),
            Statistic::Linreg => NumericResult::floats(self.linreg()),
        })
    }

    /// Returns `n * sum of squares - square of sum`, which is n² times the variance, in units of 2^-4352.
    fn scatter(&self) -> BigInt {
        let sum = self.sum.integer();
        ((self.squares.integer() * self.there()) << exact_sums::PLACES) - &sum * &sum
    }

    fn stddev(&self) -> f64 {
        if self.not_finite().is_some() {
            return f64::NAN;
        }
        let there = self.there();
        let divisor = BigInt::from(there) * (there - self.settings.ddof);
        exact_sums::root_of_ratio(&self.scatter(), &divisor, -2 * exact_sums::PLACES)
    }

    fn linreg(&self) -> Vec<f64> {
        if self.not_finite().is_some() {
            return vec![f64::NAN; 3];
        }
        let (all, there) = (BigInt::from(self.count), self.there());
        let last: BigInt = &all - 1;
        let index = &all * &last / 2 - self.missing_index;
        let index_squares = &all * &last * (&last + &all) / 6 - self.missing_index_squares.whole();
        let (sum, products) = (self.sum.integer(), self.products.integer());
        // n² times variance of the index, and covariance of index and value.
        let spread = &index_squares * there - &index * &index;
        let joint = &products * there - &index * &sum;
        let slope = ratio(&joint, &spread, -exact_sums::PLACES);
        let at_zero = &sum * &index_squares - &index * &products;
        let intercept = ratio(&at_zero, &spread, -exact_sums::PLACES);
        let determined = ratio(&(&joint * &joint), &(spread * self.scatter()), 0);
        vec![slope, intercept, determined]
    }
}

impl<T: SummedBlocks> Statistics<T> {
    /// Returns whether blocks must be complete, because the rounding of their sums depends on all of their values.
    fn anchored(&self) -> bool {
        !T::INTEGER && self.settings.want.is_some()
    }

    /// Processes values block by block. Blocks begin at multiples of their length; incomplete blocks are kept if blocks must be complete.
    fn blocks(&mut self, first: u64, mut values: &[u8]) {
        let most = if T::INTEGER && self.settings.want == Some(SumKinds::Products) {
            BLOCK_OF_PRODUCTS
        } else {
            BLOCK
        };
        let most_64 = most as u64;
        let mut together = BlockTotals::default();
        let mut index = first;
        while !values.is_empty() {
            let space = usize::try_from(most_64 - index % most_64).expect("a block has few values");
            let (block, rest) = values.split_at(values.len().min(space * T::SIZE));
            if self.anchored() && block.len() < most * T::SIZE {
                self.keep(index, block.to_vec());
            } else {
                self.block(index, block, &mut together);
            }
            index += (block.len() / T::SIZE) as u64;
            values = rest;
        }
        if let Some(want) = self.settings.want {
            self.add(want, &together.rest());
        }
    }

    /// Keeps a part of a block, or processes the block if all of its parts have arrived.
    fn keep(&mut self, first: u64, values: Vec<u8>) {
        let number = first / BLOCK as u64;
        let parts = self.parts.entry(number).or_default();
        parts.insert(first, values);
        if parts.values().map(Vec::len).sum::<usize>() == BLOCK * T::SIZE {
            let whole: Vec<u8> = parts.values().flatten().copied().collect();
            self.parts.remove(&number);
            self.block(number * BLOCK as u64, &whole, &mut BlockTotals::default());
        }
    }
}

impl<T: SummedBlocks> Take<T> for Statistics<T> {
    fn take(&mut self, first: u64, values: &[u8]) {
        self.count += (values.len() / T::SIZE) as u64;
        if self.settings.statistics != [Statistic::Count] || self.missing_value.is_some() {
            self.blocks(first, values);
        }
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.missing += other.missing;
        self.missing_index += other.missing_index;
        self.missing_index_squares
            .merge(&other.missing_index_squares);
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.minus_infinite += other.minus_infinite;
        if let Some(found) = other.extremes {
            self.extreme(found);
        }
        self.sum.merge(&other.sum);
        self.squares.merge(&other.squares);
        self.products.merge(&other.products);
        for (first, values) in other.parts.into_values().flatten() {
            self.keep(first, values);
        }
    }

    fn finish(mut self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        // Incomplete last block.
        for (number, parts) in std::mem::take(&mut self.parts) {
            let values: Vec<u8> = parts.into_values().flatten().collect();
            self.block(number * BLOCK as u64, &values, &mut BlockTotals::default());
        }
        for statistic in &self.settings.statistics {
            let mut numbers = self.result(*statistic)?;
            if self.settings.named {
                numbers.text = format!("{} {}", statistic.name(), numbers.text);
            }
            numbers.write(self.settings.raw, out)?;
        }
        Ok(())
    }
}
