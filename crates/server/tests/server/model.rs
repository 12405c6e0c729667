//! Random operations on the namespace, compared with a small model of a POSIX tree: both must have the same errors, tree and link counts. A
//! failing case prints its operations, reduced to a small case.
#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "tests")]

use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_meta::{Caller, Names, NamesRequest, SqliteNames};
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// One random operation. Its directories and files are selected by their position among all inodes ever created.
#[derive(Clone, Debug)]
enum ModelStep {
    Make {
        dir: usize,
        name: usize,
        kind: Kind,
    },
    Link {
        of: usize,
        dir: usize,
        name: usize,
    },
    Unlink {
        dir: usize,
        name: usize,
        directory: bool,
    },
    Rename {
        from: (usize, usize),
        to: (usize, usize),
        flags: Flags,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flags {
    None,
    NoReplace,
    Exchange,
}

fn step() -> impl Strategy<Value = ModelStep> {
    let place = || (0..12usize, 0..NAMES.len());
    let kind =
        prop_oneof![3 => Just(Kind::Directory), 2 => Just(Kind::File), 1 => Just(Kind::Fifo)];
    let flags = prop_oneof![3 => Just(Flags::None), 1 => Just(Flags::NoReplace), 1 => Just(Flags::Exchange)];
    prop_oneof![
        5 => (place(), kind).prop_map(|((dir, name), kind)| ModelStep::Make { dir, name, kind }),
        1 => (0..12usize, place()).prop_map(|(of, (dir, name))| ModelStep::Link { of, dir, name }),
        2 => (place(), any::<bool>()).prop_map(|((dir, name), directory)| ModelStep::Unlink { dir, name, directory }),
        4 => (place(), place(), flags).prop_map(|(from, to, flags)| ModelStep::Rename { from, to, flags }),
    ]
}

/// Model of a namespace: inodes by number; each directory has entries.
#[derive(Debug)]
struct NamesModel {
    vnodes: BTreeMap<u64, Entry>,
    made: Vec<u64>,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    entries: BTreeMap<&'static str, u64>,
}

impl NamesModel {
    fn new() -> Self {
        let root = Entry {
            kind: Kind::Directory,
            entries: BTreeMap::new(),
        };
        Self {
            vnodes: BTreeMap::from([(1, root)]),
            made: vec![1],
        }
    }

    fn pick(&self, index: usize) -> u64 {
        self.made[index % self.made.len()]
    }

    fn is_dir(&self, ino: u64) -> bool {
        self.vnodes
            .get(&ino)
            .is_some_and(|vnode| vnode.kind == Kind::Directory)
    }

    fn dir(&self, ino: u64) -> Result<(), Errno> {
        match self.vnodes.get(&ino) {
            None => Err(Errno::NOENT),
            Some(vnode) if vnode.kind != Kind::Directory => Err(Errno::NOTDIR),
            Some(_) => Ok(()),
        }
    }

    fn get(&self, dir: u64, name: &str) -> Option<u64> {
        self.vnodes[&dir].entries.get(name).copied()
    }

    fn set(&mut self, dir: u64, name: &'static str, ino: u64) {
        self.vnodes.get_mut(&dir).unwrap().entries.insert(name, ino);
    }

    fn clear(&mut self, dir: u64, name: &str) {
        self.vnodes.get_mut(&dir).unwrap().entries.remove(name);
    }

    /// Returns the link count of an inode. For a directory, the count includes the directory's own `.` entry and its subdirectories.
    fn links(&self, ino: u64) -> usize {
        let names = self
            .vnodes
            .values()
            .flat_map(|vnode| vnode.entries.values())
            .filter(|&&to| to == ino);
        if self.is_dir(ino) {
            2 + self.vnodes[&ino]
                .entries
                .values()
                .filter(|&&child| self.is_dir(child))
                .count()
        } else {
            names.count()
        }
    }

    fn drop_unnamed(&mut self) {
        let named: BTreeSet<u64> = self
            .vnodes
            .values()
            .flat_map(|vnode| vnode.entries.values().copied())
            .chain([1])
            .collect();
        self.vnodes.retain(|ino, _| named.contains(ino));
    }

    fn below(&self, dir: u64, top: u64) -> bool {
        let inside =
            |child: &u64| *child == dir || (self.is_dir(*child) && self.below(dir, *child));
        dir == top || self.vnodes[&top].entries.values().any(inside)
    }

    fn unlink(&mut self, dir: u64, name: &str, directory: bool) -> Result<(), Errno> {
        self.dir(dir)?;
        let ino = self.get(dir, name).ok_or(Errno::NOENT)?;
        match (directory, self.is_dir(ino)) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            _ if !self.vnodes[&ino].entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => self.clear(dir, name),
        }
        self.drop_unnamed();
        Ok(())
    }

    fn rename(
        &mut self,
        (from, name): (u64, &'static str),
        (to, new): (u64, &'static str),
        flags: Flags,
    ) -> Result<(), Errno> {
        self.dir(from)?;
        self.dir(to)?;
        let vnode = self.get(from, name).ok_or(Errno::NOENT)?;
        let target = self.get(to, new);
        match (target, flags) {
            (Some(_), Flags::NoReplace) => return Err(Errno::EXIST),
            (None, Flags::Exchange) => return Err(Errno::NOENT),
            (Some(target), _) if target == vnode => return Ok(()),
            _ => {}
        }
        if self.is_dir(vnode) && from != to && self.below(to, vnode) {
            return Err(Errno::INVAL);
        }
        if let (Some(target), Flags::Exchange) = (target, flags) {
            if self.is_dir(target) && from != to && self.below(from, target) {
                return Err(Errno::INVAL);
            }
            self.set(from, name, target);
            self.set(to, new, vnode);
            return Ok(());
        }
        if let Some(target) = target {
            match (self.is_dir(vnode), self.is_dir(target)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                _ if !self.vnodes[&target].entries.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.clear(from, name);
        self.set(to, new, vnode);
        self.drop_unnamed();
        Ok(())
    }

    /// Applies the operation that the namespace receives to the model.
    fn apply(&mut self, op: &Op, new: u64) -> Result<(), Errno> {
        let known = |name: &[u8]| NAMES[NAMES.iter().position(|n| n.as_bytes() == name).unwrap()];
        match op {
            Op::Create(op) => {
                let name = known(&op.name);
                self.dir(op.parent)?;
                if self.get(op.parent, name).is_some() {
                    return Err(Errno::EXIST);
                }
                let entry = Entry {
                    kind: op.kind(),
                    entries: BTreeMap::new(),
                };
                self.vnodes.insert(new, entry);
                self.made.push(new);
                self.set(op.parent, name, new);
                Ok(())
            }
            Op::Link(op) => {
                let name = known(&op.name);
                self.dir(op.parent)?;
                self.vnodes.get(&op.ino).ok_or(Errno::NOENT)?;
                if self.get(op.parent, name).is_some() {
                    return Err(Errno::EXIST);
                }
                if self.is_dir(op.ino) {
                    return Err(Errno::PERM);
                }
                self.set(op.parent, name, op.ino);
                Ok(())
            }
            Op::Unlink(op) => self.unlink(op.parent, known(&op.name), op.directory),
            Op::Rename(op) => {
                let flags = match (op.no_replace, op.exchange) {
                    (true, _) => Flags::NoReplace,
                    (_, true) => Flags::Exchange,
                    _ => Flags::None,
                };
                self.rename(
                    (op.parent, known(&op.name)),
                    (op.new_parent, known(&op.new_name)),
                    flags,
                )
            }
            _ => unreachable!("the test makes no others"),
        }
    }

    fn op(&self, step: &ModelStep) -> Op {
        let name = |index: usize| NAMES[index].as_bytes().to_vec();
        match *step {
            ModelStep::Make { dir, name: n, kind } => Op::Create(v1::Create {
                parent: self.pick(dir),
                name: name(n),
                kind: kind.into(),
                mode: 0o755,
                ..v1::Create::default()
            }),
            ModelStep::Link { of, dir, name: n } => Op::Link(v1::Link {
                ino: self.pick(of),
                parent: self.pick(dir),
                name: name(n),
                time: 0,
            }),
            ModelStep::Unlink {
                dir,
                name: n,
                directory,
            } => Op::Unlink(v1::Unlink {
                parent: self.pick(dir),
                name: name(n),
                directory,
                time: 0,
            }),
            ModelStep::Rename { from, to, flags } => Op::Rename(v1::Rename {
                parent: self.pick(from.0),
                name: name(from.1),
                new_parent: self.pick(to.0),
                new_name: name(to.1),
                no_replace: flags == Flags::NoReplace,
                exchange: flags == Flags::Exchange,
                time: 0,
            }),
        }
    }
}

async fn one(names: &SqliteNames, op: Op) -> Answer {
    let ops = vec![v1::NameOp { op: Some(op) }];
    let request = NamesRequest {
        caller: Caller::root(),
        ops,
        ..NamesRequest::default()
    };
    names
        .apply(request)
        .await
        .unwrap()
        .remove(0)
        .result
        .unwrap()
}

/// Compares all inodes in the namespace and in the model that can be reached from a directory.
async fn compare(names: &SqliteNames, model: &NamesModel, ino: u64) {
    let mut dirs = vec![ino];
    while let Some(dir) = dirs.pop() {
        let Answer::Entries(listing) = one(
            names,
            Op::ReadDir(v1::ReadDir {
                ino: dir,
                after: Vec::new(),
                limit: 0,
            }),
        )
        .await
        else {
            panic!("no listing of {dir}")
        };
        let found: Vec<_> = listing
            .entries
            .iter()
            .map(|e| (e.name.clone(), e.attr.unwrap().ino))
            .collect();
        let expected: Vec<_> = model.vnodes[&dir]
            .entries
            .iter()
            .map(|(n, &ino)| (n.as_bytes().to_vec(), ino))
            .collect();
        assert_eq!(found, expected, "entries of {dir}");
        for entry in listing.entries {
            let attr = entry.attr.unwrap();
            assert_eq!(
                attr.nlink as usize,
                model.links(attr.ino),
                "links of {}",
                attr.ino
            );
            if attr.kind() == Kind::Directory {
                dirs.push(attr.ino);
                let parent = v1::Lookup {
                    parent: attr.ino,
                    name: b"..".to_vec(),
                };
                let Answer::Entry(parent) = one(names, Op::Lookup(parent)).await else {
                    panic!("no `..`")
                };
                assert_eq!(parent.attr.unwrap().ino, dir, "parent of {}", attr.ino);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn namespace_matches_posix_model(steps in proptest::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let path = dir.path().join("server.db");
        let names = SqliteNames::open(&path, (0, 0)).unwrap();
        let mut model = NamesModel::new();
        runtime.block_on(async {
            for step in &steps {
                let op = model.op(step);
                let (errno, new) = match one(&names, op.clone()).await {
                    Answer::Error(error) => (Err(Errno::from_raw_os_error(error.errno)), 0),
                    Answer::Entry(entry) => (Ok(()), entry.attr.unwrap().ino),
                    _ => (Ok(()), 0),
                };
                prop_assert_eq!(errno, model.apply(&op, new), "{:?}", op);
            }
            compare(&names, &model, 1).await;
            Ok(())
        })?;
        drop(names);
        // Nothing is lost when the database is opened again.
        let names = SqliteNames::open(&path, (0, 0)).unwrap();
        runtime.block_on(compare(&names, &model, 1));
    }
}
