//! Copies files of the cluster to a remote.

use super::import::{ChosenFiles, is_pattern};
use crate::command::remote::summary::{FileOutcome, Summary};
use crate::command::remote::transfer::{AT_ONCE, RemoteTransfer};
use crate::context::CommandContext;
use crate::files;
use crate::output::files::kind;
use anyhow::ensure;
use std::collections::HashSet;
use std::sync::Arc;
use tidemill_wire::v1::Kind;
use tokio::task::JoinSet;

fn below(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

/// Copies the files at or below a path of the cluster, and notes the files and their names below `to`.
pub(in crate::command) async fn into(
    context: &CommandContext,
    transfer: &Arc<RemoteTransfer>,
    (path, to): (&files::ClusterPath, &str),
    (summary, names): (&mut Summary, &mut HashSet<String>),
) -> anyhow::Result<()> {
    ensure!(
        !transfer.opened.read_only,
        "can't copy to remote {}: the remote is read-only",
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
        summary.add(context, transferred)?;
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
                        summary.add(context, done?)?;
                    }
                    let (transfer, to) = (transfer.clone(), below(to, name));
                    running.spawn(async move { transfer.export(&path, &to).await });
                }
                _ => summary.pass(context, &path, "not a file"),
            }
        }
    }
    while let Some(done) = running.join_next().await {
        summary.add(context, done?)?;
    }
    Ok(())
}
