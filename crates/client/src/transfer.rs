//! Copies of whole files between a local path and the cluster, by requests to nodes and the server (next: `node/src`, `server/src`).

use crate::id_pool::IdStock;
use crate::objects::{ObjectAddress, Sealed};
use crate::opened::OpenedVersion;
use crate::written::WrittenVersion;
use crate::{Error, Objects, Server};
use bytes::Bytes;
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;
use tidemill_model::display::escaped;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::Stripes;
use tidemill_model::replicas;
use tidemill_wire::route::SealBody;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tokio::time::Instant;

/// Bytes transferred in one request: large requests create large page-cache folios, which are read faster later.
pub const PIECE_BYTES: usize = 4 << 20;

/// Time that a reader waits for the seal of a file that is being written.
const SEAL_PATIENCE: Duration = Duration::from_secs(2);
const SEAL_PAUSE: Duration = Duration::from_millis(5);

/// Interval at which the client checks whether a version has the required replicas.
pub(crate) const COPYING: Duration = Duration::from_millis(100);

/// Time that the client waits for a suspended node.
const RESUME_MAX: Duration = Duration::from_secs(30);

/// Time that the client waits for space in the burst tier.
const SPACE_MAX: Duration = Duration::from_secs(600);

/// Interval at which a writing client reports to the server. The server abandons a version after three times as long without a report.
const STILL_WRITING: Duration = Duration::from_secs(20);

/// Number of paths in one request.
const PATHS_EACH: usize = 200;

/// Task that is aborted when this value is dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Options of a put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Node that stores the file; by default the node that the directory's settings or the inode select.
    pub node: Option<NodeId>,
    /// Number of replicas of the file; by default the number that the directory's settings or the cluster select.
    pub replicas: Option<replicas::WantedReplicas>,
    /// Stripes of the file; by default the stripes that the directory's settings select.
    pub stripes: Option<Stripes>,
}

/// A version whose objects are sealed on their nodes.
#[derive(Debug)]
pub(crate) struct SealedParts {
    /// Length of the version in bytes.
    pub(crate) size: u64,
    /// Whether the version consists of several objects.
    pub(crate) striped: bool,
    /// The object of the version, or its parts in order.
    pub(crate) parts: Vec<Sealed>,
}

impl SealedParts {
    /// Returns a version that is one object.
    pub(crate) fn whole(object: Sealed) -> Self {
        Self {
            size: object.size,
            striped: false,
            parts: vec![object],
        }
    }

    /// Returns the operation that makes the version the current one of its file.
    pub(crate) fn op(self, (ino, object): (u64, u64)) -> v1::Seal {
        let lengths = self.parts.iter().map(|part| part.size);
        v1::Seal {
            ino,
            object,
            size: self.size,
            parts: lengths.filter(|_| self.striped).collect(),
            receipts: self.parts.into_iter().map(|part| part.receipt).collect(),
            ..v1::Seal::default()
        }
    }
}

/// Client that puts and gets whole files as one user.
#[derive(Debug)]
pub struct Transfer {
    server: Server,
    objects: Objects,
    ids: IdStock,
    credentials: v1::Credentials,
}

impl Transfer {
    /// Creates the client without sending any request.
    #[must_use]
    pub fn new(server: Server, credentials: v1::Credentials) -> Self {
        Self {
            ids: IdStock::new(server.clone()),
            objects: server.objects(),
            server,
            credentials,
        }
    }

    /// Copies a local file to `path` of the cluster; the seal of the copy replaces an existing file. The function calls `progress` with the
    /// size of each transferred chunk. Returns the number of bytes.
    ///
    /// # Errors
    /// The file cannot be read, the path cannot be written or a node fails; after an error the cluster is unchanged.
    pub async fn put(
        &self,
        local: &Path,
        path: impl AsRef<[u8]>,
        wanted: PutOptions,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let at = |source| Error::Local {
            path: local.display().to_string(),
            source,
        };
        let file = File::open(local).map_err(at)?;
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&file.metadata().map_err(at)?.permissions());
        let put = self.put_from(file, path, (mode & 0o7777, wanted), &mut progress);
        put.await.map(|(size, _)| size)
    }

    /// Copies the bytes of a reader until its end, like [`Self::put`], to a file with the permission bits `mode`. An error of the reader
    /// abandons the version. Returns the number of bytes, and the object of the version.
    ///
    /// # Errors
    /// The errors of [`Self::put`].
    pub async fn put_from<R: Read + Send + 'static>(
        &self,
        file: R,
        path: impl AsRef<[u8]>,
        (mode, wanted): (u32, PutOptions),
        mut progress: impl FnMut(u64),
    ) -> Result<(u64, u64), Error> {
        let opened = self.begin(path.as_ref(), mode, wanted).await?;
        let path = &*escaped(path.as_ref());
        let attr = opened.attr.ok_or(Error::Answer("Open"))?;
        let (ino, object) = (attr.ino, opened.object);
        let _reported = self.report_writing(ino, object);
        let version = WrittenVersion::new(self, &opened)?;
        let written = version.write_all((file, path), &mut progress).await;
        self.end((ino, object), wanted, written).await
    }

    /// Creates a version of a file that is in the backend of the named node, without fetching the file. Returns the file's length in bytes,
    /// and the object of the version.
    ///
    /// # Errors
    /// The errors of [`Self::put`].
    pub async fn make_stub(
        &self,
        node: NodeId,
        backend: &str,
        (path, mode): (&[u8], u32),
    ) -> Result<(u64, u64), Error> {
        let wanted = PutOptions {
            node: Some(node),
            replicas: Some(replicas::WantedReplicas::ONE),
            stripes: None,
        };
        let opened = self.begin(path, mode, wanted).await?;
        let attr = opened.attr.ok_or(Error::Answer("Open"))?;
        let stub = async {
            let remote = Self::remote(&opened)?;
            self.objects.make_stub(&remote, backend).await?;
            let sealed = self.objects.seal(&remote, &SealBody::default()).await?;
            Ok(SealedParts::whole(sealed))
        };
        let made = stub.await;
        self.end((attr.ino, opened.object), wanted, made).await
    }

    /// Seals a completely written version, or abandons an incomplete version.
    pub(crate) async fn end(
        &self,
        (ino, object): (u64, u64),
        wanted: PutOptions,
        written: Result<SealedParts, Error>,
    ) -> Result<(u64, u64), Error> {
        let done = match written {
            Ok(sealed) => {
                let size = sealed.size;
                let seal = v1::Seal {
                    replicas: wanted
                        .replicas
                        .map(|wanted| wanted.to_string())
                        .unwrap_or_default(),
                    ..sealed.op((ino, object))
                };
                match self.sealed(seal).await {
                    // It may have been sealed, or may still be sealed later.
                    Err(error) if error.is_lost() => return Err(error),
                    sealed => sealed.map(|()| (size, object)),
                }
            }
            Err(error) => Err(error),
        };
        if done.is_err() {
            self.abandon(ino, object).await;
        }
        done
    }

    /// Abandons a version and ignores errors: the caller has an earlier error to return, and the server abandons a forgotten version later.
    pub(crate) async fn abandon(&self, ino: u64, object: u64) {
        let _ = self.one(Op::Abandon(v1::Abandon { ino, object })).await;
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Returns an unused object id.
    pub(crate) async fn new_object(&self) -> Result<u64, Error> {
        self.ids.take().await.map(|(_, object)| object.0)
    }

    /// Returns an unused inode and an unused object id.
    pub(crate) async fn new_ids(&self) -> Result<(u64, ObjectId), Error> {
        let (ino, object) = self.ids.take().await?;
        Ok((ino.0, object))
    }

    /// Seals a version, and waits for the required replicas.
    pub(crate) async fn sealed(&self, seal: v1::Seal) -> Result<(), Error> {
        while let Answer::Copying(_) = self.one(Op::Seal(seal.clone())).await? {
            tokio::time::sleep(COPYING).await;
        }
        Ok(())
    }

    /// Executes one namespace operation.
    pub(crate) async fn one(&self, op: Op) -> Result<Answer, Error> {
        self.server.one(&self.credentials, op).await
    }

    /// Starts a task that regularly reports to the server that a version is still being written, until the returned value is dropped.
    pub(crate) fn report_writing(&self, ino: u64, object: u64) -> AbortOnDrop {
        let (server, credentials) = (self.server.clone(), self.credentials.clone());
        AbortOnDrop(tokio::spawn(async move {
            loop {
                tokio::time::sleep(STILL_WRITING).await;
                let again = v1::NewVersion {
                    ino,
                    object,
                    ..v1::NewVersion::default()
                };
                // A failed report is repeated the next time.
                let _ = server.one(&credentials, Op::NewVersion(again)).await;
            }
        }))
    }

    /// Copies a file of the cluster to a local path. Returns the number of bytes.
    ///
    /// # Errors
    /// The file cannot be read or the local path cannot be written.
    pub async fn get(
        &self,
        path: impl AsRef<[u8]>,
        local: &Path,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let at = |source| Error::Local {
            path: local.display().to_string(),
            source,
        };
        let mut file = File::create(local).map_err(at)?;
        self.read(path, |piece| {
            progress(piece.len() as u64);
            file.write_all(&piece).map_err(at)
        })
        .await
    }

    /// Copies, like [`Self::get`], a file whose replicas are all corrupt: the bytes of the file as far as they can be read.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub async fn get_corrupt(
        &self,
        path: impl AsRef<[u8]>,
        local: &Path,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let open = v1::Open {
            ino: self.resolve(&path).await?.ino,
            corrupt: true,
            ..v1::Open::default()
        };
        let answer = self.server.one(&self.credentials, Op::Open(open)).await?;
        let Answer::Opened(opened) = answer else {
            return Err(Error::Answer("Open"));
        };
        let at = |source| Error::Local {
            path: local.display().to_string(),
            source,
        };
        let mut file = File::create(local).map_err(at)?;
        let write = |piece: Bytes| {
            progress(piece.len() as u64);
            file.write_all(&piece).map_err(at)
        };
        if opened.layout.is_some() {
            return OpenedVersion::new(&opened)?.read_corrupt(self, write).await;
        }
        let remote = Self::remote(&opened)?;
        match self.objects.read_corrupt(&remote, write).await {
            // The file is not corrupt.
            Err(error) if error.is_elsewhere() => self.get(path, local, progress).await,
            read => read,
        }
    }

    /// Reads a file of the cluster and passes its bytes to `piece` in chunks. Returns the number of bytes.
    ///
    /// # Errors
    /// The file cannot be read, or `piece` returns an error.
    pub async fn read(
        &self,
        path: impl AsRef<[u8]>,
        piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let attr = self.sealed_attributes(path).await?;
        let version = self.opened(attr.ino, 0).await?;
        version.stream(self, 0, piece).await?;
        Ok(version.layout().size())
    }

    /// Opens a version of a file for reading; 0: the current version.
    pub(crate) async fn opened(&self, ino: u64, version: u64) -> Result<OpenedVersion, Error> {
        let open = v1::Open {
            ino,
            version,
            ..v1::Open::default()
        };
        match self.one(Op::Open(open)).await? {
            Answer::Opened(opened) => OpenedVersion::new(&opened),
            _ => Err(Error::Answer("Open")),
        }
    }

    /// Returns the attributes of a path. If a mount has just closed the file, waits for the seal of the closed version, which follows
    /// shortly after `close`. For a file that is still being written, waits for [`SEAL_PATIENCE`].
    pub(crate) async fn sealed_attributes(
        &self,
        path: impl AsRef<[u8]>,
    ) -> Result<v1::Attr, Error> {
        let deadline = tokio::time::Instant::now() + SEAL_PATIENCE;
        loop {
            let attr = self.resolve(&path).await?;
            if !attr.writing || tokio::time::Instant::now() > deadline {
                return Ok(attr);
            }
            tokio::time::sleep(SEAL_PAUSE).await;
        }
    }

    /// Returns the attributes of a path that should exist. The error for a missing path suggests similar names.
    ///
    /// # Errors
    /// The path does not exist or a directory on the way may not be searched.
    pub async fn resolve(&self, path: impl AsRef<[u8]>) -> Result<v1::Attr, Error> {
        self.look_up(path.as_ref(), true).await
    }

    /// Returns the attributes of a path that may not exist.
    ///
    /// # Errors
    /// The errors of [`Self::resolve`].
    pub async fn find(&self, path: impl AsRef<[u8]>) -> Result<v1::Attr, Error> {
        self.look_up(path.as_ref(), false).await
    }

    /// Returns the attributes of paths in their order; `None` for a path that the caller can't look up. One request has many paths.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn find_all(&self, paths: &[&str]) -> Result<Vec<Option<v1::Attr>>, Error> {
        let ops = paths
            .iter()
            .map(|path| Op::Resolve(resolve(path.as_bytes(), false)));
        let answers = self
            .server
            .read_all(&self.credentials, ops, PATHS_EACH)
            .await?;
        let attr = |answer| match answer {
            Answer::Entry(entry) => Ok(Some(entry.attr.ok_or(Error::Answer("Resolve"))?)),
            Answer::Error(_) => Ok(None),
            _ => Err(Error::Answer("Resolve")),
        };
        answers.into_iter().map(attr).collect()
    }

    async fn look_up(&self, path: &[u8], advise: bool) -> Result<v1::Attr, Error> {
        let resolve = resolve(path, advise);
        let entry = self.server.resolve(&self.credentials, resolve).await?;
        entry.attr.ok_or(Error::Answer("Resolve"))
    }

    /// Returns all entries of a directory, like [`Server::list`].
    ///
    /// # Errors
    /// The errors of [`Server::list`].
    pub async fn list(&self, ino: u64) -> Result<Vec<v1::Entry>, Error> {
        self.server.list(&self.credentials, ino).await
    }

    /// Returns user and group of the transfer.
    pub(crate) fn user(&self) -> (u32, u32) {
        (self.credentials.uid, self.credentials.gid)
    }

    /// Whether an unreachable node has resumed, or has a new address, so that the caller can repeat the read. Waits for a suspended node;
    /// `asked` is the address that was
    /// asked; `until` is the end of the wait, after it has begun.
    pub(crate) async fn resumes(
        &self,
        node: u32,
        asked: &str,
        until: &mut Option<Instant>,
    ) -> Result<bool, Error> {
        loop {
            let status = self.server.status().await?;
            let mut known = status.nodes.iter();
            let Some(known) = known.find(|known| known.node == node) else {
                return Ok(false);
            };
            let up = known.up;
            let is_suspended = known
                .suspension
                .as_ref()
                .is_some_and(|suspension| suspension.suspended);
            let moved = asked != known.url;
            // The call does not wait for a node that is up and still cannot be reached.
            let resumes = is_suspended || (up && (moved || until.is_some()));
            if !resumes {
                return Ok(false);
            }
            let end = *until.get_or_insert(Instant::now() + RESUME_MAX);
            if Instant::now() > end {
                return Ok(false);
            }
            if up {
                return Ok(true);
            }
            tokio::time::sleep(COPYING).await;
        }
    }

    /// Repeats the placement of a file until a suspended node has resumed, or until a full burst tier has space again.
    async fn placed(&self, op: impl Fn() -> Op) -> Result<Answer, Error> {
        let begun = Instant::now();
        let patience = |error: &Error| match error {
            Error::Resuming(_) => RESUME_MAX,
            full if full.is(Errno::AGAIN) => SPACE_MAX,
            _ => Duration::ZERO,
        };
        loop {
            match self.server.one(&self.credentials, op()).await {
                Err(error) if begun.elapsed() < patience(&error) => {
                    tokio::time::sleep(COPYING).await;
                }
                placed => return placed,
            }
        }
    }

    async fn begin(&self, path: &[u8], mode: u32, wanted: PutOptions) -> Result<v1::Opened, Error> {
        let node = wanted.node.map(|node| node.0);
        let stripes = wanted.stripes.map(|stripes| v1::Stripes {
            unit: stripes.unit,
            width: u32::try_from(stripes.width).unwrap_or(u32::MAX),
        });
        let (ino, object) = self.ids.take().await?;
        let create = v1::Create {
            parent: 0,
            name: path.to_vec(),
            kind: v1::Kind::File.into(),
            mode,
            ino: ino.0,
            object: object.0,
            node,
            stripes,
            uid: self.credentials.uid,
            gid: self.credentials.gid,
            ..v1::Create::default()
        };
        let answer = match self.placed(|| Op::Create(create.clone())).await {
            Err(error) if error.is(Errno::EXIST) => {
                let ino = self.resolve(path).await?.ino;
                let new = v1::NewVersion {
                    ino,
                    object: object.0,
                    node,
                    stripes,
                    ..v1::NewVersion::default()
                };
                self.placed(|| Op::NewVersion(new.clone())).await?
            }
            other => other?,
        };
        match answer {
            Answer::Opened(opened) => Ok(opened),
            _ => Err(Error::Answer("Create")),
        }
    }

    pub(crate) fn remote(opened: &v1::Opened) -> Result<ObjectAddress, Error> {
        let (node, object) = (NodeId(opened.node), ObjectId(opened.object));
        remote_at((node, &opened.url), object, &opened.capability)
    }
}

/// Returns the address of an object on a node; an error if the node has no address because it is offline.
pub(crate) fn remote_at(
    (node, url): (NodeId, &str),
    object: ObjectId,
    capability: &[u8],
) -> Result<ObjectAddress, Error> {
    if url.is_empty() {
        return Err(Error::NodeDown(node));
    }
    Ok(ObjectAddress {
        node,
        url: url.into(),
        object,
        capability: capability.to_vec(),
    })
}

/// Fills a buffer like [`fill`], on another thread: the reader may block for as long as it likes while other tasks continue.
pub(crate) async fn filled<R: Read + Send + 'static>(
    mut file: R,
    mut buffer: Vec<u8>,
) -> std::io::Result<(R, Vec<u8>, usize)> {
    let work = move || {
        let count = fill(&mut file, &mut buffer)?;
        Ok((file, buffer, count))
    };
    tokio::task::spawn_blocking(work).await?
}

fn resolve(path: &[u8], advise: bool) -> v1::Resolve {
    v1::Resolve {
        path: path.to_vec(),
        follow: true,
        advise,
    }
}

fn fill(file: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}
