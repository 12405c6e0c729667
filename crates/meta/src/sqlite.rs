//! The namespace in one SQLite file. This module notifies watchers of committed changes (next: `meta/src/changes.rs`).

use super::apply::only_reads;
use super::attribute::{
    self, DIRECTORY_NODE, DIRECTORY_REPLICAS, DIRECTORY_STRIPES, DIRECTORY_TIER,
};
use super::changes::{ChangeSender, Changes};
use super::clock;
use super::commit::{Committed, Database};
use super::fault::Fault;
use super::ids;
use super::placement::corruption;
use super::random::random;
use super::schema::OpenError;
use super::settings;
use super::shared::NamesShared;
use super::transaction::Tx;
use super::vnode::{Caller, InodeRecord};
use super::workspaces::any_workspace;
use super::{
    Change, Changed, Names, NamesFuture, NamesRequest, OpenVersion, Unfinished, UnsealedCount,
    parts, writers,
};
use crate::Connection;
use crate::query::exists;
use std::path::Path;
use std::sync::Arc;
use tidemill_model::id::Inode;
use tidemill_wire::capability::CapabilityKey;
use tidemill_wire::v1;

/// The namespace in SQLite. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SqliteNames {
    database: Arc<Database>,
    shared: Arc<NamesShared>,
    teller: ChangeSender,
}

impl SqliteNames {
    /// Opens the namespace's database, or creates it with an empty root directory that belongs to `root_owner`.
    ///
    /// # Errors
    /// If the database can't be opened, or was created by a later release.
    pub fn open(path: &Path, root_owner: (u32, u32)) -> Result<Self, OpenError> {
        let (database, key) = Database::open(path, |db| first_steps(db, root_owner))?;
        Self::of(path, database, key)
    }

    /// Opens the namespace as [`Self::open`] does, but on a given connection, for a simulation; see [`Database::without_thread`].
    #[cfg(feature = "simulation")]
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the disk, at most once for each start"
    )]
    pub fn without_thread(
        connection: crate::commit::SimulatedDisk,
        root_owner: (u32, u32),
    ) -> Result<Self, (crate::commit::SimulatedDisk, OpenError)> {
        let first = |db: &Connection| first_steps(db, root_owner);
        let (database, key) = Database::without_thread(connection, first)?;
        Self::of(Path::new(":memory:"), database, key)
            .map_err(|error| unreachable!("a new database can be read: {error}"))
    }

    fn of(path: &Path, database: Database, key: CapabilityKey) -> Result<Self, OpenError> {
        let at = |fault: Fault| OpenError::Content {
            path: path.display().to_string(),
            reason: fault.to_string(),
        };
        let shared = NamesShared::new(key, database.low().clone(), database.wakes().clone());
        database.read(|db| load(db, &shared)).map_err(at)?;
        Ok(Self {
            database: Arc::new(database),
            shared: Arc::new(shared),
            teller: ChangeSender::new(),
        })
    }

    /// Returns the database of the namespace, which also has all other tables of the server.
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Returns the state that namespace requests share and that is not in the database, such as the space on nodes.
    pub fn shared(&self) -> &Arc<NamesShared> {
        &self.shared
    }

    /// Returns the sender that notifies watchers of committed changes of the namespace.
    pub fn teller(&self) -> &ChangeSender {
        &self.teller
    }

    /// Notifies watchers of changes in the namespace.
    pub fn tell(&self, changed: Changed) {
        self.teller.tell(changed);
    }

    /// Executes a request that changes nothing. Returns the request unexecuted if it changes something, or if a capability may have been
    /// signed with permissions that were withdrawn during the read. Such a request must run in the queue of changes, so that no change of
    /// permissions can overtake it.
    async fn apply_reads(
        &self,
        request: NamesRequest,
    ) -> Result<Result<Vec<v1::NameResult>, NamesRequest>, Fault> {
        if !request.ops.iter().all(only_reads) {
            return Ok(Err(request));
        }
        let changes = self.shared.granted().changes();
        let read = self.reads(&request);
        let results = self.database.read_for(&request.caller, read).await?;
        Ok(self.unless_overtaken(changes, request, results))
    }

    /// Executes a request as [`Self::apply_reads`] does, for threads outside the runtime.
    fn apply_reads_blocking(
        &self,
        request: NamesRequest,
    ) -> Result<Result<Vec<v1::NameResult>, NamesRequest>, Fault> {
        if !request.ops.iter().all(only_reads) {
            return Ok(Err(request));
        }
        let changes = self.shared.granted().changes();
        let read = self.reads(&request);
        let results = self.database.read_for_blocking(&request.caller, read)?;
        Ok(self.unless_overtaken(changes, request, results))
    }

    /// Returns the work of a request that changes nothing, to be run in one read transaction.
    fn reads(
        &self,
        request: &NamesRequest,
    ) -> impl FnOnce(&Connection) -> Result<Vec<v1::NameResult>, Fault> {
        move |db| {
            let (session, now) = (request.session, clock::now_ns());
            let tx = Tx::new(db, &self.shared, &request.caller, session, now);
            tx.bounded().apply_all(&request.ops, true)
        }
    }

    fn unless_overtaken(
        &self,
        changes: u64,
        request: NamesRequest,
        results: Vec<v1::NameResult>,
    ) -> Result<Vec<v1::NameResult>, NamesRequest> {
        if !request.caller.administrator && self.shared.granted().changes() != changes {
            return Err(request);
        }
        Ok(results)
    }

    /// Notifies watchers of the changes of a request. If a requested sync failed, the caller assumes that its request changed nothing, so
    /// the caller's own session is notified like the others.
    fn reported(
        &self,
        kept: Committed<(Vec<v1::NameResult>, Changed)>,
    ) -> Result<Vec<v1::NameResult>, Fault> {
        let (results, mut changed) = kept.value;
        for change in &changed.changes {
            if let Change::Rights(ino) = change {
                self.shared.granted().on_rights_changed(*ino);
            }
        }
        if kept.on_disk.is_err() {
            changed.session = 0;
        }
        self.tell(changed);
        kept.on_disk.map(|()| results)
    }

    /// Returns the work of a request that changes something, to be run in a commit.
    fn writes(
        &self,
        request: NamesRequest,
    ) -> impl FnOnce(&Connection) -> Result<(Vec<v1::NameResult>, Changed), Fault> + Send + 'static
    {
        let (shared, session) = (self.shared.clone(), request.session);
        move |db| {
            let now = clock::now_ns();
            let mut tx = Tx::new(db, &shared, &request.caller, session, now).bounded();
            let results = tx.apply_all(&request.ops, false)?;
            let changes = tx.changes;
            Ok((results, Changed { session, changes }))
        }
    }
}

/// Loads the state that requests read from memory instead of the database.
fn load(db: &Connection, shared: &NamesShared) -> Result<(), Fault> {
    shared.add_files(InodeRecord::count(db)?);
    if attribute::any(db, DIRECTORY_NODE)? {
        shared.set_directory_nodes();
    }
    if attribute::any(db, DIRECTORY_REPLICAS)? {
        shared.set_directory_replicas();
    }
    if attribute::any(db, DIRECTORY_STRIPES)? {
        shared.set_directory_stripes();
    }
    if attribute::any(db, DIRECTORY_TIER)? {
        shared.set_directory_tiers();
    }
    if parts::any(db)? {
        shared.set_parts();
    }
    if corruption::any(db)? {
        shared.set_corruption();
    }
    shared.nodes.load(db)?;
    shared.rules.load(db)?;
    if any_workspace(db)? {
        shared.quotas.set_any();
    }
    if exists(db, "SELECT 1 FROM space_reservation", [])? {
        shared.bursts.set_reserved();
    }
    Ok(())
}

/// Creates the content of a new database: the root directory and the key for capabilities. Returns the key.
fn first_steps(db: &Connection, (uid, gid): (u32, u32)) -> Result<CapabilityKey, Fault> {
    if InodeRecord::find(db, Inode::ROOT.0)?.is_none() {
        let root = InodeRecord::directory(Inode::ROOT.0, 0o755, (uid, gid), clock::now_ns());
        root.insert(db)?;
        settings::insert_identity(db, &random::<32>(), &random::<8>())?;
    }
    settings::key(db)
}

impl Names for SqliteNames {
    fn apply(&self, request: NamesRequest) -> NamesFuture<'_, Result<Vec<v1::NameResult>, Fault>> {
        Box::pin(async move {
            let durable = request.durable;
            let request = match self.apply_reads(request).await? {
                Ok(results) => {
                    if durable {
                        self.database.synced().await?;
                    }
                    return Ok(results);
                }
                Err(request) => request,
            };
            let share = self.database.writes().take(&request.caller).await;
            let work = self.writes(request);
            let names = self.clone();
            // The caller may cancel its request before the commit; watchers are informed in any case.
            let reported = tokio::spawn(async move {
                let _share = share;
                names.reported(names.database.write_durable(durable, work).await?)
            });
            reported.await.unwrap_or(Err(Fault::Closed))
        })
    }

    fn apply_blocking(&self, request: NamesRequest) -> Result<Vec<v1::NameResult>, Fault> {
        let durable = request.durable;
        let request = match self.apply_reads_blocking(request)? {
            Ok(results) => {
                if durable {
                    self.database.synced_here()?;
                }
                return Ok(results);
            }
            Err(request) => request,
        };
        let _share = self.database.writes().take_blocking(&request.caller);
        let work = self.writes(request);
        self.reported(self.database.write_here(durable, work)?)
    }

    fn reserve(
        &self,
        caller: Caller,
        inodes: u32,
        objects: u32,
    ) -> NamesFuture<'_, Result<(u64, u64), Fault>> {
        Box::pin(async move {
            let share = self.database.writes().take(&caller).await;
            let work = move |db: &Connection| {
                let _share = share;
                ids::reserve_for(db, &caller, inodes, objects)
            };
            self.database.write(work).await
        })
    }

    fn changes(&self) -> Changes {
        self.teller.changes()
    }

    fn new_session(&self) -> NamesFuture<'_, Result<u64, Fault>> {
        Box::pin(self.database.write(|db| ids::reserve(db, "session", 1)))
    }

    fn end_session(&self, session: u64) -> NamesFuture<'_, Result<(), Fault>> {
        self.shared.end_session(session);
        let shared = self.shared.clone();
        Box::pin(self.database.write(move |db| {
            let caller = Caller::root();
            Tx::new(db, &shared, &caller, 0, clock::now_ns()).purge_orphans()?;
            Ok(())
        }))
    }

    fn lockers(&self) -> Result<Vec<u64>, Fault> {
        self.database.read(settings::lockers)
    }

    fn set_locker(&self, session: u64, has: bool) -> NamesFuture<'_, Result<(), Fault>> {
        let work = move |db: &Connection| settings::set_locker(db, session, has);
        Box::pin(self.database.write(work))
    }

    fn written(&self, ino: u64) -> Result<Vec<OpenVersion>, Fault> {
        self.database.read(|db| writers::open_versions(db, ino))
    }

    fn unsealed(&self) -> Result<Vec<UnsealedCount>, Fault> {
        self.database.read(writers::unsealed)
    }

    fn unfinished(
        &self,
        writer: (u64, u32),
        after: u64,
        limit: usize,
    ) -> Result<Vec<Unfinished>, Fault> {
        self.database
            .read(|db| writers::unfinished(db, writer, after, limit))
    }

    fn abandon_silent(&self) -> NamesFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let shared = self.shared.clone();
            let abandoned = self
                .database
                .write(move |db| writers::abandon_silent(db, &shared, clock::now_ns()));
            let changes = abandoned.await?;
            self.tell(Changed {
                session: 0,
                changes,
            });
            Ok(())
        })
    }
}

#[cfg(any(test, feature = "simulation"))]
impl SqliteNames {
    /// Adds a node with free space, for tests.
    pub fn add_node(&self, node: tidemill_model::id::NodeId) {
        let mut spaces = super::shared::Spaces::clone(&self.shared().spaces());
        spaces.store.push(tidemill_model::layout::FreeSpace {
            leaving: false,
            memory: false,
            burst: false,
            backend: false,
            node,
            free_bytes: 1 << 40,
            answers: true,
        });
        self.shared().set_spaces(spaces);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::time::Duration;
    use tidemill_wire::v1::name_op::Op;

    #[tokio::test]
    async fn watchers_receive_changes_even_if_requester_disconnects() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let mut changes = names.changes();
        let chmod = v1::SetAttr {
            ino: Inode::ROOT.0,
            mode: Some(0o700),
            ..v1::SetAttr::default()
        };
        let request = NamesRequest {
            caller: Caller::root(),
            ops: vec![v1::NameOp {
                op: Some(Op::SetAttr(chmod)),
            }],
            ..NamesRequest::default()
        };
        // The request is polled once, then dropped.
        assert!(names.apply(request).now_or_never().is_none());
        let reported = tokio::time::timeout(Duration::from_secs(60), changes.next()).await;
        let reported = reported.expect("watchers are notified").unwrap();
        assert!(reported.changes.contains(&Change::Rights(Inode::ROOT.0)));
    }

    #[tokio::test]
    async fn durable_request_without_changes_syncs_write_ahead_log() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let look = |durable| NamesRequest {
            caller: Caller::root(),
            durable,
            ops: vec![v1::NameOp {
                op: Some(Op::GetAttr(v1::GetAttr {
                    ino: Inode::ROOT.0,
                    content: false,
                })),
            }],
            ..NamesRequest::default()
        };
        names.apply(look(false)).await.unwrap();
        assert_eq!(names.database().syncs(), 0);
        names.apply(look(true)).await.unwrap();
        assert_eq!(names.database().syncs(), 1);
        names.apply_blocking(look(true)).unwrap();
        assert_eq!(names.database().syncs(), 2);
        // A request without operations only reads.
        let empty = NamesRequest {
            ops: Vec::new(),
            ..look(true)
        };
        names.apply(empty).await.unwrap();
        assert_eq!(names.database().syncs(), 3);
    }
}
