//! Sums of products of any two columns of some rows, for covariances. Columns are stored in groups, each as wide as a cache line, so that
//! all reads are sequential; 24 vectors of sums are kept in registers. Each sum adds its products in the order of rows, with fused
//! operations, so all vector types give the same bits.

use std::marker::PhantomData;

use super::lanes::{CacheAligned, Lanes, tile, with_lanes};
use super::number::Number;
use super::product::RealNumber;
use super::simd::{Level, SimdPass, run};

/// Number of rows that are processed at a time while columns are grouped.
const STRIP: usize = 16;

/// Rows whose columns are stored in groups.
#[derive(Debug, Default)]
pub(crate) struct Groups<T> {
    values: CacheAligned<T>,
    rows: usize,
    groups: usize,
}

/// Returns the number of columns of a group.
const fn line<T>() -> usize {
    64 / size_of::<T>()
}

impl<T: RealNumber> Groups<T> {
    /// Returns the number of columns, including the zero columns that fill the last group.
    pub(crate) fn width(&self) -> usize {
        self.groups * line::<T>()
    }

    /// Loads little-endian values, `shift.len()` in a row, subtracts a shift for each column, and adds the differences to the sum of the
    /// column.
    pub(crate) fn load<N: Number>(
        &mut self,
        level: Level,
        bytes: &[u8],
        shift: &[T],
        sums: &mut [f64],
    ) {
        self.rows = bytes.len() / N::SIZE / shift.len();
        self.groups = shift.len().div_ceil(line::<T>());
        self.values.resize(self.rows * self.width());
        let (values, rows) = (self.values.values_mut(), self.rows);
        let type_ = PhantomData::<N>;
        let load = GramLoad {
            bytes,
            shift,
            sums,
            values,
            rows,
            type_,
        };
        match line::<T>() {
            8 => run(level, InLines::<8, _>(load)),
            _ => run(level, InLines::<16, _>(load)),
        }
    }
}

struct GramLoad<'a, T, N> {
    bytes: &'a [u8],
    shift: &'a [T],
    sums: &'a mut [f64],
    values: &'a mut [T],
    rows: usize,
    type_: PhantomData<N>,
}

/// Prefetches a cache line that is read one strip later, because the processor does not predict steps as wide as a row.
#[inline(always)]
fn fetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: this only loads a cache (the second, as two strips may fill the first), from any address that is mapped.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Pass over groups of `W` columns.
struct InLines<const W: usize, L>(L);

impl<const W: usize, T: RealNumber, N: Number> InLines<W, GramLoad<'_, T, N>> {
    /// Loads `count` columns from `column` on of all rows from `first` to `end`.
    #[inline(always)]
    fn group(&mut self, column: usize, count: usize, (first, end): (usize, usize)) {
        let all = &mut self.0;
        let columns = all.shift.len();
        let mut shift = [T::default(); W];
        shift[..count].copy_from_slice(&all.shift[column..][..count]);
        let mut sums = [0.0; W];
        sums[..count].copy_from_slice(&all.sums[column..][..count]);
        let to = &mut all.values[column * all.rows..][first * W..end * W];
        for (row, to) in to.as_chunks_mut::<W>().0.iter_mut().enumerate() {
            let at = ((first + row) * columns + column) * N::SIZE;
            let bytes = &all.bytes[at..][..count * N::SIZE];
            fetch(bytes.as_ptr().wrapping_add(STRIP * columns * N::SIZE));
            let mut values = [T::default(); W];
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(N::SIZE)) {
                *value = T::of(N::read(bytes).to_f64());
            }
            for lane in 0..W {
                to[lane] = values[lane] - shift[lane];
            }
            for lane in 0..W {
                sums[lane] += to[lane].to_f64();
            }
        }
        all.sums[column..][..count].copy_from_slice(&sums[..count]);
    }
}

impl<const W: usize, T: RealNumber, N: Number> SimdPass for InLines<W, GramLoad<'_, T, N>> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let (rows, columns) = (self.0.rows, self.0.shift.len());
        for first in (0..rows).step_by(STRIP) {
            let strip = (first, rows.min(first + STRIP));
            for column in (0..columns).step_by(W) {
                if column + W <= columns {
                    self.group(column, W, strip);
                } else {
                    self.group(column, columns - column, strip);
                }
            }
        }
    }
}

/// Adds the sums over all rows of products of any two columns to `to`, which is row-major with the groups' width squared. It computes
/// only sums whose first column does not follow the second, and some others near these.
pub(crate) fn gram<T: RealNumber>(level: Level, groups: &Groups<T>, to: &mut [f64]) {
    assert!(to.len() >= groups.width() * groups.width());
    with_lanes!(level, T, |V| run(
        level,
        Gram::<V<T>> {
            groups,
            to,
            lanes: PhantomData,
        }
    ));
}

struct Gram<'a, V: Lanes> {
    groups: &'a Groups<V::Number>,
    to: &'a mut [f64],
    lanes: PhantomData<V>,
}

impl<V: Lanes> Gram<'_, V> {
    /// Multiplies `M` columns from `first` on with the columns of `C` vectors from `second` on.
    #[inline(always)]
    fn block<const M: usize, const C: usize>(&mut self, first: usize, second: usize) {
        let (line, rows, width) = (line::<V::Number>(), self.groups.rows, self.groups.width());
        assert!(first / line * line + M <= width && second + C * V::COUNT <= width);
        let values = self.groups.values.values();
        assert!(values.len() == width * rows && first % line + M <= line);
        let at = |column: usize| {
            let group = column / line * line;
            values.as_ptr().wrapping_add(group * rows + column % line)
        };
        let others = std::array::from_fn(|vector| at(second + vector * V::COUNT));
        // SAFETY: a pass runs only on processors with its instructions. Each of the `rows` lines of each group has `line` numbers, and
        // these are some of them, as asserted above.
        let sums = unsafe {
            let mut sums = [[V::all(V::Number::default()); C]; M];
            tile(&mut sums, (at(first), others), (line, line), rows);
            sums
        };
        for (row, sums) in sums.into_iter().enumerate() {
            let to = &mut self.to[(first + row) * width + second..][..C * V::COUNT];
            for (to, sums) in to.chunks_exact_mut(V::COUNT).zip(sums) {
                let mut some = [V::Number::default(); 16];
                assert!(V::COUNT <= some.len());
                // SAFETY: as above, and the array has space for them.
                unsafe { sums.store(some.as_mut_ptr()) };
                for (to, sum) in to.iter_mut().zip(some) {
                    *to += sum.to_f64();
                }
            }
        }
    }
}

impl<V: Lanes> SimdPass for Gram<'_, V> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let (line, width) = (line::<V::Number>(), self.groups.width());
        for group in (0..width).step_by(line) {
            if V::COUNT < line {
                for first in (group..group + line).step_by(4) {
                    for second in (group..width).step_by(line) {
                        self.block::<4, 2>(first, second);
                    }
                }
                continue;
            }
            for first in (group..group + line).step_by(8) {
                let mut second = group;
                while second + 3 * line <= width {
                    self.block::<8, 3>(first, second);
                    second += 3 * line;
                }
                match (width - second) / line {
                    2 => self.block::<8, 2>(first, second),
                    1 => self.block::<8, 1>(first, second),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "all paths give the same bits")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<T: RealNumber>(values: &[T], columns: usize) {
        let values = &values[..values.len() / columns * columns];
        let mut bytes = vec![0; values.len() * T::SIZE];
        for (value, to) in values.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            value.write(to);
        }
        let mut groups = Groups::default();
        let shift = T::of(0.7);
        for level in Level::available() {
            let mut sums = vec![0.0; columns];
            groups.load::<T>(level, &bytes, &vec![shift; columns], &mut sums);
            let width = groups.width();
            let mut found = vec![1.0; width * width];
            gram(level, &groups, &mut found);
            let column = |column: usize| {
                let rows = values.chunks(columns);
                rows.map(move |row| row[column] - shift)
            };
            for first in 0..columns {
                let wanted = column(first).fold(0.0, |sum, value| sum + value.to_f64());
                assert!(sums[first] == wanted, "{level:?} {first}");
                for second in first..columns {
                    let pairs = column(first).zip(column(second));
                    let wanted = pairs.fold(T::default(), |sum, (a, b)| sum.fused(a, b));
                    assert!(
                        found[first * width + second] == 1.0 + wanted.to_f64(),
                        "{level:?} {first} {second}"
                    );
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn gram_gives_equal_results_on_all_simd_levels(
            values in proptest::collection::vec(-9.0..9.0_f64, 80..4000),
            columns in 1..80_usize,
        ) {
            check(&values, columns);
            let narrow: Vec<_> = values.iter().map(|value| f32::of(*value)).collect();
            check(&narrow, columns);
        }
    }
}
