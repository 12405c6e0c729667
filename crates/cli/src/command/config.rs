//! `tidemill config`: the values of all settings and their origins, and a check of a configuration file.

mod check;
mod show;

use crate::context::CommandContext;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill config show                     each value that is set, and its origin
  tidemill config check /etc/tidemill.toml

examples/tidemill.toml has every key, with an explanation.";

/// Show the settings and their origins, or check a configuration file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    Show(show::Args),
    Check(check::Args),
}

impl Args {
    /// Whether the command reads the configuration file itself, and reports its errors.
    pub(crate) fn is_check(&self) -> bool {
        matches!(self.command, ConfigCommand::Check(_))
    }
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Show(args) => show::run(args, context).await,
        ConfigCommand::Check(args) => check::run(args, context).await,
    }
}
