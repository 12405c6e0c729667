//! Tests of requests and analysis on one device: the delays that the Active Flash paper states, and the effects of the modes.

use proptest::prelude::*;
use tidemill_model::time::{Span, Time};

use super::super::ftl::{Ftl, FtlConfig};
use super::super::geometry::{DeviceSpec, Geometry};
use super::model::analysis::{Analysis, Mode};
use super::model::device::{Kind, Report, Request, RunError, run};
use super::model::host::RangeError;
use super::model::workload::poisson;
use tidemill_model::random::RandomSource;

const MIB: u64 = 1 << 20;

/// Returns a device of 8 chips on 4 channels, 256 MiB, with pages of 8 KiB.
fn device(config: FtlConfig) -> Ftl {
    let spec = DeviceSpec {
        channels: 4,
        chips_per_channel: 2,
        blocks_per_chip: 150,
        pages_per_block: 32,
        over_provisioning: 0.17,
        ..DeviceSpec::default()
    };
    Ftl::new(Geometry::new(spec).unwrap(), config)
}

fn kernel(mode: Mode, bytes_per_s: u64, resident: u64) -> Analysis {
    Analysis {
        mode,
        bytes_per_s,
        slice_bytes: 32 << 10,
        resident: if resident > 0 {
            vec![(0, resident)]
        } else {
            Vec::new()
        },
    }
}

/// Analyses 100 MiB twenty times while single pages are read at intervals. The reads are so rare that the start of a slice does not predict
/// the next request (one read every 20 slices; with one every 4, the mean would be 4 % higher, since each request makes a slice start).
fn sparse_reads(mode: Mode, bytes_per_s: u64) -> Report {
    let mut ftl = device(FtlConfig::default());
    ftl.write(0, 100 * MIB).unwrap();
    let analysis = Analysis {
        resident: vec![(0, 100 * MIB); 20],
        ..kernel(mode, bytes_per_s, 0)
    };
    let requests = poisson(
        &mut RandomSource::seeded(1),
        Kind::Read,
        4000,
        (Time(0), Span(20 * analysis.slice_time().0)),
        (1000, 8192),
    );
    run(&mut ftl, &requests, Some(&analysis), Span(0)).unwrap()
}

/// The kernels of Table 7 of the paper, by their compute time for 100 MB, and the kernels of Table 3 on the ARM core.
const KERNELS: [(&str, u64); 11] = [
    ("max", 1000 * MIB / 198),
    ("mean", 1000 * MIB / 221),
    ("standard deviation", 1000 * MIB / 277),
    ("linear regression", 1000 * MIB / 496),
    ("statistics", 416 * MIB),
    ("grep", 123 * MIB),
    ("transpose", 76 * MIB),
    ("PCA", 102 * MIB / 10),
    ("gzip", 41 * MIB / 10),
    ("fingerprint", 181 * MIB / 100),
    ("k-means", 91 * MIB / 100),
];

#[test]
fn mean_preemption_delay_is_half_a_slice() {
    for (name, bytes_per_s) in KERNELS {
        let report = sparse_reads(Mode::Idle, bytes_per_s);
        let expected = kernel(Mode::Idle, bytes_per_s, 0).mean_preemption_delay();
        let found = report.latency.preemption_mean;
        let error = found.as_secs_f64() / expected.as_secs_f64() - 1.0;
        println!(
            "{name}: {} preemptions, mean {:.3} ms, B/2T {:.3} ms, {:+.1} %",
            report.latency.preemptions,
            found.as_secs_f64() * 1e3,
            expected.as_secs_f64() * 1e3,
            error * 100.0,
        );
        assert!(report.latency.preemptions > 500);
        assert!(error.abs() < 0.04, "{found:?} against {expected:?}");
        assert!(report.latency.preemption_max.0 <= 2 * expected.0 + 1);
    }
}

#[test]
fn burst_of_requests_waits_for_one_slice_only() {
    let mut ftl = device(FtlConfig::default());
    ftl.write(0, MIB).unwrap();
    let analysis = kernel(Mode::Idle, 2 * MIB, MIB);
    let burst: Vec<Request> = (0..10)
        .map(|i| Request {
            arrival: Time(20_000_000),
            kind: Kind::Read,
            offset: i * 8192,
            bytes: 8192,
        })
        .collect();
    let report = run(&mut ftl, &burst, Some(&analysis), Span(0)).unwrap();
    assert_eq!(report.latency.preemptions, 1);
    assert!(report.latency.max.0 < analysis.slice_time().0 + 2_000_000);
}

#[test]
fn idle_device_analyses_as_fast_as_table_7() {
    // 100 MB on the prototype: 2.4 s to read in slices of 32 KB, then the kernel's own time.
    for (tenths, published) in [(198u64, 4.5), (221, 4.0), (277, 3.3), (496, 1.9)] {
        let mut ftl = Ftl::new(
            Geometry::new(DeviceSpec::prototype()).unwrap(),
            FtlConfig::default(),
        );
        ftl.write(0, 100 * MIB).unwrap();
        let analysis = kernel(Mode::Idle, 1000 * MIB / tenths, 100 * MIB);
        let report = run(&mut ftl, &[], Some(&analysis), Span(0)).unwrap();
        let found = seconds(report.analysed.finished);
        let compute = seconds(Time(tenths * 100_000_000));
        assert!((found - compute - 2.4).abs() < 0.01, "{found} s");
        // The times printed for mean give 4.08 MB/s, not 4.0.
        let found = report.analysed.bytes_per_s() / 1048576.0;
        assert!((found - published).abs() < 0.09, "{found} MB/s");
    }
}

/// The kernel sees the bytes in memory without reading flash. These bytes are the sum of the bytes that the kernel computes during the
/// burst and the bytes that memory holds when the burst ends.
#[test]
fn write_time_analysis_reads_back_only_bytes_beyond_memory() {
    let (rate, kernel_rate, dram) = (20 * MIB, 5 * MIB, 16 * MIB);
    let burst = 100 * MIB;
    let requests: Vec<Request> = (0..burst / MIB)
        .map(|i| Request {
            arrival: Time(i * MIB * 1_000_000_000 / rate),
            kind: Kind::Write,
            offset: i * MIB,
            bytes: MIB,
        })
        .collect();
    let mode = Mode::AtWrite { dram_bytes: dram };
    let analysis = kernel(mode, kernel_rate, 0);
    let mut ftl = device(FtlConfig::default());
    let report = run(&mut ftl, &requests, Some(&analysis), Span(0)).unwrap();
    assert_eq!(report.analysed.bytes, burst);
    let expected = burst * kernel_rate / rate + dram;
    let found = report.analysed.bytes_in_memory;
    println!("in memory {found} of {burst}, expected {expected}");
    assert!(found.abs_diff(expected) < expected / 20);

    // Memory for all data: no data is read back, and the analysis ends as soon as the kernel can.
    let spacious = kernel(Mode::AtWrite { dram_bytes: burst }, kernel_rate, 0);
    let mut ftl = device(FtlConfig::default());
    let report = run(&mut ftl, &requests, Some(&spacious), Span(0)).unwrap();
    assert_eq!(report.analysed.bytes_in_memory, burst);
    let spacious_end = seconds(report.analysed.finished);
    assert!((spacious_end - 20.0).abs() < 0.2, "{spacious_end}");

    // In idle time all data is read back from flash.
    let mut ftl = device(FtlConfig::default());
    let idle = kernel(Mode::Idle, kernel_rate, 0);
    let report = run(&mut ftl, &requests, Some(&idle), Span(0)).unwrap();
    assert_eq!(
        (report.analysed.bytes, report.analysed.bytes_in_memory),
        (burst, 0)
    );
    assert!(seconds(report.analysed.finished) > spacious_end);
}

fn seconds(time: Time) -> f64 {
    time.since(Time(0)).as_secs_f64()
}

/// Runs a full, aged device with bursts of random writes, and analysis of old data in between.
fn aged(mode: Option<Mode>, bytes_per_s: u64) -> Report {
    let config = FtlConfig {
        collect_below: 60,
        ..FtlConfig::default()
    };
    let mut ftl = device(config);
    let pages = ftl.geometry().logical_pages();
    ftl.write(0, ftl.geometry().logical_bytes()).unwrap();
    let mut source = RandomSource::seeded(9);
    for _ in 0..2 * pages {
        ftl.write(u64::from(source.below(pages)) * 8192, 8192)
            .unwrap();
    }
    let requests: Vec<Request> = (0..20)
        .flat_map(|burst| {
            let gap = (Time(burst * 6_000_000_000), Span(1_000_000));
            poisson(&mut source, Kind::Write, 500, gap, (pages, 8192))
        })
        .collect();
    let analysis = mode.map(|mode| Analysis {
        resident: vec![(0, 100 * MIB)],
        ..kernel(mode, bytes_per_s, 0)
    });
    run(&mut ftl, &requests, analysis.as_ref(), Span(0)).unwrap()
}

#[test]
fn yielding_collection_speeds_analysis_without_more_writes() {
    let alone = aged(None, 1);
    let eager = aged(Some(Mode::Idle), MIB);
    let yielding = aged(Some(Mode::IdleCollectionYields), MIB);
    let amplification = |report: &Report| {
        let page = |n: u64| Span(n).as_secs_f64();
        page(report.counts.flash_pages()) / page(report.counts.host_pages)
    };
    for (name, report) in [("alone", &alone), ("first", &eager), ("yields", &yielding)] {
        println!(
            "collection {name}: analysed by {:.2} s, {:.2} MiB/s, amplification {:.3}, mean {:.3} p99 {:.3} ms, {:?}",
            seconds(report.analysed.finished),
            report.analysed.bytes_per_s() / 1048576.0,
            amplification(report),
            report.latency.mean.as_secs_f64() * 1e3,
            report.latency.p99.as_secs_f64() * 1e3,
            report.collected,
        );
    }
    assert!(yielding.analysed.finished < eager.analysed.finished);
    assert!(yielding.collected.yields > 0 && eager.collected.yields == 0);
    assert!(yielding.collected.forced_pages >= eager.collected.forced_pages);
    assert!(amplification(&yielding) <= amplification(&eager));
}

#[test]
fn device_run_is_deterministic() {
    assert_eq!(aged(Some(Mode::Idle), MIB), aged(Some(Mode::Idle), MIB));
}

#[test]
fn device_refuses_invalid_requests() {
    let mut ftl = device(FtlConfig::default());
    let capacity = ftl.geometry().logical_bytes();
    let request = Request {
        arrival: Time(0),
        kind: Kind::Read,
        offset: capacity,
        bytes: 1,
    };
    let source = RangeError {
        offset: capacity,
        bytes: 1,
        capacity,
    };
    assert_eq!(
        run(&mut ftl, &[request], None, Span(0)),
        Err(RunError::Request { index: 0, source })
    );
    let mut analysis = kernel(Mode::Idle, 0, 0);
    assert_eq!(
        run(&mut ftl, &[], Some(&analysis), Span(0)),
        Err(RunError::Zero {
            field: "bytes_per_s"
        })
    );
    analysis.bytes_per_s = 1;
    analysis.resident = vec![(capacity, 1)];
    assert_eq!(
        run(&mut ftl, &[], Some(&analysis), Span(0)),
        Err(RunError::Resident(source))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// For any requests: each request is served once and waits for at most one slice, all data is analysed once, and
    /// the analysis changes no written data.
    #[test]
    fn analysis_never_delays_by_more_than_a_slice(
        seed in any::<u64>(),
        mean_gap_us in 50..20_000u64,
        mebibytes_per_s in 1..300u64,
        writes in 0..150usize,
        reads in 0..150usize,
        mode in prop_oneof![
            Just(Mode::Idle),
            Just(Mode::IdleCollectionYields),
            (0..4u64).prop_map(|mib| Mode::AtWrite { dram_bytes: mib * MIB }),
        ],
    ) {
        let mut source = RandomSource::seeded(seed);
        let gap = (Time(0), Span(mean_gap_us * 1000));
        let mut requests = poisson(&mut source, Kind::Write, writes, gap, (10_000, 8192));
        requests.extend(poisson(&mut source, Kind::Read, reads, gap, (10_000, 8192)));
        let analysis = kernel(mode, mebibytes_per_s * MIB, 2 * MIB);
        let fresh = || {
            let mut ftl = device(FtlConfig { collect_below: 20, ..FtlConfig::default() });
            ftl.write(0, 100 * MIB).unwrap();
            ftl
        };
        let report = run(&mut fresh(), &requests, Some(&analysis), Span(0)).unwrap();
        let alone = run(&mut fresh(), &requests, None, Span(0)).unwrap();
        prop_assert_eq!(report.latency.requests, (writes + reads) as u64);
        prop_assert!(report.latency.preemption_max <= analysis.slice_time());
        prop_assert_eq!(report.analysed.bytes, 2 * MIB + writes as u64 * 8192);
        prop_assert_eq!(report.counts, alone.counts);
    }

    /// The requests are so far apart that they never overlap. The latency of each request grows by at most one slice
    /// and the read of one slice.
    #[test]
    fn lone_request_is_late_by_at_most_one_slice(
        seed in any::<u64>(),
        mebibytes_per_s in 1..300u64,
        at_write in any::<bool>(),
    ) {
        let mut source = RandomSource::seeded(seed);
        let requests: Vec<Request> = (1..60u64)
            .map(|i| Request {
                arrival: Time(i * 50_000_000 + source.next_u64() % 10_000_000),
                kind: if source.below(2) == 0 { Kind::Read } else { Kind::Write },
                offset: u64::from(source.below(10_000)) * 8192,
                bytes: 8192,
            })
            .collect();
        let mode = if at_write { Mode::AtWrite { dram_bytes: MIB } } else { Mode::Idle };
        let analysis = kernel(mode, mebibytes_per_s * MIB, 90 * MIB);
        let fresh = || {
            let mut ftl = device(FtlConfig::default());
            ftl.write(0, 100 * MIB).unwrap();
            ftl
        };
        let report = run(&mut fresh(), &requests, Some(&analysis), Span(0)).unwrap();
        let alone = run(&mut fresh(), &requests, None, Span(0)).unwrap();
        // At most four pages of 8 KiB, in the worst case on one chip: 75 µs and a transfer at 40 MiB/s each.
        let slice_read = 4 * (75_000 + 195_313);
        let bound = alone.latency.max.0 + analysis.slice_time().0 + slice_read;
        prop_assert!(report.latency.max.0 <= bound, "{:?} {:?}", report.latency, alone.latency);
    }
}
