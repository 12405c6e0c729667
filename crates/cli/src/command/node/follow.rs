//! Scans the external store of a node for attached directories of the cluster: a new or changed object becomes a version, and the file of a
//! deleted object is removed. `model::follow` decides about each object.

mod files;

use anyhow::{Context as _, ensure};
use files::{FollowOutcome, FollowedFiles};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidemill_client::{Credential, Endpoint, Server};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_node::backend::{AttachedDirectory, Follower};
use tidemill_remote::{ListedItem, Remote, RemoteAddress, StoreFile};
use tidemill_wire::v1;
use tokio::task::JoinSet;

/// Interval at which the server is asked for due scans.
const PERIOD: Duration = Duration::from_secs(1);
/// Number of objects that are compared with known files at once.
const PAGE: usize = 1000;
/// Number of files that are made at once.
const AT_ONCE: usize = 8;
/// Pause before another scan of a store in which something could not be decided yet.
const SOON: Duration = Duration::from_secs(2);

/// A store, and the task that scans it.
#[derive(Debug)]
struct Looker {
    known: Follower,
    remote: Remote,
    place: RemoteAddress,
    node: NodeId,
    server: Server,
}

/// Time of the next scan of each remote; `None` if no time is known. This process has not scanned a remote that is missing here.
#[derive(Debug, Default)]
struct Dues(BTreeMap<String, Option<Instant>>);

impl Dues {
    fn is_due(&self, remote: &str, attachment: &v1::Attachment) -> bool {
        let due = match self.0.get(remote) {
            None => true,
            Some(None) => attachment.answered == 0,
            Some(Some(due)) => *due <= Instant::now(),
        };
        due || attachment.asked > attachment.answered
    }
}

/// A scan in progress.
#[derive(Debug)]
struct DirectoryScan {
    remote: String,
    number: u64,
    /// True until the server has received the first report of this scan.
    fresh: bool,
    attached: AttachedDirectory,
    files: Arc<FollowedFiles>,
    found: u64,
    passed: u64,
    example: String,
    /// Whether something could not be decided.
    again: bool,
}

/// Scans forever.
pub(super) async fn stay(
    known: Follower,
    (remote, place): (Remote, RemoteAddress),
    (node, (endpoint, credential)): (NodeId, (Endpoint, Option<Credential>)),
) {
    let mut dues = Dues::default();
    loop {
        // The node itself logs that the server can't be reached.
        if let Ok(server) = Server::connect(&endpoint, credential.as_ref()).await {
            let looker = Looker {
                known: known.clone(),
                remote: remote.clone(),
                place: place.clone(),
                node,
                server,
            };
            let ended = looker.serve(&mut dues).await;
            tracing::debug!("the scans of the store have ended: {ended:#}");
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Returns a number that no earlier scan has used.
fn number() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| u64::try_from(since.as_nanos()).unwrap_or(1))
}

impl Looker {
    /// Scans until the server can't be reached any more; returns the reason.
    async fn serve(&self, dues: &mut Dues) -> anyhow::Error {
        let mut after = ObjectId(0);
        loop {
            match self.turn(dues).await {
                Ok(false) => {}
                Ok(true) => after = self.forget_some(after).await,
                Err(error) => return error,
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    async fn forget_some(&self, after: ObjectId) -> ObjectId {
        let known = self.known.clone();
        let forgotten = tokio::task::spawn_blocking(move || known.forget_some(after)).await;
        match forgotten {
            Ok(Ok(after)) => after,
            _ => after,
        }
    }

    /// Scans all remotes that are due. Returns whether one was due.
    async fn turn(&self, dues: &mut Dues) -> anyhow::Result<bool> {
        let request = v1::AttachedRequest { node: self.node.0 };
        let reply = self.server.remotes().attached(request).await;
        let remotes = reply.map_err(|status| self.server.explain(status))?;
        let remotes = remotes.into_inner().remotes;
        // A remote to another store than the node's fails in its own scan.
        let at = remotes.iter().map(|remote| self.attached(remote).ok());
        let at: Vec<Option<AttachedDirectory>> = at.collect();
        let all = || remotes.iter().zip(&at);
        let writes = all().filter(|(remote, _)| !remote.read_only);
        let writes = writes.filter_map(|(_, at)| at.clone()).collect();
        self.known.attach(writes).await?;
        let is_attached = |name: &str| remotes.iter().any(|remote| remote.name == name);
        dues.0.retain(|name, _| is_attached(name));
        self.known.keep_problems_of(is_attached);
        let changed = self.known.changed();
        for (remote, at) in all() {
            let hit = |path: &String| at.as_ref().is_some_and(|at| at.name(path).is_some());
            if changed.iter().any(hit) {
                dues.0.insert(remote.name.clone(), Some(Instant::now()));
            }
        }
        let mut looked = false;
        for remote in &remotes {
            let Some(attachment) = &remote.attachment else {
                continue;
            };
            if dues.is_due(&remote.name, attachment) {
                let again = self.look(remote, attachment).await?;
                let every = Duration::from_secs(u64::from(attachment.every_s));
                let after = match (again, attachment.every_s) {
                    (true, _) => Some(SOON),
                    (false, 0) => None,
                    (false, _) => Some(every),
                };
                let due = after.map(|after| Instant::now() + after);
                dues.0.insert(remote.name.clone(), due);
                looked = true;
            }
        }
        Ok(looked)
    }

    /// Returns the path of a remote's directory in the node's store.
    fn attached(&self, remote: &v1::Remote) -> anyhow::Result<AttachedDirectory> {
        let place = RemoteAddress::parse(&remote.uri)?;
        let prefix = place
            .seen_from(&self.place, "")
            .with_context(|| format!("{} is not in the store of node {}", remote.uri, self.node))?;
        let attachment = remote.attachment.as_ref().context("it is not attached")?;
        Ok(AttachedDirectory {
            directory: attachment.directory.clone(),
            prefix: prefix.trim_matches('/').to_owned(),
        })
    }

    /// Scans the whole store and reports the result. Returns whether another scan is due soon.
    async fn look(&self, remote: &v1::Remote, attachment: &v1::Attachment) -> anyhow::Result<bool> {
        let mut look = DirectoryScan {
            remote: remote.name.clone(),
            number: number(),
            fresh: true,
            attached: self.attached(remote).unwrap_or(AttachedDirectory {
                directory: attachment.directory.clone(),
                prefix: String::new(),
            }),
            files: Arc::new(FollowedFiles::new(
                self.server.clone(),
                self.node,
                attachment.clone(),
                (self.known.clone(), self.remote.clone()),
            )),
            found: 0,
            passed: 0,
            example: String::new(),
            again: false,
        };
        let gone_through = async {
            self.attached(remote)?;
            look.files.begin(!remote.read_only).await?;
            self.through(&mut look).await
        };
        let trouble = match gone_through.await {
            Ok(()) => String::new(),
            Err(error) => match error.downcast_ref::<tidemill_client::Error>() {
                // The server has restarted, or the remote is attached to another directory: the scan starts again.
                Some(tidemill_client::Error::Refused(status))
                    if status.code() == tonic::Code::Aborted =>
                {
                    return Ok(true);
                }
                Some(tidemill_client::Error::Unreachable { .. }) => return Err(error),
                _ => format!("remote {}: {error:#}", remote.name),
            },
        };
        if !trouble.is_empty() {
            tracing::warn!(trouble, "files stay as they are; the scan is repeated");
        }
        self.known.say(&remote.name, &trouble);
        let looked = v1::LookedRequest {
            remote: remote.name.clone(),
            asked: attachment.asked,
            passed: look.passed,
            example: look.example,
            trouble,
        };
        let reported = self.server.remotes().looked(looked).await;
        match reported {
            Ok(_) => Ok(look.again),
            // The remote was detached during the scan.
            Err(status) if status.code() == tonic::Code::NotFound => {
                self.known.say(&remote.name, "");
                Ok(false)
            }
            Err(status) => Err(self.server.explain(status).into()),
        }
    }

    async fn through(&self, look: &mut DirectoryScan) -> anyhow::Result<()> {
        self.remote.renew();
        let mut listed = self.remote.list(&look.attached.prefix);
        let mut page = Vec::new();
        while let Some(one) = listed.next().await? {
            match one {
                ListedItem::Object(object) => page.push(object),
                ListedItem::Passed(path, what) => look.pass(&path, what),
            }
            if page.len() == PAGE {
                self.page(look, std::mem::take(&mut page)).await?;
            }
        }
        self.page(look, page).await?;
        self.missing(look).await
    }

    /// Compares some objects with known files, and makes files of new objects.
    async fn page(&self, look: &mut DirectoryScan, page: Vec<StoreFile>) -> anyhow::Result<()> {
        look.found += page.len() as u64;
        let attached = look.attached.clone();
        let named = page.into_iter().filter_map(|object| {
            let name = attached.name(&object.path)?.to_owned();
            Some((name, object))
        });
        let page: Vec<(String, StoreFile)> = named.collect();
        let at = |(name, object): &(String, StoreFile)| v1::LookedAt {
            path: name.clone(),
            size: object.size,
            tag: object.tag.clone(),
        };
        let request = v1::LookRequest {
            remote: look.remote.clone(),
            look: look.number,
            first: look.fresh,
            page: page.iter().map(at).collect(),
            directory: look.attached.directory.clone(),
        };
        look.fresh = false;
        let reply = self.server.remotes().look(request).await;
        let reply = reply.map_err(|status| self.server.explain(status))?;
        let mut making = JoinSet::new();
        let mut followed = Vec::new();
        for differs in reply.into_inner().differ {
            let index = usize::try_from(differs.index).unwrap_or(usize::MAX);
            let one = page
                .get(index)
                .context("the server answers for a file that was not asked for")?;
            if making.len() >= AT_ONCE
                && let Some(done) = making.join_next().await
            {
                look.done(done??, &mut followed);
            }
            let noted = (differs.object != 0).then_some(ObjectId(differs.object));
            let (files, (name, object), at) = (look.files.clone(), one.clone(), at(one));
            making.spawn(async move {
                let done = files.take(&name, object, noted).await?;
                anyhow::Ok((at, done))
            });
        }
        while let Some(done) = making.join_next().await {
            look.done(done??, &mut followed);
        }
        if followed.is_empty() {
            return Ok(());
        }
        let request = v1::FollowRequest {
            remote: look.remote.clone(),
            look: look.number,
            followed,
        };
        let noted = self.server.remotes().follow(request).await;
        noted.map_err(|status| self.server.explain(status))?;
        Ok(())
    }

    /// Removes known files that the scan has not seen, after a check that their objects are really deleted.
    async fn missing(&self, look: &DirectoryScan) -> anyhow::Result<()> {
        let mut after = 0;
        loop {
            let request = v1::MissingRequest {
                remote: look.remote.clone(),
                look: look.number,
                after,
            };
            let reply = self.server.remotes().missing(request).await;
            let reply = reply.map_err(|status| self.server.explain(status))?;
            let reply = reply.into_inner();
            ensure!(
                look.found > 0 || reply.missing.is_empty(),
                "the store has no objects any more: files stay; remove the files if that is right, or detach the remote"
            );
            if !reply.missing.is_empty() {
                self.known.is_there().await?;
            }
            let mut numbers = Vec::new();
            for one in reply.missing {
                let path = look.attached.at(&one.path);
                match self.remote.stat(&path).await {
                    Err(error) if is_deleted(&error) => numbers.push(one.number),
                    Ok(_) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if !numbers.is_empty() {
                let request = v1::LeaveRequest {
                    remote: look.remote.clone(),
                    look: look.number,
                    numbers,
                };
                let left = self.server.remotes().leave(request).await;
                left.map_err(|status| self.server.explain(status))?;
            }
            if reply.end {
                return Ok(());
            }
            after = reply.last;
        }
    }
}

/// Returns whether it is certain that no file has this name.
fn is_deleted(error: &tidemill_remote::Error) -> bool {
    error.is_missing() || matches!(error, tidemill_remote::Error::NoFile { .. })
}

impl DirectoryScan {
    fn pass(&mut self, path: &str, why: &str) {
        self.passed += 1;
        if self.example.is_empty() {
            self.example = format!("{path}: {why}");
        }
    }

    fn done(
        &mut self,
        (at, done): (v1::LookedAt, FollowOutcome),
        followed: &mut Vec<v1::Followed>,
    ) {
        match done {
            FollowOutcome::Is(ObjectId(object)) => followed.push(v1::Followed {
                at: Some(at),
                object,
            }),
            FollowOutcome::Own => {}
            FollowOutcome::Later => self.again = true,
            FollowOutcome::Passed(why) => self.pass(&at.path, &why),
        }
    }
}
