//! Lines and columns of a text's offsets, in any order.

use super::Position;

/// Bytes between two known positions.
const STEP_BYTES: usize = 1024;

/// Index of a text that converts offsets to lines and columns. A look-up reads at most about [`STEP_BYTES`] of the text.
#[derive(Debug)]
pub(crate) struct Positions<'s> {
    text: &'s str,
    /// Known offsets and their positions, ascending; the first offset is 0.
    known: Vec<(usize, Position)>,
}

impl<'s> Positions<'s> {
    pub(crate) fn new(text: &'s str) -> Self {
        let mut known = vec![(0, Position::START)];
        let mut position = Position::START;
        let mut due = STEP_BYTES;
        for (offset, c) in text.char_indices() {
            if offset >= due {
                known.push((offset, position));
                due = offset + STEP_BYTES;
            }
            position = after(position, c);
        }
        Self { text, known }
    }

    /// Returns the position of the character at an offset, or after the last character.
    pub(crate) fn at(&self, offset: usize) -> Position {
        let count = self.known.partition_point(|(known, _)| *known <= offset);
        let Some(&(start, position)) = self.known[..count].last() else {
            return Position::START;
        };
        let rest = self.text[start..].char_indices();
        let before = rest.take_while(|(index, _)| start + index < offset);
        before.fold(position, |position, (_, c)| after(position, c))
    }
}

/// Returns the position after a character.
fn after(at: Position, c: char) -> Position {
    match c {
        '\n' => Position {
            line: at.line + 1,
            column: 1,
        },
        _ => Position {
            column: at.column + 1,
            ..at
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_equal_those_of_a_scan_in_any_order() {
        let text = "é = 1\n".repeat(700) + &"ü".repeat(3000);
        let positions = Positions::new(&text);
        let mut scanned = Position::START;
        let mut all = Vec::new();
        for (offset, c) in text.char_indices() {
            all.push((offset, scanned));
            scanned = after(scanned, c);
        }
        all.push((text.len(), scanned));
        for (offset, position) in all.into_iter().rev() {
            assert_eq!(positions.at(offset), position, "{offset}");
        }
    }
}
