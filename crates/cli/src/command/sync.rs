//! `tidemill sync`: makes a directory of a remote the same as a directory of the cluster, or the other way round.

use super::cp::{Location, export, import, no_remote, shown};
use super::remote::TransferArgs;
use super::remote::summary::Summary;
use super::remote::transfer::RemoteTransfer;
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::files::kind;
use anyhow::{Context as _, ensure};
use std::collections::HashSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use tidemill_remote::ListedItem;
use tidemill_wire::v1::{self, Kind, name_op::Op};

const EXAMPLES: &str = "Examples:
  tidemill sync cloud:run-7 /raw                  copy new and changed files
  tidemill sync /results cloud:run-7 --delete     also delete files in run-7 that /results does not have
  tidemill sync /results cloud:run-7 --delete --dry-run    show the files, and change nothing";

/// Copy new and changed files from a directory of a remote to a directory of the cluster, or the other way round
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Source directory: NAME:PATH in a remote, or /PATH in the cluster
    #[arg(value_name = "SRC")]
    from: OsString,
    /// Destination directory: /PATH in the cluster if the source is in a remote, else NAME:PATH
    #[arg(value_name = "DST")]
    to: OsString,
    /// Delete files in DST that SRC does not have, if all files of SRC were copied
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    way: TransferArgs,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    for path in [&args.from, &args.to] {
        let path = shown(path);
        ensure!(
            !import::is_pattern(&path),
            "{path} is a pattern: give a directory, or use `tidemill cp`"
        );
    }
    let (mut summary, mut names) = (Summary::new(args.way.dry_run), HashSet::new());
    match (Location::parse(&args.from)?, Location::parse(&args.to)?) {
        (Location::Remote(name, path), Location::Cluster(to)) => {
            let transfer = Arc::new(RemoteTransfer::new(context, &args.way, &name).await?);
            // With a file as the source, --delete would delete all other files of the destination.
            ensure!(
                path.is_empty() || transfer.opened.remote.stat(&path).await.is_err(),
                "{name}:{path} is a file: give a directory, or use `tidemill cp`"
            );
            let found = (&mut summary, &mut names);
            import::from(context, &transfer, (path.as_str(), &to), found).await?;
            if may_delete(&args, &summary)? {
                delete_here(&transfer, &to, &names, (context, &mut summary)).await?;
            }
            transfer.progress.end();
        }
        (Location::Cluster(path), Location::Remote(name, to)) => {
            let transfer = Arc::new(RemoteTransfer::new(context, &args.way, &name).await?);
            let found = files::resolve(&transfer.server, &path, true).await?;
            ensure!(kind(&found) == Kind::Directory, "not a directory: {path}");
            let found = (&mut summary, &mut names);
            export::into(context, &transfer, (&path, to.as_str()), found).await?;
            if may_delete(&args, &summary)? {
                delete_there(&transfer, &to, &names, (context, &mut summary)).await?;
            }
            transfer.progress.end();
        }
        _ => return Err(no_remote(&args.from, &args.to)),
    }
    summary.end(context, "copied")
}

/// Returns whether files may be deleted: all files of the source were copied.
///
/// # Errors
/// If the source has no files.
fn may_delete(args: &Args, summary: &Summary) -> anyhow::Result<bool> {
    if !args.delete || !summary.is_whole() {
        return Ok(false);
    }
    ensure!(
        !summary.is_empty(),
        "no files to copy: {}: no such directory, or an empty directory; nothing was deleted",
        shown(&args.from)
    );
    Ok(true)
}

async fn delete_there(
    transfer: &RemoteTransfer,
    to: &str,
    names: &HashSet<String>,
    (context, summary): (&CommandContext, &mut Summary),
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
        let shown = transfer.remote(&path);
        if !transfer.dry_run {
            let removed = remote.remove(&path).await;
            removed.with_context(|| format!("can't delete {shown}"))?;
        }
        summary.delete(context, shown)?;
    }
    Ok(())
}

async fn delete_here(
    transfer: &RemoteTransfer,
    to: &files::ClusterPath,
    names: &HashSet<String>,
    (context, summary): (&CommandContext, &mut Summary),
) -> anyhow::Result<()> {
    let top = match files::inode(&transfer.server, to).await {
        Err(error) if transfer.dry_run && error.is(rustix::io::Errno::NOENT) => return Ok(()),
        top => top?,
    };
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
                    if !transfer.dry_run {
                        unlink(transfer, parent, entry.name)
                            .await
                            .with_context(|| format!("can't delete {path}"))?;
                    }
                    summary.delete(context, path)?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

async fn unlink(transfer: &RemoteTransfer, parent: u64, name: Vec<u8>) -> anyhow::Result<()> {
    let unlink = v1::Unlink {
        parent,
        name,
        ..v1::Unlink::default()
    };
    let server = &transfer.server;
    server.one(&credentials(), Op::Unlink(unlink)).await?;
    Ok(())
}
