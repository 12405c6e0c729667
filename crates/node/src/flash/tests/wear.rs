//! Tests of wear levelling.

use super::super::ftl::{Ftl, FtlConfig};
use super::small;
use tidemill_model::random::RandomSource;

/// Writes half of the device once and the rest many times.
fn half_cold(level_above: u32) -> Ftl {
    let config = FtlConfig {
        level_above,
        ..FtlConfig::default()
    };
    let mut ftl = small(0.25, config);
    let pages = ftl.geometry().logical_pages();
    ftl.write(0, u64::from(pages) * 512).unwrap();
    let mut source = RandomSource::seeded(11);
    for _ in 0..200_000 {
        let page = pages / 2 + source.below(pages / 2);
        ftl.write(u64::from(page) * 512, 512).unwrap();
    }
    ftl
}

#[test]
fn levelling_bounds_spread_of_erases() {
    let without = half_cold(u32::MAX);
    let wear = without.wear();
    assert_eq!(wear.erases_min, 0, "cold blocks are never erased");
    assert_eq!(without.counts().levelled_pages, 0);

    let with = half_cold(20);
    let levelled = with.wear();
    let spread = levelled.erases_max - levelled.erases_min;
    assert!(spread <= 30, "{levelled:?}");
    assert!(levelled.erases_max < wear.erases_max);
    // The cost of levelling: cold data is copied, but not more than a tenth of the programmed pages.
    let counts = with.counts();
    assert!(
        counts.levelled_pages * 10 < counts.flash_pages(),
        "{counts:?}"
    );
}

#[test]
fn wear_equals_counted_erases() {
    let ftl = half_cold(20);
    let (wear, counts) = (ftl.wear(), ftl.counts());
    let erases: Vec<u32> = ftl.erases().collect();
    let sum: u64 = erases.iter().map(|&e| u64::from(e)).sum();
    assert_eq!(sum, counts.erases);
    assert_eq!(erases.iter().min(), Some(&wear.erases_min));
    assert_eq!(erases.iter().max(), Some(&wear.erases_max));
    // Without levelling, which closes blocks early, all programmed pages were erased except for those that fit on the device.
    let counts = half_cold(u32::MAX).counts();
    let kept = counts.flash_pages().checked_sub(counts.erases * 8);
    assert!(kept.is_some_and(|kept| kept <= 1024), "{counts:?}");
}
