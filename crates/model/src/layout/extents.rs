//! Versions of extents: each writer appends its writes to a separate object, and a list of extents stores the positions of the writes in
//! the file. If several writers wrote the same bytes, the last reported write counts. This module only computes layouts.

use super::{LayoutError, Part, PartPosition, Segment};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of extents of one version.
pub const EXTENTS_MAX: usize = 1 << 20;
/// Maximum number of extents in a writer's last report, which is never refused.
pub const UNPUBLISHED_MAX: usize = 16_384;

/// Layout of a version of extents. Bytes that no extent covers read as zeros.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Extents {
    /// Length of the file, in bytes.
    pub size: u64,
    /// Parts of the version, one for each writer.
    pub parts: Vec<Part>,
    /// Extents by their position in the file; extents never overlap.
    extents: BTreeMap<u64, Extent>,
}

/// Consecutive bytes of the file that are stored in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position of the extent in the file.
    pub offset: u64,
    /// Length of the extent, in bytes.
    pub length: u64,
    /// Position of the extent in its part.
    pub at: PartPosition,
}

impl Extent {
    /// Returns the end of the extent in the file.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Returns the end of the extent in its part.
    #[must_use]
    pub fn end_within(&self) -> u64 {
        self.at.offset.saturating_add(self.length)
    }

    /// Returns whether the extent is not empty and its positions do not overflow.
    fn is_sound(&self) -> bool {
        let places = [self.offset, self.at.offset];
        let fits = |from: &u64| from.checked_add(self.length).is_some();
        self.length > 0 && places.iter().all(fits)
    }

    /// Returns the part of the extent that is in a range of the file.
    fn cut(&self, range: Range<u64>) -> Option<Self> {
        let (start, end) = (self.offset.max(range.start), self.end().min(range.end));
        (start < end).then(|| Self {
            offset: start,
            length: end - start,
            at: PartPosition {
                offset: self.at.offset + (start - self.offset),
                ..self.at
            },
        })
    }

    fn goes_on_with(&self, next: &Self) -> bool {
        self.end() == next.offset
            && self.at.part == next.at.part
            && self.end_within() == next.at.offset
    }
}

impl Extents {
    /// Returns a layout of parts that contain no byte of the file yet.
    #[must_use]
    pub fn with_parts(parts: Vec<Part>) -> Self {
        Self {
            parts,
            ..Self::default()
        }
    }

    /// Returns a layout of stored extents: they must be ordered, must not overlap, and must be within the file and their parts.
    ///
    /// # Errors
    /// If the extents violate these conditions.
    pub fn of(
        size: u64,
        parts: Vec<Part>,
        extents: impl IntoIterator<Item = Extent>,
    ) -> Result<Self, LayoutError> {
        let mut all = Self::with_parts(parts);
        all.size = size;
        let mut end = 0;
        for extent in extents {
            if extent.offset < end || !extent.is_sound() {
                return Err(LayoutError::Extent(extent.offset));
            }
            end = extent.end();
            all.extents.insert(extent.offset, extent);
        }
        all.check()?;
        Ok(all)
    }

    /// Adds an extent of written bytes, which replaces earlier bytes. Extends the file and the part to the end of the extent if necessary.
    ///
    /// # Errors
    /// If the extent is empty, its part does not exist, its positions overflow, or there are too many extents; nothing is changed then.
    pub fn put(&mut self, extent: Extent) -> Result<(), LayoutError> {
        if !extent.is_sound() {
            return Err(LayoutError::Extent(extent.offset));
        }
        // The new extent may split an existing one.
        if self.extents.len() + 2 > EXTENTS_MAX {
            return Err(LayoutError::Extents(self.extents.len() + 2));
        }
        let Some(part) = self.parts.get_mut(extent.at.part) else {
            return Err(LayoutError::Extent(extent.offset));
        };
        part.size = part.size.max(extent.end_within());
        self.size = self.size.max(extent.end());
        self.clear(extent.offset..extent.end());
        let mut extent = extent;
        let before = self.extents.range(..extent.offset).next_back();
        if let Some((&at, before)) = before.filter(|(_, before)| before.goes_on_with(&extent)) {
            let length = before.length + extent.length;
            extent = Extent { length, ..*before };
            self.extents.remove(&at);
        }
        if let Some(next) = self.extents.get(&extent.end()).copied()
            && extent.goes_on_with(&next)
        {
            self.extents.remove(&next.offset);
            extent.length += next.length;
        }
        self.extents.insert(extent.offset, extent);
        Ok(())
    }

    /// Removes a range of the file from all extents.
    fn clear(&mut self, range: Range<u64>) {
        let before = self.extents.range(..range.start).next_back();
        let before = before.map(|(_, one)| *one);
        if let Some(one) = before.filter(|one| one.end() > range.start) {
            self.extents.remove(&one.offset);
            let rests = [one.cut(0..range.start), one.cut(range.end..u64::MAX)];
            let rests = rests.into_iter().flatten();
            self.extents.extend(rests.map(|rest| (rest.offset, rest)));
        }
        while let Some((&offset, &one)) = self.extents.range(range.clone()).next() {
            self.extents.remove(&offset);
            if let Some(rest) = one.cut(range.end..u64::MAX) {
                self.extents.insert(rest.offset, rest);
            }
        }
    }

    /// Sets the length of the file.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.clear(size..u64::MAX);
        }
        self.size = size;
    }

    /// Returns the extents in the order of their positions in the file.
    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.values()
    }

    /// Returns the number of extents.
    #[must_use]
    pub fn count(&self) -> usize {
        self.extents.len()
    }

    /// Returns the extent that covers a range of the file completely, if such an extent exists.
    #[must_use]
    pub fn covering(&self, range: &Range<u64>) -> Option<&Extent> {
        let (_, extent) = self.extents.range(..=range.start).next_back()?;
        (extent.end() >= range.end).then_some(extent)
    }

    /// Returns the extents in a range of the file, cut to the range, in the order of the file.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Extent> {
        let first = self.extents.range(..range.start).next_back();
        let first = first.map_or(range.start, |(&offset, _)| offset);
        let all = self.extents.range(first..range.end.max(first));
        all.filter_map(move |(_, extent)| extent.cut(range.clone()))
    }

    /// Removes bytes beyond the end of a part from the extents: these bytes are holes of the file.
    pub fn cut_to_parts(&mut self) {
        let sizes: Vec<u64> = self.parts.iter().map(|part| part.size).collect();
        self.extents.retain(|_, extent| {
            let size = sizes.get(extent.at.part).copied().unwrap_or(0);
            extent.length = extent.length.min(size.saturating_sub(extent.at.offset));
            extent.length > 0
        });
    }

    /// Removes the parts that contain no byte of the file, but keeps at least one part. Returns the removed parts.
    pub fn prune(&mut self) -> Vec<Part> {
        let mut used = vec![false; self.parts.len()];
        for extent in self.extents.values() {
            used[extent.at.part] = true;
        }
        if let Some(first) = used.first_mut().filter(|_| self.extents.is_empty()) {
            *first = true;
        }
        let mut place = 0;
        let places = used.iter().map(|&used| {
            place += usize::from(used);
            place
        });
        let places: Vec<usize> = places.collect();
        for extent in self.extents.values_mut() {
            extent.at.part = places[extent.at.part] - 1;
        }
        let all = std::mem::take(&mut self.parts).into_iter().zip(used);
        let (kept, gone): (Vec<_>, Vec<_>) = all.partition(|(_, used)| *used);
        self.parts = kept.into_iter().map(|(part, _)| part).collect();
        gone.into_iter().map(|(part, _)| part).collect()
    }

    pub(super) fn segment(&self, offset: u64, end: u64) -> Segment {
        let before = self.extents.range(..=offset).next_back();
        let covers = before.filter(|(_, extent)| extent.end() > offset);
        let (end, at) = match covers {
            Some((_, extent)) => {
                let within = extent.at.offset + (offset - extent.offset);
                let at = PartPosition {
                    offset: within,
                    ..extent.at
                };
                (end.min(extent.end()), Some(at))
            }
            None => {
                let next = self.extents.range(offset..).next();
                (next.map_or(end, |(&start, _)| end.min(start)), None)
            }
        };
        Segment {
            offset,
            length: end - offset,
            at,
        }
    }

    pub(super) fn segments_of(&self, part: usize, range: Range<u64>) -> Vec<Segment> {
        let of = self
            .extents
            .values()
            .filter(|extent| extent.at.part == part);
        let within = |extent: &Extent| {
            let start = extent.at.offset.max(range.start);
            let end = extent.end_within().min(range.end);
            (start < end).then(|| Segment {
                offset: extent.offset + (start - extent.at.offset),
                length: end - start,
                at: Some(PartPosition {
                    part,
                    offset: start,
                }),
            })
        };
        let mut segments: Vec<Segment> = of.filter_map(within).collect();
        segments.sort_unstable_by_key(|segment| segment.at.map(|at| at.offset));
        segments
    }

    pub(super) fn check(&self) -> Result<(), LayoutError> {
        if self.extents.len() > EXTENTS_MAX {
            return Err(LayoutError::Extents(self.extents.len()));
        }
        for extent in self.extents.values() {
            let part = self.parts.get(extent.at.part).map_or(0, |part| part.size);
            if extent.end() > self.size || extent.end_within() > part {
                return Err(LayoutError::Extent(extent.offset));
            }
        }
        Ok(())
    }
}

/// Encodes extents for storage and messages. Each extent consists of its position in the file, its length, its part and its position in the
/// part. Numbers have 7 bits per byte, the lowest bits first; all bytes but the last of a number have the eighth bit set.
#[must_use]
pub fn encode_extents<'a>(extents: impl IntoIterator<Item = &'a Extent>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extent in extents {
        let part = extent.at.part as u64;
        for mut number in [extent.offset, extent.length, part, extent.at.offset] {
            loop {
                let [low, ..] = number.to_le_bytes();
                number >>= 7;
                if number == 0 {
                    bytes.push(low & 0x7f);
                    break;
                }
                bytes.push(low | 0x80);
            }
        }
    }
    bytes
}

/// Decodes the result of [`encode_extents`].
///
/// # Errors
/// If the bytes are no encoded extents, or contain too many extents.
pub fn decode_extents(bytes: &[u8]) -> Result<Vec<Extent>, LayoutError> {
    let mut extents = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        if extents.len() == EXTENTS_MAX {
            return Err(LayoutError::Extents(EXTENTS_MAX + 1));
        }
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = take_number(&mut rest).ok_or(LayoutError::Encoding)?;
        }
        let [offset, length, part, within] = numbers;
        let extent = Extent {
            offset,
            length,
            at: PartPosition {
                part: usize::try_from(part).map_err(|_| LayoutError::Encoding)?,
                offset: within,
            },
        };
        if !extent.is_sound() {
            return Err(LayoutError::Extent(offset));
        }
        extents.push(extent);
    }
    Ok(extents)
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
