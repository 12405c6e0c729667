//! `tidemill import`: copies files of a store into the cluster.

use super::carry::{AT_ONCE, Carrier};
use super::tally::{Outcome, Tally};
use super::{Way, bridge_of};
use crate::context::Context;
use crate::files;
use anyhow::Context as _;
use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use tidemill_bridge::{Error, Listed};
use tidemill_core::rule::Pattern;
use tokio::task::JoinSet;

const EXAMPLES: &str = "Examples:
  tidemill import scratch/run-7 /raw              all files below run-7, as /raw/…
  tidemill import 'cloud/2026/**/*.nc' /raw       all .nc files below 2026, as /raw/…
  tidemill import survey/dr9/table.fits /raw      one file, as /raw/table.fits
  tidemill import cloud /all --limit 20MB         at most 20 MB per second
  tidemill import --link 'cloud/2026/**' /raw     copies nothing; reads fetch bytes (docs/outside.md)

Files that the cluster already has, unchanged, are skipped. Run an interrupted command again to continue.";

/// Copy files of an external store into the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Source: a bridge, with a file, a directory or a pattern of its store
    #[arg(value_name = "BRIDGE/PATTERN")]
    from: String,
    /// Directory of the cluster. The command makes a missing directory
    #[arg(value_name = "/DIRECTORY")]
    to: OsString,
    /// Make files whose bytes remain in the store, and copy nothing. Needs a node with its files in that store
    #[arg(long, conflicts_with = "limit")]
    link: bool,
    #[command(flatten)]
    way: Way,
}

/// Whether a text stands for other names than itself.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Files below a directory that are wanted: all, or those whose whole path matches.
pub(super) struct Chosen {
    pub(super) directory: String,
    pattern: Option<Pattern>,
}

impl Chosen {
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

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let (name, path) = bridge_of(&args.from)?;
    let to = files::path(&args.to)?;
    let mut carrier = Carrier::new(context, &args.way, name).await?;
    if args.link {
        carrier.link_only().await?;
    }
    let carrier = Arc::new(carrier);
    let mut tally = Tally::default();
    let mut names = HashSet::new();
    from(context, &carrier, (path, &to), (&mut tally, &mut names)).await?;
    carrier.progress.end();
    anyhow::ensure!(!tally.is_empty(), "nothing there: {}", args.from);
    tally.end(context, if args.link { "linked" } else { "imported" })
}

/// Copies the objects at or below a path of the store. Returns their names below `to`.
pub(super) async fn from(
    context: &Context,
    carrier: &Arc<Carrier>,
    (path, to): (&str, &files::Path),
    (tally, names): (&mut Tally, &mut HashSet<String>),
) -> anyhow::Result<()> {
    let bridge = &carrier.opened.bridge;
    if !path.is_empty() && !is_pattern(path) {
        let found = bridge.stat(path).await;
        if let Ok(object) = &found {
            let name = path.rsplit('/').next().unwrap_or(path);
            names.insert(name.to_owned());
            let carried = carrier.import(object, &to.join(name)).await;
            tally.add(context, carried);
            return Ok(());
        }
        // It may be a directory.
        let is_told = |error: &Error| !bridge.lists() || matches!(error, Error::Refused { .. });
        if let Err(error) = found
            && is_told(&error)
        {
            return Err(error.into());
        }
    }
    let chosen = Chosen::new(path)?;
    let mut listed = bridge.list(&chosen.directory);
    let mut running: JoinSet<anyhow::Result<Outcome>> = JoinSet::new();
    while let Some(one) = listed.next().await? {
        let object = match one {
            Listed::Object(object) => object,
            Listed::Passed(path, what) => {
                tally.pass(context, &path, what);
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
            tally.add(context, done?);
        }
        let (carrier, to) = (carrier.clone(), to.join(name));
        running.spawn(async move { carrier.import(&object, &to).await });
    }
    while let Some(done) = running.join_next().await {
        tally.add(context, done?);
    }
    Ok(())
}
