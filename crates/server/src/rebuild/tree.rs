//! The directories of a rebuilt namespace.

use super::kept::KeptObject;
use crate::names::Fault;
use crate::names::node::{NO_ELEMENT, Node};
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use tidemill_core::id::Inode;
use tidemill_wire::v1::Kind;

/// Where files go whose path is taken or makes no sense.
const LOST: &str = "lost+found";
const NAME_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 4095;

/// Directories and files by path; the root is the empty path, others begin with a slash.
#[derive(Debug)]
pub(super) struct Tree {
    entries: BTreeMap<String, Entry>,
    next_ino: u64,
    root_owner: (u32, u32),
}

#[derive(Debug)]
enum Entry {
    File(u64),
    Directory(Directory),
}

#[derive(Debug)]
struct Directory {
    ino: u64,
    subdirs: u32,
    /// Whose files are in it and below: one owner, or more than one.
    owner: Owners,
    newest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owners {
    Nobody,
    One(u32, u32),
    Many,
}

impl Owners {
    fn with(self, uid: u32, gid: u32) -> Self {
        match self {
            Self::Nobody => Self::One(uid, gid),
            Self::One(u, g) if (u, g) == (uid, gid) => self,
            _ => Self::Many,
        }
    }
}

impl Tree {
    pub(super) fn new(next_ino: u64, root_owner: (u32, u32)) -> Self {
        let root = Directory {
            ino: Inode::ROOT.0,
            subdirs: 0,
            owner: Owners::Many,
            newest: 0,
        };
        Self {
            entries: BTreeMap::from([(String::new(), Entry::Directory(root))]),
            next_ino,
            root_owner,
        }
    }

    /// An inode id that no object names.
    pub(super) fn new_ino(&mut self) -> u64 {
        self.next_ino += 1;
        self.next_ino - 1
    }

    /// Gives a file its path, if `own_path` and it is free, else one in `/lost+found`. The path, and whether it
    /// is the file's own.
    pub(super) fn put(&mut self, object: &KeptObject, ino: u64, own_path: bool) -> (String, bool) {
        let path = normal(&object.path);
        if own_path
            && let Some(path) = &path
            && self.free(path)
        {
            self.enter(path.clone(), object, ino);
            return (path.clone(), true);
        }
        let name = object.path.rsplit('/').next().unwrap_or_default();
        let number = format!(".object{}", object.id);
        let room = NAME_BYTES_MAX - number.len();
        let end = (0..=name.len().min(room)).rev();
        let end = end.into_iter().find(|&at| name.is_char_boundary(at));
        let name = name[..end.unwrap_or(0)].replace('\0', "_");
        let lost = format!("/{LOST}/{name}{number}");
        self.enter(lost.clone(), object, ino);
        (lost, false)
    }

    fn free(&self, path: &str) -> bool {
        if self.entries.contains_key(path) {
            return false;
        }
        let mut above = path;
        while let Some((parent, _)) = above.rsplit_once('/') {
            if matches!(self.entries.get(parent), Some(Entry::File(_))) {
                return false;
            }
            above = parent;
        }
        true
    }

    fn enter(&mut self, path: String, object: &KeptObject, ino: u64) {
        let mut end = 0;
        while let Some(at) = path[end + 1..].find('/') {
            end += 1 + at;
            self.directory(&path[..end], object);
        }
        self.entries.insert(path, Entry::File(ino));
    }

    fn directory(&mut self, path: &str, object: &KeptObject) {
        if !self.entries.contains_key(path) {
            let ino = self.new_ino();
            let made = Directory {
                ino,
                subdirs: 0,
                owner: Owners::Nobody,
                newest: 0,
            };
            self.entries.insert(path.to_owned(), Entry::Directory(made));
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            if let Some(Entry::Directory(parent)) = self.entries.get_mut(parent) {
                parent.subdirs += 1;
            }
        }
        if let Some(Entry::Directory(directory)) = self.entries.get_mut(path) {
            directory.owner = directory.owner.with(object.uid, object.gid);
            directory.newest = directory.newest.max(object.sealed_at);
        }
    }

    /// Writes directories and all entries; the number of directories, the root not counted.
    pub(super) fn write(&self, db: &Connection) -> Result<usize, Fault> {
        let mut entry = db.prepare("INSERT INTO dirent VALUES (?1, ?2, ?3)")?;
        let mut directories = 0;
        for (path, child) in &self.entries {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", ""));
            let parent = match self.entries.get(above) {
                Some(Entry::Directory(parent)) => parent.ino,
                _ => Inode::ROOT.0,
            };
            let ino = match child {
                Entry::File(ino) => *ino,
                Entry::Directory(directory) => {
                    self.node(directory, parent).insert(db)?;
                    directories += 1;
                    directory.ino
                }
            };
            if ino != Inode::ROOT.0 {
                entry.execute(params![
                    parent.cast_signed(),
                    name.as_bytes(),
                    ino.cast_signed()
                ])?;
            }
        }
        Ok(directories - 1)
    }

    fn node(&self, directory: &Directory, parent: u64) -> Node {
        let (uid, gid) = match directory.owner {
            Owners::One(uid, gid) => (uid, gid),
            Owners::Nobody | Owners::Many => self.root_owner,
        };
        let time = directory.newest.cast_signed();
        Node {
            ino: directory.ino,
            kind: Kind::Directory,
            mode: 0o755,
            uid,
            gid,
            nlink: 2 + directory.subdirs,
            size: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            rdev: 0,
            version: 0,
            object: 0,
            element: NO_ELEMENT,
            writing: 0,
            parent,
            target: Vec::new(),
        }
    }
}

/// A path as a name in the array, if it can be one: absolute, without empty parts, `.` and `..`.
fn normal(path: &str) -> Option<String> {
    let parts = path.strip_prefix('/').unwrap_or(path).split('/');
    let fine = |part: &str| {
        !matches!(part, "" | "." | "..") && part.len() <= NAME_BYTES_MAX && !part.contains('\0')
    };
    let parts: Vec<&str> = parts.collect();
    let fits = path.len() <= PATH_BYTES_MAX && parts.iter().all(|part| fine(part));
    (fits && parts.first() != Some(&LOST)).then(|| format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(id: u64, path: &str) -> KeptObject {
        KeptObject {
            id,
            element: 0,
            size: 1,
            uid: 7,
            gid: 7,
            inode: id,
            path: path.into(),
            mode: None,
            task: 0,
            sealed_at: 1,
        }
    }

    #[test]
    fn a_path_is_given_once_and_never_below_a_file() {
        let mut tree = Tree::new(100, (0, 0));
        let cases = [
            ("/a/b", "/a/b", true),
            ("/a/b", "/lost+found/b.object2", false),
            ("/a", "/lost+found/a.object3", false),
            ("/a/b/c", "/lost+found/c.object4", false),
            ("", "/lost+found/.object5", false),
            ("/x/../y", "/lost+found/y.object6", false),
            ("/lost+found/z", "/lost+found/z.object7", false),
            ("d", "/d", true),
        ];
        for (id, (was, path, own)) in (1..).zip(cases) {
            assert_eq!(
                tree.put(&object(id, was), id, true),
                (path.into(), own),
                "{was}"
            );
        }
        let long = "é".repeat(200);
        let (path, own) = tree.put(&object(9, &format!("/{long}")), 9, true);
        assert!(
            !own && path.len() <= "/lost+found/".len() + NAME_BYTES_MAX,
            "{path}"
        );
    }
}
