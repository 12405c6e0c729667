//! Requests of the Linux kernel for files of remotes (next: `mount/src/fs/remote_stores/mod.rs`). No thread waits for a store.

use super::convert::{attr_of, errno, file_type};
use super::waiting::Refuse;
use super::{Adapter, caller};
use crate::error::Error;
use crate::fs::remote_stores::{NameRange, RemoteStores};
use crate::fs::{InodeKey, LookupResult};
use fuser::{
    FileAttr, FileHandle, FopenFlags, Generation, INodeNo, OpenAccMode, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyLseek, ReplyOpen, Request,
};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;
use tidemill_remote::{ListingEntry, PathType};
use tidemill_wire::v1::Kind;

/// Maximum number of names in one answer to the Linux kernel.
const LIST_ENTRIES_MAX: usize = 512;
/// Inode number of an entry without attributes, for which the Linux kernel requests the attributes.
const UNKNOWN: u64 = u64::MAX;

struct ListingPage {
    /// Entries `.` and `..` that precede the names of the page.
    dots: Vec<(u64, &'static str)>,
    names: NameRange,
}

impl ListingPage {
    /// Returns the names of the page, each with the offset at which the listing continues.
    fn numbered(&self) -> impl Iterator<Item = (u64, &ListingEntry)> {
        (self.names.from + 3..).zip(&self.names.entries)
    }
}

impl Adapter {
    /// Answers a request of the Linux kernel after the store has answered.
    fn serve_remote<R: Refuse, T: Send + 'static>(
        &self,
        request: &Request,
        reply: R,
        op: impl Future<Output = Result<T, Error>> + Send + 'static,
        answer: impl FnOnce(R, T) + Send + 'static,
        unheard: impl FnOnce(T) + Send + 'static,
    ) {
        let slot = self.0.waiting.enter(request.pid(), reply);
        self.0.fs.backend.runtime.spawn(async move {
            let outcome = op.await;
            match (slot.take(), outcome) {
                (Some(reply), Ok(outcome)) => answer(reply, outcome),
                (Some(reply), Err(error)) => reply.refuse(errno(&error)),
                (None, Ok(outcome)) => unheard(outcome),
                (None, Err(error)) => tracing::debug!("no request waits for this error: {error}"),
            }
        });
    }

    pub(super) fn remote_lookup(
        &self,
        remote_stores: &Arc<RemoteStores>,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(request), name.as_encoded_bytes().to_vec());
        let (asked, forgotten) = (remote_stores.clone(), remote_stores.clone());
        self.serve_remote(
            request,
            reply,
            async move { asked.lookup(caller, parent.0, &name).await },
            |reply: ReplyEntry, found: LookupResult| {
                let attr = attr_of(&found, found.key.ino);
                reply.entry(&found.ttl, &attr, Generation(0));
            },
            move |found| forgotten.forget(found.key.ino, 1),
        );
    }

    pub(super) fn remote_open(
        &self,
        remote_stores: &Arc<RemoteStores>,
        request: &Request,
        (ino, flags): (INodeNo, OpenFlags),
        reply: ReplyOpen,
    ) {
        let caller = caller(request);
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY || flags.0 & libc::O_TRUNC != 0;
        let (asked, released) = (remote_stores.clone(), remote_stores.clone());
        self.serve_remote(
            request,
            reply,
            async move { asked.open(caller, ino.0, write).await },
            |reply: ReplyOpen, handle| {
                // An inode is one version: its pages stay valid as long as the kernel keeps them.
                let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                reply.opened(FileHandle(handle), flags);
            },
            move |handle| released.release(handle),
        );
    }

    pub(super) fn remote_read(
        &self,
        remote_stores: &Arc<RemoteStores>,
        request: &Request,
        (handle, offset, size): (FileHandle, u64, u32),
        reply: ReplyData,
    ) {
        if let Some(bytes) = remote_stores.read_now(handle.0, offset, size as usize) {
            return reply.data(&bytes);
        }
        let asked = remote_stores.clone();
        self.serve_remote(
            request,
            reply,
            async move { asked.read(handle.0, offset, size as usize).await },
            |reply: ReplyData, bytes| reply.data(&bytes),
            |_| {},
        );
    }

    /// Reads the next names of a directory; `answer` sends as many names as the Linux kernel has space for.
    fn remote_list<R: Refuse>(
        &self,
        remote_stores: &Arc<RemoteStores>,
        request: &Request,
        (handle, offset): (FileHandle, u64),
        reply: R,
        answer: impl FnOnce(&RemoteStores, R, &ListingPage) + Send + 'static,
    ) {
        let (asked, reported) = (remote_stores.clone(), remote_stores.clone());
        let page = async move {
            let from = offset.saturating_sub(2);
            let names = asked.list(handle.0, from, LIST_ENTRIES_MAX).await?;
            let dots = [(1, "."), (2, "..")];
            let dots = dots.into_iter().filter(|(next, _)| offset < *next);
            Ok(ListingPage {
                dots: dots.collect(),
                names,
            })
        };
        let answer = move |reply, page: ListingPage| answer(&reported, reply, &page);
        self.serve_remote(request, reply, page, answer, |_| {});
    }

    pub(super) fn remote_readdir(
        &self,
        remote_stores: &Arc<RemoteStores>,
        request: &Request,
        (ino, handle, offset): (INodeNo, FileHandle, u64),
        reply: ReplyDirectory,
    ) {
        let answer = move |_: &RemoteStores, mut reply: ReplyDirectory, page: &ListingPage| {
            let directory = file_type(Kind::Directory);
            let mut full = false;
            for (next, name) in &page.dots {
                full = full || reply.add(ino, *next, directory, name);
            }
            for (next, entry) in page.numbered() {
                let kind = file_type(kind(&entry.seen));
                full = full || reply.add(INodeNo(UNKNOWN), next, kind, &entry.name);
            }
            reply.ok();
        };
        self.remote_list(remote_stores, request, (handle, offset), reply, answer);
    }

    pub(super) fn remote_readdirplus(
        &self,
        remote_stores: &Arc<RemoteStores>,
        request: &Request,
        (ino, handle, offset): (INodeNo, FileHandle, u64),
        reply: ReplyDirectoryPlus,
    ) {
        let answer = move |remote_stores: &RemoteStores,
                           mut reply: ReplyDirectoryPlus,
                           page: &ListingPage| {
            for (next, name) in &page.dots {
                let attr = unknown(Kind::Directory);
                if reply.add(ino, *next, name, &Duration::ZERO, &attr, Generation(0)) {
                    return reply.ok();
                }
            }
            for (next, entry) in page.numbered() {
                let found = remote_stores.listed(&page.names, entry);
                let (attr, ttl) = match &found {
                    Some(found) => (attr_of(found, found.key.ino), found.ttl),
                    None => (unknown(kind(&entry.seen)), Duration::ZERO),
                };
                let number = found.map_or(UNKNOWN, |found| found.key.ino);
                let number = INodeNo(number);
                if reply.add(number, next, &entry.name, &ttl, &attr, Generation(0)) {
                    if let Some(found) = found {
                        remote_stores.forget(found.key.ino, 1);
                    }
                    break;
                }
            }
            reply.ok();
        };
        self.remote_list(remote_stores, request, (handle, offset), reply, answer);
    }
}

fn kind(seen: &PathType) -> Kind {
    match seen {
        PathType::Directory => Kind::Directory,
        PathType::File(..) => Kind::File,
    }
}

/// Returns attributes with only the kind of a file: the Linux kernel takes an entry with inode 0 for a name only.
fn unknown(kind: Kind) -> FileAttr {
    attr_of(
        &LookupResult::of_kind(InodeKey { ino: 0, alias: 0 }, kind),
        0,
    )
}

/// Answers the Linux kernel with the attributes of an inode.
pub(super) fn getattr(remote_stores: &RemoteStores, ino: INodeNo, reply: ReplyAttr) {
    match remote_stores.getattr(ino.0) {
        Ok(found) => reply.attr(&found.ttl, &attr_of(&found, ino.0)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn opendir(
    remote_stores: &RemoteStores,
    request: &Request,
    ino: INodeNo,
    reply: ReplyOpen,
) {
    match remote_stores.opendir(caller(request), ino.0) {
        Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn lseek(
    remote_stores: &RemoteStores,
    handle: FileHandle,
    (offset, data): (u64, bool),
    reply: ReplyLseek,
) {
    match remote_stores.seek(handle.0, offset, data) {
        Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
        Err(error) => reply.error(errno(&error)),
    }
}
