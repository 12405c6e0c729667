//! What is folded, as it is sent to whoever has the bytes.

use serde::{Deserialize, Serialize};
use tidemill_format::Range;

use super::counted::Counted;
use crate::array::{Codec, Dtype, Literal};
use crate::reducing::Piece;

/// How a variable's values go into cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The type of its values.
    pub dtype: Dtype,
    /// Whether their highest byte comes first.
    pub big_endian: bool,
    /// What was done to a chunk when it was written, first to last.
    pub filters: Vec<Codec>,
    /// In which order the dimensions of a chunk are stored, if not in theirs.
    pub order: Option<Vec<u32>>,
    /// An element that was never written.
    pub fill: Vec<u8>,
    /// Which values count.
    pub keep: Keep,
    /// What is kept of them.
    pub wants: Wants,
    /// Where each dimension leads.
    pub targets: Vec<Target>,
    /// What values weigh along one dimension, by the place in the selection.
    pub weights: Option<(u32, Vec<f64>)>,
    /// What of the values is counted, beside how many they are.
    pub counted: Option<Counted>,
}

/// Which values count. NaN never does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Keep {
    /// Not those equal to one of these.
    pub missing: Vec<Literal>,
    /// Not those below this.
    pub least: Option<Literal>,
    /// Not those above this.
    pub most: Option<Literal>,
}

/// What is kept of the values of a cell, beside how many they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wants {
    /// Their sum.
    pub sum: bool,
    /// The smallest and the largest.
    pub extremes: bool,
    /// How far they are from their mean.
    pub moments: bool,
}

/// Where a dimension leads in the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Nowhere: it is reduced.
    Reduced,
    /// Each index of the selection to a cell of its own, from this one on.
    Kept(u64),
    /// Each index of the selection to one of these.
    Grouped(Vec<u32>),
}

/// A piece of a variable: an array that its bytes decode to, and what of it goes where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Its number among the variable's chunks.
    pub chunk: u64,
    /// Its bytes; none if nothing was written and all is fill value.
    pub bytes: Vec<Piece>,
    /// Filters that were not applied to it.
    pub mask: u32,
    /// The array that its bytes decode to.
    pub shape: Vec<u64>,
    /// Bytes from one index of the first dimension to the next, where other variables' lie between.
    pub stride: Option<u64>,
    /// What is wanted of that array.
    pub within: Vec<Range>,
    /// Where the first of it is in the selection.
    pub at: Vec<u64>,
}

/// Pieces that are folded at once into one box of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// How.
    pub task: Task,
    /// The first cell of the box, and its lengths.
    pub cells: (Vec<u64>, Vec<u64>),
    /// Which.
    pub items: Vec<Item>,
}

impl Task {
    /// The cells that a piece goes to: the first, and how many along each dimension of the result.
    pub fn cells(&self, item: &Item) -> (Vec<u64>, Vec<u64>) {
        let mut cells = (Vec::new(), Vec::new());
        for (dimension, target) in self.targets.iter().enumerate() {
            let (at, count) = (item.at[dimension], item.within[dimension].count());
            let (first, length) = match target {
                Target::Reduced => continue,
                Target::Kept(first) => (first + at, count),
                Target::Grouped(groups) => {
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

    /// Bytes that are kept of each cell.
    pub fn cell_bytes(&self) -> usize {
        let counters = self.counted.as_ref().map_or(0, Counted::cell_bytes);
        counters.saturating_add(self.bytes_with(self.wants))
    }

    /// Bytes of a cell of which that is kept, without counters.
    pub(super) fn bytes_with(&self, wants: Wants) -> usize {
        let number = if self.dtype.size() == 8 { 16 } else { 8 };
        let Wants {
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

/// The smallest box around two.
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
