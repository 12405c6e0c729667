//! Counts local maxima and minima: values strictly above, or strictly below, both their neighbours.

use super::number::{LaneCounter, Number};
use super::simd::{self, Level, SimdPass};

/// Returns the number of maxima and of minima among all whole little-endian values except the first and the last.
pub(crate) fn count<T: Number>(level: Level, values: &[u8]) -> (u64, u64) {
    match T::SIZE {
        1 => counted::<T, 128>(level, values),
        2 => counted::<T, 64>(level, values),
        4 => counted::<T, 32>(level, values),
        _ => counted::<T, 16>(level, values),
    }
}

fn counted<T: Number, const L: usize>(level: Level, values: &[u8]) -> (u64, u64) {
    let most = L * T::Tally::MAX;
    let (mut maxima, mut minima) = (0, 0);
    let mut start = 0;
    let count = values.len() / T::SIZE;
    while start + 2 < count {
        let end = (start + most + 2).min(count);
        let values = &values[start * T::SIZE..end * T::SIZE];
        let found = simd::run(level, TurnCount::<T, L>(values, std::marker::PhantomData));
        maxima += found.0;
        minima += found.1;
        start = end - 2;
    }
    (maxima, minima)
}

struct TurnCount<'a, T, const L: usize>(&'a [u8], std::marker::PhantomData<T>);

impl<T: Number, const L: usize> SimdPass for TurnCount<'_, T, L> {
    type Output = (u64, u64);

    #[inline(always)]
    fn run(self) -> (u64, u64) {
        let mut maxima = [T::Tally::default(); L];
        let mut minima = [T::Tally::default(); L];
        // Three views of the same values, shifted by one, so that each value is compared with its neighbours.
        let end = self.0.len();
        let mut before = self.0[..end - 2 * T::SIZE].chunks_exact(L * T::SIZE);
        let mut here = self.0[T::SIZE..end - T::SIZE].chunks_exact(L * T::SIZE);
        let mut after = self.0[2 * T::SIZE..].chunks_exact(L * T::SIZE);
        for ((before, here), after) in before.by_ref().zip(here.by_ref()).zip(after.by_ref()) {
            for lane in 0..L {
                let at = lane * T::SIZE..(lane + 1) * T::SIZE;
                let (before, after) = (T::read(&before[at.clone()]), T::read(&after[at.clone()]));
                let here = T::read(&here[at]);
                maxima[lane] = maxima[lane].count((here > before) & (here > after));
                minima[lane] = minima[lane].count((here < before) & (here < after));
            }
        }
        let mut found = (0, 0);
        let rest = before.remainder().chunks_exact(T::SIZE);
        let rest = rest.zip(here.remainder().chunks_exact(T::SIZE));
        for ((before, here), after) in rest.zip(after.remainder().chunks_exact(T::SIZE)) {
            let turn = turn(T::read(before), T::read(here), T::read(after));
            found.0 += u64::from(turn == Some(true));
            found.1 += u64::from(turn == Some(false));
        }
        for lane in 0..L {
            found.0 += maxima[lane].total();
            found.1 += minima[lane].total();
        }
        found
    }
}

/// Returns whether the middle value is a maximum (`true`) or a minimum (`false`); `None` if neither.
pub(crate) fn turn<T: Number>(before: T, here: T, after: T) -> Option<bool> {
    if here > before && here > after {
        Some(true)
    } else if here < before && here < after {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<T: Number>(bytes: &[u8]) {
        let bytes = &bytes[..bytes.len() / T::SIZE * T::SIZE];
        let values: Vec<T> = bytes.chunks(T::SIZE).map(T::read).collect();
        let turns: Vec<_> = values
            .windows(3)
            .map(|near| turn(near[0], near[1], near[2]))
            .collect();
        let wanted = [Some(true), Some(false)]
            .map(|kind| turns.iter().filter(|turn| **turn == kind).count() as u64);
        for level in Level::available() {
            assert_eq!(
                <[u64; 2]>::from(count::<T>(level, bytes)),
                wanted,
                "{level:?}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn local_extrema_count_is_equal_on_all_simd_levels(bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            proptest::collection::vec(any::<u8>(), 60_000..90_000),
            proptest::collection::vec(0..4_u8, 60_000..90_000),
        ]) {
            check::<f64>(&bytes);
            check::<f32>(&bytes);
            check::<i8>(&bytes);
            check::<u16>(&bytes);
            check::<i32>(&bytes);
            check::<u64>(&bytes);
        }
    }
}
