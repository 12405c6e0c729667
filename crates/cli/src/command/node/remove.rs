//! `tidemill node remove`: removes a node from the cluster.

use super::look::NodeState;
use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::messages::{RemovalPlan, RemovedNode};
use crate::output::places::Drain;
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill node drain 3 --wait && tidemill node remove 3
  tidemill node remove 3 --lose --dry-run      show whether files may be lost, and remove nothing
  tidemill node remove 3 --lose --yes          its disk never returns: lose files that no other node has

The number is not given again: the server refuses a node with it. The directory of the node stays as it is.";

/// Remove a node from the cluster for good (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of the node, as in `tidemill node list`
    #[arg(value_name = "NODE")]
    node: u32,
    /// Lose the files that no other node has. Only their names and their lineage remain. Needs --yes
    #[arg(long)]
    lose: bool,
    /// Confirm --lose
    #[arg(long, requires = "lose")]
    yes: bool,
    /// Show the state of the node and the files at risk, and remove nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        !args.lose || args.yes || args.dry_run,
        "node {} not removed: --lose loses the files that no other node has; look first with --dry-run, then add --yes",
        args.node
    );
    let server = context.connect().await?;
    if args.dry_run {
        return dry_run(&args, &server, context).await;
    }
    let request = v1::RemoveNodeRequest {
        node: args.node,
        lose: args.lose,
    };
    let lost = server
        .answer(server.places().remove(request).await)?
        .files_lost;
    let text = match lost {
        0 => format!("node {} is removed from the cluster", args.node),
        lost => format!(
            "node {} is removed from the cluster; {} lost: `tidemill status` names some",
            args.node,
            format::count(lost, "file")
        ),
    };
    let (node, files_lost) = (args.node, lost);
    context
        .output
        .show(&Message(text, RemovedNode { node, files_lost }))?;
    Ok(ExitCode::SUCCESS)
}

async fn dry_run(
    args: &Args,
    server: &Server,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let state = NodeState::ask(server, args.node).await?;
    let health = server.answer(server.health().show(v1::HealthRequest::default()).await)?;
    let unavailable = health.unavailable + health.lost;
    let node = args.node;
    let is_empty = state.drain.is_some_and(|drain| Drain::from(&drain).empty);
    let up = if state.node.up { "up" } else { "offline" };
    let mut text = match (is_empty, args.lose) {
        (true, _) => {
            format!("would remove node {node}, which is {up} and drained: no file is lost")
        }
        (false, false) => format!(
            "node {node} is {up} and not drained: the server removes it only if other nodes have all of its files; run `tidemill \
             node drain {node} --wait` first"
        ),
        (false, true) => format!(
            "would remove node {node}, which is {up} and not drained, and lose the files that no other node has"
        ),
    };
    if unavailable > 0 {
        text += &format!(
            "\n{} of the cluster have no available replica now: `tidemill cluster health --all` lists them",
            format::count(unavailable, "file")
        );
    }
    let plan = RemovalPlan {
        dry_run: true,
        node,
        up: state.node.up,
        drained: is_empty,
        lose: args.lose,
        files_unavailable: unavailable,
    };
    context.output.finish(&Message(text, plan))
}
