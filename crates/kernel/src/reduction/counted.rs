//! Counters of cells: what of their values is counted, beside how many there are.

use serde::{Deserialize, Serialize};

use super::bins::{Bins, Placer};
use super::ranks::Digits;
use crate::array::ArrayError;
use crate::loops::number::Number;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Counted {
    /// How many values have which digit.
    Digits(Digits),
    /// How many lie in which bin.
    Bins(Bins),
}

impl Counted {
    /// Counters of one cell.
    fn counters(&self) -> usize {
        match self {
            Self::Digits(digits) => digits.counters(),
            Self::Bins(bins) => bins.edges.counters(),
        }
    }

    /// Bytes that are kept of each cell.
    pub(super) fn cell_bytes(&self) -> usize {
        match self {
            Self::Digits(digits) => digits.cell_bytes(),
            Self::Bins(_) => self.counters().saturating_mul(8),
        }
    }

    /// Whether it is something of as many cells. It may come from anywhere.
    pub(super) fn check(&self, cells: usize) -> Result<(), ArrayError> {
        match self {
            Self::Digits(digits) => digits.check(cells),
            Self::Bins(bins) => bins.check(),
        }
    }
}

/// How it is counted.
#[derive(Debug)]
enum Counts {
    Digits(Digits),
    /// With so many counters for a cell.
    Bins(Placer, usize),
}

/// The counters of all cells, those of one side by side.
#[derive(Debug)]
pub(super) struct Counters {
    of: Counts,
    pub(super) counts: Vec<u64>,
}

impl Counters {
    pub(super) fn new(of: &Counted, cells: usize) -> Self {
        Self {
            counts: vec![0; cells * of.counters()],
            of: match of {
                Counted::Digits(digits) => Counts::Digits(digits.clone()),
                Counted::Bins(bins) => Counts::Bins(bins.placer(), of.counters()),
            },
        }
    }

    /// Counts a value of a cell.
    #[inline(always)]
    pub(super) fn put<T: Number>(&mut self, cell: usize, value: T) {
        match &self.of {
            Counts::Digits(digits) => digits.put(&mut self.counts, cell, value),
            Counts::Bins(placer, counters) => {
                self.counts[cell * counters + placer.place(value)] += 1;
            }
        }
    }
}
