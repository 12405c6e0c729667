//! Selects values: `filter` by a condition, `topk` the largest or smallest, `sample` at random.

use std::cmp::Ordering;
use std::io::Write;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::BuiltinError;
use super::expression::{self, Set};
use super::table::{
    BuiltinKernel, FoldInput, KernelArgument, KernelConstructor, KernelOptions, ReadyKernel,
};
use super::values::{FORMAT, ORDER, Take, fold_of_dtype, missing, stream_of_dtype};
use crate::fold::Stream;
use crate::loops::number::Number;
use crate::loops::pick::{self, ValueRange};
use crate::loops::simd::Level;
use crate::loops::swap;
use tidemill_model::condition::CompareOperator;

const FILTER: &[KernelArgument] = &[
    KernelArgument {
        key: "where",
        values: "CONDITION",
        default: "",
        help: "condition, such as x > 3 and x != 5 or x = 9; x is the value",
    },
    KernelArgument {
        key: "above",
        values: "NUMBER",
        default: "",
        help: "only values that are larger",
    },
    KernelArgument {
        key: "below",
        values: "NUMBER",
        default: "",
        help: "only values that are smaller",
    },
    KernelArgument {
        key: "from",
        values: "NUMBER",
        default: "",
        help: "only values that are not smaller",
    },
    KernelArgument {
        key: "to",
        values: "NUMBER",
        default: "",
        help: "only values that are not larger",
    },
    KernelArgument {
        key: "show",
        values: "values|index|count",
        default: "values",
        help: "the values, or the index of each (a line each), or their number",
    },
];

const RAW: &[KernelArgument] = &[KernelArgument {
    key: "out",
    values: "raw|text",
    default: "raw",
    help: "values as they are in the input (those of text as f64), or a line each",
}];

const TOPK: &[KernelArgument] = &[
    KernelArgument {
        key: "k",
        values: "N",
        default: "10",
        help: "number of values",
    },
    KernelArgument {
        key: "by",
        values: "largest|smallest",
        default: "largest",
        help: "largest or smallest; of equal values the first is first",
    },
];

const SAMPLE: &[KernelArgument] = &[
    KernelArgument {
        key: "n",
        values: "N",
        default: "1000",
        help: "number of values; all have the same chance, and none is picked twice",
    },
    KernelArgument {
        key: "seed",
        values: "N",
        default: "0",
        help: "seed for the choice of the sample",
    },
];

/// Kernels `filter`, `topk` and `sample`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[
    BuiltinKernel {
        name: "filter",
        revision: 1,
        help: "values that fulfil a condition: the values, their indices, or their number",
        args: &[FILTER, FORMAT, RAW, ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Either(FoldInput::Values, filter),
    },
    BuiltinKernel {
        name: "topk",
        revision: 1,
        help: "the largest or smallest values, best first, a line each: index and value",
        args: &[TOPK, FORMAT, ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Fold(FoldInput::Values, |options| {
            let k = options.number("k", "a whole number")?.unwrap_or_default();
            let largest = options.is("by", "largest");
            fold_of_dtype!(options, |T| {
                missing::<T>(options).map(|missing| Best::<T> {
                    k,
                    largest,
                    missing,
                    ..Best::default()
                })
            })
        }),
    },
    BuiltinKernel {
        name: "sample",
        revision: 1,
        help: "randomly picked values, in their order; the same seed picks the same indices",
        args: &[SAMPLE, FORMAT, RAW, ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Fold(FoldInput::Values, |options| {
            let n = options.number("n", "a whole number")?.unwrap_or_default();
            let seed = options
                .number("seed", "a whole number")?
                .unwrap_or_default();
            let text = options.is("out", "text");
            let big_endian = options.is("order", "big") && !options.is("dtype", "text");
            fold_of_dtype!(options, |T| {
                missing::<T>(options).map(|missing| SampleValues::<T> {
                    n,
                    seed,
                    text,
                    big_endian,
                    missing,
                    ..SampleValues::default()
                })
            })
        }),
    },
];

/// Returns the set of values that the arguments of `filter` describe.
fn set<T: Number>(options: &KernelOptions) -> Result<Set<T>, BuiltinError> {
    let mut all: Option<Set<T>> = None;
    let mut add =
        |set: Set<T>| all = Some(all.take().map_or_else(|| set.clone(), |all| all.and(&set)));
    if let Some(text) = options.text("where") {
        let set = expression::parse(text);
        add(set.map_err(|reason| {
            options.wrong("where", text, &format!("a condition, but {reason}"))
        })?);
    }
    for (key, comparison) in [
        ("above", CompareOperator::Greater),
        ("below", CompareOperator::Less),
        ("from", CompareOperator::AtLeast),
        ("to", CompareOperator::AtMost),
    ] {
        if let Some(text) = options.text(key) {
            let set = expression::compared(comparison, text);
            add(set.ok_or_else(|| options.wrong(key, text, "a number"))?);
        }
    }
    let set = options.needed("where", all)?;
    Ok(match missing::<T>(options)? {
        Some(missing) => set.and(&Set::only(missing).not()),
        None => set,
    })
}

fn filter(options: &KernelOptions) -> Result<ReadyKernel, BuiltinError> {
    if options.is("show", "count") {
        return fold_of_dtype!(options, |T| set::<T>(options).map(|set| SetCounter::<T> {
            set: Some(set),
            count: 0,
        }))
        .map(ReadyKernel::Fold);
    }
    let index = options.is("show", "index");
    let text = options.is("out", "text");
    let big_endian = options.is("order", "big") && !options.is("dtype", "text");
    stream_of_dtype!(options, |T| set::<T>(options).map(|set| SetFilter::<T> {
        set,
        show: match (index, text) {
            (true, _) => SelectOutput::Index,
            (_, true) => SelectOutput::Text,
            _ => SelectOutput::Raw,
        },
        big_endian,
        torn: Vec::new(),
        swapped: Vec::new(),
        kept: Vec::new(),
        index: 0,
    }))
    .map(ReadyKernel::Stream)
}

/// Number of bytes of values that are processed at a time.
const BLOCK_BYTES: usize = 16 << 10;

/// Fold that counts the values in a set.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct SetCounter<T: Number> {
    #[serde(skip)]
    set: Option<Set<T>>,
    count: u64,
}

impl<T: Number> Take<T> for SetCounter<T> {
    fn take(&mut self, _: u64, values: &[u8]) {
        let Some(set) = &self.set else { return };
        let level = Level::best();
        for block in values.chunks(BLOCK_BYTES) {
            for range in &set.ranges {
                self.count += pick::count(level, block, *range);
            }
            if set.nan {
                let numbers = pick::count(level, block, ValueRange::<T>::all());
                self.count += (block.len() / T::SIZE) as u64 - numbers;
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
    }

    fn finish(self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        writeln!(out, "{}", self.count).map_err(BuiltinError::Write)
    }
}

/// Form of the output of `filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectOutput {
    Raw,
    Text,
    Index,
}

/// Stream that writes the values in a set as they arrive.
#[derive(Debug)]
struct SetFilter<T> {
    set: Set<T>,
    show: SelectOutput,
    big_endian: bool,
    /// Bytes of an incomplete value at the end of the input so far.
    torn: Vec<u8>,
    swapped: Vec<u8>,
    kept: Vec<u8>,
    index: u64,
}

impl<T: Number> SetFilter<T> {
    /// Processes whole values of the input.
    fn values(&mut self, values: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        for block in values.chunks(BLOCK_BYTES) {
            let (mut swapped, mut kept) = (
                std::mem::take(&mut self.swapped),
                std::mem::take(&mut self.kept),
            );
            swapped.resize(block.len(), 0);
            kept.resize(block.len(), 0);
            let little = if self.big_endian {
                swap::swap(block, &mut swapped, T::SIZE);
                &swapped
            } else {
                block
            };
            let written = self.block(little, &mut kept, out);
            self.index += (block.len() / T::SIZE) as u64;
            (self.swapped, self.kept) = (swapped, kept);
            written.map_err(BuiltinError::Write)?;
        }
        Ok(())
    }

    fn block(&self, values: &[u8], kept: &mut [u8], out: &mut dyn Write) -> std::io::Result<()> {
        if self.show == SelectOutput::Index {
            for (index, value) in (self.index..).zip(values.chunks_exact(T::SIZE)) {
                if self.set.has(T::read(value)) {
                    writeln!(out, "{index}")?;
                }
            }
            return Ok(());
        }
        let count = match self.set.ranges.as_slice() {
            [range] if !self.set.nan => pick::keep::<T>(values, kept, |value| range.has(value)),
            _ => pick::keep::<T>(values, kept, |value| self.set.has(value)),
        };
        write_values::<T>(
            &kept[..count * T::SIZE],
            self.show == SelectOutput::Text,
            self.big_endian,
            out,
        )
    }
}

/// Writes little-endian values as text, or raw in the byte order of the input.
fn write_values<T: Number>(
    values: &[u8],
    text: bool,
    big_endian: bool,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if text {
        let mut values = values.chunks_exact(T::SIZE);
        values.try_for_each(|value| writeln!(out, "{}", T::read(value).text()))
    } else if big_endian {
        let mut swapped = vec![0; values.len()];
        swap::swap(values, &mut swapped, T::SIZE);
        out.write_all(&swapped)
    } else {
        out.write_all(values)
    }
}

impl<T: Number> Stream for SetFilter<T> {
    fn push(&mut self, mut bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        if !self.torn.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(T::SIZE - self.torn.len()));
            self.torn.extend_from_slice(head);
            bytes = rest;
            if self.torn.len() < T::SIZE {
                return Ok(());
            }
            let torn = std::mem::take(&mut self.torn);
            self.values(&torn, out)?;
        }
        let (values, torn) = bytes.split_at(bytes.len() / T::SIZE * T::SIZE);
        self.torn.extend_from_slice(torn);
        self.values(values, out)
    }

    fn finish(self: Box<Self>, _: &mut dyn Write) -> Result<(), BuiltinError> {
        if self.torn.is_empty() {
            return Ok(());
        }
        Err(BuiltinError::Torn {
            name: "what came".to_owned(),
            bytes: self.index * T::SIZE as u64 + self.torn.len() as u64,
            size: T::SIZE,
        })
    }
}

/// Best values of `topk` so far.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Best<T: Number> {
    #[serde(skip)]
    k: usize,
    #[serde(skip)]
    largest: bool,
    #[serde(skip)]
    missing: Option<T>,
    /// Values with their indices: at least the best `k` of the values so far.
    held: Vec<(T, u64)>,
    /// Worst of the best `k` values, if there are so many values.
    #[serde(skip)]
    worst: Option<(T, u64)>,
}

/// Number of further values that are held before the worst are dropped.
const HELD: usize = 4096;

impl<T: Number> Best<T> {
    /// Orders the better value first.
    fn order(&self, a: (T, u64), b: (T, u64)) -> Ordering {
        let values = if self.largest {
            b.0.partial_cmp(&a.0)
        } else {
            a.0.partial_cmp(&b.0)
        };
        // NaN is never held.
        values.unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
    }

    /// Drops all values except the best `k`.
    fn prune(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        held.sort_unstable_by(|a, b| self.order(*a, *b));
        held.truncate(self.k);
        self.worst = if held.len() == self.k {
            held.last().copied()
        } else {
            None
        };
        self.held = held;
    }

    fn block(&mut self, first: u64, values: &[u8]) {
        if let Some((worst, index)) = self.worst {
            // An equal value with a later index is no better.
            let later = first > index;
            let all = ValueRange::<T>::all();
            let range = match (self.largest, later) {
                (true, true) if worst.partial_cmp(&all.to) == Some(Ordering::Equal) => return,
                (false, true) if worst.partial_cmp(&all.from) == Some(Ordering::Equal) => return,
                (true, true) => ValueRange {
                    from: worst.above(),
                    ..all
                },
                (false, true) => ValueRange {
                    to: worst.below(),
                    ..all
                },
                (true, false) => ValueRange { from: worst, ..all },
                (false, false) => ValueRange { to: worst, ..all },
            };
            if pick::count(Level::best(), values, range) == 0 {
                return;
            }
        }
        for (index, value) in (first..).zip(values.chunks_exact(T::SIZE)) {
            let value = T::read(value);
            let passed = self.missing.is_some_and(|missing| value.same(missing))
                || value.partial_cmp(&value).is_none();
            let worse = self
                .worst
                .is_some_and(|worst| self.order((value, index), worst).is_gt());
            if !passed && !worse {
                self.held.push((value, index));
            }
        }
        if self.held.len() >= self.k + HELD {
            self.prune();
        }
    }
}

impl<T: Number> Take<T> for Best<T> {
    fn take(&mut self, first: u64, values: &[u8]) {
        if self.k == 0 {
            return;
        }
        for (number, block) in (0..).zip(values.chunks(BLOCK_BYTES)) {
            self.block(first + number * (BLOCK_BYTES / T::SIZE) as u64, block);
        }
        self.prune();
    }

    fn merge(&mut self, other: Self) {
        self.held.extend(other.held);
        self.prune();
    }

    fn finish(mut self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        self.prune();
        let mut held = self.held.iter();
        held.try_for_each(|(value, index)| writeln!(out, "{index} {}", value.text()))
            .map_err(BuiltinError::Write)
    }
}

/// Sample of the values: the values whose indices have the smallest hashes, as if each index drew a random number.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct SampleValues<T: Number> {
    #[serde(skip)]
    n: usize,
    #[serde(skip)]
    seed: u64,
    #[serde(skip)]
    text: bool,
    #[serde(skip)]
    big_endian: bool,
    #[serde(skip)]
    missing: Option<T>,
    /// Hash, index and value of at least the `n` smallest hashes so far.
    held: Vec<(u64, u64, T)>,
    /// Largest of the `n` smallest hashes, if there are so many values.
    #[serde(skip)]
    largest: Option<u64>,
    #[serde(skip)]
    type_: PhantomData<T>,
}

/// Returns the hash of an index: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), which never maps two indices to the same hash.
fn lot(seed: u64, index: u64) -> u64 {
    let mut mixed =
        (index ^ seed.wrapping_mul(0xd134_2543_de82_ef95)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl<T: Number> SampleValues<T> {
    fn prune(&mut self) {
        self.held.sort_unstable_by_key(|held| held.0);
        self.held.truncate(self.n);
        let full = self.held.len() == self.n;
        self.largest = self.held.last().filter(|_| full).map(|held| held.0);
    }
}

impl<T: Number> Take<T> for SampleValues<T> {
    fn take(&mut self, first: u64, values: &[u8]) {
        if self.n == 0 {
            return;
        }
        for (index, value) in (first..).zip(values.chunks_exact(T::SIZE)) {
            let lot = lot(self.seed, index);
            if lot > self.largest.unwrap_or(u64::MAX) {
                continue;
            }
            let value = T::read(value);
            if !self.missing.is_some_and(|missing| value.same(missing)) {
                self.held.push((lot, index, value));
                if self.held.len() >= self.n + HELD {
                    self.prune();
                }
            }
        }
        self.prune();
    }

    fn merge(&mut self, other: Self) {
        self.held.extend(other.held);
        self.prune();
    }

    fn finish(mut self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        self.prune();
        self.held.sort_unstable_by_key(|held| held.1);
        let mut values = vec![0; self.held.len() * T::SIZE];
        for (held, bytes) in self.held.iter().zip(values.chunks_exact_mut(T::SIZE)) {
            held.2.write(bytes);
        }
        write_values::<T>(&values, self.text, self.big_endian, out).map_err(BuiltinError::Write)
    }
}
