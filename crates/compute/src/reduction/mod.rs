//! Reductions of variables of scientific files: they map values of files to cells of the result, fold values on the nodes that store them,
//! and merge the states where the result is needed (`docs/reduce.md`).
//!
//! [`ReductionQuery`] describes the request. [`plan()`] reads the headers and computes the work for each file. A [`BoxFold`] folds a
//! [`ReductionTask`] with [`ReductionItem`]s into a [`BoxState`], states are merged, and a [`ResultTable`] is shown or written. Only [`local`]
//! accesses files, to reduce those on this machine; no module here uses the network.

mod bins;
mod cells;
mod choose;
mod chunk;
mod counted;
mod error;
#[cfg(test)]
mod exact;
mod filters;
mod fold;
mod inner;
pub mod local;
mod netcdf;
mod pass;
mod periods;
mod plan;
mod query;
mod ranks;
mod series;
mod slabs;
mod state;
mod table;
mod task;
#[cfg(test)]
mod tests;
mod write;

pub use bins::{Bins, Edges, WantedBins};
pub use chunk::{cut, item};
pub use counted::Counted;
pub use error::{Error, Result};
pub(crate) use filters::{dtype as type_of, keep as keep_of};
pub use fold::BoxFold;
pub(crate) use fold::kept;
pub use netcdf::Netcdf;
pub use pass::Pass;
pub use plan::{FilePlan, ReductionInput, ReductionPlan, plan};
pub use query::{
    DimensionSelection, JoinRule, QueryText, ReduceOperation, ReductionQuery, TimeAt, TimeGrouping,
};
pub use ranks::Digits;
pub use slabs::CellRange;
pub use state::BoxState;
pub use table::{Column, Coordinate, ResultAxis, ResultField, ResultTable, Scalar};
pub use task::{
    DimensionTarget, KeepRule, ReductionBatch, ReductionItem, ReductionTask, WantedResults, around,
};
pub use write::ResultFormat;

/// Maximum size of one partial state, in bytes: the cells that are folded at once.
pub const STATE_BYTES_MAX: usize = 64 << 20;

/// Maximum number of cells of a result that is computed at once.
pub const CELLS_MAX: u64 = 16 << 20;

/// Maximum number of cells of a result.
const RESULT_MAX: u64 = 1 << 36;

/// Maximum number of values of a coordinate.
pub const COORDINATE_MAX: u64 = 4 << 20;

/// Maximum number of files in one reduction.
pub const FILES_MAX: usize = 65_536;

/// Size of a piece of contiguous data, in bytes: a piece of this size fits into the second-level cache, together with its copy's source.
pub const PIECE_BYTES: u64 = 256 << 10;
