//! Checks the first bytes of versions before the versions trigger a rule, if the rule requires a type of content. Nodes deliver the bytes.

use super::driver::RuleRunner;
use super::selection::TaskRuns;
use crate::files::{SourceNodes, VersionStream};
use crate::jobs::submit::layout;
use futures_util::{StreamExt as _, stream};
use std::collections::BTreeMap;
use tidemill_lang::rule::mime::HEAD_BYTES;
use tidemill_meta::rules::StoredRule;
use tidemill_meta::rules::runs::{MatchState, RuleRun};
use tidemill_meta::{Fault, version};

/// Number of versions that are read at the same time.
const AT_ONCE: usize = 16;

impl RuleRunner {
    /// Returns the rule runs whose versions have the required type of content, and records the others as ended. An unreadable version is
    /// left to its task, which reports the error.
    pub(super) async fn that_fit(
        &self,
        kept: &StoredRule,
        tasks: Vec<TaskRuns>,
    ) -> Result<Vec<TaskRuns>, Fault> {
        let Some(nodes) = &self.nodes else {
            return Ok(tasks);
        };
        let mut others = BTreeMap::new();
        let rule_runs: Vec<RuleRun> = tasks.iter().flatten().cloned().collect();
        let heads = stream::iter(rule_runs).map(|rule_run| async move {
            let head = self.head(nodes, &rule_run).await?;
            Ok::<_, Fault>((rule_run.rule_run, head))
        });
        let mut heads = heads.buffer_unordered(AT_ONCE);
        while let Some(found) = heads.next().await {
            let (rule_run, head) = found?;
            let fits = head.map_or(Ok(()), |head| kept.rule.conditions.fit_content(&head));
            if let Err(kind) = fits {
                others.insert(rule_run, format!("it holds {kind}"));
            }
        }
        drop(heads);
        self.end_queued(&tasks, others, MatchState::Other).await
    }

    /// Returns the first bytes of a version; `None` if the bytes can't be read now.
    async fn head(
        &self,
        nodes: &SourceNodes,
        rule_run: &RuleRun,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let found = self.names.database().read(|db| {
            let placed = version::placed(db, rule_run.object)?;
            Ok(placed.map(|placed| (placed.size, layout(db, placed))))
        })?;
        let Some((size, layout)) = found else {
            return Ok(None);
        };
        if size == 0 {
            return Ok(Some(Vec::new()));
        }
        let source = VersionStream::of_kept(nodes, layout);
        let head = source.window(0..size.min(HEAD_BYTES as u64)).await;
        Ok(head.ok().map(|bytes| bytes.to_vec()))
    }
}
