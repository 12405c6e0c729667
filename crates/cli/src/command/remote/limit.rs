//! A limit of bytes per second, for all files together.

use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct TransferLimit {
    /// Bytes per second; 0 means no limit.
    rate: u64,
    /// Time until which the bytes so far use the rate up.
    free: Mutex<Instant>,
}

impl TransferLimit {
    pub(super) fn new(rate: u64) -> Self {
        Self {
            rate,
            free: Mutex::new(Instant::now()),
        }
    }

    /// Waits until this number of bytes may be transferred.
    pub(super) async fn take(&self, bytes: usize) {
        if self.rate == 0 {
            return;
        }
        let mut free = self.free.lock().await;
        let until = (*free).max(Instant::now()) + took(bytes, self.rate);
        *free = until;
        drop(free);
        tokio::time::sleep_until(until).await;
    }
}

fn took(bytes: usize, rate: u64) -> Duration {
    let nanoseconds = bytes as u128 * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_delay_is_bytes_over_rate() {
        assert_eq!(took(5_000_000, 1_000_000), Duration::from_secs(5));
        assert_eq!(took(0, 1), Duration::ZERO);
    }
}
