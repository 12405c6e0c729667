//! Reads the metadata and the coordinates of a Zarr that is a directory (`meta/src/index/zarr.rs`), within limits.

use super::coordinates::Stored;
use super::driver::WINDOW_MAX;
use crate::files::{SourceNodes, VersionStream};
use crate::reductions::ordered;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tidemill_compute::array::{ArraySpec, Reduced};
use tidemill_format::zarr::METADATA;
use tidemill_format::{Directory, FileSpan, Header, NAMES_MAX};
use tidemill_meta::index::zarr::{Zarr, is_metadata};
use tidemill_meta::vnode::InodeRecord;
use tidemill_meta::{Caller, SqliteNames, tree};
use tidemill_wire::v1::Kind;
use tokio::runtime::Handle;

/// Maximum number of metadata files of one Zarr whose rows are updated together with the Zarr's row. Other files are read separately.
const FILES_MAX: usize = 4096;

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
        let most = u32::try_from(NAMES_MAX + 2).unwrap_or(u32::MAX);
        let database = self.names.database();
        let listed = database.read(|db| tree::names_in(db, directory.ino, most));
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
