//! A flash device: its translation layer, its wear, and analysis that shares it with I/O.
//!
//! - [`geometry`] says what the device is made of, checked;
//! - [`ftl`] maps logical to physical pages; [`gc`] collects garbage for it and [`wear`] levels it;
//! - [`closed_form`] has the published write amplification that the collector is held against;
//! - [`device`] serves requests and an [`analysis`] kernel together in virtual time;
//! - [`ledger`] is the same translation layer as bookkeeping for a running storage element, and
//!   [`snapshot`] keeps it over a restart.
//!
//! Pure: no I/O, no clock, no threads. The same input gives the same result. `docs/flash.md` tells the
//! model's sources, checks and limits.

pub mod analysis;
mod blocks;
pub mod closed_form;
pub mod device;
pub mod ftl;
pub mod gc;
pub mod geometry;
pub mod ledger;
pub mod snapshot;
mod timeline;
pub mod wear;
pub mod workload;

#[cfg(test)]
mod tests;
