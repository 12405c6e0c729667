//! Seeded requests to try a device with: uniform random pages, arrivals of a Poisson process.

use tidemill_core::time::{Span, Time};

use super::device::{Kind, Request};

/// A seeded source of numbers: SplitMix64 (Steele, Lea, Flood 2014). The same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Source {
    /// What it goes on from: a source seeded with it draws the same numbers.
    pub(super) state: u64,
}

impl Source {
    /// Starts from `seed`.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, uniform up to one part in 2³²; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        let product = (self.next_u64() >> 32) * u64::from(bound);
        u32::try_from(product >> 32).expect("a product of two u32 has its high half in a u32")
    }

    /// An exponentially distributed span of the given mean, to the nanosecond.
    pub fn exponential(&mut self, mean: Span) -> Span {
        #[expect(
            clippy::cast_precision_loss,
            reason = "53 bits are enough for a random draw"
        )]
        let (uniform, mean) = (
            ((self.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64,
            mean.0 as f64,
        );
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the product is positive, and `as` saturates"
        )]
        Span((-uniform.ln() * mean) as u64)
    }
}

/// `count` requests of one page each to uniformly random pages of the first `pages`, as a Poisson process
/// with the given mean gap from `start` on. Each is a read or a write as `kind` says.
#[must_use]
pub fn poisson(
    source: &mut Source,
    kind: Kind,
    count: usize,
    (start, mean_gap): (Time, Span),
    (pages, page_bytes): (u32, u32),
) -> Vec<Request> {
    let mut at = start;
    (0..count)
        .map(|_| {
            at = at + source.exponential(mean_gap);
            Request {
                arrival: at,
                kind,
                offset: u64::from(source.below(pages)) * u64::from(page_bytes),
                bytes: u64::from(page_bytes),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_they_should_and_replay() {
        let mut source = Source::seeded(7);
        let mean = Span(1_000_000);
        let total: u64 = (0..100_000).map(|_| source.exponential(mean).0).sum();
        let found = total / 100_000;
        assert!((990_000..1_010_000).contains(&found), "mean {found}");
        let total: u64 = (0..100_000).map(|_| u64::from(source.below(1000))).sum();
        assert!((49_000_000..51_000_000).contains(&total), "sum {total}");
        assert_eq!(Source::seeded(3).next_u64(), Source::seeded(3).next_u64());
        assert_eq!(source.below(0), 0);
    }
}
