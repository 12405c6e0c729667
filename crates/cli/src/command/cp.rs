//! `tidemill cp`: copies files between the cluster and a remote.

pub(super) mod export;
pub(super) mod import;

use super::remote::TransferArgs;
use super::remote::summary::Summary;
use super::remote::transfer::RemoteTransfer;
use crate::context::CommandContext;
use crate::files::{self, ClusterPath};
use anyhow::{Context as _, bail, ensure};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use tidemill_model::display::line;

const EXAMPLES: &str = "Examples:
  tidemill cp scratch:run-7 /raw              all files below run-7, as /raw/…
  tidemill cp 'cloud:2026/**/*.nc' /raw       all .nc files below 2026, as /raw/…
  tidemill cp survey:dr9/table.fits /raw      one file, as /raw/table.fits
  tidemill cp cloud: /all --limit-rate 20MB   at most 20 MB per second
  tidemill cp --no-copy 'cloud:2026/**' /raw  copy nothing; reads fetch bytes (docs/backend.md)
  tidemill cp /results cloud:run-7            all files below /results, as run-7/…
  tidemill cp '/results/*.png' cloud:plots
  tidemill cp --dry-run /results cloud:run-7  show the files that would be copied

NAME:PATH is a path in a remote of `tidemill remote list`; /PATH is a path in the cluster. `tidemill get` and `tidemill put` copy to and
from this machine. Unchanged files of the destination are skipped. Run an interrupted command again to continue.";

/// Copy files from a remote into the cluster, or from the cluster to a remote
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Source: a file, a directory or a pattern, as NAME:PATH in a remote or /PATH in the cluster
    #[arg(value_name = "SRC")]
    from: OsString,
    /// Destination directory: /PATH in the cluster if the source is in a remote, else NAME:PATH. A missing directory is made
    #[arg(value_name = "DST")]
    to: OsString,
    /// Make stub files in the cluster, whose bytes remain in the remote, and copy nothing. Needs a node with its files in that remote
    #[arg(long, conflicts_with = "limit_rate")]
    no_copy: bool,
    #[command(flatten)]
    way: TransferArgs,
}

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// `NAME:PATH`: a remote, and a path in its store without `/` at its ends.
    Remote(String, String),
    /// A path in the cluster.
    Cluster(ClusterPath),
}

impl Location {
    /// Reads `NAME:PATH`, or a path in the cluster.
    ///
    /// # Errors
    /// If the path is malformed, or is a path in a remote and not UTF-8.
    pub(super) fn parse(text: &OsStr) -> anyhow::Result<Self> {
        let bytes = text.as_bytes();
        let mark = bytes.iter().position(|byte| b":/".contains(byte));
        if !matches!(mark, Some(at) if at > 0 && bytes[at] == b':') {
            return Ok(Self::Cluster(files::path(text)?));
        }
        let text = text.to_str().with_context(|| {
            format!("bad path: {}: a remote needs a path in UTF-8", shown(text))
        })?;
        let (name, path) = text.split_once(':').unwrap_or((text, ""));
        let path = path.trim_matches('/');
        Ok(Self::Remote(name.to_owned(), path.to_owned()))
    }
}

/// Returns a path as it was given, on one line.
pub(super) fn shown(text: &OsStr) -> String {
    line(&text.to_string_lossy())
}

/// Returns the error for two paths without exactly one in a remote.
pub(super) fn no_remote(from: &OsStr, to: &OsStr) -> anyhow::Error {
    let (from, to) = (shown(from), shown(to));
    anyhow::anyhow!(
        "can't copy {from} to {to}: exactly one of them has to be in a remote: give NAME:PATH, with a name of `tidemill remote list`"
    )
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let (mut summary, mut names) = (Summary::new(args.way.dry_run), HashSet::new());
    let found = (&mut summary, &mut names);
    match (Location::parse(&args.from)?, Location::parse(&args.to)?) {
        (Location::Remote(name, path), Location::Cluster(to)) => {
            let mut transfer = RemoteTransfer::new(context, &args.way, &name).await?;
            if args.no_copy {
                transfer.without_copy().await?;
            }
            let transfer = Arc::new(transfer);
            import::from(context, &transfer, (path.as_str(), &to), found).await?;
            transfer.progress.end();
        }
        (Location::Cluster(path), Location::Remote(name, to)) => {
            if args.no_copy {
                bail!("--no-copy needs a source in a remote, and {path} is in the cluster");
            }
            let transfer = Arc::new(RemoteTransfer::new(context, &args.way, &name).await?);
            export::into(context, &transfer, (&path, to.as_str()), found).await?;
            transfer.progress.end();
        }
        _ => return Err(no_remote(&args.from, &args.to)),
    }
    ensure!(
        !summary.is_empty(),
        "no files to copy: {}: no such file, or an empty directory",
        shown(&args.from)
    );
    let done = match args.no_copy {
        true => "linked without a copy",
        false => "copied",
    };
    summary.end(context, done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_with_name_and_colon_is_in_a_remote() {
        let parse = |text: &str| Location::parse(OsStr::new(text)).unwrap();
        let remote = |name: &str, path: &str| Location::Remote(name.to_owned(), path.to_owned());
        let cluster = |text: &str| Location::Cluster(files::path(text).unwrap());
        assert_eq!(parse("cloud:run-7/a"), remote("cloud", "run-7/a"));
        assert_eq!(parse("cloud:"), remote("cloud", ""));
        assert_eq!(parse("cloud:/run-7/"), remote("cloud", "run-7"));
        assert_eq!(parse("cloud:a:b"), remote("cloud", "a:b"));
        assert_eq!(parse("/a:b/c"), cluster("/a:b/c"));
        assert_eq!(parse("a/b:c"), cluster("/a/b:c"));
        assert_eq!(parse("raw"), cluster("/raw"));
    }

    #[test]
    fn location_in_a_remote_that_is_not_utf8_is_refused() {
        let odd = |bytes| Location::parse(OsStr::from_bytes(bytes));
        assert!(odd(b"cloud:n\xff").is_err());
        assert!(odd(b"/n\xff").is_ok());
    }
}
