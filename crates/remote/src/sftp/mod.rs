//! SFTP with OpenSSH's client, which runs as a child process. OpenDAL's SFTP client is not used: it does not report why a connection fails,
//! creates the directory of the address if it is missing, and follows links.

mod session;
mod wire;

use crate::address::join;
use crate::error::cut;
use crate::keys::own_file;
use crate::store::{PathType, StoreFile};
use crate::tree::{
    ProtocolError, TreeFuture, TreeName, TreeNames, TreeProtocol, TreeRoot, TreeStore, TreeUpload,
};
use crate::{Error, Keys};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use session::{SftpAccount, SftpSession};
use std::sync::Arc;
use tokio::sync::Mutex;
use wire::{FileAttributes, Packet, ReplyBody};

/// Number of bytes of a file per packet: all servers accept this size.
const PACKET_BYTES: u64 = 32 << 10;
/// Maximum number of concurrent packets of one file.
const PACKETS_AT_ONCE: usize = 64;

const REPLACE: &str = "posix-rename@openssh.com";
const LINK: &str = "hardlink@openssh.com";
const SYNC: &str = "fsync@openssh.com";

struct Sftp {
    target: SftpAccount,
    root: TreeRoot,
    keys: Keys,
    /// Connection, and the server's path for the store's root.
    now: Mutex<Option<(Arc<SftpSession>, String)>>,
}

/// Handle of an open file or directory on the server.
struct SftpHandle {
    session: Arc<SftpSession>,
    handle: Bytes,
}

impl SftpHandle {
    fn asks(&self, kind: u8) -> Packet {
        Packet::new(kind).bytes(&self.handle)
    }
}

impl Drop for SftpHandle {
    fn drop(&mut self) {
        self.session.tell(self.asks(wire::CLOSE));
    }
}

pub(crate) fn open(
    (host, port, root): (&str, Option<u16>, &str),
    keys: &Keys,
) -> Result<TreeStore, Error> {
    let file = |name: &str, secret: bool| {
        let path = keys.get(name).map(|path| own_file(path, secret));
        path.transpose()
    };
    let target = SftpAccount {
        host: host.to_owned(),
        port,
        user: keys.get("username").map(str::to_owned),
        identity: file("identity", true)?,
        known_hosts: file("known_hosts", false)?,
    };
    let sftp = Sftp {
        target,
        root: TreeRoot::new(root),
        keys: keys.clone(),
        now: Mutex::default(),
    };
    Ok(TreeStore::new(host, sftp))
}

fn odd(path: &str) -> ProtocolError {
    ProtocolError::from(Error::Store {
        path: path.to_owned(),
        reason: "the server's answer is invalid".into(),
    })
}

/// Converts a status answer to a result. The error `Missing` may also mean the end of a list.
fn status(path: &str, mut answer: ReplyBody) -> Result<(), ProtocolError> {
    if answer.kind != wire::STATUS {
        return Err(odd(path));
    }
    let path = path.to_owned();
    let printed = answer.number();
    let reason = answer.bytes().unwrap_or_default();
    let reason = cut(&String::from_utf8_lossy(&reason));
    Err(match printed {
        Some(wire::OK) => return Ok(()),
        Some(wire::NO_SUCH_FILE) => Error::Missing(path),
        Some(wire::PERMISSION_DENIED) => Error::Denied { path, reason },
        _ => Error::Store { path, reason },
    }
    .into())
}

/// Returns the error for an answer of an unexpected kind.
fn refusal(path: &str, answer: ReplyBody) -> ProtocolError {
    status(path, answer).err().unwrap_or_else(|| odd(path))
}

fn seen(path: &str, found: &FileAttributes) -> Result<PathType, ProtocolError> {
    let path = path.to_owned();
    match found.kind() {
        None => {
            let object = StoreFile {
                path,
                size: found.size.unwrap_or(0),
                tag: found.tag(),
                checked_by_store: false,
            };
            Ok(PathType::File(object, found.modified()))
        }
        Some("a directory") => Ok(PathType::Directory),
        Some(what) => Err(Error::NoFile { path, what }.into()),
    }
}

impl Sftp {
    /// Returns the connection. Opens a new connection if the old one has ended.
    async fn session(&self) -> Result<(Arc<SftpSession>, String), ProtocolError> {
        let mut now = self.now.lock().await;
        if let Some((session, root)) = &*now
            && session.is_up()
        {
            return Ok((session.clone(), root.clone()));
        }
        *now = None;
        let started = SftpSession::start(&self.target).await;
        let session = Arc::new(started.map_err(|printed| self.unstarted(&printed))?);
        let root = real(&session, &self.root.full("")).await?;
        let root = root.trim_end_matches('/').to_owned();
        *now = Some((session.clone(), root.clone()));
        Ok((session, root))
    }

    fn unstarted(&self, printed: &str) -> ProtocolError {
        let path = self.target.host.clone();
        let reason: String = self.keys.scrubbed(printed).chars().take(600).collect();
        if printed.contains("Permission denied") {
            return Error::Refused { path, reason }.into();
        }
        if printed.contains("host key is known") || printed.contains("ost key verification failed")
        {
            let reason = format!(
                "the server's host key is not in the file of known hosts, or differs from the key there: {reason}"
            );
            return Error::Store { path, reason }.into();
        }
        ProtocolError::offline(&path, reason)
    }

    /// Fails if the path to the directory of a file contains a link.
    async fn is_straight(
        &self,
        session: &SftpSession,
        root: &str,
        path: &str,
    ) -> Result<(), ProtocolError> {
        let Some((above, _)) = path.rsplit_once('/') else {
            return Ok(());
        };
        match real(session, &self.root.full(above)).await? == format!("{root}/{above}") {
            true => Ok(()),
            false => Err(Error::NoFile {
                path: path.to_owned(),
                what: "below a link",
            }
            .into()),
        }
    }

    async fn attributes(
        &self,
        session: &SftpSession,
        path: &str,
        packet: Packet,
    ) -> Result<FileAttributes, ProtocolError> {
        let mut answer = ask(session, path, packet).await?;
        match answer.kind {
            wire::ATTRS => answer.attributes().ok_or_else(|| odd(path)),
            _ => Err(refusal(path, answer)),
        }
    }

    async fn lstat(
        &self,
        session: &SftpSession,
        path: &str,
    ) -> Result<FileAttributes, ProtocolError> {
        let packet = Packet::new(wire::LSTAT).bytes(self.root.full(path).as_bytes());
        self.attributes(session, path, packet).await
    }

    /// Returns the type of a path; fails if the path contains a link.
    async fn found(
        &self,
        session: &SftpSession,
        root: &str,
        path: &str,
    ) -> Result<PathType, ProtocolError> {
        let straight = self.is_straight(session, root, path);
        let ((), found) = tokio::try_join!(straight, self.lstat(session, path))?;
        seen(path, &found)
    }

    async fn opened(
        &self,
        session: &Arc<SftpSession>,
        path: &str,
        packet: Packet,
    ) -> Result<SftpHandle, ProtocolError> {
        let mut answer = ask(session, path, packet).await?;
        if answer.kind != wire::HANDLE {
            return Err(refusal(path, answer));
        }
        Ok(SftpHandle {
            session: session.clone(),
            handle: answer.bytes().ok_or_else(|| odd(path))?,
        })
    }

    async fn open_new(
        &self,
        session: &Arc<SftpSession>,
        path: &str,
    ) -> Result<SftpHandle, ProtocolError> {
        let packet = Packet::new(wire::OPEN)
            .bytes(self.root.full(path).as_bytes())
            .number(wire::OPEN_NEW)
            .number(0);
        self.opened(session, path, packet).await
    }

    /// Runs work in the directory of a path; fails if the path to the directory contains a link. Creates the directory if it is missing.
    async fn within<T, Work: Future<Output = Result<T, ProtocolError>>>(
        &self,
        (session, root): (&SftpSession, &str),
        path: &str,
        work: impl Fn() -> Work,
    ) -> Result<T, ProtocolError> {
        let done = match self.is_straight(session, root, path).await {
            Ok(()) => work().await,
            Err(why) => Err(why),
        };
        match done {
            Err(why) if why.error.is_missing() => {
                self.make_above(session, path).await?;
                self.is_straight(session, root, path).await?;
                work().await
            }
            done => done,
        }
    }

    /// Creates the parent directories of a path, but not the store's root.
    async fn make_above(&self, session: &SftpSession, path: &str) -> Result<(), ProtocolError> {
        for (at, _) in path.match_indices('/') {
            let above = &path[..at];
            let packet = Packet::new(wire::MKDIR)
                .bytes(self.root.full(above).as_bytes())
                .number(0);
            let made = status(above, ask(session, above, packet).await?);
            if made.is_err() && self.lstat(session, above).await?.kind() != Some("a directory") {
                return made;
            }
        }
        Ok(())
    }
}

async fn ask(
    session: &SftpSession,
    path: &str,
    packet: Packet,
) -> Result<ReplyBody, ProtocolError> {
    let answer = session.ask(packet).await;
    answer.map_err(|reason| ProtocolError::offline(path, reason))
}

/// Returns the server's path for a directory, with links resolved.
async fn real(session: &SftpSession, path: &str) -> Result<String, ProtocolError> {
    let packet = Packet::new(wire::REALPATH).bytes(path.as_bytes());
    let mut answer = ask(session, path, packet).await?;
    if answer.kind != wire::NAME {
        return Err(refusal(path, answer));
    }
    let name = match answer.number() {
        Some(1) => answer.bytes(),
        _ => None,
    };
    let name = name.and_then(|name| String::from_utf8(name.to_vec()).ok());
    name.ok_or_else(|| odd(path))
}

/// Reads exactly `count` bytes at an offset of an open file.
async fn piece(
    handle: &SftpHandle,
    path: &str,
    from: u64,
    count: u64,
) -> Result<Vec<u8>, ProtocolError> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < count {
        let done = bytes.len() as u64;
        let wanted = u32::try_from(count - done).unwrap_or(u32::MAX);
        let packet = handle.asks(wire::READ).long(from + done).number(wanted);
        let mut answer = ask(&handle.session, path, packet).await?;
        if answer.is_end() {
            return Err(Error::Changed(path.to_owned()).into());
        }
        if answer.kind != wire::DATA {
            return Err(refusal(path, answer));
        }
        let fits = |more: &Bytes| (1..=count - done).contains(&(more.len() as u64));
        let more = answer.bytes().filter(fits).ok_or_else(|| odd(path))?;
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}

fn pieces(count: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..count).step_by(usize::try_from(PACKET_BYTES).unwrap_or(1));
    starts.map(move |from| (from, PACKET_BYTES.min(count - from)))
}

impl TreeProtocol for Sftp {
    fn look<'a>(&'a self, path: &'a str) -> TreeFuture<'a, PathType> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            self.found(&session, &root, path).await
        })
    }

    fn names<'a>(&'a self, path: &'a str) -> TreeFuture<'a, Box<dyn TreeNames>> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            if !path.is_empty() {
                let within = format!("{path}/.");
                self.is_straight(&session, &root, &within).await?;
            }
            let packet = Packet::new(wire::OPENDIR).bytes(self.root.full(path).as_bytes());
            let handle = self.opened(&session, path, packet).await?;
            let path = path.to_owned();
            Ok(Box::new(SftpListing { handle, path }) as Box<dyn TreeNames>)
        })
    }

    fn range<'a>(&'a self, object: &'a StoreFile, from: u64, count: u64) -> TreeFuture<'a, Bytes> {
        Box::pin(async move {
            let path = object.path.as_str();
            let (session, root) = self.session().await?;
            // The type is checked first, as a server blocks when it opens a pipe.
            let straight = self.is_straight(&session, &root, path);
            let ((), before) = tokio::try_join!(straight, self.lstat(&session, path))?;
            seen(path, &before)?.file(path)?;
            let packet = Packet::new(wire::OPEN)
                .bytes(self.root.full(path).as_bytes())
                .number(wire::OPEN_READ)
                .number(0);
            let handle = self.opened(&session, path, packet).await?;
            let is_same = async || {
                let now = self
                    .attributes(&session, path, handle.asks(wire::FSTAT))
                    .await?;
                match now.tag() == object.tag && now.kind().is_none() {
                    true => Ok(now),
                    false => Err(ProtocolError::from(Error::Changed(path.to_owned()))),
                }
            };
            // The protocol has no flag to refuse links. So the attributes before the open, of the open file and after the open are
            // compared, with owner and mode.
            let opened = is_same().await?;
            let straight = self.is_straight(&session, &root, path);
            let ((), after) = tokio::try_join!(straight, self.lstat(&session, path))?;
            if opened != before || opened != after {
                return Err(Error::Changed(path.to_owned()).into());
            }
            let read = pieces(count).map(|(at, count)| piece(&handle, path, from + at, count));
            let read = stream::iter(read).buffered(PACKETS_AT_ONCE);
            let read: Vec<_> = read.try_collect().await?;
            is_same().await?;
            Ok(read.concat().into())
        })
    }

    fn begin<'a>(&'a self, path: &'a str) -> TreeFuture<'a, Box<dyn TreeUpload>> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            let open = || self.open_new(&session, path);
            let handle = self.within((&session, &root), path, open).await?;
            let path = path.to_owned();
            let done = 0;
            Ok(Box::new(SftpWriter { handle, path, done }) as Box<dyn TreeUpload>)
        })
    }

    fn rename<'a>(&'a self, path: &'a str, other: &'a str, over: bool) -> TreeFuture<'a, ()> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            self.is_straight(&session, &root, path).await?;
            self.is_straight(&session, &root, other).await?;
            let able = over && session.can(REPLACE);
            // Without the extension, a rename does not replace an existing file.
            let packet = match able {
                true => Packet::new(wire::EXTENDED).bytes(REPLACE.as_bytes()),
                false => Packet::new(wire::RENAME),
            };
            let packet = packet
                .bytes(self.root.full(path).as_bytes())
                .bytes(self.root.full(other).as_bytes());
            let renamed = status(other, ask(&session, other, packet).await?);
            if renamed.is_err() && !able && self.lstat(&session, other).await.is_ok() {
                return Err(match over {
                    true => Error::Unable("replace a file: the server lacks posix-rename"),
                    false => Error::Changed(other.to_owned()),
                }
                .into());
            }
            renamed
        })
    }

    fn link<'a>(&'a self, path: &'a str, other: &'a str) -> TreeFuture<'a, bool> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            if !session.can(LINK) {
                return Ok(false);
            }
            self.is_straight(&session, &root, path).await?;
            let link = || async {
                let packet = Packet::new(wire::EXTENDED)
                    .bytes(LINK.as_bytes())
                    .bytes(self.root.full(path).as_bytes())
                    .bytes(self.root.full(other).as_bytes());
                match status(other, ask(&session, other, packet).await?) {
                    Err(why) if why.error.is_missing() => Err(why),
                    // Some file systems do not support hard links.
                    linked => Ok(linked.is_ok()),
                }
            };
            self.within((&session, &root), other, link).await
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> TreeFuture<'a, ()> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            self.is_straight(&session, &root, path).await?;
            let packet = Packet::new(wire::REMOVE).bytes(self.root.full(path).as_bytes());
            status(path, ask(&session, path, packet).await?)
        })
    }
}

/// Listing of a directory in progress.
struct SftpListing {
    handle: SftpHandle,
    path: String,
}

impl SftpListing {
    fn name(&self, answer: &mut ReplyBody) -> Option<TreeName> {
        let bytes = answer.bytes()?;
        answer.bytes()?;
        let found = answer.attributes()?;
        let (name, plain) = match String::from_utf8(bytes.to_vec()) {
            Ok(name) => (name, true),
            Err(_) => (String::from_utf8_lossy(&bytes).into_owned(), false),
        };
        let seen = match (plain, found.kind()) {
            (false, _) => Err("its name is not UTF-8"),
            (true, Some(what)) if what != "a directory" => Err(what),
            _ => seen(&join(&self.path, &name), &found).map_err(|_| "not a file"),
        };
        Some(TreeName { name, seen })
    }
}

impl TreeNames for SftpListing {
    fn next(&mut self) -> TreeFuture<'_, Option<Vec<TreeName>>> {
        Box::pin(async move {
            let packet = self.handle.asks(wire::READDIR);
            let mut answer = ask(&self.handle.session, &self.path, packet).await?;
            if answer.is_end() {
                return Ok(None);
            }
            if answer.kind != wire::NAME {
                return Err(refusal(&self.path, answer));
            }
            let count = answer.number().ok_or_else(|| odd(&self.path))?;
            let mut names = Vec::new();
            for _ in 0..count {
                let name = self.name(&mut answer).ok_or_else(|| odd(&self.path))?;
                if name.name != "." && name.name != ".." {
                    names.push(name);
                }
            }
            Ok(Some(names))
        })
    }
}

/// File that is being written to the server.
struct SftpWriter {
    handle: SftpHandle,
    path: String,
    done: u64,
}

impl TreeUpload for SftpWriter {
    fn write(&mut self, bytes: Bytes) -> TreeFuture<'_, ()> {
        Box::pin(async move {
            let (handle, path, done) = (&self.handle, &self.path, self.done);
            let bytes = &bytes;
            let sent = pieces(bytes.len() as u64).map(async |(at, count)| {
                let end = usize::try_from(at + count).unwrap_or(usize::MAX);
                let piece = &bytes[usize::try_from(at).unwrap_or(end)..end];
                let packet = handle.asks(wire::WRITE).long(done + at).bytes(piece);
                status(path, ask(&handle.session, path, packet).await?)
            });
            let sent = stream::iter(sent).buffer_unordered(PACKETS_AT_ONCE);
            sent.try_collect::<()>().await?;
            self.done += bytes.len() as u64;
            Ok(())
        })
    }

    fn finish(self: Box<Self>) -> TreeFuture<'static, ()> {
        Box::pin(async move {
            if self.handle.session.can(SYNC) {
                let packet = Packet::new(wire::EXTENDED)
                    .bytes(SYNC.as_bytes())
                    .bytes(&self.handle.handle);
                status(
                    &self.path,
                    ask(&self.handle.session, &self.path, packet).await?,
                )?;
            }
            Ok(())
        })
    }
}
