//! A store as a tree: what a path is, what is in one folder, and any range of a file. Nothing is copied and nothing is kept.

use crate::folder::{Folder, Page};
use crate::place::checked;
use crate::store::{Bridge, Object, Store};
use crate::{Error, store::aside};
use crate::{remote, tree};
use bytes::Bytes;
use std::fmt;
use std::time::SystemTime;
use tokio::sync::OwnedSemaphorePermit;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A file, and when it was changed, if the store says.
    File(Object, Option<SystemTime>),
    /// A folder, or what stands for one: a common begin of keys.
    Folder,
}

impl Seen {
    /// The file that it is to be.
    pub(crate) fn file(self, path: &str) -> Result<Object, Error> {
        match self {
            Self::File(object, _) => Ok(object),
            Self::Folder => Err(Error::NoFile {
                path: path.to_owned(),
                what: "a folder",
            }),
        }
    }

    /// That it is a folder, as it is to be.
    pub(crate) fn folder(&self, path: &str) -> Result<(), Error> {
        match self {
            Self::Folder => Ok(()),
            Self::File(..) => Err(Error::NoFile {
                path: path.to_owned(),
                what: "a file",
            }),
        }
    }

    /// That it is still this file.
    pub(crate) fn still(&self, object: &Object) -> Result<(), Error> {
        match self {
            Self::File(now, _) if now == object => Ok(()),
            _ => Err(Error::Changed(object.path.clone())),
        }
    }
}

/// One name of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Without any slash.
    pub name: String,
    /// What it is.
    pub seen: Seen,
}

/// The names of one folder, by pages. Nobody works on it between two of them.
pub struct Entries(Listing);

impl fmt::Debug for Entries {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Entries").finish_non_exhaustive()
    }
}

enum Listing {
    /// Of a store without listings; or all was told.
    Nothing,
    Folder(Folder, Option<Box<Page>>),
    Remote(Box<remote::Level>),
    Tree(Box<tree::Level>),
}

/// Does what waits for a folder's disk, in as many threads as one folder may take.
async fn in_turn<T: Send + 'static>(
    folder: &Folder,
    work: impl FnOnce(&Folder) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let turn = folder.turns.clone().acquire_owned().await;
    let folder = folder.clone();
    aside(move || {
        // Who waited may have gone: a disk that never answers keeps its turn.
        let _turn: Option<OwnedSemaphorePermit> = turn.ok();
        work(&folder)
    })
    .await
}

impl Bridge {
    /// What is at a path.
    ///
    /// # Errors
    /// If there is nothing, or what is never followed, or it may not be asked for.
    pub async fn look(&self, path: &str) -> Result<Seen, Error> {
        if path.is_empty() {
            return Ok(Seen::Folder);
        }
        let path = checked(path)?.to_owned();
        if crate::place::is_part(&path) {
            return Err(Error::Missing(path));
        }
        match &self.0 {
            Store::Folder(folder) => in_turn(folder, move |folder| folder.look(&path)).await,
            Store::Remote(remote) => remote.look(&path).await,
            Store::Tree(tree) => tree.look(&path).await,
        }
    }

    /// Begins to tell what is in a folder. Of a store that can't be listed it is nothing.
    ///
    /// # Errors
    /// If it is no folder, or may not be listed.
    pub async fn entries(&self, path: &str) -> Result<Entries, Error> {
        let path = match path {
            "" => String::new(),
            path => checked(path)?.to_owned(),
        };
        Ok(Entries(match &self.0 {
            Store::Folder(folder) => {
                let page = in_turn(folder, move |folder| folder.page(&path)).await?;
                Listing::Folder(folder.clone(), Some(Box::new(page)))
            }
            Store::Remote(remote) if !remote.lists => Listing::Nothing,
            Store::Remote(remote) => Listing::Remote(Box::new(remote.level(&path).await?)),
            Store::Tree(tree) => Listing::Tree(Box::new(tree.level(&path).await?)),
        }))
    }

    /// A range of a file, if all of it is of this object and no other one. An empty one says whether a folder's file may be read.
    ///
    /// # Errors
    /// If it is another one now, or can't be read.
    pub async fn read_at(&self, object: &Object, from: u64, count: u64) -> Result<Bytes, Error> {
        let path = checked(&object.path)?.to_owned();
        match &self.0 {
            Store::Remote(_) | Store::Tree(_) if count == 0 => Ok(Bytes::new()),
            Store::Tree(tree) => tree.range(object, from, count).await,
            Store::Remote(remote) => remote.range(object, from, count).await,
            Store::Folder(folder) => {
                let object = object.clone();
                in_turn(folder, move |folder| {
                    folder.range(&path, &object, from, count)
                })
                .await
            }
        }
    }
}

impl Entries {
    /// Some more names, `most` at most; none when all were told. What can be no name of a file, and what is never followed,
    /// is left out.
    ///
    /// # Errors
    /// If the store does not tell any further.
    pub async fn next(&mut self, most: usize) -> Result<Vec<Entry>, Error> {
        match &mut self.0 {
            Listing::Nothing => Ok(Vec::new()),
            Listing::Remote(level) => level.next(most).await,
            Listing::Tree(level) => level.next(most).await,
            Listing::Folder(folder, page) => {
                let Some(mut now) = page.take() else {
                    return Ok(Vec::new());
                };
                let (entries, left) = in_turn(folder, move |_| {
                    let entries = now.next(most)?;
                    Ok((entries, now))
                })
                .await?;
                *page = Some(left);
                Ok(entries)
            }
        }
    }
}
