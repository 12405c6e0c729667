//! Energy of a run's output, by the place where the output is analysed (Eqs. 12 to 21 and 29 to 34).
//!
//! Energies are for one whole run and all devices. They are relative to the same run that writes to the file system and analyses no data
//! (the paper's baseline_PFS), so a negative energy is saved.

use super::corrections::Corrections;
use super::feasible::Infeasible;
use super::setting::{AnalysisStage, ApplicationRun};
use crate::units::{Bytes, BytesPerSecond, Joules, Seconds, Watts};
use schemars::JsonSchema;
use serde::Serialize;

/// Parts of a run's energy with output staged on devices or analysis nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct StageEnergy {
    /// Energy of moving data over the network: E_interconnect (Eqs. 13 and 29).
    #[serde(rename = "interconnect_joules")]
    pub interconnect: Joules,
    /// Energy of receiving data: E_sim-SSD, E_sim-a_node (Eqs. 15 and 30).
    #[serde(rename = "staging_joules")]
    pub staging: Joules,
    /// Energy of analysing: E_activeSSD, E_a_node (Eqs. 16 and 31); zero without analysis.
    #[serde(rename = "analysis_joules")]
    pub analysis: Joules,
    /// Energy of writing to the file system: E_SSD-PFS, E_a_node-PFS (Eqs. 17 and 32).
    #[serde(rename = "stage_out_joules")]
    pub stage_out: Joules,
    /// Energy of waiting: E_idleSSD, E_idle-a_node (Eqs. 18 and 33).
    #[serde(rename = "idle_joules")]
    pub idle: Joules,
    /// Energy that simulation nodes save by waiting less for I/O: E_iosaving (Eqs. 19 and 34). Negative where staging is slower than the
    /// file system.
    #[serde(rename = "io_saving_joules")]
    pub io_saving: Joules,
}

impl StageEnergy {
    /// Returns E_active-flash (Eqs. 12 and 14). The paper prints no total for analysis nodes; the same sum is assumed for them.
    pub fn total(&self) -> Joules {
        self.interconnect + self.staging + self.analysis + self.stage_out + self.idle
            - self.io_saving
    }
}

/// Returns data_total (above Eq. 15): all output data of a run.
pub fn total_data(run: &ApplicationRun) -> Bytes {
    run.produced() * run.nodes * run.duration
}

/// Returns the data of a run that is analysed.
fn analysed_data(run: &ApplicationRun) -> Bytes {
    run.analysis * run.nodes * run.duration
}

/// Returns E_interconnect (Eqs. 13 and 29): each byte moves to the place of staging, and the bytes that remain after analysis move to an
/// I/O node.
pub fn interconnect_energy(
    run: &ApplicationRun,
    stage: &AnalysisStage,
    corrections: &Corrections,
) -> Joules {
    let staged_out = run.staged_out() * run.nodes * run.duration;
    let energy = stage.energy_to_stage * total_data(run) + run.energy_to_io * staged_out;
    if corrections.hop_energy_per_bit {
        energy
    } else {
        energy / 8.0
    }
}

/// Returns t_transfer (above Eq. 15): the time in which all devices together receive the run's data.
pub fn staging_time(run: &ApplicationRun, stage: &AnalysisStage) -> Seconds {
    (stage.bandwidth.inverse() + run.link.inverse()) * total_data(run)
}

/// Returns E_sim-SSD, E_sim-a_node (Eqs. 15 and 30).
pub fn staging_energy(run: &ApplicationRun, stage: &AnalysisStage) -> Joules {
    stage.busy * staging_time(run, stage)
}

/// Returns t_activecompute (above Eq. 16): the time in which all devices together read and analyse the run's data.
pub fn active_time(
    run: &ApplicationRun,
    stage: &AnalysisStage,
    throughput: BytesPerSecond,
) -> Seconds {
    (stage.internal + throughput.inverse()) * analysed_data(run)
}

/// Returns the time in which all devices together write the run's data to the file system (in Eqs. 17 and 32). As printed, all data is
/// written, without the reduction α that feasibility and network assume (`docs/papers/active-flash-models.md`).
pub fn stage_out_time(run: &ApplicationRun, ratio: f64, corrections: &Corrections) -> Seconds {
    let bandwidth = if corrections.stage_out_at_share {
        run.file_system_share() * ratio
    } else {
        run.file_system
    };
    let mut pace = bandwidth.inverse();
    if corrections.stage_out_over_link {
        pace = pace + run.link.inverse();
    }
    pace * total_data(run)
}

/// Returns E_SSD-PFS, E_a_node-PFS (Eqs. 17 and 32).
pub fn stage_out_energy(
    run: &ApplicationRun,
    stage: &AnalysisStage,
    ratio: f64,
    corrections: &Corrections,
) -> Joules {
    stage.busy * stage_out_time(run, ratio, corrections)
}

/// Returns E_idleSSD, E_idle-a_node (Eqs. 18 and 33): the energy of all devices in the rest of the run. Receiving data is not part of the
/// run, since the simulation stands still during this time.
///
/// # Errors
/// [`Infeasible::Overloaded`] if the devices have more work than the run lasts.
pub fn idle_energy(
    run: &ApplicationRun,
    stage: &AnalysisStage,
    ratio: f64,
    busy: Seconds,
    corrections: &Corrections,
) -> Result<Joules, Infeasible> {
    let devices = run.nodes / ratio;
    let idle = run.duration * devices - busy;
    if corrections.overload_infeasible && idle < Seconds::ZERO {
        return Err(Infeasible::Overloaded {
            needed: busy / devices,
            available: run.duration,
        });
    }
    let energy = stage.idle * idle;
    let is_node = stage.kind == super::setting::StageKind::Node;
    if is_node && !corrections.idle_divided_once {
        return Ok(energy / ratio);
    }
    Ok(energy)
}

/// Returns T_iosaving (above Eqs. 19 and 34): the seconds per second of simulation that a node waits less for I/O when it writes to the
/// place of staging, not to the file system. Negative where the node waits longer.
pub fn io_saving_rate(run: &ApplicationRun, stage: &AnalysisStage, ratio: f64) -> f64 {
    let file_system = run.produced() * run.file_system_share().inverse();
    let staged = run.produced() * ratio * (stage.bandwidth.inverse() + run.link.inverse());
    file_system - staged
}

/// Returns E_iosaving (Eqs. 19 and 34), with the idle power of a *simulation* node, because simulation nodes wait less.
pub fn io_saving(run: &ApplicationRun, stage: &AnalysisStage, ratio: f64) -> Joules {
    run.waiting * (run.duration * (run.nodes * io_saving_rate(run, stage, ratio)))
}

/// Returns a run's energy with its output staged and analysed at `throughput`, or only staged (the paper's baseline_SSD) without a
/// throughput: Eqs. 12 to 19, and 29 to 34 for nodes.
///
/// # Errors
/// [`Infeasible::Overloaded`] as from [`idle_energy`].
pub fn stage_energy(
    run: &ApplicationRun,
    stage: &AnalysisStage,
    ratio: f64,
    throughput: Option<BytesPerSecond>,
    corrections: &Corrections,
) -> Result<StageEnergy, Infeasible> {
    let analysing = throughput.map_or(Seconds::ZERO, |throughput| {
        active_time(run, stage, throughput)
    });
    let busy = analysing + stage_out_time(run, ratio, corrections);
    Ok(StageEnergy {
        interconnect: interconnect_energy(run, stage, corrections),
        staging: staging_energy(run, stage),
        analysis: stage.busy * analysing,
        stage_out: stage_out_energy(run, stage, ratio, corrections),
        idle: idle_energy(run, stage, ratio, busy, corrections)?,
        io_saving: io_saving(run, stage, ratio),
    })
}

/// Returns the time in which all offline nodes together read the run's data from the file system and write results (in Eqs. 20 and 21).
fn offline_moving_time(run: &ApplicationRun) -> Seconds {
    let pace = run.file_system_share().inverse() + run.link.inverse();
    pace * analysed_data(run) * (1.0 + run.reduction)
}

/// Returns T_offline (Eq. 20): the time for which `offline_nodes` nodes analyse after a run, each with a node's share of the file system.
pub fn offline_time(
    run: &ApplicationRun,
    offline_nodes: f64,
    throughput: BytesPerSecond,
) -> Seconds {
    (analysed_data(run) / throughput + offline_moving_time(run)) / offline_nodes
}

/// Returns E_offline (Eq. 21): idle power while data moves, busy power while data is analysed. The number of nodes cancels. The power of
/// the network to these nodes is left out.
pub fn offline_energy(
    run: &ApplicationRun,
    busy: Watts,
    idle: Watts,
    throughput: BytesPerSecond,
) -> Joules {
    idle * offline_moving_time(run) + busy * (analysed_data(run) / throughput)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{device, node, run};
    use proptest::prelude::*;

    const MIB: f64 = 1_048_576.0;
    /// N · λ · t_sim of S3D in MiB: 18 000 · 86 400 s · 170 and 255 KiB/s.
    const ANALYSED: f64 = 18_000.0 * 86_400.0 * 170.0 / 1024.0;
    const PRODUCED: f64 = 18_000.0 * 86_400.0 * 255.0 / 1024.0;

    fn rate(megabytes: f64) -> BytesPerSecond {
        BytesPerSecond::new(megabytes * MIB)
    }

    fn close(value: f64, expected: f64) {
        assert!(
            (value / expected - 1.0).abs() < 1e-9,
            "{value} is not {expected}"
        );
    }

    #[test]
    fn energy_parts_match_hand_computation() {
        let corrected = Corrections::CORRECTED;
        close(total_data(&run()).get(), PRODUCED * MIB);
        close(
            interconnect_energy(&run(), &device(), &corrected).get(),
            15e-12 * 8.0 * PRODUCED * MIB,
        );
        close(
            staging_energy(&run(), &device()).get(),
            3.0 * PRODUCED * (1.0 / 400.0 + 1.0 / 814.0),
        );
        close(
            staging_energy(&run(), &node()).get(),
            190.0 * PRODUCED * (1.0 / 30_720.0 + 1.0 / 814.0),
        );
        close(
            (device().busy * active_time(&run(), &device(), rate(1.81))).get(),
            3.0 * ANALYSED * (1.0 / 320.0 + 1.0 / 3276.8 + 1.0 / 1.81),
        );
        close(
            (node().busy * active_time(&run(), &node(), rate(286.0))).get(),
            190.0 * ANALYSED / 286.0,
        );
        let share = 1_800.0 / 245_760.0;
        close(
            stage_out_energy(&run(), &device(), 10.0, &corrected).get(),
            3.0 * PRODUCED * (share + 1.0 / 814.0),
        );
        let saving = 255.0 / 1024.0 * (18_000.0 / 245_760.0 - 10.0 * (1.0 / 400.0 + 1.0 / 814.0));
        close(io_saving_rate(&run(), &device(), 10.0), saving);
        close(
            io_saving(&run(), &device(), 10.0).get(),
            18_000.0 * 86_400.0 * 63.0 * saving,
        );
        let busy = Seconds::new(1_800.0 * 400.0);
        close(
            idle_energy(&run(), &device(), 10.0, busy, &corrected)
                .unwrap()
                .get(),
            0.09 * 1_800.0 * 86_000.0,
        );
    }

    #[test]
    fn offline_time_and_energy_match_hand_computation() {
        let moving = 2.0 * ANALYSED * (18_000.0 / 245_760.0 + 1.0 / 814.0);
        close(
            offline_time(&run(), 100.0, rate(286.0)).get(),
            (ANALYSED / 286.0 + moving) / 100.0,
        );
        close(
            offline_energy(&run(), Watts::new(190.0), Watts::new(63.0), rate(286.0)).get(),
            190.0 * ANALYSED / 286.0 + 63.0 * moving,
        );
    }

    #[test]
    fn correction_switches_change_their_terms() {
        let with = |switch: &str| {
            let mut corrections = Corrections::CORRECTED;
            *corrections.switch(switch).unwrap() = false;
            corrections
        };
        let corrected = Corrections::CORRECTED;
        let share = stage_out_time(&run(), 10.0, &corrected).get();
        let whole = stage_out_time(&run(), 10.0, &with("stage-out-at-share")).get();
        close(share - whole, PRODUCED * (1_799.0 / 245_760.0));
        let unlinked = stage_out_time(&run(), 10.0, &with("stage-out-over-link")).get();
        close(share - unlinked, PRODUCED / 814.0);
        let bits = interconnect_energy(&run(), &device(), &corrected);
        close(
            bits / interconnect_energy(&run(), &device(), &with("hop-energy-per-bit")),
            8.0,
        );
        let idle = |corrections: &Corrections| {
            idle_energy(&run(), &node(), 10.0, Seconds::ZERO, corrections).unwrap()
        };
        close(idle(&corrected) / idle(&with("idle-divided-once")), 10.0);
    }

    /// S3D with k-means at ratio 10: by hand, each device works 1.8 times as long as the run lasts.
    #[test]
    fn overloaded_device_is_infeasible_without_negative_energy() {
        let kmeans = Some(rate(0.91));
        let error =
            stage_energy(&run(), &device(), 10.0, kmeans, &Corrections::CORRECTED).unwrap_err();
        assert!(
            matches!(error, Infeasible::Overloaded { needed, available } if needed > available)
        );
        assert!(error.to_string().contains("the run lasts 1 d"), "{error}");
        let printed = Corrections {
            overload_infeasible: false,
            ..Corrections::CORRECTED
        };
        let printed = stage_energy(&run(), &device(), 10.0, kmeans, &printed).unwrap();
        assert!(printed.idle < Joules::ZERO);
    }

    proptest! {
        /// Twice the nodes with twice the file system need twice the energy if each device stages out at its share of the bandwidth.
        #[test]
        fn energy_scales_with_the_machine(ratio in 1.0..25.0_f64, throughput in 20.0..500.0_f64) {
            let mut twice = run();
            twice.nodes *= 2.0;
            twice.file_system = twice.file_system * 2.0;
            for stage in [device(), node()] {
                let energy = |run: &ApplicationRun, corrections: &Corrections| {
                    stage_energy(run, &stage, ratio, Some(rate(throughput)), corrections).unwrap().total().get()
                };
                let mut printed = Corrections::CORRECTED;
                printed.stage_out_at_share = false;
                let small = energy(&run(), &Corrections::CORRECTED);
                let large = energy(&twice, &Corrections::CORRECTED);
                prop_assert!((large - 2.0 * small).abs() <= 1e-9 * small.abs());
                let (small, large) = (energy(&run(), &printed), energy(&twice, &printed));
                prop_assert!((large - 2.0 * small).abs() > 1e-6 * small.abs());
            }
        }

        /// The kernel of an overloaded stage does not keep up. In the other direction, overload and not keeping up differ only by the time
        /// for moving data.
        #[test]
        fn overloaded_stage_means_kernel_does_not_keep_up(ratio in 1.0..29.0_f64, throughput in 0.1..20.0_f64) {
            let throughput = rate(throughput);
            let energy = stage_energy(&run(), &device(), ratio, Some(throughput), &Corrections::CORRECTED);
            if energy.is_err() {
                prop_assert!(crate::model::feasible::keeps_up(&run(), &device(), ratio, throughput).is_err());
            }
        }

        /// A faster kernel never costs more energy.
        #[test]
        fn faster_kernel_never_needs_more_energy(throughput in 2.0..500.0_f64, more in 1.0..10.0_f64) {
            let energy = |throughput: f64| {
                stage_energy(&run(), &device(), 10.0, Some(rate(throughput)), &Corrections::CORRECTED)
                    .unwrap()
                    .total()
            };
            prop_assert!(energy(throughput * more) <= energy(throughput));
        }
    }
}
