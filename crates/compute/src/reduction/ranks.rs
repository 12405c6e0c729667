//! Exact medians and quantiles: the digits of a value are found one after the other, the highest first. Each pass counts the values of a
//! cell with each next digit. Counts of pieces can be added, so nodes send counts and never values.

use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::state::{BoxState, as_usize, count};
use crate::array::{ArrayError, Dtype, with_type};
use crate::loops::number::Number;

/// Maximum number of bits of a digit: the counters of a cell then fit into the first-level cache.
const DIGIT_MAX: u32 = 11;
/// Maximum number of quantiles in one reduction.
pub(super) const QUANTILES_MAX: usize = 32;
/// Maximum number of cells whose ranks are searched, because each cell has counters.
pub(super) const CELLS_MAX: u64 = 2 << 20;

/// Counters of digits in one pass, in addition to the number of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Digits {
    /// Factor and summand of values whose keys are those of doubles; `None` if keys are those of the type itself.
    pub real: Option<(f64, f64)>,
    /// Number of bits of a key below the digit.
    pub below: u32,
    /// Number of bits of the digit.
    pub bits: u32,
    /// Number of ranks of a cell that are searched separately.
    pub ranks: u32,
    /// Known part of each rank's key above the digit, cell by cell of the box; empty before the first pass.
    pub known: Vec<u64>,
}

impl Digits {
    /// Returns the number of counters of one cell.
    pub(super) fn counters(&self) -> usize {
        (self.ranks as usize).saturating_mul(1 << self.bits.min(32))
    }

    /// Returns the number of bytes that the counters take for each cell.
    pub(super) fn cell_bytes(&self) -> usize {
        let ranks = self.ranks as usize;
        self.counters().saturating_add(ranks).saturating_mul(8)
    }

    /// Checks the counters' description for `cells` cells. The description may come from an untrusted source.
    pub(super) fn check(&self, cells: usize) -> std::result::Result<(), ArrayError> {
        let ranks = self.ranks as usize;
        let known = match self.known.len() {
            0 => ranks == 1,
            length => cells.checked_mul(ranks) == Some(length),
        };
        let fits = (1..=DIGIT_MAX).contains(&self.bits) && self.below <= 64 - self.bits;
        if known && fits && (1..=2 * QUANTILES_MAX).contains(&ranks) {
            Ok(())
        } else {
            Err(ArrayError::OtherReduction)
        }
    }

    /// Counts the digit of a value in the counters of a cell.
    #[inline(always)]
    pub(super) fn put<T: Number>(&self, counts: &mut [u64], cell: usize, value: T) {
        let Self {
            real,
            below,
            bits,
            ranks,
            known,
        } = self;
        let key = match real {
            None => value.ordered(),
            Some((scale, offset)) => (value.to_f64() * scale + offset).ordered(),
        };
        let digit = as_usize(key >> below & ((1 << bits) - 1));
        let ranks = *ranks as usize;
        if known.is_empty() {
            counts[(cell << bits) + digit] += 1;
            return;
        }
        let above = key.unbounded_shr(below + bits);
        let first = cell * ranks;
        for (rank, known) in known[first..first + ranks].iter().enumerate() {
            counts[((first + rank) << bits) + digit] += u64::from(*known == above);
        }
    }
}

/// Rank that is searched in each cell: the number of smaller values among the values with the same known digits.
#[derive(Clone, Debug, PartialEq)]
struct SearchedRank {
    known: Vec<u64>,
    smaller: Vec<u64>,
    /// Number of the rank among those that a pass distinguishes.
    apart: usize,
}

/// Search for quantiles, from pass to pass.
#[derive(Debug)]
pub(super) struct QuantileSearch {
    quantiles: Vec<f64>,
    dtype: Dtype,
    /// Whether keys of values are those of doubles.
    real: bool,
    /// Number of bits of the keys that are not known yet.
    left: u32,
    /// Number of bits of the keys that this pass finds.
    bits: u32,
    /// Maximum size of the counters, in bytes.
    space: usize,
    cells: usize,
    /// Ranks of the value below and the value above each quantile; empty before the first pass.
    ranks: Vec<SearchedRank>,
    /// Number of different ranks that this pass distinguishes.
    apart: usize,
    counts: Vec<u64>,
}

impl QuantileSearch {
    /// Starts a search for `quantiles` of values of a type in each of `cells` cells.
    pub(super) fn new(
        quantiles: &[f64],
        (dtype, real): (Dtype, bool),
        cells: u64,
        space: usize,
    ) -> Result<Self> {
        let wanted = cells.saturating_mul(quantiles.len() as u64);
        if wanted > CELLS_MAX {
            return Err(Error::Query(format!(
                "this needs {wanted} quantiles, and at most {CELLS_MAX} are possible: reduce more dimensions, or select less"
            )));
        }
        let mut search = Self {
            quantiles: quantiles.to_vec(),
            dtype,
            real,
            left: match real {
                true => 64,
                false => 8 * u32::try_from(dtype.size()).unwrap_or(8),
            },
            bits: 0,
            space,
            cells: as_usize(cells),
            ranks: Vec::new(),
            apart: 1,
            counts: Vec::new(),
        };
        search.begin();
        Ok(search)
    }

    /// Chooses as many bits for the next pass as the counters have space for.
    fn begin(&mut self) {
        let space = self.space / (8 * self.apart * self.cells.max(1));
        self.bits = space.max(2).ilog2().min(DIGIT_MAX).min(self.left);
    }

    /// Returns the number of counters of one cell.
    pub(super) fn counters(&self) -> usize {
        self.apart << self.bits
    }

    /// Returns the number of bytes that the counters take for each cell.
    pub(super) fn cell_bytes(&self) -> usize {
        8 * (self.counters() + self.apart)
    }

    /// Returns the counters for pieces whose values belong to a box of the result with this shape.
    pub(super) fn digits(
        &self,
        unpack: Option<(f64, f64)>,
        (at, lengths): &(Vec<u64>, Vec<u64>),
        shape: &[u64],
    ) -> Digits {
        let apart = |apart| self.ranks.iter().find(|rank| rank.apart == apart);
        let ranks: Vec<&SearchedRank> = (0..self.apart).filter_map(apart).collect();
        let mut known = Vec::new();
        for cell in boxed(at, lengths, shape) {
            known.extend(ranks.iter().map(|rank| rank.known[cell]));
        }
        Digits {
            real: self.real.then(|| unpack.unwrap_or((1.0, 0.0))),
            below: self.left - self.bits,
            bits: self.bits,
            ranks: u32::try_from(self.apart).unwrap_or(u32::MAX),
            known,
        }
    }

    /// Computes the ranks of the values next to each quantile, once the number of values is known.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "places are from 0 to a count"
    )]
    fn rank(&mut self) {
        for quantile in &self.quantiles {
            let place = |many: &u64| quantile * count(many.saturating_sub(1));
            let rank = |smaller| SearchedRank {
                known: vec![0; self.cells],
                smaller,
                apart: 0,
            };
            let below = |many| place(many).floor() as u64;
            let above = |many| place(many).ceil() as u64;
            let below = rank(self.counts.iter().map(below).collect());
            let above = rank(self.counts.iter().map(above).collect());
            self.ranks.extend([below, above]);
        }
    }

    /// Finds the next digit of each rank in the counts of a pass; returns whether there are more digits.
    ///
    /// # Errors
    /// If the values differ from the values of previous passes.
    pub(super) fn next(&mut self, found: &BoxState) -> Result<bool> {
        if self.ranks.is_empty() {
            self.counts.clone_from(&found.counts);
            self.rank();
        }
        if found.counts != self.counts {
            return Err(Error::Changed);
        }
        let counters = self.counters();
        for rank in &mut self.ranks {
            for cell in (0..self.cells).filter(|cell| self.counts[*cell] > 0) {
                let first = cell * counters + (rank.apart << self.bits);
                let mut smaller = rank.smaller[cell];
                let mut digit = 0;
                for count in &found.counters[first..first + (1 << self.bits)] {
                    if smaller < *count {
                        break;
                    }
                    (smaller, digit) = (smaller - count, digit + 1);
                }
                if digit >> self.bits != 0 {
                    return Err(Error::Changed);
                }
                rank.known[cell] = rank.known[cell] << self.bits | digit;
                rank.smaller[cell] = smaller;
            }
        }
        self.left -= self.bits;
        self.tell_apart();
        Ok(self.left > 0)
    }

    /// Combines ranks whose known digits are the same in all cells.
    fn tell_apart(&mut self) {
        self.apart = 0;
        for place in 0..self.ranks.len() {
            let (before, own) = self.ranks.split_at_mut(place);
            let same = before.iter().find(|rank| rank.known == own[0].known);
            own[0].apart = same.map_or(self.apart, |rank| rank.apart);
            self.apart = self.apart.max(own[0].apart + 1);
        }
        self.begin();
    }

    /// Returns each quantile of each cell, interpolated between the two values next to it as in numpy.
    pub(super) fn values(&self) -> Vec<Vec<Option<f64>>> {
        let value = |key: u64| match self.real {
            true => f64::from_ordered(key),
            false => with_type!(self.dtype, T => T::from_ordered(key).to_f64()),
        };
        let of = |(quantile, ranks): (&f64, &[SearchedRank])| {
            let cell = |cell: usize| {
                let place = quantile * count(self.counts[cell].checked_sub(1)?);
                let (low, high) = (value(ranks[0].known[cell]), value(ranks[1].known[cell]));
                Some(between(low, high, place - place.floor()))
            };
            (0..self.cells).map(cell).collect()
        };
        self.quantiles
            .iter()
            .zip(self.ranks.chunks_exact(2))
            .map(of)
            .collect()
    }
}

/// Interpolates between two numbers: `far` is the distance from `low`, from 0 to 1.
fn between(low: f64, high: f64, far: f64) -> f64 {
    // Two infinities cannot be subtracted.
    if low >= high {
        return low;
    }
    let apart = high - low;
    if far < 0.5 {
        low + apart * far
    } else {
        high - apart * (1.0 - far)
    }
}

/// Returns the values of a box's cells, by their place in the whole result.
fn boxed<'a>(
    at: &'a [u64],
    lengths: &'a [u64],
    shape: &'a [u64],
) -> impl Iterator<Item = usize> + 'a {
    (0..lengths.iter().product::<u64>()).map(move |number| {
        let (mut left, mut cell, mut apart) = (number, 0, 1);
        for dimension in (0..shape.len()).rev() {
            cell += (at[dimension] + left % lengths[dimension]) * apart;
            left /= lengths[dimension];
            apart *= shape[dimension];
        }
        as_usize(cell)
    })
}
