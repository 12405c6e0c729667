//! Requests for files in stores outside of the cluster (next: `mount/src/fs/bridged/mod.rs`). No thread waits for a store.

use super::convert::{attr_of, errno, file_type};
use super::waiting::Refuse;
use super::{Adapter, caller};
use crate::error::Error;
use crate::fs::bridged::{Bridged, Names};
use crate::fs::{Found, Key};
use crate::stores::Seen;
use fuser::{
    FileAttr, FileHandle, FopenFlags, Generation, INodeNo, OpenAccMode, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyLseek, ReplyOpen, Request,
};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1::Kind;

/// Maximum number of names in one answer.
const LIST_ENTRIES_MAX: usize = 512;
/// Inode number of an entry without attributes: the kernel asks for them.
const UNKNOWN: u64 = u64::MAX;

/// A page of a listing.
struct Page {
    /// Entries `.` and `..` that precede the names.
    dots: Vec<(u64, &'static str)>,
    names: Names,
}

impl Page {
    /// Returns the names, each with the offset at which the listing continues.
    fn numbered(&self) -> impl Iterator<Item = (u64, &crate::stores::Entry)> {
        (self.names.from + 3..).zip(&self.names.entries)
    }
}

impl Adapter {
    /// Answers a request when the store has answered.
    fn serve_outside<R: Refuse, T: Send + 'static>(
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
                (None, Err(error)) => tracing::debug!("nobody waits to hear: {error}"),
            }
        });
    }

    pub(super) fn bridged_lookup(
        &self,
        bridged: &Arc<Bridged>,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(request), name.as_encoded_bytes().to_vec());
        let (asked, forgotten) = (bridged.clone(), bridged.clone());
        self.serve_outside(
            request,
            reply,
            async move { asked.lookup(caller, parent.0, &name).await },
            |reply: ReplyEntry, found: Found| {
                let attr = attr_of(&found, found.key.ino);
                reply.entry(&found.ttl, &attr, Generation(0));
            },
            move |found| forgotten.forget(found.key.ino, 1),
        );
    }

    pub(super) fn bridged_open(
        &self,
        bridged: &Arc<Bridged>,
        request: &Request,
        (ino, flags): (INodeNo, OpenFlags),
        reply: ReplyOpen,
    ) {
        let caller = caller(request);
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY || flags.0 & libc::O_TRUNC != 0;
        let (asked, released) = (bridged.clone(), bridged.clone());
        self.serve_outside(
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

    pub(super) fn bridged_read(
        &self,
        bridged: &Arc<Bridged>,
        request: &Request,
        (handle, offset, size): (FileHandle, u64, u32),
        reply: ReplyData,
    ) {
        if let Some(bytes) = bridged.read_now(handle.0, offset, size as usize) {
            return reply.data(&bytes);
        }
        let asked = bridged.clone();
        self.serve_outside(
            request,
            reply,
            async move { asked.read(handle.0, offset, size as usize).await },
            |reply: ReplyData, bytes| reply.data(&bytes),
            |_| {},
        );
    }

    /// Reads the next names of a directory; `answer` sends as many as the kernel has room for.
    fn bridged_list<R: Refuse>(
        &self,
        bridged: &Arc<Bridged>,
        request: &Request,
        (handle, offset): (FileHandle, u64),
        reply: R,
        answer: impl FnOnce(&Bridged, R, &Page) + Send + 'static,
    ) {
        let (asked, told) = (bridged.clone(), bridged.clone());
        let page = async move {
            let from = offset.saturating_sub(2);
            let names = asked.list(handle.0, from, LIST_ENTRIES_MAX).await?;
            let dots = [(1, "."), (2, "..")];
            let dots = dots.into_iter().filter(|(next, _)| offset < *next);
            Ok(Page {
                dots: dots.collect(),
                names,
            })
        };
        let answer = move |reply, page: Page| answer(&told, reply, &page);
        self.serve_outside(request, reply, page, answer, |_| {});
    }

    pub(super) fn bridged_readdir(
        &self,
        bridged: &Arc<Bridged>,
        request: &Request,
        (ino, handle, offset): (INodeNo, FileHandle, u64),
        reply: ReplyDirectory,
    ) {
        let answer = move |_: &Bridged, mut reply: ReplyDirectory, page: &Page| {
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
        self.bridged_list(bridged, request, (handle, offset), reply, answer);
    }

    pub(super) fn bridged_readdirplus(
        &self,
        bridged: &Arc<Bridged>,
        request: &Request,
        (ino, handle, offset): (INodeNo, FileHandle, u64),
        reply: ReplyDirectoryPlus,
    ) {
        let answer = move |bridged: &Bridged, mut reply: ReplyDirectoryPlus, page: &Page| {
            for (next, name) in &page.dots {
                let attr = unknown(Kind::Directory);
                if reply.add(ino, *next, name, &Duration::ZERO, &attr, Generation(0)) {
                    return reply.ok();
                }
            }
            for (next, entry) in page.numbered() {
                let found = bridged.listed(&page.names, entry);
                let (attr, ttl) = match &found {
                    Some(found) => (attr_of(found, found.key.ino), found.ttl),
                    None => (unknown(kind(&entry.seen)), Duration::ZERO),
                };
                let number = found.map_or(UNKNOWN, |found| found.key.ino);
                let number = INodeNo(number);
                if reply.add(number, next, &entry.name, &ttl, &attr, Generation(0)) {
                    if let Some(found) = found {
                        bridged.forget(found.key.ino, 1);
                    }
                    break;
                }
            }
            reply.ok();
        };
        self.bridged_list(bridged, request, (handle, offset), reply, answer);
    }
}

fn kind(seen: &Seen) -> Kind {
    match seen {
        Seen::Directory => Kind::Directory,
        Seen::File(_) => Kind::File,
    }
}

/// Returns attributes with only the kind: the kernel takes an entry with the number 0 for a name only.
fn unknown(kind: Kind) -> FileAttr {
    attr_of(&Found::of_kind(Key { ino: 0, alias: 0 }, kind), 0)
}

/// Sends the attributes of an inode.
pub(super) fn getattr(bridged: &Bridged, ino: INodeNo, reply: ReplyAttr) {
    match bridged.getattr(ino.0) {
        Ok(found) => reply.attr(&found.ttl, &attr_of(&found, ino.0)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn opendir(bridged: &Bridged, request: &Request, ino: INodeNo, reply: ReplyOpen) {
    match bridged.opendir(caller(request), ino.0) {
        Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn lseek(
    bridged: &Bridged,
    handle: FileHandle,
    (offset, data): (u64, bool),
    reply: ReplyLseek,
) {
    match bridged.seek(handle.0, offset, data) {
        Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
        Err(error) => reply.error(errno(&error)),
    }
}
