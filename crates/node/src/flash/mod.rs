//! Model of the flash device of a storage node: the effect of the node's writes and removals on a device of the node's capacity. This
//! module does no I/O.
//!
//! - `ledger` keeps the node's objects on the model device; `snapshot` stores the device's state over a restart;
//! - `ftl` is that device's translation layer: it maps logical to physical pages, `blocks` knows its blocks, `gc` collects garbage for it
//!   and `wear` levels it;
//! - `geometry` describes the device and checks the description.
//!
//! The same input gives the same result. The tests compare the translation layer with published write amplification, and run requests and
//! an analysis on it in virtual time. `docs/flash.md` describes the model's sources, checks and limits.

mod blocks;
mod ftl;
mod gc;
mod geometry;
mod ledger;
mod snapshot;
mod wear;

pub(crate) use ledger::{FlashLedger, LedgerError, LedgerReport};
pub(crate) use snapshot::SnapshotError;

#[cfg(test)]
mod tests;
