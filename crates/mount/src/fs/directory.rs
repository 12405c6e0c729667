//! Listings of directories, read page by page and kept for as long as the directory is open.

use super::{Caller, Found, Fs, Key, Pace};
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::Arc;
use tidemill_client::Error as ClientError;
use tidemill_wire::v1::{self, Attr, name_op::Op, name_result::Result as Answer};

/// Entries asked for at once.
const PAGE_ENTRIES: u32 = 2048;

/// Entries of a directory of which all names are remembered.
const KNOWN_ENTRIES_MAX: usize = 65_536;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Listing {
    ino: u64,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    entries: Vec<v1::Entry>,
    complete: bool,
    /// When the first page was asked for, on the table's clock.
    asked: u64,
}

/// One entry as the kernel is told.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) attr: Attr,
    asked: u64,
    target: Vec<u8>,
}

impl Fs {
    pub(crate) fn opendir(&self, ino: u64) -> u64 {
        let handle = self.handle_number();
        let listing = Listing {
            ino,
            pages: Mutex::default(),
        };
        self.directories.lock().insert(handle, Arc::new(listing));
        handle
    }

    pub(crate) fn releasedir(&self, handle: u64) {
        self.directories.lock().remove(&handle);
    }

    /// Up to `limit` entries from number `from` on; none at the end. Starting over at 0 reads anew.
    pub(crate) fn list(
        &self,
        caller: Caller,
        handle: u64,
        from: usize,
        limit: usize,
        pace: Pace,
    ) -> Result<Vec<Listed>, Error> {
        let listing = self
            .directories
            .lock()
            .get(&handle)
            .cloned()
            .ok_or(Errno::BADF)?;
        // It is held while the server is asked.
        let mut pages = match pace {
            Pace::Now => listing.pages.try_lock().ok_or(Error::Later)?,
            Pace::MayWait => listing.pages.lock(),
        };
        let known = from < pages.entries.len() || pages.complete;
        if !known || from == 0 {
            pace.wait()?;
        }
        if from == 0 {
            *pages = Pages {
                asked: self.table.now(),
                ..Pages::default()
            };
        }
        while pages.entries.len() <= from && !pages.complete {
            self.next_page(caller, listing.ino, &mut pages)?;
        }
        let entries = pages.entries.iter().skip(from).take(limit);
        let listed = entries.filter_map(|entry| {
            Some(Listed {
                name: entry.name.clone(),
                attr: entry.attr?,
                asked: pages.asked,
                target: entry.target.clone(),
            })
        });
        Ok(listed.collect())
    }

    fn next_page(&self, caller: Caller, ino: u64, pages: &mut Pages) -> Result<(), Error> {
        let after = pages
            .entries
            .last()
            .map_or_else(Vec::new, |entry| entry.name.clone());
        let op = Op::ReadDir(v1::ReadDir {
            ino,
            after,
            limit: PAGE_ENTRIES,
        });
        match self.backend.one(caller, op)? {
            Answer::Entries(page) => {
                pages.complete = page.end || page.entries.is_empty();
                pages.entries.extend(page.entries);
                if pages.complete && pages.entries.len() <= KNOWN_ENTRIES_MAX {
                    self.learn_listing(&self.node(ino), &pages.entries, pages.asked);
                }
                Ok(())
            }
            _ => Err(ClientError::Answer("ReadDir").into()),
        }
    }

    /// What the kernel is told of a listed entry that it takes into its cache.
    pub(crate) fn list_found(&self, parent: u64, listed: &Listed) -> Result<Found, Error> {
        let entry = v1::Entry {
            name: Vec::new(),
            attr: Some(listed.attr),
            target: listed.target.clone(),
        };
        self.learn(parent, &listed.name, entry, listed.asked, true)
            .map(|(_, found)| found)
    }

    /// Attributes of a listed entry as they would be, without the kernel taking it into its cache.
    pub(crate) fn list_peek(&self, parent: u64, listed: &Listed) -> Found {
        let known = self.table.get(listed.attr.ino);
        let mut found = known.map_or(
            Found {
                key: Key {
                    ino: listed.attr.ino,
                    alias: 0,
                },
                attr: listed.attr,
                blocks: listed.attr.size.div_ceil(512),
                ttl: self.attr_ttl,
                asked: listed.asked,
                parent,
            },
            |node| self.found(&node, &node.state.lock()),
        );
        found.asked = found.asked.min(listed.asked);
        found.parent = parent;
        found.attr.ino = listed.attr.ino;
        found.attr.kind = listed.attr.kind;
        found
    }
}
