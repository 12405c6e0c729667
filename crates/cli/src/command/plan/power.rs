//! `tidemill plan power`: whether it pays to resume suspended nodes for a job.

use super::job::SimulationArgs;
use crate::context::CommandContext;
use crate::output::plan::PowerComparison;
use std::process::ExitCode;
use tidemill_plan::sim::elastic::{compare, known, quarters};

const EXAMPLES: &str = "Examples:
  tidemill plan power job.toml --costs costs.toml --platform cluster.ini    a quarter to all of its nodes active
  tidemill plan power montage.trace.json --platform cluster.ini --active 1,2,3
  tidemill --json plan power job.toml --costs costs.toml --platform cluster.ini | jq '.points[].best'

The platform has the power of nodes (power_busy, power_idle, power_suspended), their time to resume (resume), and the time after
which idle nodes are suspended (suspend_after). docs/planning.md describes the comparison.";

/// Simulate a job on a cluster with suspended nodes: with the active nodes alone, with all, and with as many as pay
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    of: SimulationArgs,
    /// Numbers of active nodes, the first nodes of the platform [default: quarters of it]
    #[arg(long, value_name = "N,N…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    active: Vec<u32>,
    /// Placement policy [default: the job's, else min-wait]
    #[arg(long, value_parser = super::policy)]
    policy: Option<String>,
    /// Assume that no kernel has run there yet: each kernel then counts as a minute until its first run
    #[arg(long)]
    new: bool,
}

pub(crate) fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let planned = args.of.read()?;
    let nodes = planned.platform.nodes.len();
    let active: Vec<usize> = match args.active.as_slice() {
        [] => quarters(nodes),
        given => given.iter().map(|&one| one as usize).collect(),
    };
    if let Some(more) = active.iter().find(|&&one| one > nodes) {
        anyhow::bail!("--active {more}: the platform has {nodes} nodes");
    }
    let (workflow, placement) = (planned.workflow, planned.placement);
    let platform = match args.new {
        true => planned.platform,
        false => known(planned.platform, &workflow),
    };
    let points = compare((&platform, &workflow), &active, |simulation| {
        let simulation = simulation.placement(placement).seed(args.of.seed);
        match &args.policy {
            Some(policy) => simulation.policy(policy),
            None => simulation,
        }
    })?;
    context.output.finish(&PowerComparison::new(nodes, &points))
}
