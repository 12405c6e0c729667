//! Versions of pieces: each writer appends its writes to an object of its own, and a list of pieces stores their positions in the file. If
//! several writers wrote the same bytes, the last reported write counts. This module only computes layouts.

use super::{LayoutError, Part, Piece, Within};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of pieces of one version.
pub const PIECES_MAX: usize = 1 << 20;
/// Maximum number of pieces in a writer's last report, which is never refused.
pub const UNTOLD_MAX: usize = 16_384;

/// Layout of a version of pieces; see the module. Bytes that no piece covers read as zeros.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Extents {
    /// Length of the file, in bytes.
    pub size: u64,
    /// Parts, one for each writer.
    pub parts: Vec<Part>,
    /// Pieces by their position in the file; none overlap.
    pieces: BTreeMap<u64, Extent>,
}

/// Consecutive bytes of the file in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position in the file.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u64,
    /// Position in the part.
    pub at: Within,
}

impl Extent {
    /// Returns the end in the file.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Returns the end in the part.
    #[must_use]
    pub fn end_within(&self) -> u64 {
        self.at.offset.saturating_add(self.length)
    }

    /// Returns whether the piece is not empty and its positions do not overflow.
    fn is_sound(&self) -> bool {
        let places = [self.offset, self.at.offset];
        let fits = |from: &u64| from.checked_add(self.length).is_some();
        self.length > 0 && places.iter().all(fits)
    }

    /// Returns the part of the piece that is in a range of the file.
    fn cut(&self, range: Range<u64>) -> Option<Self> {
        let (start, end) = (self.offset.max(range.start), self.end().min(range.end));
        (start < end).then(|| Self {
            offset: start,
            length: end - start,
            at: Within {
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

    /// Returns a layout of stored pieces: ordered, not overlapping, and all within the file and their parts.
    ///
    /// # Errors
    /// If the pieces violate these conditions.
    pub fn of(
        size: u64,
        parts: Vec<Part>,
        pieces: impl IntoIterator<Item = Extent>,
    ) -> Result<Self, LayoutError> {
        let mut all = Self::with_parts(parts);
        all.size = size;
        let mut end = 0;
        for piece in pieces {
            if piece.offset < end || !piece.is_sound() {
                return Err(LayoutError::Piece(piece.offset));
            }
            end = piece.end();
            all.pieces.insert(piece.offset, piece);
        }
        all.check()?;
        Ok(all)
    }

    /// Adds written bytes, which replace earlier ones. Extends the file and the part to the end of these bytes if necessary.
    ///
    /// # Errors
    /// If there are no bytes, no such part or no such numbers, or too many pieces; nothing is changed then.
    pub fn put(&mut self, piece: Extent) -> Result<(), LayoutError> {
        if !piece.is_sound() {
            return Err(LayoutError::Piece(piece.offset));
        }
        // The new piece may split an existing one.
        if self.pieces.len() + 2 > PIECES_MAX {
            return Err(LayoutError::Pieces(self.pieces.len() + 2));
        }
        let Some(part) = self.parts.get_mut(piece.at.part) else {
            return Err(LayoutError::Piece(piece.offset));
        };
        part.size = part.size.max(piece.end_within());
        self.size = self.size.max(piece.end());
        self.clear(piece.offset..piece.end());
        let mut piece = piece;
        let before = self.pieces.range(..piece.offset).next_back();
        if let Some((&at, before)) = before.filter(|(_, before)| before.goes_on_with(&piece)) {
            let length = before.length + piece.length;
            piece = Extent { length, ..*before };
            self.pieces.remove(&at);
        }
        if let Some(next) = self.pieces.get(&piece.end()).copied()
            && piece.goes_on_with(&next)
        {
            self.pieces.remove(&next.offset);
            piece.length += next.length;
        }
        self.pieces.insert(piece.offset, piece);
        Ok(())
    }

    /// Removes a range of the file from all pieces.
    fn clear(&mut self, range: Range<u64>) {
        let before = self.pieces.range(..range.start).next_back();
        let before = before.map(|(_, one)| *one);
        if let Some(one) = before.filter(|one| one.end() > range.start) {
            self.pieces.remove(&one.offset);
            let rests = [one.cut(0..range.start), one.cut(range.end..u64::MAX)];
            let rests = rests.into_iter().flatten();
            self.pieces.extend(rests.map(|rest| (rest.offset, rest)));
        }
        while let Some((&offset, &one)) = self.pieces.range(range.clone()).next() {
            self.pieces.remove(&offset);
            if let Some(rest) = one.cut(range.end..u64::MAX) {
                self.pieces.insert(rest.offset, rest);
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

    /// Returns the pieces, in the order of the file.
    pub fn pieces(&self) -> impl Iterator<Item = &Extent> {
        self.pieces.values()
    }

    /// Returns the number of pieces.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the piece that covers all of a range of the file, if there is one.
    #[must_use]
    pub fn covering(&self, range: &Range<u64>) -> Option<&Extent> {
        let (_, piece) = self.pieces.range(..=range.start).next_back()?;
        (piece.end() >= range.end).then_some(piece)
    }

    /// Returns the pieces in a range of the file, cut to the range, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Extent> {
        let first = self.pieces.range(..range.start).next_back();
        let first = first.map_or(range.start, |(&offset, _)| offset);
        let all = self.pieces.range(first..range.end.max(first));
        all.filter_map(move |(_, piece)| piece.cut(range.clone()))
    }

    /// Removes bytes beyond the end of a part from the pieces: they are holes of the file.
    pub fn cut_to_parts(&mut self) {
        let sizes: Vec<u64> = self.parts.iter().map(|part| part.size).collect();
        self.pieces.retain(|_, piece| {
            let size = sizes.get(piece.at.part).copied().unwrap_or(0);
            piece.length = piece.length.min(size.saturating_sub(piece.at.offset));
            piece.length > 0
        });
    }

    /// Removes the parts that contain no byte of the file, but keeps at least one part. Returns the removed parts.
    pub fn prune(&mut self) -> Vec<Part> {
        let mut used = vec![false; self.parts.len()];
        for piece in self.pieces.values() {
            used[piece.at.part] = true;
        }
        if let Some(first) = used.first_mut().filter(|_| self.pieces.is_empty()) {
            *first = true;
        }
        let mut place = 0;
        let places = used.iter().map(|&used| {
            place += usize::from(used);
            place
        });
        let places: Vec<usize> = places.collect();
        for piece in self.pieces.values_mut() {
            piece.at.part = places[piece.at.part] - 1;
        }
        let all = std::mem::take(&mut self.parts).into_iter().zip(used);
        let (kept, gone): (Vec<_>, Vec<_>) = all.partition(|(_, used)| *used);
        self.parts = kept.into_iter().map(|(part, _)| part).collect();
        gone.into_iter().map(|(part, _)| part).collect()
    }

    pub(super) fn piece(&self, offset: u64, end: u64) -> Piece {
        let before = self.pieces.range(..=offset).next_back();
        let covers = before.filter(|(_, piece)| piece.end() > offset);
        let (end, at) = match covers {
            Some((_, piece)) => {
                let within = piece.at.offset + (offset - piece.offset);
                let at = Within {
                    offset: within,
                    ..piece.at
                };
                (end.min(piece.end()), Some(at))
            }
            None => {
                let next = self.pieces.range(offset..).next();
                (next.map_or(end, |(&start, _)| end.min(start)), None)
            }
        };
        Piece {
            offset,
            length: end - offset,
            at,
        }
    }

    pub(super) fn pieces_of(&self, part: usize, range: Range<u64>) -> Vec<Piece> {
        let of = self.pieces.values().filter(|piece| piece.at.part == part);
        let within = |piece: &Extent| {
            let start = piece.at.offset.max(range.start);
            let end = piece.end_within().min(range.end);
            (start < end).then(|| Piece {
                offset: piece.offset + (start - piece.at.offset),
                length: end - start,
                at: Some(Within {
                    part,
                    offset: start,
                }),
            })
        };
        let mut pieces: Vec<Piece> = of.filter_map(within).collect();
        pieces.sort_unstable_by_key(|piece| piece.at.map(|at| at.offset));
        pieces
    }

    pub(super) fn check(&self) -> Result<(), LayoutError> {
        if self.pieces.len() > PIECES_MAX {
            return Err(LayoutError::Pieces(self.pieces.len()));
        }
        for piece in self.pieces.values() {
            let part = self.parts.get(piece.at.part).map_or(0, |part| part.size);
            if piece.end() > self.size || piece.end_within() > part {
                return Err(LayoutError::Piece(piece.offset));
            }
        }
        Ok(())
    }
}

/// Encodes pieces for storing and sending. Each piece consists of its position in the file, its length, its part and its position in the
/// part. Numbers have 7 bits per byte, the lowest first; all bytes but the last of a number have the eighth bit set.
#[must_use]
pub fn encode_pieces<'a>(pieces: impl IntoIterator<Item = &'a Extent>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        let part = piece.at.part as u64;
        for mut number in [piece.offset, piece.length, part, piece.at.offset] {
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

/// Decodes the result of [`encode_pieces`].
///
/// # Errors
/// If the bytes are no such encoding, or contain too many pieces.
pub fn decode_pieces(bytes: &[u8]) -> Result<Vec<Extent>, LayoutError> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        if pieces.len() == PIECES_MAX {
            return Err(LayoutError::Pieces(PIECES_MAX + 1));
        }
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = take_number(&mut rest).ok_or(LayoutError::Encoding)?;
        }
        let [offset, length, part, within] = numbers;
        let piece = Extent {
            offset,
            length,
            at: Within {
                part: usize::try_from(part).map_err(|_| LayoutError::Encoding)?,
                offset: within,
            },
        };
        if !piece.is_sound() {
            return Err(LayoutError::Piece(offset));
        }
        pieces.push(piece);
    }
    Ok(pieces)
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
