//! `tidemill sync`: makes a directory of a store the same as one of the cluster, or the other way round.

use super::summary::Summary;
use super::transfer::RemoteTransfer;
use super::{TransferArgs, export, import, named};
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::files::kind;
use anyhow::{Context as _, bail, ensure};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use tidemill_core::display::line;
use tidemill_remote::ListedItem;
use tidemill_wire::v1::{self, Kind, name_op::Op};

const EXAMPLES: &str = "Examples:
  tidemill sync cloud/run-7 /raw                  copy new and changed files
  tidemill sync /results cloud/run-7 --delete     delete files there that /results does not have, too";

/// Copy new and changed files between a directory of the cluster and a directory of an external store
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Source directory: REMOTE/PATH, or /DIRECTORY of the cluster
    #[arg(value_name = "FROM")]
    from: OsString,
    /// Destination directory: /DIRECTORY of the cluster if FROM is in a store, else REMOTE/PATH
    #[arg(value_name = "TO")]
    to: OsString,
    /// Delete files in TO that FROM does not have, if all of FROM was copied
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    way: TransferArgs,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    for path in [&args.from, &args.to] {
        let path = line(&path.to_string_lossy());
        ensure!(
            !import::is_pattern(&path),
            "{path} is a pattern: give a directory, or use `import` or `export`"
        );
    }
    let mut summary = Summary::default();
    let mut names = HashSet::new();
    match (store(&args.from)?, store(&args.to)?) {
        (Some((name, path)), None) => {
            let to = files::path(&args.to)?;
            let transfer = Arc::new(RemoteTransfer::new(context, &args.way, name).await?);
            // All else in TO would be deleted.
            ensure!(
                path.is_empty() || transfer.opened.remote.stat(path).await.is_err(),
                "{name}/{path} is a file: give a directory, or use `import`"
            );
            import::from(context, &transfer, (path, &to), (&mut summary, &mut names)).await?;
            if may_delete(&args, &summary)? {
                delete_here(&transfer, &to, &names, &mut summary).await?;
            }
            transfer.progress.end();
        }
        (None, Some((name, to))) => {
            let path = files::path(&args.from)?;
            let transfer = Arc::new(RemoteTransfer::new(context, &args.way, name).await?);
            let found = files::resolve(&transfer.server, &path, true).await?;
            ensure!(kind(&found) == Kind::Directory, "not a directory: {path}");
            export::into(context, &transfer, (&path, to), (&mut summary, &mut names)).await?;
            if may_delete(&args, &summary)? {
                delete_there(&transfer, to, &names, &mut summary).await?;
            }
            transfer.progress.end();
        }
        _ => bail!("one of the two is to be REMOTE/PATH, the other one /DIRECTORY of the cluster"),
    }
    summary.end(context, "copied")
}

/// The remote and the path there, if a text is not a path of the cluster.
fn store(text: &OsStr) -> anyhow::Result<Option<(&str, &str)>> {
    if text.as_bytes().starts_with(b"/") {
        return Ok(None);
    }
    let wrong = || {
        format!(
            "bad path: {}: a store needs a path in UTF-8",
            text.display()
        )
    };
    Ok(named(text.to_str().with_context(wrong)?))
}

/// Nothing is deleted because something could not be copied, or because nothing was found.
fn may_delete(args: &Args, summary: &Summary) -> anyhow::Result<bool> {
    if !args.delete || !summary.is_whole() {
        return Ok(false);
    }
    ensure!(
        !summary.is_empty(),
        "nothing there: {}; nothing was deleted",
        args.from.display()
    );
    Ok(true)
}

async fn delete_there(
    transfer: &RemoteTransfer,
    to: &str,
    names: &HashSet<String>,
    summary: &mut Summary,
) -> anyhow::Result<()> {
    let remote = &transfer.opened.remote;
    let mut deleted = Vec::new();
    let mut listed = remote.list(to);
    while let Some(one) = listed.next().await? {
        if let ListedItem::Object(object) = one {
            let name = match to {
                "" => Some(object.path.as_str()),
                to => object
                    .path
                    .strip_prefix(to)
                    .and_then(|rest| rest.strip_prefix('/')),
            };
            if name.is_some_and(|name| !names.contains(name)) {
                deleted.push(object.path);
            }
        }
    }
    for path in deleted {
        let removed = remote.remove(&path).await;
        removed.with_context(|| format!("can't delete {path}"))?;
        summary.delete();
    }
    Ok(())
}

async fn delete_here(
    transfer: &RemoteTransfer,
    to: &files::ClusterPath,
    names: &HashSet<String>,
    summary: &mut Summary,
) -> anyhow::Result<()> {
    let top = files::inode(&transfer.server, to).await?;
    let top_bytes = to.as_ref().len();
    let mut directories = vec![(to.clone(), top)];
    while let Some((above, parent)) = directories.pop() {
        for entry in files::list(&transfer.server, parent).await? {
            let path = above.join(&entry.name);
            let name = &path.as_ref()[top_bytes..];
            let name = std::str::from_utf8(name).map(|name| name.trim_start_matches('/'));
            match kind(&entry) {
                Kind::Directory => directories.push((path, entry.attr.map_or(0, |attr| attr.ino))),
                Kind::File if !name.is_ok_and(|name| names.contains(name)) => {
                    let unlink = v1::Unlink {
                        parent,
                        name: entry.name,
                        ..v1::Unlink::default()
                    };
                    let deleted = transfer
                        .server
                        .one(&credentials(), Op::Unlink(unlink))
                        .await;
                    deleted.with_context(|| format!("can't delete {path}"))?;
                    summary.delete();
                }
                _ => {}
            }
        }
    }
    Ok(())
}
