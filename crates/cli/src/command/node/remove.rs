//! `tidemill node remove`: removes a node from the cluster.

use super::look::NodeState;
use crate::context::CommandContext;
use crate::format;
use crate::output::Printed;
use crate::output::places::DrainView;
use serde_json::json;
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
    let removed = server.places().remove(request).await;
    let lost = removed
        .map_err(|status| server.explain(status))?
        .into_inner()
        .files_lost;
    let text = match lost {
        0 => format!("node {} is removed from the cluster", args.node),
        lost => format!(
            "node {} is removed from the cluster; {} lost: `tidemill status` names some",
            args.node,
            format::count(lost, "file")
        ),
    };
    let printed = json!({ "node": args.node, "files_lost": lost });
    context.output.show(&Printed::new(text, printed))?;
    Ok(ExitCode::SUCCESS)
}

async fn dry_run(
    args: &Args,
    server: &Server,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let state = NodeState::ask(server, args.node).await?;
    let health = server.health().show(v1::HealthRequest::default()).await;
    let health = health
        .map_err(|status| server.explain(status))?
        .into_inner();
    let unavailable = health.unavailable + health.lost;
    let node = args.node;
    let is_empty = state.drain.is_some_and(|drain| DrainView(drain).is_empty());
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
    let printed = json!({
        "dry_run": true,
        "node": node,
        "up": state.node.up,
        "drained": is_empty,
        "lose": args.lose,
        "files_unavailable": unavailable,
    });
    context.output.show(&Printed::new(text, printed))?;
    Ok(ExitCode::SUCCESS)
}
