//! Random bytes. In a simulation they follow from the simulation's seed.

use rand::TryRngCore;

/// Returns random bytes from the operating system.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[cfg(feature = "simulation")]
    if simulated::fill(&mut bytes) {
        return bytes;
    }
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .expect("the operating system gives random bytes");
    bytes
}

/// Random numbers from the seed of a simulation.
#[cfg(feature = "simulation")]
pub mod simulated {
    use std::cell::RefCell;
    use tidemill_model::random::RandomSource;

    thread_local! {
        static SOURCE: RefCell<Option<RandomSource>> = const { RefCell::new(None) };
    }

    /// Makes this thread's random numbers follow from a seed.
    pub fn seed(seed: u64) {
        SOURCE.set(Some(RandomSource::seeded(seed)));
    }

    /// Fills `bytes` with random numbers if this thread simulates a server. Returns whether this thread simulates one.
    pub(super) fn fill(bytes: &mut [u8]) -> bool {
        SOURCE.with_borrow_mut(|source| {
            let Some(source) = source else { return false };
            for chunk in bytes.chunks_mut(8) {
                chunk.copy_from_slice(&source.next_u64().to_le_bytes()[..chunk.len()]);
            }
            true
        })
    }
}
