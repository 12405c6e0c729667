//! Seeded requests for a device: uniform random pages, arrivals of a Poisson process.

use tidemill_model::random::RandomSource;
use tidemill_model::time::{Span, Time};

use super::device::{Kind, Request};

/// Returns an exponentially distributed span with the given mean, to the nanosecond.
fn exponential(source: &mut RandomSource, mean: Span) -> Span {
    #[expect(
        clippy::cast_precision_loss,
        reason = "53 bits are enough for a random draw"
    )]
    let (uniform, mean) = (
        ((source.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64,
        mean.0 as f64,
    );
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the product is positive, and `as` saturates"
    )]
    Span((-uniform.ln() * mean) as u64)
}

/// Returns `count` requests of one page each to uniformly random pages among the first `pages` pages, as a Poisson process with the given
/// mean gap from `start` on. `kind` decides whether each request is a read or a write.
pub(crate) fn poisson(
    source: &mut RandomSource,
    kind: Kind,
    count: usize,
    (start, mean_gap): (Time, Span),
    (pages, page_bytes): (u32, u32),
) -> Vec<Request> {
    let mut at = start;
    (0..count)
        .map(|_| {
            at = at + exponential(source, mean_gap);
            Request {
                arrival: at,
                kind,
                offset: u64::from(source.below(pages)) * u64::from(page_bytes),
                bytes: u64::from(page_bytes),
            }
        })
        .collect()
}

#[test]
fn exponential_draws_have_the_requested_mean() {
    let mut source = RandomSource::seeded(7);
    let mean = Span(1_000_000);
    let total: u64 = (0..100_000).map(|_| exponential(&mut source, mean).0).sum();
    let found = total / 100_000;
    assert!((990_000..1_010_000).contains(&found), "mean {found}");
}
