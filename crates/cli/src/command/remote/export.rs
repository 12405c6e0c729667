//! `tidemill export`: copies files of the cluster to a store.

use super::import::{ChosenFiles, is_pattern};
use super::summary::{FileOutcome, Summary};
use super::transfer::{AT_ONCE, RemoteTransfer};
use super::{TransferArgs, remote_of};
use crate::context::CommandContext;
use crate::files;
use crate::output::files::kind;
use anyhow::ensure;
use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use tidemill_wire::v1::Kind;
use tokio::task::JoinSet;

const EXAMPLES: &str = "Examples:
  tidemill export /results cloud/run-7            all files below /results, as run-7/…
  tidemill export '/results/*.png' cloud/plots
  tidemill export /results/max.txt cloud/run-7    one file, as run-7/max.txt

Files that the store already has, unchanged, are skipped. Run an interrupted command again to continue.";

/// Copy files of the cluster to an external store
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Source in the cluster: a file, a directory or a pattern
    #[arg(value_name = "/PATTERN")]
    from: OsString,
    /// Destination: a remote, and a directory of its store
    #[arg(value_name = "REMOTE/PATH")]
    to: String,
    #[command(flatten)]
    way: TransferArgs,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let (name, to) = remote_of(&args.to)?;
    let path = files::path(&args.from)?;
    let transfer = Arc::new(RemoteTransfer::new(context, &args.way, name).await?);
    let mut summary = Summary::default();
    let mut names = HashSet::new();
    into(context, &transfer, (&path, to), (&mut summary, &mut names)).await?;
    transfer.progress.end();
    ensure!(!summary.is_empty(), "nothing there: {path}");
    summary.end(context, "exported")
}

fn below(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

/// Copies the files at or below a path of the cluster. Returns their names below `to`.
pub(super) async fn into(
    context: &CommandContext,
    transfer: &Arc<RemoteTransfer>,
    (path, to): (&files::ClusterPath, &str),
    (summary, names): (&mut Summary, &mut HashSet<String>),
) -> anyhow::Result<()> {
    ensure!(
        !transfer.opened.read_only,
        "remote {} is read only: nothing is exported to it",
        transfer.opened.name
    );
    let text = path.text("a store")?;
    let chosen = ChosenFiles::new(text.trim_start_matches('/'))?;
    let top = files::path(&chosen.directory)?;
    let found = files::resolve(&transfer.server, &top, true).await?;
    if kind(&found) == Kind::File && !is_pattern(text) {
        path.split()?;
        let name = text.rsplit('/').next().unwrap_or(text);
        names.insert(name.to_owned());
        let transferred = transfer.export(path, &below(to, name)).await;
        summary.add(context, transferred);
        return Ok(());
    }
    let mut directories = vec![(top, found.attr.map_or(0, |attr| attr.ino))];
    let mut running: JoinSet<anyhow::Result<FileOutcome>> = JoinSet::new();
    while let Some((above, ino)) = directories.pop() {
        for entry in files::list(&transfer.server, ino).await? {
            let Ok(name) = std::str::from_utf8(&entry.name) else {
                summary.pass(context, above.join(&entry.name), "its name is not UTF-8");
                continue;
            };
            let path = above.join(name);
            match kind(&entry) {
                Kind::Directory => directories.push((path, entry.attr.map_or(0, |attr| attr.ino))),
                Kind::File => {
                    let Some(name) = chosen.name(&path.text("a store")?[1..]) else {
                        continue;
                    };
                    names.insert(name.to_owned());
                    if running.len() >= AT_ONCE
                        && let Some(done) = running.join_next().await
                    {
                        summary.add(context, done?);
                    }
                    let (transfer, to) = (transfer.clone(), below(to, name));
                    running.spawn(async move { transfer.export(&path, &to).await });
                }
                _ => summary.pass(context, &path, "no file"),
            }
        }
    }
    while let Some(done) = running.join_next().await {
        summary.add(context, done?);
    }
    Ok(())
}
