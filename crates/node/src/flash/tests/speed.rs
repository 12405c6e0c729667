//! Speed of the flash model, and the source of the figures in `docs/flash.md`: `cargo test --release -p tidemill-node --lib
//! flash::tests::speed -- --ignored --nocapture --test-threads=1`.

use super::super::ftl::{Ftl, FtlConfig};
use super::super::gc::Collector;
use super::super::geometry::{DeviceSpec, Geometry, GeometryError};
use super::super::ledger::{FlashLedger, LedgerError};
use super::model::analysis::{Analysis, Mode};
use super::model::closed_form;
use super::model::device::{Kind, run};
use super::model::workload::poisson;
use std::time::Instant;
use tidemill_model::random::RandomSource;
use tidemill_model::time::{Span, Time};

const PAGE: u64 = 8192;

fn device(
    blocks_per_chip: u32,
    over_provisioning: f64,
    collector: Collector,
) -> Result<Ftl, GeometryError> {
    let spec = DeviceSpec {
        blocks_per_chip,
        over_provisioning,
        ..DeviceSpec::default()
    };
    let config = FtlConfig {
        collector,
        ..FtlConfig::default()
    };
    Ok(Ftl::new(Geometry::new(spec)?, config))
}

fn rate(what: &str, count: u64, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    let seconds = start.elapsed().as_secs_f64();
    let millions = Span(count).as_secs_f64() * 1e3 / seconds;
    println!("{what:<58} {millions:>8.1} M/s");
}

fn random_writes(ftl: &mut Ftl, source: &mut RandomSource, count: u32) {
    let pages = ftl.geometry().logical_pages();
    for _ in 0..count {
        let offset = u64::from(source.below(pages)) * PAGE;
        ftl.write(offset, PAGE).expect("inside the device");
    }
}

/// Prints page writes of the host per second of computing time.
#[test]
#[ignore = "prints a table, and takes minutes without --release"]
fn speed_of_flash_translation_layer() -> Result<(), GeometryError> {
    for (name, blocks) in [("1 GiB", 18), ("64 GiB", 1096)] {
        let over_provisioning = if blocks < 100 { 0.25 } else { 0.07 };
        let mut ftl = device(blocks, over_provisioning, Collector::Greedy)?;
        let pages = ftl.geometry().logical_pages();
        let bytes = ftl.geometry().logical_bytes();
        rate(
            &format!("{name}: one sequential write"),
            pages.into(),
            || {
                ftl.write(0, bytes).expect("inside the device");
            },
        );
        let mut ftl = device(blocks, over_provisioning, Collector::Greedy)?;
        let mut source = RandomSource::seeded(1);
        let erases = ftl.counts().erases;
        rate(
            &format!("{name}: random pages, no collection"),
            pages.into(),
            || {
                random_writes(&mut ftl, &mut source, pages);
            },
        );
        assert_eq!(ftl.counts().erases, erases);
        for _ in 0..2 {
            random_writes(&mut ftl, &mut source, pages);
        }
        let before = ftl.counts();
        rate(
            &format!("{name}: random pages, collecting"),
            pages.into(),
            || {
                random_writes(&mut ftl, &mut source, pages);
            },
        );
        let counts = ftl.counts().since(before);
        println!(
            "    of them {} pages programmed for {} written",
            counts.flash_pages(),
            counts.host_pages
        );
    }
    Ok(())
}

/// Compares the simulation with the closed form, on a device of one chip with 4,096 blocks (few blocks are free or open) and on a device of
/// 32 chips with 137 blocks (many blocks are free or open).
#[test]
#[ignore = "prints a table, and takes minutes without --release"]
fn simulated_amplification_against_closed_form() -> Result<(), GeometryError> {
    println!("\nover-provisioning  chips  collector    simulated  closed form: in use   nominal");
    for over_provisioning in [0.07, 0.15, 0.28, 0.5] {
        for (chips, blocks_per_chip) in [(1, 4096), (32, 137)] {
            for collector in [
                Collector::Greedy,
                Collector::OldestFirst,
                Collector::CostBenefit,
            ] {
                let spec = DeviceSpec {
                    channels: 1,
                    chips_per_channel: chips,
                    blocks_per_chip,
                    over_provisioning,
                    ..DeviceSpec::default()
                };
                let (found, in_use) = steady_state(spec, collector)?;
                let form = |alpha| match collector {
                    Collector::Greedy => closed_form::greedy(alpha, 256),
                    _ => closed_form::oldest_first(alpha),
                };
                println!(
                    "{over_provisioning:>17}  {chips:>5}  {:<11}  {found:>9.3}  {:>19.3}  {:>8.3}",
                    format!("{collector:?}"),
                    form(in_use),
                    form(1.0 + over_provisioning)
                );
            }
        }
    }
    Ok(())
}

/// Ages a device by three times its size of random writes. Returns (write amplification, mean pages in use over logical pages) of a fourth.
fn steady_state(spec: DeviceSpec, collector: Collector) -> Result<(f64, f64), GeometryError> {
    let config = FtlConfig {
        collector,
        ..FtlConfig::default()
    };
    let mut ftl = Ftl::new(Geometry::new(spec)?, config);
    let bytes = ftl.geometry().logical_bytes();
    ftl.write(0, bytes).expect("inside the device");
    let pages = ftl.geometry().logical_pages();
    let mut source = RandomSource::seeded(2);
    random_writes(&mut ftl, &mut source, 3 * pages);
    let before = ftl.counts();
    let mut in_use = 0.0;
    for _ in 0..200 {
        random_writes(&mut ftl, &mut source, pages / 200);
        in_use += ftl.pages_in_use_ratio() / 200.0;
    }
    let counts = ftl.counts().since(before);
    let found = Span(counts.flash_pages()).as_secs_f64() / Span(counts.host_pages).as_secs_f64();
    Ok((found, in_use))
}

#[test]
#[ignore = "prints a table, and takes minutes without --release"]
fn speed_of_requests_during_analysis() -> Result<(), GeometryError> {
    let mut ftl = device(1096, 0.07, Collector::Greedy)?;
    ftl.write(0, 1 << 30).expect("inside the device");
    let mut source = RandomSource::seeded(3);
    let gap = (Time(0), Span(100_000));
    let requests = poisson(&mut source, Kind::Read, 1_000_000, gap, (100_000, 8192));
    let analysis = Analysis {
        mode: Mode::Idle,
        bytes_per_s: 123 << 20,
        slice_bytes: 32 << 10,
        resident: vec![(0, 1 << 30); 64],
    };
    rate(
        "device: requests served beside an analysis",
        1_000_000,
        || {
            let report = run(&mut ftl, &requests, Some(&analysis), Span(0));
            report.expect("inside the device");
        },
    );
    Ok(())
}

#[test]
#[ignore = "prints a table, and takes minutes without --release"]
fn speed_of_ledger() -> Result<(), LedgerError> {
    let mut ledger = FlashLedger::new(1 << 40)?;
    let mut source = RandomSource::seeded(4);
    for object in 0..900_000 {
        ledger.wrote(object, 1 << 20)?;
    }
    rate(
        "ledger of 1 TiB, 900 000 objects: rewrite 1 MiB",
        1_000_000,
        || {
            for _ in 0..1_000_000 {
                let object = u64::from(source.below(900_000));
                ledger.removed(object);
                ledger.wrote(object, 1 << 20).expect("as much as was freed");
            }
        },
    );
    for _ in 0..3_000_000 {
        let object = u64::from(source.below(900_000));
        ledger.removed(object);
        ledger.wrote(object, 1 << 20)?;
    }
    let bytes = ledger.save();
    println!("    {:?}", ledger.report());
    println!("    snapshot: {} bytes", bytes.len());
    Ok(())
}
