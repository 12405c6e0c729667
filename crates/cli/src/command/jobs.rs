//! `tidemill jobs`: all jobs, or one with its tasks.

use crate::context::{Context, credentials};
use crate::output::job::{JobView, JobsView};
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill jobs                     your jobs
  tidemill jobs 3                   one job, task by task
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
}

pub(crate) async fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    if let Some(job) = args.job {
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
