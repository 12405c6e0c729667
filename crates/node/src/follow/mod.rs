//! Scans the external store of a node for attached directories of the cluster: a new or changed object becomes a version, and the file of a
//! deleted object is removed. `model::follow` decides about each object.

mod files;

use crate::backend::{AttachedDirectory, BackendSettings, Follower};
use crate::daemon::Daemon;
use crate::db::DbError;
use files::{FollowOutcome, FollowedFiles};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidemill_client::Server;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_remote::{ListedItem, RemoteAddress, StoreFile};
use tidemill_wire::v1;
use tokio::task::{JoinError, JoinSet};

/// Interval at which the server is asked for due scans.
const PERIOD: Duration = Duration::from_secs(1);
/// Number of objects that are compared with known files at once.
const PAGE: usize = 1000;
/// Number of files that are made at once.
const AT_ONCE: usize = 8;
/// Pause before another scan of a store in which something could not be decided yet.
const SOON: Duration = Duration::from_secs(2);

/// Reason why a scan has ended early.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Client(#[from] tidemill_client::Error),
    #[error("{0}: {1}")]
    File(String, tidemill_client::Error),
    #[error(transparent)]
    Store(#[from] tidemill_remote::Error),
    #[error(transparent)]
    Db(#[from] DbError),
    #[error(transparent)]
    Thread(#[from] JoinError),
    #[error("{0}")]
    Other(String),
}

impl FollowError {
    fn client(&self) -> Option<&tidemill_client::Error> {
        match self {
            Self::Client(error) | Self::File(_, error) => Some(error),
            _ => None,
        }
    }
}

/// A store, and the task that scans it.
#[derive(Debug)]
struct Looker {
    known: Follower,
    at: BackendSettings,
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

/// Scans the external store of a node with a backend until the node stops.
pub(crate) async fn stay(daemon: Arc<Daemon>) {
    let (Some(at), Some(backend)) = (&daemon.config.backend, &daemon.parts().backend) else {
        return;
    };
    let known = Follower::new(Arc::clone(backend));
    let (endpoint, credential) = (&daemon.config.server, daemon.config.credential.as_ref());
    let mut dues = Dues::default();
    loop {
        // The node itself logs that the server can't be reached.
        if let Ok(server) = Server::connect(endpoint, credential).await {
            let looker = Looker {
                known: known.clone(),
                at: at.clone(),
                node: daemon.config.node,
                server,
            };
            let ended = looker.serve(&mut dues).await;
            tracing::debug!("the scans of the store have ended: {ended}");
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
    async fn serve(&self, dues: &mut Dues) -> FollowError {
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
    async fn turn(&self, dues: &mut Dues) -> Result<bool, FollowError> {
        let request = v1::AttachedRequest { node: self.node.0 };
        let reply = self.server.remotes().attached(request).await;
        let remotes = self.server.answer(reply)?.remotes;
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
    fn attached(&self, remote: &v1::Remote) -> Result<AttachedDirectory, FollowError> {
        let place = RemoteAddress::parse(&remote.uri)?;
        let prefix = place.seen_from(&self.at.address, "").ok_or_else(|| {
            let (uri, node) = (&remote.uri, self.node);
            FollowError::Other(format!("{uri} is not in the store of node {node}"))
        })?;
        let attachment = remote.attachment.as_ref();
        let attachment =
            attachment.ok_or_else(|| FollowError::Other("it is not attached".into()))?;
        Ok(AttachedDirectory {
            directory: attachment.directory.clone(),
            prefix: prefix.trim_matches('/').to_owned(),
        })
    }

    /// Scans the whole store and reports the result. Returns whether another scan is due soon.
    async fn look(
        &self,
        remote: &v1::Remote,
        attachment: &v1::Attachment,
    ) -> Result<bool, FollowError> {
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
                (self.known.clone(), self.at.scans.clone()),
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
            Err(error) => match error.client() {
                // The server has restarted, or the remote is attached to another directory: the scan starts again.
                Some(tidemill_client::Error::Refused(status))
                    if status.code() == tonic::Code::Aborted =>
                {
                    return Ok(true);
                }
                Some(tidemill_client::Error::Unreachable { .. }) => return Err(error),
                _ => format!("remote {}: {error}", remote.name),
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

    async fn through(&self, look: &mut DirectoryScan) -> Result<(), FollowError> {
        self.at.scans.renew();
        let mut listed = self.at.scans.list(&look.attached.prefix);
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
    async fn page(
        &self,
        look: &mut DirectoryScan,
        page: Vec<StoreFile>,
    ) -> Result<(), FollowError> {
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
        let reply = self
            .server
            .answer(self.server.remotes().look(request).await)?;
        let mut making = JoinSet::new();
        let mut followed = Vec::new();
        for differs in reply.differ {
            let index = usize::try_from(differs.index).unwrap_or(usize::MAX);
            let one = page.get(index).ok_or_else(|| {
                FollowError::Other("the server answers for a file that was not asked for".into())
            })?;
            if making.len() >= AT_ONCE
                && let Some(done) = making.join_next().await
            {
                look.done(done??, &mut followed);
            }
            let noted = (differs.object != 0).then_some(ObjectId(differs.object));
            let (files, (name, object), at) = (look.files.clone(), one.clone(), at(one));
            making.spawn(async move {
                let done = files.take(&name, object, noted).await?;
                Ok::<_, FollowError>((at, done))
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
        self.server
            .answer(self.server.remotes().follow(request).await)?;
        Ok(())
    }

    /// Removes known files that the scan has not seen, after a check that their objects are really deleted.
    async fn missing(&self, look: &DirectoryScan) -> Result<(), FollowError> {
        let mut after = 0;
        loop {
            let request = v1::MissingRequest {
                remote: look.remote.clone(),
                look: look.number,
                after,
            };
            let reply = self
                .server
                .answer(self.server.remotes().missing(request).await)?;
            if look.found == 0 && !reply.missing.is_empty() {
                return Err(FollowError::Other("the store has no objects any more: files stay; remove the files if that is right, or detach the remote".into()));
            }
            if !reply.missing.is_empty() {
                self.known.is_there().await?;
            }
            let mut numbers = Vec::new();
            for one in reply.missing {
                let path = look.attached.at(&one.path);
                match self.at.scans.stat(&path).await {
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
                self.server
                    .answer(self.server.remotes().leave(request).await)?;
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
