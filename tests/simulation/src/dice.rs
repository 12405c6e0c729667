//! Random numbers of a simulation, all from one seed.

use tidemill_model::random::RandomSource;

#[derive(Clone, Debug)]
pub(crate) struct Dice(RandomSource);

/// Returns a number in which the bits of `number` are spread.
pub(crate) fn mix(number: u64) -> u64 {
    RandomSource::seeded(number).next_u64()
}

impl Dice {
    /// Returns dice with a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(RandomSource::seeded(mix(seed)))
    }

    /// Returns a number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0.next_u64() % sides.max(1)
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll(high - low + 1)
    }

    /// Returns true with a probability of `per_mille` in a thousand.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.roll(1000) < per_mille
    }

    /// Returns independent dice whose seed is drawn from these dice.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.0.next_u64())
    }
}
