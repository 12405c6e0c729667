//! A pass over the values of a plan. One pass is enough, except for ranks and for bins between unknown ends.

use super::bins::{Binning, Bins};
use super::counted::Counted;
use super::error::{Error, Result};
use super::plan::{FilePlan, ReductionPlan, wants};
use super::ranks::QuantileSearch;
use super::state::BoxState;
use super::table::ResultTable;
use super::task::{ReductionTask, WantedResults};

/// State of a pass, including the results of previous passes.
#[derive(Debug)]
pub struct Pass<'a> {
    plan: &'a ReductionPlan,
    of: PassKind,
}

#[derive(Debug)]
enum PassKind {
    Once,
    Ranks(QuantileSearch),
    Bins(Binning),
}

impl ReductionPlan {
    /// Returns the first pass of the plan.
    ///
    /// # Errors
    /// If the result has more cells than can be computed at once.
    pub fn pass(&self) -> Result<Pass<'_>> {
        let of = match (self.search(), self.binning(self.cells())) {
            (Some(search), _) => PassKind::Ranks(search?),
            (None, Some(binning)) => PassKind::Bins(binning?),
            (None, None) if self.is_large() => return Err(Error::TooLarge(self.cells())),
            (None, None) => PassKind::Once,
        };
        Ok(Pass { plan: self, of })
    }
}

impl Pass<'_> {
    /// Returns the number of counters of each cell.
    fn counters(&self) -> usize {
        match &self.of {
            PassKind::Once => 0,
            PassKind::Ranks(search) => search.counters(),
            PassKind::Bins(binning) => binning.edges().map_or(0, |edges| edges.counters()),
        }
    }

    fn wants(&self) -> WantedResults {
        match &self.of {
            PassKind::Bins(Binning::Ends(_)) => WantedResults {
                extremes: true,
                ..WantedResults::default()
            },
            _ => wants(self.plan.operation),
        }
    }

    /// Returns a state of the whole result without values.
    #[must_use]
    pub fn state(&self) -> BoxState {
        let mut state = self.plan.state(self.wants(), self.plan.shape());
        state.counters = vec![0; self.counters() * state.counts.len()];
        state
    }

    /// Returns the task for pieces of a file whose values belong to a box of cells.
    #[must_use]
    pub fn task(&self, file: &FilePlan, cells: &(Vec<u64>, Vec<u64>)) -> ReductionTask {
        let counted = match &self.of {
            PassKind::Once => None,
            PassKind::Ranks(search) => {
                let digits = search.digits(file.unpack, cells, &self.plan.shape());
                Some(Counted::Digits(digits))
            }
            PassKind::Bins(binning) => binning.edges().map(|edges| {
                Counted::Bins(Bins {
                    unpack: file.unpack,
                    edges,
                })
            }),
        };
        ReductionTask {
            counted,
            wants: self.wants(),
            ..file.task.clone()
        }
    }

    /// Returns the number of bytes that the pass needs for each cell.
    #[must_use]
    pub fn cell_bytes(&self, file: &FilePlan) -> usize {
        let counted = match &self.of {
            PassKind::Ranks(search) => search.cell_bytes(),
            _ => 8 * self.counters(),
        };
        file.task.bytes_with(self.wants()) + counted
    }

    /// Continues with the next pass, and returns whether there is one.
    ///
    /// # Errors
    /// If the values differ from those of previous passes, or do not allow bins.
    pub fn next(&mut self, found: &BoxState) -> Result<bool> {
        match &mut self.of {
            PassKind::Once => Ok(false),
            PassKind::Ranks(search) => search.next(found),
            PassKind::Bins(binning) => binning.next(found),
        }
    }

    /// Returns the result of the last pass.
    #[must_use]
    pub fn table(&self, found: &BoxState) -> ResultTable {
        let (ranks, edges) = match &self.of {
            PassKind::Once => (Vec::new(), None),
            PassKind::Ranks(search) => (search.values(), None),
            PassKind::Bins(binning) => (Vec::new(), binning.edges()),
        };
        self.plan.table(found, ranks, edges)
    }
}
