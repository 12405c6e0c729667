//! Tests that compare the simulated write amplification of uniform random writes with closed forms.

use super::super::ftl::{Ftl, FtlConfig};
use super::super::gc::Collector;
use super::super::geometry::{DeviceSpec, Geometry};
use super::model::closed_form;
use tidemill_model::random::RandomSource;

const PAGES_PER_BLOCK: u32 = 64;

/// Returns a device of four chips with 256 blocks.
fn four_chips(over_provisioning: f64) -> DeviceSpec {
    DeviceSpec {
        channels: 2,
        chips_per_channel: 2,
        blocks_per_chip: 256,
        pages_per_block: PAGES_PER_BLOCK,
        over_provisioning,
        ..DeviceSpec::default()
    }
}

/// Fills a device, ages it by random writes of three times its size, and measures over two more times its size. Returns (write
/// amplification, pages in use over logical pages).
fn simulate(spec: DeviceSpec, collector: Collector) -> (f64, f64) {
    let page_bytes = u64::from(spec.page_bytes);
    let config = FtlConfig {
        collector,
        ..FtlConfig::default()
    };
    let mut ftl = Ftl::new(Geometry::new(spec).unwrap(), config);
    ftl.write(0, ftl.geometry().logical_bytes()).unwrap();
    let pages = ftl.geometry().logical_pages();
    let mut source = RandomSource::seeded(42);
    let mut random = |ftl: &mut Ftl, count: u32| {
        for _ in 0..count {
            let offset = u64::from(source.below(pages)) * page_bytes;
            ftl.write(offset, page_bytes).unwrap();
        }
    };
    random(&mut ftl, 3 * pages);
    let before = ftl.counts();
    let (mut ratio, rounds) = (0.0, 64);
    for _ in 0..rounds {
        random(&mut ftl, pages / 32);
        ratio += ftl.pages_in_use_ratio() / f64::from(rounds);
    }
    let counts = ftl.counts().since(before);
    let flash = f64::from(u32::try_from(counts.flash_pages()).unwrap());
    let host = f64::from(u32::try_from(counts.host_pages).unwrap());
    (flash / host, ratio)
}

fn assert_within(found: f64, expected: f64, share: f64, what: &str) {
    let error = found / expected - 1.0;
    println!(
        "{what}: simulated {found:.3}, closed form {expected:.3}, {:+.2} %",
        error * 100.0
    );
    assert!(error.abs() <= share, "{what}: {found} against {expected}");
}

#[test]
fn greedy_amplification_matches_closed_form() {
    for over_provisioning in [0.07, 0.15, 0.28, 0.5] {
        let (found, alpha) = simulate(four_chips(over_provisioning), Collector::Greedy);
        let expected = closed_form::greedy(alpha, PAGES_PER_BLOCK);
        assert_within(
            found,
            expected,
            0.05,
            &format!("greedy {over_provisioning}"),
        );
    }
}

/// One chip has many blocks, so the free and the open blocks hardly count. The closed form then holds for the nominal over-provisioning of
/// the device.
#[test]
fn greedy_matches_closed_form_by_nominal_over_provisioning() {
    for over_provisioning in [0.07, 0.15, 0.28, 0.5] {
        let spec = DeviceSpec {
            channels: 1,
            chips_per_channel: 1,
            blocks_per_chip: 4096,
            pages_per_block: 32,
            over_provisioning,
            ..DeviceSpec::default()
        };
        let (found, _) = simulate(spec, Collector::Greedy);
        let expected = closed_form::greedy(1.0 + over_provisioning, 32);
        assert_within(
            found,
            expected,
            0.05,
            &format!("nominal {over_provisioning}"),
        );
    }
}

#[test]
fn oldest_first_amplification_matches_closed_form() {
    for over_provisioning in [0.07, 0.15, 0.28, 0.5] {
        let (found, alpha) = simulate(four_chips(over_provisioning), Collector::OldestFirst);
        let expected = closed_form::oldest_first(alpha);
        assert_within(
            found,
            expected,
            0.05,
            &format!("oldest {over_provisioning}"),
        );
    }
}

/// Uniform writes have no cold data, so age gains nothing. Cost-benefit has no closed form of its own: its
/// amplification is slightly above the closed form of oldest-first.
#[test]
fn cost_benefit_is_near_oldest_first_on_uniform_writes() {
    for over_provisioning in [0.07, 0.15, 0.28, 0.5] {
        let (found, alpha) = simulate(four_chips(over_provisioning), Collector::CostBenefit);
        let expected = closed_form::oldest_first(alpha);
        let what = format!("cost-benefit {over_provisioning}");
        assert_within(found, expected, 0.05, &what);
        assert!(found > closed_form::greedy(alpha, PAGES_PER_BLOCK));
    }
}

/// Nine of ten writes hit a tenth of the pages: choosing blocks by age pays with such data.
#[test]
fn cost_benefit_beats_greedy_where_some_data_is_cold() {
    let skewed = |collector| {
        let config = FtlConfig {
            collector,
            level_above: u32::MAX,
            ..FtlConfig::default()
        };
        let spec = four_chips(0.15);
        let page_bytes = u64::from(spec.page_bytes);
        let mut ftl = Ftl::new(Geometry::new(spec).unwrap(), config);
        ftl.write(0, ftl.geometry().logical_bytes()).unwrap();
        let pages = ftl.geometry().logical_pages();
        let mut source = RandomSource::seeded(5);
        for _ in 0..6 * pages {
            let hot = source.below(10) > 0;
            let page = source.below(if hot { pages / 10 } else { pages });
            ftl.write(u64::from(page) * page_bytes, page_bytes).unwrap();
        }
        ftl.write_amplification()
    };
    let (greedy, cost_benefit) = (skewed(Collector::Greedy), skewed(Collector::CostBenefit));
    println!("90/10: greedy {greedy:.3}, cost-benefit {cost_benefit:.3}");
    assert!(cost_benefit < greedy, "{cost_benefit} against {greedy}");
}
