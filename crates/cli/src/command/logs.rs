//! `tidemill logs`: what tasks said.

use super::jobs;
use crate::context::Context;
use crate::output::job::LogsView;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill logs 3                   every task of job 3 that said something or failed
  tidemill logs 3 mProjectPP_07     one task, by its name in the script";

/// Show why tasks failed and the end of what they wrote to standard error
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The job
    job: u64,
    /// Name or id of one task
    task: Option<String>,
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let tasks = jobs::get(&server, args.job).await?.tasks;
    let name_and_id = |task: &tidemill_wire::v1::Task| (task.name.clone(), task.task);
    let mut tasks = jobs::named(tasks, args.task.as_deref(), args.job, name_and_id)?;
    if args.task.is_none() {
        tasks.retain(|task| !task.error.is_empty() || !task.stderr.is_empty());
        if tasks.is_empty() {
            context.note(format_args!(
                "no task of job {} has written to standard error or failed",
                args.job
            ));
        }
    }
    context.output.show(&LogsView(tasks))?;
    Ok(ExitCode::SUCCESS)
}
