//! Open directories of remotes, which are read one page of names at a time (next: `remote/src/store.rs`).

use super::RemoteStores;
use super::vnodes::InodeTarget;
use crate::error::Error;
use crate::fs::{Caller, LookupResult};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use tidemill_remote::{DirectoryPages, ListingEntry, PathType};
use tokio::sync::Mutex;

/// Number of names in one request to a store.
const PAGE_ENTRIES: usize = 1000;

#[derive(Debug)]
pub(super) struct AttachedListing {
    place: InodeTarget,
    /// Id of the store that returned the names.
    store: u64,
    source: Option<Box<dyn DirectoryPages>>,
    /// Number of the first name of the listing that is in memory.
    base: u64,
    here: VecDeque<ListingEntry>,
    ended: bool,
}

impl AttachedListing {
    fn new(place: InodeTarget) -> Self {
        Self {
            place,
            store: 0,
            source: None,
            base: 0,
            here: VecDeque::new(),
            ended: false,
        }
    }
}

/// A range of names of a listing, and their directory.
#[derive(Debug)]
pub(crate) struct NameRange {
    place: InodeTarget,
    store: u64,
    /// Number of the first name of the range.
    pub(crate) from: u64,
    pub(crate) entries: Vec<ListingEntry>,
}

impl RemoteStores {
    pub(crate) fn opendir(&self, caller: Caller, number: u64) -> Result<u64, Error> {
        Self::check(caller)?;
        let place = self.vnodes.lock().place(number)?;
        if matches!(place, InodeTarget::File(_)) {
            return Err(Errno::NOTDIR.into());
        }
        let handle = self.number();
        let listing = Arc::new(Mutex::new(AttachedListing::new(place)));
        self.listings.lock().insert(handle, listing);
        Ok(handle)
    }

    pub(crate) fn releasedir(&self, handle: u64) {
        self.listings.lock().remove(&handle);
    }

    /// Returns up to `most` names from number `from` on; an empty range at the end.
    pub(crate) async fn list(
        &self,
        handle: u64,
        from: u64,
        most: usize,
    ) -> Result<NameRange, Error> {
        let listing = self.listings.lock().get(&handle).cloned();
        let listing = listing.ok_or(Errno::BADF)?;
        let mut listing = listing.lock().await;
        if from < listing.base || from == 0 {
            // Back to the beginning: the store is asked again.
            *listing = AttachedListing::new(listing.place.clone());
        }
        loop {
            while listing.base < from && listing.here.pop_front().is_some() {
                listing.base += 1;
            }
            if listing.base == from && !listing.here.is_empty() || listing.ended {
                break;
            }
            if let Err(error) = self.page(&mut listing).await {
                *listing = AttachedListing::new(listing.place.clone());
                return Err(error);
            }
        }
        Ok(NameRange {
            place: listing.place.clone(),
            store: listing.store,
            from: listing.base,
            entries: listing.here.iter().take(most).cloned().collect(),
        })
    }

    async fn page(&self, listing: &mut AttachedListing) -> Result<(), Error> {
        let InodeTarget::Directory(remote, path) = &listing.place else {
            let remotes = self.remotes().await?;
            let directory = |name: &String| ListingEntry {
                name: name.clone(),
                seen: PathType::Directory,
            };
            listing.here.extend(remotes.keys().map(directory));
            listing.ended = true;
            return Ok(());
        };
        let at = (remote.as_str(), path.as_str());
        let mut source = match listing.source.take() {
            Some(source) => source,
            None => {
                let opened = self.store(remote).await?;
                listing.store = opened.id;
                self.within(at, opened.store.entries(path)).await?
            }
        };
        let page = self.within(at, source.next(PAGE_ENTRIES)).await?;
        listing.ended = page.is_empty();
        listing.here.extend(page);
        listing.source = Some(source);
        Ok(())
    }

    /// Returns the attributes of a listed name for the Linux kernel's cache; `None` if the Linux kernel has to request the attributes.
    pub(crate) fn listed(&self, names: &NameRange, entry: &ListingEntry) -> Option<LookupResult> {
        let mut vnodes = self.vnodes.lock();
        match &names.place {
            InodeTarget::Directory(remote, path) => {
                vnodes.listed((remote, path), names.store, entry)
            }
            _ => {
                let whole = ListingEntry {
                    name: String::new(),
                    seen: PathType::Directory,
                };
                vnodes.listed((&entry.name, ""), 0, &whole)
            }
        }
    }
}
