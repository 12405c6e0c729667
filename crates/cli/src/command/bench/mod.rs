//! `tidemill bench`: how fast are things here?

mod channel;
mod kernel;
mod nodes;
mod subject;

use crate::context::CommandContext;
use clap::Subcommand;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill bench kernel                         all built-in kernels on this machine
  tidemill bench kernel --nodes max          on this machine and on each node
  tidemill bench channel m51                    messages through the workspace m51";

/// Measure the speed of kernels, for `tidemill plan offload`, or of messages
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    Kernel(kernel::Args),
    Channel(channel::Args),
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        BenchCommand::Kernel(args) => kernel::run(args, context).await,
        BenchCommand::Channel(args) => channel::run(args, context).await,
    }
}
