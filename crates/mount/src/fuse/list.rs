//! Listings as the Linux kernel requests them: by offset, with or without attributes (next: `mount/src/fs/directory.rs`).

use super::convert::{attr_of, errno};
use super::waiting::Refuse;
use super::{Adapter, BackingState, caller, key};
use crate::error::Error;
use crate::fs::{Caller, Fs, InodeKey, LookupResult, WaitPolicy, directory::ListedEntry};
use fuser::{FileHandle, Generation, INodeNo, ReplyDirectoryPlus, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use tidemill_wire::v1::{Attr, Kind};

/// Maximum number of entries in one answer; the Linux kernel has space for a few hundred.
const LIST_ENTRIES_MAX: usize = 512;

/// One entry of a listing, as the Linux kernel gets it.
pub(super) struct ListingLine {
    pub(super) name: Vec<u8>,
    pub(super) attr: Attr,
    /// Offset at which the listing continues.
    pub(super) next: u64,
    entry: Option<ListedEntry>,
    special: Option<LookupResult>,
}

impl Adapter {
    /// Lists a directory from `offset` on: offsets 0 and 1 are `.` and `..`, and the directory's entries follow.
    #[allow(
        clippy::too_many_arguments,
        reason = "the two kinds of listing differ in their answers only"
    )]
    pub(super) fn list<R: Refuse>(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: R,
        answer: impl FnOnce(&BackingState, R, Vec<ListingLine>) + Send + 'static,
    ) {
        let (caller, key) = (caller(request), key(ino));
        self.serve(
            caller.pid,
            reply,
            move |fs, pace| lines(fs, caller, key, fh.0, offset, pace),
            move |inner, reply, outcome| match outcome {
                Ok(lines) => {
                    let _gate = inner.fs.table.gate.read();
                    answer(inner, reply, lines);
                }
                Err(error) => reply.refuse(errno(&error)),
            },
            |_, _| {},
        );
    }
}

impl BackingState {
    /// Adds an entry with attributes to the answer. Returns whether the answer is full.
    pub(super) fn add_plus(
        &self,
        reply: &mut ReplyDirectoryPlus,
        parent: INodeNo,
        line: ListingLine,
    ) -> bool {
        let name = OsStr::from_bytes(&line.name);
        let directory = key(parent).ino;
        let found = match (&line.entry, line.special) {
            (Some(entry), _) => self.fs.list_found(directory, entry),
            (None, Some(found)) => found,
            (None, None) => return false,
        };
        let number = found.key.pack();
        let attr = attr_of(&found, number);
        let (attr_ttl, entry_ttl) = self.fs.ttls(&found);
        let ttl = attr_ttl.min(entry_ttl);
        let full = reply.add(INodeNo(number), line.next, name, &ttl, &attr, Generation(0));
        if full && line.entry.is_some() {
            self.fs.forget(found.key, 1);
        }
        full
    }
}

fn lines(
    fs: &Fs,
    caller: Caller,
    key: InodeKey,
    handle: u64,
    offset: u64,
    pace: WaitPolicy,
) -> Result<Vec<ListingLine>, Error> {
    let mut lines = Vec::new();
    let dots = [(0, &b"."[..]), (1, &b".."[..])];
    for (at, name) in dots {
        if offset <= at {
            let found = LookupResult::of_kind(key, Kind::Directory);
            lines.push(ListingLine {
                name: name.to_vec(),
                attr: found.attr,
                next: at + 1,
                entry: None,
                special: Some(found),
            });
        }
    }
    let from = usize::try_from(offset.saturating_sub(2)).unwrap_or(usize::MAX);
    if key.is_special() {
        let entries = fs.control_list(caller, key.ino, pace)?;
        for (at, (name, found)) in entries.into_iter().enumerate().skip(from) {
            let (attr, next) = (found.attr, at as u64 + 3);
            lines.push(ListingLine {
                name,
                attr,
                next,
                entry: None,
                special: Some(found),
            });
        }
        return Ok(lines);
    }
    for (number, entry) in fs.list(caller, handle, from, LIST_ENTRIES_MAX, pace)? {
        lines.push(ListingLine {
            name: entry.name.clone(),
            attr: entry.attr,
            next: number as u64 + 3,
            entry: Some(entry),
            special: None,
        });
    }
    Ok(lines)
}
