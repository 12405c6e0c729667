//! `tidemill cancel`: ends a job before its time.

use super::jobs;
use crate::context::CommandContext;
use crate::output::Printed;
use crate::output::job::{headline, job_json};
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill cancel 3                 running tasks are killed, waiting ones never start";

/// Cancel a job. Files of its finished tasks remain
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Id of the job
    job: u64,
}

pub(crate) async fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let reply = server.jobs().cancel(jobs::request(args.job)).await;
    let job = reply.map_err(|status| server.explain(status))?.into_inner();
    context
        .output
        .show(&Printed::new(headline(&job), job_json(&job)))?;
    Ok(ExitCode::SUCCESS)
}
