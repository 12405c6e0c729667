//! Visibility of files in an answer that names many files: the caller's rights to each file are checked separately.

use super::fault::Fault;
use super::transaction::{DEPTH_MAX, Tx};
use super::vnode::{Caller, InodeRecord, READ, SEARCH};
use rusqlite::OptionalExtension;
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
pub(crate) struct ViewedFile {
    /// Whether the viewer may read the file, or owns the file.
    pub(crate) allowed: bool,
    /// Current object of the file.
    pub(crate) object: u64,
    /// A path of the file; a path that the viewer may see, if there is any.
    pub(crate) path: Vec<u8>,
}

/// Looks up files for one caller. The caller's rights are checked even if a Linux kernel has checked the rights to the requested file. The
/// database record of each directory is read once.
pub(crate) struct Visibility<'a> {
    tx: &'a Tx<'a>,
    viewer: Caller,
    directories: HashMap<u64, Option<ViewedDirectory>>,
    files: HashMap<u64, Option<ViewedFile>>,
}

impl<'a> Visibility<'a> {
    pub(crate) fn new(tx: &'a Tx<'a>, viewer: &Caller) -> Self {
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
    pub(crate) fn owns(&self, uid: u32) -> bool {
        self.viewer.above() || self.viewer.uid == uid
    }

    /// Returns a file with the viewer's rights; `None` if the file was deleted.
    pub(crate) fn file(&mut self, ino: u64) -> Result<Option<ViewedFile>, Fault> {
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
        let names = self.names(vnode.ino)?;
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
    pub(crate) fn listed(
        &mut self,
        vnode: &InodeRecord,
        under: &[u8],
    ) -> Result<Option<Vec<u8>>, Fault> {
        if !self.owns(vnode.uid) && !self.viewer.may(vnode, READ) {
            return Ok(None);
        }
        for (parent, name) in self.names(vnode.ino)? {
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

    /// Returns the directories that contain a file, with the file's name in each directory.
    fn names(&self, ino: u64) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
        let sql = "SELECT parent, name FROM dirent WHERE ino = ?1";
        let mut statement = self.tx.db.prepare_cached(sql)?;
        let names = statement.query_map([ino.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?))
        })?;
        Ok(names.collect::<Result<_, _>>()?)
    }

    /// Returns a directory with the viewer's rights; `None` if no path leads to the directory.
    fn directory(&mut self, ino: u64) -> Result<Option<ViewedDirectory>, Fault> {
        // Walks from the directory up to a known one, then down again.
        let mut chain = Vec::new();
        let mut at = ino;
        let mut above = loop {
            if let Some(known) = self.directories.get(&at) {
                break known.clone();
            }
            let Some(vnode) = InodeRecord::find(self.tx.db, at)? else {
                break None;
            };
            if at == Inode::ROOT.0 {
                let open = self.viewer.may(&vnode, SEARCH);
                let unlisted = (!self.viewer.may(&vnode, READ)).then_some(0);
                let path = Vec::new();
                break self.keep(
                    at,
                    Some(ViewedDirectory {
                        path,
                        open,
                        unlisted,
                    }),
                );
            }
            if chain.len() == DEPTH_MAX {
                break None;
            }
            at = vnode.parent;
            chain.push(vnode);
        };
        for vnode in chain.into_iter().rev() {
            let sql = "SELECT name FROM dirent WHERE ino = ?1 LIMIT 1";
            let mut statement = self.tx.db.prepare_cached(sql)?;
            let name =
                statement.query_row([vnode.ino.cast_signed()], |row| row.get::<_, Vec<u8>>(0));
            let directory = above.zip(name.optional()?).map(|(above, name)| {
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
