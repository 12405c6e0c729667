//! Tests of the translation layer against a model flash that allows one programming of a page between erases, and against a map of the
//! host's last writes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::ftl::{FlashOperation, Ftl, FtlConfig};
use super::super::gc::Collector;
use super::model::host::RangeError;
use super::small;
use tidemill_model::random::RandomSource;

/// Content of each physical page of the model flash: (logical page, version).
struct Flash {
    pages: Vec<Option<(u32, u64)>>,
    pages_per_block: u32,
    written: BTreeMap<u32, u64>,
    version: u64,
}

impl Flash {
    fn of(ftl: &Ftl) -> Self {
        Self {
            pages: vec![None; ftl.geometry().physical_pages() as usize],
            pages_per_block: ftl.geometry().spec().pages_per_block,
            written: BTreeMap::new(),
            version: 0,
        }
    }

    fn apply(&mut self, operation: FlashOperation) {
        match operation {
            FlashOperation::Read { page } => assert!(self.pages[page as usize].is_some()),
            FlashOperation::Program { page, logical } => {
                self.version += 1;
                self.written.insert(logical, self.version);
                self.program(page, (logical, self.version));
            }
            FlashOperation::Copy { from, to } => {
                let data = self.pages[from as usize].expect("copied from an erased page");
                self.program(to, data);
            }
            FlashOperation::Erase { block } => {
                let first = (block * self.pages_per_block) as usize;
                self.pages[first..first + self.pages_per_block as usize].fill(None);
            }
        }
    }

    fn program(&mut self, page: u32, data: (u32, u64)) {
        // Pages are programmed in order within a block, as NAND requires, and never twice without an erase.
        assert!(self.pages[page as usize].is_none(), "programmed twice");
        if !page.is_multiple_of(self.pages_per_block) {
            assert!(self.pages[page as usize - 1].is_some(), "out of order");
        }
        self.pages[page as usize] = Some(data);
    }

    fn check(&self, ftl: &Ftl) {
        ftl.check();
        for logical in 0..ftl.geometry().logical_pages() {
            let found = ftl.locate(logical).map(|page| self.pages[page as usize]);
            let expected = self.written.get(&logical).map(|&v| Some((logical, v)));
            assert_eq!(found, expected, "logical page {logical}");
        }
    }
}

#[derive(Clone, Debug)]
enum FtlStep {
    Write(u64, u64),
    Trim(u64, u64),
    Collect(u32),
    Churn(u64, u32),
}

fn steps() -> impl Strategy<Value = Vec<FtlStep>> {
    let range = (0..500_000u64, 0..20_000u64);
    prop::collection::vec(
        prop_oneof![
            4 => range.clone().prop_map(|(offset, bytes)| FtlStep::Write(offset, bytes)),
            2 => range.prop_map(|(offset, bytes)| FtlStep::Trim(offset, bytes)),
            2 => (1..20u32).prop_map(FtlStep::Collect),
            2 => (any::<u64>(), 1..1500u32).prop_map(|(seed, n)| FtlStep::Churn(seed, n)),
        ],
        1..30,
    )
}

fn configs() -> impl Strategy<Value = FtlConfig> {
    let collector = prop_oneof![
        Just(Collector::Greedy),
        Just(Collector::CostBenefit),
        Just(Collector::OldestFirst)
    ];
    (collector, 0..20u32, 0..6u32).prop_map(|(collector, collect_below, level_above)| FtlConfig {
        collector,
        collect_below,
        level_above,
    })
}

fn step(ftl: &mut Ftl, flash: &mut Flash, step: &FtlStep) {
    let page_bytes = u64::from(ftl.geometry().spec().page_bytes);
    match *step {
        FtlStep::Write(offset, bytes) => {
            let _ = ftl.write_observed(offset, bytes, &mut |op| flash.apply(op));
        }
        FtlStep::Trim(offset, bytes) => {
            if ftl.trim(offset, bytes).is_ok() {
                let pages = offset.div_ceil(page_bytes)..(offset + bytes) / page_bytes;
                let inside = |page: u32| pages.contains(&u64::from(page));
                flash.written.retain(|&page, _| !inside(page));
            }
        }
        FtlStep::Collect(pages) => {
            ftl.collect(pages, &mut |op| flash.apply(op));
        }
        FtlStep::Churn(seed, count) => {
            let mut source = RandomSource::seeded(seed);
            // Nine in ten writes hit a tenth of the pages, so that there is cold data to level.
            for _ in 0..count {
                let all = ftl.geometry().logical_pages();
                let pages = if source.below(10) == 0 { all } else { all / 10 };
                let page = u64::from(source.below(pages));
                ftl.write_observed(page * page_bytes, page_bytes, &mut |op| flash.apply(op))
                    .unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ftl_page_reads_back_its_latest_write(
        config in configs(),
        over_provisioning in 0.2..1.0f64,
        steps in steps(),
    ) {
        let mut ftl = small(over_provisioning, config);
        let mut flash = Flash::of(&ftl);
        for one in &steps {
            step(&mut ftl, &mut flash, one);
            flash.check(&ftl);
        }
    }
}

#[test]
fn full_ftl_accepts_overwrites_without_end() {
    for collector in [
        Collector::Greedy,
        Collector::CostBenefit,
        Collector::OldestFirst,
    ] {
        let config = FtlConfig {
            collector,
            level_above: 4,
            ..FtlConfig::default()
        };
        // The smallest over-provisioning that four chips allow: 17 blocks of 128.
        let mut ftl = small(0.1533, config);
        let mut flash = Flash::of(&ftl);
        let all = ftl.geometry().logical_bytes();
        for _ in 0..3 {
            ftl.write_observed(0, all, &mut |op| flash.apply(op))
                .unwrap();
        }
        step(&mut ftl, &mut flash, &FtlStep::Churn(1, 20_000));
        flash.check(&ftl);
        assert!(ftl.counts().levelled_pages > 0);
    }
}

#[test]
fn sequential_writes_are_striped_and_not_amplified() {
    let mut ftl = small(0.25, FtlConfig::default());
    let mut chips = Vec::new();
    let geometry = ftl.geometry().clone();
    ftl.write_observed(0, 8 * 512, &mut |op| {
        if let FlashOperation::Program { page, .. } = op {
            chips.push(geometry.chip_of(page));
        }
    })
    .unwrap();
    assert_eq!(chips, [0, 1, 2, 3, 0, 1, 2, 3]);
    let all = geometry.logical_bytes();
    for _ in 0..20 {
        ftl.write(0, all).unwrap();
    }
    assert!((ftl.write_amplification() - 1.0).abs() < 1e-9);
}

#[test]
fn partial_page_write_costs_whole_page_and_a_read() {
    let mut ftl = small(0.25, FtlConfig::default());
    ftl.write(100, 50).unwrap();
    assert_eq!(
        (ftl.counts().host_pages, ftl.counts().partial_reads),
        (1, 0)
    );
    ftl.write(500, 24).unwrap();
    assert_eq!(
        (ftl.counts().host_pages, ftl.counts().partial_reads),
        (3, 1)
    );
    ftl.write(512, 512).unwrap();
    assert_eq!(
        (ftl.counts().host_pages, ftl.counts().partial_reads),
        (4, 1)
    );
    assert!((ftl.write_amplification() - 4.0 * 512.0 / 586.0).abs() < 1e-9);
}

#[test]
fn ftl_refuses_range_outside_device_without_change() {
    let mut ftl = small(0.25, FtlConfig::default());
    let capacity = ftl.geometry().logical_bytes();
    for (offset, bytes) in [
        (capacity, 1),
        (0, capacity + 1),
        (u64::MAX, 1),
        (1, u64::MAX),
    ] {
        let expected = Err(RangeError {
            offset,
            bytes,
            capacity,
        });
        assert_eq!(ftl.write(offset, bytes), expected);
        assert_eq!(ftl.trim(offset, bytes), expected);
    }
    ftl.write(capacity, 0).unwrap();
    assert_eq!(ftl.counts(), Default::default());
}
