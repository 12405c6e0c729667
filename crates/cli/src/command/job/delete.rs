//! `tidemill job delete`: deletes jobs that have ended.

use super::{get, list};
use crate::context::{CommandContext, credentials};
use crate::format::{TimeLength, count};
use crate::output::Message;
use crate::output::job::has_ended;
use crate::output::messages::DeletedJobs;
use anyhow::ensure;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill job delete 3 4                  delete two jobs from the list, with the output of their tasks
  tidemill job delete --older 30d          delete all your jobs that ended over 30 days ago
  tidemill job delete --older 30d --dry-run    show their ids, and delete nothing

The lineage of the files of a deleted job stays. Its cached results stay, too.";

/// Delete finished jobs from the list
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Ids of jobs
    #[arg(value_name = "JOB", required_unless_present = "older")]
    jobs: Vec<u64>,
    /// Minimum time since the end of the job, such as 30d: delete all your jobs that ended longer ago
    #[arg(long, value_name = "TIME")]
    older: Option<TimeLength>,
    /// Show the jobs, and delete nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let before = args.older.map(|TimeLength(time)| SystemTime::now() - time);
    let before = before.and_then(|before| before.duration_since(UNIX_EPOCH).ok());
    let before = before.map_or(0, |before| i64::try_from(before.as_nanos()).unwrap_or(0));
    if args.dry_run {
        let jobs = planned(&server, &args.jobs, before).await?;
        let ids: Vec<String> = jobs.iter().map(u64::to_string).collect();
        let number = count(jobs.len() as u64, "job");
        let text = match ids.is_empty() {
            true => format!("{number} would be deleted"),
            false => format!("{number} would be deleted: {}", ids.join(", ")),
        };
        let (dry_run, deleted) = (true, jobs.into_iter().collect());
        context
            .output
            .show(&Message(text, DeletedJobs { dry_run, deleted }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let request = v1::DeleteJobsRequest {
        credentials: Some(credentials()),
        jobs: args.jobs,
        ended_before: before,
    };
    let reply = server.answer(server.jobs().delete(request).await)?;
    let jobs = reply.jobs;
    let text = format!("{} deleted", count(jobs.len() as u64, "job"));
    let (dry_run, deleted) = (false, jobs);
    context
        .output
        .show(&Message(text, DeletedJobs { dry_run, deleted }))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the jobs that the server would delete.
async fn planned(server: &Server, named: &[u64], before: i64) -> anyhow::Result<BTreeSet<u64>> {
    let mut jobs = BTreeSet::new();
    for &id in named {
        let job = get(server, id).await?;
        ensure!(
            has_ended(&job),
            "can't delete job {id}: it has not ended; cancel it first (`tidemill job cancel {id}`)"
        );
        jobs.insert(id);
    }
    if before > 0 {
        let ended = [v1::State::Done, v1::State::Failed, v1::State::Cancelled];
        let request = v1::ListJobsRequest {
            credentials: Some(credentials()),
            states: ended.map(i32::from).to_vec(),
            ..v1::ListJobsRequest::default()
        };
        let ended = list(server, request).await?.into_iter();
        jobs.extend(ended.filter(|job| job.ended < before).map(|job| job.job));
    }
    Ok(jobs)
}
