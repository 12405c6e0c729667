//! Paths of outputs: the directories in which a job's outputs are created.
//!
//! The anchor of an output is the deepest directory on the output's path that exists when the job is submitted. The transaction that names
//! the output starts from the inode of the anchor, with the rights of the job's owner. The transaction follows no symbolic link that
//! belongs to another user than the owner and root.

use crate::Fault;
use crate::budget::COMPONENT;
use crate::transaction::{PATH_MAX, Tx, check_name};
use crate::vnode::{InodeRecord, SEARCH};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_model::id::Inode;
use tidemill_wire::v1::Kind;

/// Maximum number of symbolic links on the path of one output.
const LINKS_MAX: usize = 40;
/// Maximum number of names on the path of one output, including the names in symbolic links.
const NAMES_MAX: usize = 8192;

/// The deepest existing directory of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathAnchor {
    ino: u64,
    /// Number of names in the path that lead to the anchor.
    names: usize,
}

/// Anchors of a job's outputs, by the path of each output's directory.
pub type Anchors = BTreeMap<String, PathAnchor>;

/// Symbolic links that the server follows on the path of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// All links: at the submission of a job, the server follows all links for the user.
    All,
    /// Only links that belong to the caller or to root.
    Own,
}

/// The existing part of an output's path.
#[derive(Debug)]
pub struct ExistingPath {
    /// The last inode on the path that exists.
    pub vnode: InodeRecord,
    /// Names on the path after the last existing inode; the next name is first.
    pub missing: Vec<Vec<u8>>,
}

/// Splits a path into the path of its directory and its last name.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn names(path: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.map(str::as_bytes)
}

/// Returns the anchors of outputs with these paths. A path below a file has no anchor.
pub fn anchors<'a>(
    tx: &Tx<'_>,
    paths: impl Iterator<Item = &'a str>,
    links: Links,
) -> Result<Anchors, Fault> {
    let root = InodeRecord::get(tx.db, Inode::ROOT.0)?;
    let mut anchors = Anchors::new();
    for path in paths {
        let directory = split(path).0;
        if anchors.contains_key(directory) {
            continue;
        }
        match tx.walk(root.clone(), (directory, 0), links, path) {
            Ok(way) => {
                let names = names(directory).count() - way.missing.len();
                let ino = way.vnode.ino;
                anchors.insert(directory.to_owned(), PathAnchor { ino, names });
            }
            Err(fault) if fault.is_database_failure() => return Err(fault),
            // The check for obstacles reports this fault.
            Err(_) => {}
        }
    }
    Ok(anchors)
}

impl Tx<'_> {
    /// Returns the directory of an output, and the inode that has the output's name now.
    pub(crate) fn output_way(
        &self,
        anchors: &Anchors,
        path: &str,
    ) -> Result<(ExistingPath, Option<InodeRecord>), Fault> {
        let (directory, name) = split(path);
        let way = self.way(anchors, directory, path)?;
        let found = if way.missing.is_empty() {
            self.need(&way.vnode, SEARCH, path)?;
            InodeRecord::child(self.db, way.vnode.ino, name.as_bytes())?
        } else {
            None
        };
        Ok((way, found))
    }

    fn way(&self, anchors: &Anchors, directory: &str, shown: &str) -> Result<ExistingPath, Fault> {
        if directory.len() > PATH_MAX {
            return Err(Fault::NameTooLong(directory.len()));
        }
        let mut prefix = directory;
        let anchor = loop {
            match anchors.get(prefix) {
                None if prefix.is_empty() => break None,
                None => prefix = split(prefix).0,
                anchor => break anchor,
            }
        };
        if let Some(anchor) = anchor
            && let Some(vnode) =
                InodeRecord::find(self.db, anchor.ino)?.filter(|vnode| vnode.nlink > 0)
        {
            let vnode = self.reach_dir(vnode.ino, SEARCH, shown.as_bytes())?;
            return self.walk(vnode, (directory, anchor.names), Links::Own, shown);
        }
        // Without an anchor, or if the anchor was removed, the path counts.
        let root = InodeRecord::get(self.db, Inode::ROOT.0)?;
        self.walk(root, (directory, 0), Links::Own, shown)
    }

    /// Follows a path from a directory, without the first names of the path.
    fn walk(
        &self,
        mut vnode: InodeRecord,
        (path, skipped): (&str, usize),
        links: Links,
        shown: &str,
    ) -> Result<ExistingPath, Fault> {
        // The next name is last; `true` means that the name is in the path, not in a link.
        let todo = names(path).skip(skipped).map(|name| (name.to_vec(), true));
        let mut todo: Vec<(Vec<u8>, bool)> = todo.collect();
        todo.reverse();
        let (mut followed, mut looked_up) = (0, 0);
        let not_directory = || Fault::NotDirectory(shown.to_owned());
        while let Some((name, in_path)) = todo.pop() {
            if !vnode.is_dir() {
                return Err(not_directory());
            }
            self.budget.look_up(COMPONENT)?;
            self.need(&vnode, SEARCH, shown)?;
            looked_up += 1;
            let next = match self.child(&vnode, &name) {
                Err(Fault::NotFound(_)) if in_path => {
                    let mut missing = vec![name];
                    missing.extend(todo.into_iter().rev().map(|(name, _)| name));
                    return Ok(ExistingPath { vnode, missing });
                }
                Err(Fault::NotFound(_)) => return Err(Fault::NotFound(shown.to_owned())),
                next => next?,
            };
            if next.kind != Kind::Symlink {
                vnode = next;
                continue;
            }
            if links == Links::Own && ![0, self.caller.uid].contains(&next.uid) {
                return Err(Fault::ForeignLink(shown.to_owned(), next.uid));
            }
            followed += 1;
            if followed > LINKS_MAX || looked_up > NAMES_MAX {
                return Err(Fault::Loop(shown.to_owned()));
            }
            if next.target.starts_with(b"/") {
                vnode = InodeRecord::get(self.db, Inode::ROOT.0)?;
            }
            let parts = next.target.split(|&byte| byte == b'/').rev();
            let parts = parts.filter(|part| !part.is_empty());
            todo.extend(parts.map(|part| (part.to_vec(), false)));
        }
        if !vnode.is_dir() {
            return Err(not_directory());
        }
        Ok(ExistingPath {
            vnode,
            missing: Vec::new(),
        })
    }

    /// Creates the missing directories of a path, owned by the job's owner; returns the last directory.
    pub(crate) fn make_missing(
        &mut self,
        way: ExistingPath,
        owner: (u32, u32),
    ) -> Result<InodeRecord, Fault> {
        let mut directory = way.vnode;
        for name in way.missing {
            check_name(&name)?;
            let ino = self.create_directory(directory.ino, name, owner)?;
            directory = InodeRecord::get(self.db, ino)?;
        }
        Ok(directory)
    }

    /// Fails if the path of an output contains a symbolic link of another user, or the output itself is such a link.
    pub fn check_links(&self, path: &str) -> Result<(), Fault> {
        let root = InodeRecord::get(self.db, Inode::ROOT.0)?;
        match self.walk(root, (path, 0), Links::Own, path) {
            Ok(_) | Err(Fault::NotDirectory(_) | Fault::NotFound(_)) => Ok(()),
            Err(fault) => Err(fault),
        }
    }
}
