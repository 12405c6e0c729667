//! Edges of grey images: Sobel's gradient and Canny's edges.

pub(crate) mod canny;
pub(crate) mod sobel;

/// A grey image, a byte a pixel, row by row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image<'a> {
    pub(crate) pixels: &'a [u8],
    /// Pixels in a row, at least 1.
    pub(crate) width: usize,
}

impl Image<'_> {
    /// Number of rows.
    pub(crate) fn height(&self) -> usize {
        self.pixels.len() / self.width
    }

    /// A row, counted from 0.
    fn row(&self, number: usize) -> &[u8] {
        &self.pixels[number * self.width..][..self.width]
    }
}

/// What lies beyond the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Border {
    /// The image in a mirror that stands on the outermost pixels.
    Mirror,
    /// The outermost pixels again.
    Same,
}

impl Border {
    /// Which of `length` pixels stands one before the first.
    fn before(self, length: usize) -> usize {
        match self {
            Self::Mirror => 1.min(length - 1),
            Self::Same => 0,
        }
    }

    /// Which of `length` pixels stands one after the last.
    fn after(self, length: usize) -> usize {
        match self {
            Self::Mirror => length.saturating_sub(2),
            Self::Same => length - 1,
        }
    }
}
