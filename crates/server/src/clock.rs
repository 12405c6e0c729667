//! The one place of this crate that reads the wall clock.
//!
//! In a simulation it is virtual: see [`crate::simulated`].

use std::time::Duration;
use tidemill_core::time::Time;

/// Nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> i64 {
    i64::try_from(since_epoch().as_nanos()).unwrap_or(i64::MAX)
}

/// The time as the core takes it.
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
