//! Reverses the bytes of values.

use super::simd::{self, Level, SimdPass};

/// Writes the values of `from`, each of `size` bytes (1, 2, 4 or 8), to `to` with their bytes reversed.
pub(crate) fn swap(from: &[u8], to: &mut [u8], size: usize) {
    let level = Level::best();
    match size {
        2 => simd::run(level, Swap::<2> { from, to }),
        4 => simd::run(level, Swap::<4> { from, to }),
        8 => simd::run(level, Swap::<8> { from, to }),
        _ => to.copy_from_slice(from),
    }
}

struct Swap<'a, const N: usize> {
    from: &'a [u8],
    to: &'a mut [u8],
}

impl<const N: usize> SimdPass for Swap<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (from, _) = self.from.as_chunks::<N>();
        let (to, _) = self.to.as_chunks_mut::<N>();
        for (from, to) in from.iter().zip(to) {
            let mut value = *from;
            value.reverse();
            *to = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_twice_restores_values() {
        let bytes: Vec<u8> = (0..=255).cycle().take(16 * 61).collect();
        for size in [1, 2, 4, 8] {
            let (mut there, mut back) = (vec![0; bytes.len()], vec![0; bytes.len()]);
            swap(&bytes, &mut there, size);
            for (from, to) in bytes.chunks(size).zip(there.chunks(size)) {
                assert!(from.iter().rev().eq(to));
            }
            swap(&there, &mut back, size);
            assert_eq!(back, bytes);
        }
    }
}
