//! `tidemill async`: asynchronous I/O of applications on this host.

mod agent;
mod status;

use crate::context::CommandContext;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill async status                    your applications and their unfinished requests
  tidemill async agent                     carry out requests, in the foreground";

/// Show the asynchronous I/O of your applications, or run the agent that carries it out
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: AsyncCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AsyncCommand {
    Status(status::Args),
    Agent(agent::Args),
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        AsyncCommand::Status(args) => status::run(args, context).await,
        AsyncCommand::Agent(args) => agent::run(args, context).await,
    }
}
