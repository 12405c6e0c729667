//! `tidemill plan`: what would it take, before anyone buys or moves anything? One file a question.

pub(crate) mod model;

use crate::context::Context;
use clap::Subcommand;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill plan model all                       the models over the site of the Active Flash paper
  tidemill plan model energy --site site.toml   over your own
  tidemill plan model paper                     the paper's numbers beside the computed ones";

/// Tell what analysis in storage would take and save, without doing it; no array is needed
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    Model(model::Args),
}

pub(crate) fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    match args.command {
        PlanCommand::Model(args) => model::run(args, context),
    }
}
