//! Sorts arrays that do not fit into memory, or are stored in several files: in slices by value, each gathered by a pass over the whole
//! input. Only the result is written, whereas a merge would write and read all data once more.

use std::marker::PhantomData;

use super::super::huge_pages;
use super::super::simd::Level;
use super::{Sortable, Sorts};

/// Number of samples from which the ends of slices are chosen.
const SAMPLES: usize = 1 << 14;

/// Approximate maximum number of slices of an input: each slice takes a pass over the whole input, so more slices would take far too long.
const SLICES_MAX: usize = 1000;

/// Sorts the values in all of `from` (each of whole values) and passes them to `write`, in order, in slices of at most `limit` values (at
/// least one, and a thousandth of all), as bytes like those of `Sorts::sort`. One file within the limit is one slice, without being
/// gathered. Equal values may be divided among many slices.
pub(crate) fn sort_in_slices<T: Sorts, E>(
    from: &[&[u8]],
    big: bool,
    limit: usize,
    threads: usize,
    mut write: impl FnMut(&[T::Key]) -> Result<(), E>,
) -> Result<(), E> {
    let total: usize = from.iter().map(|bytes| bytes.len() / size_of::<T>()).sum();
    let limit = limit.max(total / SLICES_MAX);
    if let [one] = from
        && total <= limit
    {
        let mut to = huge_pages::zeros(total);
        T::sort(one, big, &mut to, threads, Level::best());
        return write(&to);
    }
    let mut input = SliceValues::<T> {
        from,
        big,
        limit,
        gathered: Vec::new(),
        value: PhantomData,
    };
    // Ranges of keys, the lowest last, each with the number of values in it.
    let mut ranges = vec![(T::LOWEST, T::HIGHEST, total)];
    let mut sorted = Vec::new();
    while let Some((lowest, highest, count)) = ranges.pop() {
        if count <= limit {
            let bytes = input.gather(lowest, highest, count);
            sorted.clear();
            sorted.resize(count, T::Key::default());
            T::sort(bytes, big, &mut sorted, threads, Level::best());
            write(&sorted)?;
        } else if lowest == highest {
            let run = vec![T::bits(lowest, big); count.min(limit)];
            let mut left = count;
            while left > 0 {
                let some = left.min(limit);
                write(&run[..some])?;
                left -= some;
            }
        } else {
            ranges.extend(input.cut(lowest, highest, count).into_iter().rev());
        }
    }
    Ok(())
}

struct SliceValues<'a, T> {
    from: &'a [&'a [u8]],
    big: bool,
    limit: usize,
    gathered: Vec<u8>,
    value: PhantomData<T>,
}

impl<T: Sortable> SliceValues<'_, T> {
    /// Returns the bytes of all values whose keys are from `lowest` to `highest`.
    fn gather(&mut self, lowest: T::Key, highest: T::Key, count: usize) -> &[u8] {
        self.gathered.clear();
        // Space for one more value, because each is written before the check whether it belongs to the range.
        self.gathered.resize((count + 1) * size_of::<T>(), 0);
        let mut at = 0;
        for value in self
            .from
            .iter()
            .flat_map(|bytes| bytes.chunks_exact(size_of::<T>()))
        {
            let key = T::key(value, self.big);
            self.gathered[at..at + size_of::<T>()].copy_from_slice(value);
            at += usize::from((lowest <= key) & (key <= highest)) * size_of::<T>();
        }
        &self.gathered[..at]
    }

    /// Divides a range of more than one key, which has `count` values, into several ranges.
    fn cut(&self, lowest: T::Key, highest: T::Key, count: usize) -> Vec<(T::Key, T::Key, usize)> {
        let samples = self.samples(lowest, highest);
        // Twice as many slices as necessary, as a margin for values that the samples do not show.
        let step = (samples.len() / (2 * count.div_ceil(self.limit))).max(1);
        let mut begins = vec![lowest];
        for sample in samples.into_iter().step_by(step) {
            // A sample is a slice of its own, because its value may be frequent.
            begins.extend([Some(sample), T::after(sample)].into_iter().flatten());
        }
        begins.retain(|begin| (lowest..=highest).contains(begin));
        begins.dedup();
        let mut counts = vec![0; begins.len()];
        for value in self.values() {
            let key = T::key(value, self.big);
            if (lowest..=highest).contains(&key) {
                counts[begins.partition_point(|begin| *begin <= key) - 1] += 1;
            }
        }
        let mut ranges = Vec::new();
        let mut end = highest;
        for (begin, count) in begins.into_iter().zip(counts).rev() {
            ranges.push((begin, end, count));
            end = T::before(begin).unwrap_or(begin);
        }
        ranges.reverse();
        ranges.retain(|range| range.2 > 0);
        join(ranges, self.limit)
    }

    /// Returns some keys of the range, sorted; at least one key, because the range is not empty.
    fn samples(&self, lowest: T::Key, highest: T::Key) -> Vec<T::Key> {
        let keys = || self.values().map(|value| T::key(value, self.big));
        let within = |key: &T::Key| (lowest..=highest).contains(key);
        let total: usize = self.from.iter().map(|bytes| bytes.len()).sum();
        let step = (total / size_of::<T>() / SAMPLES).max(1);
        let mut samples: Vec<_> = keys().step_by(step).filter(within).collect();
        if samples.is_empty() {
            samples.extend(keys().find(within));
        }
        samples.sort_unstable();
        samples
    }

    fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.from
            .iter()
            .flat_map(|bytes| bytes.chunks_exact(size_of::<T>()))
    }
}

/// Joins neighbouring ranges that are within the limit together.
fn join<K: Copy>(ranges: Vec<(K, K, usize)>, limit: usize) -> Vec<(K, K, usize)> {
    let mut joined: Vec<(K, K, usize)> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.2 + range.2 <= limit => {
                last.1 = range.1;
                last.2 += range.2;
            }
            _ => joined.push(range),
        }
    }
    joined
}
