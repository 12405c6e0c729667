//! Rows of many columns, and their products with the columns of a small matrix: sums are kept in registers, four rows by some vectors at a
//! time. Each sum adds its products in order, unfused, so all vector types give the same bits.

use std::ops::{Add, Mul, Sub};

use super::lanes::{Lanes, ScalarLanes};
use super::number::Number;
use super::simd::{Level, SimdPass, run};

/// Floating-point number for computations.
pub(crate) trait RealNumber:
    Number + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// Vectors of AVX-512 for the type: a whole cache line.
    #[cfg(target_arch = "x86_64")]
    type Wide: Lanes<Number = Self>;
    /// Vectors of AVX2 for the type: half a cache line.
    #[cfg(target_arch = "x86_64")]
    type Half: Lanes<Number = Self>;
    /// As many separate numbers as in half a cache line.
    type Plain: Lanes<Number = Self>;
    /// Returns the number of this type that is nearest to `value`.
    fn of(value: f64) -> Self;
    /// Returns `self + a * b`, rounded once.
    fn fused(self, a: Self, b: Self) -> Self;
}

impl RealNumber for f64 {
    #[cfg(target_arch = "x86_64")]
    type Wide = std::arch::x86_64::__m512d;
    #[cfg(target_arch = "x86_64")]
    type Half = std::arch::x86_64::__m256d;
    type Plain = ScalarLanes<Self, 4>;
    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn fused(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
}

impl RealNumber for f32 {
    #[cfg(target_arch = "x86_64")]
    type Wide = std::arch::x86_64::__m512;
    #[cfg(target_arch = "x86_64")]
    type Half = std::arch::x86_64::__m256;
    type Plain = ScalarLanes<Self, 8>;
    #[allow(clippy::cast_possible_truncation, reason = "rounding is meant")]
    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }
    #[inline(always)]
    fn fused(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
}

/// Type of values, with the type in which kernels compute with the values.
pub(crate) trait Computed: Number {
    type Real: RealNumber;
}

macro_rules! computed {
    ($($type:ty: $real:ty),*) => {
        $(impl Computed for $type {
            type Real = $real;
        })*
    };
}

computed!(f32: f32, f64: f64, i8: f64, i16: f64, i32: f64, i64: f64, u8: f64, u16: f64, u32: f64, u64: f64);

/// Divisor of all widths of rows; zeros fill the rest of a row.
pub(crate) const PADDING: usize = 8;

/// Divisor of the number of rows.
const ROWS_PADDED: usize = 64;

/// Number of rows that are processed together.
const ROWS: usize = 4;

/// Computes a sum of products for each of `N` columns and four rows: over all `steps`, the number at `lane * row + step * number` of `a`
/// times the numbers from `width * number` on of `b`.
#[inline(always)]
fn tile<T: RealNumber, const N: usize>(
    a: &[T],
    (lane, step): (usize, usize),
    b: &[T],
    width: usize,
    steps: usize,
) -> [[T; N]; ROWS] {
    let mut sums = [[T::default(); N]; ROWS];
    if steps == 0 {
        return sums;
    }
    assert!((ROWS - 1) * lane + (steps - 1) * step < a.len());
    assert!((steps - 1) * width + N <= b.len());
    for number in 0..steps {
        // SAFETY: both were checked for the last number, row and column.
        let column = unsafe { &*b.as_ptr().add(number * width).cast::<[T; N]>() };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let factor = unsafe { *a.get_unchecked(row * lane + number * step) };
            for (sum, other) in sums.iter_mut().zip(column) {
                *sum = *sum + factor * *other;
            }
        }
    }
    sums
}

/// Evaluates `$body` with `$N` as the number of columns that `$level` keeps in registers at a time, for numbers of type `$T`.
macro_rules! with_width {
    ($level:expr, $T:ty, |$N:ident| $body:expr) => {
        match ($level, size_of::<$T>()) {
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512 | Level::Ifma, 4) => {
                const $N: usize = 32;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512 | Level::Ifma, _) | (Level::Avx2, 4) => {
                const $N: usize = 16;
                $body
            }
            _ => {
                const $N: usize = 8;
                $body
            }
        }
    };
}

/// Block of rows of numbers: each row has `width` numbers, with zeros after its columns.
#[derive(Debug, Default)]
pub(crate) struct Panel<T> {
    pub(crate) values: Vec<T>,
    pub(crate) width: usize,
    pub(crate) rows: usize,
    columns: usize,
}

impl<T: RealNumber> Panel<T> {
    /// Loads little-endian values, `shift.len()` in a row, minus a shift for each column. Rows of zeros follow the last row, up to a
    /// multiple of 64.
    pub(crate) fn load<N: Number>(&mut self, level: Level, bytes: &[u8], shift: &[T]) {
        let rows = bytes.len() / N::SIZE / shift.len();
        if (rows, shift.len()) != (self.rows, self.columns) {
            self.rows = rows;
            self.columns = shift.len();
            self.width = shift.len().next_multiple_of(PADDING);
            self.values.clear();
            let all = rows.next_multiple_of(ROWS_PADDED) * self.width;
            self.values.resize(all, T::default());
        }
        let (values, width) = (&mut self.values, self.width);
        let type_ = std::marker::PhantomData::<N>;
        run(
            level,
            ProductLoad {
                bytes,
                shift,
                values,
                width,
                type_,
            },
        );
    }

    /// Returns the rows of the panel at which groups of four rows begin.
    fn fours(&self) -> impl Iterator<Item = usize> + use<T> {
        (0..self.rows).step_by(ROWS)
    }
}

struct ProductLoad<'a, T, N> {
    bytes: &'a [u8],
    shift: &'a [T],
    values: &'a mut [T],
    width: usize,
    type_: std::marker::PhantomData<N>,
}

impl<T: RealNumber, N: Number> SimdPass for ProductLoad<'_, T, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.bytes.chunks_exact(N::SIZE * self.shift.len());
        for (bytes, values) in rows.zip(self.values.chunks_exact_mut(self.width)) {
            let bytes = bytes.chunks_exact(N::SIZE);
            for ((value, bytes), shift) in values.iter_mut().zip(bytes).zip(self.shift) {
                *value = T::of(N::read(bytes).to_f64()) - *shift;
            }
        }
    }
}

/// Adds the result of `of` for each value of a panel to the sum of its column.
pub(crate) fn add_rows(
    level: Level,
    panel: &Panel<f64>,
    sums: &mut [f64],
    of: impl Fn(f64) -> f64,
) {
    run(level, AddRows { panel, sums, of });
}

struct AddRows<'a, F> {
    panel: &'a Panel<f64>,
    sums: &'a mut [f64],
    of: F,
}

impl<F: Fn(f64) -> f64> SimdPass for AddRows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.panel.values.chunks_exact(self.panel.width);
        for row in rows.take(self.panel.rows) {
            for (sum, value) in self.sums.iter_mut().zip(row) {
                *sum += (self.of)(*value);
            }
        }
    }
}

/// Columns for products with rows: each has as many numbers as a row. Their numbers are interleaved, and zeros fill the last columns.
#[derive(Debug, Default)]
pub(crate) struct Columns<T> {
    values: Vec<T>,
    width: usize,
    count: usize,
}

impl<T: RealNumber> Columns<T> {
    /// Returns columns with the numbers of the rows in `rows`, which has `length` numbers in each row.
    pub(crate) fn new(rows: &[T], length: usize) -> Self {
        let count = rows.len() / length;
        let width = count.next_multiple_of(PADDING);
        let mut values = vec![T::default(); width * length];
        for (column, row) in rows.chunks_exact(length).enumerate() {
            for (place, value) in row.iter().enumerate() {
                values[place * width + column] = *value;
            }
        }
        Self {
            values,
            width,
            count,
        }
    }

    fn length(&self) -> usize {
        self.values.len() / self.width
    }
}

/// Computes the sum of products of each row with each column, row-major.
pub(crate) fn multiply<T: RealNumber>(
    level: Level,
    panel: &Panel<T>,
    columns: &Columns<T>,
    to: &mut Vec<T>,
) {
    to.clear();
    to.resize(panel.rows * columns.count, T::default());
    with_width!(level, T, |N| run(
        level,
        Multiply::<T, N> { panel, columns, to }
    ));
}

struct Multiply<'a, T, const N: usize> {
    panel: &'a Panel<T>,
    columns: &'a Columns<T>,
    to: &'a mut [T],
}

impl<T: RealNumber, const N: usize> Multiply<'_, T, N> {
    #[inline(always)]
    fn block<const M: usize>(&mut self, first: usize, column: usize) {
        let (panel, columns) = (self.panel, self.columns);
        let a = &panel.values[first * panel.width..];
        let b = &columns.values[column..];
        let sums = tile::<T, M>(a, (panel.width, 1), b, columns.width, columns.length());
        let some = M.min(columns.count - column);
        for (row, sums) in (first..panel.rows).zip(&sums) {
            let to = &mut self.to[row * columns.count + column..][..some];
            to.copy_from_slice(&sums[..some]);
        }
    }
}

impl<T: RealNumber, const N: usize> SimdPass for Multiply<'_, T, N> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        for first in self.panel.fours() {
            let mut column = 0;
            while column + N <= self.columns.width {
                self.block::<N>(first, column);
                column += N;
            }
            while column < self.columns.width {
                self.block::<PADDING>(first, column);
                column += PADDING;
            }
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::float_cmp,
    clippy::cast_precision_loss,
    reason = "all paths give the same bits"
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes<T: Number>(values: &[T]) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * T::SIZE];
        for (value, to) in values.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            value.write(to);
        }
        bytes
    }

    /// Returns the sum of products in the order of the loops, without vectors.
    fn dot<T: RealNumber>(pairs: impl Iterator<Item = (T, T)>) -> T {
        pairs.fold(T::default(), |sum, (a, b)| sum + a * b)
    }

    fn check<T: RealNumber>(rows: &[T], length: usize, centres: &[T]) {
        let rows = &rows[..rows.len() / length * length];
        let centres = &centres[..centres.len() / length * length];
        let products: Vec<T> = rows
            .chunks(length)
            .flat_map(|row| {
                let pairs = |centre: &'_ [T]| dot(row.iter().copied().zip(centre.iter().copied()));
                centres.chunks(length).map(pairs).collect::<Vec<_>>()
            })
            .collect();
        let columns = Columns::new(centres, length);
        let (mut panel, mut found) = (Panel::default(), Vec::new());
        for level in Level::available() {
            panel.load::<T>(level, &bytes(rows), &vec![T::default(); length]);
            multiply(level, &panel, &columns, &mut found);
            assert!(found == products, "{level:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn row_products_are_equal_on_all_simd_levels(
            rows in proptest::collection::vec(-9.0..9.0_f64, 40..900),
            centres in proptest::collection::vec(prop_oneof![-9.0..9.0_f64, Just(1.0)], 40..900),
            length in 1..40_usize,
        ) {
            check(&rows, length, &centres);
            let narrow = |values: &[f64]| values.iter().map(|value| f32::of(*value)).collect::<Vec<_>>();
            check(&narrow(&rows), length, &narrow(&centres));
        }
    }
}
