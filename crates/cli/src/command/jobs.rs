//! `tidemill jobs`: all jobs, one with its tasks, or the trace of one.

use super::plan;
use crate::context::{Context, credentials};
use crate::output::job::{JobView, JobsView};
use crate::trace;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill jobs                     your jobs
  tidemill jobs 3                   one job, task by task
  tidemill jobs 3 --export-trace run.json    how job 3 went, for `tidemill plan`
  tidemill --json jobs 3 | jq '.tasks[] | select(.state == \"failed\")'";

/// List jobs, or the tasks of one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The job; all of yours if absent
    job: Option<u64>,
    /// Jobs of all users (root and the server's user only)
    #[arg(long, short)]
    all: bool,
    /// Write how the job went (files, sizes, elements, times, bytes moved) as JSON for `tidemill plan`; `-` for
    /// standard output
    #[arg(long, value_name = "FILE", requires = "job", conflicts_with = "all")]
    export_trace: Option<PathBuf>,
}

pub(crate) async fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    if let Some(job) = args.job {
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
    };
    let reply = server.jobs().list(request).await;
    let jobs = reply
        .map_err(|status| server.explain(status))?
        .into_inner()
        .jobs;
    context.output.show(&JobsView(jobs))?;
    Ok(ExitCode::SUCCESS)
}

async fn export(
    server: &Server,
    job: u64,
    path: &Path,
    context: &Context,
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

/// What a request about one job carries.
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

/// The tasks of a job that a user means by a task's name or id; all if nothing was said.
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
