//! Model of the flash device of a storage node: the effect of the node's writes and removals on a device of its capacity. It does no
//! I/O.
//!
//! - `ledger` keeps the node's objects on a device; `snapshot` stores it over a restart;
//! - `ftl` is that device's translation layer: it maps logical to physical pages, `blocks` knows its blocks, `gc` collects garbage for it
//!   and `wear` levels it;
//! - `geometry` describes the device and checks the description.
//!
//! The same input gives the same result. The tests compare the layer with published write amplification, and serve requests and an analysis
//! on it in virtual time. `docs/flash.md` describes the model's sources, checks and limits.

mod blocks;
mod ftl;
mod gc;
mod geometry;
mod ledger;
mod snapshot;
mod wear;

pub use gc::Collection;
pub use geometry::GeometryError;
pub use ledger::{FlashLedger, LedgerError, LedgerReport};
pub use snapshot::SnapshotError;
pub use wear::Wear;

#[cfg(test)]
mod tests;
