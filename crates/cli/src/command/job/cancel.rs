//! `tidemill job cancel`: cancels a job.

use super::request;
use crate::context::CommandContext;
use crate::output::Message;
use crate::output::job::{Job, headline};
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
    let job = server.answer(server.jobs().cancel(request(args.job)).await)?;
    context
        .output
        .show(&Message(headline(&job), Job::from(&job)))?;
    Ok(ExitCode::SUCCESS)
}
