//! Feasibility: decides whether a kernel can run at the place of staging without slowing the simulation (Eqs. 6 to 11 and 25 to 28).
//!
//! An infeasible case is a typed [`Infeasible`] with its reason in words; no function returns a negative time or rate.

use super::setting::{AnalysisStage, ApplicationRun};
use super::staging::{self, StagingConstraint};
use crate::units::{Bytes, BytesPerSecond, Seconds, at_most, significant};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::fmt;
use thiserror::Error;

/// Reason for which a case is infeasible.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema, Error)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Infeasible {
    /// More nodes share a device than a constraint of staging allows.
    #[error("{}", ratio_too_high(*.constraint, *.largest, *.ratio))]
    RatioTooHigh {
        /// Binding constraint.
        constraint: StagingConstraint,
        /// Ratio that the constraint allows; below 1 the application does not fit at all.
        largest: f64,
        /// Requested ratio.
        ratio: f64,
    },
    /// The link can't transfer the data that a device must send.
    #[error("the link is saturated: an interval's data takes it {} % of the interval", percent(*.share))]
    LinkSaturated {
        /// Share of the output interval that the transfer would take.
        share: f64,
    },
    /// The file system can't take the data written to it.
    #[error("the file system is saturated: an interval's data takes it {} % of the interval", percent(*.share))]
    FileSystemSaturated {
        /// Share of the output interval that the writes would take.
        share: f64,
    },
    /// Moving data alone fills the output interval.
    #[error(
        "no time is left to analyse: reading staged data takes {} % of the interval, writing to the file system {} %, the link {} %",
        percent(*.reading), percent(*.stage_out), percent(*.link)
    )]
    NoTimeLeft {
        /// Share of the output interval for moving staged data to the cores.
        reading: f64,
        /// Share of the output interval for writing to the file system.
        stage_out: f64,
        /// Share of the output interval for transferring data over the link.
        link: f64,
    },
    /// The kernel is too slow for the data that arrives.
    #[error("the kernel runs at {available} and would need more than {required}")]
    KernelTooSlow {
        /// Throughput that the kernel would need (Eqs. 11 and 28).
        #[serde(rename = "required_bytes_per_second")]
        required: BytesPerSecond,
        /// Throughput of the kernel.
        #[serde(rename = "available_bytes_per_second")]
        available: BytesPerSecond,
    },
    /// The run contains more work than time (Eqs. 18 and 33 would become negative).
    #[error("the work takes each device {needed}, and the run lasts {available}")]
    Overloaded {
        /// Time for which a device would be busy.
        #[serde(rename = "needed_seconds")]
        needed: Seconds,
        /// Duration of the run.
        #[serde(rename = "available_seconds")]
        available: Seconds,
    },
}

fn ratio_too_high(constraint: StagingConstraint, largest: f64, ratio: f64) -> String {
    // A user who sets exactly the reported ratio must not be refused again.
    let largest_text = at_most(largest);
    if largest < 1.0 {
        return format!(
            "does not fit: {constraint} allows only {largest_text} of one node for each"
        );
    }
    let ratio = significant(ratio);
    format!("{constraint} allows at most {largest_text} nodes for each, and this is {ratio}")
}

fn percent(share: f64) -> String {
    significant(share * 100.0)
}

/// Returns BW_busylink (below Eq. 9): a link's bandwidth when each of `nodes` nodes sends to its farthest peer, at a distance of `diameter`
/// hops over `links` links.
pub fn busy_link(
    idle_link: BytesPerSecond,
    links: f64,
    nodes: f64,
    diameter: f64,
) -> BytesPerSecond {
    idle_link * (links / (nodes * diameter))
}

/// Returns t_i on a busy network (Eqs. 9 and 27): the link time of one output interval.
pub fn link_time(run: &ApplicationRun, ratio: f64) -> Seconds {
    sent(run, ratio) / run.link
}

/// Returns m·d + R·t_iter·(α·λ_a + λ_c): the data that a link transfers for one device in one output interval.
fn sent(run: &ApplicationRun, ratio: f64) -> Bytes {
    run.flit * run.hops_to_io + run.staged_out() * ratio * run.interval
}

/// Returns T_SSD,k or T_a,node,k (Eqs. 11 and 28): a kernel must be faster than this throughput to be done before the next output. (Where
/// the paper's text names Eq. 12, it means Eq. 11.)
///
/// # Errors
/// A denominator that is not positive: the link or the file system is saturated, or no time is left of the output interval.
pub fn required_throughput(
    run: &ApplicationRun,
    stage: &AnalysisStage,
    ratio: f64,
) -> Result<BytesPerSecond, Infeasible> {
    let link = link_time(run, ratio) / run.interval;
    if link >= 1.0 {
        return Err(Infeasible::LinkSaturated { share: link });
    }
    let stage_out = run.staged_out() / run.file_system_share();
    if stage_out >= 1.0 {
        return Err(Infeasible::FileSystemSaturated { share: stage_out });
    }
    let arriving = run.analysis * ratio;
    let reading = arriving * stage.internal;
    let left = 1.0 - reading - stage_out - link;
    if left <= 0.0 {
        return Err(Infeasible::NoTimeLeft {
            reading,
            stage_out,
            link,
        });
    }
    Ok(arriving / left)
}

/// Returns the throughput that a kernel needs, if a kernel of this throughput keeps up at the ratio (Eqs. 5, 10 and 11; 24 and 28).
///
/// # Errors
/// The constraint of staging, the saturated resource or the throughput that keeps the kernel from keeping up.
pub fn keeps_up(
    run: &ApplicationRun,
    stage: &AnalysisStage,
    ratio: f64,
    throughput: BytesPerSecond,
) -> Result<BytesPerSecond, Infeasible> {
    staging::allows(run, stage, ratio)?;
    let required = required_throughput(run, stage, ratio)?;
    if throughput > required {
        return Ok(required);
    }
    Err(Infeasible::KernelTooSlow {
        required,
        available: throughput,
    })
}

/// Limit of the staging ratio at which a kernel keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RatioBound {
    /// A constraint of staging limits the ratio.
    Staging(StagingConstraint),
    /// The kernel's throughput limits the ratio, together with the other work of an output interval.
    Kernel,
    /// The number of nodes of the machine limits the ratio.
    Nodes,
}

impl fmt::Display for RatioBound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Staging(constraint) => constraint.fmt(formatter),
            Self::Kernel => formatter.write_str("kernel"),
            Self::Nodes => formatter.write_str("nodes"),
        }
    }
}

impl Serialize for RatioBound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Largest staging ratio at which a kernel keeps up, and the limit of the ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Largest {
    /// Largest ratio, not rounded.
    pub ratio: f64,
    /// Limit that determines the ratio.
    #[schemars(with = "String")]
    pub bound: RatioBound,
}

/// Returns the largest ratio at which a kernel of this throughput keeps up: Eqs. 5 and 24, and Eqs. 11 and 28 solved for R. The kernel
/// keeps up at every ratio from 1 to this ratio.
///
/// # Errors
/// The reason for which the kernel does not keep up even if each node has its own device.
pub fn largest_ratio(
    run: &ApplicationRun,
    stage: &AnalysisStage,
    throughput: BytesPerSecond,
) -> Result<Largest, Infeasible> {
    keeps_up(run, stage, 1.0, throughput)?;
    let staging = staging::largest_ratio(run, stage);
    let mut least = Largest {
        ratio: staging.ratio,
        bound: RatioBound::Staging(staging.constraint),
    };
    let kernel = kernel_ratio(run, stage, throughput);
    for (ratio, bound) in [(kernel, RatioBound::Kernel), (run.nodes, RatioBound::Nodes)] {
        if ratio < least.ratio {
            least = Largest { ratio, bound };
        }
    }
    // A kernel must be faster than required, so the exact solution is slightly too large, and rounding may increase it.
    let mut less = f64::EPSILON;
    let solved = least.ratio;
    while keeps_up(run, stage, least.ratio, throughput).is_err() && less < 1.0 {
        least.ratio = (solved * (1.0 - less)).max(1.0);
        less *= 2.0;
    }
    Ok(least)
}

/// Returns the R that solves R·λ_a / T = 1 − R·λ_a·p − N·δ/B_pfs − (m·d + R·δ·t_iter) / (B_link·t_iter).
fn kernel_ratio(run: &ApplicationRun, stage: &AnalysisStage, throughput: BytesPerSecond) -> f64 {
    let packet = (run.flit * run.hops_to_io) / run.link / run.interval;
    let left = 1.0 - run.staged_out() / run.file_system_share() - packet;
    let each = run.analysis * (throughput.inverse() + stage.internal) + run.staged_out() / run.link;
    left / each
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{device, node, run};
    use proptest::prelude::*;

    const MIB: f64 = 1_048_576.0;

    fn rate(megabytes: f64) -> BytesPerSecond {
        BytesPerSecond::new(megabytes * MIB)
    }

    /// By hand at R = 10, T = 10 MiB/s: 1700 KiB/s · 3600 s · (1/320 + 1/3276.8 + 1/10 + 1/136.533) s/MiB. 1700 KiB/s is
    /// 1.660 156 MiB/s, the share 10 · 240 · 1024 / 18 000 = 136.533 MiB/s.
    #[test]
    fn analysis_time_matches_hand_computation() {
        let time = analysis_time(&run(), &device(), 10.0, rate(10.0)).get();
        let expected = 1700.0 / 1024.0
            * 3600.0
            * (1.0 / 320.0 + 1.0 / 3276.8 + 0.1 + 18_000.0 / (10.0 * 245_760.0));
        assert!((time / expected - 1.0).abs() < 1e-12, "{time}");
        let time = analysis_time(&run(), &node(), 10.0, rate(10.0)).get();
        let expected = 1700.0 / 1024.0 * 3600.0 * (0.1 + 18_000.0 / (10.0 * 245_760.0));
        assert!((time / expected - 1.0).abs() < 1e-12, "{time}");
    }

    /// By hand: 85 KiB/s · 3600 s · 18 000 nodes at 240 · 2^20 KiB/s.
    #[test]
    fn checkpoint_time_matches_hand_computation() {
        let expected = 85.0 * 3600.0 * 18_000.0 / (240.0 * 1_048_576.0);
        assert!((checkpoint_time(&run()).get() / expected - 1.0).abs() < 1e-12);
    }

    /// By hand: (32 B · 3 + 10 · 3600 s · 255 · 1024 B/s) at 814 MiB/s.
    #[test]
    fn link_time_matches_hand_computation() {
        let expected = (96.0 + 36_000.0 * 255.0 * 1024.0) / (814.0 * MIB);
        assert!((link_time(&run(), 10.0).get() / expected - 1.0).abs() < 1e-12);
        assert_eq!(busy_link(rate(3000.0), 300.0, 100.0, 9.0), rate(1000.0));
    }

    /// By an independent calculation of Eqs. 11 and 28 for S3D: 0.849, 1.706 and 8.850 MiB/s on devices at ratios 5, 10 and
    /// 50; 1.696 and 55.961 MiB/s on nodes at 10 and 300.
    #[test]
    fn required_throughput_matches_independent_calculation() {
        for (stage, ratio, expected) in [
            (device(), 5.0, 0.849),
            (device(), 10.0, 1.706),
            (device(), 50.0, 8.850),
            (node(), 10.0, 1.696),
            (node(), 300.0, 55.961),
        ] {
            let required = required_throughput(&run(), &stage, ratio).unwrap().get() / MIB;
            assert!((required - expected).abs() < 6e-4, "{ratio}: {required}");
        }
    }

    #[test]
    fn saturated_resource_is_named() {
        let mut crowded = run();
        crowded.link = rate(1.0);
        let error = required_throughput(&crowded, &device(), 10.0).unwrap_err();
        assert!(
            matches!(error, Infeasible::LinkSaturated { share } if share > 2.0),
            "{error}"
        );
        assert!(
            error.to_string().starts_with("the link is saturated"),
            "{error}"
        );

        let mut slow = run();
        slow.file_system = rate(100.0);
        let error = required_throughput(&slow, &device(), 10.0).unwrap_err();
        assert!(
            matches!(error, Infeasible::FileSystemSaturated { .. }),
            "{error}"
        );

        let mut full = run();
        full.analysis = rate(4.0);
        let error = required_throughput(&full, &device(), 80.0).unwrap_err();
        assert!(
            matches!(error, Infeasible::NoTimeLeft { reading, .. } if reading > 1.0),
            "{error}"
        );
        assert!(error.to_string().contains("no time is left"), "{error}");
    }

    /// S3D with k-means: 0.91 MiB/s · (1 − 255/1024 · 18 000/245 760 − 96/(814 · 2^20 · 3600)) for each
    /// 170/1024 · (1 + 0.91 · (1/320 + 1/3276.8)) + 0.91 · 255/1024 / 814 MiB/s.
    #[test]
    fn largest_ratio_matches_hand_computation() {
        let (analysis, all) = (170.0 / 1024.0, 255.0 / 1024.0);
        let left = 1.0 - all * 18_000.0 / 245_760.0 - 96.0 / (814.0 * MIB * 3600.0);
        let each = analysis * (1.0 / 0.91 + 1.0 / 320.0 + 1.0 / 3276.8) + all / 814.0;
        let largest = largest_ratio(&run(), &device(), rate(0.91)).unwrap();
        assert!(
            (largest.ratio * each / left - 1.0).abs() < 1e-12,
            "{largest:?}"
        );
        assert_eq!(largest.bound, RatioBound::Kernel);
        let fast = largest_ratio(&run(), &device(), rate(416.0)).unwrap();
        assert_eq!(
            fast.bound,
            RatioBound::Staging(StagingConstraint::Endurance)
        );
        let slow = largest_ratio(&run(), &device(), rate(0.1)).unwrap_err();
        assert!(matches!(slow, Infeasible::KernelTooSlow { .. }), "{slow}");
    }

    #[test]
    fn slow_kernel_is_refused_with_required_rate() {
        assert!(keeps_up(&run(), &device(), 10.0, rate(1.81)).is_ok());
        let error = keeps_up(&run(), &device(), 10.0, rate(0.91)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the kernel runs at 954.2 kB/s and would need more than 1.789 MB/s"
        );
    }

    /// Returns t_a (Eq. 6; Eq. 25 without the internal transfers): the time in which a device reads and analyses the data of one interval
    /// and writes the result to its share of the file system.
    fn analysis_time(
        run: &ApplicationRun,
        stage: &AnalysisStage,
        ratio: f64,
        throughput: BytesPerSecond,
    ) -> Seconds {
        let arrived = run.analysis * ratio * run.interval;
        let share = run.file_system_share() * ratio;
        (stage.internal + throughput.inverse() + share.inverse() * run.reduction) * arrived
    }

    /// Returns t_c (Eqs. 7 and 26): the time in which a device writes the checkpoints of one interval to its share of the file system. The
    /// ratio R cancels.
    fn checkpoint_time(run: &ApplicationRun) -> Seconds {
        run.checkpoint * run.interval / run.file_system_share()
    }

    /// Returns t_a + t_c + t_i (Eq. 10, left side): the time for which a device is busy in each interval.
    fn busy_time(
        run: &ApplicationRun,
        stage: &AnalysisStage,
        ratio: f64,
        throughput: BytesPerSecond,
    ) -> Seconds {
        analysis_time(run, stage, ratio, throughput) + checkpoint_time(run) + link_time(run, ratio)
    }

    proptest! {
        /// Eq. 11 is Eq. 10 solved: a kernel faster than required ends in time, a slower kernel does not.
        #[test]
        fn required_throughput_solves_the_inequality(
            ratio in 1.0..300.0_f64, analysis in 0.001..1.0_f64, checkpoint in 0.0..1.0_f64, reduction in 0.01..2.0_f64,
        ) {
            let mut run = run();
            run.analysis = rate(analysis);
            run.checkpoint = rate(checkpoint);
            run.reduction = reduction;
            for stage in [device(), node()] {
                match required_throughput(&run, &stage, ratio) {
                    Ok(required) => {
                        prop_assert!(required.get() > 0.0);
                        prop_assert!(busy_time(&run, &stage, ratio, required * 1.0001) < run.interval);
                        prop_assert!(busy_time(&run, &stage, ratio, required * 0.9999) > run.interval);
                    }
                    Err(_) => prop_assert!(busy_time(&run, &stage, ratio, rate(1e12)) >= run.interval),
                }
            }
        }

        /// A kernel keeps up at the largest ratio and not above, whatever limits the ratio.
        #[test]
        fn largest_ratio_is_feasible_and_a_larger_one_is_not(
            throughput in 0.01..1000.0_f64, analysis in 0.0001..4.0_f64, checkpoint in 0.0..4.0_f64,
            reduction in 0.01..2.0_f64, nodes in 1.0..20_000.0_f64,
        ) {
            let mut run = run();
            run.analysis = rate(analysis);
            run.checkpoint = rate(checkpoint);
            run.reduction = reduction;
            run.nodes = nodes.floor();
            for stage in [device(), node()] {
                let throughput = rate(throughput);
                match largest_ratio(&run, &stage, throughput) {
                    Ok(Largest { ratio, bound }) => {
                        prop_assert!(ratio >= 1.0 && ratio <= run.nodes);
                        prop_assert!(keeps_up(&run, &stage, ratio, throughput).is_ok());
                        prop_assert!(keeps_up(&run, &stage, 1.0 + (ratio - 1.0) / 2.0, throughput).is_ok());
                        let more = keeps_up(&run, &stage, ratio * 1.0001, throughput);
                        prop_assert_eq!(more.is_ok(), bound == RatioBound::Nodes, "{:?} by {}", ratio, bound);
                    }
                    Err(_) => prop_assert!(keeps_up(&run, &stage, 1.0, throughput).is_err()),
                }
            }
        }

        /// The more nodes share a device, the faster a kernel must be.
        #[test]
        fn required_throughput_grows_with_the_ratio(ratio in 1.0..200.0_f64, more in 1.0..2.0_f64) {
            let lower = required_throughput(&run(), &device(), ratio);
            let higher = required_throughput(&run(), &device(), ratio * more);
            if let (Ok(lower), Ok(higher)) = (lower, higher) {
                prop_assert!(higher >= lower);
            }
        }
    }
}
