//! Pseudo-random numbers, the same in each run.

pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % below
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let byte = |_| u8::try_from(self.next(256)).unwrap();
        (0..count).map(byte).collect()
    }

    /// Returns bytes that are no holes.
    pub(crate) fn bytes_above_zero(&mut self, count: usize) -> Vec<u8> {
        let byte = |_| u8::try_from(self.next(255)).unwrap() + 1;
        (0..count).map(byte).collect()
    }
}
