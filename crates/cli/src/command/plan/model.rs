//! `tidemill plan model`: the equations of Active Flash over a site.

use crate::context::CommandContext;
use crate::output::plan::Model;
use anyhow::Context as _;
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_plan::model::{Corrections, ReportSection, Site, jaguar, report};

const EXAMPLES: &str = "Examples:
  tidemill plan model all
  tidemill plan model feasible --site site.toml
  tidemill plan model cost --site site.toml --ratio 30
  tidemill plan model energy --without stage-out-over-link --without overload-infeasible
  tidemill --json plan model staging | jq '.staging[] | {application, approach, largest_ratio}'

A site file describes a machine, its staging devices, applications and kernels; start from
examples/site/jaguar.toml. docs/models-equations.md has the equations, docs/papers/active-flash-models.md the reason of each correction.";

/// Evaluate the staging, feasibility, energy and cost models of Active Flash: should analysis run on the devices that output is
/// staged to?
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    question: ModelQuestion,
}

#[derive(Debug, Subcommand)]
enum ModelQuestion {
    /// Compute how many nodes may share a device or an analysis node, and the binding limit (Eqs. 1-5, 22-24)
    Staging(OfSite),
    /// Compute which kernels keep up with which applications, and the throughput that they need (Eqs. 6-11, 25-28)
    Feasible(OfSite),
    /// Compute the energy of a run on devices, on analysis nodes and offline (Eqs. 12-21, 29-34)
    Energy(OfSite),
    /// Compute the cost of devices or analysis nodes, energy included (Fig. 3a, Table 5)
    Cost(OfSite),
    /// Compute all four
    All(OfSite),
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct OfSite {
    /// File with the machine, its applications and kernels [default: the paper's Jaguar]
    #[arg(long, value_name = "FILE")]
    site: Option<PathBuf>,
    /// Correction of the printed equations to leave out; give the flag again for more
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Corrections::NAMES))]
    without: Vec<String>,
    /// Simulation nodes for each device or analysis node, for feasibility, energy and cost
    /// [default: the site's staging-ratio]
    #[arg(long, value_name = "RATIO")]
    ratio: Option<f64>,
}

impl OfSite {
    fn corrections(&self) -> Corrections {
        let mut corrections = Corrections::default();
        for name in &self.without {
            *corrections
                .switch(name)
                .expect("the flag takes the names of switches only") = false;
        }
        corrections
    }
}

pub(crate) fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.question {
        ModelQuestion::Staging(of) => site(&of, &[ReportSection::Staging], context),
        ModelQuestion::Feasible(of) => site(&of, &[ReportSection::Feasibility], context),
        ModelQuestion::Energy(of) => site(&of, &[ReportSection::Energy], context),
        ModelQuestion::Cost(of) => site(&of, &[ReportSection::Cost], context),
        ModelQuestion::All(of) => site(&of, &ReportSection::ALL, context),
    }
}

fn site(
    of: &OfSite,
    sections: &[ReportSection],
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let site = if let Some(path) = &of.site {
        Site::read(path)?
    } else {
        context.note(
            "no --site FILE: this is the site of the Active Flash paper, examples/site/jaguar.toml",
        );
        jaguar()
    };
    let site = match of.ratio {
        Some(ratio) => site.at_ratio(ratio).context("--ratio")?,
        None => site,
    };
    let mut report = report(&site, &of.corrections());
    let parts = report.parts(sections);
    report.keep(sections);
    context.output.finish(&Model { report, parts })
}
