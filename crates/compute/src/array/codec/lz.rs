//! Decompressors of small variants of LZ77: LZF, as in h5py, and BloscLZ.

use super::DecodeFailure;

const CORRUPT: DecodeFailure = DecodeFailure::Data("the bytes are corrupt, or are no such data");

/// Input and output of a decompressor; all accesses are checked against their bounds.
struct Decompression<'a> {
    input: &'a [u8],
    to: &'a mut [u8],
    made: usize,
}

impl Decompression<'_> {
    fn byte(&mut self) -> Result<usize, DecodeFailure> {
        let (byte, rest) = self.input.split_first().ok_or(CORRUPT)?;
        self.input = rest;
        Ok(usize::from(*byte))
    }

    fn literal(&mut self, length: usize) -> Result<(), DecodeFailure> {
        let (bytes, rest) = self.input.split_at_checked(length).ok_or(CORRUPT)?;
        let space = self
            .to
            .get_mut(self.made..self.made + length)
            .ok_or(DecodeFailure::Space)?;
        space.copy_from_slice(bytes);
        (self.input, self.made) = (rest, self.made + length);
        Ok(())
    }

    /// Repeats the output from `back` bytes ago; source and destination may overlap.
    fn again(&mut self, back: usize, length: usize) -> Result<(), DecodeFailure> {
        let start = self.made.checked_sub(back).ok_or(CORRUPT)?;
        if self.to.len() - self.made < length {
            return Err(DecodeFailure::Space);
        }
        if back >= length {
            self.to.copy_within(start..start + length, self.made);
        } else {
            for place in 0..length {
                self.to[self.made + place] = self.to[start + place];
            }
        }
        self.made += length;
        Ok(())
    }
}

/// Decompresses LZF; returns the number of bytes.
pub(super) fn lzf(input: &[u8], to: &mut [u8]) -> Result<usize, DecodeFailure> {
    let mut copy = Decompression { input, to, made: 0 };
    while !copy.input.is_empty() {
        let control = copy.byte()?;
        if control < 32 {
            copy.literal(control + 1)?;
            continue;
        }
        let mut length = control >> 5;
        if length == 7 {
            length += copy.byte()?;
        }
        let back = (control & 31) << 8 | copy.byte()?;
        copy.again(back + 1, length + 2)?;
    }
    Ok(copy.made)
}

/// Decompresses BloscLZ; returns the number of bytes.
pub(super) fn blosclz(input: &[u8], to: &mut [u8]) -> Result<usize, DecodeFailure> {
    /// Maximum distance in two bytes; a longer distance has two more bytes.
    const NEAR_MAX: usize = 8191;
    let mut copy = Decompression { input, to, made: 0 };
    // The first instruction is always a literal.
    let mut control = copy.byte()? & 31;
    loop {
        if control < 32 {
            copy.literal(control + 1)?;
        } else {
            let mut length = (control >> 5) - 1;
            let far = (control & 31) << 8;
            if length == 6 {
                loop {
                    let more = copy.byte()?;
                    length += more;
                    if more != 255 {
                        break;
                    }
                }
            }
            let low = copy.byte()?;
            let back = match low == 255 && far == 31 << 8 {
                true => (copy.byte()? << 8 | copy.byte()?) + NEAR_MAX,
                false => far | low,
            };
            copy.again(back + 1, length + 3)?;
        }
        if copy.input.is_empty() {
            return Ok(copy.made);
        }
        control = copy.byte()?;
    }
}
