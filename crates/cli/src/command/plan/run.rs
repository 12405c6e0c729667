//! `tidemill plan run`: one job on one cluster, simulated.

use super::job::{SimulationArgs, write};
use crate::context::CommandContext;
use crate::output::plan::Simulated;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_plan::sim::gantt;

const EXAMPLES: &str = "Examples:
  tidemill plan run job.toml --costs costs.toml --platform cluster.ini
  tidemill plan run montage.trace.json --policy wa          the cluster of the trace, another policy
  tidemill plan run montage.trace.json --platform big.ini   another cluster
  tidemill plan run 1000genome.json --platform cluster.ini --placement random --seed 7
  tidemill plan run job.toml --costs costs.toml --platform cluster.ini --tasks --gantt job.svg
  tidemill --json plan run montage.trace.json | jq '.makespan_ns, .transferred_bytes'

examples/planning has a platform and costs to start from; docs/platform-files.md describes all settings.";

/// Simulate a job on a cluster that need not exist: time, bytes transferred, energy, and each task's course
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    of: SimulationArgs,
    /// Placement policy [default: the job's, else min-wait]
    #[arg(long, value_parser = super::policy)]
    policy: Option<String>,
    /// Show every task, too
    #[arg(long)]
    tasks: bool,
    /// File for a Gantt chart, SVG
    #[arg(long, value_name = "FILE")]
    gantt: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let planned = args.of.read()?;
    let mut simulation = planned.simulation(&args.of);
    if let Some(policy) = &args.policy {
        simulation = simulation.policy(policy);
    }
    let report = simulation.run()?;
    if let Some(path) = &args.gantt {
        write(path, &gantt::svg(&report))?;
    }
    let tasks = args.tasks;
    context.output.finish(&Simulated { report, tasks })
}
