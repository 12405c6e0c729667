//! `tidemill job logs`: output of tasks.

use super::{named, named_or_newest, request};
use crate::context::CommandContext;
use crate::output::job::TaskLogs;
use crate::output::list;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill job logs                     tasks of your newest job that wrote something or failed
  tidemill job logs 3                   tasks of job 3 that wrote something or failed
  tidemill job logs 3 mProjectPP_07     one task, by its name in the job file";

/// Show the end of the standard output and standard error of tasks, and the reasons of failures
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Id of the job [default: your newest]
    job: Option<u64>,
    /// Name or id of one task [default: all tasks]
    task: Option<String>,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let job = named_or_newest(&server, args.job).await?;
    let mut reply = server.answer(server.jobs().logs(request(job)).await)?;
    let mut tasks = Vec::new();
    while let Some(log) = reply
        .message()
        .await
        .map_err(|status| server.explain(status))?
    {
        tasks.push(log);
    }
    let name_and_id = |task: &v1::Task| (task.name.clone(), task.task);
    let mut tasks = named(tasks, args.task.as_deref(), job, name_and_id)?;
    if args.task.is_none() {
        tasks.retain(|task| {
            [&task.error, &task.stdout, &task.stderr]
                .iter()
                .any(|text| !text.is_empty())
        });
        if tasks.is_empty() {
            context.note(format_args!(
                "no task of job {job} has written to standard output or standard error, or failed"
            ));
        }
    }
    context.output.finish(&TaskLogs(list(&tasks)))
}
