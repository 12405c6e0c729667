//! The ledger: numbers that follow from what was written, and that survive a restart.

use proptest::prelude::*;

use super::super::ftl::{Config, Ftl};
use super::super::gc::Collector;
use super::super::ledger::{Ledger, LedgerError, PAGES_MAX, SECTOR_BYTES};
use super::super::snapshot::SnapshotError;
use super::super::workload::Source;
use super::small;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[test]
fn pages_scale_so_that_the_map_stays_small() {
    for (capacity, page_bytes) in [
        (1, 4096),
        (GIB, 4096),
        (GIB + 1, 8192),
        (1024 * GIB, 4 * MIB),
        (512 * 1024 * GIB, 2048 * MIB),
    ] {
        let ledger = Ledger::new(capacity).unwrap();
        let report = ledger.report();
        assert_eq!(report.block_bytes, 64 * page_bytes, "{capacity}");
        assert_eq!(report.used_bytes, 0);
        let blocks = u64::from(report.collection.free_blocks);
        assert!(blocks * 64 <= PAGES_MAX * 108 / 100 + 64 * 9);
        assert!(blocks * report.block_bytes > capacity);
    }
    for capacity in [0, 512 * 1024 * GIB + 1, u64::MAX] {
        let refused = Ledger::new(capacity).map(|_| ());
        assert_eq!(refused, Err(LedgerError::Capacity { capacity }));
    }
}

#[test]
fn writing_once_is_not_amplified_and_rewriting_wears() {
    let mut ledger = Ledger::new(GIB).unwrap();
    for object in 0..900 {
        ledger.wrote(object, MIB).unwrap();
    }
    let report = ledger.report();
    assert_eq!(
        (report.host_bytes, report.flash_bytes),
        (900 * MIB, 900 * MIB)
    );
    assert_eq!((report.used_bytes, report.wear.erases_max), (900 * MIB, 0));
    // Ten times over: each block goes round about nine times, less 7 % that is spare.
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
    let mut ledger = Ledger::new(1024 * GIB).unwrap();
    for object in 0..10_000 {
        ledger.wrote(object, 100).unwrap();
    }
    let report = ledger.report();
    assert_eq!(report.host_bytes, 1_000_000);
    assert_eq!(report.flash_bytes, 10_000 * SECTOR_BYTES);
    assert_eq!(report.used_bytes, 10_000 * SECTOR_BYTES);
}

#[test]
fn random_rewriting_of_a_full_device_amplifies() {
    let mut ledger = Ledger::new(256 * MIB).unwrap();
    let mut source = Source::seeded(3);
    let objects = 256 * MIB / 65_536 * 95 / 100;
    for object in 0..objects {
        ledger.wrote(object, 65_536).unwrap();
    }
    for _ in 0..4 * objects {
        let object = source.next_u64() % objects;
        assert!(ledger.removed(object));
        ledger.wrote(object, 65_536).unwrap();
    }
    let report = ledger.report();
    assert_eq!(report.used_bytes, objects * 65_536);
    assert!(report.wear.erases_mean > 3.0, "{report:?}");
    assert!(report.write_amplification >= 1.0);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut ledger = Ledger::new(64 * MIB).unwrap();
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

fn churn(ledger: &mut Ledger, seed: u64, steps: u32) {
    let mut source = Source::seeded(seed);
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
    fn a_restored_ledger_goes_on_as_the_saved_one(
        seed in any::<u64>(),
        mebibytes in 1..200u64,
        before in 0..3000u32,
    ) {
        let mut saved = Ledger::new(mebibytes * MIB).unwrap();
        churn(&mut saved, seed, before);
        let bytes = saved.save();
        let mut restored = Ledger::restore(&bytes).unwrap();
        prop_assert_eq!(restored.report(), saved.report());
        prop_assert_eq!(restored.save(), bytes);
        churn(&mut saved, seed ^ 1, 2000);
        churn(&mut restored, seed ^ 1, 2000);
        prop_assert_eq!(restored.report(), saved.report());
        prop_assert_eq!(restored.save(), saved.save());
    }

    #[test]
    fn a_restored_device_goes_on_as_the_saved_one(
        seed in any::<u64>(),
        collector in prop_oneof![
            Just(Collector::Greedy), Just(Collector::CostBenefit), Just(Collector::OldestFirst)
        ],
        writes in 0..5000u32,
        moved in 0..8u32,
    ) {
        let config = Config { collector, level_above: 3, ..Config::default() };
        let mut saved = small(0.3, config);
        let write = |ftl: &mut Ftl, seed: u64| {
            let mut source = Source::seeded(seed);
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

    /// Whatever byte is wrong, there is an error or a device whose books balance.
    #[test]
    fn damaged_bytes_never_break_anything(seed in any::<u64>(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut ftl = small(0.3, Config::default());
        let mut source = Source::seeded(seed);
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
        let mut ledger = Ledger::new(MIB).unwrap();
        churn(&mut ledger, seed, 50);
        let mut bytes = ledger.save();
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = Ledger::restore(&bytes);
    }
}

#[test]
fn snapshots_are_small_and_versioned() {
    let mut ledger = Ledger::new(1024 * GIB).unwrap();
    assert!(ledger.save().len() < 20_000, "{}", ledger.save().len());
    for object in 0..10_000 {
        ledger.wrote(object, 50 * MIB).unwrap();
    }
    assert!(ledger.save().len() < 200_000, "{}", ledger.save().len());
    let mut bytes = ledger.save();
    bytes.push(0);
    let refused = |bytes: &[u8]| Ledger::restore(bytes).map(|_| ()).unwrap_err();
    assert_eq!(refused(&bytes), SnapshotError::Trailing(1));
    bytes[0] = 2;
    assert_eq!(refused(&bytes), SnapshotError::Version { found: 2 });
    assert_eq!(refused(&[]), SnapshotError::Truncated(0));
}
