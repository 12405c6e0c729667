//! Report of the equations for a site: staging ratios, feasibility, energy and cost, as data and as text.

use super::corrections::Corrections;
use super::cost;
use super::energy::{self, StageEnergy};
use super::feasible::{self, Infeasible, Largest};
use super::setting::AnalysisStage;
use super::site::{Site, SiteApplication, SiteKernel};
use super::staging::{self, StagingConstraint, StagingLimit};
use super::text::{ReportPart, TextTable, decimals};
use crate::units::{BytesPerSecond, Currency, Joules, Money, at_most, significant};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// Place where output is analysed while the simulation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Approach {
    /// Output is analysed on the devices on which it is staged.
    ActiveFlash,
    /// Output is analysed on separate nodes, from their memory.
    AnalysisNode,
}

impl Approach {
    /// Both approaches to analysis.
    pub const ALL: [Self; 2] = [Self::ActiveFlash, Self::AnalysisNode];

    /// Returns the device or node that stages output with this approach on a site.
    pub fn stage(self, site: &Site) -> AnalysisStage {
        match self {
            Self::ActiveFlash => site.device_stage(),
            Self::AnalysisNode => site.node_stage(),
        }
    }

    /// Returns the throughput of a kernel with this approach on a site.
    pub fn throughput(
        self,
        site: &Site,
        kernel: &SiteKernel,
        corrections: &Corrections,
    ) -> BytesPerSecond {
        match self {
            Self::ActiveFlash => kernel.device,
            Self::AnalysisNode => site.node_throughput(kernel, corrections),
        }
    }

    /// Returns the price of one device or node of this approach.
    pub fn price(self, site: &Site) -> Money {
        match self {
            Self::ActiveFlash => site.device_price(),
            Self::AnalysisNode => site.node_price(),
        }
    }
}

impl fmt::Display for Approach {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ActiveFlash => "active flash",
            Self::AnalysisNode => "analysis nodes",
        })
    }
}

/// Result of a model, or the reason for which the case is infeasible.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModelResult<T> {
    /// Result of a feasible case.
    Feasible(T),
    /// Reason for which the case is infeasible.
    Infeasible(Infeasible),
}

impl<T> ModelResult<T> {
    /// Returns the result, if the case is feasible.
    pub fn feasible(&self) -> Option<&T> {
        match self {
            Self::Feasible(value) => Some(value),
            Self::Infeasible(_) => None,
        }
    }

    /// Returns the reason, if the case is infeasible.
    pub fn infeasible(&self) -> Option<&Infeasible> {
        match self {
            Self::Feasible(_) => None,
            Self::Infeasible(why) => Some(why),
        }
    }
}

impl<T> From<Result<T, Infeasible>> for ModelResult<T> {
    fn from(result: Result<T, Infeasible>) -> Self {
        match result {
            Ok(value) => Self::Feasible(value),
            Err(why) => Self::Infeasible(why),
        }
    }
}

/// Number of nodes that may share a device (Eqs. 1 to 5, 22 to 24), for one application and approach.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct StagingRow {
    /// Name of the application.
    pub application: String,
    /// Approach to staging.
    pub approach: Approach,
    /// Largest ratio that each constraint allows.
    pub limits: Vec<StagingLimit>,
    /// Constraint that limits the ratio.
    pub binding: StagingConstraint,
    /// Largest staging ratio; below 1 the application does not fit.
    pub largest_ratio: f64,
    /// Number of devices or nodes at the largest ratio, if the application fits.
    pub devices: Option<f64>,
}

/// Whether a kernel keeps up at the site's staging ratio (Eqs. 5 to 11, 24 to 28).
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FeasibilityRow {
    /// Name of the application.
    pub application: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Approach to analysis.
    pub approach: Approach,
    /// Throughput of the kernel with this approach, in bytes per second.
    pub available_bytes_per_second: BytesPerSecond,
    /// Required throughput, or the reason for which the kernel can't keep up.
    pub required_bytes_per_second: ModelResult<BytesPerSecond>,
    /// Largest ratio at which the kernel keeps up, or the reason for which it keeps up at no ratio.
    pub largest_ratio: ModelResult<Largest>,
}

/// Energy of one run, all devices and nodes together, relative to a run that writes to the file system and analyses no data (Eqs. 12 to 21,
/// 29 to 34).
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EnergyRow {
    /// Name of the application.
    pub application: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Energy of staging on devices without analysis: baseline_SSD.
    pub staged_only_joules: ModelResult<Joules>,
    /// Energy of analysis on devices.
    pub active_flash: ModelResult<RunEnergy>,
    /// Energy of offline analysis after the run.
    pub offline_joules: Joules,
    /// Number of offline nodes that would have to work all the time to analyse run after run.
    pub offline_nodes: f64,
    /// Energy of analysis on analysis nodes.
    pub analysis_node: ModelResult<RunEnergy>,
}

/// Energy of a run and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct RunEnergy {
    /// Total energy of the run.
    pub total_joules: Joules,
    /// Parts of the run's energy.
    pub parts: StageEnergy,
}

/// Cost of running a kernel on all feasible applications (Table 5).
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CostRow {
    /// Name of the kernel.
    pub kernel: String,
    /// Approach to analysis.
    pub approach: Approach,
    /// Number of devices or nodes to buy.
    pub devices: f64,
    /// Price of the devices or nodes.
    pub infrastructure_price: Money,
    /// Price of the energy of all paid runs; negative when staging saves energy.
    pub energy_price: Money,
    /// Sum of infrastructure and energy price; `None` if no application is feasible, so there is nothing to pay for.
    pub total_price: Option<Money>,
    /// Names of the applications with which the kernel keeps up.
    pub applications: Vec<String>,
    /// Names of the infeasible applications.
    pub excluded: Vec<String>,
}

/// All results of the models for a site.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SiteReport {
    /// Name of the site.
    pub site: String,
    /// Corrections used for the results.
    pub corrections: Corrections,
    /// Currency of all prices.
    pub currency: Currency,
    /// Staging ratio at which feasibility, energy and cost are computed.
    pub staging_ratio: f64,
    /// Largest staging ratios, by application and approach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub staging: Vec<StagingRow>,
    /// Kernels that keep up, by application and approach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feasibility: Vec<FeasibilityRow>,
    /// Energies of a run, by application and kernel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub energy: Vec<EnergyRow>,
    /// Costs, by kernel and approach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cost: Vec<CostRow>,
}

/// Computes all results of the models for a site.
pub fn report(site: &Site, corrections: &Corrections) -> SiteReport {
    let ratio = site.staging_ratio();
    let mut staging = Vec::new();
    let mut feasibility = Vec::new();
    let mut energy = Vec::new();
    for application in &site.applications {
        staging.extend(Approach::ALL.map(|approach| staging_row(site, application, approach)));
        for kernel in &site.kernels {
            let rows = Approach::ALL.map(|approach| FeasibilityRow {
                application: application.name().to_owned(),
                kernel: kernel.name().to_owned(),
                approach,
                available_bytes_per_second: approach.throughput(site, kernel, corrections),
                required_bytes_per_second: keeps_up(
                    site,
                    application,
                    kernel,
                    approach,
                    ratio,
                    corrections,
                )
                .into(),
                largest_ratio: largest_ratio(site, application, kernel, approach, corrections)
                    .into(),
            });
            feasibility.extend(rows);
            energy.push(energy_row(site, application, kernel, corrections));
        }
    }
    let cost = site.kernels.iter().flat_map(|kernel| {
        Approach::ALL.map(|approach| cost_row(site, kernel, approach, ratio, corrections))
    });
    SiteReport {
        site: site.name.get().to_owned(),
        corrections: *corrections,
        currency: site.currency().clone(),
        staging_ratio: ratio,
        staging,
        feasibility,
        energy,
        cost: cost.collect(),
    }
}

fn staging_row(site: &Site, application: &SiteApplication, approach: Approach) -> StagingRow {
    let run = site.run_of(application, None);
    let stage = approach.stage(site);
    let StagingLimit { constraint, ratio } = staging::largest_ratio(&run, &stage);
    StagingRow {
        application: application.name().to_owned(),
        approach,
        limits: staging::limits(&run, &stage),
        binding: constraint,
        largest_ratio: ratio,
        devices: (ratio >= 1.0).then(|| staging::whole_devices(run.nodes, ratio)),
    }
}

/// Returns the required throughput if a kernel keeps up with an application at a ratio; see [`feasible::keeps_up`].
///
/// # Errors
/// Errors of [`feasible::keeps_up`].
pub fn keeps_up(
    site: &Site,
    application: &SiteApplication,
    kernel: &SiteKernel,
    approach: Approach,
    ratio: f64,
    corrections: &Corrections,
) -> Result<BytesPerSecond, Infeasible> {
    let run = site.run_of(application, Some(kernel));
    let throughput = approach.throughput(site, kernel, corrections);
    feasible::keeps_up(&run, &approach.stage(site), ratio, throughput)
}

/// Returns the largest ratio at which a kernel keeps up with an application; see [`feasible::largest_ratio`].
///
/// # Errors
/// Errors of [`feasible::largest_ratio`].
pub fn largest_ratio(
    site: &Site,
    application: &SiteApplication,
    kernel: &SiteKernel,
    approach: Approach,
    corrections: &Corrections,
) -> Result<Largest, Infeasible> {
    let run = site.run_of(application, Some(kernel));
    let throughput = approach.throughput(site, kernel, corrections);
    feasible::largest_ratio(&run, &approach.stage(site), throughput)
}

/// Returns the energy of one run at a ratio if the kernel keeps up. Without a kernel, output is only staged and not analysed.
///
/// # Errors
/// The reason for which the kernel does not keep up.
pub fn run_energy(
    site: &Site,
    application: &SiteApplication,
    kernel: Option<&SiteKernel>,
    approach: Approach,
    ratio: f64,
    corrections: &Corrections,
) -> Result<RunEnergy, Infeasible> {
    let run = site.run_of(application, kernel);
    let stage = approach.stage(site);
    let throughput = kernel.map(|kernel| approach.throughput(site, kernel, corrections));
    staging::allows(&run, &stage, ratio)?;
    // Without this correction the energy of a kernel that is too slow is computed nevertheless, as in Table 5 of the paper.
    if let Some(throughput) = throughput
        && corrections.overload_infeasible
    {
        feasible::keeps_up(&run, &stage, ratio, throughput)?;
    }
    let parts = energy::stage_energy(&run, &stage, ratio, throughput, corrections)?;
    Ok(RunEnergy {
        total_joules: parts.total(),
        parts,
    })
}

/// Returns the energies of an application with a kernel, at the site's staging ratio.
pub fn energy_row(
    site: &Site,
    application: &SiteApplication,
    kernel: &SiteKernel,
    corrections: &Corrections,
) -> EnergyRow {
    let ratio = site.staging_ratio();
    let run = site.run_of(application, Some(kernel));
    let node = &site.analysis_node;
    let throughput = site.node_throughput(kernel, corrections);
    let staged =
        |kernel, approach| run_energy(site, application, kernel, approach, ratio, corrections);
    EnergyRow {
        application: application.name().to_owned(),
        kernel: kernel.name().to_owned(),
        staged_only_joules: staged(None, Approach::ActiveFlash)
            .map(|energy| energy.total_joules)
            .into(),
        active_flash: staged(Some(kernel), Approach::ActiveFlash).into(),
        offline_joules: energy::offline_energy(
            &run,
            node.busy_power,
            *node.idle_power.get_ref(),
            throughput,
        ),
        offline_nodes: (energy::offline_time(&run, 1.0, throughput) / run.duration).ceil(),
        analysis_node: staged(Some(kernel), Approach::AnalysisNode).into(),
    }
}

/// Returns the cost of a kernel at a ratio over all applications that are feasible at this ratio.
pub fn cost_row(
    site: &Site,
    kernel: &SiteKernel,
    approach: Approach,
    ratio: f64,
    corrections: &Corrections,
) -> CostRow {
    let nodes = site.machine.nodes.get();
    let mut energy = Joules::ZERO;
    let (mut applications, mut excluded) = (Vec::new(), Vec::new());
    for application in &site.applications {
        let name = application.name().to_owned();
        match run_energy(
            site,
            application,
            Some(kernel),
            approach,
            ratio,
            corrections,
        ) {
            Ok(run) => {
                energy = energy + run.total_joules;
                applications.push(name);
            }
            Err(_) => excluded.push(name),
        }
    }
    let infrastructure = cost::infrastructure(nodes, ratio, approach.price(site));
    let bill = cost::energy_bill(
        energy,
        site.cost.runs.get(),
        site.cost.energy_price.get_ref().amount,
    );
    CostRow {
        kernel: kernel.name().to_owned(),
        approach,
        devices: staging::whole_devices(nodes, ratio),
        infrastructure_price: infrastructure,
        energy_price: bill,
        total_price: (!applications.is_empty()).then(|| cost::total(infrastructure, 1.0, bill)),
        applications,
        excluded,
    }
}

/// Section of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportSection {
    /// Section on the number of nodes that may share a device.
    Staging,
    /// Section on the kernels that keep up.
    Feasibility,
    /// Section on the energy of a run.
    Energy,
    /// Section on costs.
    Cost,
}

impl ReportSection {
    /// All sections, in the order of the report.
    pub const ALL: [Self; 4] = [Self::Staging, Self::Feasibility, Self::Energy, Self::Cost];
}

impl SiteReport {
    /// Keeps the data of some of the sections.
    pub fn keep(&mut self, sections: &[ReportSection]) {
        for section in ReportSection::ALL {
            match section {
                kept if sections.contains(&kept) => {}
                ReportSection::Staging => self.staging.clear(),
                ReportSection::Feasibility => self.feasibility.clear(),
                ReportSection::Energy => self.energy.clear(),
                ReportSection::Cost => self.cost.clear(),
            }
        }
    }

    /// Returns the given sections as texts and tables for people.
    pub fn parts(&self, sections: &[ReportSection]) -> Vec<ReportPart> {
        let corrections = self.corrections.describe();
        let head = format!("{}, computed with {corrections}\n", self.site);
        let mut parts = vec![ReportPart::Text(head)];
        for section in sections {
            for (heading, table) in self.section(*section) {
                parts.push(ReportPart::Text(format!("\n{heading}\n")));
                parts.push(ReportPart::Table(table));
            }
        }
        parts
    }

    /// Returns a section's tables with their headings.
    fn section(&self, section: ReportSection) -> Vec<(String, TextTable)> {
        let ratio = significant(self.staging_ratio);
        match section {
            ReportSection::Staging => vec![(
                "Largest staging ratio (nodes for each device or analysis node)".to_owned(),
                self.staging_table(),
            )],
            ReportSection::Feasibility => vec![
                (
                    format!("Can a kernel keep up? Throughput it needs at staging ratio {ratio}"),
                    self.feasibility_table(),
                ),
                (
                    "Largest staging ratio at which each kernel keeps up, and what forbids a larger one"
                        .to_owned(),
                    self.largest_table(),
                ),
            ],
            ReportSection::Energy => vec![(
                format!(
                    "Energy of one run at ratio {ratio}, in kWh more than writing to the file system without analysis"
                ),
                energy_table(&self.energy),
            )],
            ReportSection::Cost => vec![(
                format!("Cost at ratio {ratio} on all applications for which it is feasible"),
                self.cost_table(),
            )],
        }
    }

    fn staging_table(&self) -> TextTable {
        let constraints = [
            StagingConstraint::Capacity,
            StagingConstraint::Bandwidth,
            StagingConstraint::Endurance,
            StagingConstraint::Restart,
        ];
        let header = [
            "APPLICATION",
            "ON",
            "CAPACITY",
            "BANDWIDTH",
            "ENDURANCE",
            "RESTART",
            "LARGEST",
            "DEVICES",
        ];
        let mut table = TextTable::new(&header, &[2, 3, 4, 5, 6, 7]);
        for row in &self.staging {
            let mut cells = vec![row.application.clone(), row.approach.to_string()];
            for constraint in constraints {
                let limit = row
                    .limits
                    .iter()
                    .find(|limit| limit.constraint == constraint);
                cells.push(limit.map_or("-".into(), |limit| significant(limit.ratio)));
            }
            cells.push(significant(row.largest_ratio));
            cells.push(row.devices.map_or("does not fit".into(), significant));
            table.add_row(cells);
        }
        table
    }

    /// Returns the table of feasibility: one line for each application and approach, in which kernels with the same needs and results share
    /// an entry.
    fn feasibility_table(&self) -> TextTable {
        let mut table = TextTable::new(&["APPLICATION", "ON", "NEEDS", "KERNELS"], &[2]);
        let same = |left: &FeasibilityRow, right: &FeasibilityRow| {
            (&left.application, left.approach) == (&right.application, right.approach)
        };
        let mut rows: Vec<_> = self.feasibility.iter().collect();
        rows.sort_by_key(|row| {
            let order = self.feasibility.iter().position(|other| same(row, other));
            order.unwrap_or(self.feasibility.len())
        });
        for rows in rows.chunk_by(|left, right| same(left, right)) {
            let Some(first) = rows.first() else { continue };
            table.add_row([
                first.application.clone(),
                first.approach.to_string(),
                needs(rows),
                kernels(rows),
            ]);
        }
        table
    }

    /// Returns the table of largest ratios: one line for each application and approach, and for kernels with the same ratio.
    fn largest_table(&self) -> TextTable {
        let header = ["APPLICATION", "ON", "LARGEST", "LIMIT", "KERNELS"];
        let mut table = TextTable::new(&header, &[2]);
        let mut lines: Vec<([String; 4], Vec<&str>)> = Vec::new();
        for row in &self.feasibility {
            let (largest, limit) = match &row.largest_ratio {
                ModelResult::Feasible(largest) => {
                    (at_most(largest.ratio), largest.bound.to_string())
                }
                ModelResult::Infeasible(Infeasible::KernelTooSlow { .. }) => {
                    ("-".to_owned(), "too slow".to_owned())
                }
                ModelResult::Infeasible(why) => ("-".to_owned(), why.to_string()),
            };
            let (application, approach) = (row.application.clone(), row.approach.to_string());
            let line = [application, approach, largest, limit];
            match lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, kernels)) => kernels.push(&row.kernel),
                None => lines.push((line, vec![&row.kernel])),
            }
        }
        // Applications keep their order, and approaches stay together.
        let order = |line: &[String; 4]| {
            let same = |row: &FeasibilityRow| {
                row.application == line[0] && row.approach.to_string() == line[1]
            };
            self.feasibility.iter().position(same)
        };
        lines.sort_by_key(|(line, _)| order(line));
        let all = |kernels: &[&str]| {
            let pairs = self.energy.iter();
            let first = self.energy.first().map(|row| &row.application);
            let count = pairs.filter(|row| Some(&row.application) == first).count();
            kernels.len() == count
        };
        for ([application, approach, largest, limit], kernels) in lines {
            let kernels = if all(&kernels) {
                "all".to_owned()
            } else {
                kernels.join(", ")
            };
            table.add_row([application, approach, largest, limit, kernels]);
        }
        table
    }

    fn cost_table(&self) -> TextTable {
        let header = [
            "KERNEL", "ON", "DEVICES", "PRICE", "ENERGY", "TOTAL", "WITHOUT",
        ];
        let mut table = TextTable::new(&header, &[2, 3, 4, 5]);
        for row in &self.cost {
            let [infrastructure, energy, total] = match row.total_price {
                Some(total) => [row.infrastructure_price, row.energy_price, total]
                    .map(|price| self.currency.show(price)),
                None => ["-", "-", "infeasible"].map(String::from),
            };
            table.add_row([
                row.kernel.clone(),
                row.approach.to_string(),
                significant(row.devices),
                infrastructure,
                energy,
                total,
                row.excluded.join(", "),
            ]);
        }
        table
    }
}

/// Returns the throughput that these kernels need: one number, or a range if the kernels reduce their data differently.
fn needs(rows: &[&FeasibilityRow]) -> String {
    let required = rows
        .iter()
        .filter_map(|row| match row.required_bytes_per_second {
            ModelResult::Feasible(required)
            | ModelResult::Infeasible(Infeasible::KernelTooSlow { required, .. }) => Some(required),
            ModelResult::Infeasible(_) => None,
        });
    let mut texts: Vec<_> = required.collect();
    texts.sort_by(|left, right| left.get().total_cmp(&right.get()));
    let mut texts: Vec<_> = texts.iter().map(ToString::to_string).collect();
    texts.dedup();
    match &texts[..] {
        [] => "-".to_owned(),
        [only] => only.clone(),
        [least, .., most] => format!("{least} to {most}"),
    }
}

/// Returns the kernels that keep up, and the reasons for which other kernels do not.
fn kernels(rows: &[&FeasibilityRow]) -> String {
    let mut able = Vec::new();
    let mut unable: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows {
        let why = match row.required_bytes_per_second.infeasible() {
            None => {
                able.push(row.kernel.as_str());
                continue;
            }
            Some(Infeasible::KernelTooSlow { .. }) => "too slow".to_owned(),
            Some(why) => why.to_string(),
        };
        match unable.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, kernels)) => kernels.push(&row.kernel),
            None => unable.push((why, vec![&row.kernel])),
        }
    }
    let all = |kernels: &[&str]| {
        if kernels.len() == rows.len() {
            "all".to_owned()
        } else {
            kernels.join(", ")
        }
    };
    let mut parts = Vec::new();
    if !able.is_empty() {
        parts.push(format!("yes: {}", all(&able)));
    }
    parts.extend(
        unable
            .iter()
            .map(|(why, kernels)| format!("no: {} ({why})", all(kernels))),
    );
    parts.join("; ")
}

/// Returns a table of energies in kWh.
pub(super) fn energy_table(rows: &[EnergyRow]) -> TextTable {
    let header = [
        "APPLICATION",
        "KERNEL",
        "STAGED ONLY",
        "ACTIVE FLASH",
        "OFFLINE",
        "ANALYSIS NODES",
    ];
    let mut table = TextTable::new(&header, &[2, 3, 4, 5]);
    let kwh = |energy: Joules| decimals(energy.kilowatt_hours(), 1);
    for row in rows {
        let total = |outcome: &ModelResult<RunEnergy>| match outcome {
            ModelResult::Feasible(energy) => kwh(energy.total_joules),
            ModelResult::Infeasible(_) => "infeasible".to_owned(),
        };
        table.add_row([
            row.application.clone(),
            row.kernel.clone(),
            row.staged_only_joules
                .feasible()
                .map_or("infeasible".to_owned(), |energy| kwh(*energy)),
            total(&row.active_flash),
            kwh(row.offline_joules),
            total(&row.analysis_node),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::text::plain;
    use super::*;
    use crate::model::tests::{JAGUAR, site};
    use std::path::Path;

    fn jaguar() -> SiteReport {
        report(&site(), &Corrections::default())
    }

    #[test]
    fn report_has_every_pair() {
        let report = jaguar();
        assert_eq!(report.staging.len(), 6 * 2);
        assert_eq!(report.feasibility.len(), 6 * 7 * 2);
        assert_eq!(report.energy.len(), 6 * 7);
        assert_eq!(report.cost.len(), 7 * 2);
    }

    #[test]
    fn only_chimera_and_s3d_k_means_are_infeasible_on_devices() {
        let report = jaguar();
        let refused: Vec<_> = report
            .feasibility
            .iter()
            .filter(|row| row.approach == Approach::ActiveFlash && row.application != "CHIMERA")
            .filter(|row| row.required_bytes_per_second.feasible().is_none())
            .map(|row| (row.application.as_str(), row.kernel.as_str()))
            .collect();
        assert_eq!(refused, [("S3D", "k-means")]);
        let chimera = report
            .feasibility
            .iter()
            .find(|row| row.application == "CHIMERA")
            .unwrap();
        let why = chimera
            .required_bytes_per_second
            .infeasible()
            .unwrap()
            .to_string();
        assert!(why.starts_with("does not fit: endurance"), "{why}");
    }

    /// An independent calculation of S3D with fingerprinting gives these kWh (staging out over the link).
    #[test]
    fn report_energies_match_independent_calculation() {
        let report = jaguar();
        let row = report
            .energy
            .iter()
            .find(|row| (row.application.as_str(), row.kernel.as_str()) == ("S3D", "fingerprint"))
            .unwrap();
        let flash = row
            .active_flash
            .feasible()
            .unwrap()
            .total_joules
            .kilowatt_hours();
        let nodes = row
            .analysis_node
            .feasible()
            .unwrap()
            .total_joules
            .kilowatt_hours();
        assert!((flash + 119.89).abs() < 0.01, "{flash}");
        assert!((row.offline_joules.kilowatt_hours() - 720.60).abs() < 0.01);
        assert!((nodes - 2485.2).abs() < 0.1, "{nodes}");
    }

    #[test]
    fn infeasible_pair_has_reason_and_no_number() {
        let json = serde_json::to_value(jaguar()).unwrap();
        let row = json["energy"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["application"] == "S3D" && row["kernel"] == "k-means")
            .unwrap();
        assert_eq!(
            row["active_flash"]["infeasible"]["reason"],
            "kernel-too-slow"
        );
        assert!(
            row["analysis_node"]["feasible"]["total_joules"]
                .as_f64()
                .unwrap()
                > 0.0
        );
        let text = plain(&jaguar().parts(&ReportSection::ALL));
        let chimera: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("CHIMERA"))
            .collect();
        assert!(
            chimera
                .iter()
                .any(|line| line.contains("no: all (does not fit")),
            "{text}"
        );
        assert!(
            text.lines()
                .any(|line| line.starts_with("S3D") && line.contains("infeasible")),
            "{text}"
        );
    }

    #[test]
    fn report_section_is_a_field_and_a_part_of_the_text() {
        let report = jaguar();
        let all = report.parts(&ReportSection::ALL);
        let fields = ["staging", "feasibility", "energy", "cost"];
        for (section, field) in ReportSection::ALL.into_iter().zip(fields) {
            let mut kept = report.clone();
            kept.keep(&[section]);
            let json = serde_json::to_value(&kept).unwrap();
            let written = fields.iter().filter(|field| json[**field].is_array());
            assert_eq!(written.collect::<Vec<_>>(), [&field], "{section:?}");
            let parts = report.parts(&[section]);
            let tables = 1 + usize::from(section == ReportSection::Feasibility);
            assert_eq!(parts.len(), 1 + 2 * tables, "one section only: {parts:?}");
            assert!(parts.iter().all(|part| all.contains(part)), "{parts:?}");
        }
    }

    #[test]
    fn costs_list_excluded_applications() {
        let report = jaguar();
        let kmeans = report
            .cost
            .iter()
            .find(|row| row.kernel == "k-means")
            .unwrap();
        assert_eq!(kmeans.excluded, ["CHIMERA", "S3D"]);
        assert_eq!(kmeans.infrastructure_price, Money::new(180_000.0));
        assert!(kmeans.total_price.unwrap() < kmeans.infrastructure_price);
    }

    #[test]
    fn prices_use_currency_of_the_site() {
        let text = JAGUAR.replace("\"$", "\"EUR ");
        let site = Site::parse(&text, Path::new("site.toml")).unwrap();
        let report = report(&site, &Corrections::default());
        assert_eq!(serde_json::to_value(&report).unwrap()["currency"], "EUR");
        let shown = plain(&report.parts(&[ReportSection::Cost]));
        assert!(
            shown.contains("1,818,000 EUR") && !shown.contains('$'),
            "{shown}"
        );
        let dollars = plain(&jaguar().parts(&[ReportSection::Cost]));
        assert!(dollars.contains("$1,818,000"), "{dollars}");
    }

    #[test]
    fn report_shows_largest_ratio_of_each_kernel() {
        let report = jaguar();
        let row = |kernel: &str, approach| {
            let mut rows = report.feasibility.iter();
            let found = rows.find(|row| {
                (row.application.as_str(), row.kernel.as_str()) == ("S3D", kernel)
                    && row.approach == approach
            });
            *found.unwrap().largest_ratio.feasible().unwrap()
        };
        let slow = row("k-means", Approach::ActiveFlash);
        assert_eq!(
            (
                at_most(slow.ratio).as_str(),
                slow.bound.to_string().as_str()
            ),
            ("5.355", "kernel")
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json["feasibility"][1]["largest_ratio"]["infeasible"]["reason"],
            "ratio-too-high"
        );
        let text = plain(&report.parts(&[ReportSection::Feasibility]));
        for line in [
            "S3D  active flash  5.355  kernel  k-means",
            "S3D  active flash  20.02  endurance  mean, grep, transpose, PCA, gzip",
        ] {
            assert!(
                text.lines().any(|shown| shown == line),
                "no {line} in\n{text}"
            );
        }
    }

    #[test]
    fn kernel_infeasible_for_all_applications_has_no_cost() {
        let crowded = JAGUAR.replace("staging-ratio = 10", "staging-ratio = 5000");
        let site = Site::parse(&crowded, Path::new("crowded.toml")).unwrap();
        let report = report(&site, &Corrections::default());
        assert!(report.cost.iter().all(|row| row.total_price.is_none()));
        let text = plain(&report.parts(&[ReportSection::Cost]));
        assert!(text.contains("infeasible") && !text.contains('$'), "{text}");
    }
}
