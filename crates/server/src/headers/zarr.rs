//! Zarrs that are directories. The database stores the facts about a Zarr with its topmost metadata file, which represents the directory:
//! users who may read that file find the Zarr. Other files therefore count only if all readers of that file may read them, too. Symbolic
//! links are not followed.

use super::coordinates::Stored;
use super::driver::WINDOW_MAX;
use super::store::{self, WantedHeader};
use crate::files::{SourceNodes, VersionStream};
use crate::names::Fault;
use crate::names::transaction::Tx;
use crate::names::vnode::InodeRecord;
use crate::names::{Caller, SqliteNames};
use crate::reductions::ordered;
use parking_lot::Mutex;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tidemill_compute::array::{ArraySpec, Reduced};
use tidemill_format::zarr::METADATA;
use tidemill_format::{Directory, FileSpan, Header, NAMES_MAX};
use tidemill_model::id::Inode;
use tidemill_wire::v1::Kind;
use tokio::runtime::Handle;

/// Maximum number of parent groups that are examined above a directory.
const DEPTH_MAX: usize = 64;
/// Maximum number of metadata files of one Zarr whose rows are updated together with the Zarr's row. Other files are read separately.
const FILES_MAX: usize = 4096;

/// Whether a file is metadata of a Zarr, according to its name or path.
pub(super) fn is_metadata(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next();
    name.is_some_and(|name| METADATA.iter().any(|known| known.as_bytes() == name))
}

/// A Zarr: its directory, and the metadata file that represents the directory.
#[derive(Clone, Debug)]
pub(super) struct Zarr {
    pub(super) directory: InodeRecord,
    pub(super) stands: InodeRecord,
}

/// Kind of a version whose header the server has to read.
pub(super) enum HeaderKind {
    /// A file with a header of its own.
    File,
    /// A metadata file in a directory that is not a Zarr yet.
    Nothing,
    Zarr(Box<Zarr>),
}

impl Zarr {
    pub(super) fn wanted(&self) -> WantedHeader {
        WantedHeader {
            object: self.stands.object,
            ino: self.stands.ino,
        }
    }

    /// Whether all users who may read the representing file may also read this file, or search this directory.
    fn shows(&self, vnode: &InodeRecord) -> bool {
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
pub(super) fn of(db: &Connection, ino: u64) -> Result<HeaderKind, Fault> {
    let names = names(db, ino)?;
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
        for (directory, name) in names(self.db, vnode.ino)? {
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
                store::read_again(self.db, &self.shared.headers, &zarr)?;
                known = Some(zarr.stands.object);
            }
        }
        Ok(())
    }
}

/// Returns the directories that contain a file, with the file's name in each directory.
fn names(db: &Connection, ino: u64) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
    let sql = "SELECT parent, name FROM dirent WHERE ino = ?1";
    let mut statement = db.prepare_cached(sql)?;
    let names = statement.query_map([ino.cast_signed()], |row| {
        Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?))
    })?;
    Ok(names.collect::<Result<_, _>>()?)
}

/// Whether the file at this path represents its directory as a Zarr.
pub(crate) fn stands_for_directory(
    db: &Connection,
    object: u64,
    path: &[u8],
) -> Result<bool, Fault> {
    Ok(is_metadata(path) && store::is_read(db, object)?)
}

/// Files of a Zarr, which the server reads within limits.
pub(super) struct ZarrFiles {
    pub(super) zarr: Zarr,
    pub(super) names: Arc<SqliteNames>,
    pub(super) nodes: SourceNodes,
    pub(super) until: Instant,
    pub(super) bytes_left: Mutex<u64>,
    /// Versions of metadata that were read, by object, with the inodes of their files.
    pub(super) seen: Mutex<BTreeMap<u64, InodeRecord>>,
    /// Whether a chunk of a coordinate variable is missing.
    pub(super) lacks: AtomicBool,
}

impl ZarrFiles {
    fn vnode(&self, path: &str) -> io::Result<Option<InodeRecord>> {
        if Instant::now() >= self.until {
            return Err(io::Error::other(
                "its metadata take too long to be read for searches",
            ));
        }
        let found = self.names.database().read(|db| {
            let mut vnode = self.zarr.directory.clone();
            for name in path.split('/').filter(|name| !name.is_empty()) {
                if !vnode.is_dir() || matches!(name, "." | "..") {
                    return Ok(None);
                }
                match InodeRecord::child(db, vnode.ino, name.as_bytes())? {
                    Some(child) if self.zarr.shows(&child) => vnode = child,
                    _ => return Ok(None),
                }
            }
            Ok(Some(vnode))
        });
        found.map_err(offline)
    }

    fn file(&self, path: &str) -> io::Result<Option<InodeRecord>> {
        let vnode = self.vnode(path)?;
        let vnode = vnode.filter(|vnode| vnode.kind == Kind::File && vnode.version != 0);
        if let Some(vnode) = vnode.as_ref().filter(|_| is_metadata(path.as_bytes())) {
            let mut seen = self.seen.lock();
            if seen.len() < FILES_MAX {
                seen.insert(vnode.object, vnode.clone());
            }
        }
        Ok(vnode)
    }

    /// Returns a reader of the present version of a file, and the version's size in bytes.
    fn source(&self, path: &str) -> io::Result<(VersionStream, u64)> {
        let vnode = self.file(path)?.ok_or(io::ErrorKind::NotFound)?;
        let reading = self
            .names
            .read_version(&Caller::root(), vnode.ino)
            .map_err(offline)?;
        if reading.vnode.object != vnode.object {
            return Err(io::Error::other(format!("{path} has another version")));
        }
        let source = VersionStream::new(&self.nodes, reading);
        let source = source.ok_or_else(|| io::Error::other(format!("{path} is empty")))?;
        Ok((source, vnode.size))
    }
}

/// Converts a temporary failure to an error after which the server retries the read.
fn offline(why: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, why)
}

impl ZarrFiles {
    /// Reads the metadata of all groups and arrays, even if one file has all metadata, to make sure that no other Zarr is inside this Zarr.
    pub(super) fn look_at_all(&self, header: &Header) {
        let paths = header.groups.iter().map(|group| &group.path);
        let paths = paths.chain(header.variables.iter().map(|variable| &variable.path));
        for path in paths.take(FILES_MAX) {
            for name in METADATA {
                if self.file(&format!("{path}/{name}")).is_err() {
                    return;
                }
            }
        }
    }
}

impl Directory for ZarrFiles {
    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        Ok(self.file(path)?.map(|vnode| vnode.size))
    }

    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (source, size) = self.source(path)?;
        let length = into.len() as u64;
        let end = offset.saturating_add(length);
        if end > size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        {
            let mut left = self.bytes_left.lock();
            let rest = left.checked_sub(length);
            *left = rest.ok_or_else(|| {
                io::Error::other("its metadata are too large to be read for searches")
            })?;
        }
        for (number, into) in (0..).zip(into.chunks_mut(WINDOW_MAX)) {
            let begin = offset + number * WINDOW_MAX as u64;
            let range = begin..begin + into.len() as u64;
            let bytes = Handle::current()
                .block_on(source.window(range))
                .map_err(offline)?;
            into.copy_from_slice(
                bytes
                    .get(..into.len())
                    .ok_or(io::ErrorKind::UnexpectedEof)?,
            );
        }
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let Some(directory) = self.vnode(path)?.filter(InodeRecord::is_dir) else {
            return Ok(Vec::new());
        };
        let listed = self.names.database().read(|db| {
            let sql = "SELECT name FROM dirent WHERE parent = ?1 LIMIT ?2";
            let mut statement = db.prepare_cached(sql)?;
            let most = i64::try_from(NAMES_MAX + 2).unwrap_or(i64::MAX);
            let names = statement.query_map([directory.ino.cast_signed(), most], |row| {
                row.get::<_, Vec<u8>>(0)
            })?;
            Ok(names.collect::<Result<Vec<_>, _>>()?)
        });
        let names = listed.map_err(offline)?.into_iter();
        Ok(names
            .filter_map(|name| String::from_utf8(name).ok())
            .collect())
    }
}

impl Stored for ZarrFiles {
    fn lacks(&self) {
        self.lacks.store(true, Ordering::Relaxed);
    }

    fn read(&self, span: &FileSpan, into: &mut [u8]) -> Option<()> {
        self.read_at(span.file.as_ref()?, span.offset, into).ok()
    }

    fn decode(&self, spec: ArraySpec, span: &FileSpan) -> Option<Vec<u8>> {
        let (source, _) = self.source(span.file.as_ref()?).ok()?;
        let owner = (self.zarr.stands.uid, self.zarr.stands.gid);
        let range = span.offset..span.offset.checked_add(span.size)?;
        let work = async {
            let (part, order) = ordered(&source, spec, range).await.ok()?;
            source.reduce(part, owner, order).await.ok()
        };
        let left = self.until.saturating_duration_since(Instant::now());
        let answer = Handle::current().block_on(async { tokio::time::timeout(left, work).await });
        let reduced: Reduced = postcard::from_bytes(&answer.ok()??).ok()?;
        Some(reduced.bytes)
    }
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
