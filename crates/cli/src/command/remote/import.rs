//! `tidemill import`: copies files of a store into the cluster.

use super::summary::{FileOutcome, Summary};
use super::transfer::{AT_ONCE, RemoteTransfer};
use super::{TransferArgs, remote_of};
use crate::context::CommandContext;
use crate::files;
use anyhow::Context as _;
use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use tidemill_core::rule::Pattern;
use tidemill_remote::{Error, ListedItem};
use tokio::task::JoinSet;

const EXAMPLES: &str = "Examples:
  tidemill import scratch/run-7 /raw              all files below run-7, as /raw/…
  tidemill import 'cloud/2026/**/*.nc' /raw       all .nc files below 2026, as /raw/…
  tidemill import survey/dr9/table.fits /raw      one file, as /raw/table.fits
  tidemill import cloud /all --limit 20MB         at most 20 MB per second
  tidemill import --no-copy 'cloud/2026/**' /raw     copies nothing; reads fetch bytes (docs/backend.md)

Files that the cluster already has, unchanged, are skipped. Run an interrupted command again to continue.";

/// Copy files of an external store into the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Source: a remote, with a file, a directory or a pattern of its store
    #[arg(value_name = "REMOTE/PATTERN")]
    from: String,
    /// Directory of the cluster. The command makes a missing directory
    #[arg(value_name = "/DIRECTORY")]
    to: OsString,
    /// Make stub files, whose bytes remain in the store, and copy nothing. Needs a node with its files in that store
    #[arg(long, conflicts_with = "limit")]
    no_copy: bool,
    #[command(flatten)]
    way: TransferArgs,
}

/// Whether a text stands for other names than itself.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Files below a directory that are wanted: all, or those whose whole path matches.
pub(super) struct ChosenFiles {
    pub(super) directory: String,
    pattern: Option<Pattern>,
}

impl ChosenFiles {
    pub(super) fn new(text: &str) -> anyhow::Result<Self> {
        if !is_pattern(text) {
            return Ok(Self {
                directory: text.to_owned(),
                pattern: None,
            });
        }
        let pattern = Pattern::new(text).with_context(|| format!("bad pattern {text}"))?;
        Ok(Self {
            directory: pattern.directory().to_owned(),
            pattern: Some(pattern),
        })
    }

    /// Returns the name below the directory for a path, if the pattern selects the path.
    pub(super) fn name<'a>(&self, path: &'a str) -> Option<&'a str> {
        if self
            .pattern
            .as_ref()
            .is_some_and(|pattern| !pattern.matches(path))
        {
            return None;
        }
        match self.directory.as_str() {
            "" => Some(path),
            directory => path.strip_prefix(directory)?.strip_prefix('/'),
        }
    }
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let (name, path) = remote_of(&args.from)?;
    let to = files::path(&args.to)?;
    let mut transfer = RemoteTransfer::new(context, &args.way, name).await?;
    if args.no_copy {
        transfer.without_copy().await?;
    }
    let transfer = Arc::new(transfer);
    let mut summary = Summary::default();
    let mut names = HashSet::new();
    from(context, &transfer, (path, &to), (&mut summary, &mut names)).await?;
    transfer.progress.end();
    anyhow::ensure!(!summary.is_empty(), "nothing there: {}", args.from);
    summary.end(
        context,
        if args.no_copy {
            "imported without a copy"
        } else {
            "imported"
        },
    )
}

/// Copies the objects at or below a path of the store. Returns their names below `to`.
pub(super) async fn from(
    context: &CommandContext,
    transfer: &Arc<RemoteTransfer>,
    (path, to): (&str, &files::ClusterPath),
    (summary, names): (&mut Summary, &mut HashSet<String>),
) -> anyhow::Result<()> {
    let remote = &transfer.opened.remote;
    if !path.is_empty() && !is_pattern(path) {
        let found = remote.stat(path).await;
        if let Ok(object) = &found {
            let name = path.rsplit('/').next().unwrap_or(path);
            names.insert(name.to_owned());
            let transferred = transfer.import(object, &to.join(name)).await;
            summary.add(context, transferred);
            return Ok(());
        }
        // It may be a directory.
        let is_reported = |error: &Error| !remote.lists() || matches!(error, Error::Refused { .. });
        if let Err(error) = found
            && is_reported(&error)
        {
            return Err(error.into());
        }
    }
    let chosen = ChosenFiles::new(path)?;
    let mut listed = remote.list(&chosen.directory);
    let mut running: JoinSet<anyhow::Result<FileOutcome>> = JoinSet::new();
    while let Some(one) = listed.next().await? {
        let object = match one {
            ListedItem::Object(object) => object,
            ListedItem::Passed(path, what) => {
                summary.pass(context, &path, what);
                continue;
            }
        };
        let Some(name) = chosen.name(&object.path) else {
            continue;
        };
        names.insert(name.to_owned());
        if running.len() >= AT_ONCE
            && let Some(done) = running.join_next().await
        {
            summary.add(context, done?);
        }
        let (transfer, to) = (transfer.clone(), to.join(name));
        running.spawn(async move { transfer.import(&object, &to).await });
    }
    while let Some(done) = running.join_next().await {
        summary.add(context, done?);
    }
    Ok(())
}
