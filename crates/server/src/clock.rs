//! The only place in this crate that reads the wall clock.
//!
//! The clock is virtual in a simulation: see [`crate::simulated`].

use std::time::Duration;
use tidemill_core::time::Time;

/// Returns nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> i64 {
    i64::try_from(since_epoch().as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the time in the core's type.
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
