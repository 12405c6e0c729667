//! `tidemill job list`: jobs, the newest first.

use super::list;
use crate::context::{CommandContext, credentials};
use crate::output;
use crate::output::job::Jobs;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill job list                        your jobs
  tidemill job list --state failed --limit 10    the last ten jobs that failed
  tidemill job list --name 'montage*'      by name
  tidemill --json job list | jq '.[].job'";

/// List jobs, the newest first
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// List jobs of all users (administrators only)
    #[arg(long, short)]
    all: bool,
    /// Maximum number of jobs [default: 10000]
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u32>,
    /// States of listed jobs: running, done, failed, cancelled [default: all]
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    state: Vec<ShownState>,
    /// Glob of names of jobs
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
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
    fn from(state: ShownState) -> Self {
        match state {
            ShownState::Running => v1::State::Running,
            ShownState::Done => v1::State::Done,
            ShownState::Failed => v1::State::Failed,
            ShownState::Cancelled => v1::State::Cancelled,
        }
        .into()
    }
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::ListJobsRequest {
        credentials: Some(credentials()),
        everyone: args.all,
        limit: args.limit.unwrap_or_default(),
        states: args.state.into_iter().map(i32::from).collect(),
        name: args.name.unwrap_or_default(),
    };
    let jobs = list(&server, request).await?;
    context.output.finish(&Jobs(output::list(&jobs)))
}
