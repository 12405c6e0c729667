//! Rabin's fingerprint of bytes (M. O. Rabin, "Fingerprinting by Random Polynomials", 1981): the bytes as a polynomial over GF(2), the
//! highest coefficient first, modulo an irreducible polynomial of degree 64.
//!
//! The fingerprint of two adjacent pieces follows from their fingerprints: `f(AB) = f(A)·x^(8|B|) + f(B)`.

use super::simd::Level;

/// The polynomial `x⁶⁴ + x⁴ + x³ + x + 1`, which is irreducible, without its highest term.
const POLYNOMIAL: u64 = 0x1b;

/// Number of bytes that the portable loop processes at a time, which is also the number of its tables.
const SLICES: usize = 16;

/// `TABLE[s][b]` is `b·x^(64 + 8 s)`: the contribution of byte `b` after `s` further bytes.
static TABLE: [[u64; 256]; SLICES] = table();

const fn table() -> [[u64; 256]; SLICES] {
    let mut table = [[0; 256]; SLICES];
    let mut byte = 0;
    while byte < 256 {
        let mut value = (byte as u64) << 56;
        let mut slice = 0;
        while slice < SLICES {
            let mut bit = 0;
            while bit < 8 {
                value = times_x(value);
                bit += 1;
            }
            table[slice][byte] = value;
            slice += 1;
        }
        byte += 1;
    }
    table
}

const fn times_x(value: u64) -> u64 {
    value << 1 ^ if value >> 63 == 0 { 0 } else { POLYNOMIAL }
}

/// Returns the product of `a` and `b` modulo the polynomial.
const fn product(a: u64, b: u64) -> u64 {
    let (mut product, mut bit) = (0, 64);
    while bit > 0 {
        bit -= 1;
        product = times_x(product) ^ if a >> bit & 1 == 0 { 0 } else { b };
    }
    product
}

/// Returns `x^(8 bytes)` modulo the polynomial.
const fn power(bytes: u64) -> u64 {
    let (mut result, mut square, mut left) = (1, 1 << 8, bytes);
    while left > 0 {
        if left & 1 == 1 {
            result = product(result, square);
        }
        square = product(square, square);
        left >>= 1;
    }
    result
}

/// Returns the fingerprint of `first` followed by `second`, which is the fingerprint of `length` bytes.
pub(crate) fn join(first: u64, second: u64, length: u64) -> u64 {
    product(first, power(length)) ^ second
}

/// Returns the fingerprint of bytes with the fingerprint `before`, followed by `bytes`.
pub(crate) fn extend(before: u64, bytes: &[u8], level: Level) -> u64 {
    match level {
        Level::Portable => portable(before, bytes),
        #[cfg(target_arch = "x86_64")]
        _ if x86::available() => x86::extend(before, bytes),
        #[cfg(target_arch = "x86_64")]
        _ => portable(before, bytes),
    }
}

fn portable(mut value: u64, bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<SLICES>();
    for block in blocks {
        // The last 8 bytes have a lower degree than the polynomial; the value so far has the highest degree.
        let (high, low) = block.split_at(8);
        let old = value.to_be_bytes();
        value = u64::from_be_bytes(low.try_into().expect("half of a block has 8 bytes"));
        for (slice, byte) in old.iter().chain(high).rev().enumerate() {
            value ^= TABLE[slice][usize::from(*byte)];
        }
    }
    for byte in rest {
        value = value << 8 ^ TABLE[0][(value >> 56) as usize] ^ u64::from(*byte);
    }
    value
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _mm_clmulepi64_si128, _mm_extract_epi64, _mm_loadu_si128, _mm_set_epi8,
        _mm_set_epi64x, _mm_shuffle_epi8, _mm_xor_si128,
    };

    use super::{portable, power};

    /// Number of vectors that are processed at a time: a product takes several cycles, but one product can begin in each cycle.
    const LANES: usize = 8;

    /// Number of bytes that are processed at a time.
    const BLOCK: usize = 16 * LANES;

    pub(super) fn available() -> bool {
        is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
    }

    pub(super) fn extend(before: u64, bytes: &[u8]) -> u64 {
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        let Some((first, others)) = blocks.split_first() else {
            return portable(before, rest);
        };
        // SAFETY: `available` was checked.
        let value = unsafe { blocks_of(before, first, others) };
        portable(value, rest)
    }

    /// Multiplies a vector by `x^(8 bytes)` and adds the next vector, with a product of 64 by 64 bits for each half.
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn fold(value: __m128i, powers: __m128i, next: __m128i) -> __m128i {
        let high = _mm_clmulepi64_si128::<0x11>(value, powers);
        let low = _mm_clmulepi64_si128::<0x00>(value, powers);
        _mm_xor_si128(_mm_xor_si128(high, low), next)
    }

    /// Returns the factors for the high and the low half of a vector that move it by `bytes`.
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn powers(bytes: u64) -> __m128i {
        _mm_set_epi64x(power(bytes + 8).cast_signed(), power(bytes).cast_signed())
    }

    #[target_feature(enable = "pclmulqdq,sse4.1,ssse3")]
    fn blocks_of(before: u64, first: &[u8; BLOCK], others: &[[u8; BLOCK]]) -> u64 {
        let turn = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let load = |block: &[u8; BLOCK], lane: usize| {
            let part: &[u8] = &block[16 * lane..16 * lane + 16];
            // SAFETY: the part has sixteen bytes.
            let vector = unsafe { _mm_loadu_si128(part.as_ptr().cast()) };
            _mm_shuffle_epi8(vector, turn)
        };
        let mut lanes = [turn; LANES];
        for (lane, value) in lanes.iter_mut().enumerate() {
            *value = load(first, lane);
        }
        let step = powers(BLOCK as u64);
        for block in others {
            for (lane, value) in lanes.iter_mut().enumerate() {
                *value = fold(*value, step, load(block, lane));
            }
        }
        let one = powers(16);
        let mut value = lanes[0];
        for lane in &lanes[1..] {
            value = fold(value, one, *lane);
        }
        let high = _mm_extract_epi64::<1>(value).cast_unsigned();
        let low = _mm_extract_epi64::<0>(value).cast_unsigned();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..].copy_from_slice(&low.to_be_bytes());
        let length = (BLOCK * (others.len() + 1)) as u64;
        super::join(before, portable(0, &bytes), length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the remainder of bytes as a polynomial, divided bit by bit.
    fn divide(bytes: &[u8]) -> u64 {
        let mut value = 0;
        for byte in bytes {
            for bit in (0..8).rev() {
                value = times_x(value) ^ u64::from(byte >> bit & 1);
            }
        }
        value
    }

    proptest! {
        #[test]
        fn fingerprint_is_equal_on_all_simd_levels(bytes in prop::collection::vec(any::<u8>(), 0..1200), cut in any::<u16>()) {
            let wanted = divide(&bytes);
            let (first, second) = bytes.split_at(usize::from(cut) % (bytes.len() + 1));
            for level in Level::available() {
                prop_assert_eq!(extend(0, &bytes, level), wanted);
                prop_assert_eq!(extend(extend(0, first, level), second, level), wanted);
            }
            prop_assert_eq!(join(divide(first), divide(second), second.len() as u64), wanted);
        }
    }

    /// A polynomial of degree 64 is irreducible if `x^(2^64) = x`, and `x^(2^32) - x` has no factor with it (Rabin's
    /// test; 2 is the only prime factor of 64).
    #[test]
    fn fingerprint_polynomial_is_irreducible() {
        let squared = |times: u32| (0..times).fold(2, |value, _| product(value, value));
        assert_eq!(squared(64), 2);
        let degree = |value: u128| 127 - value.leading_zeros();
        let (mut a, mut b) = (
            1 << 64 | u128::from(POLYNOMIAL),
            u128::from(squared(32) ^ 2),
        );
        while b != 0 {
            while a != 0 && degree(a) >= degree(b) {
                a ^= b << (degree(a) - degree(b));
            }
            (a, b) = (b, a);
        }
        assert_eq!(a, 1);
    }
}
