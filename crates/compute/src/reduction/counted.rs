//! Counters of cells, in addition to the number of values in each cell.

use serde::{Deserialize, Serialize};

use super::bins::{Bins, Placer};
use super::ranks::Digits;
use crate::array::ArrayError;
use crate::loops::number::Number;

/// Property of values that is counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Counted {
    /// Numbers of values with each digit.
    Digits(Digits),
    /// Numbers of values in each bin.
    Bins(Bins),
}

impl Counted {
    /// Returns the number of counters of one cell.
    fn counters(&self) -> usize {
        match self {
            Self::Digits(digits) => digits.counters(),
            Self::Bins(bins) => bins.edges.counters(),
        }
    }

    /// Returns the number of bytes that the counters take for each cell.
    pub(super) fn cell_bytes(&self) -> usize {
        match self {
            Self::Digits(digits) => digits.cell_bytes(),
            Self::Bins(_) => self.counters().saturating_mul(8),
        }
    }

    /// Checks the counters' description for `cells` cells. The description may come from an untrusted source.
    pub(super) fn check(&self, cells: usize) -> Result<(), ArrayError> {
        match self {
            Self::Digits(digits) => digits.check(cells),
            Self::Bins(bins) => bins.check(),
        }
    }
}

/// Method of counting values.
#[derive(Debug)]
enum CountMethod {
    Digits(Digits),
    /// Finder of bins, and number of counters of each cell.
    Bins(Placer, usize),
}

/// Counters of all cells; the counters of one cell are contiguous.
#[derive(Debug)]
pub(super) struct CellCounters {
    of: CountMethod,
    pub(super) counts: Vec<u64>,
}

impl CellCounters {
    pub(super) fn new(of: &Counted, cells: usize) -> Self {
        Self {
            counts: vec![0; cells * of.counters()],
            of: match of {
                Counted::Digits(digits) => CountMethod::Digits(digits.clone()),
                Counted::Bins(bins) => CountMethod::Bins(bins.placer(), of.counters()),
            },
        }
    }

    /// Counts a value in the counters of a cell.
    #[inline(always)]
    pub(super) fn put<T: Number>(&mut self, cell: usize, value: T) {
        match &self.of {
            CountMethod::Digits(digits) => digits.put(&mut self.counts, cell, value),
            CountMethod::Bins(placer, counters) => {
                self.counts[cell * counters + placer.place(value)] += 1;
            }
        }
    }
}
