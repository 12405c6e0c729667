//! Edges of grey images: Sobel's gradient and Canny's edges.

pub(crate) mod canny;
pub(crate) mod sobel;

/// Grey image with one byte for each pixel, row by row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GreyImage<'a> {
    pub(crate) pixels: &'a [u8],
    /// Number of pixels in a row of the image, at least 1.
    pub(crate) width: usize,
}

impl GreyImage<'_> {
    /// Returns the number of rows of the image.
    pub(crate) fn height(&self) -> usize {
        self.pixels.len() / self.width
    }

    /// Returns a row of the image, counted from 0.
    fn row(&self, number: usize) -> &[u8] {
        &self.pixels[number * self.width..][..self.width]
    }
}

/// Rule for pixels beyond the border of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Border {
    /// The image is mirrored at its outermost pixels.
    Mirror,
    /// The outermost pixels are repeated.
    Same,
}

impl Border {
    /// Returns the index, in a row of `length` pixels, of the pixel that stands for the pixel before the first.
    fn before(self, length: usize) -> usize {
        match self {
            Self::Mirror => 1.min(length - 1),
            Self::Same => 0,
        }
    }

    /// Returns the index, in a row of `length` pixels, of the pixel that stands for the pixel after the last.
    fn after(self, length: usize) -> usize {
        match self {
            Self::Mirror => length.saturating_sub(2),
            Self::Same => length - 1,
        }
    }
}
