//! `tidemill element suspend` and `wake`.

use crate::context::Context;
use crate::output::Said;
use serde_json::json;
use std::process::ExitCode;
use tidemill_wire::v1;

/// Arguments of `element suspend` and `element wake`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of the element, as in `tidemill status`
    #[arg(value_name = "ELEMENT")]
    element: u32,
}

pub(crate) async fn suspend(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    ask(args, context, true).await
}

pub(crate) async fn wake(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    ask(args, context, false).await
}

async fn ask(args: &Args, context: &Context, suspended: bool) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let element = args.element;
    let (mut places, request) = (server.places(), v1::SleepRequest { element });
    let reply = match suspended {
        true => places.suspend(request).await,
        false => places.wake(request).await,
    };
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    anyhow::ensure!(reply.done, reply.why);
    let is = if suspended { "suspended" } else { "awake" };
    let text = format!("element {element} is {is}");
    let said = json!({ "element": element, "suspended": suspended });
    context.output.show(&Said::new(text, said))?;
    Ok(ExitCode::SUCCESS)
}
