//! `tidemill ls`: the entries of a directory of the cluster.

use crate::context::CommandContext;
use crate::files;
use crate::output::files::{Listing, kind};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill ls                       the root
  tidemill ls -l /raw               with sizes and the nodes that hold the files
  tidemill --json ls -R / | jq      all files and directories";

/// List files of the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Paths in the cluster
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<OsString>,
    /// Show mode, owner, size, time, and the node that holds each file
    #[arg(long, short)]
    long: bool,
    /// List directories below, too
    #[arg(long, short = 'R')]
    recursive: bool,
}

/// Maximum time until a file that was just closed is sealed, and interval of the checks.
const SEALING: Duration = Duration::from_millis(500);
const LOOKS: u32 = 10;

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let titled = args.recursive || args.paths.len() > 1;
    let mut waiting: Vec<files::ClusterPath> = Vec::new();
    for path in args.paths.iter().rev() {
        waiting.push(files::path(path)?);
    }
    while let Some(path) = waiting.pop() {
        let mut found = files::resolve(&server, &path, true).await?;
        let ino = found.attr.as_ref().map_or(0, |attr| attr.ino);
        let entries = if kind(&found) == v1::Kind::Directory {
            entries(&server, ino, args.long).await?
        } else {
            found.name = path.clone().into_bytes();
            vec![found]
        };
        if args.recursive {
            let directories = entries
                .iter()
                .filter(|entry| kind(entry) == v1::Kind::Directory);
            waiting.extend(directories.rev().map(|entry| path.join(&entry.name)));
        }
        context
            .output
            .step(&Listing::new(path, &entries, args.long, titled))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the entries of a directory. With `long`, waits a moment for the seals of files that were just copied: their sizes are
/// unknown before.
async fn entries(server: &Server, ino: u64, long: bool) -> anyhow::Result<Vec<v1::Entry>> {
    let written = |entry: &v1::Entry| entry.attr.is_some_and(|attr| attr.writing);
    let mut looks = 0;
    loop {
        let entries = files::list(server, ino).await?;
        if !long || looks == LOOKS || !entries.iter().any(written) {
            return Ok(entries);
        }
        looks += 1;
        tokio::time::sleep(SEALING / LOOKS).await;
    }
}
