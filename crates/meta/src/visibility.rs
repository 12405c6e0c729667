//! Visibility of files in an answer that names many files: the caller's rights to each file are checked separately.

use super::fault::Fault;
use super::paths;
use super::transaction::Tx;
use super::tree;
use super::vnode::{Caller, InodeRecord, READ, SEARCH};
use std::collections::HashMap;
use tidemill_model::id::Inode;

/// A directory with the viewer's rights to it.
#[derive(Clone, Debug)]
struct ViewedDirectory {
    path: Vec<u8>,
    /// Whether the viewer may search this directory and all of its ancestors.
    open: bool,
    /// Length of the path of the innermost directory that the viewer may not list; `None` if the viewer may list all of them.
    unlisted: Option<usize>,
}

/// A file with the viewer's rights to it.
#[derive(Clone, Debug)]
pub struct ViewedFile {
    /// Whether the viewer may read the file, or owns the file.
    pub allowed: bool,
    /// Current object of the file.
    pub object: u64,
    /// A path of the file; a path that the viewer may see, if there is any.
    pub path: Vec<u8>,
}

/// Looks up files for one caller. The caller's rights are checked even if a Linux kernel has checked the rights to the requested file. The
/// database record of each directory is read once.
#[derive(Debug)]
pub struct Visibility<'a> {
    tx: &'a Tx<'a>,
    viewer: Caller,
    directories: HashMap<u64, Option<ViewedDirectory>>,
    files: HashMap<u64, Option<ViewedFile>>,
}

impl<'a> Visibility<'a> {
    /// Returns a lookup for `viewer` that has read no files and directories yet.
    pub fn new(tx: &'a Tx<'a>, viewer: &Caller) -> Self {
        Self {
            tx,
            viewer: Caller {
                checked: false,
                ..viewer.clone()
            },
            directories: HashMap::new(),
            files: HashMap::new(),
        }
    }

    /// Returns whether the viewer may see the objects of this user as the viewer's own objects.
    pub fn owns(&self, uid: u32) -> bool {
        self.viewer.above() || self.viewer.uid == uid
    }

    /// Returns a file with the viewer's rights; `None` if the file was deleted.
    pub fn file(&mut self, ino: u64) -> Result<Option<ViewedFile>, Fault> {
        if let Some(known) = self.files.get(&ino) {
            return Ok(known.clone());
        }
        let seen = match InodeRecord::find(self.tx.db, ino)? {
            Some(vnode) => Some(self.look(&vnode)?),
            None => None,
        };
        self.files.insert(ino, seen.clone());
        Ok(seen)
    }

    fn look(&mut self, vnode: &InodeRecord) -> Result<ViewedFile, Fault> {
        let names = tree::names_of(self.tx.db, vnode.ino)?;
        let own = self.owns(vnode.uid);
        let readable = own || self.viewer.may(vnode, READ);
        let mut seen = ViewedFile {
            allowed: own,
            object: vnode.object,
            path: Vec::new(),
        };
        for (parent, name) in names {
            let Some(directory) = self.directory(parent)? else {
                continue;
            };
            let open = readable && directory.open;
            if seen.path.is_empty() || open {
                seen.path = [directory.path.as_slice(), b"/", &name].concat();
            }
            seen.allowed |= open;
            if open {
                break;
            }
        }
        Ok(seen)
    }

    /// Returns a path of a file below the directory `under` (empty for the root), if the viewer may list all directories from `under` on.
    /// Returns `None` if no such path exists, or if the viewer neither may read nor owns the file.
    pub fn listed(&mut self, vnode: &InodeRecord, under: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        if !self.owns(vnode.uid) && !self.viewer.may(vnode, READ) {
            return Ok(None);
        }
        for (parent, name) in tree::names_of(self.tx.db, vnode.ino)? {
            let Some(directory) = self.directory(parent)? else {
                continue;
            };
            let below = directory.path.strip_prefix(under);
            let below = below.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
            let listed = directory.unlisted.is_none_or(|length| length < under.len());
            if below && directory.open && listed {
                return Ok(Some([directory.path.as_slice(), b"/", &name].concat()));
            }
        }
        Ok(None)
    }

    /// Returns a directory with the viewer's rights; `None` if no path leads to the directory.
    fn directory(&mut self, ino: u64) -> Result<Option<ViewedDirectory>, Fault> {
        if let Some(known) = self.directories.get(&ino) {
            return Ok(known.clone());
        }
        // Walks from the directory up to a known one, then down again.
        let (mut chain, mut above) = (Vec::new(), None);
        paths::upward(self.tx.db, ino, |vnode| {
            if let Some(known) = self.directories.get(&vnode.ino) {
                above = known.clone();
                return Ok(false);
            }
            if vnode.ino == Inode::ROOT.0 {
                let root = ViewedDirectory {
                    path: Vec::new(),
                    open: self.viewer.may(&vnode, SEARCH),
                    unlisted: (!self.viewer.may(&vnode, READ)).then_some(0),
                };
                above = self.keep(vnode.ino, Some(root));
                return Ok(false);
            }
            chain.push(vnode);
            Ok(true)
        })?;
        for vnode in chain.into_iter().rev() {
            let name = tree::names_of(self.tx.db, vnode.ino)?.pop();
            let directory = above.zip(name).map(|(above, (_, name))| {
                let path = [above.path.as_slice(), b"/", &name].concat();
                let listed = self.viewer.may(&vnode, READ);
                ViewedDirectory {
                    open: above.open && self.viewer.may(&vnode, SEARCH),
                    unlisted: if listed {
                        above.unlisted
                    } else {
                        Some(path.len())
                    },
                    path,
                }
            });
            above = self.keep(vnode.ino, directory);
        }
        Ok(above)
    }

    fn keep(&mut self, ino: u64, directory: Option<ViewedDirectory>) -> Option<ViewedDirectory> {
        self.directories.insert(ino, directory.clone());
        directory
    }
}
