//! `tidemill node drain`: empties a node during normal operation.

use crate::context::CommandContext;
use crate::output::places::DrainView;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill node drain 3                  begin, and print the progress; later calls print the progress
  tidemill node drain 3 --wait           wait until the node is empty
  tidemill node drain 3 --cancel         stop; remaining files stay
  tidemill --json node drain 3 | jq .files_left

The node takes no new files, outputs of tasks or replicas. Open files are finished there and move then. Its tasks
continue. Bytes with readers are removed after the last reader has closed them. The drain continues after a restart of the
server.";

/// How often it is looked how far it is.
const PERIOD: Duration = Duration::from_secs(1);

/// Move all data of a node to other nodes (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of the node, as in `tidemill status`
    #[arg(value_name = "NODE")]
    node: u32,
    /// Wait until the node is empty, and print the progress
    #[arg(long, conflicts_with = "cancel")]
    wait: bool,
    /// Stop draining: remaining files stay, and the node takes new files again
    #[arg(long)]
    cancel: bool,
}

pub(crate) async fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::DrainRequest {
        node: args.node,
        cancel: args.cancel,
    };
    let drain = server.places().drain(request).await;
    let mut drain = drain.map_err(|status| server.explain(status))?.into_inner();
    if args.cancel {
        context.note(format!("node {} is not emptied any more", args.node));
        return Ok(ExitCode::SUCCESS);
    }
    context.output.step(&DrainView(drain))?;
    while args.wait && !DrainView(drain).is_empty() {
        tokio::time::sleep(PERIOD).await;
        let now = look(&server, args.node).await?;
        if now != drain {
            context.output.step(&DrainView(now))?;
        }
        drain = now;
    }
    Ok(ExitCode::SUCCESS)
}

async fn look(server: &Server, node: u32) -> anyhow::Result<v1::Drain> {
    let listed = server.places().list(v1::MigrationsRequest {}).await;
    let drains = listed
        .map_err(|status| server.explain(status))?
        .into_inner()
        .drains;
    let drain = drains.into_iter().find(|drain| drain.node == node);
    drain.ok_or_else(|| {
        anyhow::anyhow!("node {node} is not emptied any more: somebody cancelled it")
    })
}
