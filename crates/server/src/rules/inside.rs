//! Checks the first bytes of versions before they are fired, if a rule asks for that. The bytes are read from the nodes.

use super::driver::{Firer, without};
use super::ends::end;
use super::pick::{Firing, Task};
use super::{Kept, State, store::one};
use crate::clock;
use crate::files::{Nodes, Source};
use crate::jobs::submit::layout;
use crate::names::Fault;
use futures_util::{StreamExt as _, stream};
use rusqlite::Connection;
use std::collections::BTreeMap;
use tidemill_core::id::{NodeId, ObjectId};
use tidemill_core::object::Placed;
use tidemill_core::rule::mime::HEAD_BYTES;

/// Number of versions that are read at the same time.
const AT_ONCE: usize = 16;

impl Firer {
    /// Takes out versions with another kind of content, and records that. An unreadable version is left to its task, which reports the
    /// error.
    pub(super) async fn that_fit(&self, kept: &Kept, tasks: Vec<Task>) -> Result<Vec<Task>, Fault> {
        let Some(nodes) = &self.nodes else {
            return Ok(tasks);
        };
        let mut others = BTreeMap::new();
        let firings: Vec<Firing> = tasks.iter().flatten().cloned().collect();
        let heads = stream::iter(firings).map(|firing| async move {
            let head = self.head(nodes, &firing).await?;
            Ok::<_, Fault>((firing.firing, head))
        });
        let mut heads = heads.buffer_unordered(AT_ONCE);
        while let Some(found) = heads.next().await {
            let (firing, head) = found?;
            let fits = head.map_or(Ok(()), |head| kept.rule.conditions.fit_content(&head));
            if let Err(kind) = fits {
                others.insert(firing, format!("it holds {kind}"));
            }
        }
        drop(heads);
        let tasks = without(&tasks, |one| others.contains_key(&one.firing));
        if !others.is_empty() {
            let now = clock::now_ns();
            let shared = self.names.shared().clone();
            let write = move |db: &Connection| {
                for (firing, why) in others {
                    let before = (firing, State::Queued);
                    end(db, &shared.rules, before, State::Other, (&why, now))?;
                }
                Ok(())
            };
            self.names.database().write(write).await?;
        }
        Ok(tasks)
    }

    /// Returns the first bytes of a version; `None` if they can't be read now.
    async fn head(&self, nodes: &Nodes, firing: &Firing) -> Result<Option<Vec<u8>>, Fault> {
        let object = firing.object;
        let found = self.names.database().read(|db| {
            let sql = "SELECT size, node FROM version WHERE object = ?1";
            let found = one(db, sql, [object.cast_signed()], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            })?;
            Ok(found.map(|(size, node)| {
                let placed = Placed {
                    object: ObjectId(object),
                    node: NodeId(u32::try_from(node).unwrap_or(0)),
                    size: size.cast_unsigned(),
                };
                (placed.size, layout(db, placed))
            }))
        })?;
        let Some((size, layout)) = found else {
            return Ok(None);
        };
        if size == 0 {
            return Ok(Some(Vec::new()));
        }
        let source = Source::of_kept(nodes, layout);
        let head = source.window(0..size.min(HEAD_BYTES as u64)).await;
        Ok(head.ok().map(|bytes| bytes.to_vec()))
    }
}
