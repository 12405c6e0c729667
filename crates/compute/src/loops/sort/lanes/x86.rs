//! Vectors of sort keys for AVX2 (`Half…`) and AVX-512 (`Wide…`).

use std::arch::x86_64::{
    __m256i, __m512i, _mm_sfence, _mm256_blend_epi32, _mm256_blendv_epi8, _mm256_castsi256_pd,
    _mm256_castsi256_ps, _mm256_cmpgt_epi32, _mm256_cmpgt_epi64, _mm256_loadu_si256,
    _mm256_maskload_epi32, _mm256_maskload_epi64, _mm256_maskstore_epi32, _mm256_maskstore_epi64,
    _mm256_max_epi32, _mm256_min_epi32, _mm256_movemask_pd, _mm256_movemask_ps,
    _mm256_permute2x128_si256, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32,
    _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setr_epi32, _mm256_setr_epi64x,
    _mm256_shuffle_epi32, _mm256_storeu_si256, _mm256_stream_si256, _mm512_cmpgt_epi32_mask,
    _mm512_cmpgt_epi64_mask, _mm512_loadu_si512, _mm512_mask_loadu_epi32, _mm512_mask_loadu_epi64,
    _mm512_mask_max_epi32, _mm512_mask_max_epi64, _mm512_mask_storeu_epi32,
    _mm512_mask_storeu_epi64, _mm512_maskz_compress_epi32, _mm512_maskz_compress_epi64,
    _mm512_max_epi32, _mm512_max_epi64, _mm512_min_epi32, _mm512_min_epi64,
    _mm512_permutexvar_epi32, _mm512_permutexvar_epi64, _mm512_set1_epi32, _mm512_set1_epi64,
    _mm512_setr_epi32, _mm512_setr_epi64, _mm512_shuffle_epi32, _mm512_shuffle_i64x2,
    _mm512_storeu_si512, _mm512_stream_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::super::quick;
use super::{KeyLanes, SortNetwork};
use crate::loops::simd::SimdPass;

#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
fn avx2<P: SimdPass>(pass: P) -> P::Output {
    pass.run()
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi1,bmi2")]
fn avx512<P: SimdPass>(pass: P) -> P::Output {
    pass.run()
}

/// Returns a mask of the lanes of a vector of `width` lanes that take the higher key at `distance`. A `distance` of all bits is a reversal:
/// its upper half is higher.
const fn higher(distance: usize, width: usize) -> u32 {
    let top = 1 << (usize::BITS - 1 - distance.leading_zeros());
    let (mut bits, mut lane) = (0, 0);
    while lane < width {
        if lane & top != 0 {
            bits |= 1 << lane;
        }
        lane += 1;
    }
    bits
}

/// Defines the items of [`KeyLanes`] that differ between the vectors only in types and instructions.
macro_rules! key_lanes {
    ($key:ty, $width:literal, $within:ident, $splat:ident, $load:ident, $store:ident, $stream:ident) => {
        type Key = $key;
        const WIDTH: usize = $width;
        const LOWEST: $key = <$key>::MIN;

        fn within<P: SimdPass>(pass: P) -> P::Output {
            // SAFETY: as the trait demands.
            unsafe { $within(pass) }
        }
        #[inline(always)]
        unsafe fn sort(keys: *mut $key, length: usize, scratch: *mut $key) {
            // SAFETY: as the caller's.
            unsafe { quick::sort::<Self>(keys, keys, length, scratch) };
        }
        #[inline(always)]
        fn fence() {
            // SAFETY: every x86-64 processor has it.
            unsafe { _mm_sfence() };
        }
        #[inline(always)]
        unsafe fn splat(key: $key) -> Self {
            // SAFETY: see the trait.
            Self(unsafe { $splat(key) })
        }
        #[inline(always)]
        unsafe fn load(from: *const $key) -> Self {
            // SAFETY: see the trait.
            Self(unsafe { $load(from.cast()) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut $key) {
            // SAFETY: see the trait.
            unsafe { $store(to.cast(), self.0) };
        }
        #[inline(always)]
        unsafe fn stream(self, to: *mut $key) {
            // SAFETY: see the trait.
            unsafe { $stream(to.cast(), self.0) };
        }
    };
}

/// Defines the items of [`SortNetwork`] that differ between the vectors of AVX-512 only in types and instructions.
macro_rules! wide_network {
    ($key:ty, $bits:ty, $width:literal, $splat:ident, $load:ident, $store:ident, $min:ident, $max:ident, $mask_max:ident) => {
        const ROWS: usize = 16;
        const HIGHEST: $key = <$key>::MAX;

        #[inline(always)]
        fn before(key: $key) -> $key {
            key - 1
        }
        #[inline(always)]
        unsafe fn load_part(from: *const $key, count: usize) -> Self {
            let bits = ((1_u32 << count) - 1) as $bits;
            // SAFETY: see the trait; lanes that are masked out are not touched.
            Self(unsafe { $load($splat(<$key>::MAX), bits, from) })
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut $key, count: usize) {
            let bits = ((1_u32 << count) - 1) as $bits;
            // SAFETY: see the trait; lanes that are masked out are not touched.
            unsafe { $store(to, bits, self.0) };
        }
        #[inline(always)]
        unsafe fn min(self, other: Self) -> Self {
            // SAFETY: see the trait.
            Self(unsafe { $min(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn max(self, other: Self) -> Self {
            // SAFETY: see the trait.
            Self(unsafe { $max(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn exchange<const DISTANCE: usize>(self, other: Self) -> Self {
            let bits = const { higher(DISTANCE, $width) } as $bits;
            // SAFETY: see the trait.
            Self(unsafe {
                let low = $min(self.0, other.0);
                $mask_max(low, bits, self.0, other.0)
            })
        }
    };
}

/// Vector of sixteen keys of four bytes.
#[derive(Clone, Copy)]
pub(in super::super) struct Wide32(__m512i);

#[allow(clippy::cast_possible_truncation, reason = "masks have a bit a lane")]
// SAFETY: the caller of each method has AVX-512 F, BW, DQ and VL, as the trait demands.
unsafe impl KeyLanes for Wide32 {
    key_lanes!(
        i32,
        16,
        avx512,
        _mm512_set1_epi32,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_stream_si512
    );

    #[inline(always)]
    unsafe fn above(self, pivot: Self) -> u32 {
        // SAFETY: see the trait.
        u32::from(unsafe { _mm512_cmpgt_epi32_mask(self.0, pivot.0) })
    }
    #[inline(always)]
    unsafe fn compress(self, bits: u32) -> Self {
        // SAFETY: see the trait.
        Self(unsafe { _mm512_maskz_compress_epi32(bits as u16, self.0) })
    }
}

#[allow(clippy::cast_possible_truncation, reason = "masks have a bit a lane")]
// SAFETY: as above.
unsafe impl SortNetwork for Wide32 {
    wide_network!(
        i32,
        u16,
        16,
        _mm512_set1_epi32,
        _mm512_mask_loadu_epi32,
        _mm512_mask_storeu_epi32,
        _mm512_min_epi32,
        _mm512_max_epi32,
        _mm512_mask_max_epi32
    );

    #[inline(always)]
    unsafe fn swap<const DISTANCE: usize>(self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            match DISTANCE {
                1 => _mm512_shuffle_epi32::<0b10_11_00_01>(self.0),
                2 => _mm512_shuffle_epi32::<0b01_00_11_10>(self.0),
                3 => _mm512_shuffle_epi32::<0b00_01_10_11>(self.0),
                4 => _mm512_shuffle_i64x2::<0b10_11_00_01>(self.0, self.0),
                8 => _mm512_shuffle_i64x2::<0b01_00_11_10>(self.0, self.0),
                7 => {
                    let index =
                        _mm512_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8);
                    _mm512_permutexvar_epi32(index, self.0)
                }
                _ => {
                    let index =
                        _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
                    _mm512_permutexvar_epi32(index, self.0)
                }
            }
        })
    }
    #[inline(always)]
    unsafe fn turn_columns(rows: &mut [Self; 16]) {
        // SAFETY: see the trait.
        unsafe {
            // Pairs of rows, then pairs of pairs: each quarter of a vector then has four rows of a column.
            let mut pairs = [rows[0].0; 16];
            for row in 0..8 {
                let (even, odd) = (rows[2 * row].0, rows[2 * row + 1].0);
                pairs[2 * row] = _mm512_unpacklo_epi32(even, odd);
                pairs[2 * row + 1] = _mm512_unpackhi_epi32(even, odd);
            }
            let mut fours = [rows[0].0; 16];
            for group in 0..4 {
                let at = 4 * group;
                fours[at] = _mm512_unpacklo_epi64(pairs[at], pairs[at + 2]);
                fours[at + 1] = _mm512_unpackhi_epi64(pairs[at], pairs[at + 2]);
                fours[at + 2] = _mm512_unpacklo_epi64(pairs[at + 1], pairs[at + 3]);
                fours[at + 3] = _mm512_unpackhi_epi64(pairs[at + 1], pairs[at + 3]);
            }
            for column in 0..4 {
                let (a, b) = (fours[column], fours[column + 4]);
                let (c, d) = (fours[column + 8], fours[column + 12]);
                let low_ab = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
                let high_ab = _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
                let low_cd = _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d);
                let high_cd = _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d);
                rows[column].0 = _mm512_shuffle_i64x2::<0b10_00_10_00>(low_ab, low_cd);
                rows[column + 4].0 = _mm512_shuffle_i64x2::<0b10_00_10_00>(high_ab, high_cd);
                rows[column + 8].0 = _mm512_shuffle_i64x2::<0b11_01_11_01>(low_ab, low_cd);
                rows[column + 12].0 = _mm512_shuffle_i64x2::<0b11_01_11_01>(high_ab, high_cd);
            }
        }
    }
}

/// Vector of eight keys of eight bytes.
#[derive(Clone, Copy)]
pub(in super::super) struct Wide64(__m512i);

#[allow(clippy::cast_possible_truncation, reason = "masks have a bit a lane")]
// SAFETY: the caller of each method has AVX-512 F, BW, DQ and VL, as the trait demands.
unsafe impl KeyLanes for Wide64 {
    key_lanes!(
        i64,
        8,
        avx512,
        _mm512_set1_epi64,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_stream_si512
    );

    #[inline(always)]
    unsafe fn above(self, pivot: Self) -> u32 {
        // SAFETY: see the trait.
        u32::from(unsafe { _mm512_cmpgt_epi64_mask(self.0, pivot.0) })
    }
    #[inline(always)]
    unsafe fn compress(self, bits: u32) -> Self {
        // SAFETY: see the trait.
        Self(unsafe { _mm512_maskz_compress_epi64(bits as u8, self.0) })
    }
}

#[allow(clippy::cast_possible_truncation, reason = "masks have a bit a lane")]
// SAFETY: as above.
unsafe impl SortNetwork for Wide64 {
    wide_network!(
        i64,
        u8,
        8,
        _mm512_set1_epi64,
        _mm512_mask_loadu_epi64,
        _mm512_mask_storeu_epi64,
        _mm512_min_epi64,
        _mm512_max_epi64,
        _mm512_mask_max_epi64
    );

    #[inline(always)]
    unsafe fn swap<const DISTANCE: usize>(self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            match DISTANCE {
                1 => _mm512_shuffle_epi32::<0b01_00_11_10>(self.0),
                2 => _mm512_shuffle_i64x2::<0b10_11_00_01>(self.0, self.0),
                4 => _mm512_shuffle_i64x2::<0b01_00_11_10>(self.0, self.0),
                3 => {
                    let index = _mm512_setr_epi64(3, 2, 1, 0, 7, 6, 5, 4);
                    _mm512_permutexvar_epi64(index, self.0)
                }
                _ => {
                    let index = _mm512_setr_epi64(7, 6, 5, 4, 3, 2, 1, 0);
                    _mm512_permutexvar_epi64(index, self.0)
                }
            }
        })
    }
    #[inline(always)]
    unsafe fn turn_columns(rows: &mut [Self; 16]) {
        // SAFETY: see the trait.
        unsafe {
            let mut pairs = [rows[0].0; 16];
            for row in 0..8 {
                let (even, odd) = (rows[2 * row].0, rows[2 * row + 1].0);
                pairs[2 * row] = _mm512_unpacklo_epi64(even, odd);
                pairs[2 * row + 1] = _mm512_unpackhi_epi64(even, odd);
            }
            for half in 0..2 {
                for column in 0..2 {
                    let first = 8 * half + column;
                    let (a, b) = (pairs[first], pairs[first + 2]);
                    let (c, d) = (pairs[first + 4], pairs[first + 6]);
                    let low_ab = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
                    let high_ab = _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
                    let low_cd = _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d);
                    let high_cd = _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d);
                    let at = 2 * column + half;
                    rows[at].0 = _mm512_shuffle_i64x2::<0b10_00_10_00>(low_ab, low_cd);
                    rows[at + 4].0 = _mm512_shuffle_i64x2::<0b10_00_10_00>(high_ab, high_cd);
                    rows[at + 8].0 = _mm512_shuffle_i64x2::<0b11_01_11_01>(low_ab, low_cd);
                    rows[at + 12].0 = _mm512_shuffle_i64x2::<0b11_01_11_01>(high_ab, high_cd);
                }
            }
        }
    }
}

/// Permutation for each set of lanes of eight: the lanes of the set in order, then lane 0.
static FRONT_8: [[i32; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut bits = 0;
    while bits < 256 {
        let (mut lane, mut count) = (0, 0);
        while lane < 8 {
            if bits & (1 << lane) != 0 {
                table[bits][count] = lane;
                count += 1;
            }
            lane += 1;
        }
        bits += 1;
    }
    table
};

/// Permutation for each set of lanes of four: the four-byte halves of the set's lanes in order, then lane 0.
static FRONT_4: [[i32; 8]; 16] = {
    let mut table = [[0; 8]; 16];
    let mut bits = 0;
    while bits < 16 {
        let (mut lane, mut count) = (0, 0);
        while lane < 4 {
            if bits & (1 << lane) != 0 {
                table[bits][count] = 2 * lane;
                table[bits][count + 1] = 2 * lane + 1;
                count += 2;
            }
            lane += 1;
        }
        bits += 1;
    }
    table
};

/// Vector of eight keys of four bytes.
#[derive(Clone, Copy)]
pub(in super::super) struct Half32(__m256i);

/// Returns a vector with all ones in the eight-byte lanes below `count`.
#[inline(always)]
unsafe fn first_4(count: usize) -> __m256i {
    let count = i64::try_from(count).unwrap_or(4);
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3)) }
}

/// Returns a vector with all ones in the four-byte lanes below `count`.
#[inline(always)]
unsafe fn first_8(count: usize) -> __m256i {
    let count = i32::try_from(count).unwrap_or(8);
    // SAFETY: the caller has AVX2.
    unsafe {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes)
    }
}

// SAFETY: the caller of each method has AVX2, as the trait demands.
unsafe impl KeyLanes for Half32 {
    key_lanes!(
        i32,
        8,
        avx2,
        _mm256_set1_epi32,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_stream_si256
    );

    #[inline(always)]
    unsafe fn above(self, pivot: Self) -> u32 {
        // SAFETY: see the trait.
        unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(self.0, pivot.0))) }
            .cast_unsigned()
    }
    #[inline(always)]
    unsafe fn compress(self, bits: u32) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            let index = _mm256_loadu_si256(FRONT_8[bits as usize & 255].as_ptr().cast());
            _mm256_permutevar8x32_epi32(self.0, index)
        })
    }
}

// SAFETY: as above.
unsafe impl SortNetwork for Half32 {
    const ROWS: usize = 8;
    const HIGHEST: i32 = i32::MAX;

    #[inline(always)]
    fn before(key: i32) -> i32 {
        key - 1
    }
    #[inline(always)]
    unsafe fn load_part(from: *const i32, count: usize) -> Self {
        // SAFETY: see the trait; lanes that are masked out are not touched.
        Self(unsafe {
            let some = first_8(count);
            let loaded = _mm256_maskload_epi32(from, some);
            _mm256_blendv_epi8(_mm256_set1_epi32(i32::MAX), loaded, some)
        })
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut i32, count: usize) {
        // SAFETY: see the trait; lanes that are masked out are not touched.
        unsafe { _mm256_maskstore_epi32(to, first_8(count), self.0) };
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe { _mm256_min_epi32(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe { _mm256_max_epi32(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn swap<const DISTANCE: usize>(self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            match DISTANCE {
                1 => _mm256_shuffle_epi32::<0b10_11_00_01>(self.0),
                2 => _mm256_shuffle_epi32::<0b01_00_11_10>(self.0),
                3 => _mm256_shuffle_epi32::<0b00_01_10_11>(self.0),
                4 => _mm256_permute2x128_si256::<1>(self.0, self.0),
                _ => {
                    let index = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
                    _mm256_permutevar8x32_epi32(self.0, index)
                }
            }
        })
    }
    #[inline(always)]
    unsafe fn exchange<const DISTANCE: usize>(self, other: Self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            let low = _mm256_min_epi32(self.0, other.0);
            let high = _mm256_max_epi32(self.0, other.0);
            match DISTANCE {
                1 => _mm256_blend_epi32::<0b1010_1010>(low, high),
                2 | 3 => _mm256_blend_epi32::<0b1100_1100>(low, high),
                _ => _mm256_blend_epi32::<0b1111_0000>(low, high),
            }
        })
    }
}

/// Vector of four keys of eight bytes.
#[derive(Clone, Copy)]
pub(in super::super) struct Half64(__m256i);

// SAFETY: the caller of each method has AVX2, as the trait demands.
unsafe impl KeyLanes for Half64 {
    key_lanes!(
        i64,
        4,
        avx2,
        _mm256_set1_epi64x,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_stream_si256
    );

    #[inline(always)]
    unsafe fn above(self, pivot: Self) -> u32 {
        // SAFETY: see the trait.
        unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(self.0, pivot.0))) }
            .cast_unsigned()
    }
    #[inline(always)]
    unsafe fn compress(self, bits: u32) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            let index = _mm256_loadu_si256(FRONT_4[bits as usize & 15].as_ptr().cast());
            _mm256_permutevar8x32_epi32(self.0, index)
        })
    }
}

// SAFETY: as above.
unsafe impl SortNetwork for Half64 {
    const ROWS: usize = 8;
    const HIGHEST: i64 = i64::MAX;

    #[inline(always)]
    fn before(key: i64) -> i64 {
        key - 1
    }
    #[inline(always)]
    unsafe fn load_part(from: *const i64, count: usize) -> Self {
        // SAFETY: see the trait; lanes that are masked out are not touched.
        Self(unsafe {
            let some = first_4(count);
            let loaded = _mm256_maskload_epi64(from, some);
            _mm256_blendv_epi8(_mm256_set1_epi64x(i64::MAX), loaded, some)
        })
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut i64, count: usize) {
        // SAFETY: see the trait; lanes that are masked out are not touched.
        unsafe { _mm256_maskstore_epi64(to, first_4(count), self.0) };
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            let above = _mm256_cmpgt_epi64(self.0, other.0);
            _mm256_blendv_epi8(self.0, other.0, above)
        })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            let above = _mm256_cmpgt_epi64(self.0, other.0);
            _mm256_blendv_epi8(other.0, self.0, above)
        })
    }
    #[inline(always)]
    unsafe fn swap<const DISTANCE: usize>(self) -> Self {
        // SAFETY: see the trait.
        Self(unsafe {
            match DISTANCE {
                1 => _mm256_shuffle_epi32::<0b01_00_11_10>(self.0),
                2 => _mm256_permute4x64_epi64::<0b01_00_11_10>(self.0),
                _ => _mm256_permute4x64_epi64::<0b00_01_10_11>(self.0),
            }
        })
    }
    #[inline(always)]
    unsafe fn exchange<const DISTANCE: usize>(self, other: Self) -> Self {
        // SAFETY: see the trait.
        unsafe {
            let (low, high) = (self.min(other).0, self.max(other).0);
            Self(match DISTANCE {
                1 => _mm256_blend_epi32::<0b1100_1100>(low, high),
                _ => _mm256_blend_epi32::<0b1111_0000>(low, high),
            })
        }
    }
}
