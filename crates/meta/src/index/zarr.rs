//! Zarrs that are directories. The database stores the facts about a Zarr with its topmost metadata file, which represents the directory:
//! users who may read that file find the Zarr. Other files therefore count only if all readers of that file may read them, too. Symbolic
//! links are not followed.

use super::headers::{self, WantedHeader};
use crate::Connection;
use crate::Fault;
use crate::transaction::Tx;
use crate::tree;
use crate::vnode::InodeRecord;
use tidemill_format::zarr::METADATA;
use tidemill_model::id::Inode;
use tidemill_wire::v1::Kind;

/// Maximum number of parent groups that are examined above a directory.
const DEPTH_MAX: usize = 64;

/// Whether a file is metadata of a Zarr, according to its name or path.
pub fn is_metadata(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next();
    name.is_some_and(|name| METADATA.iter().any(|known| known.as_bytes() == name))
}

/// A Zarr: its directory, and the metadata file that represents the directory.
#[derive(Clone, Debug)]
pub struct Zarr {
    /// Inode of the topmost directory of the Zarr.
    pub directory: InodeRecord,
    /// Inode of the metadata file in the directory, with which the database stores the facts about the Zarr.
    pub stands: InodeRecord,
}

/// Kind of a version whose header the server has to read.
#[derive(Debug)]
pub enum HeaderKind {
    /// A file with a header of its own.
    File,
    /// A metadata file in a directory that is not a Zarr yet.
    Nothing,
    /// A metadata file in a directory of this Zarr.
    Zarr(Box<Zarr>),
}

impl Zarr {
    /// Returns the version of the representing metadata file, for the queue of headers to read.
    pub fn wanted(&self) -> WantedHeader {
        WantedHeader {
            object: self.stands.object,
            ino: self.stands.ino,
        }
    }

    /// Whether all users who may read the representing file may also read this file, or search this directory.
    pub fn shows(&self, vnode: &InodeRecord) -> bool {
        let bits = if vnode.is_dir() { 0o555 } else { 0o444 };
        let asked = (self.stands.mode & 0o044)
            | if vnode.is_dir() {
                (self.stands.mode & 0o044) >> 2
            } else {
                0
            };
        let own = (vnode.uid, vnode.gid) == (self.stands.uid, self.stands.gid);
        vnode.mode & bits == bits || own && vnode.mode & asked == asked
    }
}

/// Returns the kind of an inode's present version.
pub fn of(db: &Connection, ino: u64) -> Result<HeaderKind, Fault> {
    let names = tree::names_of(db, ino)?;
    let Some((directory, _)) = names.iter().find(|(_, name)| is_metadata(name)) else {
        return Ok(HeaderKind::File);
    };
    let uid = InodeRecord::find(db, ino)?.map(|vnode| vnode.uid);
    let found = around(db, *directory, uid)?;
    Ok(found.map_or(HeaderKind::Nothing, |zarr| HeaderKind::Zarr(Box::new(zarr))))
}

/// Returns the topmost Zarr that contains a directory, as far as all nested groups belong to one user.
fn around(db: &Connection, directory: u64, mut uid: Option<u32>) -> Result<Option<Zarr>, Fault> {
    let mut found: Option<Zarr> = None;
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        let Some(directory) = InodeRecord::find(db, at)?.filter(InodeRecord::is_dir) else {
            break;
        };
        let Some(stands) = representative_of(db, at, uid)? else {
            break;
        };
        uid = Some(stands.uid);
        let above = directory.parent;
        found = Some(Zarr { directory, stands });
        if at == Inode::ROOT.0 {
            break;
        }
        at = above;
    }
    Ok(found)
}

/// Returns the metadata file that makes a directory a Zarr. With `uid`, the file must belong to that user.
fn representative_of(
    db: &Connection,
    directory: u64,
    uid: Option<u32>,
) -> Result<Option<InodeRecord>, Fault> {
    for name in &METADATA[..4] {
        let found = InodeRecord::child(db, directory, name.as_bytes())?
            .filter(|vnode| vnode.kind == Kind::File && vnode.version != 0 && vnode.object != 0);
        if let Some(vnode) = found.filter(|vnode| uid.is_none_or(|uid| uid == vnode.uid)) {
            return Ok(Some(vnode));
        }
    }
    Ok(None)
}

impl Tx<'_> {
    /// Queues a Zarr to be read again after a file or directory in the Zarr has been renamed, created or deleted.
    pub(crate) fn changes_zarr(
        &self,
        directory: u64,
        name: &[u8],
        vnode: &InodeRecord,
    ) -> Result<(), Fault> {
        match vnode.is_dir() || is_metadata(name) {
            true => self.read_zarr_again(directory),
            false => Ok(()),
        }
    }

    /// Queues a Zarr to be read again after permissions of a file or directory in the Zarr have changed.
    pub(crate) fn changes_zarr_rights(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        if vnode.is_dir() {
            return self.read_zarr_again(vnode.ino);
        }
        for (directory, name) in tree::names_of(self.db, vnode.ino)? {
            self.changes_zarr(directory, &name, vnode)?;
        }
        Ok(())
    }

    /// Queues the Zarr that contains a directory to be read again, and the Zarr of the parent directory if that is another Zarr.
    fn read_zarr_again(&self, directory: u64) -> Result<(), Fault> {
        let above = InodeRecord::find(self.db, directory)?.map(|vnode| vnode.parent);
        let mut known = None;
        for at in [Some(directory), above].into_iter().flatten() {
            if let Some(zarr) = around(self.db, at, None)?
                && known != Some(zarr.stands.object)
            {
                headers::read_again(self.db, &self.shared.headers, &zarr)?;
                known = Some(zarr.stands.object);
            }
        }
        Ok(())
    }
}

/// Whether the file at this path represents its directory as a Zarr.
pub fn stands_for_directory(db: &Connection, object: u64, path: &[u8]) -> Result<bool, Fault> {
    Ok(is_metadata(path) && headers::is_read(db, object)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zarr_includes_only_files_readable_by_all_its_readers() {
        let vnode = |uid: u32, mode: u32| {
            let mut vnode = InodeRecord::directory(7, mode, (uid, uid), 0);
            vnode.kind = Kind::File;
            vnode
        };
        let of = |mode: u32| Zarr {
            directory: InodeRecord::directory(2, 0o755, (1, 1), 0),
            stands: vnode(1, mode),
        };
        let directory = |uid: u32, mode: u32| InodeRecord::directory(3, mode, (uid, uid), 0);
        for (zarr, other, shown) in [
            (0o644, vnode(1, 0o644), true),
            (0o600, vnode(1, 0o600), true),
            (0o644, vnode(1, 0o640), false),
            (0o640, vnode(1, 0o644), true),
            (0o640, vnode(2, 0o640), false),
            (0o600, vnode(2, 0o644), true),
            (0o644, vnode(2, 0o600), false),
            (0o644, directory(1, 0o755), true),
            (0o644, directory(1, 0o744), false),
            (0o640, directory(1, 0o750), true),
            (0o644, directory(1, 0o700), false),
            (0o600, directory(2, 0o700), false),
        ] {
            assert_eq!(of(zarr).shows(&other), shown, "{zarr:o} {other:?}");
        }
    }

    #[test]
    fn is_metadata_recognises_zarr_metadata_names() {
        for name in ["zarr.json", "/a/zarr.json", "/a.zarr/.zattrs", ".zmetadata"] {
            assert!(is_metadata(name.as_bytes()), "{name}");
        }
        for name in ["a.zarr", "/zarr.json/x", "zarr.json.tmp", "", ".z"] {
            assert!(!is_metadata(name.as_bytes()), "{name}");
        }
    }
}
