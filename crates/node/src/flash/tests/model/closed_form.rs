//! Published write amplification of uniform random writes, as a reference for the collector.
//!
//! P. Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR 2012: Eq. 4 for cleaning in the order of writing, Eq. 12 for greedy
//! cleaning with blocks of finite size. X. Luojie and B. Kurkoski found Eq. 4, too ("An improved analytic expression for write
//! amplification in NAND flash", ICNC 2012).
//!
//! Both equations take `alpha`, physical over logical pages *that hold data*: blocks that the collector keeps free, and the unwritten half
//! of open blocks, do not count.

/// Returns Lambert's W of `x`, principal branch, for `x` in [−1/e, 0): the w ≥ −1 with w·eʷ = `x`.
///
/// Returns NaN if `x` is outside of that range.
pub(crate) fn lambert_w0(x: f64) -> f64 {
    let least = -(-1.0f64).exp();
    if !(least..0.0).contains(&x) {
        return f64::NAN;
    }
    // Bisection: w·eʷ rises strictly on [−1, 0], and 60 halvings exhaust an f64.
    let (mut low, mut high) = (-1.0f64, 0.0f64);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if middle * middle.exp() < x {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// Returns the write amplification if the block written longest ago is always collected (Desnoyers Eq. 4): α / (α + W(−α·e^−α)). This value
/// is also the limit of greedy collection for very large blocks.
///
/// Returns NaN unless `alpha` > 1.
pub(crate) fn oldest_first(alpha: f64) -> f64 {
    if alpha > 1.0 {
        alpha / (alpha + lambert_w0(-alpha * (-alpha).exp()))
    } else {
        f64::NAN
    }
}

/// Returns the write amplification if the block with the fewest valid pages is always collected (Desnoyers Eq. 12): Eq. 4 at k·α, divided
/// by k, with k = 1 + 1 / (2 · `pages_per_block`).
///
/// Returns NaN unless `alpha` > 1.
pub(crate) fn greedy(alpha: f64, pages_per_block: u32) -> f64 {
    let k = 1.0 + 1.0 / (2.0 * f64::from(pages_per_block));
    if alpha > 1.0 {
        oldest_first(k * alpha) / k
    } else {
        f64::NAN
    }
}

#[test]
fn lambert_w0_inverts_its_definition() {
    for step in 1..100 {
        let w = -f64::from(step) / 100.0;
        assert!((lambert_w0(w * w.exp()) - w).abs() < 1e-9, "at {w}");
    }
    assert!(lambert_w0(0.5).is_nan());
    assert!(lambert_w0(-0.5).is_nan());
}

/// The abstract of Luojie and Kurkoski gives a write amplification of 2.36 at 30 % (2.35 in their simulation).
#[test]
fn oldest_first_has_the_published_value() {
    assert!((oldest_first(1.3) - 2.36).abs() < 0.005);
    assert!(oldest_first(1.0).is_nan());
}

#[test]
fn greedy_beats_oldest_first_and_nears_it_with_large_blocks() {
    for alpha in [1.07, 1.15, 1.28, 1.5] {
        assert!(greedy(alpha, 64) < greedy(alpha, 256));
        assert!(greedy(alpha, 256) < oldest_first(alpha));
        let ratio = greedy(alpha, 1 << 20) / oldest_first(alpha);
        assert!((ratio - 1.0).abs() < 1e-4, "{ratio} at {alpha}");
    }
}
