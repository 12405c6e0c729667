//! `tidemill jobs`: all jobs, one with its tasks, or the trace of one.

use super::plan;
use crate::context::{CommandContext, credentials};
use crate::format::{TimeLength, count};
use crate::output::Printed;
use crate::output::job::{JobView, JobsView};
use crate::trace;
use anyhow::Context as _;
use serde_json::json;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill jobs                     your jobs
  tidemill jobs --state failed --limit 10    the last ten that failed
  tidemill jobs --name 'montage*'   by name
  tidemill jobs 3                   one job, task by task
  tidemill jobs 3 --export-trace run.json    the course of job 3, for `tidemill plan`
  tidemill --json jobs 3 | jq '.tasks[] | select(.state == \"failed\")'
  tidemill jobs --delete 3 4        delete them from the list, with the output of their tasks
  tidemill jobs --delete --older 30d    delete all your jobs that ended over 30 days ago

The lineage of a deleted job's files stays, and its cached results stay, too.";

/// List jobs, or the tasks of given jobs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Ids of jobs [default: all of yours]
    #[arg(value_name = "JOB")]
    jobs: Vec<u64>,
    /// List jobs of all users (administrators only)
    #[arg(long, short)]
    all: bool,
    /// Maximum number of jobs, the newest first
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "jobs")]
    limit: Option<u32>,
    /// States of listed jobs: running, done, failed, cancelled
    #[arg(
        long,
        value_name = "STATE",
        value_delimiter = ',',
        conflicts_with = "jobs"
    )]
    state: Vec<ShownState>,
    /// Pattern of * and ? for names of jobs
    #[arg(long, value_name = "PATTERN", conflicts_with = "jobs")]
    name: Option<String>,
    /// Delete finished jobs from the list
    #[arg(long, conflicts_with_all = ["all", "limit", "state", "name", "export_trace"])]
    delete: bool,
    /// With --delete: delete your jobs that ended longer ago than this time, such as 30d
    #[arg(long, value_name = "TIME", requires = "delete")]
    older: Option<TimeLength>,
    /// File for the course of the job (files, sizes, nodes, times, bytes transferred), as JSON for `tidemill plan`; `-` for
    /// standard output
    #[arg(long, value_name = "FILE", requires = "jobs", conflicts_with = "all")]
    export_trace: Option<PathBuf>,
}

/// State of a job.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ShownState {
    Running,
    Done,
    Failed,
    Cancelled,
}

impl From<ShownState> for i32 {
    fn from(ended: ShownState) -> Self {
        match ended {
            ShownState::Running => v1::State::Running,
            ShownState::Done => v1::State::Done,
            ShownState::Failed => v1::State::Failed,
            ShownState::Cancelled => v1::State::Cancelled,
        }
        .into()
    }
}

pub(crate) async fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        !args.delete || args.older.is_some() || !args.jobs.is_empty(),
        "which jobs? Name them (`tidemill jobs --delete 3 4`), or give --older TIME"
    );
    anyhow::ensure!(
        args.delete || args.jobs.len() <= 1,
        "one job at a time: `tidemill jobs {}`",
        args.jobs[0]
    );
    let server = context.connect().await?;
    if args.delete {
        return delete(&server, args, context).await;
    }
    if let Some(&job) = args.jobs.first() {
        if let Some(path) = &args.export_trace {
            return export(&server, job, path, context).await;
        }
        let job = get(&server, job).await?;
        context.output.show(&JobView(job))?;
        return Ok(ExitCode::SUCCESS);
    }
    let request = v1::ListJobsRequest {
        credentials: Some(credentials()),
        everyone: args.all,
        limit: args.limit.unwrap_or_default(),
        states: args.state.iter().map(|&state| state.into()).collect(),
        name: args.name.clone().unwrap_or_default(),
    };
    let jobs = list(&server, request).await?;
    context.output.show(&JobsView(jobs))?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(
    server: &Server,
    args: &Args,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let before = args.older.map(|TimeLength(time)| SystemTime::now() - time);
    let before = before.and_then(|before| before.duration_since(UNIX_EPOCH).ok());
    let before = before.map_or(0, |before| i64::try_from(before.as_nanos()).unwrap_or(0));
    let request = v1::DeleteJobsRequest {
        credentials: Some(credentials()),
        jobs: args.jobs.clone(),
        ended_before: before,
    };
    let reply = server.jobs().delete(request).await;
    let jobs = reply
        .map_err(|status| server.explain(status))?
        .into_inner()
        .jobs;
    let number = jobs.len() as u64;
    let printed = Printed::new(
        format!("{} deleted", count(number, "job")),
        json!({ "deleted": jobs }),
    );
    context.output.show(&printed)?;
    Ok(ExitCode::SUCCESS)
}

/// Jobs, the newest first.
///
/// # Errors
/// If the caller may not see them.
pub(crate) async fn list(
    server: &Server,
    request: v1::ListJobsRequest,
) -> anyhow::Result<Vec<v1::Job>> {
    let reply = server.jobs().list(request).await;
    let reply = reply.map_err(|status| server.explain(status))?;
    Ok(reply.into_inner().jobs)
}

/// The job that was named, else the caller's newest.
///
/// # Errors
/// If there is none.
pub(crate) async fn named_or_newest(server: &Server, named: Option<u64>) -> anyhow::Result<u64> {
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

async fn export(
    server: &Server,
    job: u64,
    path: &Path,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let trace = trace::fetch(server, job).await?;
    let json = serde_json::to_string_pretty(&trace)? + "\n";
    if path.as_os_str() == "-" {
        std::io::stdout().write_all(json.as_bytes())?;
    } else {
        plan::write(path, &json)?;
        context.note(format_args!(
            "{}: {} tasks",
            path.display(),
            trace.tasks.len()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the request for one job.
pub(crate) fn request(job: u64) -> v1::GetJobRequest {
    v1::GetJobRequest {
        credentials: Some(credentials()),
        job,
    }
}

/// One job with its tasks.
///
/// # Errors
/// If there is none of that id that the caller may see.
pub(crate) async fn get(server: &Server, job: u64) -> anyhow::Result<v1::Job> {
    let reply = server.jobs().get(request(job)).await;
    Ok(reply.map_err(|status| server.explain(status))?.into_inner())
}

/// Returns the tasks of a job with the given name or id; all tasks without a name.
///
/// # Errors
/// If the job has no such task.
pub(crate) fn named<T>(
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
            "no such task: job {job} has nothing for `{wanted}`; `tidemill jobs {job}` lists its tasks"
        );
    }
    Ok(found)
}
