//! Smallest and largest f64 value, as two raw f64. NaN values are skipped.

use tidemill_kernel_api::{Fold, Result, Task, fold};

struct Range(f64, f64);

impl Fold for Range {
    fn init(_task: &Task) -> Result<Self> {
        Ok(Self(f64::INFINITY, f64::NEG_INFINITY))
    }
    fn update(&mut self, _input: usize, _offset: u64, piece: &[u8]) -> Result {
        for value in piece.as_chunks().0 {
            let value = f64::from_le_bytes(*value);
            (self.0, self.1) = (self.0.min(value), self.1.max(value));
        }
        Ok(())
    }
    fn state(&self) -> Vec<u8> {
        [self.0.to_le_bytes(), self.1.to_le_bytes()].concat()
    }
    fn merge(&mut self, state: &[u8]) -> Result {
        self.update(0, 0, state)
    }
    fn finish(self, task: &Task) -> Result {
        task.write(0, &self.state())
    }
}

fold!(Range);
