//! `extrema`: local maxima and minima, values strictly above or below both their neighbours. A flat top is no extremum. The first and the
//! last value are no extrema, and neither is a value that is NaN or missing, or has such a neighbour.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::BuiltinError;
use super::table::{BuiltinKernel, FoldInput, KernelArgument, KernelConstructor};
use super::values::{FORMAT, ORDER, Take, fold_of_dtype, missing};
use crate::loops::local_extrema::{self, turn};
use crate::loops::number::Number;
use crate::loops::simd::Level;

const SHOW: &[KernelArgument] = &[KernelArgument {
    key: "show",
    values: "count|list",
    default: "count",
    help: "the numbers of maxima and minima, or a line for each: its index, max or min, and its value",
}];

/// Kernel `extrema`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "extrema",
    revision: 1,
    help: "local maxima and minima: values above, or below, both their neighbours",
    args: &[SHOW, FORMAT, ORDER],
    usage: None,
    prepare: None,
    code: KernelConstructor::Fold(FoldInput::Values, |options| {
        let list = options.is("show", "list");
        fold_of_dtype!(options, |T| {
            missing::<T>(options).map(|missing| Extrema::<T> {
                list,
                missing,
                ..Extrema::default()
            })
        })
    }),
}];

/// Number of values processed at a time if each value must be examined.
const BLOCK: usize = 4096;

/// Partial state of `extrema`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Extrema<T: Number> {
    #[serde(skip)]
    list: bool,
    #[serde(skip)]
    missing: Option<T>,
    maxima: u64,
    minima: u64,
    /// Extrema found so far: index, whether it is a maximum, value; filled only if a list is requested.
    found: Vec<(u64, bool, T)>,
    /// Stretches of processed values, by the index of their first value.
    stretches: BTreeMap<u64, ValueStretch<T>>,
}

/// Values at the ends of a processed stretch, one or two at each end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
struct ValueStretch<T: Number> {
    end: u64,
    head: Vec<T>,
    tail: Vec<T>,
}

impl<T: Number> Extrema<T> {
    fn is_missing(&self, value: T) -> bool {
        self.missing.is_some_and(|missing| value.same(missing))
    }

    /// Examines the middle one of three neighbouring values, which has the index `index`.
    fn look(&mut self, index: u64, near: [T; 3]) {
        if near.iter().any(|value| self.is_missing(*value)) {
            return;
        }
        let Some(maximum) = turn(near[0], near[1], near[2]) else {
            return;
        };
        self.maxima += u64::from(maximum);
        self.minima += u64::from(!maximum);
        if self.list {
            self.found.push((index, maximum, near[1]));
        }
    }

    /// Examines all values of a stretch except its first and last.
    fn within(&mut self, first: u64, values: &[u8]) {
        let count = values.len() / T::SIZE;
        let mut start = 0;
        while start + 2 < count {
            let end = (start + BLOCK + 2).min(count);
            let block = &values[start * T::SIZE..end * T::SIZE];
            let missing = || {
                block
                    .chunks_exact(T::SIZE)
                    .any(|value| self.is_missing(T::read(value)))
            };
            let each = self.list || (self.missing.is_some() && missing());
            if each {
                let near = |at: usize| T::read(&block[at * T::SIZE..]);
                for middle in 1..end - start - 1 {
                    let near = [near(middle - 1), near(middle), near(middle + 1)];
                    self.look(first + (start + middle) as u64, near);
                }
            } else {
                let (maxima, minima) = local_extrema::count::<T>(Level::best(), block);
                self.maxima += maxima;
                self.minima += minima;
            }
            start = end - 2;
        }
    }

    /// Adds an examined stretch, and joins it with its neighbours.
    fn join(&mut self, mut start: u64, mut stretch: ValueStretch<T>) {
        if let Some(after) = self.stretches.remove(&stretch.end) {
            stretch = self.joined(start, stretch, after);
        }
        let before = self.stretches.range(..start).next_back();
        if let Some((&first, _)) = before.filter(|(_, before)| before.end == start) {
            let before = self.stretches.remove(&first);
            let before = before.expect("it was found just now");
            stretch = self.joined(first, before, stretch);
            start = first;
        }
        self.stretches.insert(start, stretch);
    }

    fn joined(
        &mut self,
        start: u64,
        before: ValueStretch<T>,
        after: ValueStretch<T>,
    ) -> ValueStretch<T> {
        let seam = before.end - before.tail.len() as u64;
        let near = [before.tail.as_slice(), &after.head].concat();
        for (index, near) in (seam + 1..).zip(near.windows(3)) {
            self.look(index, [near[0], near[1], near[2]]);
        }
        let (mut head, mut tail) = (before.head, after.tail);
        if before.end - start == 1 {
            head.extend(after.head.first());
        }
        if tail.len() == 1 {
            tail = before
                .tail
                .last()
                .copied()
                .into_iter()
                .chain(tail)
                .collect();
        }
        let end = after.end;
        ValueStretch { end, head, tail }
    }
}

impl<T: Number> Take<T> for Extrema<T> {
    fn take(&mut self, first: u64, values: &[u8]) {
        let count = values.len() / T::SIZE;
        if count == 0 {
            return;
        }
        self.within(first, values);
        let few = count.min(2);
        let read = |from: usize| values[from * T::SIZE..].chunks_exact(T::SIZE).map(T::read);
        let stretch = ValueStretch {
            end: first + count as u64,
            head: read(0).take(few).collect(),
            tail: read(count - few).collect(),
        };
        self.join(first, stretch);
    }

    fn merge(&mut self, other: Self) {
        self.maxima += other.maxima;
        self.minima += other.minima;
        self.found.extend(other.found);
        for (start, stretch) in other.stretches {
            self.join(start, stretch);
        }
    }

    fn finish(mut self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        if !self.list {
            return writeln!(out, "{} {}", self.maxima, self.minima).map_err(BuiltinError::Write);
        }
        self.found.sort_unstable_by_key(|found| found.0);
        for (index, maximum, value) in self.found {
            let kind = if maximum { "max" } else { "min" };
            writeln!(out, "{index} {kind} {}", value.text()).map_err(BuiltinError::Write)?;
        }
        Ok(())
    }
}
