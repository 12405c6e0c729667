//! The wall clock: only this module reads the wall clock in this crate.
//!
//! In a simulation the clock is virtual, see `start`.

use std::time::Duration;
use tidemill_model::time::Time;

/// Returns the wall clock's time in nanoseconds since the Unix epoch.
pub fn now_ns() -> i64 {
    i64::try_from(since_epoch().as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the wall clock's time as a value of type [`Time`].
pub fn now() -> Time {
    tidemill_wire::convert::time_from_wire(now_ns())
}

fn since_epoch() -> Duration {
    #[cfg(feature = "simulation")]
    if let Some((at, start)) = START.get() {
        return at + start.elapsed();
    }
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(feature = "simulation")]
thread_local! {
    /// Time since the Unix epoch at which the simulation of this thread started, and the reading of its runtime's clock at that moment.
    static START: std::cell::Cell<Option<(Duration, tokio::time::Instant)>> = const { std::cell::Cell::new(None) };
}

/// Starts a virtual clock for this thread, which follows the clock of the thread's runtime.
#[cfg(feature = "simulation")]
pub fn start(since_epoch: Duration) {
    START.set(Some((since_epoch, tokio::time::Instant::now())));
}

/// Ends the virtual clock of this thread.
#[cfg(feature = "simulation")]
pub fn stop() {
    START.set(None);
}
