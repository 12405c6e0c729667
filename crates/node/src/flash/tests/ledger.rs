//! Tests of the flash ledger: its numbers follow from the written bytes, and survive a restart.

use proptest::prelude::*;

use super::super::ftl::{Ftl, FtlConfig};
use super::super::gc::Collector;
use super::super::ledger::{FlashLedger, LedgerError, PAGES_MAX, SECTOR_BYTES};
use super::super::snapshot::SnapshotError;
use super::model::closed_form;
use super::small;
use tidemill_model::random::RandomSource;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
fn ledger_pages_scale_to_keep_map_small() {
    for (capacity, page_bytes) in [
        (1, 4096),
        (GIB, 4096),
        (GIB + 1, 8192),
        (1024 * GIB, 4 * MIB),
        (512 * 1024 * GIB, 2048 * MIB),
    ] {
        let ledger = FlashLedger::new(capacity).unwrap();
        let report = ledger.report();
        assert_eq!(report.block_bytes, 64 * page_bytes, "{capacity}");
        assert_eq!(report.used_bytes, 0);
        let blocks = u64::from(report.collection.free_blocks);
        assert!(blocks * 64 <= PAGES_MAX * 108 / 100 + 64 * 9);
        assert!(blocks * report.block_bytes > capacity);
    }
    for capacity in [0, 512 * 1024 * GIB + 1, u64::MAX] {
        let refused = FlashLedger::new(capacity).map(|_| ());
        assert_eq!(refused, Err(LedgerError::Capacity { capacity }));
    }
}

#[test]
fn ledger_write_once_is_not_amplified_and_rewrite_wears() {
    let mut ledger = FlashLedger::new(GIB).unwrap();
    for object in 0..900 {
        ledger.wrote(object, MIB).unwrap();
    }
    let report = ledger.report();
    assert_eq!(
        (report.host_bytes, report.flash_bytes),
        (900 * MIB, 900 * MIB)
    );
    assert_eq!((report.used_bytes, report.wear.erases_max), (900 * MIB, 0));
    // Ten rounds of writes: each block is programmed about nine times, less the spare 7 %.
    for round in 1..10 {
        for object in 0..900 {
            assert!(ledger.removed((round - 1) * 900 + object));
            ledger.wrote(round * 900 + object, MIB).unwrap();
        }
    }
    let report = ledger.report();
    assert_eq!(report.host_bytes, 9000 * MIB);
    assert!((report.write_amplification - 1.0).abs() < 0.01);
    let expected = 9000.0 / (1024.0 * 1.07) - 1.0;
    assert!(
        (report.wear.erases_mean - expected).abs() < 0.2,
        "{report:?}"
    );
}

#[test]
fn small_objects_cost_sectors_and_not_coarse_pages() {
    let mut ledger = FlashLedger::new(1024 * GIB).unwrap();
    for object in 0..10_000 {
        ledger.wrote(object, 100).unwrap();
    }
    let report = ledger.report();
    assert_eq!(report.host_bytes, 1_000_000);
    assert_eq!(report.flash_bytes, 10_000 * SECTOR_BYTES);
    assert_eq!(report.used_bytes, 10_000 * SECTOR_BYTES);
}

/// Rewrites objects of one size at random on a device that is 85 % full. Returns write amplification in steady state, and the ratio of
/// physical to occupied pages.
fn rewritten(object_bytes: u64) -> (f64, f64) {
    let page_bytes = 65_536u32;
    let mut ledger = FlashLedger::with_pages(GIB, page_bytes).unwrap();
    let mut source = RandomSource::seeded(3);
    let objects = GIB / object_bytes * 85 / 100;
    for object in 0..objects {
        ledger.wrote(object, object_bytes).unwrap();
    }
    let mut rewrite = |ledger: &mut FlashLedger, count: u64| {
        for _ in 0..count {
            let object = source.next_u64() % objects;
            assert!(ledger.removed(object));
            ledger.wrote(object, object_bytes).unwrap();
        }
    };
    rewrite(&mut ledger, 4 * objects);
    let before = ledger.report();
    rewrite(&mut ledger, 3 * objects);
    let after = ledger.report();
    assert_eq!(after.used_bytes, objects * object_bytes);
    let bytes = |number: u64| f64::from(u32::try_from(number / SECTOR_BYTES).unwrap());
    let amplification =
        bytes(after.flash_bytes - before.flash_bytes) / bytes(after.host_bytes - before.host_bytes);
    // 256 blocks and 18 spare ones, which include 2 free and 2 open ones with half of their pages programmed.
    let alpha = (274.0 - 3.0) * bytes(after.block_bytes) / bytes(after.used_bytes);
    (amplification, alpha)
}

/// Objects of one page and objects of a quarter of a page have the write amplification of the closed form: the coarse page has no effect.
#[test]
fn random_rewriting_amplifies_like_closed_form() {
    for object_bytes in [65_536, 16_384] {
        let (found, alpha) = rewritten(object_bytes);
        let expected = closed_form::greedy(alpha, 64);
        println!("objects of {object_bytes}: {found:.3}, closed form {expected:.3}");
        assert!((found / expected - 1.0).abs() < 0.05, "{found} {expected}");
    }
}

#[test]
fn ledger_refuses_write_that_does_not_fit_without_change() {
    let mut ledger = FlashLedger::new(64 * MIB).unwrap();
    ledger.wrote(1, 60 * MIB).unwrap();
    let before = ledger.report();
    assert_eq!(
        ledger.wrote(2, 5 * MIB),
        Err(LedgerError::Full {
            needed: 5 * MIB,
            free: 4 * MIB
        })
    );
    assert_eq!(ledger.report(), before);
    assert!(!ledger.removed(2));
    assert!(ledger.wrote(2, u64::MAX).is_err());
    ledger.wrote(2, 0).unwrap();
    assert!(ledger.removed(1));
    assert_eq!(ledger.report().used_bytes, 0);
}

fn churn(ledger: &mut FlashLedger, seed: u64, steps: u32) {
    let mut source = RandomSource::seeded(seed);
    for _ in 0..steps {
        let object = u64::from(source.below(300));
        if source.below(3) == 0 {
            ledger.removed(object);
        } else {
            let bytes = u64::from(source.below(400_000));
            if ledger.wrote(object, bytes).is_err() {
                (0..300).step_by(3).for_each(|object| {
                    ledger.removed(object);
                });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn restored_ledger_behaves_like_the_saved_one(
        seed in any::<u64>(),
        mebibytes in 1..200u64,
        before in 0..3000u32,
    ) {
        let mut saved = FlashLedger::new(mebibytes * MIB).unwrap();
        churn(&mut saved, seed, before);
        let bytes = saved.save();
        let mut restored = FlashLedger::restore(&bytes).unwrap();
        prop_assert_eq!(restored.report(), saved.report());
        prop_assert_eq!(restored.save(), bytes);
        churn(&mut saved, seed ^ 1, 2000);
        churn(&mut restored, seed ^ 1, 2000);
        prop_assert_eq!(restored.report(), saved.report());
        prop_assert_eq!(restored.save(), saved.save());
    }

    #[test]
    fn restored_ftl_behaves_like_the_saved_one(
        seed in any::<u64>(),
        collector in prop_oneof![
            Just(Collector::Greedy), Just(Collector::CostBenefit), Just(Collector::OldestFirst)
        ],
        writes in 0..5000u32,
        moved in 0..8u32,
    ) {
        let config = FtlConfig { collector, level_above: 3, ..FtlConfig::default() };
        let mut saved = small(0.3, config);
        let write = |ftl: &mut Ftl, seed: u64| {
            let mut source = RandomSource::seeded(seed);
            for _ in 0..writes {
                let page = source.below(ftl.geometry().logical_pages());
                ftl.write(u64::from(page) * 512, 512).unwrap();
            }
            ftl.collect(moved, &mut |_| ());
        };
        write(&mut saved, seed);
        let mut restored = Ftl::restore(&saved.save()).unwrap();
        restored.check();
        write(&mut saved, !seed);
        write(&mut restored, !seed);
        restored.check();
        prop_assert_eq!(restored.counts(), saved.counts());
        prop_assert_eq!(restored.save(), saved.save());
    }

    /// If any byte is wrong, the restore fails or returns a device with consistent counts.
    #[test]
    fn restore_of_corrupt_bytes_fails_or_stays_consistent(seed in any::<u64>(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut ftl = small(0.3, FtlConfig::default());
        let mut source = RandomSource::seeded(seed);
        for _ in 0..1500 {
            let page = source.below(ftl.geometry().logical_pages());
            ftl.write(u64::from(page) * 512, 512).unwrap();
        }
        let mut bytes = ftl.save();
        let at = at.index(bytes.len());
        prop_assert!(Ftl::restore(&bytes[..at]).is_err());
        bytes[at] = to;
        if let Ok(ftl) = Ftl::restore(&bytes) {
            ftl.check();
        }
        let mut ledger = FlashLedger::new(MIB).unwrap();
        churn(&mut ledger, seed, 50);
        let mut bytes = ledger.save();
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = FlashLedger::restore(&bytes);
    }
}

#[test]
fn ledger_snapshot_is_small_and_versioned() {
    let mut ledger = FlashLedger::new(1024 * GIB).unwrap();
    assert!(ledger.save().len() < 20_000, "{}", ledger.save().len());
    for object in 0..10_000 {
        ledger.wrote(object, 50 * MIB).unwrap();
    }
    assert!(ledger.save().len() < 200_000, "{}", ledger.save().len());
    let mut bytes = ledger.save();
    bytes.push(0);
    let refused = |bytes: &[u8]| FlashLedger::restore(bytes).map(|_| ()).unwrap_err();
    assert_eq!(refused(&bytes), SnapshotError::Trailing(1));
    bytes[0] = 2;
    assert_eq!(refused(&bytes), SnapshotError::Version { found: 2 });
    assert_eq!(refused(&[]), SnapshotError::Truncated(0));
}

/// A snapshot that the first version of the layout wrote stays readable. A change of the layout needs a new version.
#[test]
fn ledger_restores_snapshot_of_first_version() {
    let mut ledger = FlashLedger::restore(include_bytes!("ledger-v1.snapshot")).unwrap();
    let report = ledger.report();
    assert_eq!(
        (report.host_bytes, report.flash_bytes),
        (2_980_842, 3_076_096)
    );
    assert_eq!(
        (report.used_bytes, report.block_bytes),
        (1_011_712, 262_144)
    );
    assert_eq!((report.wear.erases_min, report.wear.erases_max), (0, 1));
    assert_eq!(report.collection.free_blocks, 3);
    churn(&mut ledger, 18, 900);
    assert!(ledger.report().host_bytes > report.host_bytes);
}
