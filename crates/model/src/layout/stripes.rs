//! Striped files: stripe *k* is in part *k* mod *n*. A part holds its stripes one after the other, so that the part is a plain file on its
//! node (Active Storage §4). This module only computes positions.

use super::{LayoutError, Part, PartPosition, Segment};
use crate::id::ObjectId;
use crate::quantity::size;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Granularity of stripe units in bytes: a page, so that each page of the file is stored on one node only.
pub const UNIT_GRAIN: u64 = 4096;
/// Maximum size of a stripe unit, in bytes.
pub const UNIT_MAX: u64 = 1 << 30;
/// Maximum number of nodes over which a file is striped.
pub const WIDTH_MAX: usize = 1024;
/// Maximum number of characters that an error shows of an invalid description of stripes.
const TEXT_SHOWN_MAX: usize = 64;

/// Requested striping of a file, written as `UNIT` or `UNIT,WIDTH`, such as `1MiB,4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Size of a stripe, in bytes.
    pub unit: u64,
    /// Number of nodes; 0 for all nodes of the capacity tier.
    pub width: usize,
}

impl Stripes {
    /// Returns the striping if it is valid.
    ///
    /// # Errors
    /// The fault in the stripe unit or in the width.
    pub fn checked(self) -> Result<Self, LayoutError> {
        StripedLayout::check_form(self.unit, self.width.max(1))?;
        Ok(self)
    }
}

impl FromStr for Stripes {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let wrong = || LayoutError::Stripes(text.chars().take(TEXT_SHOWN_MAX).collect());
        let (unit, width) = match text.split_once(',') {
            Some((unit, width)) => {
                let width: usize = width.trim().parse().map_err(|_| wrong())?;
                if width == 0 {
                    return Err(LayoutError::Width(0));
                }
                (unit, width)
            }
            None => (text, 0),
        };
        let unit = size(unit).map_err(|_| wrong())?;
        Self { unit, width }.checked()
    }
}

impl fmt::Display for Stripes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scales = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let scale = scales
            .into_iter()
            .find(|(scale, _)| self.unit.is_multiple_of(*scale));
        let (scale, suffix) = scale.unwrap_or((1, ""));
        write!(f, "{}{suffix}", self.unit / scale)?;
        match self.width {
            0 => Ok(()),
            width => write!(f, ",{width}"),
        }
    }
}

/// Role of an object within the version that the object is a part of; stored with the object on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartOf {
    /// Object id of the version; this object has no bytes.
    pub version: ObjectId,
    /// Index of the part within the version.
    pub index: u64,
    /// Number of parts of the version; for a version of extents, the number when the part was begun.
    pub width: u64,
    /// Size of a stripe, in bytes; 0 if the part holds extents of the version.
    pub unit: u64,
}

impl PartOf {
    /// Returns the value of the attribute for this role: the four numbers, 8 bytes each, little-endian.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 32] {
        let numbers = [self.version.0, self.index, self.width, self.unit];
        let mut bytes = [0; 32];
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Parses the value of the attribute; returns `None` if the value is invalid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let part = Self {
            version: ObjectId(number(0)),
            index: number(8),
            width: number(16),
            unit: number(24),
        };
        let width = usize::try_from(part.width).ok()?;
        if part.unit > 0 {
            StripedLayout::check_form(part.unit, width).ok()?;
        }
        (part.index < part.width).then_some(part)
    }
}

/// Layout of a striped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripedLayout {
    /// Size of a stripe, in bytes.
    pub unit: u64,
    /// Size of the file, in bytes.
    pub size: u64,
    /// Parts, one for each node. A part may be shorter than its place in the file: the missing bytes are zeros.
    pub parts: Vec<Part>,
}

impl StripedLayout {
    /// Checks that a stripe unit and a width are valid.
    ///
    /// # Errors
    /// The fault in the stripe unit or in the width.
    pub fn check_form(unit: u64, width: usize) -> Result<(), LayoutError> {
        if unit == 0 || unit > UNIT_MAX || !unit.is_multiple_of(UNIT_GRAIN) {
            return Err(LayoutError::Unit(unit));
        }
        if width == 0 || width > WIDTH_MAX {
            return Err(LayoutError::Width(width));
        }
        Ok(())
    }

    /// Returns the size of part `part` of `width` in a file of `size` bytes.
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

    /// Returns the same striping for a file of `size` bytes, with every part as long as its place in the file.
    #[must_use]
    pub fn of_size(&self, size: u64) -> Self {
        let (unit, width) = (self.unit, self.parts.len());
        let part = |(index, part): (usize, &Part)| Part {
            size: Self::part_size(unit, width, size, index),
            ..part.clone()
        };
        let parts = self.parts.iter().enumerate().map(part).collect();
        Self { unit, size, parts }
    }

    /// Returns the role of a part within the version with the object `version`.
    #[must_use]
    pub fn part_of(&self, version: ObjectId, index: usize) -> PartOf {
        PartOf {
            version,
            index: index as u64,
            width: self.width(),
            unit: self.unit,
        }
    }

    /// Returns the size of a file with parts of these sizes: the file ends with the last byte of any part. `None` on overflow.
    #[must_use]
    pub fn size_of(unit: u64, sizes: &[u64]) -> Option<u64> {
        let width = sizes.len() as u64;
        let mut end = 0;
        for (part, &size) in (0..).zip(sizes) {
            let Some(last) = size.checked_sub(1) else {
                continue;
            };
            let stripe = (last / unit).checked_mul(width)?.checked_add(part)?;
            let last = stripe.checked_mul(unit)?.checked_add(last % unit)?;
            end = end.max(last.checked_add(1)?);
        }
        Some(end)
    }

    /// Returns the stripe unit and the size of a file that is computed from this file part by part. `sizes` are the sizes of the new file's
    /// parts: the same as those of this file, or all the same fraction or multiple of them.
    ///
    /// # Errors
    /// The first part whose size differs from its place in the new file.
    pub fn scaled(&self, sizes: &[u64]) -> Result<(u64, u64), usize> {
        let made = sizes
            .iter()
            .fold(0, |sum: u64, &size| sum.saturating_add(size));
        let unit = match self.size {
            0 => Some(u128::from(self.unit)),
            size => Some(u128::from(self.unit) * u128::from(made) / u128::from(size)),
        };
        let unit = unit.and_then(|unit| u64::try_from(unit).ok()).unwrap_or(0);
        // An empty file can have any stripe unit.
        let unit = if made == 0 { self.unit } else { unit };
        let place = |part| Self::part_size(unit, self.parts.len(), made, part);
        let wrong = |unit: u64| Self::check_form(unit, sizes.len()).is_err();
        let other = |&part: &usize| wrong(unit) || place(part) != sizes[part];
        match (0..sizes.len()).find(other) {
            Some(part) => Err(part),
            None => Ok((unit, made)),
        }
    }

    fn width(&self) -> u64 {
        self.parts.len() as u64
    }

    /// Returns the number of bytes of the file that a part represents.
    pub fn length_of(&self, part: usize) -> u64 {
        Self::part_size(self.unit, self.parts.len(), self.size, part)
    }

    pub(super) fn segment(&self, offset: u64, end: u64) -> Segment {
        let (stripe, within) = (offset / self.unit, offset % self.unit);
        let left = match self.width() {
            1 => end - offset,
            _ => self.unit - within,
        };
        let at = PartPosition {
            part: usize::try_from(stripe % self.width()).unwrap_or(0),
            offset: stripe / self.width() * self.unit + within,
        };
        Segment {
            offset,
            length: left.min(end - offset),
            at: Some(at),
        }
    }

    pub(super) fn segments_of(&self, part: usize, range: Range<u64>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut offset = range.start;
        while offset < range.end {
            let (row, within) = (offset / self.unit, offset % self.unit);
            let length = match self.width() {
                1 => range.end - offset,
                _ => (self.unit - within).min(range.end - offset),
            };
            segments.push(Segment {
                offset: (row * self.width() + part as u64) * self.unit + within,
                length,
                at: Some(PartPosition { part, offset }),
            });
            offset += length;
        }
        segments
    }

    /// Returns, for each part with bytes of a range of the file, the range of the part. A consecutive range of the file is a consecutive
    /// range of each part.
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
            if part.size > asked {
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
