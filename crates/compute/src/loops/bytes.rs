//! Counts lines and words in bytes.

use super::simd::{self, Level, SimdPass};

/// Number of bytes that are counted before the one-byte counters of [`NewlineCount`] could overflow.
const PIECE: usize = 255 * LANES;

/// Number of one-byte counters.
const LANES: usize = 64;

/// Returns the number of newlines in `bytes`, and the number of words that begin in them if `before` is the previous byte.
pub(crate) fn lines_and_words(level: Level, mut before: u8, bytes: &[u8]) -> (u64, u64) {
    #[cfg(target_arch = "x86_64")]
    if matches!(level, Level::Avx512 | Level::Ifma) {
        // SAFETY: these levels exist only where their instructions do.
        return unsafe { masks(before, bytes) };
    }
    let mut all = (0, 0);
    for piece in bytes.chunks(PIECE) {
        let (lines, words) = simd::run(level, NewlineCount { before, piece });
        before = piece.last().copied().unwrap_or(before);
        all.0 += lines;
        all.1 += words;
    }
    all
}

/// Counts newlines in a piece, and words that begin in it.
struct NewlineCount<'a> {
    before: u8,
    piece: &'a [u8],
}

impl SimdPass for NewlineCount<'_> {
    type Output = (u64, u64);

    #[inline(always)]
    fn run(self) -> (u64, u64) {
        let (mut lines, mut words) = ([0_u8; LANES], [0_u8; LANES]);
        let Some((first, rest)) = self.piece.split_first() else {
            return (0, 0);
        };
        lines[0] += u8::from(*first == b'\n');
        words[0] += u8::from(!white(*first) & white(self.before));
        // Two views of the same bytes, shifted by one, so that each byte is compared with the previous one.
        let mut now = rest.chunks_exact(LANES);
        let mut before = self.piece.chunks_exact(LANES);
        for (now, before) in now.by_ref().zip(before.by_ref()) {
            for lane in 0..LANES {
                lines[lane] += u8::from(now[lane] == b'\n');
                words[lane] += u8::from(!white(now[lane])) & u8::from(white(before[lane]));
            }
        }
        let rest = now.remainder();
        let before = &self.piece[self.piece.len() - 1 - rest.len()..];
        let mut count = (0, 0);
        for (now, before) in rest.iter().zip(before) {
            count.0 += u64::from(*now == b'\n');
            count.1 += u64::from(!white(*now) & white(*before));
        }
        let sum = |lanes: [u8; LANES]| lanes.into_iter().map(u64::from).sum::<u64>();
        (count.0 + sum(lines), count.1 + sum(words))
    }
}

/// Returns the newlines and the starts of words in some bytes, as masks with one bit for each byte.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,popcnt")]
fn masks(before: u8, bytes: &[u8]) -> (u64, u64) {
    use std::arch::x86_64::*;

    let newline = _mm512_set1_epi8(b'\n'.cast_signed());
    let space = _mm512_set1_epi8(b' '.cast_signed());
    let tab = _mm512_set1_epi8(b'\t'.cast_signed());
    let controls = _mm512_set1_epi8(5);
    let (mut lines, mut words) = (0, 0);
    let mut after_white = u64::from(white(before));
    let (whole, rest) = bytes.as_chunks::<64>();
    for row in whole {
        // SAFETY: a row has 64 bytes.
        let row = unsafe { _mm512_loadu_si512(row.as_ptr().cast()) };
        let controls = _mm512_cmplt_epu8_mask(_mm512_sub_epi8(row, tab), controls);
        let white = controls | _mm512_cmpeq_epi8_mask(row, space);
        lines += u64::from(_mm512_cmpeq_epi8_mask(row, newline).count_ones());
        words += u64::from((!white & (white << 1 | after_white)).count_ones());
        after_white = white >> 63;
    }
    let mut before = if after_white == 1 { b' ' } else { b'x' };
    for byte in rest {
        lines += u64::from(*byte == b'\n');
        words += u64::from(!white(*byte) & white(before));
        before = *byte;
    }
    (lines, words)
}

/// Returns whether a byte is white space of the C locale.
#[inline(always)]
pub(crate) fn white(byte: u8) -> bool {
    (byte == b' ') | (byte.wrapping_sub(b'\t') < 5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn word_count_matches_plain_loop(text in proptest::collection::vec(
            prop_oneof![3 => Just(b'a'), 2 => Just(b' '), 1 => Just(b'\n'), 1 => any::<u8>()], 0..40_000,
        )) {
            let words = text.split(|byte| white(*byte)).filter(|word| !word.is_empty()).count();
            let lines = text.iter().filter(|byte| **byte == b'\n').count();
            for level in Level::available() {
                prop_assert_eq!(lines_and_words(level, b' ', &text), (lines as u64, words as u64));
            }
        }
    }
}
