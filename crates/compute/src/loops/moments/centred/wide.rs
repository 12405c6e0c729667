//! The pass of [`super`] over a block in AVX-512.

use std::arch::x86_64::*;

use super::{Centred, LANES, ROWS, pairwise};

/// Distance at which memory is prefetched, in bytes.
const AHEAD_BYTES: usize = 4096;

/// Half of the number of lanes; half of the lanes fill a vector.
const HALF: usize = LANES / 2;

pub(super) fn doubles(products: bool, values: &[u8], centre: f64) -> Centred<f64> {
    // SAFETY: this is called only at levels that exist only where these instructions do.
    unsafe {
        if products {
            doubles_pass::<true>(values, centre)
        } else {
            doubles_pass::<false>(values, centre)
        }
    }
}

pub(super) fn singles(products: bool, values: &[u8], centre: f64) -> Centred<f32> {
    // SAFETY: as above.
    unsafe {
        if products {
            singles_pass::<true>(values, centre)
        } else {
            singles_pass::<false>(values, centre)
        }
    }
}

/// Partial sums, in two vectors each.
#[derive(Clone, Copy)]
struct WideSums {
    distances: [__m512d; 2],
    squares: [__m512d; 2],
    products: [__m512d; 2],
}

impl WideSums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        let zero = [_mm512_setzero_pd(); 2];
        Self {
            distances: zero,
            squares: zero,
            products: zero,
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add(&mut self, other: &Self) {
        for half in 0..2 {
            self.distances[half] = _mm512_add_pd(self.distances[half], other.distances[half]);
            self.squares[half] = _mm512_add_pd(self.squares[half], other.squares[half]);
            self.products[half] = _mm512_add_pd(self.products[half], other.products[half]);
        }
    }
}

/// State of a pass over a block, without its extremes.
struct CentredPass<const P: bool> {
    minus_centre: __m512d,
    /// The number 1, hidden from the compiler, which would turn some of the sums into plain additions again. These sums add products with
    /// 1, which gives the same result, so that they run on the units for products. Most processors have as many units for products as for
    /// additions, minima and maxima together.
    one: __m512d,
    all: WideSums,
    rows: WideSums,
    index: [__m512d; 2],
}

impl<const P: bool> CentredPass<P> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(centre: f64) -> Self {
        Self {
            minus_centre: _mm512_set1_pd(-centre),
            one: _mm512_set1_pd(std::hint::black_box(1.0)),
            all: WideSums::new(),
            rows: WideSums::new(),
            index: [
                _mm512_setr_pd(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
                _mm512_setr_pd(8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0),
            ],
        }
    }

    /// Adds a row of values, or the lanes of the row that the masks select.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn row(&mut self, values: [__m512d; 2], masks: [__mmask8; 2]) {
        for half in 0..2 {
            let (mask, rows) = (masks[half], &mut self.rows);
            let distance = _mm512_fmadd_pd(values[half], self.one, self.minus_centre);
            let add = |sum, term| _mm512_mask_add_pd(sum, mask, sum, term);
            rows.distances[half] =
                _mm512_mask3_fmadd_pd(distance, self.one, rows.distances[half], mask);
            rows.squares[half] = add(rows.squares[half], _mm512_mul_pd(distance, distance));
            if P {
                let product = _mm512_mul_pd(self.index[half], distance);
                rows.products[half] = add(rows.products[half], product);
                self.index[half] = _mm512_add_pd(self.index[half], _mm512_set1_pd(16.0));
            }
        }
    }

    /// Adds the sums of the rows so far to the total.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn end_of_rows(&mut self) {
        self.all.add(&self.rows);
        self.rows = WideSums::new();
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn centred<T>(&self, least: T, greatest: T, centre: f64) -> Centred<T> {
        Centred {
            least,
            greatest,
            centre,
            distances: pairwise(lanes(self.all.distances)),
            squares: pairwise(lanes(self.all.squares)),
            products: pairwise(lanes(self.all.products)),
        }
    }
}

/// Prefetches memory ahead of a row: the processor's own prefetcher stops at the end of a page.
#[inline(always)]
fn ahead(row: &[u8]) {
    for line in (0..row.len()).step_by(64) {
        let address = row.as_ptr().wrapping_add(AHEAD_BYTES + line);
        // SAFETY: a hint about any address; nothing is read.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
}

fn lanes(halves: [__m512d; 2]) -> [f64; LANES] {
    // SAFETY: both are 128 bytes of floats.
    unsafe { std::mem::transmute(halves) }
}

/// Returns the masks that select the first `count` lanes.
fn masks(count: usize) -> [__mmask8; 2] {
    let [low, high, ..] = ((1_u32 << count) - 1).to_le_bytes();
    [low, high]
}

#[target_feature(enable = "avx512f,avx512dq")]
fn doubles_pass<const P: bool>(values: &[u8], centre: f64) -> Centred<f64> {
    let mut around = CentredPass::<P>::new(centre);
    let mut least = [_mm512_set1_pd(f64::INFINITY); 2];
    let mut greatest = [_mm512_set1_pd(f64::NEG_INFINITY); 2];
    let mut row = |around: &mut CentredPass<P>, values: [__m512d; 2], masks: [__mmask8; 2]| {
        for half in 0..2 {
            // If a value is NaN, these operations keep the old value.
            let (value, mask) = (values[half], masks[half]);
            least[half] = _mm512_mask_min_pd(least[half], mask, value, least[half]);
            greatest[half] = _mm512_mask_max_pd(greatest[half], mask, value, greatest[half]);
        }
        around.row(values, masks);
    };
    for piece in values.chunks(ROWS * LANES * 8) {
        let (whole, tail) = piece.as_chunks::<{ LANES * 8 }>();
        for values in whole {
            ahead(values);
            let start = values.as_ptr().cast::<f64>();
            // SAFETY: a row has 128 bytes.
            let values = unsafe { [_mm512_loadu_pd(start), _mm512_loadu_pd(start.add(HALF))] };
            row(&mut around, values, [0xff; 2]);
        }
        if !tail.is_empty() {
            let (start, masks) = (tail.as_ptr().cast::<f64>(), masks(tail.len() / 8));
            // SAFETY: the masks exclude lanes after the tail.
            let values = unsafe {
                [
                    _mm512_maskz_loadu_pd(masks[0], start),
                    _mm512_maskz_loadu_pd(masks[1], start.wrapping_add(HALF)),
                ]
            };
            row(&mut around, values, masks);
        }
        around.end_of_rows();
    }
    let least = _mm512_reduce_min_pd(_mm512_min_pd(least[0], least[1]));
    let greatest = _mm512_reduce_max_pd(_mm512_max_pd(greatest[0], greatest[1]));
    around.centred(least, greatest, centre)
}

#[target_feature(enable = "avx512f,avx512dq")]
fn singles_pass<const P: bool>(values: &[u8], centre: f64) -> Centred<f32> {
    let mut around = CentredPass::<P>::new(centre);
    let mut least = _mm512_set1_ps(f32::INFINITY);
    let mut greatest = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut row = |around: &mut CentredPass<P>, values: __m512, masks: [__mmask8; 2]| {
        let mask = u16::from_le_bytes(masks);
        least = _mm512_mask_min_ps(least, mask, values, least);
        greatest = _mm512_mask_max_ps(greatest, mask, values, greatest);
        let low = _mm512_cvtps_pd(_mm512_castps512_ps256(values));
        let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(values));
        around.row([low, high], masks);
    };
    for piece in values.chunks(ROWS * LANES * 4) {
        let (whole, tail) = piece.as_chunks::<{ LANES * 4 }>();
        for values in whole {
            ahead(values);
            // SAFETY: a row has 64 bytes.
            let values = unsafe { _mm512_loadu_ps(values.as_ptr().cast()) };
            row(&mut around, values, [0xff; 2]);
        }
        if !tail.is_empty() {
            let masks = masks(tail.len() / 4);
            let mask = u16::from_le_bytes(masks);
            // SAFETY: the mask excludes lanes after the tail.
            let values = unsafe { _mm512_maskz_loadu_ps(mask, tail.as_ptr().cast()) };
            row(&mut around, values, masks);
        }
        around.end_of_rows();
    }
    let (least, greatest) = (_mm512_reduce_min_ps(least), _mm512_reduce_max_ps(greatest));
    around.centred(least, greatest, centre)
}
