//! SFTP with OpenSSH's client, which runs as a child process. OpenDAL's client is not used: it does not report why a connection fails,
//! creates the directory of the address if it is missing, and follows links.

mod session;
mod wire;

use crate::error::cut;
use crate::keys::own_file;
use crate::look::Seen;
use crate::place::join;
use crate::store::Object;
use crate::tree::{Asked, Begun, Files, Name, Names, Root, Tree, Why};
use crate::{Error, Keys};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use session::{Session, Target};
use std::sync::Arc;
use tokio::sync::Mutex;
use wire::{Answer, Attributes, Packet};

/// Bytes of a file per packet: all servers accept this size.
const PACKET_BYTES: u64 = 32 << 10;
/// Maximum number of concurrent packets of one file.
const PACKETS_AT_ONCE: usize = 64;

const REPLACE: &str = "posix-rename@openssh.com";
const LINK: &str = "hardlink@openssh.com";
const SYNC: &str = "fsync@openssh.com";

struct Sftp {
    target: Target,
    root: Root,
    keys: Keys,
    /// Connection, and the server's path of the store's directory.
    now: Mutex<Option<(Arc<Session>, String)>>,
}

/// Open file or directory.
struct Handle {
    session: Arc<Session>,
    handle: Bytes,
}

impl Handle {
    fn asks(&self, kind: u8) -> Packet {
        Packet::new(kind).bytes(&self.handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.session.tell(self.asks(wire::CLOSE));
    }
}

pub(crate) fn open(
    (host, port, root): (&str, Option<u16>, &str),
    keys: &Keys,
) -> Result<Tree, Error> {
    let file = |name: &str, secret: bool| {
        let path = keys.get(name).map(|path| own_file(path, secret));
        path.transpose()
    };
    let target = Target {
        host: host.to_owned(),
        port,
        user: keys.get("username").map(str::to_owned),
        identity: file("identity", true)?,
        known_hosts: file("known_hosts", false)?,
    };
    let sftp = Sftp {
        target,
        root: Root::new(root),
        keys: keys.clone(),
        now: Mutex::default(),
    };
    Ok(Tree::new(host, sftp))
}

fn odd(path: &str) -> Why {
    Why::from(Error::Store {
        path: path.to_owned(),
        reason: "the server's answer makes no sense".into(),
    })
}

/// Converts a status. `Missing` may also be the end of a list.
fn status(path: &str, mut answer: Answer) -> Result<(), Why> {
    if answer.kind != wire::STATUS {
        return Err(odd(path));
    }
    let path = path.to_owned();
    let said = answer.number();
    let reason = answer.bytes().unwrap_or_default();
    let reason = cut(&String::from_utf8_lossy(&reason));
    Err(match said {
        Some(wire::OK) => return Ok(()),
        Some(wire::NO_SUCH_FILE) => Error::Missing(path),
        Some(wire::PERMISSION_DENIED) => Error::Denied { path, reason },
        _ => Error::Store { path, reason },
    }
    .into())
}

/// Returns the error for an answer of another kind than expected.
fn refusal(path: &str, answer: Answer) -> Why {
    status(path, answer).err().unwrap_or_else(|| odd(path))
}

fn seen(path: &str, found: &Attributes) -> Result<Seen, Why> {
    let path = path.to_owned();
    match found.kind() {
        None => {
            let object = Object {
                path,
                size: found.size.unwrap_or(0),
                tag: found.tag(),
                checked_by_store: false,
            };
            Ok(Seen::File(object, found.modified()))
        }
        Some("a directory") => Ok(Seen::Directory),
        Some(what) => Err(Error::NoFile { path, what }.into()),
    }
}

impl Sftp {
    /// Returns the connection. Opens another one if it has ended.
    async fn session(&self) -> Result<(Arc<Session>, String), Why> {
        let mut now = self.now.lock().await;
        if let Some((session, root)) = &*now
            && session.is_up()
        {
            return Ok((session.clone(), root.clone()));
        }
        *now = None;
        let started = Session::start(&self.target).await;
        let session = Arc::new(started.map_err(|said| self.unstarted(&said))?);
        let root = real(&session, &self.root.full("")).await?;
        let root = root.trim_end_matches('/').to_owned();
        *now = Some((session.clone(), root.clone()));
        Ok((session, root))
    }

    fn unstarted(&self, said: &str) -> Why {
        let path = self.target.host.clone();
        let reason: String = self.keys.scrubbed(said).chars().take(600).collect();
        if said.contains("Permission denied") {
            return Error::Refused { path, reason }.into();
        }
        if said.contains("host key is known") || said.contains("ost key verification failed") {
            let reason = format!(
                "the server's host key is not in the file of known hosts, or differs from the key there: {reason}"
            );
            return Error::Store { path, reason }.into();
        }
        Why::offline(&path, reason)
    }

    /// Fails if a link is on the path to the directory of a file.
    async fn is_straight(&self, session: &Session, root: &str, path: &str) -> Result<(), Why> {
        let Some((above, _)) = path.rsplit_once('/') else {
            return Ok(());
        };
        match real(session, &self.root.full(above)).await? == format!("{root}/{above}") {
            true => Ok(()),
            false => Err(Error::NoFile {
                path: path.to_owned(),
                what: "behind a link",
            }
            .into()),
        }
    }

    async fn attributes(
        &self,
        session: &Session,
        path: &str,
        packet: Packet,
    ) -> Result<Attributes, Why> {
        let mut answer = ask(session, path, packet).await?;
        match answer.kind {
            wire::ATTRS => answer.attributes().ok_or_else(|| odd(path)),
            _ => Err(refusal(path, answer)),
        }
    }

    async fn lstat(&self, session: &Session, path: &str) -> Result<Attributes, Why> {
        let packet = Packet::new(wire::LSTAT).bytes(self.root.full(path).as_bytes());
        self.attributes(session, path, packet).await
    }

    /// Returns the type of a path, if no link is on the path.
    async fn found(&self, session: &Session, root: &str, path: &str) -> Result<Seen, Why> {
        let straight = self.is_straight(session, root, path);
        let ((), found) = tokio::try_join!(straight, self.lstat(session, path))?;
        seen(path, &found)
    }

    async fn opened(
        &self,
        session: &Arc<Session>,
        path: &str,
        packet: Packet,
    ) -> Result<Handle, Why> {
        let mut answer = ask(session, path, packet).await?;
        if answer.kind != wire::HANDLE {
            return Err(refusal(path, answer));
        }
        Ok(Handle {
            session: session.clone(),
            handle: answer.bytes().ok_or_else(|| odd(path))?,
        })
    }

    async fn open_new(&self, session: &Arc<Session>, path: &str) -> Result<Handle, Why> {
        let packet = Packet::new(wire::OPEN)
            .bytes(self.root.full(path).as_bytes())
            .number(wire::OPEN_NEW)
            .number(0);
        self.opened(session, path, packet).await
    }

    /// Runs work in the directory of a path, if no link is on the path to the directory. Creates the directory if it is missing.
    async fn within<T, Work: Future<Output = Result<T, Why>>>(
        &self,
        (session, root): (&Session, &str),
        path: &str,
        work: impl Fn() -> Work,
    ) -> Result<T, Why> {
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

    /// Creates the parent directories of a path, but not the directory of the store.
    async fn make_above(&self, session: &Session, path: &str) -> Result<(), Why> {
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

async fn ask(session: &Session, path: &str, packet: Packet) -> Result<Answer, Why> {
    let answer = session.ask(packet).await;
    answer.map_err(|reason| Why::offline(path, reason))
}

/// Returns the server's path of a directory, with links resolved.
async fn real(session: &Session, path: &str) -> Result<String, Why> {
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
async fn piece(handle: &Handle, path: &str, from: u64, count: u64) -> Result<Vec<u8>, Why> {
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

impl Files for Sftp {
    fn look<'a>(&'a self, path: &'a str) -> Asked<'a, Seen> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            self.found(&session, &root, path).await
        })
    }

    fn names<'a>(&'a self, path: &'a str) -> Asked<'a, Box<dyn Names>> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            if !path.is_empty() {
                let within = format!("{path}/.");
                self.is_straight(&session, &root, &within).await?;
            }
            let packet = Packet::new(wire::OPENDIR).bytes(self.root.full(path).as_bytes());
            let handle = self.opened(&session, path, packet).await?;
            let path = path.to_owned();
            Ok(Box::new(Listing { handle, path }) as Box<dyn Names>)
        })
    }

    fn range<'a>(&'a self, object: &'a Object, from: u64, count: u64) -> Asked<'a, Bytes> {
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
                    false => Err(Why::from(Error::Changed(path.to_owned()))),
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

    fn begin<'a>(&'a self, path: &'a str) -> Asked<'a, Box<dyn Begun>> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            let open = || self.open_new(&session, path);
            let handle = self.within((&session, &root), path, open).await?;
            let path = path.to_owned();
            let done = 0;
            Ok(Box::new(Writing { handle, path, done }) as Box<dyn Begun>)
        })
    }

    fn rename<'a>(&'a self, path: &'a str, other: &'a str, over: bool) -> Asked<'a, ()> {
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
                    true => Error::Unable(
                        "put a file in place of another: the server can't (posix-rename)",
                    ),
                    false => Error::Changed(other.to_owned()),
                }
                .into());
            }
            renamed
        })
    }

    fn link<'a>(&'a self, path: &'a str, other: &'a str) -> Asked<'a, bool> {
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

    fn remove<'a>(&'a self, path: &'a str) -> Asked<'a, ()> {
        Box::pin(async move {
            let (session, root) = self.session().await?;
            self.is_straight(&session, &root, path).await?;
            let packet = Packet::new(wire::REMOVE).bytes(self.root.full(path).as_bytes());
            status(path, ask(&session, path, packet).await?)
        })
    }
}

/// Running listing of a directory.
struct Listing {
    handle: Handle,
    path: String,
}

impl Listing {
    fn name(&self, answer: &mut Answer) -> Option<Name> {
        let bytes = answer.bytes()?;
        answer.bytes()?;
        let found = answer.attributes()?;
        let (name, plain) = match String::from_utf8(bytes.to_vec()) {
            Ok(name) => (name, true),
            Err(_) => (String::from_utf8_lossy(&bytes).into_owned(), false),
        };
        let seen = match (plain, found.kind()) {
            (false, _) => Err("its name is no UTF-8"),
            (true, Some(what)) if what != "a directory" => Err(what),
            _ => seen(&join(&self.path, &name), &found).map_err(|_| "no file"),
        };
        Some(Name { name, seen })
    }
}

impl Names for Listing {
    fn next(&mut self) -> Asked<'_, Option<Vec<Name>>> {
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

/// File that is being written.
struct Writing {
    handle: Handle,
    path: String,
    done: u64,
}

impl Begun for Writing {
    fn write(&mut self, bytes: Bytes) -> Asked<'_, ()> {
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

    fn finish(self: Box<Self>) -> Asked<'static, ()> {
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
