//! `tidemill element suspend` and `wake`.

use crate::context::Context;
use crate::output::Said;
use serde_json::json;
use std::process::ExitCode;
use tidemill_wire::v1;

/// Which element
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The element, as `tidemill status` numbers it
    #[arg(value_name = "ELEMENT")]
    element: u32,
}

pub(crate) async fn suspend(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::SleepRequest {
        element: args.element,
    };
    let reply = server.places().suspend(request).await;
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    anyhow::ensure!(reply.done, reply.why);
    let text = format!("element {} is suspended", args.element);
    let said = json!({ "element": args.element, "suspended": true });
    context.output.show(&Said::new(text, said))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn wake(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::SleepRequest {
        element: args.element,
    };
    let reply = server.places().wake(request).await;
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    anyhow::ensure!(reply.done, reply.why);
    let text = format!("element {} is awake", args.element);
    let said = json!({ "element": args.element, "suspended": false });
    context.output.show(&Said::new(text, said))?;
    Ok(ExitCode::SUCCESS)
}
