//! Files that are not in the restored database, added from the nodes that store their objects.

use super::sources::RecoveredNode;
use super::{LostFoundEntry, RecoverError, RecoverOptions, Recovered};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use tidemill_meta::node_database::KeptObject;
use tidemill_meta::parts;
use tidemill_meta::placement::{removals, replicas};
use tidemill_meta::shared::Spaces;
use tidemill_meta::vnode::{InodeRecord, NO_NODE};
use tidemill_meta::{
    Caller, Connection, Fault, Names as _, NamesRequest, SqliteNames, ids, version,
};
use tidemill_model::id::{Inode, NodeId, ObjectId};
use tidemill_model::layout::{FreeSpace, Part, StripedLayout};
use tidemill_model::replicas::REPLICAS_MAX;
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

/// Time before the end of the log from which on an object that the database does not know is added: the clocks of nodes differ.
const BEFORE_END_NS: u64 = 60_000_000_000;
/// Directory for files that can't have their path.
const LOST: &[u8] = b"/lost+found";
const NAME_BYTES_MAX: usize = 255;
/// Number of the session in which files are added. As for a mount, the server does not compare their sizes with the quota of a workspace.
const SESSION: u64 = 1 << 62;

/// A version on nodes.
struct FoundVersion<'a> {
    /// Object of the version, as the node describes it that knows most about it. For a striped version, its first part.
    object: &'a KeptObject,
    id: u64,
    /// Time of the last seal of a part.
    sealed_at: u64,
    /// The version's object, or its parts by their positions, each with the nodes of the other replicas.
    parts: BTreeMap<u64, (&'a KeptObject, BTreeSet<u32>)>,
}

impl FoundVersion<'_> {
    /// Returns whether all parts were found, and the places of their bytes in the file are known.
    fn is_whole(&self) -> bool {
        let part = self.object.part;
        part.is_none_or(|part| part.unit > 0 && part.width == self.parts.len() as u64)
    }

    fn striped(&self) -> Option<StripedLayout> {
        let unit = self.object.part?.unit;
        let parts = self
            .parts
            .values()
            .map(|(part, _)| Part::on(ObjectId(part.id), part.size, NodeId(part.node)));
        Some(StripedLayout {
            unit,
            size: 0,
            parts: parts.collect(),
        })
    }

    /// Returns the node of the version's object; for a striped version, of its first part.
    fn node(&self) -> u32 {
        let first = self.parts.values().next();
        first.map_or(self.object.node, |(first, _)| first.node)
    }

    /// Returns the number of nodes that have the version.
    fn replicas(&self) -> usize {
        let others = self.parts.values().map(|(_, others)| others.len() + 1);
        others.min().unwrap_or(1)
    }
}

/// Returns the versions on nodes, in the order of their seals.
fn found(nodes: &[RecoveredNode]) -> Vec<FoundVersion<'_>> {
    let mut versions: BTreeMap<u64, FoundVersion<'_>> = BTreeMap::new();
    let mut objects: Vec<&KeptObject> = nodes
        .iter()
        .flat_map(|node| &node.records.objects)
        .collect();
    // The oldest replica is the first.
    objects.sort_by_key(|object| (object.id, object.sealed_at));
    for object in objects {
        let (id, index) = match object.part {
            Some(part) => (part.version.0, part.index),
            None => (object.id, 0),
        };
        let version = versions.entry(id).or_insert_with(|| FoundVersion {
            object,
            id,
            sealed_at: 0,
            parts: BTreeMap::new(),
        });
        // Only the server or a label that copied the object knows the mode.
        if version.object.mode.is_none() && object.mode.is_some() && version.object.id == object.id
        {
            version.object = object;
        }
        let part = version.parts.entry(index);
        let (first, others) = part.or_insert_with(|| {
            version.sealed_at = version.sealed_at.max(object.sealed_at);
            (object, BTreeSet::new())
        });
        if first.id == object.id && first.node != object.node {
            others.insert(object.node);
        }
    }
    let mut versions: Vec<_> = versions.into_values().collect();
    versions.sort_by_key(|version| (version.sealed_at, version.id));
    versions
}

/// Adds the files that were sealed after the end of the log; without a log, all files.
pub(super) fn add(
    names: &SqliteNames,
    nodes: &[RecoveredNode],
    options: &RecoverOptions,
    recovered: &mut Recovered,
) -> Result<(), RecoverError> {
    // The files are on these nodes already, whether the nodes run or not.
    let store = nodes.iter().map(|node| FreeSpace {
        node: NodeId(node.records.node),
        free_bytes: u64::MAX >> 1,
        answers: true,
        leaving: false,
        memory: false,
        burst: false,
        backend: false,
    });
    names.shared().set_spaces(Spaces {
        store: store.collect(),
        ..Spaces::default()
    });
    let time = recovered.restored.as_ref().map(|restored| restored.time);
    let since = time.map(|time| time.unsigned_abs().saturating_sub(BEFORE_END_NS));
    // The node reports a task that ended after the end of the log again, with its results.
    let is_new = |version: &FoundVersion<'_>| match since {
        Some(since) => version.object.task == 0 && version.sealed_at >= since,
        None => true,
    };
    let mut found = found(nodes);
    if since.is_none() {
        // Without a log, the later version of a file gets its path.
        found.reverse();
    }
    // Files of tasks follow: they may have a path only where their owner may create a file.
    let (of_clients, of_tasks): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|version| version.object.task == 0);
    let mut adding = Adding {
        names,
        made: MadeDirectories::of(names)?,
        replaces: since.is_some(),
    };
    for versions in [of_clients, of_tasks] {
        for version in versions {
            if options.until.is_none() && finish(names, &version, recovered)? {
                continue;
            }
            let is_known = |db: &Connection| version::is_known(db, version.id);
            if names.database().read(is_known)? {
                correct_places(names, &version, &recovered.nodes)?;
                continue;
            }
            let file = version.object.inode > 1 && version.is_whole();
            let added = match options.until.is_none() && file && is_new(&version) {
                true => adding.add(&version)?,
                false => None,
            };
            match added {
                Some((path, true)) => recovered.added.push(shown(&path)),
                Some((path, false)) => recovered.lost_and_found.push(LostFoundEntry {
                    path: shown(&path),
                    was: shown(&version.object.path),
                }),
                None => recovered.unknown += version.parts.len() as u64,
            }
        }
        adding.made.give_to_owners(names)?;
    }
    find_missing(names, nodes, since.is_some(), recovered)
}

/// Finds files whose bytes no node has. Without a log, the rows of nodes name them.
fn find_missing(
    names: &SqliteNames,
    nodes: &[RecoveredNode],
    with_log: bool,
    recovered: &mut Recovered,
) -> Result<(), RecoverError> {
    let missing = nodes.iter().flat_map(|node| &node.missing);
    for object in missing.filter(|object| !object.path.is_empty()) {
        let is_file = |db: &Connection| version::is_known(db, object.id);
        if !with_log && !names.database().read(is_file)? {
            recovered.missing.push(shown(&object.path));
        }
    }
    // Objects may have moved to a node that was not given.
    if with_log && recovered.absent.is_empty() {
        let objects = |node: &RecoveredNode| {
            let number = node.records.node;
            let there = node.records.objects.iter();
            there
                .map(move |object| (object.id, number))
                .collect::<Vec<_>>()
        };
        let there: HashSet<(u64, u32)> = nodes.iter().flat_map(objects).collect();
        let given = &recovered.nodes;
        let has = |object, node| there.contains(&(object, node));
        let lost = |db: &Connection| replicas::lost(db, given, has);
        let lost = names.database().read(lost)?;
        recovered
            .missing
            .extend(lost.iter().map(|path| shown(path)));
    }
    recovered.missing.sort();
    recovered.missing.dedup();
    Ok(())
}

/// Seals a version that was being written at the end of the log, if its node has sealed it. The lost server has acknowledged the seal
/// to the mount, so the mount does not seal it again. Returns whether it was sealed.
fn finish(
    names: &SqliteNames,
    version: &FoundVersion<'_>,
    recovered: &mut Recovered,
) -> Result<bool, Fault> {
    if version.object.part.is_some() {
        return Ok(false);
    }
    let written = |db: &Connection| match version::only_written(db, version.id)? {
        Some(ino) => Ok(Some((ino, tidemill_meta::path_of(db, ino)?))),
        None => Ok(None),
    };
    let Some((ino, path)) = names.database().read(written)? else {
        return Ok(false);
    };
    let sealed = seal(names, version, ino)?;
    if let (true, Some(path)) = (sealed, path) {
        recovered.added.push(shown(&path));
    }
    Ok(sealed)
}

fn shown(path: &[u8]) -> PathBuf {
    OsString::from_vec(path.to_vec()).into()
}

/// A recovery that adds files.
struct Adding<'a> {
    names: &'a SqliteNames,
    made: MadeDirectories,
    /// Whether a version of a known file replaces the version before. Else it becomes a file of its own, since nobody knows whether it is later.
    replaces: bool,
}

impl Adding<'_> {
    /// Adds a version of a file. Returns the path of the file, and whether it is the file's own path; `None` if the namespace refuses it.
    fn add(&mut self, version: &FoundVersion<'_>) -> Result<Option<(Vec<u8>, bool)>, Fault> {
        let names = self.names;
        let mut ino = version.object.inode;
        let inode = |db: &Connection| InodeRecord::find(db, ino);
        if names.database().read(inode)?.is_some() {
            if self.replaces {
                let path = |db: &Connection| tidemill_meta::path_of(db, ino);
                let path = names.database().read(path)?;
                let replaced = path.is_some() && replace(names, version)?;
                return Ok(path.filter(|_| replaced).map(|path| (path, true)));
            }
            let unused = |db: &Connection| ids::reserve(db, "inode", 1);
            ino = names.database().write_blocking(unused)?;
        } else if self.add_at_own_path(version)? {
            return Ok(Some((version.object.path.clone(), true)));
        }
        let path = &version.object.path;
        let owner = (version.object.uid, version.object.gid);
        let below = path.starts_with(b"/").then(|| [LOST, path].concat());
        for lost in below.into_iter().chain([flat_path(version.object)]) {
            let place = self.made.make(names, &lost, owner)?;
            if let Some(place) = place
                && create(names, &Caller::root(), (version, ino, 0o700), place)?
            {
                return Ok(Some((lost, false)));
            }
        }
        Ok(None)
    }

    fn add_at_own_path(&mut self, version: &FoundVersion<'_>) -> Result<bool, Fault> {
        let object = version.object;
        let (owner, ino) = ((object.uid, object.gid), object.inode);
        let split = object.path.iter().rposition(|&byte| byte == b'/');
        let Some(name) = split.and_then(|at| object.path.get(at + 1..)) else {
            return Ok(false);
        };
        if object.task == 0 {
            // The server checked the path before it signed the right to write.
            let place = self.made.make(self.names, &object.path, owner)?;
            return match place {
                Some(place) => create(self.names, &Caller::root(), (version, ino, 0o777), place),
                None => Ok(false),
            };
        }
        // The server checks the path of a task's result when the task ends.
        let creator = Caller {
            uid: object.uid,
            gid: object.gid,
            checked: false,
            ..Caller::root()
        };
        let parent = object.path.get(..split.unwrap_or(0)).unwrap_or_default();
        let parent = if parent.is_empty() { b"/" } else { parent };
        let resolve = v1::Resolve {
            path: parent.to_vec(),
            ..v1::Resolve::default()
        };
        let found = answer(self.names, &creator, Op::Resolve(resolve))?;
        let Some(Answer::Entry(v1::Entry {
            attr: Some(attr), ..
        })) = found
        else {
            return Ok(false);
        };
        let place = (attr.ino, name.to_vec());
        create(self.names, &creator, (version, ino, 0o777), place)
    }
}

/// Corrects the nodes of a known version whose objects have moved since the end of the log.
fn correct_places(
    names: &SqliteNames,
    version: &FoundVersion<'_>,
    given: &[u32],
) -> Result<(), Fault> {
    for (part, others) in version.parts.values() {
        let (object, node) = (part.id, part.node);
        let holders: Vec<u32> = others.iter().copied().chain([node]).collect();
        let is_misplaced = |db: &Connection| replicas::is_misplaced(db, object, (&holders, given));
        if names.database().read(is_misplaced)? {
            let correct = move |db: &Connection| replicas::place_on(db, object, node);
            names.database().write_blocking(correct)?;
        }
    }
    Ok(())
}

/// Makes a version the current one of a file that the log has. Returns whether the namespace accepted it.
fn replace(names: &SqliteNames, version: &FoundVersion<'_>) -> Result<bool, Fault> {
    let (ino, object) = (version.object.inode, version.id);
    let begin = v1::NewVersion {
        ino,
        object,
        node: Some(version.node()),
        steal: true,
        stub: true,
        ..v1::NewVersion::default()
    };
    let begun = apply(names, &Caller::root(), Op::NewVersion(begin))?;
    Ok(begun && seal(names, version, ino)?)
}

/// Creates a file with a version in a directory, with the permissions in `mask`. Returns whether the namespace accepted it.
fn create(
    names: &SqliteNames,
    caller: &Caller,
    (version, ino, mask): (&FoundVersion<'_>, u64, u32),
    (parent, name): (u64, Vec<u8>),
) -> Result<bool, Fault> {
    let object = version.object;
    let create = v1::Create {
        parent,
        name: name.clone(),
        kind: Kind::File.into(),
        mode: object.mode.unwrap_or(0o600) & mask,
        ino,
        object: version.id,
        node: Some(version.node()),
        uid: object.uid,
        gid: object.gid,
        stub: true,
        ..v1::Create::default()
    };
    if !apply(names, caller, Op::Create(create))? {
        return Ok(false);
    }
    if seal(names, version, ino)? {
        return Ok(true);
    }
    let unlink = v1::Unlink {
        parent,
        name,
        ..v1::Unlink::default()
    };
    apply(names, &Caller::root(), Op::Unlink(unlink))?;
    Ok(false)
}

/// Directories that a recovery makes for files.
struct MadeDirectories {
    /// Owner of the root directory, and so of each directory until the owners of all files below are known.
    root: (u32, u32),
    /// New directories outside of `/lost+found` itself, each with the owner of all files below; `None` if there are several owners.
    new: BTreeMap<u64, Option<(u32, u32)>>,
}

impl MadeDirectories {
    fn of(names: &SqliteNames) -> Result<Self, Fault> {
        let root = |db: &Connection| InodeRecord::get(db, Inode::ROOT.0);
        let root = names.database().read(root)?;
        Ok(Self {
            root: (root.uid, root.gid),
            new: BTreeMap::new(),
        })
    }

    /// Makes the missing directories of a file's path, without following a symbolic link. Returns the inode of the file's directory and the
    /// name there; `None` if a file or link is on the way.
    fn make(
        &mut self,
        names: &SqliteNames,
        file: &[u8],
        owner: (u32, u32),
    ) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        let below = file.strip_prefix(LOST);
        let lost = below.is_some_and(|below| below.starts_with(b"/"));
        let mut at = Inode::ROOT.0;
        let inner = file.strip_prefix(b"/").unwrap_or(file);
        let mut parts = inner.split(|&byte| byte == b'/').peekable();
        while let Some(name) = parts.next() {
            if parts.peek().is_none() {
                return Ok(Some((at, name.to_vec())));
            }
            let child = |db: &Connection| InodeRecord::child(db, at, name);
            at = match names.database().read(child)? {
                // Another owner could change a file there, and the file's owner might not reach it.
                Some(directory) if lost && ![self.root.0, owner.0].contains(&directory.uid) => {
                    return Ok(None);
                }
                Some(directory) if directory.is_dir() => {
                    if let Some(known) = self.new.get_mut(&directory.ino) {
                        *known = known.filter(|known| *known == owner);
                    }
                    directory.ino
                }
                Some(_) => return Ok(None),
                None => {
                    let Some(ino) = self.make_one(names, at, name)? else {
                        return Ok(None);
                    };
                    if !(lost && at == Inode::ROOT.0) {
                        self.new.insert(ino, Some(owner));
                    }
                    ino
                }
            };
        }
        Ok(None)
    }

    /// Makes a directory that belongs to the owner of the root directory. Returns its inode.
    fn make_one(
        &self,
        names: &SqliteNames,
        parent: u64,
        name: &[u8],
    ) -> Result<Option<u64>, Fault> {
        let ino = |db: &Connection| ids::reserve(db, "inode", 1);
        let ino = names.database().write_blocking(ino)?;
        let create = v1::Create {
            parent,
            name: name.to_vec(),
            kind: Kind::Directory.into(),
            mode: 0o755,
            ino,
            uid: self.root.0,
            gid: self.root.1,
            ..v1::Create::default()
        };
        let made = apply(names, &Caller::root(), Op::Create(create))?;
        Ok(made.then_some(ino))
    }

    /// Gives each directory to the owner of all files below it. Until then, only the owner of the root directory may write there.
    fn give_to_owners(&mut self, names: &SqliteNames) -> Result<(), Fault> {
        for (ino, owner) in std::mem::take(&mut self.new) {
            // Several owners need the directory. The former mode of the directory of one owner is not known.
            let Some((uid, gid)) = owner else { continue };
            let set = v1::SetAttr {
                ino,
                mode: Some(0o700),
                uid: Some(uid),
                gid: Some(gid),
                ..v1::SetAttr::default()
            };
            apply(names, &Caller::root(), Op::SetAttr(set))?;
        }
        Ok(())
    }
}

/// Returns a path in `/lost+found` that no other file gets.
fn flat_path(object: &KeptObject) -> Vec<u8> {
    let name = object.path.rsplit(|&byte| byte == b'/').next();
    let suffix = format!("object{}", object.id);
    let name = match name.unwrap_or_default() {
        b"" => suffix.into_bytes(),
        name => {
            let space = NAME_BYTES_MAX - suffix.len() - 1;
            let cut = match std::str::from_utf8(name) {
                Ok(text) => text.floor_char_boundary(space),
                Err(_) => space.min(name.len()),
            };
            [&name[..cut], b".", suffix.as_bytes()].concat()
        }
    };
    [LOST, b"/", &name].concat()
}

/// Seals a version that was begun, on all nodes that have it. Returns whether the namespace accepted it.
fn seal(names: &SqliteNames, version: &FoundVersion<'_>, ino: u64) -> Result<bool, Fault> {
    let id = version.id;
    if let Some(striped) = version.striped() {
        let shared = names.shared().clone();
        let lay_out = move |db: &Connection| parts::lay_out_written(db, &shared, id, &striped);
        names.database().write_blocking(lay_out)?;
    }
    let key = names.shared().key();
    let parts = || version.parts.values().map(|(part, _)| *part);
    let receipt = |part: &KeptObject| key.receipt(NodeId(part.node), ObjectId(part.id), part.size);
    let striped = version.object.part.is_some();
    let seal = v1::Seal {
        ino,
        object: id,
        size: version.object.size,
        mtime: version.sealed_at.cast_signed(),
        parts: parts().map(|part| part.size).filter(|_| striped).collect(),
        receipts: parts().map(receipt).collect(),
        replicas: match version.replicas() {
            1 => String::new(),
            count => u32::try_from(count)
                .unwrap_or(REPLICAS_MAX)
                .min(REPLICAS_MAX)
                .to_string(),
        },
        ..v1::Seal::default()
    };
    let others = version
        .parts
        .values()
        .flat_map(|(part, others)| others.iter().map(|node| (part.id, *node)));
    let others: Vec<(u64, u32)> = others.collect();
    if !apply(names, &Caller::root(), Op::Seal(seal))? {
        let abandon = v1::Abandon { ino, object: id };
        apply(names, &Caller::root(), Op::Abandon(abandon))?;
        // The nodes keep the bytes.
        let places = parts().map(|part| (part.id, part.node));
        let places: Vec<_> = places.chain([(id, version.node())]).collect();
        names.database().write_blocking(move |db| {
            let mut places = places.iter();
            places.try_for_each(|(object, node)| removals::cancel(db, *object, (*node).into()))?;
            removals::cancel(db, id, NO_NODE)
        })?;
        return Ok(false);
    }
    if !others.is_empty() {
        names.database().write_blocking(move |db| {
            let mut others = others.iter();
            others.try_for_each(|(object, node)| replicas::insert(db, *object, *node))
        })?;
    }
    Ok(true)
}

/// Applies an operation. Returns whether the namespace accepted it.
fn apply(names: &SqliteNames, caller: &Caller, op: Op) -> Result<bool, Fault> {
    Ok(answer(names, caller, op)?.is_some())
}

/// Applies an operation. Returns the answer; `None` if the namespace refused the operation.
fn answer(names: &SqliteNames, caller: &Caller, op: Op) -> Result<Option<Answer>, Fault> {
    let request = NamesRequest {
        caller: caller.clone(),
        session: SESSION,
        durable: false,
        ops: vec![v1::NameOp { op: Some(op) }],
    };
    let mut results = names.apply_blocking(request)?;
    match results.pop().and_then(|result| result.result) {
        Some(Answer::Error(error)) => {
            tracing::debug!(error = %error.message, "refused during a recovery");
            Ok(None)
        }
        answer => Ok(answer),
    }
}
