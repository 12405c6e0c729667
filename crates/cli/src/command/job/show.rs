//! `tidemill job show`: jobs with their tasks.

use super::get;
use crate::context::CommandContext;
use crate::output::job::Job;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill job show 3                      one job, task by task
  tidemill --json job show 3 | jq '.tasks[] | select(.state == \"failed\")'

With several jobs, --json prints one line per job.";

/// Show jobs with their tasks
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Ids of jobs
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<u64>,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    if let [job] = args.jobs[..] {
        return context.output.finish(&Job::from(&get(&server, job).await?));
    }
    for job in args.jobs {
        context.output.step(&Job::from(&get(&server, job).await?))?;
    }
    Ok(ExitCode::SUCCESS)
}
