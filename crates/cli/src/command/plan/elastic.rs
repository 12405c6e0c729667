//! `tidemill plan elastic`: does it pay to wake nodes that sleep for a job?

use super::job::Of;
use crate::context::Context;
use crate::output::Said;
use serde_json::json;
use std::process::ExitCode;
use tidemill_plan::sim::elastic::{Point, compare, known, quarters, table};

const EXAMPLES: &str = "Examples:
  tidemill plan elastic job.conf --costs costs.toml --platform cluster.ini    a quarter to all of its nodes awake
  tidemill plan elastic montage.trace.json --platform cluster.ini --awake 1,2,3
  tidemill --json plan elastic job.conf --costs costs.toml --platform cluster.ini | jq '.points[].best'

The platform has the power of nodes (power_busy, power_idle, power_suspended), their time to wake (wake), and the time after
which idle nodes are suspended (suspend_after). docs/planning.md describes the model.";

/// Simulate a job on a cluster with suspended nodes: with the awake nodes alone, with all, and with as many as pay
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    of: Of,
    /// Numbers of awake nodes, the first nodes of the platform [default: quarters of it]
    #[arg(long, value_name = "N,N…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    awake: Vec<u32>,
    /// Placement policy [default: the job's, else min-wait]
    #[arg(long, value_parser = super::policy)]
    policy: Option<String>,
    /// Assume that no kernel has run there yet: each kernel then counts as a minute until its first run
    #[arg(long)]
    new: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let planned = args.of.read()?;
    let nodes = planned.platform.nodes.len();
    let awake: Vec<usize> = match args.awake.as_slice() {
        [] => quarters(nodes),
        given => given.iter().map(|&one| one as usize).collect(),
    };
    if let Some(more) = awake.iter().find(|&&one| one > nodes) {
        anyhow::bail!("--awake {more}: the platform has {nodes} nodes");
    }
    let (workflow, placement) = (planned.workflow, planned.placement);
    let platform = match args.new {
        true => planned.platform,
        false => known(planned.platform, &workflow),
    };
    let points = compare((&platform, &workflow), &awake, |simulation| {
        let simulation = simulation.placement(placement).seed(args.of.seed);
        match &args.policy {
            Some(policy) => simulation.policy(policy),
            None => simulation,
        }
    })?;
    let told: Vec<_> = points.iter().map(point).collect();
    let value = json!({ "nodes": nodes, "points": told });
    context.output.show(&Said::new(table(&points), value))?;
    Ok(ExitCode::SUCCESS)
}

fn point(point: &Point) -> serde_json::Value {
    json!({
        "awake": point.awake,
        "static": point.stays,
        "elastic": point.elastic,
        "all": point.all,
        "best": point.best(),
    })
}
