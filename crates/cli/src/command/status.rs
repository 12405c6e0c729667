//! `tidemill status`: the cluster at a glance.

use crate::command::job;
use crate::context::{CommandContext, credentials};
use crate::output::cluster::Status;
use crate::output::list;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill status
  tidemill --json status | jq '.nodes[] | select(.up | not)'";

/// Show the server, the nodes and the running jobs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Show jobs of all users (administrators only)
    #[arg(long, short)]
    all: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let status = server.status().await?;
    let request = v1::ListJobsRequest {
        credentials: Some(credentials()),
        everyone: args.all,
        states: vec![v1::State::Running.into()],
        ..v1::ListJobsRequest::default()
    };
    let running = job::list(&server, request).await?;
    context.output.finish(&Status {
        endpoint: server.endpoint().to_string(),
        running_jobs: list(&running),
        ..Status::from(&status)
    })
}
