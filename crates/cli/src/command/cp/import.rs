//! Copies files of a remote into the cluster.

use crate::command::remote::summary::{FileOutcome, Summary};
use crate::command::remote::transfer::{AT_ONCE, RemoteTransfer};
use crate::context::CommandContext;
use crate::files;
use anyhow::Context as _;
use std::collections::HashSet;
use std::sync::Arc;
use tidemill_model::glob::Pattern;
use tidemill_remote::{Error, ListedItem};
use tokio::task::JoinSet;

/// Whether a path is a pattern.
pub(in crate::command) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Selection of files below a directory: all files, or files with a matching path.
pub(in crate::command) struct ChosenFiles {
    pub(in crate::command) directory: String,
    pattern: Option<Pattern>,
}

impl ChosenFiles {
    pub(in crate::command) fn new(text: &str) -> anyhow::Result<Self> {
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
    pub(in crate::command) fn name<'a>(&self, path: &'a str) -> Option<&'a str> {
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

/// Copies the objects at or below a path of the store, and notes the objects and their names below `to`.
pub(in crate::command) async fn from(
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
            summary.add(context, transferred)?;
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
            summary.add(context, done?)?;
        }
        let (transfer, to) = (transfer.clone(), to.join(name));
        running.spawn(async move { transfer.import(&object, &to).await });
    }
    while let Some(done) = running.join_next().await {
        summary.add(context, done?)?;
    }
    Ok(())
}
