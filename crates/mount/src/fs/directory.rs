//! Listings of directories, which the mount reads page by page from the server (next: `server/src`) and keeps for as long as the directory
//! is open.

use super::entries::{CachedName, ChangeSlot, ENTRIES_MAX};
use super::{Caller, Fs, LookupResult, WaitPolicy};
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::Arc;
use tidemill_client::Error as ClientError;
use tidemill_wire::v1::{self, Attr, name_op::Op, name_result::Result as Answer};

/// Number of entries in one request to the server.
const PAGE_ENTRIES: u32 = 2048;

#[derive(Debug)]
pub(crate) struct DirectoryListing {
    ino: u64,
    pages: Mutex<ListedPages>,
}

#[derive(Debug, Default)]
struct ListedPages {
    /// Entries of the listing, each with the time of its request on the table's clock.
    entries: Vec<(v1::Entry, u64)>,
    complete: bool,
}

/// One entry of a listing for the Linux kernel.
#[derive(Debug)]
pub(crate) struct ListedEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) attr: Attr,
    asked: u64,
    target: Vec<u8>,
}

impl Fs {
    pub(crate) fn opendir(&self, ino: u64) -> u64 {
        let handle = self.handle_number();
        let listing = DirectoryListing {
            ino,
            pages: Mutex::default(),
        };
        self.directories.lock().insert(handle, Arc::new(listing));
        handle
    }

    pub(crate) fn releasedir(&self, handle: u64) {
        self.directories.lock().remove(&handle);
    }

    /// Returns up to `limit` entries from number `from` on, each with its number; an empty list at the end. Leaves out entries that are
    /// known to be deleted. A call with `from` 0 reads the directory again.
    pub(crate) fn list(
        &self,
        caller: Caller,
        handle: u64,
        from: usize,
        limit: usize,
        pace: WaitPolicy,
    ) -> Result<Vec<(usize, ListedEntry)>, Error> {
        let listing = self
            .directories
            .lock()
            .get(&handle)
            .cloned()
            .ok_or(Errno::BADF)?;
        // The lock is held while the server is asked.
        let mut pages = match pace {
            WaitPolicy::Now => listing.pages.try_lock().ok_or(Error::Later)?,
            WaitPolicy::MayWait => listing.pages.lock(),
        };
        let known = from < pages.entries.len() || pages.complete;
        if !known || from == 0 {
            pace.wait()?;
        }
        if from == 0 {
            *pages = ListedPages::default();
        }
        let mut at = from;
        loop {
            while pages.entries.len() <= at && !pages.complete {
                pace.wait()?;
                self.next_page(caller, listing.ino, &mut pages)?;
            }
            let entries = pages.entries.iter().enumerate().skip(at).take(limit);
            at = at.saturating_add(entries.len());
            let listed: Vec<_> = entries
                .filter_map(|(number, (entry, asked))| {
                    let deleted =
                        self.table.known(listing.ino, &entry.name).0 == CachedName::Nothing;
                    let listed = ListedEntry {
                        name: entry.name.clone(),
                        attr: entry.attr?,
                        asked: *asked,
                        target: entry.target.clone(),
                    };
                    (!deleted).then_some((number, listed))
                })
                .collect();
            if !listed.is_empty() || pages.complete && pages.entries.len() <= at {
                return Ok(listed);
            }
        }
    }

    fn next_page(&self, caller: Caller, ino: u64, pages: &mut ListedPages) -> Result<(), Error> {
        let after = pages
            .entries
            .last()
            .map_or_else(Vec::new, |(entry, _)| entry.name.clone());
        let asked = self.table.now();
        let op = Op::ReadDir(v1::ReadDir {
            ino,
            after,
            limit: PAGE_ENTRIES,
        });
        match self.backend.one(caller, op)? {
            Answer::Entries(page) => {
                pages.complete = page.end || page.entries.is_empty();
                let entries = page.entries.into_iter().map(|entry| (entry, asked));
                pages.entries.extend(entries);
                if pages.complete && pages.entries.len() <= ENTRIES_MAX {
                    let asked = pages.entries.first().map_or(asked, |(_, first)| *first);
                    let entries = pages.entries.iter().map(|(entry, _)| entry);
                    self.learn_listing(ino, entries, asked);
                }
                Ok(())
            }
            _ => Err(ClientError::Answer("ReadDir").into()),
        }
    }

    /// Returns the description of a listed entry for the Linux kernel's cache. The listing may be older than the cached entry: then the
    /// cached entry is returned, or the Linux kernel has to look up the entry before it uses it.
    pub(crate) fn list_found(&self, parent: u64, listed: &ListedEntry) -> LookupResult {
        let entry = ChangeSlot::of(parent, &listed.name);
        let believed = !self.table.entry_changed_since(entry, listed.asked);
        if !believed && let Some(Ok(known)) = self.lookup_here(parent, &listed.name) {
            return known;
        }
        let mut found = self.hold(listed.attr, listed.target.clone(), listed.asked);
        found.asked = if believed { listed.asked } else { 0 };
        found.entry = Some(entry);
        let (name, ino) = (&listed.name, listed.attr.ino);
        self.table.learned(parent, name, ino, listed.asked);
        found
    }
}
