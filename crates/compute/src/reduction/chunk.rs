//! Pieces of a file as items of a reduction. A piece that is stored on several nodes becomes several items.

use tidemill_format::{FileSpan, IndexRange, VariableExtent};

use super::task::ReductionItem;
use crate::work::StoredBytes as Stored;

/// Returns the item for a piece whose bytes are at these locations.
#[must_use]
pub fn item(piece: &VariableExtent, bytes: Vec<Stored>) -> ReductionItem {
    ReductionItem {
        chunk: piece.chunk,
        bytes,
        mask: piece.mask,
        shape: piece.shape.clone(),
        stride: piece.stride,
        within: piece.within.clone(),
        at: piece.at.clone(),
    }
}

/// Cuts a contiguous piece at `ends`, ascending offsets in the file at which the bytes of one part end and those of another begin. Cuts at
/// whole rows if possible, so that only values across an end are in both pieces.
#[must_use]
pub fn cut(piece: &VariableExtent, ends: &[u64]) -> Vec<VariableExtent> {
    let mut pieces = Vec::new();
    cut_to(piece, ends, &mut pieces);
    pieces
}

fn cut_to(piece: &VariableExtent, ends: &[u64], to: &mut Vec<VariableExtent>) {
    let place = piece.shape.iter().position(|length| *length > 1);
    let (Some(dimension), Some(span), false) = (place, &piece.span, ends.is_empty()) else {
        to.push(piece.clone());
        return;
    };
    let row = (span.size / piece.shape[dimension]).max(1);
    let (mut next, mut ends) = (0, ends);
    while let Some(end) = ends.first() {
        let crossed = (end - span.offset) / row;
        to.extend(rows(piece, span, dimension, (next, crossed)));
        let row_end = span.offset + (crossed + 1) * row;
        let (inside, others) = ends.split_at(ends.partition_point(|end| *end < row_end));
        let inside = &inside[usize::from((end - span.offset) % row == 0)..];
        if !inside.is_empty()
            && let Some(one) = rows(piece, span, dimension, (crossed, crossed + 1))
        {
            cut_to(&one, inside, to);
        }
        next = crossed + u64::from(!inside.is_empty());
        ends = others;
    }
    to.extend(rows(piece, span, dimension, (next, piece.shape[dimension])));
}

/// Returns the requested part of some indices of the first dimension that has more than one index.
fn rows(
    piece: &VariableExtent,
    span: &FileSpan,
    dimension: usize,
    (from, to): (u64, u64),
) -> Option<VariableExtent> {
    let (row, range) = (span.size / piece.shape[dimension], piece.within[dimension]);
    let before = from
        .saturating_sub(range.start)
        .div_ceil(range.step)
        .min(range.count());
    let up_to = to
        .saturating_sub(range.start)
        .div_ceil(range.step)
        .min(range.count());
    if up_to <= before {
        return None;
    }
    let start = range.start + before * range.step;
    let end = range.start + (up_to - 1) * range.step + 1;
    let mut some = piece.clone();
    some.span = Some(FileSpan {
        file: span.file.clone(),
        offset: span.offset + from * row,
        size: (to - from) * row,
    });
    some.shape[dimension] = to - from;
    some.within[dimension] = IndexRange {
        start: start - from,
        end: end - from,
        step: range.step,
    };
    some.at[dimension] += before;
    Some(some)
}
