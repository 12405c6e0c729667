//! The files of an attached directory: entries, and new versions of files. Links are never followed: directories are opened one
//! by one.

use super::FollowError;
use crate::backend::Follower;
use parking_lot::Mutex;
use std::collections::HashMap;
use tidemill_client::placed::VersionPlace;
use tidemill_client::transfer::Transfer;
use tidemill_client::{Error, Server};
use tidemill_model::follow::{self, ExistingEntry, FollowStep, Passed, directory_mode};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_remote::{Remote, StoreFile};
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

/// Maximum number of directories whose inodes are remembered.
const DIRECTORIES_MAX: usize = 10_000;
/// Longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Prefix of the cluster's own names.
const OWN: &str = ".tidemill-";
/// The attribute that places new files of a directory on a node.
const NODE: &[u8] = b"user.tidemill.node";

/// Outcome for an object of the store.
#[derive(Debug)]
pub(super) enum FollowOutcome {
    /// The object is this version.
    Is(ObjectId),
    /// The object belongs to no file.
    Own,
    /// The decision has to wait.
    Later,
    /// The object can't be a file of the directory, for this reason.
    Passed(String),
}

/// Files of an attached directory; see the module.
#[derive(Debug)]
pub(super) struct FollowedFiles {
    server: Server,
    transfer: Transfer,
    node: NodeId,
    attachment: v1::Attachment,
    known: Follower,
    remote: Remote,
    directories: Mutex<HashMap<String, u64>>,
}

/// A directory, or the reason why it can't exist.
enum DirectoryState {
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

impl FollowedFiles {
    pub(super) fn new(
        server: Server,
        node: NodeId,
        attachment: v1::Attachment,
        (known, remote): (Follower, Remote),
    ) -> Self {
        Self {
            transfer: Transfer::new(server.clone(), root()),
            server,
            node,
            attachment,
            known,
            remote,
            directories: Mutex::default(),
        }
    }

    async fn one(&self, op: Op) -> Result<Answer, Error> {
        self.server.one(&root(), op).await
    }

    /// Makes sure that the directory exists and that, unless the remote is read-only, new files in it are sent to the store.
    pub(super) async fn begin(&self, writes: bool) -> Result<(), FollowError> {
        let DirectoryState::Is(ino) = self.directory("").await? else {
            return Err(FollowError::Other(format!(
                "{} is not a directory: remove the file, or detach the remote",
                self.attachment.directory
            )));
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

    /// Returns a directory below the attached directory, and makes it if it is missing.
    async fn directory(&self, path: &str) -> Result<DirectoryState, Error> {
        if let Some(&ino) = self.directories.lock().get(path) {
            return Ok(DirectoryState::Is(ino));
        }
        let mut ino = tidemill_model::id::Inode::ROOT.0;
        let above = self.attachment.directory.split('/').chain(path.split('/'));
        for name in above.filter(|name| !name.is_empty()) {
            let found = match self.look_up(ino, name).await? {
                Some(attr) if attr.kind() == Kind::Directory => Some(attr.ino),
                Some(_) => return Ok(DirectoryState::No("a path above it is not a directory")),
                None => self.make_directory(ino, name).await?,
            };
            match found {
                Some(found) => ino = found,
                None => return Ok(DirectoryState::Later),
            }
        }
        let mut directories = self.directories.lock();
        if directories.len() >= DIRECTORIES_MAX {
            directories.clear();
        }
        directories.insert(path.to_owned(), ino);
        Ok(DirectoryState::Is(ino))
    }

    async fn make_directory(&self, parent: u64, name: &str) -> Result<Option<u64>, Error> {
        let (ino, _) = self.server.reserve(1, 0).await?;
        let attachment = &self.attachment;
        let create = v1::Create {
            parent,
            name: name.as_bytes().to_vec(),
            kind: Kind::Directory.into(),
            mode: directory_mode(attachment.mode),
            ino: ino.0,
            uid: attachment.uid,
            gid: attachment.gid,
            ..v1::Create::default()
        };
        match self.one(Op::Create(create)).await {
            Ok(Answer::Entry(entry)) => Ok(entry.attr.map(|attr| attr.ino)),
            Ok(_) => Err(Error::Answer("Create")),
            // Another file of this directory has made it first.
            Err(error) if error.is(rustix::io::Errno::EXIST) => Ok(self
                .look_up(parent, name)
                .await?
                .filter(|attr| attr.kind() == Kind::Directory)
                .map(|attr| attr.ino)),
            Err(error) if error.is(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies a step to the directory: makes the file or version of an object, unless the object has changed since.
    pub(super) async fn take(
        &self,
        name: &str,
        placed: StoreFile,
        noted: Option<ObjectId>,
    ) -> Result<FollowOutcome, FollowError> {
        if is_own(name) {
            return Ok(FollowOutcome::Own);
        }
        if !name.split('/').all(is_name) {
            return Ok(FollowOutcome::Passed(
                "its name can't be the name of a file".to_owned(),
            ));
        }
        let (known, asked) = (self.known.clone(), placed.clone());
        let mut seen = tokio::task::spawn_blocking(move || known.known(&asked)).await??;
        seen.before.extend(noted);
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        let parent = match self.directory(above).await? {
            DirectoryState::Is(ino) => ino,
            DirectoryState::No(why) => {
                return Ok(seen
                    .ours
                    .map_or(FollowOutcome::Passed(why.to_owned()), FollowOutcome::Is));
            }
            DirectoryState::Later => return Ok(FollowOutcome::Later),
        };
        let attr = self.look_up(parent, last).await?;
        let there = self.there(attr.as_ref());
        let over = match follow::step(&seen, there) {
            FollowStep::Note(object) => return Ok(FollowOutcome::Is(object)),
            FollowStep::Later => return Ok(FollowOutcome::Later),
            FollowStep::Pass(why) => return Ok(FollowOutcome::Passed(reason(why).to_owned())),
            // A listed object may have been replaced since by a version that is known now, or deleted.
            FollowStep::Make | FollowStep::Next(_)
                if (attr.is_some() || Follower::may_be_own(name))
                    && !self.is_there(&placed).await? =>
            {
                return Ok(FollowOutcome::Later);
            }
            FollowStep::Make => None,
            FollowStep::Next(before) => attr.map(|attr| (attr.ino, before)),
        };
        let path = format!("{}/{name}", self.attachment.directory);
        let made = self.make((parent, last), &path, (over, placed)).await;
        match made {
            Ok(Some(object)) => Ok(FollowOutcome::Is(object)),
            Ok(None) => {
                // A remembered directory may have been deleted.
                self.directories.lock().clear();
                Ok(FollowOutcome::Later)
            }
            // A bad name does not prevent the other files.
            Err(error @ Error::Name { .. }) => Ok(FollowOutcome::Passed(error.to_string())),
            Err(error) => Err(FollowError::File(path, error)),
        }
    }

    async fn is_there(&self, asked: &StoreFile) -> Result<bool, FollowError> {
        match self.remote.stat(&asked.path).await {
            Ok(now) => Ok(now == *asked),
            Err(error) if super::is_deleted(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn there(&self, attr: Option<&v1::Attr>) -> ExistingEntry {
        let Some(attr) = attr else {
            return ExistingEntry::Nothing;
        };
        match attr.kind() {
            Kind::Directory => ExistingEntry::Directory,
            Kind::File => {
                let object = ObjectId(attr.object);
                ExistingEntry::File {
                    object,
                    writing: attr.writing,
                    waiting: self.known.is_waiting(object),
                }
            }
            _ => ExistingEntry::Other,
        }
    }

    async fn make(
        &self,
        at: (u64, &str),
        path: &str,
        (over, placed): (Option<(u64, ObjectId)>, StoreFile),
    ) -> Result<Option<ObjectId>, Error> {
        let attachment = &self.attachment;
        let spot = VersionPlace {
            node: self.node,
            at,
            rights: (attachment.uid, attachment.gid, attachment.mode),
            over,
        };
        let known = self.known.clone();
        let put = |object| async move {
            let put = tokio::task::spawn_blocking(move || known.follow(object, placed)).await;
            let put = put.map_err(std::io::Error::other);
            let put = put.and_then(|put| put.map_err(std::io::Error::other));
            put.map_err(|source| Error::Local {
                path: path.to_owned(),
                source,
            })
        };
        self.transfer.place(&spot, put).await
    }
}

fn reason(why: Passed) -> &'static str {
    match why {
        Passed::Directory => "a directory has its name in the cluster",
        Passed::Other => "the entry of its name in the cluster is not a file",
        Passed::Both => {
            "it was written in the cluster, too: the directory has the version of the cluster, and the store keeps its own"
        }
    }
}
