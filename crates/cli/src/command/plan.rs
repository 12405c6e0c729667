//! `tidemill plan`: predictions before anyone buys or moves anything. One file for each question.

mod burst;
mod compare;
mod job;
mod model;
mod offload;
mod power;
mod run;
mod sweep;

pub(crate) use job::write;

use crate::context::CommandContext;
use clap::Subcommand;
use std::process::ExitCode;
use tidemill_sched::policy::{UnknownPolicy, by_name};

const EXAMPLES: &str = "Examples:
  tidemill plan run job.toml --costs costs.toml --platform cluster.ini   this job on that cluster
  tidemill plan run montage.trace.json --policy hybrid          a recorded run, with another policy
  tidemill plan sweep montage.trace.json --plot shapes.svg      on 1 to 8 nodes of 1 to 12 cores
  tidemill plan compare 3                                       predicted against measured, for job 3
  tidemill plan power job.toml --costs costs.toml --platform cluster.ini   does resuming nodes pay for it?
  tidemill plan model all                       the models over the site of the Active Flash paper
  tidemill plan model energy --site site.toml   over your own
  tidemill plan offload max /raw/values.f64     should this kernel run here or on the node?
  tidemill plan burst extremes --burst 100GB --every 60s     can the burst tier keep up with a hook?";

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
    Power(power::Args),
    Offload(Box<offload::Args>),
    Burst(Box<burst::Args>),
    Model(model::Args),
}

/// Checks the name of a policy.
fn policy(name: &str) -> Result<String, UnknownPolicy> {
    by_name(name, 0).map(|_| name.to_owned())
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        PlanCommand::Run(args) => run::run(&args, context),
        PlanCommand::Sweep(args) => sweep::run(&args, context),
        PlanCommand::Compare(args) => compare::run(&args, context).await,
        PlanCommand::Power(args) => power::run(&args, context),
        PlanCommand::Offload(args) => offload::run(*args, context).await,
        PlanCommand::Burst(args) => burst::run(&args, context).await,
        PlanCommand::Model(args) => model::run(args, context),
    }
}
