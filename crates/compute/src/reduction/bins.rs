//! Histograms: the numbers of values of a cell between edges. All cells have the same edges, so counts of pieces can be added.

use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::state::{BoxState, CellNumbers, real};
use crate::array::ArrayError;
use crate::loops::number::Number;

/// Maximum number of bins in one histogram of a cell.
const BINS_MAX: u32 = 1 << 20;

/// Maximum number of counters of all cells together.
pub(super) const COUNTERS_MAX: u64 = 2 << 20;

/// Requested bins of a histogram: `10`, `-5:35:80`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WantedBins {
    /// Number of bins.
    pub bins: u32,
    /// Lowest and highest edge; `None` stands for the smallest and largest value.
    pub between: Option<(f64, f64)>,
}

impl Default for WantedBins {
    fn default() -> Self {
        Self {
            bins: 10,
            between: None,
        }
    }
}

impl std::str::FromStr for WantedBins {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::Text {
            what: "bins",
            text: text.into(),
            why,
        };
        let many = |text: &str| {
            let bins = text.trim().parse().ok();
            let bins = bins.filter(|bins| (1..=BINS_MAX).contains(bins));
            bins.ok_or_else(|| wrong(format!("give 1 to {BINS_MAX} bins")))
        };
        let end = |text: &str| {
            let end = text.trim().parse().ok().filter(|end: &f64| end.is_finite());
            end.ok_or_else(|| wrong("the ends must be finite numbers".into()))
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [""] => Ok(Self::default()),
            [bins] => Ok(Self {
                bins: many(bins)?,
                between: None,
            }),
            [low, high, bins] => {
                let (low, high, bins) = (end(low)?, end(high)?, many(bins)?);
                Edges::new(low, high, bins)?;
                Ok(Self {
                    bins,
                    between: Some((low, high)),
                })
            }
            _ => Err(wrong("give N, or LOW:HIGH:N".into())),
        }
    }
}

/// Edges of bins of equal width, like numpy's `linspace`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edges {
    low: f64,
    high: f64,
    bins: u32,
}

impl Edges {
    /// Returns the edges of `bins` bins of equal width between two numbers.
    ///
    /// # Errors
    /// If the numbers are not finite, or too close to each other for so many bins.
    pub fn new(low: f64, high: f64, bins: u32) -> Result<Self> {
        let edges = Self { low, high, bins };
        if edges.are_apart() {
            return Ok(edges);
        }
        Err(Error::Query(format!(
            "from {low} to {high} there are no {bins} bins: both must be finite, the first lower, with enough doubles in between"
        )))
    }

    /// Returns whether each edge is above the previous edge. The numbers may come from an untrusted source.
    fn are_apart(self) -> bool {
        let finite = self.low.is_finite() && (self.high - self.low).is_finite();
        let many = (1..=BINS_MAX).contains(&self.bins);
        finite && many && (0..self.bins).all(|bin| self.edge(bin) < self.edge(bin + 1))
    }

    /// Returns the start of a bin; for the number of bins, the end of the last bin.
    fn edge(self, bin: u32) -> f64 {
        if bin == self.bins {
            return self.high;
        }
        f64::from(bin) * ((self.high - self.low) / f64::from(self.bins)) + self.low
    }

    /// Returns the lower ends of all counters: of the values below, of each bin, and of the values above.
    pub(super) fn lower_ends(self) -> Vec<f64> {
        let edges = (0..=self.bins).map(|bin| self.edge(bin));
        std::iter::once(f64::NEG_INFINITY).chain(edges).collect()
    }

    /// Returns the number of counters of one cell: one for each bin, one for the values below, one for the values above.
    pub(super) fn counters(self) -> usize {
        self.bins as usize + 2
    }
}

/// Counters of bins for each cell in a pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bins {
    /// Factor and summand that are applied to values before they are sorted into bins.
    pub(super) unpack: Option<(f64, f64)>,
    pub(super) edges: Edges,
}

impl Bins {
    /// Checks the edges of the bins, which may come from an untrusted source.
    pub(super) fn check(&self) -> std::result::Result<(), ArrayError> {
        match self.edges.are_apart() {
            true => Ok(()),
            false => Err(ArrayError::OtherReduction),
        }
    }

    /// Returns the function that finds the bin of a value.
    pub(super) fn placer(&self) -> Placer {
        let Edges { low, high, bins } = self.edges;
        Placer {
            unpack: self.unpack,
            edges: (0..=bins).map(|bin| self.edges.edge(bin)).collect(),
            per_unit: f64::from(bins) / (high - low),
        }
    }
}

/// Finder of a value's bin: a product estimates the bin, and the edges near it decide exactly.
#[derive(Debug)]
pub(super) struct Placer {
    unpack: Option<(f64, f64)>,
    edges: Vec<f64>,
    per_unit: f64,
}

impl Placer {
    /// Returns the index of the counter of a value.
    #[inline(always)]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and is put right below"
    )]
    pub(super) fn place<T: Number>(&self, value: T) -> usize {
        let value = match self.unpack {
            None => value.to_f64(),
            Some((scale, offset)) => value.to_f64() * scale + offset,
        };
        let bins = self.edges.len() - 1;
        let (low, high) = (self.edges[0], self.edges[bins]);
        if value > high {
            return bins + 1;
        }
        if value < low || value.is_nan() {
            return 0;
        }
        let mut bin = (((value - low) * self.per_unit) as usize).min(bins - 1);
        while bin > 0 && value < self.edges[bin] {
            bin -= 1;
        }
        while bin + 1 < bins && value >= self.edges[bin + 1] {
            bin += 1;
        }
        bin + 1
    }
}

/// Progress of a histogram from pass to pass.
#[derive(Clone, Debug)]
pub(super) enum Binning {
    /// The pass finds the smallest and largest value.
    Ends(u32),
    /// The pass counts values. The second value is the number of values per cell in the pass for the extremes, if there was such a pass.
    Counted(Edges, Option<Vec<u64>>),
}

impl Binning {
    pub(super) fn new(wanted: WantedBins, cells: u64) -> Result<Self> {
        let counters = cells.saturating_mul(u64::from(wanted.bins) + 2);
        if counters > COUNTERS_MAX {
            return Err(Error::Query(format!(
                "this needs {counters} counts, with those below and above the bins, and at most {COUNTERS_MAX} are possible: \
                 reduce more dimensions, or ask for fewer bins"
            )));
        }
        Ok(match wanted.between {
            Some((low, high)) => Self::Counted(Edges::new(low, high, wanted.bins)?, None),
            None => Self::Ends(wanted.bins),
        })
    }

    /// Returns the edges of the bins, once they are known.
    pub(super) fn edges(&self) -> Option<Edges> {
        match self {
            Self::Ends(_) => None,
            Self::Counted(edges, _) => Some(*edges),
        }
    }

    /// Continues with the next pass of a histogram; returns whether there is another pass.
    ///
    /// # Errors
    /// If the smallest or largest value is not finite, or if values changed between two passes.
    pub(super) fn next(&mut self, found: &BoxState) -> Result<bool> {
        match self {
            Self::Ends(bins) => {
                *self = Self::Counted(between(found, *bins)?, Some(found.counts.clone()));
                Ok(true)
            }
            Self::Counted(edges, Some(counts)) => {
                let outside = found.counters.chunks_exact(edges.counters());
                let mut outside = outside.map(|cell| cell[0].saturating_add(cell[cell.len() - 1]));
                match *counts == found.counts && outside.all(|count| count == 0) {
                    true => Ok(false),
                    false => Err(Error::Changed),
                }
            }
            Self::Counted(_, None) => Ok(false),
        }
    }
}

/// Returns bins between the smallest and largest value of all cells. As in numpy, a single value is in the middle, and without values the
/// bins are from 0 to 1.
fn between(found: &BoxState, bins: u32) -> Result<Edges> {
    let ends = |numbers: &CellNumbers| -> Vec<f64> {
        let all = match numbers {
            CellNumbers::None => Vec::new(),
            CellNumbers::Whole(all) => all.iter().copied().map(real).collect(),
            CellNumbers::Real(all) => all.clone(),
        };
        let there = all.into_iter().zip(&found.counts);
        there
            .filter(|(_, count)| **count > 0)
            .map(|(end, _)| end)
            .collect()
    };
    let [lows, highs] = [0, 1].map(|which| ends(&found.extremes[which]));
    let low = lows.into_iter().reduce(f64::min);
    let high = highs.into_iter().reduce(f64::max);
    let (low, high) = match low.zip(high) {
        None => (0.0, 1.0),
        Some((low, high)) if low < high => (low, high),
        Some((low, _)) => (low - 0.5, low + 0.5),
    };
    Edges::new(low, high, bins).map_err(|_| {
        Error::Query(format!(
            "the values are from {low} to {high}, between which there are no {bins} bins of equal width: give the ends, as --bins LOW:HIGH:N"
        ))
    })
}

/// Returns the counts as numbers of a result's cells.
pub(super) fn whole(counts: &[u64]) -> Vec<Option<i128>> {
    counts
        .iter()
        .map(|count| Some(i128::from(*count)))
        .collect()
}
