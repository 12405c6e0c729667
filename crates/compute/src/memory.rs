//! Kernels on memory: functions for data in a buffer, such as that of a hook, or for a program that links this crate.

use std::io;

use crate::loops::affine::{self, ScaleFactors};
use crate::loops::edges::{GreyImage, sobel as loops};
use crate::loops::fingerprint::{extend, join};
use crate::loops::heartbeat;
use crate::loops::simd::Level;
use crate::loops::transpose::{ColumnBlock, transpose as turn};

/// Replaces each little-endian `f64` of `values` by `a·x + b`, as the kernel `scale` does. An incomplete value at the end stays
/// unchanged.
pub fn scale_in_place(values: &mut [u8], a: f64, b: f64) {
    affine::scale_in_place::<f64>(values, ScaleFactors::new(a, b), None, Level::best());
}

/// Writes the transpose of a matrix to `to`. The matrix has values of `size` bytes (1, 2, 4 or 8), `columns` in a row.
///
/// # Errors
/// If the sizes of `from` and `to` differ or do not fit a matrix of such rows.
pub fn transpose(from: &[u8], size: usize, columns: usize, to: &mut [u8]) -> io::Result<()> {
    let row = columns.saturating_mul(size);
    if !matches!(size, 1 | 2 | 4 | 8)
        || row == 0
        || !from.len().is_multiple_of(row)
        || from.len() != to.len()
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let part = ColumnBlock {
        from,
        size,
        rows: from.len() / row,
        width: columns,
        first: 0,
        columns,
    };
    turn(part, to, Level::best());
    Ok(())
}

/// Writes the length of Sobel's gradient of each pixel of a grey image, `width` pixels in a row, to `to`, as the kernel `edges` does.
///
/// # Errors
/// If the sizes of `pixels` and `to` differ or do not fit an image of such rows.
pub fn sobel(pixels: &[u8], width: usize, to: &mut [u8]) -> io::Result<()> {
    if width == 0 || !pixels.len().is_multiple_of(width) || pixels.len() != to.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loops::sobel(GreyImage { pixels, width }, to, Level::best());
    Ok(())
}

/// Returns Rabin's fingerprint of bytes, as the kernel `fingerprint` computes it.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> u64 {
    join(1, extend(0, bytes, Level::best()), bytes.len() as u64)
}

/// Returns the indices of R peaks, as the kernel `heartbeat` computes them; none for fewer than 50 samples per second or more than 10⁶.
#[must_use]
pub fn r_peaks(signal: &[f64], rate: f64) -> Vec<usize> {
    if (heartbeat::RATE_AT_LEAST..=heartbeat::RATE_AT_MOST).contains(&rate) {
        heartbeat::r_peaks(signal, rate)
    } else {
        Vec::new()
    }
}
