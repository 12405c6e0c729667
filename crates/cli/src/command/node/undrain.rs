//! `tidemill node undrain`: stops the drain of a node.

use crate::context::CommandContext;
use crate::output::Message;
use crate::output::messages::NodeDraining;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill node undrain 3

Files that have not moved yet stay on the node, and the node takes new files again. Files that have moved do not return.";

/// Stop draining a node: remaining files stay, and the node takes new files again (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of the node, as in `tidemill node list`
    #[arg(value_name = "NODE")]
    node: u32,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let node = args.node;
    let request = v1::DrainRequest { node, cancel: true };
    server.answer(server.places().drain(request).await)?;
    let text = format!("node {node} is not drained any more: remaining files stay");
    let draining = false;
    context
        .output
        .show(&Message(text, NodeDraining { node, draining }))?;
    Ok(ExitCode::SUCCESS)
}
