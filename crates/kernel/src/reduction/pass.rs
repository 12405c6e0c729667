//! A pass over the values of a plan. One does, but where ranks are looked for.

use super::error::Result;
use super::plan::{FilePlan, Plan};
use super::ranks::Search;
use super::state::State;
use super::table::Table;
use super::task::Task;

/// What one pass finds; it knows what those before it found.
#[derive(Debug)]
pub struct Pass<'a> {
    plan: &'a Plan,
    search: Option<Search>,
}

impl Plan {
    /// The first pass.
    ///
    /// # Errors
    /// If quantiles of more cells are asked for than may be.
    pub fn pass(&self) -> Result<Pass<'_>> {
        let search = self.search().transpose()?;
        Ok(Pass { plan: self, search })
    }
}

impl Pass<'_> {
    /// A state of all of the result, with no values yet.
    #[must_use]
    pub fn state(&self) -> State {
        let mut state = self.plan.state();
        let counters = self.search.as_ref().map_or(0, Search::counters);
        state.digits = vec![0; counters * state.counts.len()];
        state
    }

    /// What is folded of pieces of a file that lead into a box of cells.
    #[must_use]
    pub fn task(&self, file: &FilePlan, cells: &(Vec<u64>, Vec<u64>)) -> Task {
        let digits = self.search.as_ref();
        Task {
            digits: digits.map(|search| search.digits(file.unpack, cells, &self.plan.shape())),
            ..file.task.clone()
        }
    }

    /// Bytes that are kept of each cell.
    #[must_use]
    pub fn cell_bytes(&self, file: &FilePlan) -> usize {
        let digits = self.search.as_ref().map_or(0, Search::cell_bytes);
        file.task.cell_bytes() + digits
    }

    /// Goes on to the next pass, if there is one.
    ///
    /// # Errors
    /// If the values are not those of the passes before.
    pub fn next(&mut self, found: &State) -> Result<bool> {
        self.search
            .as_mut()
            .map_or(Ok(false), |search| search.next(found))
    }

    /// The result of the last pass.
    #[must_use]
    pub fn table(&self, found: &State) -> Table {
        let ranks = self.search.as_ref().map(Search::values);
        self.plan.table(found, ranks.unwrap_or_default())
    }
}
