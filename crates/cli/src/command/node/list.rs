//! `tidemill node list`: all nodes of the cluster.

use crate::context::CommandContext;
use crate::output::list;
use crate::output::node::Nodes;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill node list
  tidemill --json node list | jq '.nodes[] | select(.up | not).node'";

/// List the nodes of the cluster, with their states and their space
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let nodes = list(&server.status().await?.nodes);
    context.output.finish(&Nodes { nodes })
}
