//! `tidemill completions`: scripts that let a shell complete commands and flags.

use crate::args::command_line;
use crate::context::CommandContext;
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill completions bash > /etc/bash_completion.d/tidemill
  tidemill completions fish > ~/.config/fish/completions/tidemill.fish";

/// Print a script that completes commands and flags in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the shell
    shell: Shell,
}

pub(crate) async fn run(args: Args, _context: &CommandContext) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line(), "tidemill", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
