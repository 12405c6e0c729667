//! A pass over the values of a plan. One does, but where ranks or the ends of bins are looked for.

use super::bins::{Binning, Bins};
use super::counted::Counted;
use super::error::{Error, Result};
use super::plan::{FilePlan, Plan, wants};
use super::ranks::Search;
use super::state::State;
use super::table::Table;
use super::task::{Task, Wants};

/// What one pass finds; it knows what those before it found.
#[derive(Debug)]
pub struct Pass<'a> {
    plan: &'a Plan,
    of: Of,
}

#[derive(Debug)]
enum Of {
    Once,
    Ranks(Search),
    Bins(Binning),
}

impl Plan {
    /// The first pass.
    ///
    /// # Errors
    /// If the result has more cells than are found at once.
    pub fn pass(&self) -> Result<Pass<'_>> {
        let of = match (self.search(), self.binning(self.cells())) {
            (Some(search), _) => Of::Ranks(search?),
            (None, Some(binning)) => Of::Bins(binning?),
            (None, None) if self.is_large() => return Err(Error::TooLarge(self.cells())),
            (None, None) => Of::Once,
        };
        Ok(Pass { plan: self, of })
    }
}

impl Pass<'_> {
    /// Counters of each cell.
    fn counters(&self) -> usize {
        match &self.of {
            Of::Once => 0,
            Of::Ranks(search) => search.counters(),
            Of::Bins(binning) => binning.edges().map_or(0, |edges| edges.counters()),
        }
    }

    fn wants(&self) -> Wants {
        match &self.of {
            Of::Bins(Binning::Ends(_)) => Wants {
                extremes: true,
                ..Wants::default()
            },
            _ => wants(self.plan.operation),
        }
    }

    /// A state of all of the result, with no values yet.
    #[must_use]
    pub fn state(&self) -> State {
        let mut state = self.plan.state(self.wants(), self.plan.shape());
        state.counters = vec![0; self.counters() * state.counts.len()];
        state
    }

    /// What is folded of pieces of a file that lead into a box of cells.
    #[must_use]
    pub fn task(&self, file: &FilePlan, cells: &(Vec<u64>, Vec<u64>)) -> Task {
        let counted = match &self.of {
            Of::Once => None,
            Of::Ranks(search) => {
                let digits = search.digits(file.unpack, cells, &self.plan.shape());
                Some(Counted::Digits(digits))
            }
            Of::Bins(binning) => binning.edges().map(|edges| {
                Counted::Bins(Bins {
                    unpack: file.unpack,
                    edges,
                })
            }),
        };
        Task {
            counted,
            wants: self.wants(),
            ..file.task.clone()
        }
    }

    /// Bytes that are kept of each cell.
    #[must_use]
    pub fn cell_bytes(&self, file: &FilePlan) -> usize {
        let counted = match &self.of {
            Of::Ranks(search) => search.cell_bytes(),
            _ => 8 * self.counters(),
        };
        file.task.bytes_with(self.wants()) + counted
    }

    /// Goes on to the next pass, if there is one.
    ///
    /// # Errors
    /// If the values are not those of the passes before, or are such that there can be no bins.
    pub fn next(&mut self, found: &State) -> Result<bool> {
        match &mut self.of {
            Of::Once => Ok(false),
            Of::Ranks(search) => search.next(found),
            Of::Bins(binning) => binning.next(found),
        }
    }

    /// The result of the last pass.
    #[must_use]
    pub fn table(&self, found: &State) -> Table {
        let (ranks, edges) = match &self.of {
            Of::Once => (Vec::new(), None),
            Of::Ranks(search) => (search.values(), None),
            Of::Bins(binning) => (Vec::new(), binning.edges()),
        };
        self.plan.table(found, ranks, edges)
    }
}
