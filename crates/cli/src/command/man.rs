//! `tidemill man`: the manual pages, made from the same texts as `--help`.

use crate::args::command_line;
use crate::context::CommandContext;
use crate::output::{Printed, exact};
use anyhow::Context as _;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill man ~/.local/share/man/man1 && man tidemill-submit

`make install` installs the pages for all users.";

/// Write the manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Path of the directory. The command makes a missing directory
    directory: PathBuf,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command_line(), directory));
    written.with_context(|| format!("can't write manual pages: {}", directory.display()))?;
    let text = format!("manual pages in {}", directory.display());
    let json = json!({ "directory": exact(directory) });
    context.output.show(&Printed::new(text, json))?;
    Ok(ExitCode::SUCCESS)
}
