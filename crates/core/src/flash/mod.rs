//! The flash below a storage element, as bookkeeping: what the element wrote and removed, and what that does to a
//! device of its capacity.
//!
//! - `ledger` keeps the element's objects on a device; `snapshot` keeps it over a restart;
//! - `ftl` is that device's translation layer: it maps logical to physical pages, `blocks` knows its blocks,
//!   `gc` collects garbage for it and `wear` levels it;
//! - `geometry` says what the device is made of, checked.
//!
//! The same input gives the same result. The tests hold the layer against published write amplification, and serve
//! requests and an analysis on it in virtual time. `docs/flash.md` tells the model's sources, checks and limits.

mod blocks;
mod ftl;
mod gc;
mod geometry;
mod ledger;
mod snapshot;
mod wear;

pub use gc::Collection;
pub use geometry::GeometryError;
pub use ledger::{Ledger, LedgerError, LedgerReport};
pub use snapshot::SnapshotError;
pub use wear::Wear;

#[cfg(test)]
mod tests;
