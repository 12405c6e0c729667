//! `tidemill node suspend` and `wake`.

use crate::context::Context;
use crate::output::Said;
use serde_json::json;
use std::process::ExitCode;
use tidemill_wire::v1;

/// Arguments of `node suspend` and `node wake`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of the node, as in `tidemill status`
    #[arg(value_name = "NODE")]
    node: u32,
}

pub(crate) async fn suspend(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    ask(args, context, true).await
}

pub(crate) async fn wake(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    ask(args, context, false).await
}

async fn ask(args: &Args, context: &Context, suspended: bool) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let node = args.node;
    let (mut places, request) = (server.places(), v1::SleepRequest { node });
    let reply = match suspended {
        true => places.suspend(request).await,
        false => places.wake(request).await,
    };
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    anyhow::ensure!(reply.done, reply.why);
    let is = if suspended { "suspended" } else { "awake" };
    let text = format!("node {node} is {is}");
    let said = json!({ "node": node, "suspended": suspended });
    context.output.show(&Said::new(text, said))?;
    Ok(ExitCode::SUCCESS)
}
