//! `tidemill server`: the server of a cluster, and the recovery of its database.

mod recover;
pub(crate) mod run;

use crate::context::CommandContext;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill server run --listen 10.0.0.1:7700           for nodes and mounts on other hosts
  tidemill server recover                              after server.db was lost

`tidemill up` starts a server for this machine.";

/// Run the server of a cluster, or recover its database
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ServerCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ServerCommand {
    Run(Box<run::Args>),
    Recover(recover::Args),
}

impl Args {
    /// Whether this is the server's own process.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self.command, ServerCommand::Run(_))
    }
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        ServerCommand::Run(args) => run::run(*args, context).await,
        ServerCommand::Recover(args) => recover::run(args, context).await,
    }
}
