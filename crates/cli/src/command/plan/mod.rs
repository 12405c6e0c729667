//! `tidemill plan`: what would it take, before anyone buys or moves anything? One file a question.

pub(crate) mod model;
pub(crate) mod offload;

use crate::context::Context;
use clap::Subcommand;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill plan model all                       the models over the site of the Active Flash paper
  tidemill plan model energy --site site.toml   over your own
  tidemill plan model paper                     the paper's numbers beside the computed ones
  tidemill plan offload max /raw/values.f64     should this kernel run here or on the element?";

/// Tell what analysis in storage would take and save, without doing it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    Model(model::Args),
    Offload(offload::Args),
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    match args.command {
        PlanCommand::Model(args) => model::run(args, context),
        PlanCommand::Offload(args) => offload::run(args, context).await,
    }
}
