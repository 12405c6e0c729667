//! Search for files by their properties: names, sizes, owners, attributes, headers, lineage (`docs/find.md`). This module only reads.
//!
//! An expression becomes one query (`meta/src/index/find.rs`), which returns files in the order of their inodes, one page at a time. The answer
//! contains only files that the asker may read or owns, and whose directories the asker may list.

use crate::access::Access;
use crate::clock;
use crate::files::FileService;
use crate::headers;
use crate::namespace_service::refused;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_client::concurrency_limit::UserPermits;
use tidemill_client::users;
use tidemill_lang::find;
use tidemill_meta::index::find::{InodeQuery, Searcher};
use tidemill_meta::index::headers::{body_of, count_unread};
use tidemill_meta::index::zarr;
use tidemill_meta::transaction::Tx;
use tidemill_meta::visibility::Visibility;
use tidemill_meta::vnode::{Caller, InodeRecord};
use tidemill_meta::{Fault, SqliteNames};
use tidemill_wire::v1::{self, Kind};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

/// Maximum number of files in one answer, and (`HEADER_BYTES_MAX`) total size in bytes of the files' headers from which the answer ends.
const FOUND_MAX: usize = 1000;
const HEADER_BYTES_MAX: usize = 1 << 20;
/// Maximum number of files that one query returns, visible or not; and (`ANSWER_MAX`) time after which an answer runs no further query.
const LOOKED_AT_MAX: usize = 10_000;
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time limit for one query.
const QUERY_MAX: Duration = Duration::from_secs(20);
/// Maximum number of simultaneous searches, in total and (`AT_ONCE_EACH`) of one user. Each search occupies one of few reading connections.
const AT_ONCE: usize = 2;
const AT_ONCE_EACH: usize = 1;
const PATIENCE: Duration = Duration::from_secs(30);

/// gRPC service of searches.
#[derive(Clone, Debug)]
pub(crate) struct FindService {
    names: Arc<SqliteNames>,
    access: Arc<Access>,
    turns: Arc<Semaphore>,
    of_each: Arc<UserPermits>,
}

impl FindService {
    /// Starts the service of searches, and the task that reads headers.
    pub(crate) fn start(
        names: &Arc<SqliteNames>,
        access: &Arc<Access>,
        files: &FileService,
    ) -> Self {
        headers::driver::start(names, files);
        Self {
            names: names.clone(),
            access: access.clone(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            of_each: Arc::new(UserPermits::with_patience(AT_ONCE_EACH, PATIENCE)),
        }
    }
}

#[tonic::async_trait]
impl v1::find_server::Find for FindService {
    async fn query(
        &self,
        request: Request<v1::FindRequest>,
    ) -> Result<Response<v1::FindReply>, Status> {
        let mut viewer = self
            .access
            .caller(&request, request.get_ref().credentials.as_ref())?;
        if viewer.checked {
            // The Linux kernel of the mount's host knows the groups and has not reported them.
            viewer.groups = self.access.groups_of(viewer.uid);
            viewer.checked = false;
        }
        let asked = request.into_inner();
        let expr = find::read(&asked.expression);
        let expr = expr.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let own = match viewer.administrator && viewer.uid == 0 {
            true => None,
            false => {
                let own = self.of_each.take(viewer.uid).await;
                Some(own.map_err(|busy| Status::resource_exhausted(busy.to_string()))?)
            }
        };
        let turn = tokio::time::timeout(PATIENCE, self.turns.clone().acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok);
        let turn = turn.ok_or_else(|| {
            Status::resource_exhausted("too many searches are in progress: try again later")
        })?;
        let names = self.names.clone();
        let share = names.database().turn(&viewer).await;
        let (interrupts, interrupt) = tokio::sync::oneshot::channel();
        let answer = tokio::task::spawn_blocking(move || {
            let (_own, _turn) = (own, turn);
            names.database().read_with(share.as_ref(), |db| {
                let _ = interrupts.send(db.interrupt());
                let tx = Tx::new(db, names.shared(), &viewer, 0, clock::now_ns()).bounded();
                answer(&tx, &viewer, &expr, &asked)
            })
        });
        let watch = async {
            if let Ok(interrupt_read) = interrupt.await {
                tokio::time::sleep(QUERY_MAX).await;
                interrupt_read();
            }
            std::future::pending::<()>().await;
        };
        let answer = tokio::select! { answer = answer => answer, () = watch => return Err(refused(&Fault::Closed)) };
        let answer = answer.map_err(|_| refused(&Fault::Closed))?;
        Ok(Response::new(answer.map_err(|fault| refused(&fault))?))
    }
}

fn answer(
    tx: &Tx<'_>,
    viewer: &Caller,
    expr: &find::Expr,
    asked: &v1::FindRequest,
) -> Result<v1::FindReply, Fault> {
    let under = match asked.under.as_slice() {
        b"" | b"/" => Vec::new(),
        path => directory(tx, path)?,
    };
    let searcher = Searcher {
        viewer,
        uid_of: users::uid,
        is_builtin: tidemill_compute::is_builtin,
    };
    let query = InodeQuery::new(tx, &searcher, expr)?;
    let limit = match asked.limit {
        0 => FOUND_MAX,
        limit => FOUND_MAX.min(limit as usize),
    };
    let (begun, mut after, mut header_bytes) = (Instant::now(), asked.after, 0);
    let mut reply = v1::FindReply::default();
    let mut visibility = Visibility::new(tx, viewer);
    loop {
        let page = query.after(tx.db, after, LOOKED_AT_MAX)?;
        let end = page.len() < LOOKED_AT_MAX;
        for ino in page {
            after = ino;
            let Some(file) = seen(tx, &mut visibility, ino, &under)? else {
                continue;
            };
            let header = match asked.headers {
                true => body_of(tx.db, file.object)?,
                false => String::new(),
            };
            header_bytes += header.len();
            reply.files.push(v1::Found { header, ..file });
            if reply.files.len() == limit || header_bytes >= HEADER_BYTES_MAX {
                reply.after = after;
                return Ok(reply);
            }
        }
        if end {
            reply.unread = count_unread(tx.db)?;
            return Ok(reply);
        }
        if begun.elapsed() >= ANSWER_MAX {
            reply.after = after;
            return Ok(reply);
        }
    }
}

/// Returns the path of a directory with symbolic links resolved. A directory that the caller may not list is reported as missing.
fn directory(tx: &Tx<'_>, path: &[u8]) -> Result<Vec<u8>, Fault> {
    let vnode = tx
        .resolve(path, true)
        .map_err(|fault| tx.advised(path, fault))?;
    let shown = || String::from_utf8_lossy(path).into_owned();
    if vnode.kind != Kind::Directory {
        return Err(Fault::NotDirectory(shown()));
    }
    let found = tx
        .path_of(vnode.ino)?
        .ok_or_else(|| Fault::NotFound(shown()))?;
    Ok(if found == b"/" { Vec::new() } else { found })
}

fn seen(
    tx: &Tx<'_>,
    visibility: &mut Visibility<'_>,
    ino: u64,
    under: &[u8],
) -> Result<Option<v1::Found>, Fault> {
    let Some(vnode) = InodeRecord::find(tx.db, ino)? else {
        return Ok(None);
    };
    let mut path = visibility.listed(&vnode, under)?;
    if let Some(path) = &mut path
        && zarr::stands_for_directory(tx.db, vnode.object, path)?
    {
        // A Zarr is shown with the path of its directory.
        let directory = path.iter().rposition(|&byte| byte == b'/');
        path.truncate(directory.unwrap_or(0).max(1));
    }
    Ok(path.map(|path| v1::Found {
        path,
        ino,
        object: vnode.object,
        size: vnode.size,
        mtime: vnode.mtime,
        uid: vnode.uid,
        header: String::new(),
    }))
}
