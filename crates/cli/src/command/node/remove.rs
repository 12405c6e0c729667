//! `tidemill node remove`: a node is the cluster's no more.

use crate::context::CommandContext;
use crate::format;
use crate::output::Printed;
use serde_json::json;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill node drain 3 --wait && tidemill node remove 3
  tidemill node remove 3 --lose          its disk is lost: lose files that no other node has

The number is not given again: the server refuses a node with it. The directory of the node stays as it is.";

/// Remove a node from the cluster for good (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of the node, as in `tidemill status`
    #[arg(value_name = "NODE")]
    node: u32,
    /// Lose the files that no other node has. Only their names and their lineage remain
    #[arg(long)]
    lose: bool,
}

pub(crate) async fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::RemoveNodeRequest {
        node: args.node,
        lose: args.lose,
    };
    let removed = server.places().remove(request).await;
    let lost = removed
        .map_err(|status| server.explain(status))?
        .into_inner()
        .files_lost;
    let text = match lost {
        0 => format!("node {} is the cluster's no more", args.node),
        lost => format!(
            "node {} is the cluster's no more; {} lost: `tidemill status` names some",
            args.node,
            format::count(lost, "file")
        ),
    };
    let printed = json!({ "node": args.node, "files_lost": lost });
    context.output.show(&Printed::new(text, printed))?;
    Ok(ExitCode::SUCCESS)
}
