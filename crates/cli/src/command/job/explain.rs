//! `tidemill job explain`: reasons for the placement of tasks.

use super::{named, named_or_newest, request};
use crate::context::CommandContext;
use crate::output::explain::Decisions;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill job explain                  every decision of your newest job
  tidemill job explain 3                every decision of job 3
  tidemill job explain 3 mAdd           one task, by its name in the job file";

/// Explain the placement of tasks: the reasons, the bytes transferred, and the cost on other nodes
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
    let decisions = server
        .answer(server.jobs().explain(request(job)).await)?
        .decisions;
    let name_and_id =
        |decision: &tidemill_wire::v1::Decision| (decision.name.clone(), decision.task);
    let decisions = named(decisions, args.task.as_deref(), job, name_and_id)?;
    context.output.finish(&Decisions::from(decisions))
}
