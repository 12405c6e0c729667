//! Counts and selects the values of a block that are in a range.

use super::number::{LaneCounter, Number};
use super::simd::{self, Level, SimdPass};

/// Range of values, including both bounds. NaN is in no range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValueRange<T> {
    pub(crate) from: T,
    pub(crate) to: T,
}

impl<T: Number> ValueRange<T> {
    /// Returns the range of all values except NaN.
    pub(crate) fn all() -> Self {
        Self {
            from: T::LOWEST,
            to: T::HIGHEST,
        }
    }

    #[inline(always)]
    pub(crate) fn has(self, value: T) -> bool {
        (value >= self.from) & (value <= self.to)
    }
}

/// Returns the number of whole little-endian values in the range.
pub(crate) fn count<T: Number>(level: Level, values: &[u8], range: ValueRange<T>) -> u64 {
    match T::SIZE {
        1 => counted::<T, 256>(level, values, range),
        2 => counted::<T, 128>(level, values, range),
        4 => counted::<T, 64>(level, values, range),
        _ => counted::<T, 32>(level, values, range),
    }
}

/// Counts values in `L` lanes, which fill four of the widest vectors.
fn counted<T: Number, const L: usize>(level: Level, values: &[u8], range: ValueRange<T>) -> u64 {
    let pieces = values.chunks(L * T::SIZE * T::Tally::MAX);
    pieces
        .map(|values| simd::run(level, RangeCount::<T, L> { values, range }))
        .sum()
}

struct RangeCount<'a, T, const L: usize> {
    values: &'a [u8],
    range: ValueRange<T>,
}

impl<T: Number, const L: usize> SimdPass for RangeCount<'_, T, L> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let mut lanes = [T::Tally::default(); L];
        let mut rows = self.values.chunks_exact(L * T::SIZE);
        for row in rows.by_ref() {
            for lane in 0..L {
                let value = T::read(&row[lane * T::SIZE..(lane + 1) * T::SIZE]);
                lanes[lane] = lanes[lane].count(self.range.has(value));
            }
        }
        let rest = rows.remainder().chunks_exact(T::SIZE);
        let rest = rest.filter(|value| self.range.has(T::read(value))).count();
        lanes.iter().map(|lane| lane.total()).sum::<u64>() + rest as u64
    }
}

/// Copies the whole little-endian values that `keep` accepts to `to`, with space for all values. Returns the number of copied values.
#[inline]
pub(crate) fn keep<T: Number>(values: &[u8], to: &mut [u8], keep: impl Fn(T) -> bool) -> usize {
    assert!(to.len() >= values.len(), "there is space for all values");
    let mut kept = 0;
    for bytes in values.chunks_exact(T::SIZE) {
        // The value is written in any case, so that there is no branch to predict.
        to[kept * T::SIZE..(kept + 1) * T::SIZE].copy_from_slice(bytes);
        kept += usize::from(keep(T::read(bytes)));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<T: Number>(bytes: &[u8], bounds: &[u8]) {
        let bytes = &bytes[..bytes.len() / T::SIZE * T::SIZE];
        let range = ValueRange {
            from: T::read(bounds),
            to: T::read(&bounds[8..]),
        };
        for range in [range, ValueRange::all()] {
            let values = bytes
                .chunks(T::SIZE)
                .filter(|value| range.has(T::read(value)));
            let wanted: Vec<u8> = values.flatten().copied().collect();
            for level in Level::available() {
                let found = count(level, bytes, range);
                assert_eq!(found, (wanted.len() / T::SIZE) as u64, "{level:?}");
            }
            let mut kept = vec![0; bytes.len()];
            let count = keep::<T>(bytes, &mut kept, |value| range.has(value));
            assert_eq!(kept[..count * T::SIZE], wanted);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn pick_gives_equal_results_on_all_simd_levels(
            bytes in prop_oneof![proptest::collection::vec(any::<u8>(), 0..300), proptest::collection::vec(any::<u8>(), 60_000..90_000)],
            bounds in any::<[u8; 16]>(),
        ) {
            check::<f64>(&bytes, &bounds);
            check::<f32>(&bytes, &bounds);
            check::<i8>(&bytes, &bounds);
            check::<u8>(&bytes, &bounds);
            check::<i16>(&bytes, &bounds);
            check::<u16>(&bytes, &bounds);
            check::<i32>(&bytes, &bounds);
            check::<u32>(&bytes, &bounds);
            check::<i64>(&bytes, &bounds);
            check::<u64>(&bytes, &bounds);
        }
    }
}
