//! Transposes a matrix.
//!
//! Blocks of a few hundred columns are read along the rows, in bands of a few rows, so that each row of the result grows by whole cache
//! lines. Within a band, tiles are transposed in registers, and with AVX-512 lines are stored past the caches.

use super::simd::Level;

/// Number of columns of a block: so many rows of the result are written in turn, few enough for the processor to cache the addresses of
/// their pages.
const BLOCK: usize = 256;

/// Number of rows of a band, whose values in one column are a part of a cache line of the result.
const BAND: usize = 32;

/// Columns of a matrix that are transposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnBlock<'a> {
    /// Whole matrix, in row-major order.
    pub(crate) from: &'a [u8],
    /// Size of a value, in bytes: 1, 2, 4 or 8.
    pub(crate) size: usize,
    /// Number of rows of the matrix.
    pub(crate) rows: usize,
    /// Number of values in a row.
    pub(crate) width: usize,
    /// Index of the first column.
    pub(crate) first: usize,
    /// Number of columns that are transposed.
    pub(crate) columns: usize,
}

/// Writes columns of a matrix as the rows of `to`, which must have exactly as many values.
pub(crate) fn transpose(part: ColumnBlock<'_>, to: &mut [u8], level: Level) {
    let ColumnBlock {
        from,
        size,
        rows,
        width,
        first,
        columns,
    } = part;
    assert!(from.len() >= rows * width * size, "the matrix is whole");
    assert!(first + columns <= width, "the columns are in the matrix");
    assert!(
        to.len() == rows * columns * size,
        "there is space for the columns"
    );
    let pointers = (
        from[(first * size).min(from.len())..].as_ptr(),
        to.as_mut_ptr(),
    );
    let matrix = TransposeMatrix {
        from: pointers.0,
        to: pointers.1,
        rows,
        width,
        columns,
    };
    // SAFETY: all values are within `from` and `to`, as asserted above, and a level exists only if the processor has its instructions.
    unsafe {
        match (size, level) {
            (1, _) => matrix.plain::<1>(),
            (2, _) => matrix.plain::<2>(),
            #[cfg(target_arch = "x86_64")]
            (4, Level::Avx512 | Level::Ifma) => x86::wide_4(matrix),
            #[cfg(target_arch = "x86_64")]
            (_, Level::Avx512 | Level::Ifma) => x86::wide_8(matrix),
            #[cfg(target_arch = "x86_64")]
            (8, Level::Avx2) => x86::half_8(matrix),
            (4, _) => matrix.plain::<4>(),
            (_, _) => matrix.plain::<8>(),
        }
    }
}

/// Locations of the values of a matrix and of its transpose.
#[derive(Clone, Copy)]
struct TransposeMatrix {
    /// Address of the first value of the first column.
    from: *const u8,
    to: *mut u8,
    rows: usize,
    /// Distance from one row of the matrix to the next, in values.
    width: usize,
    columns: usize,
}

impl TransposeMatrix {
    /// Returns the addresses of the value of type `T` at a row and column, and of its place in the transpose.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn at<T>(&self, row: usize, column: usize) -> (*const T, *mut T) {
        let from = self.from.cast::<T>();
        let to = self.to.cast::<T>();
        (
            from.wrapping_add(row * self.width + column),
            to.wrapping_add(column * self.rows + row),
        )
    }

    /// # Safety
    /// All values of the matrix and of its transpose must be valid.
    #[inline(always)]
    unsafe fn plain<const N: usize>(self) {
        // SAFETY: as the caller's.
        unsafe {
            self.blocks::<N>(8, 0, |matrix, row, column| {
                matrix.tile::<N>(row, column, 8, 8)
            })
        };
    }

    /// Passes all tiles of `side` by `side` values from row `lead` on to `tile`, and transposes the smaller parts at the edges itself.
    ///
    /// # Safety
    /// All values of the matrix and of its transpose must be valid.
    #[inline(always)]
    unsafe fn blocks<const N: usize>(
        self,
        side: usize,
        lead: usize,
        tile: impl Fn(&Self, usize, usize),
    ) {
        let lead = lead.min(self.rows);
        let rows = lead + (self.rows - lead) / side * side;
        let columns = self.columns / side * side;
        for block in (0..columns).step_by(BLOCK) {
            let block_end = (block + BLOCK).min(columns);
            for band in (lead..rows).step_by(BAND) {
                let band_end = (band + BAND).min(rows);
                for column in (block..block_end).step_by(side) {
                    for row in (band..band_end).step_by(side) {
                        tile(&self, row, column);
                    }
                }
            }
        }
        // SAFETY: as the caller's.
        unsafe {
            self.tile::<N>(0, 0, lead, self.columns);
            self.tile::<N>(lead, columns, rows - lead, self.columns - columns);
            self.tile::<N>(rows, 0, self.rows - rows, self.columns);
        }
    }

    /// # Safety
    /// The values of the tile must be valid.
    #[inline(always)]
    unsafe fn tile<const N: usize>(&self, row: usize, column: usize, rows: usize, columns: usize) {
        for column in column..column + columns {
            for row in row..row + rows {
                // SAFETY: as the caller's; arrays of bytes need no alignment.
                unsafe {
                    let value = self
                        .from
                        .cast::<[u8; N]>()
                        .add(row * self.width + column)
                        .read();
                    self.to
                        .cast::<[u8; N]>()
                        .add(column * self.rows + row)
                        .write(value);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_permute2x128_si256,
        _mm256_storeu_si256, _mm256_unpackhi_epi64, _mm256_unpacklo_epi64, _mm512_loadu_si512,
        _mm512_shuffle_i64x2, _mm512_storeu_si512, _mm512_stream_si512, _mm512_unpackhi_epi32,
        _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };

    use super::TransposeMatrix;

    /// Size in bytes beyond which no cache holds the result of a transposition.
    const FAR: usize = 8 << 20;

    /// Returns the position of the first cache line in each row of the result, if lines can and should be stored past the caches.
    fn far(matrix: &TransposeMatrix, size: usize) -> Option<usize> {
        let row = matrix.rows * size;
        let lead = matrix.to.align_offset(64);
        let whole = row.is_multiple_of(64) && lead.is_multiple_of(size);
        (whole && row * matrix.columns > FAR).then_some(lead / size)
    }

    /// Stores a vector; with `far`, past the caches.
    ///
    /// # Safety
    /// The pointer must be valid for writes of a vector, and aligned to a vector if `far` is set.
    #[target_feature(enable = "avx512f")]
    unsafe fn store(line: *mut __m512i, vector: __m512i, far: bool) {
        // SAFETY: as the caller's.
        unsafe {
            match far {
                true => _mm512_stream_si512(line, vector),
                false => _mm512_storeu_si512(line, vector),
            }
        }
    }

    /// Transposes four groups of quarters, of four vectors each, into sixteen vectors: vector `4 q + v` of the result has quarter `q` of
    /// vector `v` of each group.
    #[target_feature(enable = "avx512f")]
    fn quarters(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> [__m512i; 4] {
        let low_ab = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
        let high_ab = _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
        let low_cd = _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d);
        let high_cd = _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d);
        [
            _mm512_shuffle_i64x2::<0b10_00_10_00>(low_ab, low_cd),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(high_ab, high_cd),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(low_ab, low_cd),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(high_ab, high_cd),
        ]
    }

    /// # Safety
    /// All values must be valid and have eight bytes, and the processor must have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn wide_8(matrix: TransposeMatrix) {
        let lead = far(&matrix, 8);
        let far = lead.is_some();
        let tile = |matrix: &TransposeMatrix, row: usize, column: usize| {
            // SAFETY: `blocks` passes tiles that are within the matrix.
            unsafe {
                let (from, to) = matrix.at::<u64>(row, column);
                let mut rows = [_mm512_loadu_si512(from.cast()); 8];
                for (index, row) in rows.iter_mut().enumerate() {
                    *row = _mm512_loadu_si512(from.wrapping_add(index * matrix.width).cast());
                }
                let mut turned = rows;
                for odd in 0..2 {
                    let pair = |index: usize| {
                        if odd == 0 {
                            _mm512_unpacklo_epi64(rows[2 * index], rows[2 * index + 1])
                        } else {
                            _mm512_unpackhi_epi64(rows[2 * index], rows[2 * index + 1])
                        }
                    };
                    let four = quarters(pair(0), pair(1), pair(2), pair(3));
                    for (index, vector) in four.into_iter().enumerate() {
                        turned[2 * index + odd] = vector;
                    }
                }
                for (index, vector) in turned.into_iter().enumerate() {
                    store(to.wrapping_add(index * matrix.rows).cast(), vector, far);
                }
            }
        };
        // SAFETY: as the caller's.
        unsafe { matrix.blocks::<8>(8, lead.unwrap_or(0), tile) };
        _mm_sfence();
    }

    /// # Safety
    /// All values must be valid and have four bytes, and the processor must have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn wide_4(matrix: TransposeMatrix) {
        let lead = far(&matrix, 4);
        let far = lead.is_some();
        let tile = |matrix: &TransposeMatrix, row: usize, column: usize| {
            // SAFETY: `blocks` passes tiles that are within the matrix.
            unsafe {
                let (from, to) = matrix.at::<u32>(row, column);
                let mut rows = [_mm512_loadu_si512(from.cast()); 16];
                for (index, row) in rows.iter_mut().enumerate() {
                    *row = _mm512_loadu_si512(from.wrapping_add(index * matrix.width).cast());
                }
                let mut fours = rows;
                for group in 0..4 {
                    let at = 4 * group;
                    let low = _mm512_unpacklo_epi32(rows[at], rows[at + 1]);
                    let high = _mm512_unpackhi_epi32(rows[at], rows[at + 1]);
                    let other_low = _mm512_unpacklo_epi32(rows[at + 2], rows[at + 3]);
                    let other_high = _mm512_unpackhi_epi32(rows[at + 2], rows[at + 3]);
                    fours[at] = _mm512_unpacklo_epi64(low, other_low);
                    fours[at + 1] = _mm512_unpackhi_epi64(low, other_low);
                    fours[at + 2] = _mm512_unpacklo_epi64(high, other_high);
                    fours[at + 3] = _mm512_unpackhi_epi64(high, other_high);
                }
                for index in 0..4 {
                    let groups = (fours[index], fours[index + 4]);
                    let turned = quarters(groups.0, groups.1, fours[index + 8], fours[index + 12]);
                    for (quarter, vector) in turned.into_iter().enumerate() {
                        let line = to.wrapping_add((4 * quarter + index) * matrix.rows);
                        store(line.cast(), vector, far);
                    }
                }
            }
        };
        // SAFETY: as the caller's.
        unsafe { matrix.blocks::<4>(16, lead.unwrap_or(0), tile) };
        _mm_sfence();
    }

    /// # Safety
    /// All values must be valid and have eight bytes, and the processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn half_8(matrix: TransposeMatrix) {
        let tile = |matrix: &TransposeMatrix, row: usize, column: usize| {
            // SAFETY: `blocks` passes tiles that are within the matrix.
            unsafe {
                let (from, to) = matrix.at::<u64>(row, column);
                let load = |index: usize| -> __m256i {
                    _mm256_loadu_si256(from.wrapping_add(index * matrix.width).cast())
                };
                let (a, b, c, d) = (load(0), load(1), load(2), load(3));
                let low_ab = _mm256_unpacklo_epi64(a, b);
                let high_ab = _mm256_unpackhi_epi64(a, b);
                let low_cd = _mm256_unpacklo_epi64(c, d);
                let high_cd = _mm256_unpackhi_epi64(c, d);
                let turned = [
                    _mm256_permute2x128_si256::<0x20>(low_ab, low_cd),
                    _mm256_permute2x128_si256::<0x20>(high_ab, high_cd),
                    _mm256_permute2x128_si256::<0x31>(low_ab, low_cd),
                    _mm256_permute2x128_si256::<0x31>(high_ab, high_cd),
                ];
                for (index, vector) in turned.into_iter().enumerate() {
                    _mm256_storeu_si256(to.wrapping_add(index * matrix.rows).cast(), vector);
                }
            }
        };
        // SAFETY: as the caller's.
        unsafe { matrix.blocks::<8>(4, 0, tile) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(rows: usize, width: usize, first: usize, columns: usize, size: usize) {
        let from: Vec<u8> = (0..rows * width * size)
            .map(|byte| (byte * 7 % 251).try_into().unwrap())
            .collect();
        let mut wanted = Vec::new();
        for column in first..first + columns {
            for row in 0..rows {
                let at = (row * width + column) * size;
                wanted.extend_from_slice(&from[at..at + size]);
            }
        }
        for level in Level::available() {
            // The result begins at a line, at a value, or at neither.
            for shift in [0, 8, 3] {
                let mut buffer = vec![0; wanted.len() + 72];
                let begin = buffer.as_ptr().align_offset(64) + shift;
                let to = &mut buffer[begin..begin + wanted.len()];
                transpose(
                    ColumnBlock {
                        from: &from,
                        size,
                        rows,
                        width,
                        first,
                        columns,
                    },
                    to,
                    level,
                );
                assert!(
                    to == wanted,
                    "{rows}×{width} from {first} {columns} of {size} bytes, {level:?}, {shift}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn transpose_turns_rows_to_columns(rows in 0_usize..70, width in 0_usize..70, some in any::<(u8, u8)>(), size in 0_u32..4) {
            let first = usize::from(some.0) % (width + 1);
            let columns = usize::from(some.1) % (width - first + 1);
            check(rows, width, first, columns, 1_usize << size);
        }
    }

    #[test]
    fn transpose_handles_large_aligned_matrices() {
        check(1024, 1152, 0, 1152, 8);
        check(2048, 1030, 3, 1027, 4);
    }
}
