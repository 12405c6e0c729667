//! `tidemill mkdir`: makes directories in the cluster.

use crate::context::CommandContext;
use crate::files;
use std::ffi::OsString;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill mkdir /raw
  tidemill mkdir -p /survey/2026/raw";

/// Make directories in the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Paths in the cluster
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Make missing parent directories, and accept an existing directory
    #[arg(long, short)]
    parents: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    for path in &args.paths {
        files::make_directory(&server, &files::path(path)?, args.parents).await?;
    }
    Ok(ExitCode::SUCCESS)
}
