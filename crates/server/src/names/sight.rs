//! What somebody may see of files in an answer that names many: each file by its own rights.

use super::fault::Fault;
use super::node::{Caller, Node, READ, SEARCH};
use super::transaction::{DEPTH_MAX, Tx};
use rusqlite::OptionalExtension;
use std::collections::HashMap;
use tidemill_core::id::Inode;

/// A folder as somebody comes to it.
#[derive(Clone, Debug)]
struct Folder {
    path: Vec<u8>,
    /// Whether all folders down to it may be walked through.
    open: bool,
    /// Length of the path of the innermost one that may not be listed, if there is one.
    unlisted: Option<usize>,
}

/// A file as somebody sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Whether it may be read, or is the viewer's own.
    pub(crate) allowed: bool,
    /// Its current object.
    pub(crate) object: u64,
    /// A path of it, one that may be seen if there is one.
    pub(crate) path: Vec<u8>,
}

/// Looks at files for one caller, whose rights are checked even if a kernel has checked those to the file that was
/// asked about. Folders are looked at once.
pub(crate) struct Sight<'a> {
    tx: &'a Tx<'a>,
    viewer: Caller,
    folders: HashMap<u64, Option<Folder>>,
    files: HashMap<u64, Option<Seen>>,
}

impl<'a> Sight<'a> {
    pub(crate) fn new(tx: &'a Tx<'a>, viewer: &Caller) -> Self {
        Self {
            tx,
            viewer: Caller {
                checked: false,
                ..viewer.clone()
            },
            folders: HashMap::new(),
            files: HashMap::new(),
        }
    }

    /// Whether things of this user are the viewer's own.
    pub(crate) fn owns(&self, uid: u32) -> bool {
        self.viewer.above() || self.viewer.uid == uid
    }

    /// A file; `None` if it is gone.
    pub(crate) fn file(&mut self, ino: u64) -> Result<Option<Seen>, Fault> {
        if let Some(known) = self.files.get(&ino) {
            return Ok(known.clone());
        }
        let seen = match Node::find(self.tx.db, ino)? {
            Some(node) => Some(self.look(&node)?),
            None => None,
        };
        self.files.insert(ino, seen.clone());
        Ok(seen)
    }

    fn look(&mut self, node: &Node) -> Result<Seen, Fault> {
        let names = self.names(node.ino)?;
        let own = self.owns(node.uid);
        let readable = own || self.viewer.may(node, READ);
        let mut seen = Seen {
            allowed: own,
            object: node.object,
            path: Vec::new(),
        };
        for (parent, name) in names {
            let Some(folder) = self.folder(parent)? else {
                continue;
            };
            let open = readable && folder.open;
            if seen.path.is_empty() || open {
                seen.path = [folder.path.as_slice(), b"/", &name].concat();
            }
            seen.allowed |= open;
            if open {
                break;
            }
        }
        Ok(seen)
    }

    /// A path of a file below a folder (nothing for the root) whose folders from that one on the viewer may list; `None` if there is
    /// none, or the file is neither readable nor the viewer's own.
    pub(crate) fn listed(&mut self, node: &Node, under: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        if !self.owns(node.uid) && !self.viewer.may(node, READ) {
            return Ok(None);
        }
        for (parent, name) in self.names(node.ino)? {
            let Some(folder) = self.folder(parent)? else {
                continue;
            };
            let below = folder.path.strip_prefix(under);
            let below = below.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
            let listed = folder.unlisted.is_none_or(|length| length < under.len());
            if below && folder.open && listed {
                return Ok(Some([folder.path.as_slice(), b"/", &name].concat()));
            }
        }
        Ok(None)
    }

    /// The folders that a file is in, and what it is called there.
    fn names(&self, ino: u64) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
        let sql = "SELECT parent, name FROM dirent WHERE ino = ?1";
        let mut statement = self.tx.db.prepare_cached(sql)?;
        let names = statement.query_map([ino.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?))
        })?;
        Ok(names.collect::<Result<_, _>>()?)
    }

    /// A folder; `None` if no path leads to it.
    fn folder(&mut self, ino: u64) -> Result<Option<Folder>, Fault> {
        // From the folder up to one that is known, then down again.
        let mut chain = Vec::new();
        let mut at = ino;
        let mut above = loop {
            if let Some(known) = self.folders.get(&at) {
                break known.clone();
            }
            let Some(node) = Node::find(self.tx.db, at)? else {
                break None;
            };
            if at == Inode::ROOT.0 {
                let open = self.viewer.may(&node, SEARCH);
                let unlisted = (!self.viewer.may(&node, READ)).then_some(0);
                let path = Vec::new();
                break self.keep(
                    at,
                    Some(Folder {
                        path,
                        open,
                        unlisted,
                    }),
                );
            }
            if chain.len() == DEPTH_MAX {
                break None;
            }
            at = node.parent;
            chain.push(node);
        };
        for node in chain.into_iter().rev() {
            let sql = "SELECT name FROM dirent WHERE ino = ?1 LIMIT 1";
            let mut statement = self.tx.db.prepare_cached(sql)?;
            let name =
                statement.query_row([node.ino.cast_signed()], |row| row.get::<_, Vec<u8>>(0));
            let folder = above.zip(name.optional()?).map(|(above, name)| {
                let path = [above.path.as_slice(), b"/", &name].concat();
                let listed = self.viewer.may(&node, READ);
                Folder {
                    open: above.open && self.viewer.may(&node, SEARCH),
                    unlisted: if listed {
                        above.unlisted
                    } else {
                        Some(path.len())
                    },
                    path,
                }
            });
            above = self.keep(node.ino, folder);
        }
        Ok(above)
    }

    fn keep(&mut self, ino: u64, folder: Option<Folder>) -> Option<Folder> {
        self.folders.insert(ino, folder.clone());
        folder
    }
}
