//! `tidemill man`: the manual pages, made from the same words as `--help`.

use crate::args::command_line;
use crate::context::Context;
use crate::output::{Said, exact};
use anyhow::Context as _;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill man ~/.local/share/man/man1 && man tidemill-submit

`make install` installs the pages for all users.";

/// Write the manual pages into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Path of the folder. The command makes a missing folder
    folder: PathBuf,
}

pub(crate) fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let folder = &args.folder;
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command_line(), folder));
    written.with_context(|| format!("can't write manual pages: {}", folder.display()))?;
    let text = format!("manual pages in {}", folder.display());
    let json = json!({ "folder": exact(folder) });
    context.output.show(&Said::new(text, json))?;
    Ok(ExitCode::SUCCESS)
}
