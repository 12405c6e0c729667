//! Charts of the models: required throughput (the paper's Fig. 3b), energy (Fig. 4) and cost (Fig. 3a, Table 5).

use crate::bar::{Bar, BarChart, BarGroup, BarPart, ChartGrid};
use tidemill_plan::chart::{ChartAxis, Line, LineChart, ReferenceLine};
use tidemill_plan::model::{
    Approach, Corrections, Site, SiteReport, cost, feasible, report, staging,
};
use tidemill_plan::units::{BytesPerSecond, Money, significant, thousands};

/// SVG drawing of a chart, and the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chart {
    /// Name of the chart's file, such as `required-throughput-device.svg`.
    pub(crate) file_name: &'static str,
    /// SVG document of the chart.
    pub(crate) svg: String,
}

/// Staging ratios at which a curve gets a dot.
const MARKED: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0, 300.0, 1000.0];
/// Highest staging ratio shown in charts.
const HIGHEST_RATIO: f64 = 1000.0;
/// Number of points of a curve over the staging ratios.
const STEPS: i32 = 120;

/// Draws all charts of a site.
pub(crate) fn charts(site: &Site, corrections: &Corrections) -> Vec<Chart> {
    let report = report(site, corrections);
    let throughput = |approach| required_throughput(site, approach, corrections).to_svg();
    [
        (
            "required-throughput-device.svg",
            throughput(Approach::ActiveFlash),
        ),
        (
            "required-throughput-node.svg",
            throughput(Approach::AnalysisNode),
        ),
        ("energy.svg", energy(site, &report).to_svg()),
        ("energy-nodes.svg", energy_of_nodes(&report).to_svg()),
        ("infrastructure.svg", infrastructure(site).to_svg()),
        ("cost.svg", total_cost(&report).to_svg()),
    ]
    .map(|(file_name, svg)| Chart { file_name, svg })
    .into()
}

fn megabytes(rate: BytesPerSecond) -> f64 {
    rate / BytesPerSecond::new(1024.0 * 1024.0)
}

fn ratios() -> impl Iterator<Item = f64> {
    (0..=STEPS).map(|step| HIGHEST_RATIO.powf(f64::from(step) / f64::from(STEPS)))
}

/// Draws Fig. 3b: the throughput that each application needs, by ratio, and the throughput of each kernel. A curve ends where no throughput
/// is enough; dots mark ratios that the constraints of staging allow, too.
fn required_throughput(site: &Site, approach: Approach, corrections: &Corrections) -> LineChart {
    let stage = approach.stage(site);
    let lines = site.applications.iter().map(|application| {
        let run = site.run_of(application, None);
        let required = |ratio: f64| {
            let required = feasible::required_throughput(&run, &stage, ratio).ok()?;
            Some((ratio, megabytes(required)))
        };
        Line {
            label: application.name().to_owned(),
            points: ratios().filter_map(required).collect(),
            dots: MARKED
                .into_iter()
                .filter(|ratio| staging::allows(&run, &stage, *ratio).is_ok())
                .filter_map(required)
                .collect(),
        }
    });
    let levels = site.kernels.iter().map(|kernel| ReferenceLine {
        label: kernel.name().to_owned(),
        value: megabytes(approach.throughput(site, kernel, corrections)),
    });
    let lines: Vec<_> = lines.collect();
    let levels: Vec<_> = levels.collect();
    // A curve rises without bound just before it ends: the chart shows one decade above the fastest kernel.
    let fastest = levels.iter().map(|level| level.value).fold(1.0, f64::max);
    let slowest = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|point| point.1)
        .fold(fastest, f64::min);
    let decade = |value: f64| 10_f64.powf(value.log10().floor());
    LineChart {
        title: format!(
            "Throughput that a kernel needs on {approach}, {}",
            site.name
        ),
        x: ChartAxis::log("staging ratio (nodes a device; dots where staging allows it)")
            .from_to(1.0, HIGHEST_RATIO),
        y: ChartAxis::log("MiB/s (dashed: what each kernel has)")
            .from_to(decade(slowest), decade(fastest) * 10.0),
        lines,
        levels,
    }
}

/// Draws Fig. 4, on devices and offline: a chart for each application that fits.
fn energy(site: &Site, report: &SiteReport) -> ChartGrid {
    let names = ["active flash", "offline"].map(str::to_owned).to_vec();
    let charts = site.applications.iter().filter_map(|application| {
        let rows: Vec<_> = report
            .energy
            .iter()
            .filter(|row| row.application == application.name())
            .collect();
        let staged = rows
            .first()?
            .staged_only_joules
            .feasible()?
            .kilowatt_hours();
        let groups = rows.iter().map(|row| {
            let flash = row
                .active_flash
                .feasible()
                .map(|energy| energy.total_joules.kilowatt_hours());
            group(
                &row.kernel,
                &[flash, Some(row.offline_joules.kilowatt_hours())],
            )
        });
        Some(BarChart {
            title: application.name().to_owned(),
            y: ChartAxis::linear("kWh a run"),
            series: names.clone(),
            groups: groups.collect(),
            levels: vec![ReferenceLine {
                label: "staged only".into(),
                value: staged,
            }],
        })
    });
    ChartGrid {
        title: format!(
            "Energy of a run above writing to the file system without analysis, {}, ratio {} (×: infeasible)",
            report.site,
            significant(report.staging_ratio)
        ),
        columns: 2,
        charts: charts.collect(),
    }
}

/// Draws Fig. 4 for analysis nodes: all applications in one chart, a series for each kernel.
fn energy_of_nodes(report: &SiteReport) -> BarChart {
    let mut series: Vec<String> = Vec::new();
    let mut groups: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for row in &report.energy {
        if !series.contains(&row.kernel) {
            series.push(row.kernel.clone());
        }
        let energy = row
            .analysis_node
            .feasible()
            .map(|energy| energy.total_joules.kilowatt_hours());
        match groups.last_mut() {
            Some((application, energies)) if *application == row.application => {
                energies.push(energy)
            }
            _ => groups.push((row.application.clone(), vec![energy])),
        }
    }
    BarChart {
        title: format!(
            "Energy of a run with analysis nodes, {} (×: infeasible)",
            report.site
        ),
        y: ChartAxis::linear("kWh a run"),
        series,
        groups: groups
            .iter()
            .map(|(application, energies)| group(application, energies))
            .collect(),
        levels: vec![],
    }
}

/// Returns a group of bars of one part each, one bar for each series.
fn group(label: &str, values: &[Option<f64>]) -> BarGroup {
    let bars = values.iter().enumerate().map(|(series, &value)| Bar {
        label: None,
        parts: vec![BarPart { series, value }],
    });
    BarGroup {
        label: label.to_owned(),
        bars: bars.collect(),
    }
}

/// Draws Fig. 3a: the price of devices and nodes by ratio.
fn infrastructure(site: &Site) -> LineChart {
    let nodes = site.machine.nodes.get();
    let line = |approach: Approach| {
        let price = |ratio: f64| {
            (
                ratio,
                cost::infrastructure(nodes, ratio, approach.price(site)).get(),
            )
        };
        Line {
            label: match approach {
                Approach::ActiveFlash => format!("devices ({})", site.device.name),
                Approach::AnalysisNode => "analysis nodes with memory".to_owned(),
            },
            points: ratios().map(price).collect(),
            dots: MARKED.into_iter().map(price).collect(),
        }
    };
    LineChart {
        title: format!(
            "Price of staging for {} nodes, {}",
            thousands(&significant(nodes)),
            site.name
        ),
        x: ChartAxis::log("staging ratio (nodes a device)").from_to(1.0, HIGHEST_RATIO),
        y: ChartAxis::log(site.currency().to_string()),
        lines: Approach::ALL.map(line).into(),
        levels: vec![],
    }
}

/// Draws Table 5 for each kernel: the price of the infrastructure, and the bill for energy above it (or the saving below it).
fn total_cost(report: &SiteReport) -> BarChart {
    let mut groups: Vec<BarGroup> = Vec::new();
    for row in &report.cost {
        let thousand = |price: Money| row.total_price.map(|_| price.get() / 1000.0);
        let bar = Bar {
            label: Some(match row.approach {
                Approach::ActiveFlash => "flash".to_owned(),
                Approach::AnalysisNode => "nodes".to_owned(),
            }),
            parts: vec![
                BarPart {
                    series: 0,
                    value: thousand(row.infrastructure_price),
                },
                BarPart {
                    series: 1,
                    value: thousand(row.energy_price),
                },
            ],
        };
        match groups.last_mut() {
            Some(group) if group.label == row.kernel => group.bars.push(bar),
            _ => groups.push(BarGroup {
                label: row.kernel.clone(),
                bars: vec![bar],
            }),
        }
    }
    BarChart {
        title: format!(
            "Cost of all feasible applications by kernel, {}, ratio {}",
            report.site,
            significant(report.staging_ratio)
        ),
        y: ChartAxis::linear(format!("thousand {}", report.currency)),
        series: vec![
            "devices or nodes".into(),
            "energy of all runs (below zero: saved)".into(),
        ],
        groups,
        levels: vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_plan::model::jaguar as site;

    /// A machine that is a thousand times larger or smaller has charts as well.
    #[test]
    fn charts_of_other_machines_have_finite_numbers() {
        for factor in [1e-3, 1e3] {
            let mut site = site();
            site.device.capacity = site.device.capacity * factor;
            site.machine.file_system = site.machine.file_system * (1.0 / factor);
            for chart in charts(&site, &Corrections::default()) {
                let svg = &chart.svg;
                assert!(
                    !svg.contains("NaN") && !svg.contains("\"inf"),
                    "{}",
                    chart.file_name
                );
            }
        }
    }

    #[test]
    fn every_chart_is_complete_and_named_once() {
        let charts = charts(&site(), &Corrections::default());
        let mut names: Vec<_> = charts.iter().map(|chart| chart.file_name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 6);
        for chart in &charts {
            assert!(chart.svg.starts_with("<svg ") && chart.svg.ends_with("</svg>\n"));
            assert!(
                !chart.svg.contains("NaN") && !chart.svg.contains("inf\""),
                "{}",
                chart.file_name
            );
        }
    }

    #[test]
    fn chart_dots_exist_only_where_staging_is_feasible() {
        let chart = required_throughput(&site(), Approach::ActiveFlash, &Corrections::default());
        let dots = |name: &str| {
            let line = chart.lines.iter().find(|line| line.label == name).unwrap();
            line.dots.iter().map(|dot| dot.0).fold(0.0, f64::max)
        };
        assert!(
            (dots("GTC") - 10.0).abs() < 1e-9,
            "its endurance allows 10.4"
        );
        assert!(
            (dots("POP") - 20.0).abs() < 1e-9,
            "the bandwidth allows 29.3"
        );
        assert!(dots("CHIMERA") < 1.0, "it does not fit");
    }

    #[test]
    fn infeasible_pair_is_drawn_as_a_cross() {
        let report = report(&site(), &Corrections::default());
        let grid = energy(&site(), &report);
        let s3d = grid
            .charts
            .iter()
            .find(|chart| chart.title == "S3D")
            .unwrap();
        let kmeans = s3d
            .groups
            .iter()
            .find(|group| group.label == "k-means")
            .unwrap();
        assert_eq!(kmeans.bars[0].parts[0].value, None);
        assert_eq!(grid.charts.len(), 5, "CHIMERA is not drawn");
    }
}
