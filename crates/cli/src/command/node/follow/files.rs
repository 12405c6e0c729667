//! The files of a bound directory: entries, and new versions of files. Links are never followed: directories are opened one
//! by one.

use super::super::outside::placed;
use parking_lot::Mutex;
use std::collections::HashMap;
use tidemill_bridge::{Bridge, Object};
use tidemill_client::placed::Spot;
use tidemill_client::transfer::Transfer;
use tidemill_client::{Error, Server};
use tidemill_core::follow::{self, Passed, Seen, Step, There, directory_mode};
use tidemill_core::id::{NodeId, ObjectId};
use tidemill_node::outside::{Follower, Placed};
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

/// Directories whose numbers are remembered.
const DIRECTORIES_MAX: usize = 10_000;
/// Longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// What names of the cluster's own begin with.
const OWN: &str = ".tidemill-";
/// The attribute that places new files of a directory on a node.
const NODE: &[u8] = b"user.tidemill.node";

/// What became of a file of the store.
#[derive(Debug)]
pub(super) enum Done {
    /// It is this version.
    Is(ObjectId),
    /// It is of no file.
    Own,
    /// It could not be decided.
    Later,
    /// It is no file of the directory, and why.
    Passed(String),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Files {
    server: Server,
    transfer: Transfer,
    node: NodeId,
    binding: v1::Binding,
    known: Follower,
    bridge: Bridge,
    directories: Mutex<HashMap<String, u64>>,
}

/// A directory, or that there can't be one.
enum Directory {
    Is(u64),
    No(&'static str),
    Later,
}

fn root() -> v1::Credentials {
    v1::Credentials {
        checked: true,
        ..v1::Credentials::default()
    }
}

fn is_name(name: &str) -> bool {
    let dots = name == "." || name == "..";
    !name.is_empty() && !dots && name.len() <= NAME_BYTES_MAX && !name.contains('\0')
}

fn is_own(path: &str) -> bool {
    path.split('/').any(|name| name.starts_with(OWN))
}

impl Files {
    pub(super) fn new(
        server: Server,
        node: NodeId,
        binding: v1::Binding,
        (known, bridge): (Follower, Bridge),
    ) -> Self {
        Self {
            transfer: Transfer::new(server.clone(), root()),
            server,
            node,
            binding,
            known,
            bridge,
            directories: Mutex::default(),
        }
    }

    async fn one(&self, op: Op) -> Result<Answer, Error> {
        self.server.one(&root(), op).await
    }

    /// Makes sure that the directory exists and that, unless the bridge is read-only, new files in it are sent to the store.
    pub(super) async fn begin(&self, writes: bool) -> anyhow::Result<()> {
        let Directory::Is(ino) = self.directory("").await? else {
            anyhow::bail!(
                "{} is not a directory: remove the file, or unbind the bridge",
                self.binding.directory
            );
        };
        if !writes {
            return Ok(());
        }
        let (name, value) = (NODE.to_vec(), self.node.0.to_string().into_bytes());
        let get = v1::GetXattr {
            ino,
            name: name.clone(),
        };
        match self.one(Op::GetXattr(get)).await {
            Ok(Answer::Bytes(bytes)) if bytes.value == value => return Ok(()),
            Err(error) if error.is_lost() => return Err(error.into()),
            _ => {}
        }
        let set = v1::SetXattr {
            ino,
            name,
            value,
            ..v1::SetXattr::default()
        };
        self.one(Op::SetXattr(set)).await?;
        Ok(())
    }

    /// Returns the entry of a name in a directory.
    async fn look_up(&self, parent: u64, name: &str) -> Result<Option<v1::Attr>, Error> {
        let lookup = v1::Lookup {
            parent,
            name: name.as_bytes().to_vec(),
        };
        match self.one(Op::Lookup(lookup)).await {
            Ok(Answer::Entry(entry)) => Ok(entry.attr),
            Ok(_) => Err(Error::Answer("Lookup")),
            Err(error) if error.is(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A directory below the bound one, which is made if it is not there.
    async fn directory(&self, path: &str) -> Result<Directory, Error> {
        if let Some(&ino) = self.directories.lock().get(path) {
            return Ok(Directory::Is(ino));
        }
        let mut ino = tidemill_core::id::Inode::ROOT.0;
        let above = self.binding.directory.split('/').chain(path.split('/'));
        for name in above.filter(|name| !name.is_empty()) {
            let found = match self.look_up(ino, name).await? {
                Some(attr) if attr.kind() == Kind::Directory => Some(attr.ino),
                Some(_) => return Ok(Directory::No("what is there above it is no directory")),
                None => self.make_directory(ino, name).await?,
            };
            match found {
                Some(found) => ino = found,
                None => return Ok(Directory::Later),
            }
        }
        let mut directories = self.directories.lock();
        if directories.len() >= DIRECTORIES_MAX {
            directories.clear();
        }
        directories.insert(path.to_owned(), ino);
        Ok(Directory::Is(ino))
    }

    async fn make_directory(&self, parent: u64, name: &str) -> Result<Option<u64>, Error> {
        let (ino, _) = self.server.reserve(1, 0).await?;
        let binding = &self.binding;
        let create = v1::Create {
            parent,
            name: name.as_bytes().to_vec(),
            kind: Kind::Directory.into(),
            mode: directory_mode(binding.mode),
            ino: ino.0,
            uid: binding.uid,
            gid: binding.gid,
            ..v1::Create::default()
        };
        match self.one(Op::Create(create)).await {
            Ok(Answer::Entry(entry)) => Ok(entry.attr.map(|attr| attr.ino)),
            Ok(_) => Err(Error::Answer("Create")),
            // Another file of this directory was quicker.
            Err(error) if error.is(rustix::io::Errno::EXIST) => Ok(self
                .look_up(parent, name)
                .await?
                .filter(|attr| attr.kind() == Kind::Directory)
                .map(|attr| attr.ino)),
            Err(error) if error.is(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies a step to the directory: makes the file or version of an object, unless that is not wanted any more.
    pub(super) async fn take(
        &self,
        name: &str,
        object: Object,
        noted: Option<ObjectId>,
    ) -> anyhow::Result<Done> {
        let placed = placed(object);
        if is_own(name) {
            return Ok(Done::Own);
        }
        if !name.split('/').all(is_name) {
            return Ok(Done::Passed("it can be no name of a file".to_owned()));
        }
        let (known, asked) = (self.known.clone(), placed.clone());
        let known = tokio::task::spawn_blocking(move || known.known(&asked)).await??;
        let mut seen = Seen {
            ours: known.ours,
            versions: known.versions,
            before: known.before,
        };
        seen.before.extend(noted);
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        let parent = match self.directory(above).await? {
            Directory::Is(ino) => ino,
            Directory::No(why) => {
                return Ok(seen.ours.map_or(Done::Passed(why.to_owned()), Done::Is));
            }
            Directory::Later => return Ok(Done::Later),
        };
        let attr = self.look_up(parent, last).await?;
        let there = self.there(attr.as_ref());
        let over = match follow::step(&seen, there) {
            Step::Note(object) => return Ok(Done::Is(object)),
            Step::Later => return Ok(Done::Later),
            Step::Pass(why) => return Ok(Done::Passed(said(why).to_owned())),
            // A listed object may have been replaced since by a version that is known now, or deleted.
            Step::Make | Step::Next(_)
                if (attr.is_some() || Follower::may_be_own(name))
                    && !self.is_there(&placed).await? =>
            {
                return Ok(Done::Later);
            }
            Step::Make => None,
            Step::Next(before) => attr.map(|attr| (attr.ino, before)),
        };
        let path = format!("{}/{name}", self.binding.directory);
        let made = self.make((parent, last), &path, (over, placed)).await;
        match made {
            Ok(Some(object)) => Ok(Done::Is(object)),
            Ok(None) => {
                // A remembered directory may have been deleted.
                self.directories.lock().clear();
                Ok(Done::Later)
            }
            // A bad name does not prevent the other files.
            Err(error @ Error::Name { .. }) => Ok(Done::Passed(error.to_string())),
            Err(error) => Err(anyhow::Error::from(error).context(path)),
        }
    }

    async fn is_there(&self, asked: &Placed) -> anyhow::Result<bool> {
        match self.bridge.stat(&asked.path).await {
            Ok(now) => Ok(placed(now) == *asked),
            Err(error) if super::is_deleted(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn there(&self, attr: Option<&v1::Attr>) -> There {
        let Some(attr) = attr else {
            return There::Nothing;
        };
        match attr.kind() {
            Kind::Directory => There::Directory,
            Kind::File => {
                let object = ObjectId(attr.object);
                There::File {
                    object,
                    writing: attr.writing,
                    waiting: self.known.is_waiting(object),
                }
            }
            _ => There::Other,
        }
    }

    async fn make(
        &self,
        at: (u64, &str),
        path: &str,
        (over, placed): (Option<(u64, ObjectId)>, Placed),
    ) -> Result<Option<ObjectId>, Error> {
        let binding = &self.binding;
        let spot = Spot {
            node: self.node,
            at,
            path,
            rights: (binding.uid, binding.gid, binding.mode),
            over,
        };
        let known = self.known.clone();
        let put = |object| async move {
            let size = placed.size;
            let put = tokio::task::spawn_blocking(move || known.follow(object, placed)).await;
            let put = put.map_err(std::io::Error::other);
            let put = put.and_then(|put| put.map_err(std::io::Error::other));
            put.map(|()| size).map_err(|source| Error::Local {
                path: path.to_owned(),
                source,
            })
        };
        self.transfer.place(&spot, put).await
    }
}

fn said(why: Passed) -> &'static str {
    match why {
        Passed::Directory => "a directory has its name in the cluster",
        Passed::Other => "what has its name in the cluster is no file",
        Passed::Both => {
            "it was written in the cluster, too: the directory has that, and the store what it had"
        }
    }
}
