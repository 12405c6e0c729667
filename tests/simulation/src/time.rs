//! The virtual clock of this thread. Its resolution is one millisecond.

use std::cell::Cell;
use std::time::Duration;
use tidemill_model::time::Time;

/// Begin of simulations, in milliseconds since the epoch.
pub(crate) const BEGIN_MS: u64 = 1_800_000_000_000;

thread_local! {
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
}

/// Sets the virtual time, in milliseconds since the beginning of the simulation.
pub(crate) fn set(ms: u64) {
    NOW_MS.set(ms);
}

/// Returns the virtual time as a node reads it.
pub(crate) fn now() -> Time {
    Time((BEGIN_MS + NOW_MS.get()) * 1_000_000)
}

/// Returns the time since the epoch at a virtual time, in milliseconds of the simulation.
pub(crate) fn since_epoch(ms: u64) -> Duration {
    Duration::from_millis(BEGIN_MS + ms)
}
