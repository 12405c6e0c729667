//! `tidemill node suspend` and `resume`.

use crate::context::CommandContext;
use crate::output::Message;
use crate::output::messages::SuspendedNode;
use std::process::ExitCode;
use tidemill_wire::v1;

/// Arguments of `node suspend` and `node resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of the node, as in `tidemill node list`
    #[arg(value_name = "NODE")]
    node: u32,
}

pub(crate) async fn suspend(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    ask(args, context, true).await
}

pub(crate) async fn resume(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    ask(args, context, false).await
}

async fn ask(args: Args, context: &CommandContext, suspended: bool) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let node = args.node;
    let (mut places, request) = (server.places(), v1::SuspendRequest { node });
    let reply = match suspended {
        true => places.suspend(request).await,
        false => places.resume(request).await,
    };
    let reply = server.answer(reply)?;
    anyhow::ensure!(reply.done, reply.why);
    let is = if suspended { "suspended" } else { "active" };
    let text = format!("node {node} is {is}");
    context
        .output
        .show(&Message(text, SuspendedNode { node, suspended }))?;
    Ok(ExitCode::SUCCESS)
}
