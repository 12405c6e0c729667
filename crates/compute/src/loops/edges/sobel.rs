//! Sobel's gradient: differences between the neighbours of each pixel, where the nearest neighbours have double weight.

use super::{Border, GreyImage};
use crate::loops::simd::{self, Level, SimdPass};

/// Vertical sums and differences of a row of pixels, with one more pixel at each end.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    sums: Vec<i16>,
    differences: Vec<i16>,
}

/// Writes the length of the gradient, `|∂x| + |∂y|` but at most 255, of each pixel to `to`. The image is mirrored at its border.
pub(crate) fn sobel(image: GreyImage<'_>, to: &mut [u8], level: Level) {
    let mut rows = Rows::default();
    for (row, to) in to.chunks_exact_mut(image.width).enumerate() {
        rows.fill(image, row, Border::Mirror, level);
        let Rows { sums, differences } = &rows;
        simd::run(
            level,
            GradientLength {
                sums,
                differences,
                to,
            },
        );
    }
}

impl Rows {
    /// Computes the sums and differences of a row from the row and its neighbours above and below.
    fn fill(&mut self, image: GreyImage<'_>, row: usize, border: Border, level: Level) {
        let (width, height) = (image.width, image.height());
        self.sums.resize(width + 2, 0);
        self.differences.resize(width + 2, 0);
        let above = row.checked_sub(1).unwrap_or_else(|| border.before(height));
        let below = if row + 1 < height {
            row + 1
        } else {
            border.after(height)
        };
        simd::run(
            level,
            Vertical {
                above: image.row(above),
                here: image.row(row),
                below: image.row(below),
                sums: &mut self.sums[1..=width],
                differences: &mut self.differences[1..=width],
            },
        );
        for line in [&mut self.sums, &mut self.differences] {
            line[0] = line[1 + border.before(width)];
            line[width + 1] = line[1 + border.after(width)];
        }
    }

    /// Computes both derivatives of all pixels of a row.
    pub(super) fn gradient(
        &mut self,
        image: GreyImage<'_>,
        row: usize,
        border: Border,
        level: Level,
        to: (&mut [i16], &mut [i16]),
    ) {
        self.fill(image, row, border, level);
        let Self { sums, differences } = self;
        simd::run(
            level,
            Gradient {
                sums,
                differences,
                across: to.0,
                down: to.1,
            },
        );
    }
}

struct Vertical<'a> {
    above: &'a [u8],
    here: &'a [u8],
    below: &'a [u8],
    sums: &'a mut [i16],
    differences: &'a mut [i16],
}

impl SimdPass for Vertical<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let pixels = self.above.iter().zip(self.here).zip(self.below);
        let to = self.sums.iter_mut().zip(self.differences);
        for (((above, here), below), (sum, difference)) in pixels.zip(to) {
            let (above, here, below) = (i16::from(*above), i16::from(*here), i16::from(*below));
            *sum = above + 2 * here + below;
            *difference = below - above;
        }
    }
}

struct GradientLength<'a> {
    sums: &'a [i16],
    differences: &'a [i16],
    to: &'a mut [u8],
}

impl SimdPass for GradientLength<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = self.to.len();
        let (left, right) = (&self.sums[..width], &self.sums[2..][..width]);
        let before = &self.differences[..width];
        let (here, after) = (
            &self.differences[1..][..width],
            &self.differences[2..][..width],
        );
        for pixel in 0..width {
            let across = right[pixel] - left[pixel];
            let down = before[pixel] + 2 * here[pixel] + after[pixel];
            let length = (across.abs() + down.abs()).min(255);
            self.to[pixel] = length.to_le_bytes()[0];
        }
    }
}

struct Gradient<'a> {
    sums: &'a [i16],
    differences: &'a [i16],
    across: &'a mut [i16],
    down: &'a mut [i16],
}

impl SimdPass for Gradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = self.across.len();
        let (left, right) = (&self.sums[..width], &self.sums[2..][..width]);
        let before = &self.differences[..width];
        let (here, after) = (
            &self.differences[1..][..width],
            &self.differences[2..][..width],
        );
        for pixel in 0..width {
            self.across[pixel] = right[pixel] - left[pixel];
            self.down[pixel] = before[pixel] + 2 * here[pixel] + after[pixel];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the gradient from the nine pixels around each pixel, one pixel at a time.
    fn plain(image: GreyImage<'_>) -> Vec<u8> {
        let (width, height) = (image.width, image.height());
        let mirror = |at: usize, step: usize, length: usize| match (at + step).checked_sub(1) {
            None => 1.min(length - 1),
            Some(at) if at == length => length.saturating_sub(2),
            Some(at) => at,
        };
        let weights = [1, 2, 1];
        let mut lengths = Vec::new();
        for y in 0..height {
            for x in 0..width {
                let (mut across, mut down) = (0, 0);
                for i in 0..3 {
                    for j in 0..3 {
                        let at = mirror(y, i, height) * width + mirror(x, j, width);
                        let pixel = i32::from(image.pixels[at]);
                        across += weights[i] * [-1, 0, 1][j] * pixel;
                        down += weights[j] * [-1, 0, 1][i] * pixel;
                    }
                }
                lengths.push((across.abs() + down.abs()).min(255).try_into().unwrap());
            }
        }
        lengths
    }

    proptest! {
        #[test]
        fn sobel_matches_plain_loop_on_all_simd_levels(pixels in prop::collection::vec(any::<u8>(), 1..3000), width in 1_usize..150) {
            let width = width.min(pixels.len());
            let image = GreyImage { pixels: &pixels[..pixels.len() / width * width], width };
            let wanted = plain(image);
            for level in Level::available() {
                let mut to = vec![0; wanted.len()];
                sobel(image, &mut to, level);
                prop_assert_eq!(&to, &wanted);
            }
        }
    }
}
