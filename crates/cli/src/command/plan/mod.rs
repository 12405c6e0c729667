//! `tidemill plan`: what would it take, before anyone buys or moves anything? One file a question.

mod compare;
mod elastic;
mod job;
pub(crate) mod model;
pub(crate) mod offload;
mod run;
mod sweep;

pub(crate) use job::write;

use crate::context::CommandContext;
use clap::Subcommand;
use std::process::ExitCode;
use tidemill_core::policy::{UnknownPolicy, by_name};

const EXAMPLES: &str = "Examples:
  tidemill plan run job.conf --costs costs.toml --platform cluster.ini   this job on that cluster
  tidemill plan run montage.trace.json --policy hybrid          a recorded run, with another policy
  tidemill plan sweep montage.trace.json --plot shapes.svg      on 1 to 8 nodes of 1 to 12 cores
  tidemill plan compare 3                                       predicted against measured, for job 3
  tidemill plan elastic job.conf --costs costs.toml --platform cluster.ini   does resuming nodes pay for it?
  tidemill plan model all                       the models over the site of the Active Flash paper
  tidemill plan model energy --site site.toml   over your own
  tidemill plan offload max /raw/values.f64     should this kernel run here or on the node?";

/// Predict time, bytes transferred and energy of jobs and of analysis in storage, without running them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    Run(run::Args),
    Sweep(sweep::Args),
    Compare(compare::Args),
    Elastic(elastic::Args),
    Model(model::Args),
    Offload(Box<offload::Args>),
}

/// The name of a policy, as a flag has it.
fn policy(name: &str) -> Result<String, UnknownPolicy> {
    by_name(name, 0).map(|_| name.to_owned())
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        PlanCommand::Run(args) => run::run(&args, context),
        PlanCommand::Sweep(args) => sweep::run(&args, context),
        PlanCommand::Compare(args) => compare::run(&args, context).await,
        PlanCommand::Elastic(args) => elastic::run(&args, context),
        PlanCommand::Model(args) => model::run(args, context),
        PlanCommand::Offload(args) => offload::run(*args, context).await,
    }
}
