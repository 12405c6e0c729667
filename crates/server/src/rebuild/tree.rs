//! Names in the recovered namespace: from the server's note about an inode if it has a directory and name, else from the object's path.

use std::collections::{BTreeMap, BTreeSet};
use tidemill_meta::tree::insert_entry;
use tidemill_meta::vnode::{InodeRecord, NO_NODE};
use tidemill_meta::{Connection, Fault};
use tidemill_model::id::Inode;
use tidemill_wire::v1::Kind;

/// Directory for inodes whose path is taken or invalid, or whose directory is unknown.
const LOST: &[u8] = b"lost+found";
const NAME_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 4095;

/// Owners of the files in a directory that no note describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryOwners {
    Nobody,
    One(u32, u32),
    Many,
}

impl DirectoryOwners {
    fn with(self, uid: u32, gid: u32) -> Self {
        match self {
            Self::Nobody => Self::One(uid, gid),
            Self::One(u, g) if (u, g) == (uid, gid) => self,
            _ => Self::Many,
        }
    }
}

/// A directory that no note describes.
#[derive(Debug)]
struct Guessed {
    owner: DirectoryOwners,
    newest: u64,
}

/// Recovered directories and files by inode, and their names.
#[derive(Debug)]
pub(super) struct RecoveredTree {
    vnodes: BTreeMap<u64, InodeRecord>,
    guessed: BTreeMap<u64, Guessed>,
    entries: BTreeMap<(u64, Vec<u8>), u64>,
    next_ino: u64,
    root_owner: (u32, u32),
}

/// Path of a file in the recovered tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilePosition {
    pub(super) path: Vec<u8>,
    /// Whether the path is the file's former path.
    pub(super) own: bool,
}

impl RecoveredTree {
    pub(super) fn new(next_ino: u64, root_owner: (u32, u32)) -> Self {
        let mut tree = Self {
            vnodes: BTreeMap::new(),
            guessed: BTreeMap::new(),
            entries: BTreeMap::new(),
            next_ino,
            root_owner,
        };
        tree.vnodes.insert(
            Inode::ROOT.0,
            InodeRecord::directory(Inode::ROOT.0, 0o755, root_owner, 0),
        );
        tree
    }

    /// Returns an unused inode id.
    pub(super) fn new_ino(&mut self) -> u64 {
        self.next_ino += 1;
        self.next_ino - 1
    }

    /// Adds an inode to the tree without giving it a name.
    pub(super) fn add(&mut self, vnode: InodeRecord) {
        self.vnodes.insert(vnode.ino, vnode);
    }

    /// Gives an inode a name in a directory, after both inodes were added. If two inodes request the same name, the first inode gets it.
    /// Returns whether the inode got the name.
    pub(super) fn name(&mut self, parent: u64, name: &[u8], ino: u64) -> bool {
        let directory = self.vnodes.get(&parent).is_some_and(InodeRecord::is_dir);
        let free = !self.entries.contains_key(&(parent, name.to_vec()));
        if !directory || !free || !is_name(name) {
            return false;
        }
        self.enter(parent, name.to_vec(), ino);
        true
    }

    fn enter(&mut self, parent: u64, name: Vec<u8>, ino: u64) {
        self.entries.insert((parent, name), ino);
        if let Some(vnode) = self.vnodes.get_mut(&ino)
            && vnode.is_dir()
        {
            vnode.parent = parent;
        }
    }

    /// Gives an inode a name in `/lost+found`.
    pub(super) fn lose(&mut self, was: &[u8], suffix: &str, ino: u64) -> FilePosition {
        let name = was.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let space = NAME_BYTES_MAX - suffix.len();
        // Text is not cut in the middle of a character.
        let cut = match std::str::from_utf8(name) {
            Ok(text) => (0..=space.min(name.len()))
                .rev()
                .find(|&at| text.is_char_boundary(at))
                .unwrap_or(0),
            Err(_) => space.min(name.len()),
        };
        let mut name: Vec<u8> = name[..cut].to_vec();
        for byte in &mut name {
            if *byte == 0 {
                *byte = b'_';
            }
        }
        name.extend_from_slice(suffix.as_bytes());
        let lost = self.directory(Inode::ROOT.0, LOST).unwrap_or(Inode::ROOT.0);
        self.enter(lost, name.clone(), ino);
        FilePosition {
            path: [b"/".as_slice(), LOST, b"/", &name].concat(),
            own: false,
        }
    }

    /// Gives a file its former path, and creates missing directories. If that is impossible, the file gets a name in `/lost+found`.
    pub(super) fn put(
        &mut self,
        vnode: InodeRecord,
        path: &[u8],
        own_path: bool,
        suffix: &str,
    ) -> FilePosition {
        let (ino, owner, time) = (
            vnode.ino,
            (vnode.uid, vnode.gid),
            vnode.mtime.cast_unsigned(),
        );
        self.add(vnode);
        let parts = parts(path).filter(|_| own_path);
        let placed = parts.and_then(|parts| {
            let (name, above) = parts.split_last()?;
            let mut at = Inode::ROOT.0;
            let mut way = Vec::new();
            for part in above {
                at = self.directory(at, part)?;
                way.push(at);
            }
            self.name(at, name, ino).then_some((way, parts.join(&b'/')))
        });
        let Some((way, path)) = placed else {
            return self.lose(path, suffix, ino);
        };
        for directory in way {
            if let Some(guessed) = self.guessed.get_mut(&directory) {
                guessed.owner = guessed.owner.with(owner.0, owner.1);
                guessed.newest = guessed.newest.max(time);
            }
        }
        FilePosition {
            path: [b"/".as_slice(), &path].concat(),
            own: true,
        }
    }

    /// Returns the directory with that name, and creates it if it is missing; `None` if an inode of another kind has the name.
    fn directory(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        if let Some(&there) = self.entries.get(&(parent, name.to_vec())) {
            return self.vnodes.get(&there)?.is_dir().then_some(there);
        }
        let ino = self.new_ino();
        self.add(InodeRecord::directory(ino, 0o755, self.root_owner, 0));
        let guessed = Guessed {
            owner: DirectoryOwners::Nobody,
            newest: 0,
        };
        self.guessed.insert(ino, guessed);
        self.enter(parent, name.to_vec(), ino);
        Some(ino)
    }

    /// Returns the directories that can't be reached from the root: their parent has no note, or they contain each other.
    pub(super) fn unreachable(&self) -> Vec<u64> {
        let mut children: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for ((parent, _), ino) in &self.entries {
            children.entry(*parent).or_default().push(*ino);
        }
        let mut reached = BTreeSet::from([Inode::ROOT.0]);
        let mut pending = vec![Inode::ROOT.0];
        while let Some(at) = pending.pop() {
            let below = children.get(&at).into_iter().flatten();
            pending.extend(below.copied().filter(|ino| reached.insert(*ino)));
        }
        let directories = self.vnodes.values().filter(|vnode| vnode.is_dir());
        directories
            .map(|vnode| vnode.ino)
            .filter(|ino| !reached.contains(ino))
            .collect()
    }

    /// Removes all names of a directory.
    pub(super) fn unname(&mut self, ino: u64) {
        self.entries.retain(|_, named| *named != ino);
    }

    /// Returns one of the paths of an inode.
    pub(super) fn path_of(&self, ino: u64) -> Vec<u8> {
        let mut names: BTreeMap<u64, (u64, &[u8])> = BTreeMap::new();
        // The index is built for each call, since there are few calls.
        for ((parent, name), named) in &self.entries {
            names.entry(*named).or_insert((*parent, name));
        }
        path_by(&names, ino)
    }

    /// Returns the paths of all inodes that have a path.
    pub(super) fn paths(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut names: BTreeMap<u64, (u64, &[u8])> = BTreeMap::new();
        for ((parent, name), named) in &self.entries {
            names.entry(*named).or_insert((*parent, name));
        }
        names
            .keys()
            .map(|&ino| (ino, path_by(&names, ino)))
            .collect()
    }

    /// Writes inodes and entries to the database. Returns the numbers of directories, without the root, and of files.
    pub(super) fn write(&mut self, db: &Connection) -> Result<(usize, usize), Fault> {
        let mut links: BTreeMap<u64, u32> = BTreeMap::new();
        for ((parent, _), ino) in &self.entries {
            *links.entry(*ino).or_default() += 1;
            if self.vnodes.get(ino).is_some_and(InodeRecord::is_dir) {
                *links.entry(*parent).or_default() += 1;
            }
        }
        let (mut directories, mut files) = (0, 0);
        for vnode in self.vnodes.values_mut() {
            if let Some(guessed) = self.guessed.get(&vnode.ino) {
                if let DirectoryOwners::One(uid, gid) = guessed.owner {
                    (vnode.uid, vnode.gid) = (uid, gid);
                }
                let time = guessed.newest.cast_signed();
                (vnode.atime, vnode.mtime, vnode.ctime) = (time, time, time);
            }
            let links = links.get(&vnode.ino).copied().unwrap_or(0);
            if vnode.is_dir() {
                // The links are `.` and, for the root, `..`, which are no entries.
                vnode.nlink = links + if vnode.ino == Inode::ROOT.0 { 2 } else { 1 };
                vnode.node = NO_NODE;
                directories += 1;
            } else {
                vnode.nlink = links;
                files += usize::from(vnode.kind == Kind::File);
            }
            vnode.insert(db)?;
        }
        for ((parent, name), ino) in &self.entries {
            insert_entry(db, *parent, name, *ino)?;
        }
        Ok((directories - 1, files))
    }
}

fn path_by(names: &BTreeMap<u64, (u64, &[u8])>, ino: u64) -> Vec<u8> {
    let mut parts = Vec::new();
    let mut at = ino;
    while let Some((parent, name)) = names.get(&at) {
        parts.push(*name);
        at = *parent;
        // Directories that contain each other have no path.
        if at == ino || parts.len() > names.len() {
            break;
        }
    }
    parts.reverse();
    [b"/".as_slice(), &parts.join(&b'/')].concat()
}

fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES_MAX
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Returns the components of a path that is valid in the cluster; `None` for other paths. A valid path has no empty component, `.` or `..`.
fn parts(path: &[u8]) -> Option<Vec<&[u8]>> {
    let inner = path.strip_prefix(b"/").unwrap_or(path);
    let parts: Vec<&[u8]> = inner.split(|&byte| byte == b'/').collect();
    let fits = path.len() <= PATH_BYTES_MAX && parts.iter().all(|part| is_name(part));
    (fits && parts.first() != Some(&LOST)).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(ino: u64) -> InodeRecord {
        InodeRecord {
            kind: Kind::File,
            uid: 7,
            gid: 7,
            ..InodeRecord::directory(ino, 0o644, (7, 7), 1)
        }
    }

    #[test]
    fn recovered_tree_gives_each_path_once_and_never_below_file() {
        let mut tree = RecoveredTree::new(100, (0, 0));
        let cases: [(&[u8], &[u8], bool); 9] = [
            (b"/a/b", b"/a/b", true),
            (b"/a/b", b"/lost+found/b.object2", false),
            (b"/a", b"/lost+found/a.object3", false),
            (b"/a/b/c", b"/lost+found/c.object4", false),
            (b"", b"/lost+found/.object5", false),
            (b"/x/../y", b"/lost+found/y.object6", false),
            (b"/lost+found/z", b"/lost+found/z.object7", false),
            (b"d", b"/d", true),
            (b"/a/\xff\xfe", b"/a/\xff\xfe", true),
        ];
        for (id, (was, path, own)) in (1..).zip(cases) {
            let put = tree.put(file(id + 1), was, true, &format!(".object{id}"));
            let path = path.to_vec();
            assert_eq!(put, FilePosition { path, own }, "{was:?}");
        }
        let long = "é".repeat(200);
        let put = tree.put(file(50), format!("/{long}").as_bytes(), true, ".object10");
        assert!(
            !put.own && put.path.len() <= "/lost+found/".len() + NAME_BYTES_MAX,
            "{put:?}"
        );
        assert!(String::from_utf8(put.path).is_ok());
    }

    #[test]
    fn recovery_detects_directory_cycles() {
        let mut tree = RecoveredTree::new(100, (0, 0));
        for ino in [2, 3, 4] {
            tree.add(InodeRecord::directory(ino, 0o755, (0, 0), 1));
        }
        assert!(tree.name(1, b"fine", 2));
        assert!(tree.name(4, b"three", 3) && tree.name(3, b"four", 4));
        assert!(!tree.name(1, b"fine", 3), "taken");
        assert!(!tree.name(99, b"nowhere", 3), "no directory");
        assert_eq!(tree.unreachable(), [3, 4]);
        tree.unname(3);
        tree.lose(b"three", ".inode3", 3);
        assert_eq!(tree.unreachable(), [0; 0]);
        assert_eq!(tree.path_of(4), b"/lost+found/three.inode3/four");
    }
}
