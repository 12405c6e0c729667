//! `tidemill node drain`: empties a node during normal operation.

use super::look::{self, NodeState};
use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::messages::DrainPlan;
use crate::output::places::Drain;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill node drain 3 --dry-run        show the space that the move needs, and move nothing
  tidemill node drain 3                  begin, and print the progress; later calls print the progress
  tidemill node drain 3 --wait           wait until the node is empty
  tidemill --json node drain 3 | jq .files_left

The node takes no new files, outputs of tasks or replicas. Open files are finished there and move then. Its tasks
continue. Bytes with readers are removed after the last reader has closed them. The drain continues after a restart of the
server. `tidemill node undrain 3` stops it.";

/// Interval at which the command asks for the progress.
const PERIOD: Duration = Duration::from_secs(1);

/// Move all data of a node to other nodes (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of the node, as in `tidemill node list`
    #[arg(value_name = "NODE")]
    node: u32,
    /// Wait until the node is empty, and print the progress
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// Show the used space of the node and the free space of the other nodes, and move nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    if args.dry_run {
        return dry_run(&NodeState::ask(&server, args.node).await?, context);
    }
    let request = v1::DrainRequest {
        node: args.node,
        cancel: false,
    };
    let mut drain = server.answer(server.places().drain(request).await)?;
    context.output.step(&Drain::from(&drain))?;
    while args.wait && !Drain::from(&drain).empty {
        tokio::time::sleep(PERIOD).await;
        let now = progress(&server, args.node).await?;
        if now != drain {
            context.output.step(&Drain::from(&now))?;
        }
        drain = now;
    }
    Ok(ExitCode::SUCCESS)
}

fn dry_run(state: &NodeState, context: &CommandContext) -> anyhow::Result<ExitCode> {
    if let Some(drain) = state.drain {
        return context.output.finish(&Drain::from(&drain));
    }
    let (node, used) = (state.node.node, state.used_bytes());
    let mut text = format!(
        "would move the files of node {node}, {} at most, to {} with {} free",
        format::bytes(used),
        format::count(state.others, "other node"),
        format::bytes(state.free_bytes)
    );
    if used > state.free_bytes {
        text += "; this may be too little space: files that fit nowhere stay and wait";
    }
    let plan = DrainPlan {
        dry_run: true,
        node,
        used_bytes: format::Bytes(used),
        other_nodes: state.others,
        free_bytes: format::Bytes(state.free_bytes),
    };
    context.output.finish(&Message(text, plan))
}

async fn progress(server: &Server, node: u32) -> anyhow::Result<v1::Drain> {
    let drains = look::drains(server).await?;
    let drain = drains.into_iter().find(|drain| drain.node == node);
    drain.ok_or_else(|| {
        anyhow::anyhow!("node {node} is not drained any more: somebody ran `tidemill node undrain`")
    })
}
