//! Staging ratios: computes how many simulation nodes may share one device or analysis node (Eqs. 1 to 5 and 22 to 24).
//!
//! A *staging ratio* R is a number of simulation nodes for each device. Below 1 the application does not fit: one node's output is too much
//! for a device.

use super::feasible::Infeasible;
use super::setting::{AnalysisStage, ApplicationRun, StageKind};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// Constraint that limits a staging ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StagingConstraint {
    /// Staged output must fit into the device.
    Capacity,
    /// Staging must not be slower than the file system.
    Bandwidth,
    /// A checkpoint must be read back within a share of the output interval.
    Restart,
    /// The device must not wear out before the next upgrade.
    Endurance,
}

impl fmt::Display for StagingConstraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Capacity => "capacity",
            Self::Bandwidth => "bandwidth",
            Self::Restart => "restart",
            Self::Endurance => "endurance",
        })
    }
}

/// Constraint and the largest staging ratio that the constraint allows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct StagingLimit {
    /// The constraint.
    pub constraint: StagingConstraint,
    /// Largest ratio that the constraint allows, not rounded.
    pub ratio: f64,
}

/// Returns R_capacity (Eq. 1; Eq. 22 with memory for flash): the number of nodes for which a device can hold the output of one interval,
/// with the checkpoints that are kept.
pub fn capacity_ratio(run: &ApplicationRun, stage: &AnalysisStage) -> f64 {
    let held = (run.analysis + run.checkpoint * run.checkpoints_kept) * run.interval;
    stage.capacity / (held * run.overprovisioning)
}

/// Returns R_bandwidth (Eq. 2; Eq. 23 with memory's bandwidth): all devices together must receive data no slower than the file system does.
pub fn bandwidth_ratio(run: &ApplicationRun, stage: &AnalysisStage) -> f64 {
    stage.bandwidth / run.file_system_share()
}

/// Returns R_restart (Eq. 3): a checkpoint of R nodes is read within `restart_fraction` of an interval. Returns `None` without checkpoints.
pub fn restart_ratio(run: &ApplicationRun, stage: &AnalysisStage) -> Option<f64> {
    (run.checkpoint.get() > 0.0).then(|| stage.bandwidth * run.restart_fraction / run.checkpoint)
}

/// Returns R_endurance (Eq. 4): the writes of R nodes must not wear the device out before the next upgrade. `None` if it does not wear.
pub fn endurance_ratio(run: &ApplicationRun, stage: &AnalysisStage) -> Option<f64> {
    let written = run.produced() * run.upgrade_interval;
    stage.endurance.map(|endurance| endurance / written)
}

/// Returns the ratios whose minimum is R_SSD (Eq. 5) or R_a,node (Eq. 24), in the order of Table 4.
pub fn limits(run: &ApplicationRun, stage: &AnalysisStage) -> Vec<StagingLimit> {
    let limit = |constraint, ratio| StagingLimit { constraint, ratio };
    let mut limits = vec![
        limit(StagingConstraint::Capacity, capacity_ratio(run, stage)),
        limit(StagingConstraint::Bandwidth, bandwidth_ratio(run, stage)),
    ];
    if stage.kind == StageKind::Device {
        limits.extend(
            endurance_ratio(run, stage).map(|ratio| limit(StagingConstraint::Endurance, ratio)),
        );
        limits.extend(
            restart_ratio(run, stage).map(|ratio| limit(StagingConstraint::Restart, ratio)),
        );
    }
    limits
}

/// Returns R_SSD (Eq. 5) or R_a,node (Eq. 24): the largest ratio that every constraint allows, and the binding constraint.
pub fn largest_ratio(run: &ApplicationRun, stage: &AnalysisStage) -> StagingLimit {
    limits(run, stage)
        .into_iter()
        .min_by(|left, right| left.ratio.total_cmp(&right.ratio))
        .expect("capacity and bandwidth always limit")
}

/// Checks that all constraints of staging allow a ratio.
///
/// # Errors
/// [`Infeasible::RatioTooHigh`] with the constraint that limits the ratio.
pub fn allows(run: &ApplicationRun, stage: &AnalysisStage, ratio: f64) -> Result<(), Infeasible> {
    let StagingLimit {
        constraint,
        ratio: largest,
    } = largest_ratio(run, stage);
    if ratio <= largest {
        return Ok(());
    }
    Err(Infeasible::RatioTooHigh {
        constraint,
        largest,
        ratio,
    })
}

/// Returns the whole number of devices to buy so that no device serves more than `ratio` of the `nodes` nodes.
pub fn whole_devices(nodes: f64, ratio: f64) -> f64 {
    (nodes / ratio).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{device, node, run};
    use crate::units::Bytes;
    use proptest::prelude::*;

    /// By hand: 64 · 2^20 KiB / (1.5 · (170 + 2 · 85) KiB/s · 3600 s) = 67 108 864 / 1 836 000.
    #[test]
    fn capacity_ratio_matches_hand_computation() {
        let ratio = capacity_ratio(&run(), &device());
        assert!((ratio - 67_108_864.0 / 1_836_000.0).abs() < 1e-9, "{ratio}");
    }

    /// By hand: 400 MiB/s · 18 000 / (240 · 1024 MiB/s) = 29.296 875; 30 · 1024 · 18 000 / (240 · 1024) = 2250.
    #[test]
    fn bandwidth_ratio_matches_hand_computation() {
        assert!((bandwidth_ratio(&run(), &device()) - 29.296_875).abs() < 1e-9);
        assert!((bandwidth_ratio(&run(), &node()) - 2250.0).abs() < 1e-9);
    }

    /// By hand: 0.05 · 409 600 KiB/s / 85 KiB/s.
    #[test]
    fn restart_ratio_matches_hand_computation() {
        let ratio = restart_ratio(&run(), &device()).unwrap();
        assert!((ratio - 20_480.0 / 85.0).abs() < 1e-9, "{ratio}");
        let mut without = run();
        without.checkpoint = crate::units::BytesPerSecond::ZERO;
        assert_eq!(restart_ratio(&without, &device()), None);
    }

    /// By hand: 300 · 2^30 KiB / (255 KiB/s · 63 072 000 s) = 20.0283.
    #[test]
    fn endurance_ratio_matches_hand_computation() {
        let ratio = endurance_ratio(&run(), &device()).unwrap();
        let expected = 300.0 * 1_073_741_824.0 / (255.0 * 63_072_000.0);
        assert!((ratio - expected).abs() < 1e-9, "{ratio}");
        assert_eq!(endurance_ratio(&run(), &node()), None);
    }

    #[test]
    fn staging_reports_the_limiting_constraint() {
        let least = largest_ratio(&run(), &device());
        assert_eq!(least.constraint, StagingConstraint::Endurance);
        assert_eq!(allows(&run(), &device(), 20.0), Ok(()));
        let refused = allows(&run(), &device(), 21.0).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "endurance allows at most 20.02 nodes for each, and this is 21"
        );
        assert_eq!(
            largest_ratio(&run(), &node()).constraint,
            StagingConstraint::Capacity
        );
    }

    #[test]
    fn application_that_does_not_fit_is_reported() {
        let mut big = run();
        big.analysis = big.analysis * 100.0;
        let refused = allows(&big, &device(), 10.0).unwrap_err();
        assert!(refused.to_string().starts_with("does not fit"), "{refused}");
    }

    proptest! {
        /// More data never allows a higher ratio, and a bigger device never allows a lower ratio.
        #[test]
        fn staging_ratios_are_monotone_in_data_and_device_size(more in 1.0..100.0_f64) {
            let mut busier = run();
            busier.analysis = busier.analysis * more;
            busier.checkpoint = busier.checkpoint * more;
            let mut bigger = device();
            bigger.capacity = bigger.capacity * more;
            bigger.endurance = bigger.endurance.map(|endurance: Bytes| endurance * more);
            for (fewer, then) in limits(&busier, &device()).iter().zip(limits(&run(), &device())) {
                prop_assert!(fewer.ratio <= then.ratio);
            }
            for (grown, then) in limits(&run(), &bigger).iter().zip(limits(&run(), &device())) {
                prop_assert!(grown.ratio >= then.ratio);
            }
        }

        /// A whole number of devices never serves more nodes than the ratio allows.
        #[test]
        fn whole_devices_serve_no_more_nodes_than_ratio(ratio in 1.0..20_000.0_f64) {
            prop_assert!(18_000.0 / whole_devices(18_000.0, ratio) <= ratio);
        }
    }
}
