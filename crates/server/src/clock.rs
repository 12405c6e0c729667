//! The one place of this crate that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_core::time::Time;

/// Nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Seconds since the Unix epoch.
pub(crate) fn now_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// The time as the core takes it.
pub(crate) fn now() -> Time {
    tidemill_wire::convert::time_from_wire(now_ns())
}
