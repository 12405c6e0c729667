//! Sums of 32-bit integers with AVX-512 and its instructions for 52-bit integers, which multiply and add in one operation.

use std::arch::x86_64::*;

use super::{BLOCK, BLOCK_OF_PRODUCTS, Biased, BlockMoments, LIMBS, SumKinds};
use crate::loops::number::Number;

/// Distance at which memory is prefetched, in bytes: the processor's own prefetcher stops at the end of a page.
const AHEAD_BYTES: usize = 4096;

/// Number of values in a row.
const ROW: usize = 16;

pub(super) fn moments_of_32_bits<T: Number, const SIGNED: bool>(
    want: SumKinds,
    values: &[u8],
) -> BlockMoments<T> {
    check(want, values.len() / 4);
    // SAFETY: this is called only at `Level::Ifma`, which exists only where these instructions do.
    unsafe {
        match want {
            SumKinds::Sum => integers::<T, SIGNED, false, false>(values),
            SumKinds::Squares => integers::<T, SIGNED, true, false>(values),
            SumKinds::Products => integers::<T, SIGNED, true, true>(values),
        }
    }
}

/// Checks that a block is not longer than the lengths up to which the sums are exact.
fn check(want: SumKinds, count: usize) {
    let max = if want == SumKinds::Products {
        BLOCK_OF_PRODUCTS
    } else {
        BLOCK
    };
    assert!(
        count <= max,
        "a block of {count} values is too long to be summed"
    );
}

/// Sums of one limb of the values, with two vectors for each row.
#[derive(Clone, Copy)]
struct Limb {
    sums: [__m512i; 2],
    /// Sum of `sums` after each row.
    running: [__m512i; 2],
}

/// Sums of the low and high 52 bits of products.
#[derive(Clone, Copy)]
struct Products {
    low: [__m512i; 2],
    high: [__m512i; 2],
}

impl Limb {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self {
            sums: [zero; 2],
            running: [zero; 2],
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add<const P: bool>(&mut self, half: usize, limb: __m512i) {
        self.sums[half] = _mm512_add_epi64(self.sums[half], limb);
        if P {
            self.running[half] = _mm512_add_epi64(self.running[half], self.sums[half]);
        }
    }

    /// Returns the sum of limbs and the sum of their products with the index, given the bits that each value contains in addition to the
    /// limb. Values of a half are `stride` apart, and the halves `apart`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn together<const P: bool>(
        &self,
        rows: usize,
        bits: u64,
        stride: usize,
        apart: usize,
    ) -> (i128, i128) {
        let (mut sum, mut products) = (0, 0);
        let rows_64 = rows as u64;
        for half in 0..2 {
            let (sums, running) = (lanes(self.sums[half]), lanes(self.running[half]));
            for lane in 0..8 {
                let one = sums[lane].wrapping_sub(bits.wrapping_mul(rows_64));
                let one = i128::from(one.cast_signed());
                sum += one;
                if P {
                    // Row r was added rows - r times.
                    let times = rows_64 * (rows_64 + 1) / 2;
                    let running = running[lane].wrapping_sub(bits.wrapping_mul(times));
                    let by_row = rows as i128 * one - i128::from(running.cast_signed());
                    let place = half * apart + lane * stride;
                    products += by_row * ROW as i128 + one * place as i128;
                }
            }
        }
        (sum, products)
    }
}

impl Products {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self {
            low: [zero; 2],
            high: [zero; 2],
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn add(&mut self, half: usize, a: __m512i, b: __m512i) {
        self.low[half] = _mm512_madd52lo_epu64(self.low[half], a, b);
        self.high[half] = _mm512_madd52hi_epu64(self.high[half], a, b);
    }

    /// Returns the sum of products. A block has at most 2^12 values, so neither sum wraps.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn together(&self) -> i128 {
        let sum = |halves: [__m512i; 2]| {
            let both = _mm512_add_epi64(halves[0], halves[1]);
            i128::from(_mm512_reduce_add_epi64(both).cast_unsigned())
        };
        (sum(self.high) << 52) + sum(self.low)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(vector: __m512i) -> [u64; 8] {
    // SAFETY: both are 64 bytes of integers.
    unsafe { std::mem::transmute(vector) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512ifma")]
fn integers<T: Number, const SIGNED: bool, const Q: bool, const P: bool>(
    values: &[u8],
) -> BlockMoments<T> {
    let bias: u32 = if SIGNED { 1 << 31 } else { 0 };
    let flip = _mm512_set1_epi32(bias.cast_signed());
    let low = _mm512_set1_epi64(0xffff_ffff);
    let mut least = _mm512_set1_epi32(-1);
    let mut greatest = _mm512_setzero_si512();
    let mut limb = Limb::new();
    // There are two, because a product takes longer than a row.
    let mut products = [Products::new(); 2];
    let mut row = |turn: usize, values: __m512i, mask: __mmask16| {
        let ordered = _mm512_xor_si512(values, flip);
        least = _mm512_mask_min_epu32(least, mask, ordered, least);
        greatest = _mm512_mask_max_epu32(greatest, mask, ordered, greatest);
        let halves = [
            _mm512_and_si512(ordered, low),
            _mm512_srli_epi64::<32>(ordered),
        ];
        for (half, value) in halves.into_iter().enumerate() {
            limb.add::<P>(half, value);
            if Q {
                products[turn].add(half, value, value);
            }
        }
    };
    let (whole, tail) = values.as_chunks::<{ ROW * 4 }>();
    let mut load = |turn: usize, values: &[u8; ROW * 4]| {
        let ahead = values.as_ptr().wrapping_add(AHEAD_BYTES);
        // SAFETY: the first is a hint about any address, which reads nothing; a row has 64 bytes.
        let values = unsafe {
            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            _mm512_loadu_si512(values.as_ptr().cast())
        };
        row(turn, values, 0xffff);
    };
    let (pairs, odd) = whole.as_chunks::<2>();
    for [first, second] in pairs {
        load(0, first);
        load(1, second);
    }
    for values in odd {
        load(0, values);
    }
    let count = tail.len() / 4;
    if count > 0 {
        let mask = mask16(count);
        // SAFETY: the mask excludes lanes after the tail.
        row(
            0,
            unsafe { _mm512_maskz_loadu_epi32(mask, tail.as_ptr().cast()) },
            mask,
        );
    }
    let rows = whole.len() + usize::from(count > 0);
    let mut all = Biased {
        count: (rows * ROW) as i128,
        limbs: 1,
        bias: [i128::from(bias); LIMBS],
        ..Biased::default()
    };
    (all.sums[0], all.products[0]) = limb.together::<P>(rows, bias.into(), 2, 1);
    all.squares[0][0] = products[0].together() + products[1].together();
    let number = |ordered: u32| T::read(&(ordered ^ bias).to_le_bytes());
    BlockMoments {
        least: number(_mm512_reduce_min_epu32(least)),
        greatest: number(_mm512_reduce_max_epu32(greatest)),
        sums: all.unbiased(),
    }
}

#[inline]
fn mask16(count: usize) -> __mmask16 {
    u16::try_from((1_u32 << count.min(16)) - 1).unwrap_or(u16::MAX)
}
