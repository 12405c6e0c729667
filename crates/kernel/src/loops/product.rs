//! Products of small matrices, for kernels that look at rows of many columns: sums of products are kept in registers, four
//! rows by some vectors at a time. Each sum adds its products in order, unfused, so all vectors give the same bits.

use std::fmt::Debug;
use std::ops::{Add, Mul, Sub};

use super::number::Number;
use super::simd::{Level, Pass, run};

/// A floating-point number to compute in.
pub(crate) trait Real:
    Copy
    + Default
    + PartialOrd
    + Debug
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + 'static
{
    const INFINITY: Self;
    /// The nearest number of this type.
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
}

impl Real for f64 {
    const INFINITY: Self = f64::INFINITY;
    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
}

impl Real for f32 {
    const INFINITY: Self = f32::INFINITY;
    #[allow(clippy::cast_possible_truncation, reason = "rounding is meant")]
    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

/// A type of values, and that which kernels compute in for it.
pub(crate) trait Computed: Number {
    type Real: Real;
}

macro_rules! computed {
    ($($type:ty: $real:ty),*) => {
        $(impl Computed for $type {
            type Real = $real;
        })*
    };
}

computed!(f32: f32, f64: f64, i8: f64, i16: f64, i32: f64, i64: f64, u8: f64, u16: f64, u32: f64, u64: f64);

/// Widths are multiples of this: what is beside the columns is zero.
pub(crate) const PADDING: usize = 8;

/// Rows that are taken together.
const ROWS: usize = 4;

/// A sum of products for each of `N` columns and four rows: over all `steps`, the number at `lane * row + step * number` of `a` times
/// those from `width * number` on of `b`.
#[inline(always)]
fn tile<T: Real, const N: usize>(
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

/// Does `$body` with `$N` as the number of columns that `$level` keeps in registers at a time, for numbers of type `$T`.
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

/// Rows of numbers as a block: in each `width` of them, zeros behind the columns.
#[derive(Debug, Default)]
pub(crate) struct Panel<T> {
    pub(crate) values: Vec<T>,
    pub(crate) width: usize,
    pub(crate) rows: usize,
    columns: usize,
}

impl<T: Real> Panel<T> {
    /// Takes little-endian values, `shift.len()` in a row, less a shift for each column. Rows are filled up to a multiple of four with
    /// zeros.
    pub(crate) fn load<N: Number>(&mut self, level: Level, bytes: &[u8], shift: &[T]) {
        let rows = bytes.len() / N::SIZE / shift.len();
        if (rows, shift.len()) != (self.rows, self.columns) {
            self.rows = rows;
            self.columns = shift.len();
            self.width = shift.len().next_multiple_of(PADDING);
            self.values.clear();
            let all = rows.next_multiple_of(ROWS) * self.width;
            self.values.resize(all, T::default());
        }
        let (values, width) = (&mut self.values, self.width);
        let type_ = std::marker::PhantomData::<N>;
        run(
            level,
            Load {
                bytes,
                shift,
                values,
                width,
                type_,
            },
        );
    }

    /// The rows of four that the panel has.
    fn fours(&self) -> impl Iterator<Item = usize> + use<T> {
        (0..self.rows).step_by(ROWS)
    }
}

struct Load<'a, T, N> {
    bytes: &'a [u8],
    shift: &'a [T],
    values: &'a mut [T],
    width: usize,
    type_: std::marker::PhantomData<N>,
}

impl<T: Real, N: Number> Pass for Load<'_, T, N> {
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

/// Adds what `of` gives for each value of a panel to the sum of its column.
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

impl<F: Fn(f64) -> f64> Pass for AddRows<'_, F> {
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

/// Adds to `to`, row-major with the panel's width squared, the sums over all rows of products of any two columns; only for
/// those whose first is not behind the second, and some others near.
pub(crate) fn gram(level: Level, panel: &Panel<f64>, to: &mut [f64]) {
    with_width!(level, f64, |N| run(level, Gram::<N> { panel, to }));
}

struct Gram<'a, const N: usize> {
    panel: &'a Panel<f64>,
    to: &'a mut [f64],
}

impl<const N: usize> Gram<'_, N> {
    #[inline(always)]
    fn block<const M: usize>(&mut self, first: usize, second: usize) {
        let Panel {
            values,
            width,
            rows,
            ..
        } = self.panel;
        let sums = tile::<f64, M>(
            &values[first..],
            (1, *width),
            &values[second..],
            *width,
            *rows,
        );
        for (row, sums) in sums.iter().enumerate() {
            let to = &mut self.to[(first + row) * width + second..][..M];
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
        }
    }
}

impl<const N: usize> Pass for Gram<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let width = self.panel.width;
        for first in (0..width).step_by(ROWS) {
            let mut second = first / PADDING * PADDING;
            while second + N <= width {
                self.block::<N>(first, second);
                second += N;
            }
            while second < width {
                self.block::<PADDING>(first, second);
                second += PADDING;
            }
        }
    }
}

/// Columns that rows are multiplied with: as many numbers as a row has for each, beside each other, some behind them zero.
#[derive(Debug, Default)]
pub(crate) struct Columns<T> {
    values: Vec<T>,
    width: usize,
    count: usize,
}

impl<T: Real> Columns<T> {
    /// The columns are the rows of `rows`, which has `length` numbers in each.
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

/// The sum of products of each row with each column, row-major.
pub(crate) fn multiply<T: Real>(
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

impl<T: Real, const N: usize> Multiply<'_, T, N> {
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

impl<T: Real, const N: usize> Pass for Multiply<'_, T, N> {
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

/// For each row, the column whose product with it is largest when `penalties`, one for each column, are taken off; of equal ones the
/// first.
pub(crate) fn best<T: Real>(
    level: Level,
    panel: &Panel<T>,
    columns: &Columns<T>,
    penalties: &[T],
    to: &mut Vec<u32>,
) {
    let mut padded = penalties.to_vec();
    padded.resize(columns.width, T::INFINITY);
    to.clear();
    with_width!(level, T, |N| run(
        level,
        Best::<T, N> {
            panel,
            columns,
            penalties: &padded,
            to
        }
    ));
}

struct Best<'a, T, const N: usize> {
    panel: &'a Panel<T>,
    columns: &'a Columns<T>,
    penalties: &'a [T],
    to: &'a mut Vec<u32>,
}

/// The least of `N` residue classes of columns so far, for four rows: the penalty less the product, and the first of the columns
/// that the lane was at.
struct Least<T, const N: usize> {
    value: [[T; N]; ROWS],
    place: [[T; N]; ROWS],
}

impl<T: Real, const N: usize> Least<T, N> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            value: [[T::INFINITY; N]; ROWS],
            place: [[T::default(); N]; ROWS],
        }
    }

    #[inline(always)]
    fn take(&mut self, sums: &[[T; N]; ROWS], penalties: &[T; N], at: T) {
        let known = self.value.iter_mut().zip(&mut self.place);
        for ((least, place), sums) in known.zip(sums) {
            for lane in 0..N {
                let value = penalties[lane] - sums[lane];
                let less = value < least[lane];
                least[lane] = if less { value } else { least[lane] };
                place[lane] = if less { at } else { place[lane] };
            }
        }
    }

    /// The least of all lanes of a row, and its column; or what is known, if that is less.
    #[inline(always)]
    fn of_row(&self, row: usize, known: (T, T)) -> (T, T) {
        let (mut value, mut column) = (self.value[row], self.place[row]);
        for (lane, column) in column.iter_mut().enumerate() {
            #[allow(clippy::cast_precision_loss, reason = "there are few lanes")]
            let lane = T::of(lane as f64);
            *column = *column + lane;
        }
        let mut half = N / 2;
        while half > 0 {
            for lane in 0..half {
                let (a, b) = (
                    (value[lane], column[lane]),
                    (value[lane + half], column[lane + half]),
                );
                (value[lane], column[lane]) = lesser(a, b);
            }
            half /= 2;
        }
        lesser(known, (value[0], column[0]))
    }
}

/// That of the lesser value; of equal ones, that of the lesser column.
#[inline(always)]
fn lesser<T: Real>(a: (T, T), b: (T, T)) -> (T, T) {
    let second = (b.0 < a.0) | ((b.0 == a.0) & (b.1 < a.1));
    if second { b } else { a }
}

impl<T: Real, const N: usize> Best<'_, T, N> {
    #[inline(always)]
    fn block<const M: usize>(&self, first: usize, column: usize, least: &mut Least<T, M>) {
        let (panel, columns) = (self.panel, self.columns);
        let a = &panel.values[first * panel.width..];
        let b = &columns.values[column..];
        let sums = tile::<T, M>(a, (panel.width, 1), b, columns.width, columns.length());
        let penalties = self.penalties[column..].first_chunk::<M>();
        #[allow(
            clippy::cast_precision_loss,
            reason = "there are far fewer columns than 2^24"
        )]
        least.take(
            &sums,
            penalties.expect("the width is padded"),
            T::of(column as f64),
        );
    }
}

impl<T: Real, const N: usize> Pass for Best<'_, T, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for first in self.panel.fours() {
            let mut least = Least::<T, N>::new();
            let mut rest = Least::<T, PADDING>::new();
            let mut column = 0;
            while column + N <= self.columns.width {
                self.block::<N>(first, column, &mut least);
                column += N;
            }
            while column < self.columns.width {
                self.block::<PADDING>(first, column, &mut rest);
                column += PADDING;
            }
            for row in 0..ROWS.min(self.panel.rows - first) {
                let mut known = least.of_row(row, (T::INFINITY, T::INFINITY));
                if !self.columns.width.is_multiple_of(N) {
                    known = rest.of_row(row, known);
                }
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it was made of a column's number"
                )]
                self.to.push(known.1.wide() as u32);
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

    /// Sums in the order of the loops, without vectors.
    fn dot<T: Real>(pairs: impl Iterator<Item = (T, T)>) -> T {
        pairs.fold(T::default(), |sum, (a, b)| sum + a * b)
    }

    fn check<T: Real + Number>(rows: &[T], length: usize, centres: &[T]) {
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
        let penalties: Vec<T> = (0..columns.count)
            .map(|place| T::of((place % 5) as f64))
            .collect();
        let (mut panel, mut found, mut nearest) = (Panel::default(), Vec::new(), Vec::new());
        for level in Level::available() {
            panel.load::<T>(level, &bytes(rows), &vec![T::default(); length]);
            multiply(level, &panel, &columns, &mut found);
            assert!(found == products, "{level:?}");
            best(level, &panel, &columns, &penalties, &mut nearest);
            for (row, nearest) in products.chunks(columns.count).zip(&nearest) {
                let mut scores = row
                    .iter()
                    .zip(&penalties)
                    .map(|(product, penalty)| *penalty - *product);
                let least = scores
                    .clone()
                    .fold(T::INFINITY, |a, b| if b < a { b } else { a });
                let wanted = scores.position(|score| score == least);
                assert_eq!(Some(*nearest as usize), wanted, "{level:?}");
            }
        }
    }

    fn check_gram(rows: &[f64], length: usize) {
        let rows = &rows[..rows.len() / length * length];
        let mut panel = Panel::default();
        for level in Level::available() {
            panel.load::<f64>(level, &bytes(rows), &vec![0.0; length]);
            let mut found = vec![0.0; panel.width * panel.width];
            gram(level, &panel, &mut found);
            for first in 0..length {
                for second in first..length {
                    let wanted = dot(rows.chunks(length).map(|row| (row[first], row[second])));
                    assert!(
                        found[first * panel.width + second] == wanted,
                        "{level:?} {first} {second}"
                    );
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn all_levels_give_the_same(
            rows in proptest::collection::vec(-9.0..9.0_f64, 40..900),
            centres in proptest::collection::vec(prop_oneof![-9.0..9.0_f64, Just(1.0)], 40..900),
            length in 1..40_usize,
        ) {
            check(&rows, length, &centres);
            let narrow = |values: &[f64]| values.iter().map(|value| f32::of(*value)).collect::<Vec<_>>();
            check(&narrow(&rows), length, &narrow(&centres));
            check_gram(&rows, length);
        }
    }
}
