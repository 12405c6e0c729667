//! Striped files: stripe *k* is in part *k* mod *n*, which holds its stripes one after the other, so that on its element it
//! is a plain file (Active Storage §4).

use super::{LayoutError, Part, Piece, Within};
use std::ops::Range;

/// A stripe unit is a multiple of this many bytes: a page, so that no page of the file lies on two elements.
pub const UNIT_GRAIN: u64 = 4096;
/// The greatest stripe unit, in bytes.
pub const UNIT_MAX: u64 = 1 << 30;
/// Most elements that one file is striped over.
pub const WIDTH_MAX: usize = 1024;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Striped {
    /// Bytes of a stripe.
    pub unit: u64,
    /// Length of the file in bytes.
    pub size: u64,
    /// One for each element.
    pub parts: Vec<Part>,
}

impl Striped {
    /// Whether a file can be striped so.
    ///
    /// # Errors
    /// What is wrong with the unit or the width.
    pub fn check_form(unit: u64, width: usize) -> Result<(), LayoutError> {
        if unit == 0 || unit > UNIT_MAX || !unit.is_multiple_of(UNIT_GRAIN) {
            return Err(LayoutError::Unit(unit));
        }
        if width == 0 || width > WIDTH_MAX {
            return Err(LayoutError::Width(width));
        }
        Ok(())
    }

    /// How many bytes of a file of `size` bytes part `part` of `width` holds.
    #[must_use]
    pub fn part_size(unit: u64, width: usize, size: u64, part: usize) -> u64 {
        let (width, part) = (width as u64, part as u64);
        let stripes = size / unit;
        let whole = stripes / width + u64::from(part < stripes % width);
        let rest = if part == stripes % width {
            size % unit
        } else {
            0
        };
        whole * unit + rest
    }

    fn width(&self) -> u64 {
        self.parts.len() as u64
    }

    pub(super) fn piece(&self, offset: u64, end: u64) -> Piece {
        let (stripe, within) = (offset / self.unit, offset % self.unit);
        let left = match self.width() {
            1 => end - offset,
            _ => self.unit - within,
        };
        let at = Within {
            part: usize::try_from(stripe % self.width()).unwrap_or(0),
            offset: stripe / self.width() * self.unit + within,
        };
        Piece {
            offset,
            length: left.min(end - offset),
            at: Some(at),
        }
    }

    pub(super) fn pieces_of(&self, part: usize, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut offset = range.start;
        while offset < range.end {
            let (row, within) = (offset / self.unit, offset % self.unit);
            let length = match self.width() {
                1 => range.end - offset,
                _ => (self.unit - within).min(range.end - offset),
            };
            pieces.push(Piece {
                offset: (row * self.width() + part as u64) * self.unit + within,
                length,
                at: Some(Within { part, offset }),
            });
            offset += length;
        }
        pieces
    }

    /// Of each part that has some of these bytes, which of its own. A run of the file is a run of each part.
    pub(super) fn spans(&self, range: Range<u64>) -> Vec<(usize, Range<u64>)> {
        let before = |offset: u64, part: usize| {
            let offset = offset.min(self.size);
            Self::part_size(self.unit, self.parts.len(), offset, part)
        };
        let span = |part: usize| (part, before(range.start, part)..before(range.end, part));
        let spans = (0..self.parts.len()).map(span);
        spans.filter(|(_, span)| !span.is_empty()).collect()
    }

    pub(super) fn check(&self) -> Result<(), LayoutError> {
        Self::check_form(self.unit, self.parts.len())?;
        for (index, part) in self.parts.iter().enumerate() {
            let asked = Self::part_size(self.unit, self.parts.len(), self.size, index);
            if part.size != asked {
                return Err(LayoutError::Length {
                    part: index,
                    has: part.size,
                    asked,
                });
            }
        }
        Ok(())
    }
}
