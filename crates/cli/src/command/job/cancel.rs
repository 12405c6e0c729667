//! `tidemill job cancel`: cancels a job.

use super::request;
use crate::context::CommandContext;
use crate::output::Printed;
use crate::output::job::{headline, job_json};
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill job cancel 3                 kill running tasks; waiting tasks never start";

/// Cancel a job. Files of its finished tasks remain
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Id of the job
    job: u64,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let reply = server.jobs().cancel(request(args.job)).await;
    let job = reply.map_err(|status| server.explain(status))?.into_inner();
    context
        .output
        .show(&Printed::new(headline(&job), job_json(&job)))?;
    Ok(ExitCode::SUCCESS)
}
