//! gRPC service of workspaces, and the removal of ended workspaces. The workspaces themselves are in `names/workspaces.rs`.

use crate::access::Access;
use crate::chores::{Chore, Due, Step};
use crate::clock;
use crate::feed::{FeedWaiters, Interest};
use crate::namespace_service::refused;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::budget::AccessLimits;
use tidemill_meta::feed::AwaitedPath;
use tidemill_meta::transaction::Tx;
use tidemill_meta::workspaces::{
    PathObject, SILENCE, WorkspaceRefusal, WorkspaceResult, next_work,
};
use tidemill_meta::{Caller, Changed, Connection, Fault, SqliteNames};
use tidemill_wire::v1;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

/// Interval at which the server checks leases while there are any.
const LOOK: Duration = Duration::from_secs(1);
/// Longest pause between two checks for expired leases. After a longer pause, because the server was down or its host suspended, lease
/// holders get their full time again.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Maximum wait for a file in one request.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of clients that wait for files at once.
const WAITING_MAX: usize = 4096;
/// Maximum number of clients of one user that wait for files at once.
const WAITING_EACH_MAX: usize = 1024;

/// The gRPC service of workspaces.
#[derive(Clone, Debug)]
pub(crate) struct WorkspaceService {
    names: Arc<SqliteNames>,
    access: Arc<Access>,
    waiters: Arc<FeedWaiters>,
    space: Arc<AccessLimits>,
}

/// Returns the gRPC status for a refusal.
fn status(refusal: &WorkspaceRefusal) -> Status {
    let text = refusal.to_string();
    match refusal {
        WorkspaceRefusal::Name(_) => Status::invalid_argument(text),
        WorkspaceRefusal::Exists(_) => Status::already_exists(text),
        WorkspaceRefusal::Unknown(_) | WorkspaceRefusal::NoMember(..) => Status::not_found(text),
        WorkspaceRefusal::NoDirectory => Status::failed_precondition(text),
        WorkspaceRefusal::TooMany
        | WorkspaceRefusal::TooManyMembers(_)
        | WorkspaceRefusal::Quota { .. } => Status::resource_exhausted(text),
    }
}

impl WorkspaceService {
    pub(crate) fn new(
        names: &Arc<SqliteNames>,
        access: &Arc<Access>,
        waiters: &Arc<FeedWaiters>,
    ) -> Self {
        Self {
            names: names.clone(),
            access: access.clone(),
            waiters: waiters.clone(),
            space: AccessLimits::new(WAITING_MAX, WAITING_EACH_MAX),
        }
    }

    async fn write<T: Send + 'static>(
        &self,
        caller: Caller,
        work: impl FnOnce(&mut Tx<'_>) -> WorkspaceResult<T> + Send + 'static,
    ) -> Result<T, Status> {
        let done = write(&self.names, caller, work).await;
        done.map_err(|fault| refused(&fault))?
            .map_err(|refusal| status(&refusal))
    }

    async fn look_for(&self, caller: &Caller, path: &[u8]) -> Result<PathObject, Status> {
        let names = &self.names;
        let look = |db: &Connection| {
            let tx = Tx::new(db, names.shared(), caller, 0, clock::now_ns());
            tx.bounded().look_for(path)
        };
        let found = names.database().read_for(caller, look).await;
        match found.map_err(|fault| refused(&fault))? {
            PathObject::Other => Err(Status::failed_precondition(format!(
                "{} is not a file",
                String::from_utf8_lossy(path)
            ))),
            found => Ok(found),
        }
    }

    /// Waits for a sealed version of the file at a path and returns the file's attributes.
    async fn awaited(&self, caller: &Caller, path: &[u8]) -> Result<v1::Attr, Status> {
        if let PathObject::File(attr) = self.look_for(caller, path).await? {
            return Ok(attr);
        }
        let unknown = Interest::File(AwaitedPath::unknown(path));
        let waiter = self.waiters.enter(&self.names, unknown)?;
        loop {
            match self.look_for(caller, path).await? {
                PathObject::File(attr) => return Ok(attr),
                PathObject::Awaited(awaited) => {
                    // A change since the look may concern only the new state, so the path is looked up once more.
                    if !waiter.set(awaited) {
                        waiter.woken().await;
                    }
                }
                PathObject::Other => waiter.woken().await,
            }
        }
    }
}

/// Runs `work` in a transaction and announces the changes to mounts, even if the client has disconnected.
pub(crate) async fn write<T: Send + 'static>(
    names: &Arc<SqliteNames>,
    caller: Caller,
    work: impl FnOnce(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let (shared, names) = (names.shared().clone(), names.clone());
    let share = names.database().writes().take(&caller).await;
    let work = move |db: &Connection| {
        let _share = share;
        let mut tx = Tx::new(db, &shared, &caller, 0, clock::now_ns()).bounded();
        let done = work(&mut tx)?;
        Ok((done, tx.changes))
    };
    let reported = tokio::spawn(async move {
        let (done, changes) = names.database().write(work).await?;
        names.tell(Changed {
            session: 0,
            changes,
        });
        Ok(done)
    });
    reported.await.unwrap_or(Err(Fault::Closed))
}

#[tonic::async_trait]
impl v1::workspaces_server::Workspaces for WorkspaceService {
    async fn create(
        &self,
        request: Request<v1::CreateWorkspaceRequest>,
    ) -> Result<Response<v1::Workspace>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let op = request.into_inner();
        let made = self
            .write(caller, move |tx| tx.create_workspace(&op))
            .await?;
        Ok(Response::new(made))
    }

    async fn list(
        &self,
        request: Request<v1::ListWorkspacesRequest>,
    ) -> Result<Response<v1::ListWorkspacesReply>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let (names, now) = (&self.names, clock::now_ns());
        let shown =
            |db: &Connection| Tx::new(db, names.shared(), &caller, 0, now).workspaces_shown();
        let workspaces = names.database().read_for(&caller, shown).await;
        let workspaces = workspaces.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::ListWorkspacesReply { workspaces }))
    }

    async fn remove(
        &self,
        request: Request<v1::WorkspaceRequest>,
    ) -> Result<Response<v1::Workspace>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let name = request.into_inner().name;
        let gone = self
            .write(caller, move |tx| tx.end_workspace(&name))
            .await?;
        sweep(&self.names).await.map_err(|fault| refused(&fault))?;
        Ok(Response::new(gone))
    }

    async fn join(
        &self,
        request: Request<v1::JoinWorkspaceRequest>,
    ) -> Result<Response<v1::WorkspaceMember>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let op = request.into_inner();
        let member = self.write(caller, move |tx| tx.join_workspace(&op)).await?;
        Ok(Response::new(member))
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveWorkspaceRequest>,
    ) -> Result<Response<v1::Empty>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let op = request.into_inner();
        self.write(caller, move |tx| tx.leave_workspace(&op))
            .await?;
        sweep(&self.names).await.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::Empty {}))
    }

    async fn wait(
        &self,
        request: Request<v1::WaitForFileRequest>,
    ) -> Result<Response<v1::Attr>, Status> {
        let credentials = request.get_ref().credentials.as_ref();
        let caller = self.access.caller(&request, credentials)?;
        let v1::WaitForFileRequest { path, wait_ns, .. } = request.into_inner();
        let Some(_space) = self.space.enter(caller.uid) else {
            return Err(Status::resource_exhausted(format!(
                "too many clients wait for files: at most {WAITING_MAX} may wait, and {WAITING_EACH_MAX} of one user; try again later"
            )));
        };
        let until = Instant::now() + Duration::from_nanos(wait_ns).min(WAIT_MAX);
        let awaited = tokio::time::timeout_at(until, self.awaited(&caller, &path));
        let nobody = |_| {
            let path = String::from_utf8_lossy(&path);
            Status::deadline_exceeded(format!(
                "{path}: the file did not appear within the time limit"
            ))
        };
        awaited.await.map_err(nobody)?.map(Response::new)
    }
}

/// Removes workspaces that have ended, with all of their files.
async fn sweep(names: &Arc<SqliteNames>) -> Result<(), Fault> {
    while write(names, Caller::root(), |tx: &mut Tx<'_>| {
        tx.sweep_workspaces()
    })
    .await?
    {}
    Ok(())
}

/// Ends expired workspaces and removes their files.
pub(crate) struct ExpiredWorkspaces {
    names: Arc<SqliteNames>,
    /// Time of the last look, by the wall clock.
    last: Option<i64>,
    /// Whether lease holders could not renew their leases since the last step.
    unheard: bool,
}

impl ExpiredWorkspaces {
    pub(crate) fn new(names: &Arc<SqliteNames>) -> Self {
        Self {
            names: names.clone(),
            last: None,
            unheard: true,
        }
    }
}

impl Chore for ExpiredWorkspaces {
    fn delays(&self) -> &'static str {
        "ended workspaces are kept for now"
    }

    fn due(&mut self, now: i64) -> Result<Due, Fault> {
        let (next, leases) = self.names.database().read(next_work)?;
        let last = self.last.replace(now);
        if !leases {
            return Ok(Due::from(next));
        }
        let pause = i64::try_from(PAUSE_MAX.as_nanos()).unwrap_or(i64::MAX);
        self.unheard |= !last.is_some_and(|last| (0..pause).contains(&(now - last)));
        match next {
            Some(next) if next <= now || self.unheard => Ok(Due::NOW),
            _ => Ok(Due::After(LOOK)),
        }
    }

    fn step(&mut self, _: i64) -> Step<'_> {
        Box::pin(async {
            let unheard = self.unheard;
            let members = move |tx: &mut Tx<'_>| match unheard {
                true => tx.renew_members(),
                false => tx.forget_members(),
            };
            write(&self.names, Caller::root(), members).await?;
            self.unheard = false;
            sweep(&self.names).await.map(|()| Due::NOW)
        })
    }
}

// The allowed silence of a lease holder is longer than a pause without a correction.
const _: () = assert!(PAUSE_MAX.as_secs() < SILENCE.as_secs());

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_meta::ids;
    use tidemill_wire::v1::Kind;

    const SECOND_NS: i64 = 1_000_000_000;

    /// Runs `work` in a transaction with the rights of root, at a given time.
    fn at<T: Send + 'static>(
        names: &SqliteNames,
        seconds: i64,
        work: impl FnOnce(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> T {
        let shared = names.shared().clone();
        let work = move |db: &Connection| {
            let root = Caller::root();
            work(&mut Tx::new(db, &shared, &root, 0, seconds * SECOND_NS))
        };
        // The thread is separate from the test's runtime, since it may have to wait for a writer.
        let written = std::thread::scope(|scope| {
            let database = names.database();
            scope.spawn(move || database.write_here(false, work)).join()
        });
        written.unwrap().unwrap().value
    }

    /// Does the work of the task that ends workspaces once, at a given time. Returns whether more files remain to be removed.
    fn sweep(names: &SqliteNames, seconds: i64) -> bool {
        at(names, seconds, |tx| {
            tx.forget_members()?;
            tx.sweep_workspaces()
        })
    }

    fn create(names: &SqliteNames, name: &str, ttl_seconds: i64) {
        let workspace = v1::CreateWorkspaceRequest {
            name: name.into(),
            mode: 0o700,
            ttl_ns: ttl_seconds * SECOND_NS,
            ..v1::CreateWorkspaceRequest::default()
        };
        at(names, 0, move |tx| tx.create_workspace(&workspace)).unwrap();
    }

    fn join(
        names: &SqliteNames,
        name: &str,
        seconds: i64,
        (member, stays): (u64, bool),
    ) -> Option<u64> {
        let name = name.to_owned();
        let join = v1::JoinWorkspaceRequest {
            credentials: None,
            name,
            member,
            stays,
        };
        let joined = at(names, seconds, move |tx| tx.join_workspace(&join));
        joined.ok().map(|member| member.member)
    }

    fn workspaces(names: &SqliteNames, seconds: i64) -> Vec<String> {
        sweep(names, seconds);
        let workspaces = at(names, seconds, |tx| tx.workspaces_shown());
        workspaces
            .into_iter()
            .map(|workspace| workspace.name)
            .collect()
    }

    #[test]
    fn workspace_ends_by_time_or_after_last_lease_holder_leaves() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        for (name, ttl) in [("time", 40), ("alone", 0), ("program", 0), ("person", 0)] {
            create(&names, name, ttl);
        }
        let program = join(&names, "program", 0, (0, false)).unwrap();
        let person = join(&names, "person", 0, (0, true)).unwrap();
        assert_ne!(program, person);
        join(&names, "time", 0, (0, true)).unwrap();
        let all = ["alone", "person", "program", "time"];
        assert_eq!(workspaces(&names, 29), all);
        assert_eq!(join(&names, "program", 29, (program, false)), Some(program));
        assert_eq!(
            join(&names, "program", 29, (person, false)),
            None,
            "another workspace's"
        );
        assert_eq!(workspaces(&names, 39), all);
        assert_eq!(workspaces(&names, 41), ["alone", "person", "program"]);
        assert_eq!(workspaces(&names, 58), ["alone", "person", "program"]);
        assert_eq!(
            workspaces(&names, 60),
            ["alone", "person"],
            "nobody has ever joined the one"
        );
        assert_eq!(join(&names, "program", 60, (program, false)), None);
        let leave = v1::LeaveWorkspaceRequest {
            credentials: None,
            name: "person".into(),
            member: person,
        };
        at(&names, 1_000_000, move |tx| tx.leave_workspace(&leave)).unwrap();
        assert_eq!(workspaces(&names, 1_000_000), ["alone"]);
        // The name is free again, but the number is not.
        create(&names, "person", 0);
        assert!(join(&names, "person", 0, (0, true)).unwrap() > person);
    }

    #[test]
    fn workspace_beyond_users_total_quota_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        names.shared().limits.set(tidemill_meta::UserLimits {
            workspaces_each_bytes: Some(100),
            ..tidemill_meta::UserLimits::default()
        });
        let make = |uid, name: &str, quota_bytes| {
            let (shared, name) = (names.shared().clone(), name.to_owned());
            let work = move |db: &Connection| {
                let caller = Caller {
                    uid,
                    gid: uid,
                    ..Caller::default()
                };
                let workspace = v1::CreateWorkspaceRequest {
                    name,
                    mode: 0o700,
                    quota_bytes,
                    ..v1::CreateWorkspaceRequest::default()
                };
                Tx::new(db, &shared, &caller, 0, 0).create_workspace(&workspace)
            };
            let made = names.database().write_here(false, work).unwrap().value;
            made.map(drop).map_err(|refusal| refusal.to_string())
        };
        assert_eq!(make(7, "a", 60), Ok(()));
        for too_much in [0, 41, u64::MAX] {
            let why = make(7, "b", too_much).unwrap_err();
            assert!(
                why.contains("add up to 100 bytes, and add up to 60"),
                "{why}"
            );
        }
        assert_eq!(make(7, "b", 40), Ok(()));
        assert!(make(7, "c", 1).is_err());
        assert_eq!(make(8, "c", 100), Ok(()));
        assert_eq!(make(0, "d", 0), Ok(()));
        at(&names, 0, |tx| tx.end_workspace("a")).unwrap();
        while sweep(&names, 1) {}
        assert_eq!(make(7, "e", 60), Ok(()));
    }

    #[test]
    fn deep_workspace_is_removed_in_bounded_commits() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        create(&names, "r", 0);
        at(&names, 0, |tx| {
            let mut parent = tx.resolve(b"/workspaces/r", true)?.ino;
            for number in 0..3005 {
                let ino = ids::reserve(tx.db, "inode", 1)?;
                let directory = number < 1500;
                let kind = if directory {
                    Kind::Directory
                } else {
                    Kind::File
                };
                tx.create(&v1::Create {
                    parent,
                    name: number.to_string().into_bytes(),
                    kind: kind.into(),
                    mode: 0o700,
                    ino,
                    ..v1::Create::default()
                })?;
                if directory {
                    parent = ino;
                }
            }
            tx.end_workspace("r").map(drop)
        });
        let mut pieces = 1;
        while sweep(&names, 1) {
            pieces += 1;
        }
        assert_eq!(pieces, 4, "no commit removes more than the maximum");
        at(&names, 1, |tx| {
            assert!(tx.resolve(b"/workspaces/r", true).is_err());
            let left = "SELECT (SELECT count(*) FROM inode), (SELECT count(*) FROM workspace)";
            let left: (u32, u32) = tx
                .db
                .raw()
                .query_row(left, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            assert_eq!(left, (2, 0), "the root and /workspaces");
            Ok(())
        });
    }

    #[test]
    fn directory_moved_out_of_workspace_outlives_workspace() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        create(&names, "r", 10);
        at(&names, 1, |tx| {
            tx.make_dirs(b"/workspaces/r/kept", (0, 0))?;
            tx.rename(&v1::Rename {
                parent: tx.resolve(b"/workspaces", true)?.ino,
                name: b"r".to_vec(),
                new_parent: 1,
                new_name: b"saved".to_vec(),
                ..v1::Rename::default()
            })
        });
        assert!(workspaces(&names, 20).is_empty());
        assert!(at(&names, 20, |tx| Ok(tx
            .resolve(b"/saved/kept", true)
            .is_ok())));
        create(&names, "r", 0);
        assert_eq!(workspaces(&names, 20), ["r"]);
    }

    async fn look(ended: &mut ExpiredWorkspaces) {
        let now = clock::now_ns();
        if ended.due(now).unwrap() == Due::NOW {
            ended.step(now).await.unwrap();
        }
    }

    /// The server was offline or did not check leases for a while: no lease holder is removed because of a time without the server.
    #[tokio::test]
    async fn lease_holders_are_kept_while_server_receives_no_renewals() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.db");
        let names = Arc::new(SqliteNames::open(&path, (0, 0)).unwrap());
        create(&names, "r", 0);
        join(&names, "r", 0, (0, false)).unwrap();
        let day = 86_400 * SECOND_NS;
        for last in [
            None,
            Some(clock::now_ns() - day),
            Some(clock::now_ns() + day),
        ] {
            let old = "UPDATE workspace_member SET until = 1";
            at(&names, 0, move |tx| Ok(tx.db.raw().execute(old, [])?));
            let mut ended = ExpiredWorkspaces {
                last,
                ..ExpiredWorkspaces::new(&names)
            };
            ended.unheard = false;
            look(&mut ended).await;
            look(&mut ended).await;
            let listed = at(&names, 0, |tx| tx.workspaces_shown());
            assert_eq!(listed[0].members.len(), 1);
        }
        // Lease holders are removed if the server listened.
        let old = "UPDATE workspace_member SET until = 1";
        at(&names, 0, move |tx| Ok(tx.db.raw().execute(old, [])?));
        let mut ended = ExpiredWorkspaces::new(&names);
        (ended.last, ended.unheard) = (Some(clock::now_ns() - SECOND_NS), false);
        look(&mut ended).await;
        assert!(at(&names, 0, |tx| tx.workspaces_shown()).is_empty());
    }
}
