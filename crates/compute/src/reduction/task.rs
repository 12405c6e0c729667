//! Folding task of a reduction, in the form that is sent to the node that stores the bytes.

use serde::{Deserialize, Serialize};
use tidemill_format::IndexRange;

use super::counted::Counted;
use crate::array::{Codec, Dtype, Literal};
use crate::work::StoredBytes;

/// Mapping of a variable's values to cells of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReductionTask {
    /// Type of the variable's values.
    pub dtype: Dtype,
    /// Whether the most significant byte of a value is stored first.
    pub big_endian: bool,
    /// Filters that a writer applied to each chunk, first to last.
    pub filters: Vec<Codec>,
    /// Order in which the dimensions of a chunk are stored; `None` for the dimensions' own order.
    pub order: Option<Vec<u32>>,
    /// Bytes of an element that was never written.
    pub fill: Vec<u8>,
    /// Rule that decides which values count.
    pub keep: KeepRule,
    /// Results that are kept for each cell.
    pub wants: WantedResults,
    /// Target of each dimension in the result.
    pub targets: Vec<DimensionTarget>,
    /// Dimension with weights, and the weights by the place in the selection.
    pub weights: Option<(u32, Vec<f64>)>,
    /// Property of values that is counted, in addition to the number of values.
    pub counted: Option<Counted>,
}

/// Rule that decides which values count. NaN never counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeepRule {
    /// Values that do not count.
    pub missing: Vec<Literal>,
    /// Smallest value that counts.
    pub least: Option<Literal>,
    /// Largest value that counts.
    pub most: Option<Literal>,
}

/// Results that are kept for the values of a cell, in addition to their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedResults {
    /// Whether sums are kept.
    pub sum: bool,
    /// Whether smallest and largest values are kept.
    pub extremes: bool,
    /// Whether squared distances from the mean are kept.
    pub moments: bool,
}

/// Target of a dimension's indices in the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DimensionTarget {
    /// The dimension is reduced: it has no target.
    Reduced,
    /// Each index of the selection has a separate cell, from this cell on.
    Kept(u64),
    /// Each index of the selection has one of these cells.
    Grouped(Vec<u32>),
}

/// Piece of a variable: an array that stored bytes decode to, and the cells of its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReductionItem {
    /// Number of the piece among the variable's chunks.
    pub chunk: u64,
    /// Location of the piece's bytes; empty if no bytes were written, so all values are the fill value.
    pub bytes: Vec<StoredBytes>,
    /// Bit mask of filters that were not applied to the piece.
    pub mask: u32,
    /// Shape of the array that the piece's bytes decode to.
    pub shape: Vec<u64>,
    /// Distance from one index of the first dimension to the next, in bytes, if bytes of other variables are in between.
    pub stride: Option<u64>,
    /// Requested part of the array that the piece's bytes decode to.
    pub within: Vec<IndexRange>,
    /// Place of the piece's first requested value in the selection.
    pub at: Vec<u64>,
}

/// Pieces that are folded at once into one box of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReductionBatch {
    /// Task that folds the pieces.
    pub task: ReductionTask,
    /// First cell of the box, and its lengths.
    pub cells: (Vec<u64>, Vec<u64>),
    /// Pieces that are folded.
    pub items: Vec<ReductionItem>,
}

impl ReductionTask {
    /// Returns the cells that a piece's values belong to: the first, and the number along each dimension of the result.
    pub fn cells(&self, item: &ReductionItem) -> (Vec<u64>, Vec<u64>) {
        let mut cells = (Vec::new(), Vec::new());
        for (dimension, target) in self.targets.iter().enumerate() {
            let (at, count) = (item.at[dimension], item.within[dimension].count());
            let (first, length) = match target {
                DimensionTarget::Reduced => continue,
                DimensionTarget::Kept(first) => (first + at, count),
                DimensionTarget::Grouped(groups) => {
                    let start = usize::try_from(at).unwrap_or(usize::MAX);
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    let of = groups.iter().skip(start).take(count);
                    let least = of.clone().min().copied().unwrap_or(0);
                    let most = of.max().copied().unwrap_or(0);
                    (u64::from(least), u64::from(most - least) + 1)
                }
            };
            cells.0.push(first);
            cells.1.push(length);
        }
        cells
    }

    /// Returns the number of bytes that the task needs for each cell.
    pub fn cell_bytes(&self) -> usize {
        let counters = self.counted.as_ref().map_or(0, Counted::cell_bytes);
        counters.saturating_add(self.bytes_with(self.wants))
    }

    /// Returns the number of bytes of a cell that keeps these results, without counters.
    pub(super) fn bytes_with(&self, wants: WantedResults) -> usize {
        let number = if self.dtype.size() == 8 { 16 } else { 8 };
        let WantedResults {
            sum,
            extremes,
            moments,
        } = wants;
        8 + 16 * usize::from(sum)
            + 2 * number * usize::from(extremes)
            + 16 * usize::from(moments)
            + 8 * usize::from(self.weights.is_some())
    }
}

/// Returns the smallest box around two boxes.
#[must_use]
pub fn around(one: &(Vec<u64>, Vec<u64>), other: &(Vec<u64>, Vec<u64>)) -> (Vec<u64>, Vec<u64>) {
    let mut both = (Vec::new(), Vec::new());
    for dimension in 0..one.0.len() {
        let start = one.0[dimension].min(other.0[dimension]);
        let end_one = one.0[dimension] + one.1[dimension];
        let end = end_one.max(other.0[dimension] + other.1[dimension]);
        both.0.push(start);
        both.1.push(end - start);
    }
    both
}
