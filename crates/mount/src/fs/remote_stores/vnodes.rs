//! Inodes of remotes that the Linux kernel knows. Inode numbers are never reused.

use super::{TTL, join};
use crate::error::Error;
use crate::fs::{InodeKey, LookupResult};
use rustix::io::Errno;
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_model::id::Inode;
use tidemill_remote::{ListingEntry, PathType, StoreFile};
use tidemill_wire::v1::{Attr, Kind};

/// Bit of an inode number that distinguishes inodes of remotes from other special inodes.
pub(super) const REMOTE: u64 = 1 << 62;
/// Maximum number of inodes that listings alone create; beyond this number, the Linux kernel looks up each name.
const LISTED_MAX: usize = 65_536;
/// Mode of directories: a user with access may try to write, and gets an error.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Version of a file of a remote.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoreVersion {
    pub(super) remote: String,
    pub(super) path: String,
    /// Id of the store, because a remote may be removed and added with another address.
    pub(super) store: u64,
    pub(super) tag: String,
}

/// File or directory that an inode stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum InodeTarget {
    /// The inode is the directory of all remotes.
    Top,
    /// The inode is a directory: name of the remote, and path of the directory in the remote's store.
    Directory(String, String),
    /// The inode is a current or former version of a file.
    File(StoreVersion),
}

/// File of a store, with its time of modification if the store returns the time.
type Content = (StoreFile, Option<SystemTime>);

#[derive(Debug)]
struct StoreInode {
    place: InodeTarget,
    content: Option<Content>,
    lookups: u64,
}

#[derive(Debug, Default)]
pub(super) struct Vnodes {
    all: HashMap<u64, StoreInode>,
    numbers: HashMap<InodeTarget, u64>,
    last: u64,
}

impl Vnodes {
    fn vnode(&self, number: u64) -> Result<&StoreInode, Error> {
        self.all.get(&number).ok_or_else(|| Errno::STALE.into())
    }

    pub(super) fn place(&self, number: u64) -> Result<InodeTarget, Error> {
        self.vnode(number).map(|vnode| vnode.place.clone())
    }

    /// Returns the version of an inode, and its attributes.
    pub(super) fn file(&self, number: u64) -> Result<(StoreVersion, StoreFile), Error> {
        let vnode = self.vnode(number)?;
        match (&vnode.place, &vnode.content) {
            (InodeTarget::File(version), Some(content)) => Ok((version.clone(), content.0.clone())),
            _ => Err(Errno::ISDIR.into()),
        }
    }

    pub(super) fn at(&self, number: u64) -> Result<LookupResult, Error> {
        let vnode = self.vnode(number)?;
        Ok(shown(number, vnode.content.as_ref()))
    }

    /// Returns the description of a place's inode, and counts a reference of the Linux kernel.
    pub(super) fn hold(&mut self, place: &InodeTarget, content: Option<Content>) -> LookupResult {
        let number = match self.numbers.get(place) {
            Some(&number) => number,
            None => {
                self.last += 1;
                let number = Inode::SPECIAL | REMOTE | self.last;
                self.numbers.insert(place.clone(), number);
                let vnode = StoreInode {
                    place: place.clone(),
                    content,
                    lookups: 0,
                };
                self.all.insert(number, vnode);
                number
            }
        };
        let Some(vnode) = self.all.get_mut(&number) else {
            return shown(number, None);
        };
        vnode.lookups += 1;
        shown(number, vnode.content.as_ref())
    }

    /// Returns the inode of the content found at a path.
    pub(super) fn found(
        &mut self,
        remote: &str,
        path: &str,
        store: u64,
        seen: PathType,
    ) -> LookupResult {
        match seen {
            PathType::Directory => {
                let place = InodeTarget::Directory(remote.to_owned(), path.to_owned());
                self.hold(&place, None)
            }
            PathType::File(file, modified) => {
                let version = StoreVersion {
                    remote: remote.to_owned(),
                    path: path.to_owned(),
                    store,
                    tag: file.tag.clone(),
                };
                self.hold(&InodeTarget::File(version), Some((file, modified)))
            }
        }
    }

    /// Returns the inode of a listed name; `None` if the Linux kernel has to look up the name, as too many inodes are known.
    pub(super) fn listed(
        &mut self,
        (remote, directory): (&str, &str),
        store: u64,
        entry: &ListingEntry,
    ) -> Option<LookupResult> {
        let path = join(directory, &entry.name);
        (self.all.len() < LISTED_MAX).then(|| self.found(remote, &path, store, entry.seen.clone()))
    }

    pub(super) fn let_go(&mut self, number: u64, lookups: u64) {
        let Some(vnode) = self.all.get_mut(&number) else {
            return;
        };
        vnode.lookups = vnode.lookups.saturating_sub(lookups);
        if vnode.lookups == 0
            && let Some(vnode) = self.all.remove(&number)
        {
            self.numbers.remove(&vnode.place);
        }
    }
}

/// Returns the description of an inode for the Linux kernel, owned by the user whose keys are used.
fn shown(number: u64, content: Option<&Content>) -> LookupResult {
    let modified = content.and_then(|(_, modified)| *modified);
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let time = since.and_then(|since| i64::try_from(since.as_nanos()).ok());
    let time = time.unwrap_or_default();
    let size = content.map_or(0, |(file, _)| file.size);
    let (kind, mode) = match content {
        Some(_) => (Kind::File, FILE_MODE),
        None => (Kind::Directory, DIRECTORY_MODE),
    };
    let attr = Attr {
        ino: number,
        kind: kind.into(),
        mode,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        nlink: 1,
        size,
        mtime: time,
        ctime: time,
        atime: time,
        ..Attr::default()
    };
    LookupResult {
        key: InodeKey {
            ino: number,
            alias: 0,
        },
        attr,
        blocks: size.div_ceil(512),
        ttl: TTL,
        asked: 0,
        entry: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(tag: &str) -> PathType {
        let file = StoreFile {
            path: "x".into(),
            size: 3,
            tag: tag.into(),
            checked_by_store: true,
        };
        PathType::File(file, None)
    }

    #[test]
    fn remote_file_version_has_own_inode_until_forgotten() {
        let mut vnodes = Vnodes::default();
        let one = vnodes.found("b", "x", 1, content("1")).key.ino;
        assert_eq!(vnodes.found("b", "x", 1, content("1")).key.ino, one);
        let two = vnodes.found("b", "x", 1, content("2")).key.ino;
        let elsewhere = vnodes.found("b", "x", 2, content("1")).key.ino;
        assert!(one != two && one != elsewhere && two != elsewhere);
        vnodes.let_go(one, 1);
        assert!(vnodes.file(one).is_ok());
        vnodes.let_go(one, 1);
        assert!(vnodes.file(one).is_err());
        vnodes.let_go(two, 1);
        vnodes.let_go(elsewhere, 1);
        assert!(vnodes.all.is_empty() && vnodes.numbers.is_empty());
        assert_ne!(vnodes.found("b", "x", 1, content("1")).key.ino, one);
    }
}
