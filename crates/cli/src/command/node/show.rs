//! `tidemill node show`: one node of the cluster.

use super::look;
use crate::context::CommandContext;
use crate::output::node::Node;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill node show 3
  tidemill --json node show 3 | jq .free_bytes";

/// Show one node: its address, its state, its resources and its space
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of the node, as in `tidemill node list`
    #[arg(value_name = "NODE")]
    node: u32,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let status = server.status().await?;
    let node = look::find(&status.nodes, args.node)?;
    context.output.finish(&Node::from(node))
}
