//! `tidemill cluster`: health and maintenance of the whole cluster.

pub(crate) mod backup;
mod fsck;
mod health;
mod rebalance;
mod scrub;
mod tasks;

use crate::context::CommandContext;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill cluster health                  the states that need an administrator
  tidemill cluster fsck                    compare the namespace with the objects on nodes
  tidemill cluster backup /backup          copy the log of the server's database
  tidemill cluster scrub --wait            read all objects, to find corruption
  tidemill cluster rebalance --dry-run
  tidemill cluster tasks                   replication, removals and migrations that run or wait";

/// Show the health of the cluster, and maintain it: backup, fsck, scrub, rebalance
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ClusterCommand {
    Health(health::Args),
    Backup(backup::Args),
    Fsck(fsck::Args),
    Scrub(scrub::Args),
    Rebalance(rebalance::Args),
    Tasks(tasks::Args),
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        ClusterCommand::Health(args) => health::run(args, context).await,
        ClusterCommand::Backup(args) => backup::run(args, context).await,
        ClusterCommand::Fsck(args) => fsck::run(args, context).await,
        ClusterCommand::Scrub(args) => scrub::run(args, context).await,
        ClusterCommand::Rebalance(args) => rebalance::run(args, context).await,
        ClusterCommand::Tasks(args) => tasks::run(args, context).await,
    }
}
