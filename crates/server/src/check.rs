//! Compares the namespace with the objects of nodes, in both directions: objects that no file uses, and files whose object is missing, has
//! another length or is not sealed. If the request asks for repairs, this module asks nodes to seal objects or to set objects aside.
//!
//! All other work continues during the check, so each finding is confirmed by a second check before it is reported.

use crate::clock;
use crate::cluster::Cluster;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::objects::{ObjectAddress, Objects};
use tidemill_client::{Error, Trust};
use tidemill_meta::holdings::{self, SealedVersion};
use tidemill_meta::parts;
use tidemill_meta::placement::corruption;
use tidemill_meta::settings::Rebuilt;
use tidemill_meta::{Connection, Fault, SqliteNames, path_of, settings};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::PartOf;
use tidemill_wire::capability::Attributes;
use tidemill_wire::route::{self, ListedObject, SEAL_ALL_MAX};
use tidemill_wire::v1::{self, check_reply::Message};
use tokio::sync::mpsc::Sender;
use tonic::Status;

/// Pause between the two checks of a finding, which is longer than a seal or a removal takes.
const REST: Duration = Duration::from_secs(3);
/// Time limit for a node to list one directory of objects.
const LIST_MAX: Duration = Duration::from_secs(60);

/// Time in nanoseconds for which an unused object stays on its node after the check has set it aside. A database that is recovered in that
/// time does not know the object, which can then be found again.
const KEPT_NS: i64 = 7 * 24 * 3600 * 1_000_000_000;

/// The service that compares namespace and nodes, as described in the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    names: Arc<SqliteNames>,
    cluster: Arc<Cluster>,
    objects: Objects,
}

/// Channel to which the check sends its findings.
pub(crate) type Findings = Sender<Result<v1::CheckReply, Status>>;

/// Possible fault of one object, from the first check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuspectedFault {
    Orphan(u64),
    Missing(SealedVersion),
    Length(SealedVersion, u64),
    Unsealed(SealedVersion, u64),
}

type Suspicions = BTreeMap<u64, SuspectedFault>;

/// A check of nodes in progress, with its request.
struct CheckRun<'a> {
    check: &'a Check,
    request: v1::CheckRequest,
    found: &'a Findings,
    checked: v1::Checked,
}

impl Check {
    pub(crate) fn new(names: Arc<SqliteNames>, cluster: Arc<Cluster>, trust: &Trust) -> Self {
        Self {
            names,
            cluster,
            objects: Objects::new(Some(trust)),
        }
    }

    /// Checks all nodes. Reports the findings and, at the end, the number of checked objects.
    pub(crate) async fn run(&self, request: v1::CheckRequest, found: Findings) {
        let mut run = CheckRun {
            check: self,
            request,
            found: &found,
            checked: v1::Checked::default(),
        };
        for node in self.cluster.nodes() {
            if let Err(why) = run.node(node.node).await {
                let finding = v1::Finding {
                    kind: "unchecked".into(),
                    node: node.node,
                    text: why,
                    ..v1::Finding::default()
                };
                run.tell(finding).await;
            }
        }
        let message = Some(Message::Checked(run.checked));
        // The client may have disconnected.
        let _ = found.send(Ok(v1::CheckReply { message })).await;
    }

    async fn list(&self, node: u32, directory: u32) -> Result<Vec<ListedObject>, String> {
        let offline = || format!("node {node} is offline");
        let remote = ObjectAddress {
            node: NodeId(node),
            url: self.cluster.url(node).ok_or_else(offline)?.into(),
            object: ObjectId::STATUS,
            capability: self.names.shared().sign_for_listing(node),
        };
        let listed = tokio::time::timeout(LIST_MAX, self.objects.list(&remote, directory)).await;
        let silent = |_| format!("node {node} does not answer");
        listed
            .map_err(silent)?
            .map_err(|error: Error| error.to_string())
    }
}

fn text(fault: Fault) -> String {
    fault.to_string()
}

impl CheckRun<'_> {
    async fn tell(&self, finding: v1::Finding) {
        let message = Some(Message::Finding(finding));
        let _ = self.found.send(Ok(v1::CheckReply { message })).await;
    }

    async fn node(&mut self, node: u32) -> Result<(), String> {
        let database = self.check.names.database();
        let held = database
            .read(|db| holdings::of_node(db, node))
            .map_err(text)?;
        self.checked.files += held.len() as u64;
        let held = by_directory(held);
        let before = self.checked.objects;
        let mut first = Suspicions::new();
        for directory in 0..route::DIRECTORIES {
            let listed = self.check.list(node, directory).await?;
            self.checked.objects += listed.len() as u64;
            first.extend(self.compare(node, &listed, held.get(&directory))?);
        }
        self.checked.nodes += 1;
        if first.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(REST).await;
        let held = database
            .read(|db| holdings::of_node(db, node))
            .map_err(text)?;
        let held = by_directory(held);
        let directories: BTreeSet<u32> = first.keys().map(|&object| directory_of(object)).collect();
        let mut found = Suspicions::new();
        for directory in directories {
            let listed = self.check.list(node, directory).await?;
            let mut again = self.compare(node, &listed, held.get(&directory))?;
            again.retain(|object, _| first.contains_key(object));
            found.extend(again);
        }
        let (repaired, held_back) = if self.request.repair {
            let held_back = self.held_back(&found, self.checked.objects - before)?;
            let remove = self.request.remove && held_back.is_none();
            (self.repair(node, &found, remove).await?, held_back)
        } else {
            (BTreeSet::new(), None)
        };
        for (object, suspicion) in found {
            let repaired = repaired.contains(&object);
            let mut finding = self.finding(node, object, suspicion, repaired);
            if let (SuspectedFault::Orphan(_), Some(why)) = (suspicion, held_back) {
                finding.text = format!("{}; {why}", finding.text);
            }
            self.tell(finding).await;
        }
        Ok(())
    }

    /// Compares the objects in one directory of a node with the objects that the namespace expects there.
    fn compare(
        &self,
        node: u32,
        listed: &[ListedObject],
        held: Option<&BTreeMap<u64, SealedVersion>>,
    ) -> Result<Suspicions, String> {
        let mut suspicions: Suspicions = held
            .into_iter()
            .flatten()
            .map(|(&object, &held)| (object, SuspectedFault::Missing(held)))
            .collect();
        let mut others = Vec::new();
        for one in listed {
            let Some(&file) = held.and_then(|held| held.get(&one.object)) else {
                if one.age_ns >= self.request.age_ns_min {
                    others.push(one.object);
                }
                continue;
            };
            if one.size != file.size {
                suspicions.insert(one.object, SuspectedFault::Length(file, one.size));
            } else if !one.sealed {
                suspicions.insert(one.object, SuspectedFault::Unsealed(file, one.size));
            } else {
                suspicions.remove(&one.object);
            }
        }
        let names = &self.check.names;
        let unknown = names
            .database()
            .read(|db| holdings::unknown(db, names.shared(), node, &others))
            .map_err(text)?;
        let sizes = listed.iter().map(|one| (one.object, one.size));
        let orphans = sizes.filter(|(object, _)| unknown.contains(object));
        suspicions.extend(orphans.map(|(object, size)| (object, SuspectedFault::Orphan(size))));
        Ok(suspicions)
    }

    /// Returns the reason why the node's unused objects may not be removed now, or `None` if they may be removed.
    fn held_back(&self, found: &Suspicions, listed: u64) -> Result<Option<&'static str>, String> {
        let rebuilt = self.check.names.database().read(settings::rebuilt);
        let Some((at, how)) = rebuilt.map_err(text)? else {
            return Ok(None);
        };
        let less = how != Rebuilt::Complete;
        let orphans = found
            .values()
            .filter(|one| matches!(one, SuspectedFault::Orphan(_)));
        Ok(held_back(
            (at, less),
            clock::now_ns(),
            (orphans.count() as u64, listed),
        ))
    }

    /// Repairs as many faults of a node's objects as possible. Returns the repaired objects.
    async fn repair(
        &self,
        node: u32,
        found: &Suspicions,
        remove: bool,
    ) -> Result<BTreeSet<u64>, String> {
        let orphans: Vec<u64> = found
            .iter()
            .filter(|(_, suspicion)| remove && matches!(suspicion, SuspectedFault::Orphan(_)))
            .map(|(&object, _)| object)
            .collect();
        let names = &self.check.names;
        let shared = names.shared().clone();
        let removed = names.database().write(move |db| {
            let at = clock::now_ns().saturating_add(KEPT_NS);
            holdings::remove_unknown(db, &shared, node, &orphans, at)
        });
        let mut repaired = removed.await.map_err(text)?;
        let open: Vec<(u64, Attributes)> = found
            .iter()
            .filter_map(|(&object, suspicion)| match suspicion {
                SuspectedFault::Unsealed(held, _) => Some((object, self.attributes(object, held))),
                _ => None,
            })
            .collect();
        for batch in open.chunks(SEAL_ALL_MAX) {
            let results = self
                .check
                .cluster
                .seal_all(&self.check.objects, node, batch);
            for result in results.await? {
                if result.status == 200 {
                    repaired.insert(result.object);
                }
            }
        }
        Ok(repaired)
    }

    fn path(&self, held: &SealedVersion) -> Vec<u8> {
        let path = |db: &Connection| path_of(db, held.ino);
        let path = self.check.names.database().read(path);
        path.ok().flatten().unwrap_or_default()
    }

    /// Returns a description of how an object on a node is corrupt, if the node has set the object aside.
    fn corruption(&self, object: u64, node: u32) -> Option<String> {
        let of = |db: &Connection| corruption::of(db, object);
        let corrupt = self.check.names.database().read(of).ok()?;
        let mut corrupt = corrupt.into_iter();
        corrupt.find_map(|(on, what)| (on == node).then_some(what))
    }

    fn attributes(&self, object: u64, held: &SealedVersion) -> Attributes {
        let part = |db: &Connection| parts::part_of(db, object);
        let part = self.check.names.database().read(part).ok().flatten();
        Attributes {
            inode: held.ino,
            path: self.path(held),
            uid: held.owner.0,
            gid: held.owner.1,
            mode: held.mode,
            part: part.map(PartOf::to_bytes),
        }
    }

    fn finding(
        &self,
        node: u32,
        object: u64,
        suspicion: SuspectedFault,
        repaired: bool,
    ) -> v1::Finding {
        let (kind, held, size, text) = match suspicion {
            SuspectedFault::Orphan(size) => {
                let mut text = "no name, version, job or writer refers to it".to_owned();
                if repaired {
                    text += "; it is kept for a week, then removed";
                }
                ("orphan", None, size, text)
            }
            SuspectedFault::Missing(held) => match self.corruption(object, node) {
                Some(what) => ("corrupt", Some(held), 0, format!("it {what}")),
                None => (
                    "missing",
                    Some(held),
                    0,
                    "it does not exist on the node".to_owned(),
                ),
            },
            SuspectedFault::Length(held, size) => {
                let text = format!(
                    "it has {size} bytes on the node, and the file has {}",
                    held.size
                );
                ("length", Some(held), size, text)
            }
            SuspectedFault::Unsealed(held, size) => {
                let text = "it is not sealed on the node".to_owned();
                ("unsealed", Some(held), size, text)
            }
        };
        v1::Finding {
            kind: kind.into(),
            node,
            object,
            size,
            path: held.map_or_else(Vec::new, |held| self.path(&held)),
            text,
            repaired,
        }
    }
}

/// Returns the reason why objects that a recovered database does not know may not be removed, or `None`. `orphans` is the number of unused
/// objects among the node's `listed` objects.
fn held_back(
    (rebuilt_at, less): (i64, bool),
    now: i64,
    (orphans, listed): (u64, u64),
) -> Option<&'static str> {
    if now.saturating_sub(rebuilt_at) >= KEPT_NS {
        return None;
    }
    if less {
        return Some(
            "it is kept: this database was recovered less than a week ago, and not completely; see `tidemill server recover`",
        );
    }
    (orphans.saturating_mul(2) > listed).then_some(
        "it is kept: this database was recovered less than a week ago, and knows less than half of this node's objects",
    )
}

/// Groups the expected objects by the directory in which their node stores them.
fn by_directory(held: BTreeMap<u64, SealedVersion>) -> BTreeMap<u32, BTreeMap<u64, SealedVersion>> {
    let mut directories: BTreeMap<u32, BTreeMap<u64, SealedVersion>> = BTreeMap::new();
    for (object, file) in held {
        let directory = directories.entry(directory_of(object)).or_default();
        directory.insert(object, file);
    }
    directories
}

/// Returns the number of the directory in which a node stores an object.
fn directory_of(object: u64) -> u32 {
    u32::try_from(object % u64::from(route::DIRECTORIES)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fsck_keeps_orphans_for_days_after_incomplete_database_recovery() {
        let (few, most) = ((1, 100), (60, 100));
        assert!(held_back((1000, true), 2000, few).is_some());
        assert!(held_back((1000, false), 2000, most).is_some());
        assert!(held_back((1000, false), 2000, few).is_none());
        for less in [true, false] {
            assert!(held_back((1000, less), 1000 + KEPT_NS, most).is_none());
        }
    }
}
