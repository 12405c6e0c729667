//! `tidemill job`: submits and converts jobs, and shows, follows, cancels and deletes them.

mod cancel;
mod convert;
mod delete;
mod explain;
mod export_trace;
mod list;
mod logs;
mod report;
mod show;
pub(crate) mod watch;

use super::submit;
use crate::context::{CommandContext, credentials};
use anyhow::Context as _;
use clap::Subcommand;
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill job submit --watch job.toml     submit a job file, and follow the job
  tidemill job list                        your jobs
  tidemill job show 3                      one job, task by task
  tidemill job watch                       follow your newest job
  tidemill job logs 3                      output of the tasks of job 3
  tidemill job report 3                    time and bytes per kernel
  tidemill job explain 3                   reasons for the placement of tasks
  tidemill job cancel 3
  tidemill job delete --older 30d          delete your jobs that ended over 30 days ago
  tidemill job convert job.conf            print a job in libconfig as TOML

`tidemill submit` is the same as `tidemill job submit`.";

/// Submit, list, follow, explain, cancel, delete and convert jobs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    Submit(Box<submit::Args>),
    List(list::Args),
    Show(show::Args),
    Watch(watch::Args),
    Logs(logs::Args),
    Explain(explain::Args),
    Report(report::Args),
    Cancel(cancel::Args),
    Delete(delete::Args),
    ExportTrace(export_trace::Args),
    Convert(convert::Args),
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        JobCommand::Submit(args) => submit::run(*args, context).await,
        JobCommand::List(args) => list::run(args, context).await,
        JobCommand::Show(args) => show::run(args, context).await,
        JobCommand::Watch(args) => watch::run(args, context).await,
        JobCommand::Logs(args) => logs::run(args, context).await,
        JobCommand::Explain(args) => explain::run(args, context).await,
        JobCommand::Report(args) => report::run(args, context).await,
        JobCommand::Cancel(args) => cancel::run(args, context).await,
        JobCommand::Delete(args) => delete::run(args, context).await,
        JobCommand::ExportTrace(args) => export_trace::run(args, context).await,
        JobCommand::Convert(args) => convert::run(&args, context),
    }
}

/// Returns jobs, the newest first.
///
/// # Errors
/// If the caller may not see the jobs.
pub(crate) async fn list(
    server: &Server,
    request: v1::ListJobsRequest,
) -> anyhow::Result<Vec<v1::Job>> {
    let reply = server.answer(server.jobs().list(request).await)?;
    Ok(reply.jobs)
}

/// Returns the named job, or else the caller's newest job.
///
/// # Errors
/// If the caller has no jobs.
async fn named_or_newest(server: &Server, named: Option<u64>) -> anyhow::Result<u64> {
    if let Some(job) = named {
        return Ok(job);
    }
    let request = v1::ListJobsRequest {
        credentials: Some(credentials()),
        limit: 1,
        ..v1::ListJobsRequest::default()
    };
    let newest = list(server, request).await?;
    let newest = newest.first().map(|job| job.job);
    newest.context("you have no jobs; start one with `tidemill submit SCRIPT`")
}

/// Returns the request for one job.
pub(crate) fn request(job: u64) -> v1::GetJobRequest {
    v1::GetJobRequest {
        credentials: Some(credentials()),
        job,
    }
}

/// Returns one job with its tasks.
///
/// # Errors
/// If the job does not exist, or the caller may not see it.
pub(crate) async fn get(server: &Server, job: u64) -> anyhow::Result<v1::Job> {
    Ok(server.answer(server.jobs().get(request(job)).await)?)
}

/// Returns the tasks of a job with the given name or id; all tasks without a name.
///
/// # Errors
/// If the job has no such task.
fn named<T>(
    items: Vec<T>,
    wanted: Option<&str>,
    job: u64,
    name_and_id: impl Fn(&T) -> (String, u64),
) -> anyhow::Result<Vec<T>> {
    let Some(wanted) = wanted else {
        return Ok(items);
    };
    let matches = |item: &T| {
        let (name, id) = name_and_id(item);
        name == wanted || wanted.parse() == Ok(id)
    };
    let found: Vec<T> = items.into_iter().filter(matches).collect();
    if found.is_empty() {
        anyhow::bail!(
            "no such task: job {job} has no task `{wanted}`; `tidemill job show {job}` lists its tasks"
        );
    }
    Ok(found)
}
