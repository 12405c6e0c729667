//! Sentences of the Active Flash paper that its equations can confirm or refute.

use crate::paper::{PaperClaim, application, kernel};
use crate::{prototype, published};
use tidemill_plan::model::report::{EnergyRow, energy_row, keeps_up};
use tidemill_plan::model::site::{SiteApplication, SiteKernel};
use tidemill_plan::model::{Approach, Corrections, Site, feasible, staging};
use tidemill_plan::units::{Bytes, Joules, Seconds, significant};

/// Returns all checked claims of the paper.
pub(crate) fn claims(site: &Site, corrections: &Corrections) -> Vec<PaperClaim> {
    let mut claims = vec![gtc_output(site)];
    claims.extend(throughput(site, corrections));
    claims.extend(ratios(site, corrections));
    claims.extend(energies(site, corrections));
    claims.extend(prototype_claims());
    claims
}

fn gtc_output(site: &Site) -> PaperClaim {
    let run = site.run_of(application(site, "GTC"), None);
    let hourly: Bytes = run.produced() * run.nodes * Seconds::new(3600.0);
    let terabyte: Bytes = "1 TiB".parse().expect("a terabyte is a size");
    PaperClaim {
        source: "§2",
        claim: "GTC on 18 000 nodes writes 30 TB an hour",
        computed: hourly.to_string(),
        holds: ((hourly / terabyte).round() - 30.0).abs() < 0.5,
    }
}

/// Returns the kernels that are too slow for an application at a ratio, whatever staging allows (Fig. 3b).
fn too_slow(
    site: &Site,
    name: &str,
    approach: Approach,
    ratio: f64,
    corrections: &Corrections,
) -> Vec<String> {
    let application = application(site, name);
    let slow = |kernel: &&SiteKernel| {
        let run = site.run_of(application, Some(kernel));
        let required = feasible::required_throughput(&run, &approach.stage(site), ratio);
        required.is_err()
            || required
                .is_ok_and(|required| approach.throughput(site, kernel, corrections) <= required)
    };
    site.kernels
        .iter()
        .filter(slow)
        .map(|kernel| kernel.name().to_owned())
        .collect()
}

fn throughput(site: &Site, corrections: &Corrections) -> Vec<PaperClaim> {
    let at = |ratio| too_slow(site, "S3D", Approach::ActiveFlash, ratio, corrections);
    let high = |approach| -> Vec<(String, Vec<String>)> {
        let names = published::APPLICATIONS
            .into_iter()
            .filter(|name| !matches!(*name, "S3D" | "CHIMERA"));
        names
            .map(|name| {
                (
                    name.to_owned(),
                    too_slow(site, name, approach, 300.0, corrections),
                )
            })
            .filter(|(_, kernels)| !kernels.is_empty())
            .collect()
    };
    let words = |slow: &[(String, Vec<String>)]| {
        if slow.is_empty() {
            return "every kernel is fast enough".to_owned();
        }
        let slow: Vec<_> = slow
            .iter()
            .map(|(name, kernels)| format!("{name} ({})", kernels.join(", ")))
            .collect();
        format!("too slow: {}", slow.join("; "))
    };
    let (flash, nodes) = (high(Approach::ActiveFlash), high(Approach::AnalysisNode));
    vec![
        PaperClaim {
            source: "Fig. 3b",
            claim: "S3D on devices at ratio 5: every kernel is fast enough",
            computed: format!("too slow: {}", none_or(&at(5.0))),
            holds: at(5.0).is_empty(),
        },
        PaperClaim {
            source: "Fig. 3b",
            claim: "S3D on devices at ratio 50: gzip, fingerprint and k-means are too slow",
            computed: format!("too slow: {}", none_or(&at(50.0))),
            holds: at(50.0) == ["gzip", "fingerprint", "k-means"],
        },
        PaperClaim {
            source: "Fig. 3b",
            claim: "ratio 300 does for every kernel on all applications that fit but S3D: on devices",
            computed: words(&flash),
            holds: flash.is_empty(),
        },
        PaperClaim {
            source: "Fig. 3b",
            claim: "ratio 300 does for every kernel on all applications that fit but S3D: on analysis nodes",
            computed: words(&nodes),
            holds: nodes.is_empty(),
        },
    ]
}

fn none_or(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// Returns the infeasible pairs of application and kernel at a ratio; only the name is listed if all kernels are infeasible.
fn infeasible(
    site: &Site,
    approach: Approach,
    ratio: f64,
    corrections: &Corrections,
) -> Vec<String> {
    let mut names = Vec::new();
    for application in &site.applications {
        let fails = |kernel: &&SiteKernel| {
            keeps_up(site, application, kernel, approach, ratio, corrections).is_err()
        };
        let kernels: Vec<_> = site
            .kernels
            .iter()
            .filter(fails)
            .map(SiteKernel::name)
            .collect();
        if kernels.len() == site.kernels.len() {
            names.push(application.name().to_owned());
        } else if !kernels.is_empty() {
            names.push(format!(
                "{} with {}",
                application.name(),
                kernels.join(", ")
            ));
        }
    }
    names
}

fn ratios(site: &Site, corrections: &Corrections) -> Vec<PaperClaim> {
    let row = |source, claim, approach, ratio, expected: &[&str]| {
        let without = infeasible(site, approach, ratio, corrections);
        PaperClaim {
            source,
            claim,
            computed: format!("infeasible: {}", none_or(&without)),
            holds: without == expected,
        }
    };
    let (flash, nodes) = (Approach::ActiveFlash, Approach::AnalysisNode);
    vec![
        row(
            "§5",
            "ratio 10 on devices: all but CHIMERA, and S3D with k-means",
            flash,
            10.0,
            &["CHIMERA", "S3D with k-means"],
        ),
        row(
            "§5, overall cost",
            "ratio 10 on devices: all combinations",
            flash,
            10.0,
            &[],
        ),
        row(
            "§5",
            "ratio 10 on analysis nodes: all kernels, all applications",
            nodes,
            10.0,
            &[],
        ),
        row(
            "Table 5",
            "ratio 30 on devices: none of the applications",
            flash,
            30.0,
            &published::APPLICATIONS,
        ),
        row(
            "Table 5",
            "ratio 30 on analysis nodes: without GTC (and CHIMERA)",
            nodes,
            30.0,
            &["CHIMERA", "GTC"],
        ),
        row(
            "Table 5",
            "ratio 300 on analysis nodes: without GTC, S3D (and CHIMERA)",
            nodes,
            300.0,
            &["CHIMERA", "S3D", "GTC"],
        ),
    ]
}

/// Energies of a row of Fig. 4 in which all totals are known, without infeasible cases.
struct Energies {
    name: String,
    staged_only: Joules,
    flash: Joules,
    offline: Joules,
    nodes: Joules,
}

fn feasible_energies(rows: &[EnergyRow]) -> Vec<Energies> {
    let row = |row: &EnergyRow| {
        Some(Energies {
            name: format!("{} with {}", row.application, row.kernel),
            staged_only: *row.staged_only_joules.feasible()?,
            flash: row.active_flash.feasible()?.total_joules,
            offline: row.offline_joules,
            nodes: row.analysis_node.feasible()?.total_joules,
        })
    };
    rows.iter().filter_map(row).collect()
}

fn energies(site: &Site, corrections: &Corrections) -> Vec<PaperClaim> {
    let fits = |application: &&SiteApplication| {
        let run = site.run_of(application, None);
        staging::largest_ratio(&run, &site.device_stage()).ratio >= 1.0
    };
    let mut rows = Vec::new();
    for application in site.applications.iter().filter(fits) {
        let kernels = site.kernels.iter();
        rows.extend(kernels.map(|kernel| energy_row(site, application, kernel, corrections)));
    }
    let rows = feasible_energies(&rows);
    let against = |claim, fails: &dyn Fn(&Energies) -> bool| {
        let failing: Vec<_> = rows
            .iter()
            .filter(|row| fails(row))
            .map(|row| row.name.clone())
            .collect();
        PaperClaim {
            source: "Fig. 4",
            claim,
            computed: if failing.is_empty() {
                format!("all {} feasible pairs", rows.len())
            } else {
                let holding = rows.len() - failing.len();
                format!(
                    "{holding} of {} feasible pairs; not {}",
                    rows.len(),
                    failing.join(", ")
                )
            },
            holds: failing.is_empty(),
        }
    };
    let saving = against(
        "analysis on devices saves energy for almost all pairs but those of VULCAN",
        &|row| row.flash >= Joules::ZERO,
    );
    // "Almost all" allows exceptions: at most one pair in ten of the other applications.
    let others = rows.iter().filter(|row| !row.name.starts_with("VULCAN"));
    let (wasting, all) = others.fold((0, 0), |(wasting, all), row| {
        (wasting + usize::from(row.flash >= Joules::ZERO), all + 1)
    });
    let mut claims = vec![
        PaperClaim {
            holds: wasting * 10 <= all,
            ..saving
        },
        against(
            "analysis on devices takes more energy than only staging there",
            &|row| row.flash <= row.staged_only,
        ),
        against(
            "analysis offline takes more energy than on devices",
            &|row| row.offline <= row.flash,
        ),
        against(
            "analysis nodes take more energy than offline at ratio 10",
            &|row| row.nodes <= row.offline,
        ),
    ];
    claims.extend(fingerprint_of_s3d(site, corrections));
    claims
}

fn fingerprint_of_s3d(site: &Site, corrections: &Corrections) -> Vec<PaperClaim> {
    let row = energy_row(
        site,
        application(site, "S3D"),
        kernel(site, "fingerprint"),
        corrections,
    );
    let rows = feasible_energies(&[row]);
    let saved = |claim, least: f64, other: fn(&Energies) -> Joules| {
        let saved = rows
            .first()
            .map(|row| (other(row) - row.flash).kilowatt_hours());
        PaperClaim {
            source: "Fig. 4",
            claim,
            computed: saved.map_or("infeasible".into(), |saved| {
                format!("{} kWh", significant(saved))
            }),
            holds: saved.is_some_and(|saved| saved > least),
        }
    };
    vec![
        saved(
            "S3D with fingerprint on devices saves more than 800 kWh a run over offline",
            800.0,
            |row| row.offline,
        ),
        saved(
            "S3D with fingerprint on devices saves more than 2500 kWh a run over analysis nodes",
            2500.0,
            |row| row.nodes,
        ),
    ]
}

/// Returns a claim that values over the kernels of Table 7 are within a range of whole numbers.
fn between(claim: &'static str, values: &[f64], low: f64, high: f64, unit: &str) -> PaperClaim {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    PaperClaim {
        source: "§6",
        claim,
        computed: format!("{least:.1} to {most:.1}{unit}"),
        holds: least.round() >= low && most.round() <= high,
    }
}

fn prototype_claims() -> Vec<PaperClaim> {
    let number = |text: &str| -> f64 { text.parse().expect("published numbers are numbers") };
    let rows = &published::TABLE_7;
    let faster = rows
        .each_ref()
        .map(|row| number(row.host.throughput) / number(row.device.throughput));
    let cheaper = rows
        .each_ref()
        .map(|row| number(row.host.energy) / number(row.device.energy));
    let piece = published::PREEMPTION_PIECE
        .parse()
        .expect("a published size");
    let delays = rows.each_ref().map(|row| {
        let throughput = format!("{} MiB/s", row.device.throughput);
        prototype::mean_delay(piece, throughput.parse().expect("a published rate")).get() * 1e3
    });
    vec![
        between(
            "the host is 7 to 14 times as fast as the prototype",
            &faster,
            7.0,
            14.0,
            " times",
        ),
        between(
            "the prototype takes 5 to 9 times less energy than the host",
            &cheaper,
            5.0,
            9.0,
            " times",
        ),
        between(
            "requests wait 3 to 8 ms on average with 32 KB pieces",
            &delays,
            3.0,
            8.0,
            " ms",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::TABLE_5;
    use tidemill_plan::model::jaguar as site;

    /// These claims of the paper don't hold: two contradict another sentence of the paper, and one confuses the two halves of Fig. 3b.
    #[test]
    fn claims_of_the_paper_that_the_model_refutes_are_known() {
        let not: Vec<_> = claims(&site(), &Corrections::default())
            .into_iter()
            .filter(|claim| !claim.holds)
            .map(|claim| claim.claim)
            .collect();
        assert_eq!(
            not,
            [
                "ratio 300 does for every kernel on all applications that fit but S3D: on devices",
                "ratio 10 on devices: all combinations",
                "ratio 10 on analysis nodes: all kernels, all applications",
            ]
        );
    }

    #[test]
    fn fingerprint_of_s3d_has_the_published_savings() {
        let claims = fingerprint_of_s3d(&site(), &TABLE_5);
        assert_eq!(claims[0].computed, "840.9 kWh");
        assert_eq!(claims[1].computed, "2589 kWh");
    }
}
