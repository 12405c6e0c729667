//! Distribution of values: `histogram`, `quantile` and `median`. NaN has no place in an order, so NaN is counted separately, or skipped.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::series::{self, SeriesInputs};
use super::table::{BuiltinKernel, FoldInput, KernelArgument, KernelConstructor, KernelOptions};
use super::values::{FORMAT, NumericResult, ORDER, OUT, Take, fold_of_dtype, missing, of_dtype};
use super::{BuiltinError, run_builtin};
use crate::fold::Fold;
use crate::loops::number::{Number, decimal};
use crate::loops::pick::{self, ValueRange};
use crate::loops::simd::Level;
use crate::loops::swap;

const HISTOGRAM: &[KernelArgument] = &[
    KernelArgument {
        key: "bins",
        values: "N",
        default: "10",
        help: "number of bins, which have equal width",
    },
    KernelArgument {
        key: "from",
        values: "NUMBER",
        default: "",
        help: "start of the first bin (the default is the smallest value; required for pieces)",
    },
    KernelArgument {
        key: "to",
        values: "NUMBER",
        default: "",
        help: "end of the last bin, inclusive (the default is the largest value; required for pieces)",
    },
];

const QUANTILE: &[KernelArgument] = &[KernelArgument {
    key: "q",
    values: "LIST",
    default: "0.25,0.5,0.75",
    help: "quantiles from 0 to 1, separated by commas",
}];

const METHOD: &[KernelArgument] = &[KernelArgument {
    key: "method",
    values: "linear|lower|higher",
    default: "linear",
    help: "result between two values: interpolated, the lower, or the higher",
}];

/// Kernels `histogram`, `quantile` and `median`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[
    BuiltinKernel {
        name: "histogram",
        revision: 1,
        help: "number of values in each bin: a line each with its start, its end and the count; then below, above and nan",
        args: &[HISTOGRAM, FORMAT, OUT, ORDER],
        usage: None,
        prepare: Some(whole_range),
        code: KernelConstructor::Fold(FoldInput::Values, histogram),
    },
    BuiltinKernel {
        name: "median",
        revision: 1,
        help: "the middle value, exactly",
        args: &[FORMAT, OUT, METHOD, ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Whole(|options, inputs, out| {
            quantiles(options, inputs, &[0.5], out)
        }),
    },
    BuiltinKernel {
        name: "quantile",
        revision: 1,
        help: "quantiles, exactly, in one line",
        args: &[QUANTILE, FORMAT, OUT, METHOD, ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Whole(|options, inputs, out| {
            let text = options.text("q").unwrap_or_default();
            let number = |word: &str| word.parse().ok().filter(|q| (0.0..=1.0).contains(q));
            let wanted: Option<Vec<f64>> = text.split(',').map(number).collect();
            let wanted = wanted.ok_or_else(|| {
                options.wrong("q", text, "numbers from 0 to 1, separated by commas")
            })?;
            quantiles(options, inputs, &wanted, out)
        }),
    },
];

/// Maximum number of bins of a histogram.
const BINS_MAX: usize = 1 << 24;

/// Sets `from` and `to` to the smallest and the largest value of the inputs, if these arguments were not given.
fn whole_range(options: &mut KernelOptions, inputs: &[String]) -> Result<(), BuiltinError> {
    if options.text("from").is_some() && options.text("to").is_some() {
        return Ok(());
    }
    let mut args = vec!["of=min,max".to_owned(), "out=f64".to_owned()];
    for key in ["dtype", "order", "missing", "threads"] {
        args.extend(options.text(key).map(|value| format!("{key}={value}")));
    }
    let mut found = Vec::new();
    run_builtin("stats", &args, inputs, &mut found)?;
    let mut ends = found
        .as_chunks::<8>()
        .0
        .iter()
        .map(|end| f64::from_le_bytes(*end));
    let (least, greatest) = (
        ends.next().unwrap_or(f64::NAN),
        ends.next().unwrap_or(f64::NAN),
    );
    let apart = if least < greatest { 0.0 } else { 0.5 };
    options.set("from", decimal(least - apart));
    options.set("to", decimal(greatest + apart));
    Ok(())
}

fn histogram(options: &KernelOptions) -> Result<Box<dyn Fold>, BuiltinError> {
    let bins = options.number("bins", "a whole number")?.unwrap_or(1);
    if !(1..=BINS_MAX).contains(&bins) {
        let given = options.text("bins").unwrap_or_default();
        return Err(options.wrong("bins", given, "1 to 16777216"));
    }
    let end = |key| -> Result<f64, BuiltinError> {
        let valid = "a finite number";
        let number = options.needed(key, options.number::<f64>(key, valid)?)?;
        let text = options.text(key).unwrap_or_default();
        let finite = Some(number).filter(|number| number.is_finite());
        finite.ok_or_else(|| options.wrong(key, text, valid))
    };
    let (from, to) = (end("from")?, end("to")?);
    if from >= to || !(to - from).is_finite() {
        let text = options.text("to").unwrap_or_default();
        return Err(options.wrong("to", text, &format!("a number above from={from}")));
    }
    let raw = options.is("out", "f64");
    fold_of_dtype!(options, |T| {
        missing::<T>(options).map(|missing| {
            let mut histogram = Histogram::<T> {
                raw,
                missing,
                counts: vec![0; bins],
                ..Histogram::default()
            };
            histogram.range(from, to, bins);
            histogram
        })
    })
}

/// Counts of values in bins. Bin `i` contains values that are at least `edges[i]` and below `edges[i + 1]`; the last bin also contains
/// its upper edge.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Histogram<T: Number> {
    #[serde(skip)]
    raw: bool,
    #[serde(skip)]
    missing: Option<T>,
    #[serde(skip)]
    edges: Vec<f64>,
    #[serde(skip)]
    bins_per_unit: f64,
    counts: Vec<u64>,
    below: u64,
    above: u64,
    nan: u64,
}

impl<T: Number> Histogram<T> {
    #[allow(clippy::cast_precision_loss, reason = "there are at most 2^24 bins")]
    fn range(&mut self, from: f64, to: f64, bins: usize) {
        let width = (to - from) / bins as f64;
        self.edges = (0..bins).map(|bin| from + bin as f64 * width).collect();
        self.edges.push(to);
        self.bins_per_unit = bins as f64 / (to - from);
    }

    /// Returns the bin of a value that is in the range.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is in the range"
    )]
    #[inline]
    fn bin(&self, value: f64) -> usize {
        let last = self.counts.len() - 1;
        let bin = (((value - self.edges[0]) * self.bins_per_unit) as usize).min(last);
        // Rounding may have chosen the neighbour of the right bin.
        if value < self.edges[bin] {
            bin - 1
        } else if bin < last && value >= self.edges[bin + 1] {
            bin + 1
        } else {
            bin
        }
    }
}

impl<T: Number> Take<T> for Histogram<T> {
    fn take(&mut self, _: u64, values: &[u8]) {
        let (from, to) = (self.edges[0], self.edges[self.counts.len()]);
        for value in values.chunks_exact(T::SIZE) {
            let value = T::read(value);
            if self.missing.is_some_and(|missing| value.same(missing)) {
                continue;
            }
            let number = value.to_f64();
            if number >= from && number <= to {
                let bin = self.bin(number);
                self.counts[bin] += 1;
            } else if number < from {
                self.below += 1;
            } else if number > to {
                self.above += 1;
            } else {
                self.nan += 1;
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.below += other.below;
        self.above += other.above;
        self.nan += other.nan;
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "counts are given as f64 where asked"
    )]
    fn finish(self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        if self.raw {
            let mut counts = self.counts.iter();
            return counts
                .try_for_each(|count| out.write_all(&(*count as f64).to_le_bytes()))
                .map_err(BuiltinError::Write);
        }
        let mut text = String::new();
        for (edges, count) in self.edges.windows(2).zip(&self.counts) {
            text.push_str(&format!(
                "{} {} {count}\n",
                decimal(edges[0]),
                decimal(edges[1])
            ));
        }
        text.push_str(&format!(
            "below {}\nabove {}\nnan {}\n",
            self.below, self.above, self.nan
        ));
        out.write_all(text.as_bytes()).map_err(BuiltinError::Write)
    }
}

fn quantiles(
    options: &KernelOptions,
    inputs: &[String],
    wanted: &[f64],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let numbers = of_dtype!(options, |T| {
        OrderStatistics::<T>::new(options, inputs).map(|order| order.quantiles(wanted, options))
    })?;
    numbers.write(options.is("out", "f64"), out)
}

/// Number of bytes of values that are processed at a time.
const BLOCK_BYTES: usize = 16 << 10;

/// Number of values in the sample that estimates the position of a quantile.
const SAMPLED: usize = 20_000;

/// Maximum number of values near a quantile that are kept and sorted.
const KEPT_MAX: usize = 8 << 20;

/// All values of the inputs, to find some of them by their place in the order.
struct OrderStatistics<T> {
    files: Vec<SeriesInputs>,
    big_endian: bool,
    missing: Option<T>,
    /// Number of values that are neither NaN nor missing.
    count: u64,
}

/// Results of a pass over all values for a range.
#[derive(Debug, Default)]
struct RangePass {
    /// Number of values below the given range.
    below: u64,
    /// Number of values in the given range.
    within: u64,
    /// Values in the given range as ordered integers: all of them, or about the first [`KEPT_MAX`].
    kept: Vec<u64>,
}

impl<T: Number> OrderStatistics<T> {
    fn new(options: &KernelOptions, inputs: &[String]) -> Result<Self, BuiltinError> {
        let mut order = Self {
            files: series::memory(inputs, options)?,
            big_endian: options.is("order", "big") && !options.is("dtype", "text"),
            missing: missing(options)?,
            count: 0,
        };
        let mut count = 0;
        order.blocks(|block| count += pick::count(Level::best(), block, ValueRange::<T>::all()));
        if let Some(missing) = order.missing {
            let range = ValueRange {
                from: missing,
                to: missing,
            };
            order.blocks(|block| count -= pick::count(Level::best(), block, range));
        }
        order.count = count;
        if count == 0 {
            return Err(BuiltinError::Empty);
        }
        Ok(order)
    }

    /// Passes all values to `take` in blocks, little-endian.
    fn blocks(&self, mut take: impl FnMut(&[u8])) {
        let mut swapped = vec![0; BLOCK_BYTES];
        for block in self.files.iter().flat_map(|file| file.chunks(BLOCK_BYTES)) {
            if self.big_endian {
                let swapped = &mut swapped[..block.len()];
                swap::swap(block, swapped, T::SIZE);
                take(swapped);
            } else {
                take(block);
            }
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in the order is at least 0 and at most the count"
    )]
    fn quantiles(&self, wanted: &[f64], options: &KernelOptions) -> NumericResult {
        let exact = |value: T| NumericResult {
            values: vec![value.to_f64() + 0.0],
            text: value.text(),
        };
        let mut all = Vec::new();
        for q in wanted {
            let place = q * (self.count - 1) as f64;
            let low = self.at((place.floor() as u64).min(self.count - 1));
            let part = place - place.floor();
            all.push(if part <= 0.0 || options.is("method", "lower") {
                exact(low)
            } else {
                let high = self.after(low, (place.ceil() as u64).min(self.count - 1));
                if low.same(high) || options.is("method", "higher") {
                    exact(high)
                } else {
                    let (low, high) = (low.to_f64(), high.to_f64());
                    NumericResult::floats(vec![low * (1.0 - part) + high * part])
                }
            });
        }
        let texts: Vec<_> = all.iter().map(|one| one.text.clone()).collect();
        NumericResult {
            text: texts.join(" "),
            values: all.into_iter().flat_map(|one| one.values).collect(),
        }
    }

    /// Returns the value at `place` of the order, from 0. Estimates a range from a sample, counts all values below the range and keeps the
    /// values in it, and estimates a range again unless few values were kept.
    fn at(&self, place: u64) -> T {
        let (mut from, mut to) = (T::LOWEST.ordered(), T::HIGHEST.ordered());
        let mut guess = near(self.sample(), place, self.count);
        loop {
            let pass = self.pass(ValueRange {
                from: T::from_ordered(guess.0),
                to: T::from_ordered(guess.1),
            });
            if place < pass.below {
                to = guess.0 - 1;
                guess = (from, to);
            } else if place >= pass.below + pass.within {
                from = guess.1 + 1;
                guess = (from, to);
            } else if guess.0 == guess.1 {
                return T::from_ordered(guess.0);
            } else if pass.kept.len() as u64 == pass.within {
                let mut kept = pass.kept;
                let place = usize::try_from(place - pass.below).unwrap_or(usize::MAX);
                return T::from_ordered(*kept.select_nth_unstable(place).1);
            } else {
                (from, to) = guess;
                let apart = pass.kept.len().div_ceil(SAMPLED);
                let sample = pass.kept.into_iter().step_by(apart).collect();
                guess = near(sample, place - pass.below, pass.within);
                guess = (guess.0.max(from), guess.1.min(to));
                if guess == (from, to) {
                    guess.1 = from + (to - from) / 2;
                }
            }
        }
    }

    /// Returns the value at `place` of the order, given the value at the previous place.
    fn after(&self, low: T, place: u64) -> T {
        let not_above = self.pass(ValueRange {
            from: T::LOWEST,
            to: low,
        });
        if place < not_above.within {
            return low;
        }
        let mut next = T::HIGHEST;
        self.blocks(|block| {
            for value in block.chunks_exact(T::SIZE).map(T::read) {
                if value > low && !self.is_missing(value) {
                    next = value.smaller(next);
                }
            }
        });
        next
    }

    fn is_missing(&self, value: T) -> bool {
        self.missing.is_some_and(|missing| value.same(missing))
    }

    /// Returns a sample of values from the whole input, as ordered integers.
    fn sample(&self) -> Vec<u64> {
        let bytes: usize = self.files.iter().map(|file| file.len()).sum();
        let apart = (bytes / T::SIZE).div_ceil(SAMPLED) * T::SIZE;
        let values = self
            .files
            .iter()
            .flat_map(|file| file.chunks_exact(T::SIZE).step_by(apart / T::SIZE));
        let mut value = vec![0; T::SIZE];
        let little = values.map(|bytes| {
            value.copy_from_slice(bytes);
            if self.big_endian {
                value.reverse();
            }
            T::read(&value)
        });
        let numbers =
            little.filter(|value| ValueRange::all().has(*value) && !self.is_missing(*value));
        numbers.map(T::ordered).collect()
    }

    fn pass(&self, range: ValueRange<T>) -> RangePass {
        let level = Level::best();
        let up_to = ValueRange {
            from: T::LOWEST,
            to: range.to,
        };
        let mut pass = RangePass::default();
        let mut not_above = 0;
        let mut kept = vec![0; BLOCK_BYTES];
        self.blocks(|block| {
            not_above += pick::count(level, block, up_to);
            if pass.kept.len() >= KEPT_MAX {
                pass.within += pick::count(level, block, range);
                return;
            }
            let count = pick::keep::<T>(block, &mut kept, |value| range.has(value));
            pass.within += count as u64;
            let kept = kept[..count * T::SIZE].chunks_exact(T::SIZE).map(T::read);
            pass.kept.extend(kept.map(T::ordered));
        });
        if let Some(missing) = self.missing {
            let mut there = 0;
            let only = ValueRange {
                from: missing,
                to: missing,
            };
            if up_to.has(missing) {
                self.blocks(|block| there += pick::count(level, block, only));
                not_above -= there;
            }
            if range.has(missing) {
                pass.within -= there;
                pass.kept
                    .retain(|value| !T::from_ordered(*value).same(missing));
            }
        }
        pass.below = not_above - pass.within;
        pass
    }
}

/// Returns the probable range of the value at `place` of `count`, according to a sample: some standard deviations of the sample's place to
/// either side.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in the sample is between 0 and its length"
)]
fn near(mut sample: Vec<u64>, place: u64, count: u64) -> (u64, u64) {
    sample.sort_unstable();
    let Some(last) = sample.len().checked_sub(1) else {
        return (0, u64::MAX);
    };
    let part = (place as f64 + 0.5) / count as f64;
    let spread = 4.0 * (sample.len() as f64 * part * (1.0 - part)).max(0.0).sqrt() + 2.0;
    let middle = part * sample.len() as f64;
    let from = (middle - spread).max(0.0) as usize;
    let to = (middle + spread).max(0.0) as usize;
    (sample[from.min(last)], sample[to.min(last)])
}
