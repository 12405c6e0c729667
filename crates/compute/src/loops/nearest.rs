//! Finds the nearest of some centres for each of many rows. Each lane of a vector has a row, so the nearest centre is chosen in all lanes
//! at once: the centre with the largest product minus a penalty. Each sum begins with the penalty and adds its products in order, fused, so
//! all vector types give the same bits.

use std::marker::PhantomData;

use super::lanes::{CacheAligned, Lanes, tile, with_lanes};
use super::number::bytes_of;
use super::product::{Panel, RealNumber};
use super::simd::{Level, SimdPass, run};
use super::transpose::{ColumnBlock, transpose};

/// Number of centres whose sums are kept in registers at a time.
const CENTRES: usize = 4;

/// Size of the rows that are processed together, in bytes: four cache lines.
const BAND_BYTES: usize = 256;

/// Centres in groups of four, column by column.
#[derive(Debug)]
pub(crate) struct Centres<T> {
    values: Vec<T>,
    /// Negative penalties of the centres; negative infinity for padding without a centre.
    penalties: Vec<T>,
    columns: usize,
}

impl<T: RealNumber> Centres<T> {
    /// Returns the centres in groups, given `columns` numbers for each, which are rounded; a penalty is half the sum of their squares.
    pub(crate) fn new(centres: &[f64], columns: usize) -> Self {
        let count = (centres.len() / columns).next_multiple_of(CENTRES);
        let mut values = vec![T::default(); count * columns];
        let mut penalties = vec![T::of(f64::NEG_INFINITY); count];
        for (centre, numbers) in centres.chunks_exact(columns).enumerate() {
            let start = centre / CENTRES * CENTRES * columns + centre % CENTRES;
            let mut squares = 0.0;
            for (column, number) in numbers.iter().enumerate() {
                let number = T::of(*number);
                values[start + column * CENTRES] = number;
                squares += number.to_f64() * number.to_f64();
            }
            penalties[centre] = T::of(-squares / 2.0);
        }
        Self {
            values,
            penalties,
            columns,
        }
    }
}

/// Finder of the nearest centres of rows; its buffers are kept for the next rows.
#[derive(Debug, Default)]
pub(crate) struct Nearest<T> {
    turned: CacheAligned<T>,
    places: CacheAligned<T>,
}

impl<T: RealNumber> Nearest<T> {
    /// Finds the number of a centre for each row of the panel: the centre whose product with the row, minus half the square of the
    /// centre, is largest. Of equal centres, the first is chosen.
    pub(crate) fn find(
        &mut self,
        level: Level,
        panel: &Panel<T>,
        centres: &Centres<T>,
        to: &mut Vec<u32>,
    ) {
        let band = BAND_BYTES / size_of::<T>();
        to.clear();
        self.turned.resize(band * centres.columns);
        self.places.resize(band);
        for first in (0..panel.rows).step_by(band) {
            let part = ColumnBlock {
                from: bytes_of(&panel.values[first * panel.width..][..band * panel.width]),
                size: size_of::<T>(),
                rows: band,
                width: panel.width,
                first: 0,
                columns: centres.columns,
            };
            transpose(part, bytes_mut(self.turned.values_mut()), level);
            let (turned, places) = (self.turned.values(), self.places.values_mut());
            with_lanes!(level, T, |V| run(
                level,
                Find::<V<T>> {
                    turned,
                    centres,
                    places,
                    lanes: PhantomData,
                }
            ));
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "places are made of whole numbers"
            )]
            to.extend(
                places[..band.min(panel.rows - first)]
                    .iter()
                    .map(|place| place.to_f64() as u32),
            );
        }
    }
}

fn bytes_mut<T: RealNumber>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: numbers are bytes without gaps, and any bytes are numbers.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

struct Find<'a, V: Lanes> {
    /// Transposed rows: columns of one band of rows at a time.
    turned: &'a [V::Number],
    centres: &'a Centres<V::Number>,
    places: &'a mut [V::Number],
    lanes: PhantomData<V>,
}

impl<V: Lanes> Find<'_, V> {
    /// Finds the nearest centres for the rows of `C` vectors, from row `first` on.
    #[inline(always)]
    fn vectors<const C: usize>(&mut self, first: usize) {
        let (columns, band) = (self.centres.columns, self.places.len());
        assert!(first + C * V::COUNT <= band && self.turned.len() == band * columns);
        assert!(self.centres.values.len() == self.centres.penalties.len() * columns);
        let row = |vector| first + vector * V::COUNT;
        let rows = std::array::from_fn(|vector| self.turned.as_ptr().wrapping_add(row(vector)));
        // SAFETY: a pass runs only on processors with its instructions. Each column has all these rows, each four centres have `columns`
        // times four numbers, and each row has a place, as asserted above.
        unsafe {
            let mut most = [V::all(V::Number::of(f64::NEG_INFINITY)); C];
            let mut places = [V::all(V::Number::default()); C];
            let fours = self.centres.values.chunks_exact(CENTRES * columns);
            let mut place = V::Number::default();
            for (values, penalties) in fours.zip(self.centres.penalties.as_chunks::<CENTRES>().0) {
                let mut sums = penalties.map(|penalty| [V::all(penalty); C]);
                tile(&mut sums, (values.as_ptr(), rows), (CENTRES, band), columns);
                for sums in sums {
                    for (vector, sum) in sums.into_iter().enumerate() {
                        most[vector].greater(&mut places[vector], sum, V::all(place));
                    }
                    place = place + V::Number::of(1.0);
                }
            }
            for (vector, places) in places.into_iter().enumerate() {
                places.store(self.places[row(vector)..].as_mut_ptr());
            }
        }
    }
}

impl<V: Lanes> SimdPass for Find<'_, V> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        // As many sums as registers hold: 16 of 32, or 8 of 16.
        if V::COUNT * size_of::<V::Number>() == 64 {
            for first in (0..self.places.len()).step_by(4 * V::COUNT) {
                self.vectors::<4>(first);
            }
        } else {
            for first in (0..self.places.len()).step_by(2 * V::COUNT) {
                self.vectors::<2>(first);
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

    fn check<T: RealNumber>(rows: &[T], columns: usize, centres: &[f64]) {
        let rows = &rows[..rows.len() / columns * columns];
        let centres = &centres[..centres.len() / columns * columns];
        let score = |row: &[T], centre: &[f64]| {
            let squares: f64 = centre
                .iter()
                .map(|x| T::of(*x).to_f64() * T::of(*x).to_f64())
                .fold(0.0, |sum, square| sum + square);
            let pairs = row.iter().zip(centre);
            pairs.fold(T::of(-squares / 2.0), |sum, (a, b)| {
                sum.fused(*a, T::of(*b))
            })
        };
        let wanted: Vec<u32> = rows
            .chunks(columns)
            .map(|row| {
                let mut best = (0, T::of(f64::NEG_INFINITY));
                for (place, centre) in (0..).zip(centres.chunks(columns)) {
                    let score = score(row, centre);
                    best = if score > best.1 { (place, score) } else { best };
                }
                best.0
            })
            .collect();
        let packed = Centres::<T>::new(centres, columns);
        let (mut panel, mut nearest, mut found) =
            (Panel::default(), Nearest::default(), Vec::new());
        for level in Level::available() {
            panel.load::<T>(level, bytes_of(rows), &vec![T::default(); columns]);
            nearest.find(level, &panel, &packed, &mut found);
            assert_eq!(found, wanted, "{level:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn nearest_centre_is_equal_on_all_simd_levels(
            rows in proptest::collection::vec(-9.0..9.0_f64, 40..3000),
            centres in proptest::collection::vec(prop_oneof![-9.0..9.0_f64, Just(1.0)], 40..900),
            columns in 1..40_usize,
        ) {
            check(&rows, columns, &centres);
            let narrow: Vec<_> = rows.iter().map(|value| f32::of(*value)).collect();
            check(&narrow, columns, &centres);
        }
    }
}
