//! `tidemill node list`: all nodes of the cluster.

use crate::context::CommandContext;
use crate::output::cluster::ClusterView;
use crate::output::node::NodesView;
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
    let status = server.status().await?;
    context.output.show(&NodesView(ClusterView {
        endpoint: server.endpoint().to_string(),
        status,
        running: Vec::new(),
    }))?;
    Ok(ExitCode::SUCCESS)
}
