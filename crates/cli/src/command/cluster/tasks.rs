//! `tidemill cluster tasks`: work of the cluster for itself.

use crate::context::CommandContext;
use crate::output::places::Maintenance;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill cluster tasks
  tidemill --json cluster tasks | jq '.labels[] | select(.why == \"drain\")'

The list has queued and running labels, and the number of files that wait for their own labels. Labels of tasks are in `tidemill job show`.";

/// Show the cluster's own tasks: replication, removals and migrations, and their reasons (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let listed = server.answer(server.places().list(v1::MigrationsRequest {}).await)?;
    context.output.finish(&Maintenance::from(&listed))
}
