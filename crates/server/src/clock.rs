//! The wall clock: only this module reads the wall clock in this crate.
//!
//! The clock is virtual in a simulation: see [`crate::simulated`].

use std::time::Duration;
use tidemill_model::time::Time;

/// Returns the wall clock's time in nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> i64 {
    i64::try_from(since_epoch().as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the wall clock's time as a value of type [`Time`].
pub(crate) fn now() -> Time {
    tidemill_wire::convert::time_from_wire(now_ns())
}

fn since_epoch() -> Duration {
    #[cfg(feature = "simulation")]
    if let Some(since) = crate::simulated::time::since_epoch() {
        return since;
    }
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}
