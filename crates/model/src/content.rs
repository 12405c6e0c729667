//! Hashing of inputs: decides when the inputs of a task are hashed, so that equal bytes in another object are recognised.

use crate::time::Span;

/// Minimum ratio of a task's compute time to the time of hashing its inputs. Running the task again must cost clearly more than hashing its
/// inputs to find an equal result; if nobody ever writes the same bytes again, hashing took at most a fifth of the time.
pub const COMPUTE_RATIO_MIN: u64 = 4;

/// Rate of hashing, in bytes per second: BLAKE3 on one core with data in memory, rounded down.
pub const HASHED_BYTES_PER_SEC: u64 = 2_000_000_000;

/// Additional hashing time per file, in nanoseconds, to open the file and to store its hash at the server.
pub const FILE_NS: u64 = 50_000;

/// Returns whether hashing the inputs of a task with the compute time `cpu` pays.
#[must_use]
pub fn pays(cpu: Span, files: usize, bytes: u64) -> bool {
    let reading = u128::from(bytes) * 1_000_000_000 / u128::from(HASHED_BYTES_PER_SEC);
    let hashing = reading + files as u128 * u128::from(FILE_NS);
    u128::from(cpu.0) >= u128::from(COMPUTE_RATIO_MIN) * hashing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashing_pays_only_for_expensive_tasks() {
        // A GB is hashed in half a second.
        let gb = 1_000_000_000;
        assert!(pays(Span::from_secs(3), 1, gb));
        assert!(!pays(Span::from_secs(2), 1, gb));
        // Many small files take time, too.
        assert!(pays(Span(210_000_000), 1000, 10));
        assert!(!pays(Span(190_000_000), 1000, 10));
        assert!(!pays(Span(u64::MAX), 1, u64::MAX));
        assert!(!pays(Span(0), 1, 0));
    }
}
