//! Partial state of a box of cells. States of pieces of the same result can be merged.

use serde::{Deserialize, Serialize};

use super::task::WantedResults;
use crate::array::ArrayError;
use crate::array::pass::{Compensated, two_sum};

/// Partial state of the cells of a box.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoxState {
    /// Index of the box's first cell in each dimension of the result.
    pub at: Vec<u64>,
    /// Number of cells along each dimension of the result.
    pub shape: Vec<u64>,
    /// Number of values that count, for each cell.
    pub counts: Vec<u64>,
    pub(super) sums: CellSums,
    /// Smallest and largest value of each cell.
    pub(super) extremes: [CellNumbers; 2],
    /// Mean of each cell, and the sum of the squared distances of values from the mean.
    pub(super) moments: Vec<(f64, f64)>,
    /// Sum of weights of each cell. If it is present, `sums` are of weighted values.
    pub(super) weights: Vec<f64>,
    /// Rounding errors of the weights, which are not sent.
    #[serde(skip)]
    pub(super) weights_lost: Vec<f64>,
    /// Counters of digits or bins; all counters of a cell are contiguous.
    pub(super) counters: Vec<u64>,
}

/// Sums of the values, one for each cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum CellSums {
    None,
    Whole(Vec<i128>),
    Real(Vec<Compensated>),
}

/// Numbers of any type, one for each cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum CellNumbers {
    None,
    Whole(Vec<i128>),
    Real(Vec<f64>),
}

#[expect(clippy::cast_precision_loss, reason = "the nearest is wanted")]
pub(super) fn real(whole: i128) -> f64 {
    whole as f64
}

#[expect(clippy::cast_precision_loss, reason = "counts are below 2^53")]
pub(super) fn count(count: u64) -> f64 {
    count as f64
}

/// Returns the sum with its rounding error; an infinite sum has none.
pub(super) fn total((sum, lost): Compensated) -> f64 {
    if sum.is_finite() { sum + lost } else { sum }
}

impl BoxState {
    /// Returns a partial state without values.
    #[must_use]
    pub fn empty(shape: Vec<u64>, whole: bool, wants: WantedResults, weighted: bool) -> Self {
        let cells = usize::try_from(shape.iter().product::<u64>()).unwrap_or(usize::MAX);
        let extreme = |wanted, largest: bool| match (wanted, whole) {
            (false, _) => CellNumbers::None,
            (_, true) => {
                CellNumbers::Whole(vec![if largest { i128::MIN } else { i128::MAX }; cells])
            }
            (_, false) => CellNumbers::Real(vec![
                if largest {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                };
                cells
            ]),
        };
        Self {
            at: vec![0; shape.len()],
            counts: vec![0; cells],
            sums: match (wants.sum, whole && !weighted) {
                (false, _) => CellSums::None,
                (_, true) => CellSums::Whole(vec![0; cells]),
                (_, false) => CellSums::Real(vec![(0.0, 0.0); cells]),
            },
            extremes: [false, true].map(|largest| extreme(wants.extremes, largest)),
            moments: vec![(0.0, 0.0); if wants.moments { cells } else { 0 }],
            weights: vec![0.0; if weighted { cells } else { 0 }],
            weights_lost: vec![0.0; if weighted { cells } else { 0 }],
            counters: Vec::new(),
            shape,
        }
    }

    fn fits(&self, other: &Self) -> bool {
        let inside = |dimension: usize| {
            let end = other.at[dimension].checked_add(other.shape[dimension]);
            other.at[dimension] >= self.at[dimension]
                && end.is_some_and(|end| end <= self.at[dimension] + self.shape[dimension])
        };
        let cells = other.counts.len();
        let has = |numbers: &CellNumbers| match numbers {
            CellNumbers::None => 0,
            CellNumbers::Whole(all) => all.len(),
            CellNumbers::Real(all) => all.len(),
        };
        let sums = match &other.sums {
            CellSums::None => 0,
            CellSums::Whole(all) => all.len(),
            CellSums::Real(all) => all.len(),
        };
        let known = other.shape.iter().try_fold(1_u64, |a, b| a.checked_mul(*b));
        let mut lengths = vec![
            sums,
            other.moments.len(),
            other.weights.len(),
            has(&other.extremes[0]),
            has(&other.extremes[1]),
        ];
        lengths.retain(|length| *length != 0);
        self.at.len() == other.at.len()
            && other.shape.len() == other.at.len()
            && known == Some(cells as u64)
            && lengths.iter().all(|length| *length == cells)
            && self.moments.is_empty() == other.moments.is_empty()
            && self.weights.is_empty() == other.weights.is_empty()
            && self.counters.len() * cells == other.counters.len() * self.counts.len()
            && (0..self.at.len()).all(inside)
    }

    /// Merges the state of other values, for a box within this state's box.
    ///
    /// # Errors
    /// If the other state belongs to another reduction.
    pub fn merge(&mut self, other: &Self) -> Result<(), ArrayError> {
        if !self.fits(other) {
            return Err(ArrayError::OtherReduction);
        }
        let rank = self.at.len();
        let row = other.shape.last().map_or(1, |length| as_usize(*length));
        if row == 0 || other.counts.is_empty() {
            return Ok(());
        }
        let mut index = vec![0_u64; rank];
        for from in (0..other.counts.len()).step_by(row) {
            let to = (0..rank).fold(0, |cell, dimension| {
                cell * self.shape[dimension] + other.at[dimension] - self.at[dimension]
                    + index[dimension]
            });
            self.merge_row(as_usize(to), other, from, row)?;
            for dimension in (0..rank.saturating_sub(1)).rev() {
                index[dimension] += 1;
                if index[dimension] < other.shape[dimension] {
                    break;
                }
                index[dimension] = 0;
            }
        }
        Ok(())
    }

    fn merge_row(
        &mut self,
        to: usize,
        other: &Self,
        from: usize,
        row: usize,
    ) -> Result<(), ArrayError> {
        let pairs = || (to..to + row).zip(from..from + row);
        if !self.moments.is_empty() {
            for (to, from) in pairs() {
                let one = (self.counts[to], self.moments[to]);
                self.moments[to] = moments(one, (other.counts[from], other.moments[from]));
            }
        }
        match (&mut self.sums, &other.sums) {
            (CellSums::None, CellSums::None) => {}
            (CellSums::Whole(own), CellSums::Whole(more)) => {
                pairs().for_each(|(to, from)| own[to] = own[to].wrapping_add(more[from]));
            }
            (CellSums::Real(own), CellSums::Real(more)) => pairs().for_each(|(to, from)| {
                let (sum, lost) = two_sum(own[to].0, more[from].0);
                own[to] = (sum, own[to].1 + (lost + more[from].1));
            }),
            _ => return Err(ArrayError::OtherReduction),
        }
        // Cells without values have the ends of their type, which may be within the ends of another type.
        let some = || pairs().filter(|(_, from)| other.counts[*from] > 0);
        let is_first = |to: usize| self.counts[to] == 0;
        for (largest, (own, more)) in self.extremes.iter_mut().zip(&other.extremes).enumerate() {
            match (own, more) {
                (CellNumbers::None, CellNumbers::None) => {}
                (CellNumbers::Whole(own), CellNumbers::Whole(more)) => {
                    some().for_each(|(to, from)| {
                        let b = more[from];
                        let a = if is_first(to) { b } else { own[to] };
                        own[to] = if largest == 1 { a.max(b) } else { a.min(b) };
                    })
                }
                (CellNumbers::Real(own), CellNumbers::Real(more)) => {
                    some().for_each(|(to, from)| {
                        let b = more[from];
                        let a = if is_first(to) { b } else { own[to] };
                        own[to] = if largest == 1 { a.max(b) } else { a.min(b) };
                    })
                }
                _ => return Err(ArrayError::OtherReduction),
            }
        }
        if !self.weights.is_empty() {
            self.weights_lost.resize(self.weights.len(), 0.0);
            for (to, from) in pairs() {
                let (sum, lost) = two_sum(self.weights[to], other.weights[from]);
                let more = other.weights_lost.get(from).copied().unwrap_or(0.0);
                self.weights[to] = sum;
                self.weights_lost[to] += lost + more;
            }
        }
        let per = other.counters.len() / other.counts.len();
        let counters = &mut self.counters[to * per..(to + row) * per];
        for (own, more) in counters.iter_mut().zip(&other.counters[from * per..]) {
            *own = own.saturating_add(*more);
        }
        pairs().for_each(|(to, from)| {
            self.counts[to] = self.counts[to].saturating_add(other.counts[from]);
        });
        Ok(())
    }

    /// Returns the sum of weights of a cell, if the reduction has weights.
    pub(super) fn weight(&self, cell: usize) -> Option<f64> {
        let lost = self.weights_lost.get(cell).copied().unwrap_or(0.0);
        self.weights.get(cell).map(|sum| total((*sum, lost)))
    }

    /// Returns the state of the unpacked values: each value times `scale`, plus `offset`.
    #[must_use]
    pub fn unpacked(mut self, scale: f64, offset: f64) -> Self {
        let many = |cell: usize| {
            self.weight(cell)
                .unwrap_or_else(|| count(self.counts[cell]))
        };
        let many: Vec<f64> = (0..self.counts.len()).map(many).collect();
        let sum = |(cell, sum): (usize, f64)| two_sum(sum * scale, many[cell] * offset);
        self.sums = match self.sums {
            CellSums::None => CellSums::None,
            CellSums::Whole(sums) => {
                CellSums::Real(sums.into_iter().map(real).enumerate().map(sum).collect())
            }
            CellSums::Real(sums) => {
                CellSums::Real(sums.into_iter().map(total).enumerate().map(sum).collect())
            }
        };
        let unpacked = |numbers: CellNumbers| {
            let value = |value: f64| value * scale + offset;
            match numbers {
                CellNumbers::None => CellNumbers::None,
                CellNumbers::Whole(all) => {
                    CellNumbers::Real(all.into_iter().map(|one| value(real(one))).collect())
                }
                CellNumbers::Real(all) => CellNumbers::Real(all.into_iter().map(value).collect()),
            }
        };
        let [low, high] = self.extremes.map(unpacked);
        self.extremes = if scale < 0.0 {
            [high, low]
        } else {
            [low, high]
        };
        for (mean, squares) in &mut self.moments {
            (*mean, *squares) = (*mean * scale + offset, *squares * scale * scale);
        }
        // Without values, the ends would be scaled, too.
        for cell in (0..self.counts.len()).filter(|cell| self.counts[*cell] == 0) {
            for (largest, numbers) in self.extremes.iter_mut().enumerate() {
                if let CellNumbers::Real(all) = numbers {
                    all[cell] = [f64::INFINITY, f64::NEG_INFINITY][largest];
                }
            }
        }
        self
    }
}

pub(super) fn as_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Merges mean and squares of two sets of values (Chan, Golub and LeVeque, 1979).
pub(super) fn moments(
    (own_count, own): (u64, (f64, f64)),
    (more_count, more): (u64, (f64, f64)),
) -> (f64, f64) {
    if own_count == 0 || more_count == 0 {
        return if own_count == 0 { more } else { own };
    }
    let (a, b) = (count(own_count), count(more_count));
    let away = more.0 - own.0;
    let share = b / (a + b);
    (
        own.0 + away * share,
        own.1 + more.1 + away * away * a * share,
    )
}
