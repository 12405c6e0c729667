//! Reductions of variables of scientific files: which values of which files go into which cell of the result, folded where the
//! bytes are and merged where the result is wanted (`docs/reduce.md`).
//!
//! [`Query`] says what is wanted, [`plan()`] looks up in the headers what that means for each file, a [`Task`] with [`Item`]s is
//! folded by a [`Folding`] into a [`State`], states merge, and [`Table`] is what is shown or written. No file and no network is
//! known here but [`here`], which reduces files that lie on this machine.

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
pub mod here;
mod inner;
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

pub use bins::{Bins, Edges, Wanted};
pub use chunk::{cut, item};
pub use counted::Counted;
pub use error::{Error, Result};
pub(crate) use filters::{dtype as type_of, keep as keep_of};
pub use fold::Folding;
pub(crate) use fold::kept;
pub use netcdf::Netcdf;
pub use pass::Pass;
pub use plan::{FilePlan, Input, Plan, plan};
pub use query::{By, Join, Operation, Query, Select, TimeAt, Words};
pub use ranks::Digits;
pub use slabs::Cells;
pub use state::State;
pub use table::{Axis, Column, Coordinate, Field, Scalar, Table};
pub use task::{Batch, Item, Keep, Target, Task, Wants, around};
pub use write::Form;

/// Cells of one state: what is folded at once.
pub const STATE_BYTES_MAX: usize = 64 << 20;

/// Cells of a result that is found at once.
pub const CELLS_MAX: u64 = 16 << 20;

/// Cells of a result.
const RESULT_MAX: u64 = 1 << 36;

/// Values of a coordinate.
pub const COORDINATE_MAX: u64 = 4 << 20;

/// Files of one reduction.
pub const FILES_MAX: usize = 65_536;

/// Bytes of a piece of what lies one after the other: so many stay in the second cache, with what they were copied from.
pub const PIECE_BYTES: u64 = 256 << 10;
