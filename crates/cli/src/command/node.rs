//! `tidemill node`: one storage node, and the administration of all nodes.

pub(crate) mod backend;
mod drain;
mod list;
mod look;
mod recover_files;
mod remove;
pub(crate) mod run;
mod show;
mod suspend;
mod undrain;

use crate::context::CommandContext;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill node run --id 3 --server https://10.0.0.1:7700 --token-file /etc/tidemill.token
  tidemill node list
  tidemill node drain 3 --wait && tidemill node remove 3     empty a node, and remove it from the cluster
  tidemill node suspend 3                                    suspend it until its files are needed

`tidemill up` starts nodes on this machine.";

const SUSPEND: &str = "Examples:
  tidemill node suspend 3                suspend it now, if it is idle
  tidemill --json node suspend 3 | jq .suspended

Nodes of the memory tier are never suspended. `tidemill server run --suspend-after 10m` suspends idle nodes by itself.";

const RESUME: &str = "Examples:
  tidemill node resume 3

Any request that needs the node resumes it, too.";

/// Run a storage node; list, show, drain, suspend, resume or remove nodes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NodeCommand {
    Run(Box<run::Args>),
    List(list::Args),
    Show(show::Args),
    Drain(drain::Args),
    Undrain(undrain::Args),
    /// Suspend an idle node until something needs it (administrators only)
    #[command(after_help = SUSPEND)]
    Suspend(suspend::Args),
    /// Resume a suspended node, and wait for it (administrators only)
    #[command(after_help = RESUME)]
    Resume(suspend::Args),
    Remove(remove::Args),
    RecoverFiles(recover_files::Args),
}

impl Args {
    /// Whether this is the node's own process.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self.command, NodeCommand::Run(_))
    }
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        NodeCommand::Run(args) => run::run(*args, context).await,
        NodeCommand::List(args) => list::run(args, context).await,
        NodeCommand::Show(args) => show::run(args, context).await,
        NodeCommand::Drain(args) => drain::run(args, context).await,
        NodeCommand::Undrain(args) => undrain::run(args, context).await,
        NodeCommand::Suspend(args) => suspend::suspend(args, context).await,
        NodeCommand::Resume(args) => suspend::resume(args, context).await,
        NodeCommand::Remove(args) => remove::run(args, context).await,
        NodeCommand::RecoverFiles(args) => recover_files::run(args, context).await,
    }
}
