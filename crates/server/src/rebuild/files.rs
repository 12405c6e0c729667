//! Files and directories of the recovered namespace: built from notes if notes exist, else from the objects themselves.

use super::kept::RecoveredNode;
use super::parts::Gathered;
use super::tree::RecoveredTree;
use super::{LostFoundEntry, Rebuilt};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use tidemill_meta::node_database::KeptObject;
use tidemill_meta::placement::{removals, replicas, under_replicated};
use tidemill_meta::version::VersionRow;
use tidemill_meta::vnode::{InodeRecord, NO_NODE};
use tidemill_meta::{Connection, Fault, attribute};
use tidemill_model::id::Inode;
use tidemill_wire::v1::{Kind, NameNote, NamePlace};

/// Name given to a file whose name is unknown.
const UNNAMED: &str = "file";

/// An object that is the version of a file.
#[derive(Debug)]
struct RecoveredVersion<'a> {
    object: &'a KeptObject,
    ino: u64,
    number: u64,
    /// Whether the file has a later version.
    superseded: bool,
}

/// Files and directories of the recovered namespace, as described in the module's documentation.
#[derive(Debug)]
pub(super) struct RecoveredFiles<'a> {
    pub(super) tree: RecoveredTree,
    /// Last note about each inode.
    notes: BTreeMap<u64, &'a NameNote>,
    /// Objects by the inode of their file; the newest object is last.
    objects: BTreeMap<u64, Vec<&'a KeptObject>>,
    /// Objects whose bytes are lost.
    missing: Vec<&'a KeptObject>,
    /// Versions of files whose later version is lost.
    older: Vec<&'a KeptObject>,
    versions: Vec<RecoveredVersion<'a>>,
    /// Nodes with a replica of an object other than the first replica.
    replicas: BTreeMap<u64, Vec<u32>>,
    /// Versions that consist of several objects, by version.
    parts: &'a BTreeMap<u64, Gathered>,
    /// Wanted number of replicas of each object, from the server's notes.
    wanted: BTreeMap<u64, usize>,
    rebuilt: Rebuilt,
}

fn shown(path: &[u8]) -> PathBuf {
    OsString::from_vec(path.to_vec()).into()
}

fn removed(note: &NameNote) -> bool {
    note.places.is_empty() && note.ino != Inode::ROOT.0
}

impl<'a> RecoveredFiles<'a> {
    pub(super) fn new(
        all: &'a [RecoveredNode],
        parts: &'a BTreeMap<u64, Gathered>,
        root_owner: (u32, u32),
    ) -> Self {
        let mut notes: BTreeMap<u64, &NameNote> = BTreeMap::new();
        for note in all.iter().flat_map(|kept| &kept.records.notes) {
            let known = notes.entry(note.ino).or_insert(note);
            if note.change > known.change {
                *known = note;
            }
        }
        let mut objects: BTreeMap<u64, Vec<&KeptObject>> = BTreeMap::new();
        let kept = all.iter().flat_map(|kept| &kept.records.objects);
        let of_parts: BTreeSet<u64> = parts.values().flat_map(Gathered::objects).collect();
        let whole = |object: &&KeptObject| object.part.is_none() && !of_parts.contains(&object.id);
        let whole = kept.filter(whole);
        let (gathered, incomplete): (Vec<_>, Vec<_>) =
            parts.values().partition(|gathered| gathered.whole);
        let gathered = gathered.into_iter().map(|gathered| &gathered.version);
        let mut kept: Vec<&KeptObject> = whole.chain(gathered).collect();
        // The oldest replica of an object is the first.
        kept.sort_by_key(|object| (object.id, object.sealed_at));
        let mut replicas: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let mut last = None;
        for object in kept {
            if last == Some(object.id) {
                replicas.entry(object.id).or_default().push(object.node);
            } else {
                objects.entry(object.inode).or_default().push(object);
            }
            last = Some(object.id);
        }
        for of_one in objects.values_mut() {
            of_one.sort_by_key(|object| (object.sealed_at, object.id));
        }
        // Without a number of wanted replicas, the existing number is used.
        let wanted = notes.values().filter(|note| note.replicas > 0);
        let wanted = wanted.map(|note| (note.object, note.replicas as usize));
        let wanted = wanted.collect();
        let incomplete = incomplete.into_iter().map(|gathered| &gathered.version);
        let missing = all.iter().flat_map(|kept| &kept.missing).chain(incomplete);
        let parents = notes.values().flat_map(|note| &note.places);
        let parents = parents.map(|place| place.parent);
        let known = objects.keys().chain(notes.keys()).copied().chain(parents);
        let newest = known.max().unwrap_or(0).max(Inode::ROOT.0);
        Self {
            tree: RecoveredTree::new(newest + 1, root_owner),
            notes,
            objects,
            missing: missing.collect(),
            older: Vec::new(),
            versions: Vec::new(),
            replicas,
            parts,
            wanted,
            rebuilt: Rebuilt::default(),
        }
    }

    /// Adds all files and directories that the server's notes describe.
    pub(super) fn noted(&mut self) {
        let notes: Vec<&NameNote> = self.notes.values().copied().collect();
        let mut lost = Vec::new();
        for note in notes.iter().filter(|note| !removed(note)) {
            match self.vnode(note) {
                Some(vnode) => self.tree.add(vnode),
                None => lost.push(*note),
            }
        }
        // Of two inodes that were noted under one name, the later one gets it.
        let mut places: Vec<(&NameNote, &NamePlace)> = Vec::new();
        for note in notes.iter().filter(|note| !removed(note)) {
            places.extend(note.places.iter().map(|place| (*note, place)));
        }
        places.sort_by_key(|(note, _)| std::cmp::Reverse(note.change));
        let gone: BTreeSet<u64> = lost.iter().map(|note| note.ino).collect();
        let mut named = BTreeSet::new();
        let mut apart = Vec::new();
        for (note, place) in places
            .into_iter()
            .filter(|(note, _)| !gone.contains(&note.ino))
        {
            if self.tree.name(place.parent, &place.name, note.ino) {
                named.insert(note.ino);
            } else {
                apart.push((note.ino, place));
            }
        }
        for (ino, place) in apart {
            // A file that still has another name is not lost.
            if named.insert(ino) {
                self.lose(ino, place);
            }
        }
        self.place_unreachable();
        for note in lost {
            let place = &note.places[0];
            let path = self.path_at(place);
            self.rebuilt.missing.push(shown(&path));
        }
    }

    fn path_at(&self, place: &NamePlace) -> Vec<u8> {
        let mut path = self.tree.path_of(place.parent);
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(&place.name);
        path
    }

    fn lose(&mut self, ino: u64, place: &NamePlace) {
        let was = self.path_at(place);
        let put = self.tree.lose(&place.name, &format!(".inode{ino}"), ino);
        self.rebuilt.apart.push(LostFoundEntry {
            path: shown(&put.path),
            was: shown(&was),
        });
    }

    /// Gives a path to each directory that can't be reached from the root.
    fn place_unreachable(&mut self) {
        while let Some(&ino) = self.tree.unreachable().first() {
            self.tree.unname(ino);
            let place = self.notes.get(&ino).and_then(|note| note.places.first());
            let place = place.cloned().unwrap_or_default();
            self.lose(ino, &place);
        }
    }

    /// Returns the inode that a note describes; `None` if the bytes of its file do not exist.
    fn vnode(&mut self, note: &NameNote) -> Option<InodeRecord> {
        let kind = Kind::try_from(note.kind).unwrap_or(Kind::Unspecified);
        let mut vnode = InodeRecord {
            ino: note.ino,
            kind,
            mode: note.mode & 0o7777,
            uid: note.uid,
            gid: note.gid,
            nlink: 0,
            size: note.size,
            atime: note.atime,
            mtime: note.mtime,
            ctime: note.ctime,
            rdev: note.rdev,
            version: note.version,
            object: 0,
            node: NO_NODE,
            writing: 0,
            parent: Inode::ROOT.0,
            target: note.target.clone(),
        };
        let mut objects = self.objects.remove(&note.ino).unwrap_or_default();
        // Versions sealed after the note's own object have no note yet. A file without such an object was not sealed before.
        let noted = objects.iter().position(|one| one.id == note.object);
        let later = match noted {
            Some(at) => objects.len() - 1 - at,
            None if note.object == 0 => objects.len(),
            None => {
                // The bytes are lost. The remaining versions are older, and nobody would expect them under this name.
                self.older.append(&mut objects);
                return None;
            }
        };
        let current = objects.pop();
        for object in objects {
            self.versions.push(RecoveredVersion {
                object,
                ino: note.ino,
                number: 0,
                superseded: true,
            });
        }
        let Some(object) = current else {
            return Some(vnode);
        };
        vnode.version += later as u64;
        let unnoted = later > 0;
        if unnoted {
            vnode.mtime = object.sealed_at.cast_signed();
        }
        self.fill(&mut vnode, object);
        self.versions.push(RecoveredVersion {
            object,
            ino: note.ino,
            number: vnode.version,
            superseded: false,
        });
        Some(vnode)
    }

    /// Adds files for all objects of nodes that no note describes.
    pub(super) fn unnoted(&mut self) {
        let noted: BTreeSet<u64> = self.notes.keys().copied().collect();
        let mut objects: Vec<&KeptObject> = self.objects.values().flatten().copied().collect();
        // The order is newest first, since the later seal has the better right to a path.
        objects.sort_by_key(|object| std::cmp::Reverse((object.sealed_at, object.id)));
        let mut written = BTreeSet::new();
        for object in objects {
            if noted.contains(&object.inode) {
                // The file was deleted, and its bytes were about to be removed.
                self.versions.push(RecoveredVersion {
                    object,
                    ino: object.inode,
                    number: 0,
                    superseded: true,
                });
                continue;
            }
            // An older version of a file that has a newer one becomes a file of its own: only the server knew which of them was to stay.
            let whole = object.inode > Inode::ROOT.0 && written.insert(object.inode);
            let ino = if whole {
                object.inode
            } else {
                self.tree.new_ino()
            };
            self.put(object, ino, whole);
        }
        for object in std::mem::take(&mut self.older) {
            let ino = self.tree.new_ino();
            self.put(object, ino, false);
        }
        for object in &self.missing {
            if !noted.contains(&object.inode) && !written.contains(&object.inode) {
                self.rebuilt.missing.push(shown(&object.path));
            }
        }
    }

    /// Creates a file from an object. The file gets the object's path only if the server provided that path.
    fn put(&mut self, object: &'a KeptObject, ino: u64, whole: bool) {
        let sealed_at = object.sealed_at.cast_signed();
        let mut vnode = InodeRecord {
            kind: Kind::File,
            mode: object.mode.unwrap_or(0o600) & 0o777,
            version: 1,
            ..InodeRecord::directory(ino, 0, (object.uid, object.gid), sealed_at)
        };
        self.fill(&mut vnode, object);
        let suffix = format!(".object{}", object.id);
        let path = match object.path.as_slice() {
            b"" => UNNAMED.as_bytes(),
            path => path,
        };
        let own_path = whole && object.named();
        let put = self.tree.put(vnode, path, own_path, &suffix);
        if put.own {
            self.rebuilt.unnoted.push(shown(&put.path));
        } else {
            self.rebuilt.apart.push(LostFoundEntry {
                path: shown(&put.path),
                was: shown(path),
            });
        }
        self.versions.push(RecoveredVersion {
            object,
            ino,
            number: 1,
            superseded: false,
        });
    }

    fn fill(&self, vnode: &mut InodeRecord, object: &KeptObject) {
        vnode.size = object.size;
        vnode.object = object.id;
        vnode.node = match self.parts.contains_key(&object.id) {
            true => NO_NODE,
            false => object.node.into(),
        };
    }

    /// Writes rows for the remaining parts of incomplete versions, which stay on their nodes.
    fn write_incomplete(&self, db: &Connection) -> Result<(), Fault> {
        for gathered in self.parts.values().filter(|gathered| !gathered.whole) {
            let version = RecoveredVersion {
                object: &gathered.version,
                ino: gathered.version.inode,
                number: 0,
                superseded: false,
            };
            let path = &gathered.version.path;
            put_version(db, &version, path, (NO_NODE, 1))?;
            gathered.write(db, false, 1)?;
        }
        Ok(())
    }

    /// Writes all files and directories to the database.
    pub(super) fn write(&mut self, db: &Connection) -> Result<Rebuilt, Fault> {
        let mut rebuilt = std::mem::take(&mut self.rebuilt);
        (rebuilt.directories, rebuilt.files) = self.tree.write(db)?;
        let paths = self.tree.paths();
        for version in &self.versions {
            let path = match paths.get(&version.ino) {
                Some(path) if !version.superseded => path.as_slice(),
                _ => version.object.path.as_slice(),
            };
            let replicas = self.replicas.get(&version.object.id);
            let wanted = self.wanted.get(&version.object.id).copied();
            if let Some(gathered) = self.parts.get(&version.object.id) {
                let wanted = wanted.unwrap_or(gathered.replicas());
                put_version(db, version, path, (NO_NODE, wanted))?;
                gathered.write(db, version.superseded, wanted)?;
            } else {
                let replicas = replicas.map(Vec::as_slice).unwrap_or_default();
                let wanted = wanted.unwrap_or(replicas.len() + 1);
                write_version(db, version, path, (replicas, wanted))?;
            }
            if !version.superseded {
                rebuilt.bytes += version.object.size;
            }
        }
        self.write_incomplete(db)?;
        for note in self
            .notes
            .values()
            .filter(|note| note.ino == Inode::ROOT.0 || paths.contains_key(&note.ino))
        {
            for xattr in &note.xattrs {
                attribute::set(db, note.ino, &xattr.name, &xattr.value)?;
            }
        }
        rebuilt.unnoted.sort();
        rebuilt.missing.sort();
        Ok(rebuilt)
    }
}

/// Writes the rows of a version.
fn put_version(
    db: &Connection,
    version: &RecoveredVersion<'_>,
    path: &[u8],
    (node, replicas): (i64, usize),
) -> Result<(), Fault> {
    let object = version.object;
    let row = VersionRow {
        object: object.id,
        ino: version.ino,
        version: version.number,
        size: object.size,
        node,
        uid: object.uid,
        sealed_at: object.sealed_at.cast_signed(),
        task: object.task,
        path,
        removed: version.superseded,
        replicas: u32::try_from(replicas).unwrap_or(1),
    };
    row.insert(db)
}

/// Writes a version of one object as [`put_version`] does. A version with a later version is queued for removal, as before the loss.
fn write_version(
    db: &Connection,
    version: &RecoveredVersion<'_>,
    path: &[u8],
    (others, wanted): (&[u32], usize),
) -> Result<(), Fault> {
    let object = version.object;
    put_version(db, version, path, (object.node.into(), wanted))?;
    let nodes = std::iter::once(object.node).chain(others.iter().copied());
    if version.superseded {
        let sealed_at = object.sealed_at.cast_signed();
        for node in nodes {
            removals::queue(db, object.id, node.into(), sealed_at)?;
        }
        return Ok(());
    }
    for node in nodes.skip(1) {
        replicas::insert(db, object.id, node)?;
    }
    // There may be more replicas than wanted because some are moving from one node to another.
    if others.len() + 1 != wanted {
        let has = i64::try_from(others.len() + 1).unwrap_or(1);
        under_replicated::schedule(db, object.id, has, under_replicated::AT_ONCE)?;
    }
    Ok(())
}
