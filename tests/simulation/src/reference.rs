//! Reference model of the namespace: a small model that receives the results of the server's operations in the server's order, and compares
//! itself with the server's answers and its database.

use crate::hooks::{REDUCE, REDUCED};
use crate::node::{SimulatedNode, made_of};
use crate::port::{Script, SubmittedTask};
use crate::rules::{RULED, kernel, made_for};
use crate::store::ObjectContent;
use rusqlite::Connection;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_lang::rule::hook::kernel_of;
use tidemill_wire::v1::{self, NameResult, name_op::Op, name_result::Result as Named};

const ROOT: u64 = 1;
pub(crate) const NOENT: i32 = 2;
const EXIST: i32 = 17;

/// Name of an entry: the inode of its directory, and the name itself.
type EntryName = (u64, String);

/// Task whose outputs may appear in the namespace.
#[derive(Clone, Debug)]
struct Maker {
    task: SubmittedTask,
    /// Index of the output among the task's outputs.
    index: usize,
    /// Time at which the job was submitted, in milliseconds.
    asked: u64,
}

/// Reference model of the namespace.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    entries: BTreeMap<EntryName, u64>,
    /// Sealed object of each file's current version, 0 if the file has none.
    objects: BTreeMap<u64, u64>,
    /// Mode of each file.
    modes: BTreeMap<u64, u32>,
    directories: BTreeMap<String, u64>,
    /// All inodes that any file ever used.
    inodes: BTreeSet<u64>,
    /// Content of each object that was ever sealed.
    contents: BTreeMap<u64, ObjectContent>,
    /// Use of each object id, in words.
    users: BTreeMap<u64, String>,
    /// Objects of each path, with the times since which the path refers to them.
    history: BTreeMap<String, Vec<(u64, u64)>>,
    makers: BTreeMap<String, Maker>,
    /// Content of objects that were lost with a node's memory, as far as the content was closed.
    lost: BTreeMap<u64, ObjectContent>,
    /// Jobs whose number the server acknowledged to a client.
    pub(crate) accepted: BTreeSet<u64>,
    /// Number of outputs of jobs that were found in the namespace.
    pub(crate) published: u64,
    /// Number of results of batches that were found in the namespace.
    pub(crate) reduces: u64,
    /// Whether the simulated rule is a hook.
    pub(crate) hooks: bool,
    /// Whether hooks use all their features.
    pub(crate) batches: bool,
    now: u64,
}

/// Entry in the server's database.
#[derive(Debug)]
struct ReferenceEntry {
    name: EntryName,
    ino: u64,
    kind: i64,
    mode: u32,
    object: u64,
    node: u32,
    size: u64,
}

impl Reference {
    pub(crate) fn new() -> Self {
        let mut reference = Self::default();
        reference.directories.insert(String::new(), ROOT);
        reference
    }

    pub(crate) fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Records that an object is lost with the memory of its node.
    pub(crate) fn loses(&mut self, object: u64, bytes: ObjectContent) {
        self.lost.insert(object, bytes);
    }

    /// Records that the first version of a file was lost while it was written, and is the file's current version.
    pub(crate) fn is_lost(&mut self, ino: u64, object: u64) {
        if let Some(known) = self.objects.get_mut(&ino).filter(|known| **known == 0) {
            *known = object;
        }
    }

    /// Removes a directory and all its entries.
    pub(crate) fn directory_ends(&mut self, name: &str, ino: u64) {
        let below = self.entries.keys().filter(|(parent, _)| *parent == ino);
        for name in below.cloned().collect::<Vec<_>>() {
            self.entries.remove(&name);
            self.note(&name);
        }
        self.directories.remove(name);
    }

    /// Removes a file because a hook has mapped its current version.
    pub(crate) fn drops(&mut self, object: u64) {
        let ino = self.objects.iter().find(|(_, known)| **known == object);
        let ino = ino.map(|(ino, _)| *ino);
        let name = self.entries.iter().find(|(_, known)| Some(**known) == ino);
        let name = name.map(|(name, _)| name.clone());
        let name = name.unwrap_or_else(|| panic!("object {object} is removed and has no name"));
        self.entries.remove(&name);
        self.note(&name);
    }

    /// Adds a directory that was created before all operations.
    pub(crate) fn directory(&mut self, name: &str, ino: u64) {
        self.directories.insert(name.into(), ino);
    }

    /// Records the use of an object id, which must not be used for anything else.
    pub(crate) fn uses(&mut self, object: u64, user: &str) {
        let known = self.users.entry(object).or_insert_with(|| user.to_owned());
        assert_eq!(known, user, "object {object} is used twice");
    }

    /// Records the content of an object.
    pub(crate) fn holds(&mut self, object: u64, bytes: ObjectContent) {
        let known = *self.contents.entry(object).or_insert(bytes);
        assert_eq!(known, bytes, "sealed object {object} changed");
    }

    pub(crate) fn content(&self, object: u64) -> Option<ObjectContent> {
        self.contents.get(&object).copied()
    }

    /// Returns whether an object is the current version of a file.
    pub(crate) fn is_current(&self, object: u64) -> bool {
        self.entries
            .values()
            .any(|ino| self.objects.get(ino) == Some(&object))
    }

    /// Returns the current versions of all files that have a name and were ever written.
    pub(crate) fn current(&self) -> impl Iterator<Item = u64> {
        let objects = self
            .entries
            .values()
            .filter_map(|ino| self.objects.get(ino));
        objects
            .copied()
            .filter(|object| self.contents.contains_key(object))
    }

    /// Records the submission of a job.
    pub(crate) fn asked(&mut self, script: &Script) {
        for task in &script.tasks {
            for (index, output) in task.outputs.iter().enumerate() {
                let maker = Maker {
                    task: task.clone(),
                    index,
                    asked: self.now,
                };
                self.makers.insert(output.clone(), maker);
            }
        }
    }

    /// Applies operations that the server has executed, with their results.
    pub(crate) fn carried_out(
        &mut self,
        ops: &[Op],
        results: &[NameResult],
        nodes: &[SimulatedNode],
    ) {
        for (op, result) in ops.iter().zip(results) {
            let result = result.result.as_ref().expect("an answer says something");
            match op {
                Op::Resolve(op) => self.resolved(op, result),
                Op::Create(op) => self.created(op, result),
                Op::Open(op) => self.opened(op, result),
                Op::SetAttr(op) => self.changed(op, result),
                Op::Seal(op) => self.sealed(op, result, nodes),
                Op::Rename(op) => self.renamed(op, result),
                Op::Unlink(op) => self.unlinked(op, result),
                Op::NewVersion(op) => {
                    if matches!(result, Named::Opened(_)) {
                        self.uses(op.object, &format!("version of inode {}", op.ino));
                    }
                }
                _ => {}
            }
        }
    }

    fn name_of(&self, path: &[u8]) -> Option<EntryName> {
        let path = String::from_utf8_lossy(path);
        let (directory, name) = path.rsplit_once('/')?;
        let directory = directory.trim_start_matches('/');
        Some((*self.directories.get(directory)?, name.to_owned()))
    }

    fn path_of(&self, name: &EntryName) -> String {
        let directory = self.directories.iter().find(|(_, ino)| **ino == name.0);
        format!("/{}/{}", directory.map_or("", |(path, _)| path), name.1)
    }

    /// Records a change of the object to which a name refers.
    fn note(&mut self, name: &EntryName) {
        let object = self.entries.get(name).and_then(|ino| self.objects.get(ino));
        let (path, object) = (self.path_of(name), object.copied().unwrap_or(0));
        self.history
            .entry(path)
            .or_default()
            .push((self.now, object));
    }

    fn resolved(&self, op: &v1::Resolve, result: &Named) {
        let path = String::from_utf8_lossy(&op.path);
        let known = match self.directories.get(path.trim_start_matches('/')) {
            Some(ino) => Some(*ino),
            None => self
                .name_of(&op.path)
                .and_then(|name| self.entries.get(&name).copied()),
        };
        match result {
            Named::Entry(entry) => {
                let attr = entry.attr.as_ref().expect("an entry has attributes");
                assert_eq!(Some(attr.ino), known, "{path} leads elsewhere");
                self.check_mode(attr);
            }
            Named::Error(error) if error.errno == NOENT => {
                assert_eq!(known, None, "{path} is not found");
            }
            other => panic!("{path}: {other:?}"),
        }
    }

    fn created(&mut self, op: &v1::Create, result: &Named) {
        let Some(name) = self.name_of(&op.name) else {
            let opened = matches!(result, Named::Opened(_));
            return assert!(!opened, "a file is made in a directory that is not there");
        };
        let known = self.entries.get(&name).copied();
        match result {
            Named::Opened(opened) => {
                assert_eq!(opened.object, op.object, "another object is opened");
                if known == Some(op.ino) {
                    return;
                }
                assert_eq!(known, None, "{name:?} is made although it is there");
                assert!(self.inodes.insert(op.ino), "inode {} is used twice", op.ino);
                self.uses(op.object, &format!("version of inode {}", op.ino));
                self.entries.insert(name.clone(), op.ino);
                self.objects.insert(op.ino, 0);
                self.modes.insert(op.ino, op.mode);
                self.note(&name);
            }
            Named::Error(error) if error.errno == EXIST => {
                assert!(known.is_some(), "{name:?} is reported to exist");
            }
            _ => {}
        }
    }

    fn check_mode(&self, attr: &v1::Attr) {
        let known = self.modes.get(&attr.ino).copied();
        let ino = attr.ino;
        assert_eq!(
            known.unwrap_or(attr.mode),
            attr.mode,
            "inode {ino} has another mode"
        );
    }

    fn changed(&mut self, op: &v1::SetAttr, result: &Named) {
        let Named::Attr(attr) = result else { return };
        self.change(op);
        self.check_mode(attr);
    }

    /// Sets attributes of a file, unless another client has changed its mode. All files belong to root.
    fn change(&mut self, op: &v1::SetAttr) {
        let known = self.modes.get(&op.ino).copied();
        let is_right = |rights: v1::Rights| Some(rights.mode) == known;
        if let Some(mode) = op.mode.filter(|_| op.only_if.is_none_or(is_right)) {
            self.modes.insert(op.ino, mode);
        }
    }

    fn opened(&self, op: &v1::Open, result: &Named) {
        if let Named::Opened(opened) = result {
            let known = self.objects.get(&op.ino).copied();
            assert_eq!(
                Some(opened.object),
                known,
                "inode {} opens as another version",
                op.ino
            );
            let size = self.content(opened.object).map_or(0, |bytes| bytes.size);
            assert_eq!(opened.size, size, "inode {} has another length", op.ino);
        }
    }

    fn sealed(&mut self, op: &v1::Seal, result: &Named, nodes: &[SimulatedNode]) {
        let Named::Attr(attr) = result else { return };
        let held = nodes.iter().find(|node| node.id == attr.node);
        // The operation was repeated, or the version has been replaced since.
        if self.objects.get(&op.ino) == Some(&op.object) || attr.object != op.object {
            return;
        }
        let bytes = held.and_then(|node| node.store.read(op.object));
        let bytes = bytes.or_else(|| self.lost.get(&op.object).copied());
        let bytes = bytes.unwrap_or_else(|| panic!("object {} is sealed in name only", op.object));
        assert_eq!(
            bytes.size, op.size,
            "object {} has another length",
            op.object
        );
        self.holds(op.object, bytes);
        self.objects.insert(op.ino, op.object);
        if let Some(attributes) = &op.attributes {
            self.change(attributes);
        }
        self.check_mode(attr);
        let names: Vec<EntryName> = self
            .entries
            .iter()
            .filter(|(_, ino)| **ino == op.ino)
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.note(&name);
        }
    }

    fn renamed(&mut self, op: &v1::Rename, result: &Named) {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let from = (op.parent, text(&op.name));
        let to = (op.new_parent, text(&op.new_name));
        match result {
            Named::Empty(_) | Named::Entries(_) => {
                let ino = self.entries.get(&from).copied();
                let ino = ino.unwrap_or_else(|| panic!("{from:?} is renamed and was not there"));
                if self.entries.get(&to) == Some(&ino) {
                    return;
                }
                assert!(
                    !op.no_replace || !self.entries.contains_key(&to),
                    "{to:?} is replaced"
                );
                self.entries.remove(&from);
                self.entries.insert(to.clone(), ino);
                self.note(&from);
                self.note(&to);
            }
            Named::Error(error) if error.errno == NOENT => {
                assert!(!self.entries.contains_key(&from), "{from:?} is not found");
            }
            _ => {}
        }
    }

    fn unlinked(&mut self, op: &v1::Unlink, result: &Named) {
        let name = (op.parent, String::from_utf8_lossy(&op.name).into_owned());
        match result {
            Named::Empty(_) | Named::Entry(_) => {
                let known = self.entries.remove(&name);
                assert!(known.is_some(), "{name:?} is removed and was not there");
                self.note(&name);
            }
            Named::Error(error) if error.errno == NOENT => {
                assert!(!self.entries.contains_key(&name), "{name:?} is not found");
            }
            _ => {}
        }
    }

    /// Compares the model with the server's database, and adds the outputs that jobs have published since.
    pub(crate) fn compare(&mut self, db: &Connection, nodes: &[SimulatedNode]) {
        let entries = entries(db).expect("the tables of names can be read");
        let out = self.directories.get(crate::mount::OUT).copied();
        let ruled = self.directories.get(RULED).copied();
        let reduced = self.directories.get(REDUCED).copied();
        let mut seen = BTreeSet::new();
        for entry in entries {
            if entry.kind == i64::from(i32::from(v1::Kind::Directory)) {
                continue;
            }
            seen.insert(entry.name.clone());
            if Some(entry.name.0) == ruled {
                self.ruled(db, &entry, nodes);
                continue;
            }
            if Some(entry.name.0) == reduced {
                self.reduced(db, &entry);
                continue;
            }
            if Some(entry.name.0) == out {
                self.published(db, &entry, nodes);
                continue;
            }
            let known = self.entries.get(&entry.name).copied();
            assert_eq!(known, Some(entry.ino), "{:?} leads elsewhere", entry.name);
            let object = self.objects.get(&entry.ino).copied();
            assert_eq!(
                object,
                Some(entry.object),
                "{:?} has another version",
                entry.name
            );
            let mode = self.modes.get(&entry.ino).copied();
            assert_eq!(mode, Some(entry.mode), "{:?} has another mode", entry.name);
        }
        for (name, ino) in &self.entries {
            assert!(seen.contains(name), "{name:?} (inode {ino}) is lost");
        }
    }

    /// Checks a result of a rule: its name contains its input version, and the rule read no other version.
    fn ruled(&mut self, db: &Connection, entry: &ReferenceEntry, nodes: &[SimulatedNode]) {
        if self.objects.get(&entry.ino) == Some(&entry.object) {
            return;
        }
        let read = inputs(db, entry.object).expect("the tables of jobs can be read");
        let names: Vec<String> = read.iter().map(u64::to_string).collect();
        let named = names.first().map(String::as_str) == Some(made_for(&entry.name.1));
        assert!(named, "a rule read other versions: {names:?}");
        assert!(self.batches || names.len() == 1, "a rule read {names:?}");
        // A map ends when its node has sealed its inputs, which is reported to the server later.
        let sealed = |object| move |node: &SimulatedNode| node.store.read(object);
        let bytes = |&object: &u64| {
            let known = self.content(object);
            known.or_else(|| nodes.iter().find_map(sealed(object)))
        };
        let bytes: Option<Vec<ObjectContent>> = read.iter().map(bytes).collect();
        let bytes = bytes.expect("the version that triggered the rule was sealed");
        let made = made_of(&kernel(self.hooks), &[], 0, &bytes);
        assert_eq!(self.content(entry.object), Some(made), "{:?}", entry.name);
        self.objects.insert(entry.ino, entry.object);
        self.published += 1;
    }

    /// Checks that the result of a batch is computed from the results of the batch's files.
    fn reduced(&mut self, db: &Connection, entry: &ReferenceEntry) {
        if self.objects.get(&entry.ino) == Some(&entry.object) {
            return;
        }
        let read = inputs(db, entry.object).expect("the tables of jobs can be read");
        self.check_batch(db, entry.object, &read);
        let bytes: Option<Vec<ObjectContent>> =
            read.iter().map(|&part| self.content(part)).collect();
        let bytes = bytes.expect("an input of reduce exists");
        let made = made_of(&kernel_of(REDUCE), &[], 0, &bytes);
        assert_eq!(self.content(entry.object), Some(made), "{:?}", entry.name);
        self.objects.insert(entry.ino, entry.object);
        self.reduces += 1;
    }

    /// Checks an output of a job: its content must be the task's result for the recorded inputs. The inputs must not predate the job.
    fn published(&mut self, db: &Connection, entry: &ReferenceEntry, nodes: &[SimulatedNode]) {
        if self.objects.get(&entry.ino) == Some(&entry.object) {
            return;
        }
        let path = self.path_of(&entry.name);
        let maker = self.makers.get(&path).cloned();
        let maker = maker.unwrap_or_else(|| panic!("{path} is no job's output"));
        let read = inputs(db, entry.object).expect("the tables of jobs can be read");
        assert_eq!(
            read.len(),
            maker.task.inputs.len(),
            "{path} was made of other inputs"
        );
        let mut bytes = Vec::new();
        for (input, object) in maker.task.inputs.iter().zip(read) {
            bytes.push(self.read_by(input, object, maker.asked));
        }
        let made = made_of(maker.task.kernel, &maker.task.args, maker.index, &bytes);
        assert_eq!(made.size, entry.size, "{path} has another length");
        let known = self.content(entry.object);
        assert_eq!(
            known,
            Some(made),
            "{path} holds something else than its task makes"
        );
        let node = nodes.iter().find(|node| node.id == entry.node);
        let held = node.and_then(|node| node.store.read(entry.object));
        assert_eq!(held, Some(made), "{path} is not on node {}", entry.node);
        self.objects.insert(entry.ino, entry.object);
        self.published += 1;
    }

    /// Returns the content that a task read as `input`.
    fn read_by(&self, input: &str, object: u64, asked: u64) -> ObjectContent {
        if !self.makers.contains_key(input) {
            let versions = self.history.get(input).map_or(&[][..], Vec::as_slice);
            let ends = versions.iter().skip(1).map(|(at, _)| *at).chain([u64::MAX]);
            let mut current = versions.iter().zip(ends);
            let fresh = current.any(|((_, version), end)| *version == object && end >= asked);
            assert!(
                fresh,
                "object {object} was read as {input}, which it no longer was"
            );
        }
        match object {
            0 => ObjectContent { token: 0, size: 0 },
            object => self
                .content(object)
                .unwrap_or_else(|| panic!("object {object} was read and never sealed")),
        }
    }
}

fn entries(db: &Connection) -> rusqlite::Result<Vec<ReferenceEntry>> {
    let sql = "SELECT dirent.parent, name, dirent.ino, kind, object, node, size, mode FROM dirent \
               JOIN inode ON inode.ino = dirent.ino";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let name: Vec<u8> = row.get(1)?;
        Ok(ReferenceEntry {
            name: (
                row.get::<_, i64>(0)?.cast_unsigned(),
                String::from_utf8_lossy(&name).into_owned(),
            ),
            ino: row.get::<_, i64>(2)?.cast_unsigned(),
            kind: row.get(3)?,
            object: row.get::<_, i64>(4)?.cast_unsigned(),
            node: u32::try_from(row.get::<_, i64>(5)?).unwrap_or(u32::MAX),
            size: row.get::<_, i64>(6)?.cast_unsigned(),
            mode: row.get(7)?,
        })
    })?;
    rows.collect()
}

/// Returns the objects that the task which wrote an output has read.
fn inputs(db: &Connection, object: u64) -> rusqlite::Result<Vec<u64>> {
    let sql = "SELECT task_input.object FROM task_input \
               WHERE task = (SELECT task FROM version WHERE object = ?1) ORDER BY seq";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([object.cast_signed()], |row| row.get::<_, i64>(0))?;
    rows.map(|object| object.map(i64::cast_unsigned)).collect()
}
