//! Recovery of the server's database from the databases of nodes.
#![allow(clippy::unwrap_used, reason = "tests")]

use prost::Message as _;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tidemill_model::attribute::{name, object};
use tidemill_model::id::{Inode, ObjectId};
use tidemill_model::layout::PartOf;
use tidemill_server::rebuild::{Rebuilt, rebuild};
use tidemill_wire::v1::{self, Kind, NameNote};

const NODE: &str = include_str!("../fixtures/node.sql");

fn load(path: &Path, sql: &str) -> Connection {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let db = Connection::open(path).unwrap();
    db.execute_batch(sql).unwrap();
    db
}

/// Returns the names in a recovered database: each path with the inode, version and object.
fn tree(directory: &Path) -> BTreeMap<String, (u64, u64, u64)> {
    let db = Connection::open(directory.join("server.db")).unwrap();
    let sql = "WITH RECURSIVE tree(ino, path) AS (VALUES (1, '') UNION ALL \
               SELECT dirent.ino, tree.path || '/' || CAST(dirent.name AS TEXT) FROM tree \
               JOIN dirent ON dirent.parent = tree.ino) \
               SELECT CAST(path AS BLOB), inode.ino, version, object FROM tree JOIN inode ON inode.ino = tree.ino \
               WHERE inode.ino != 1";
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| {
        let path: Vec<u8> = row.get(0)?;
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let path = path.escape_ascii().to_string();
        Ok((path, (number(1)?, number(2)?, number(3)?)))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

fn again(directory: &Path, nodes: &[PathBuf]) -> Rebuilt {
    rebuild(&directory.join("again"), nodes, (0, 0)).unwrap()
}

#[test]
fn recovery_names_files_without_notes_by_their_last_path() {
    let directory = tempfile::tempdir().unwrap();
    let node = directory.path().join("node.db");
    drop(load(&node, NODE));
    let rebuilt = again(directory.path(), &[node]);
    assert_eq!(rebuilt.files, 3);
    assert_eq!(rebuilt.tasks, 1);
    // A job gave the path of the third object, a task's output.
    assert_eq!((rebuilt.unnoted.len(), rebuilt.apart.len()), (2, 1));
    let tree = tree(&directory.path().join("again"));
    assert_eq!(tree["/lost+found/out.object2050"].2, 2050);
    assert_eq!(tree["/in.txt"].2, 1);
}

#[test]
fn recovery_refuses_live_database_copy_without_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let node = directory.path().join("node.db");
    let db = load(&node, NODE);
    let refused = |nodes: &Path| {
        let made = rebuild(&directory.path().join("again"), &[nodes.into()], (0, 0));
        made.unwrap_err().to_string()
    };
    db.execute("INSERT INTO identity VALUES ('log', x'01')", [])
        .unwrap();
    assert!(refused(&node).contains("node.db-wal"));
    // All rows may be in the log.
    let nothing = directory.path().join("nothing.db");
    std::fs::write(&nothing, "").unwrap();
    assert!(refused(&nothing).contains("node.db-wal"));
    assert!(!directory.path().join("again/server.db").exists());
    db.execute("UPDATE identity SET value = x'00' WHERE key = 'log'", [])
        .unwrap();
    let rebuilt = again(directory.path(), &[node]);
    assert_eq!((rebuilt.files, rebuilt.less), (3, false));
}

#[test]
fn recovery_reports_missing_and_unknown_objects() {
    let directory = tempfile::tempdir().unwrap();
    let node = directory.path().join("node-0");
    drop(load(&node.join("node.db"), NODE));
    let objects = node.join("objects/34");
    std::fs::create_dir_all(&objects).unwrap();
    std::fs::write(objects.join("0000000000aa1234"), "unknown").unwrap();
    let rebuilt = again(directory.path(), &[node]);
    assert_eq!((rebuilt.unknown, rebuilt.missing.len()), (1, 3));
    assert!(rebuilt.less);
}

/// Database of a node, with rows that the test inserts.
struct Node {
    path: PathBuf,
    db: Connection,
}

impl Node {
    fn new(directory: &Path, id: u32) -> Self {
        let path = directory.join(format!("node-{id}.db"));
        let db = load(&path, NODE);
        let sql = format!(
            "DELETE FROM attribute; DELETE FROM object; DELETE FROM membership; \
             UPDATE identity SET value = CAST('{id}' AS BLOB) WHERE key = 'node'"
        );
        db.execute_batch(&sql).unwrap();
        Self { path, db }
    }

    fn attribute(&self, id: u64, page: u32, number: u32, value: &[u8]) {
        let row = params![id.cast_signed(), page, number, value];
        self.db
            .execute("INSERT INTO attribute VALUES (?1, ?2, ?3, ?4)", row)
            .unwrap();
    }

    fn object(&self, id: u64, inode: u64, path: &str, sealed_at: u64) {
        let sql = "INSERT INTO object(id, kind, state) VALUES (?1, 0, 1)";
        self.db.execute(sql, [id.cast_signed()]).unwrap();
        for (number, value) in [
            (object::SIZE, 1),
            (object::INODE, inode),
            (object::SEALED_AT, sealed_at),
        ] {
            self.attribute(id, object::PAGE, number, &u64::to_le_bytes(value));
        }
        self.attribute(id, object::PAGE, object::PATH, path.as_bytes());
    }

    fn note(&self, note: &NameNote) {
        let id = ObjectId::of_inode(Inode(note.ino)).0;
        self.attribute(id, name::PAGE, name::CHANGE, &note.change.to_le_bytes());
        self.attribute(id, name::PAGE, name::NOTE, &note.encode_to_vec());
    }
}

fn note(ino: u64, change: u64, kind: Kind, object: u64, places: &[(u64, &[u8])]) -> NameNote {
    let place = |(parent, name): &(u64, &[u8])| v1::NamePlace {
        parent: *parent,
        name: name.to_vec(),
    };
    NameNote {
        ino,
        change,
        kind: kind.into(),
        object,
        version: 3,
        places: places.iter().map(place).collect(),
        ..NameNote::default()
    }
}

#[test]
fn recovery_uses_latest_note_of_each_inode() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = [0, 1].map(|id| Node::new(directory.path(), id));
    // The files are swapped by renames, with a name that is no text.
    one.object(100, 10, "/first", 1);
    two.object(101, 11, "/second", 1);
    one.note(&note(10, 5, Kind::File, 100, &[(1, b"second")]));
    two.note(&note(
        11,
        6,
        Kind::File,
        101,
        &[(1, b"first"), (1, b"\xff\xfe")],
    ));
    // One node has a note of a directory from before its move, and the other one from after.
    one.note(&note(20, 1, Kind::Directory, 0, &[(1, b"old")]));
    two.note(&note(20, 7, Kind::Directory, 0, &[(21, b"new")]));
    one.note(&note(21, 2, Kind::Directory, 0, &[(1, b"above")]));
    // The first file was written once more than was noted. The second was deleted while its bytes still exist. The third was deleted, and
    // its name is used again.
    one.object(110, 12, "/old/late", 1);
    one.object(111, 12, "/old/late", 2);
    one.note(&note(12, 8, Kind::File, 110, &[(20, b"late")]));
    one.object(112, 13, "/gone", 1);
    one.note(&note(13, 9, Kind::File, 112, &[]));
    two.object(113, 14, "/gone", 2);
    let rebuilt = again(directory.path(), &[one.path, two.path]);
    let tree = tree(&directory.path().join("again"));
    let expected = [
        ("/above", (21, 3, 0)),
        ("/above/new", (20, 3, 0)),
        ("/above/new/late", (12, 4, 111)),
        ("/first", (11, 3, 101)),
        ("/gone", (14, 1, 113)),
        ("/second", (10, 3, 100)),
        ("/\\xff\\xfe", (11, 3, 101)),
    ];
    let expected = expected.map(|(path, of)| (path.to_owned(), of));
    assert_eq!(tree, BTreeMap::from(expected));
    assert_eq!(rebuilt.unnoted, [PathBuf::from("/gone")]);
    assert!(
        rebuilt.apart.is_empty() && rebuilt.missing.is_empty(),
        "{rebuilt:?}"
    );
    // The superseded versions are removed now.
    let db = Connection::open(directory.path().join("again/server.db")).unwrap();
    let removal = "SELECT group_concat(object) FROM (SELECT object FROM replica WHERE want = 2 ORDER BY object)";
    let removal: String = db.query_row(removal, [], |row| row.get(0)).unwrap();
    assert_eq!(removal, "110,112");
}

#[test]
fn recovery_joins_replicas_of_object_and_needs_only_one_replica() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two, three] = [0, 1, 2].map(|id| Node::new(directory.path(), id));
    one.object(100, 10, "/kept", 1);
    one.note(&NameNote {
        replicas: 3,
        ..note(10, 5, Kind::File, 100, &[(1, b"renamed")])
    });
    two.object(100, 10, "/kept", 7);
    // The file was overwritten: all replicas of the version before are to be removed.
    one.object(101, 11, "/new", 1);
    three.object(101, 11, "/new", 2);
    one.object(102, 11, "/new", 3);
    one.note(&note(11, 6, Kind::File, 102, &[(1, b"new")]));
    // The node of the first replica is lost.
    two.object(103, 12, "/saved", 4);
    three.object(103, 12, "/saved", 5);
    three.note(&note(12, 7, Kind::File, 103, &[(1, b"known")]));
    let rebuilt = again(directory.path(), &[one.path, two.path, three.path]);
    assert_eq!((rebuilt.files, rebuilt.apart.len()), (3, 0), "{rebuilt:?}");
    let tree = tree(&directory.path().join("again"));
    assert_eq!(tree["/renamed"], (10, 3, 100));
    assert_eq!(tree["/new"], (11, 3, 102));
    assert_eq!(tree["/known"], (12, 3, 103));
    let db = Connection::open(directory.path().join("again/server.db")).unwrap();
    let ask = |sql: &str| -> String { db.query_row(sql, [], |row| row.get(0)).unwrap() };
    let first = "SELECT group_concat(object || '@' || node || '*' || replicas) FROM \
                 (SELECT * FROM version ORDER BY object)";
    assert_eq!(ask(first), "100@0*3,101@0*2,102@0*1,103@1*2");
    let others =
        "SELECT group_concat(object || '@' || node || ':' || state) FROM replica WHERE want = 0";
    assert_eq!(ask(others), "100@1:2,103@2:2");
    let short = "SELECT group_concat(object || ':' || has) FROM short";
    assert_eq!(ask(short), "100:2", "the third is recreated");
    let removal = "SELECT group_concat(object || '@' || node) FROM replica WHERE want = 2";
    assert_eq!(ask(removal), "101@0,101@2");
}

#[test]
fn recovery_joins_parts_of_striped_file() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two, three] = [0, 1, 2].map(|id| Node::new(directory.path(), id));
    let part = |node: &Node, id, (version, index): (u64, u64), sealed_at| {
        node.object(id, version - 100, "/was", sealed_at);
        let of = PartOf {
            version: ObjectId(version),
            index,
            width: 2,
            unit: 4096,
        };
        node.attribute(id, object::PAGE, object::PART, &of.to_bytes());
    };
    // This version is noted, with a replica of its second part.
    part(&one, 201, (110, 0), 1);
    part(&two, 202, (110, 1), 1);
    part(&three, 202, (110, 1), 5);
    let noted = note(10, 5, Kind::File, 110, &[(1, b"noted")]);
    one.note(&noted);
    three.note(&NameNote {
        replicas: 2,
        ..noted
    });
    // This file was written once more than was noted.
    two.object(111, 11, "/late", 1);
    two.note(&note(11, 6, Kind::File, 111, &[(1, b"late")]));
    part(&one, 203, (111 + 1, 0), 2);
    part(&two, 204, (111 + 1, 1), 2);
    for (node, id) in [(&one, 203), (&two, 204)] {
        let sql = "UPDATE attribute SET value = ?2 WHERE object = ?1 AND page = ?3 AND number = ?4";
        let inode = 11_u64.to_le_bytes();
        let row = params![id, inode, object::PAGE, object::INODE];
        node.db.execute(sql, row).unwrap();
    }
    // The first part of this version is lost.
    part(&two, 206, (115, 1), 3);
    two.note(&note(15, 7, Kind::File, 115, &[(1, b"half")]));
    let rebuilt = again(directory.path(), &[one.path, two.path, three.path]);
    let tree = tree(&directory.path().join("again"));
    let expected = [("/late", (11, 4, 112)), ("/noted", (10, 3, 110))];
    let expected = expected.map(|(path, of)| (path.to_owned(), of));
    assert_eq!(tree, BTreeMap::from(expected));
    assert_eq!(rebuilt.missing, [PathBuf::from("/half")]);
    assert!(rebuilt.apart.is_empty(), "{rebuilt:?}");
    let db = Connection::open(directory.path().join("again/server.db")).unwrap();
    let ask = |sql: &str| -> String { db.query_row(sql, [], |row| row.get(0)).unwrap() };
    let vnodes = "SELECT group_concat(ino || '@' || node || ':' || size) FROM (SELECT * FROM inode \
                 WHERE object != 0 ORDER BY ino)";
    assert_eq!(ask(vnodes), "10@-1:4097,11@-1:4097");
    let parts = "SELECT group_concat(object || '.' || seq || '=' || part || '@' || node) FROM \
                 (SELECT * FROM part ORDER BY object, seq)";
    let all = "110.0=201@0,110.1=202@1,112.0=203@0,112.1=204@1,115.1=206@1";
    assert_eq!(ask(parts), all);
    let replicas = "SELECT group_concat(object || '@' || node) FROM replica WHERE want = 0";
    assert_eq!(ask(replicas), "202@2");
    assert_eq!(ask("SELECT group_concat(object) FROM short"), "201");
    let removal = "SELECT group_concat(object || '@' || node) FROM replica WHERE want = 2";
    assert_eq!(ask(removal), "111@1", "the former version");
    assert!(
        db.query_row(
            "SELECT next FROM counter WHERE name = 'object'",
            [],
            |row| row.get::<_, i64>(0)
        )
        .unwrap()
            > 206
    );
}

#[test]
fn recovery_uses_names_from_notes_instead_of_object_paths() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = [0, 1].map(|id| Node::new(directory.path(), id));
    let value = |node: &Node, id, number, value: u64| {
        node.attribute(id, object::PAGE, number, &value.to_le_bytes());
    };
    one.note(&note(2, 1, Kind::Directory, 0, &[(1, b"home")]));
    one.object(100, 10, "/home/notes", 1);
    one.note(&NameNote {
        uid: 7,
        mode: 0o600,
        ..note(10, 5, Kind::File, 100, &[(2, b"notes")])
    });
    let part_of = |index| PartOf {
        version: ObjectId(110),
        index,
        width: 2,
        unit: 4096,
    };
    for (id, node, index) in [(201, &one, 0), (202, &two, 1)] {
        node.object(id, 11, "/home/striped", 1);
        let part = part_of(index).to_bytes();
        node.attribute(id, object::PAGE, object::PART, &part);
    }
    one.note(&note(11, 6, Kind::File, 110, &[(2, b"striped")]));
    // A file with a signed owner and a name that a task has set.
    one.object(104, 51, "/home/.bashrc", 2);
    value(&one, 104, object::UID, 9);
    value(&one, 104, object::TASK, 3);
    // Only the note names the inode of this object.
    one.object(105, 0, "", 3);
    one.note(&note(12, 7, Kind::File, 105, &[(2, b"later")]));
    let rebuilt = again(directory.path(), &[one.path, two.path]);
    let tree = tree(&directory.path().join("again"));
    assert_eq!(tree["/home/notes"], (10, 3, 100));
    assert_eq!(tree["/home/striped"], (11, 3, 110));
    assert_eq!(tree["/home/later"], (12, 3, 105));
    let below = |directory: &str| {
        let found = tree.keys().filter(|path| path.starts_with(directory));
        found.map(String::as_str).collect::<Vec<_>>()
    };
    let home = ["/home/later", "/home/notes", "/home/striped"];
    assert_eq!(below("/home/"), home);
    assert_eq!(below("/lost+found/").len(), 1, "{rebuilt:?}");
    let db = Connection::open(directory.path().join("again/server.db")).unwrap();
    let ask = |sql: &str| -> String { db.query_row(sql, [], |row| row.get(0)).unwrap() };
    let parts = "SELECT group_concat(part) FROM (SELECT part FROM part ORDER BY seq)";
    assert_eq!(ask(parts), "201,202");
    let owner = "SELECT CAST(uid AS TEXT) FROM inode WHERE object = 104";
    assert_eq!(ask(owner), "9");
}

#[test]
fn recovery_moves_files_without_path_to_lost_found_and_reports_lost_ones() {
    let directory = tempfile::tempdir().unwrap();
    let one = Node::new(directory.path(), 0);
    // Two files with one name, an unknown directory, directories that contain each other, and a version whose bytes are lost.
    one.object(100, 10, "/x", 1);
    one.object(101, 11, "/x", 1);
    one.note(&note(10, 5, Kind::File, 100, &[(1, b"x")]));
    one.note(&note(11, 6, Kind::File, 101, &[(1, b"x")]));
    one.object(102, 12, "/y", 1);
    one.note(&note(12, 7, Kind::File, 102, &[(99, b"y")]));
    one.note(&note(20, 1, Kind::Directory, 0, &[(21, b"a")]));
    one.note(&note(21, 2, Kind::Directory, 0, &[(20, b"b")]));
    one.object(103, 13, "/z", 1);
    one.note(&note(13, 8, Kind::File, 104, &[(1, b"z")]));
    let rebuilt = again(directory.path(), &[one.path]);
    let tree = tree(&directory.path().join("again"));
    assert_eq!(tree["/x"], (11, 3, 101));
    assert_eq!(tree["/lost+found/x.inode10"], (10, 3, 100));
    assert_eq!(tree["/lost+found/y.inode12"], (12, 3, 102));
    assert_eq!(tree["/lost+found/a.inode20/b"], (21, 3, 0));
    assert!(!tree.contains_key("/z"), "old bytes under its name");
    assert_eq!(tree["/lost+found/z.object103"].2, 103);
    assert_eq!(rebuilt.missing, [PathBuf::from("/z")]);
    assert_eq!(rebuilt.apart.len(), 4, "{rebuilt:?}");
}
