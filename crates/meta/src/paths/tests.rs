use super::path_of;
use crate::Connection;
use crate::attribute::{DIRECTORY_NODE, DIRECTORY_TIER};
use crate::rules::{StoredRule, definitions};
use crate::transaction::Tx;
use crate::vnode::{InodeRecord, SEARCH};
use crate::{Caller, Fault, SqliteNames, ids, schema, tree};
use proptest::prelude::*;
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use rusqlite::{OptionalExtension, params};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tidemill_lang::rule::Rule;
use tidemill_model::id::{Inode, NodeId, ObjectId};
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

/// Path of the innermost of five nested directories.
const DEEPEST: &str = "/d1/d2/d3/d4/d5";
/// Maximum number of statements of a create in a directory at depth 5.
const CREATE_MAX: usize = 13;
/// Maximum number of statements of the seal of a file in a directory at depth 5.
const SEAL_MAX: usize = 11;

/// A namespace with five nested directories of user 7, and a connection that counts its statements.
struct WalkBench {
    names: SqliteNames,
    db: Connection,
    count: Arc<AtomicUsize>,
    deepest: u64,
    /// Ids that user 7 has reserved: inodes and objects.
    ids: Cell<(u64, u64)>,
    _directory: tempfile::TempDir,
}

fn user(uid: u32) -> Caller {
    Caller {
        uid,
        gid: uid,
        ..Caller::default()
    }
}

impl WalkBench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.db");
        let names = SqliteNames::open(&path, (7, 7)).unwrap();
        names.add_node(NodeId(3));
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        // The statements of triggers are comments in the trace.
        let trace = move |event: TraceEvent<'_>| {
            if let TraceEvent::Stmt(_, sql) = event {
                counted.fetch_add(usize::from(!sql.starts_with("--")), Ordering::Relaxed);
            }
        };
        let mut db = schema::open_writer(&path).unwrap();
        let statements = TraceEventCodes::SQLITE_TRACE_STMT;
        db.sql.trace_v2(statements, Some(trace)).unwrap();
        db.sql.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut bench = Self {
            names,
            db,
            count,
            deepest: 0,
            ids: Cell::default(),
            _directory: directory,
        };
        let make = v1::Create {
            uid: 7,
            gid: 7,
            make_parents: true,
            ..create(0, &format!("{DEEPEST}/first"), Kind::File)
        };
        bench.apply(&Caller::root(), Op::Create(make));
        let root = Caller::root();
        let deepest = bench.tx(&root).resolve(DEEPEST.as_bytes(), true).unwrap();
        bench.deepest = deepest.ino;
        let ids = ids::reserve_for(&bench.db, &user(7), 20_000, 20_000).unwrap();
        bench.ids.set(ids);
        bench
    }

    fn tx<'a>(&'a self, caller: &'a Caller) -> Tx<'a> {
        Tx::new(&self.db, self.names.shared(), caller, 0, 1)
    }

    /// Executes an operation; returns the answer and the number of statements.
    fn apply(&self, caller: &Caller, op: Op) -> (Answer, usize) {
        let before = self.count.load(Ordering::Relaxed);
        let answer = apply(&mut self.tx(caller).bounded(), op);
        (answer, self.count.load(Ordering::Relaxed) - before)
    }

    /// Opens a new file of user 7 for writing; returns the answer and the number of statements.
    fn create(&self, parent: u64, name: &str) -> (v1::Opened, usize) {
        let (ino, object) = self.ids.get();
        self.ids.set((ino + 1, object + 1));
        let create = v1::Create {
            ino,
            object,
            ..create(parent, name, Kind::File)
        };
        match self.apply(&user(7), Op::Create(create)) {
            (Answer::Opened(opened), count) => (opened, count),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the number of statements of a create by path and of a create by the inode of the directory.
    fn count_creates(&self, name: &str) -> [usize; 2] {
        let (_, by_path) = self.create(0, &format!("{DEEPEST}/{name}"));
        [by_path, self.create(self.deepest, &format!("{name}_")).1]
    }
}

fn apply(tx: &mut Tx<'_>, op: Op) -> Answer {
    let ops = [v1::NameOp { op: Some(op) }];
    let mut results = tx.apply_all(&ops, false).unwrap();
    results.remove(0).result.unwrap()
}

fn create(parent: u64, name: &str, kind: Kind) -> v1::Create {
    v1::Create {
        parent,
        name: name.into(),
        kind: kind.into(),
        mode: 0o755,
        ..v1::Create::default()
    }
}

fn set(ino: u64, name: &[u8], value: &str) -> Op {
    Op::SetXattr(v1::SetXattr {
        ino,
        name: name.to_vec(),
        value: value.into(),
        ..v1::SetXattr::default()
    })
}

#[test]
fn requests_at_depth_5_need_few_statements() {
    let bench = WalkBench::new();
    let plain = bench.count_creates("a");
    let path = format!("{DEEPEST}/first");
    let resolve = v1::Resolve {
        path: path.into(),
        follow: true,
        ..v1::Resolve::default()
    };
    let (answer, stat) = bench.apply(&user(8), Op::Resolve(resolve));
    let Answer::Entry(entry) = answer else {
        panic!("{answer:?}")
    };
    let open = v1::Open {
        ino: entry.attr.unwrap().ino,
        ..v1::Open::default()
    };
    let (answer, open) = bench.apply(&user(8), Op::Open(open));
    assert!(matches!(answer, Answer::Opened(_)), "{answer:?}");
    for (name, value) in [("node", "3"), ("stripe", "off"), ("tier", "disk")] {
        let name = format!("user.tidemill.{name}");
        bench.apply(&Caller::root(), set(1, name.as_bytes(), value));
    }
    let placed = bench.count_creates("b");
    println!("create {plain:?}, with attributes {placed:?}, stat {stat}, open {open}");
    assert!(
        plain
            .into_iter()
            .chain(placed)
            .all(|count| count <= CREATE_MAX)
    );
    assert_eq!((stat, open), (1, 2));
    // A quota of a directory above needs one more statement.
    let quota = "INSERT INTO workspace(ino, quota, created, expires) VALUES (2, 4096, 0, 0)";
    bench.db.sql.execute(quota, []).unwrap();
    bench.names.shared().quotas.set_any();
    bench.create(bench.deepest, "counted");
    assert!(
        bench
            .count_creates("c")
            .into_iter()
            .all(|count| count <= CREATE_MAX + 1)
    );
    let (opened, _) = bench.create(bench.deepest, "d");
    assert_eq!(opened.size_max, Some(4096));
}

#[test]
fn seal_writes_one_feed_row() {
    let bench = WalkBench::new();
    let count = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        bench.db.sql.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    let text = "name = \"r\"; workdir = \"/\"; pattern = \"**/{n}\"; task = { kernel = \"max\"; output = [ \"out/{n}.txt\" ]; };";
    let rule = StoredRule {
        id: 0,
        owner: Caller::root(),
        revision: 1,
        for_all: false,
        paused: false,
        source: "rule".into(),
        text: text.into(),
        changed: 1,
        directory: 0,
        rule: Rule::read("rule", text).unwrap(),
    };
    let mut counts = Vec::new();
    for name in ["first", "a.nc", "with-rule"] {
        if name == "with-rule" {
            definitions::put(&bench.db, &rule, None).unwrap();
            bench.tx(&Caller::root()).reload_rules().unwrap();
        }
        let (ino, object) = bench.ids.get();
        bench.create(bench.deepest, &format!("sealed-{name}"));
        let key = bench.names.shared().key();
        let receipt = key.receipt(NodeId(3), ObjectId(object), 5);
        let seal = v1::Seal {
            ino,
            object,
            size: 5,
            receipts: vec![receipt],
            ..v1::Seal::default()
        };
        let rows = count("feed");
        let (answer, statements) = bench.apply(&user(7), Op::Seal(seal));
        assert!(matches!(answer, Answer::Attr(_)), "{answer:?}");
        assert_eq!(count("feed"), rows + 1);
        counts.push(statements);
    }
    assert_eq!((count("header"), count("rule_run")), (0, 0));
    println!("seal {counts:?}");
    assert!(counts.into_iter().skip(1).all(|count| count <= SEAL_MAX));
}

#[test]
#[ignore = "measures time"]
fn time_of_creates_at_depth_5() {
    let bench = WalkBench::new();
    for (parent, path) in [(0, format!("{DEEPEST}/")), (bench.deepest, String::new())] {
        let start = Instant::now();
        for i in 0..5000 {
            bench.create(parent, &format!("{path}x{parent}_{i}"));
        }
        println!("{:?} for each create in {parent}", start.elapsed() / 5000);
    }
}

#[test]
fn directory_attributes_follow_changes_within_one_request() {
    let bench = WalkBench::new();
    let root = Caller::root();
    let mut tx = bench.tx(&root);
    tx.shared.set_directory_nodes();
    let node = |tx: &Tx<'_>| {
        let deepest = InodeRecord::get(tx.db, bench.deepest).unwrap();
        tx.directory_node(&deepest).unwrap()
    };
    assert_eq!(node(&tx), None);
    apply(&mut tx, set(2, DIRECTORY_NODE, "3"));
    assert_eq!(node(&tx), Some(3));
    // The second operation fails after its change, which is rolled back.
    tx.db.sql.execute_batch("SAVEPOINT op").unwrap();
    crate::attribute::set(tx.db, 3, DIRECTORY_NODE, b"4").unwrap();
    assert_eq!(node(&tx), Some(4));
    tx.roll_back().unwrap();
    assert_eq!(node(&tx), Some(3));
    let out = v1::Rename {
        parent: 2,
        name: b"d2".to_vec(),
        new_parent: 1,
        new_name: b"out".to_vec(),
        ..v1::Rename::default()
    };
    apply(&mut tx, Op::Rename(out));
    assert_eq!(node(&tx), None);
}

/// A request of the property test: indexes of an operation, of two inodes and of two names, and a number.
type Step = (u8, (usize, usize), (usize, usize), u32);

const NAMES: [&str; 4] = ["a", "b", "c", "missing"];
const PATHS: [&str; 10] = [
    "/",
    "/a",
    "/a/b",
    "/a/b/c/",
    "/b/../a/./c",
    "/c/a/b",
    "/c",
    "/a/c/b/missing/a",
    "/b/a/..",
    "/../c/",
];

fn operation(step: &Step, inodes: &[u64]) -> Op {
    let (kind, (at, to), (name, new), number) = *step;
    let (ino, other) = (inodes[at % inodes.len()], inodes[to % inodes.len()]);
    let (name, new_name) = (NAMES[name], NAMES[new]);
    match kind % 10 {
        0..=2 => Op::Create(create(ino, name, Kind::Directory)),
        3 => Op::Create(create(ino, name, Kind::File)),
        4 => Op::Create(v1::Create {
            target: PATHS[number as usize % PATHS.len()].into(),
            ..create(ino, name, Kind::Symlink)
        }),
        5 => Op::Rename(v1::Rename {
            parent: ino,
            name: name.into(),
            new_parent: other,
            new_name: new_name.into(),
            exchange: number % 4 == 0,
            ..v1::Rename::default()
        }),
        6 => Op::SetAttr(v1::SetAttr {
            ino,
            mode: Some([0o755, 0o700, 0o711, 0o644][number as usize % 4]),
            ..v1::SetAttr::default()
        }),
        7 => set(
            ino,
            DIRECTORY_NODE,
            ["1", "2", "3", "no node"][number as usize % 4],
        ),
        8 => Op::Unlink(v1::Unlink {
            parent: ino,
            name: name.into(),
            directory: number % 2 == 0,
            time: 0,
        }),
        _ => Op::Link(v1::Link {
            ino,
            parent: other,
            name: name.into(),
            time: 0,
        }),
    }
}

/// Returns whether a caller may search all directories above one of the names of an inode, looked up one by one.
fn may_reach(db: &Connection, caller: &Caller, vnode: &InodeRecord) -> bool {
    let parents = match vnode.is_dir() {
        true => vec![vnode.parent],
        false => tree::names_of(db, vnode.ino)
            .unwrap()
            .into_iter()
            .map(|(parent, _)| parent)
            .collect(),
    };
    parents.into_iter().any(|mut at| {
        loop {
            let directory = InodeRecord::get(db, at).unwrap();
            match (caller.may(&directory, SEARCH), at == Inode::ROOT.0) {
                (true, false) => at = directory.parent,
                (may, _) => return may,
            }
        }
    })
}

/// Resolves a path one component at a time; fails with the name of the fault.
fn resolved(
    db: &Connection,
    caller: &Caller,
    path: &str,
    links: usize,
) -> Result<InodeRecord, &'static str> {
    let mut vnode = InodeRecord::get(db, Inode::ROOT.0).unwrap();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    for (i, part) in parts.iter().enumerate() {
        if !vnode.is_dir() {
            return Err("not a directory");
        }
        if !caller.may(&vnode, SEARCH) {
            return Err("denied");
        }
        let next = match *part {
            "." => Some(vnode.clone()),
            ".." => InodeRecord::find(db, vnode.parent).unwrap(),
            name => InodeRecord::child(db, vnode.ino, name.as_bytes()).unwrap(),
        };
        vnode = next.ok_or("not found")?;
        if vnode.kind == Kind::Symlink {
            if links == 0 {
                return Err("loop");
            }
            let target = String::from_utf8(vnode.target).unwrap();
            let end = if path.ends_with('/') { "/" } else { "" };
            let rest = format!("{target}/{}{end}", parts[i + 1..].join("/"));
            let rest = match parts.len() == i + 1 && end.is_empty() {
                true => target,
                false => rest,
            };
            return resolved(db, caller, &rest, links - 1);
        }
    }
    match path.ends_with('/') && !vnode.is_dir() {
        true => Err("not a directory"),
        false => Ok(vnode),
    }
}

fn name_of(fault: &Fault) -> &'static str {
    match fault {
        Fault::NotDirectory(_) => "not a directory",
        Fault::Denied(..) => "denied",
        Fault::NotFound(_) => "not found",
        Fault::Loop(_) => "loop",
        other => panic!("{other:?}"),
    }
}

/// Returns the path of an inode and the attribute of the nearest directory, looked up one by one.
fn looked_up(db: &Connection, ino: u64) -> (Option<Vec<u8>>, Option<u32>) {
    let (mut at, mut path, mut node) = (ino, Vec::new(), None);
    loop {
        let sql = "SELECT value FROM xattr WHERE ino = ?1 AND name = ?2";
        let value = db
            .sql
            .query_row(sql, params![at.cast_signed(), DIRECTORY_NODE], |row| {
                row.get::<_, Vec<u8>>(0)
            });
        let value = value.optional().unwrap();
        node = node.or(value.map(|value| String::from_utf8(value).unwrap().parse().unwrap()));
        if at == Inode::ROOT.0 {
            let path = if path.is_empty() { b"/".to_vec() } else { path };
            return (Some(path), node);
        }
        let Some((parent, name)) = tree::names_of(db, at).unwrap().into_iter().next() else {
            return (None, node);
        };
        path = [b"/", name.as_slice(), &path].concat();
        at = parent;
    }
}

/// Compares the walks of a transaction with lookups one by one, for all inodes.
fn compare(tx: &Tx<'_>, inodes: &[u64]) {
    for &ino in inodes {
        let Some(vnode) = InodeRecord::find(tx.db, ino).unwrap() else {
            continue;
        };
        let (path, node) = looked_up(tx.db, ino);
        assert_eq!(path_of(tx.db, ino).unwrap(), path, "{ino}");
        if vnode.is_dir() && path.is_some() {
            assert_eq!(tx.directory_node(&vnode).unwrap(), node, "{ino}");
            assert_eq!(
                tx.directory_attribute::<u32>(&vnode, DIRECTORY_TIER)
                    .unwrap(),
                None
            );
        }
        let reached = tx.reach(ino).map_err(|fault| name_of(&fault));
        let expected = match may_reach(tx.db, tx.caller, &vnode) {
            true => Ok(ino),
            false => Err("denied"),
        };
        assert_eq!(reached.map(|vnode| vnode.ino), expected, "{ino}");
    }
    for path in PATHS {
        let found = tx.resolve(path.as_bytes(), true);
        let found = found
            .map(|vnode| vnode.ino)
            .map_err(|fault| name_of(&fault));
        let expected = resolved(tx.db, tx.caller, path, 40).map(|vnode| vnode.ino);
        assert_eq!(found, expected, "{path}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// After random operations of two users, each walk in one statement has the same result as lookups one by one. Operations may fail, and
    /// some succeed and are rolled back.
    #[test]
    fn walks_equal_lookups_one_by_one(
        steps in prop::collection::vec(
            (any::<u8>(), (0..12_usize, 0..12_usize), (0..4_usize, 0..4_usize), any::<u32>()), 1..60),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (7, 7)).unwrap();
        names.shared().set_directory_nodes();
        let db = schema::open_writer(&directory.path().join("server.db")).unwrap();
        db.sql.execute_batch("BEGIN IMMEDIATE; UPDATE inode SET mode = 511").unwrap();
        let (seven, eight) = (user(7), user(8));
        let mut transactions = [&seven, &eight].map(|caller| Tx::new(&db, names.shared(), caller, 0, 1));
        let mut inodes = vec![Inode::ROOT.0];
        for step in &steps {
            let tx = &mut transactions[usize::from(step.3 % 3 == 0)];
            let undone = step.3 % 5 == 0;
            db.sql.execute_batch("SAVEPOINT whole").unwrap();
            if let Answer::Entry(entry) = apply(tx, operation(step, &inodes))
                && let Some(attr) = entry.attr
                && !inodes.contains(&attr.ino)
                && !undone
            {
                inodes.push(attr.ino);
            }
            compare(tx, &inodes);
            if undone {
                // A request that fails as a whole takes its transaction along.
                db.sql.execute_batch("ROLLBACK TO whole").unwrap();
                transactions = [&seven, &eight].map(|caller| Tx::new(&db, names.shared(), caller, 0, 1));
            }
            db.sql.execute_batch("RELEASE whole").unwrap();
            for tx in &transactions {
                compare(tx, &inodes);
            }
        }
    }
}
