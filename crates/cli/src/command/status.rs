//! `tidemill status`: the array at a glance.

use crate::context::{Context, credentials};
use crate::output::array::ArrayView;
use crate::output::job::has_ended;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill status
  tidemill --json status | jq '.elements[] | select(.up | not)'";

/// Show the server, the elements and the jobs that run
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Jobs of all users (root and the server's user only)
    #[arg(long, short)]
    all: bool,
}

pub(crate) async fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let status = server.status().await?;
    let request = v1::ListJobsRequest {
        credentials: Some(credentials()),
        everyone: args.all,
    };
    let jobs = server.jobs().list(request).await;
    let mut running = jobs
        .map_err(|status| server.explain(status))?
        .into_inner()
        .jobs;
    running.retain(|job| !has_ended(job));
    context.output.show(&ArrayView {
        endpoint: server.endpoint().to_string(),
        status,
        running,
    })?;
    Ok(ExitCode::SUCCESS)
}
