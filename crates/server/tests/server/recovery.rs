//! Recovery of the server's database from the databases of nodes.
#![allow(clippy::unwrap_used, reason = "tests")]

use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tidemill_model::attribute::object;
use tidemill_model::id::ObjectId;
use tidemill_model::layout::PartOf;
use tidemill_server::recovery::{RecoverOptions, Recovered, recover};

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

fn again(directory: &Path, nodes: &[PathBuf]) -> Recovered {
    recover(&directory.join("again"), nodes, &RecoverOptions::default()).unwrap()
}

#[test]
fn recovery_without_log_gives_files_their_first_path() {
    let directory = tempfile::tempdir().unwrap();
    let node = directory.path().join("node.db");
    drop(load(&node, NODE));
    let recovered = again(directory.path(), std::slice::from_ref(&node));
    assert!(recovered.restored.is_none() && recovered.is_incomplete());
    assert_eq!((recovered.tasks, recovered.unknown), (1, 0));
    assert_eq!(
        (recovered.added.len(), recovered.lost_and_found.len()),
        (3, 0)
    );
    let tree = tree(&directory.path().join("again"));
    let identity = "SELECT hex(value) FROM setting WHERE name = 'cluster_id'";
    let of_node = Connection::open(&node).unwrap();
    let of_node: String = of_node
        .query_row(
            "SELECT hex(value) FROM identity WHERE key = 'cluster'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(ask(directory.path(), identity), of_node);
    // The output of a task of root.
    assert_eq!(tree["/w/out"].2, 2050);
    assert_eq!(tree["/in.txt"].2, 1);
}

#[test]
fn recovery_refuses_live_database_copy_without_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let node = directory.path().join("node.db");
    let db = load(&node, NODE);
    let refused = |nodes: &[PathBuf], options: &RecoverOptions| {
        let made = recover(&directory.path().join("again"), nodes, options);
        made.unwrap_err().to_string()
    };
    let options = RecoverOptions::default();
    db.execute("INSERT INTO identity VALUES ('log', x'01')", [])
        .unwrap();
    assert!(refused(std::slice::from_ref(&node), &options).contains("node.db-wal"));
    // All rows may be in the log.
    let nothing = directory.path().join("nothing.db");
    std::fs::write(&nothing, "").unwrap();
    assert!(refused(&[nothing], &options).contains("node.db-wal"));
    assert!(refused(&[], &options).contains("name the directories"));
    db.execute("UPDATE identity SET value = x'00' WHERE key = 'log'", [])
        .unwrap();
    let until = RecoverOptions {
        until: Some(1),
        ..options.clone()
    };
    assert!(refused(std::slice::from_ref(&node), &until).contains("--until"));
    assert!(refused(&[node.clone(), node.clone()], &options).contains("given before"));
    // A dry run finds the same, and changes nothing.
    let dry = RecoverOptions {
        dry_run: true,
        ..options
    };
    let server = directory.path().join("again");
    let dry = recover(&server, std::slice::from_ref(&node), &dry).unwrap();
    let left = std::fs::read_dir(&server).unwrap();
    let left = left.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_str().unwrap().contains("server.db")
    });
    assert_eq!((dry.added.len(), left.count()), (3, 0));
    assert_eq!(again(directory.path(), &[node]).added, dry.added);
}

#[test]
fn recovery_reports_missing_and_unknown_objects() {
    let directory = tempfile::tempdir().unwrap();
    let node = directory.path().join("node-0");
    drop(load(&node.join("node.db"), NODE));
    let objects = node.join("objects/34");
    std::fs::create_dir_all(&objects).unwrap();
    std::fs::write(objects.join("0000000000aa1234"), "unknown").unwrap();
    let recovered = again(directory.path(), &[node]);
    assert_eq!((recovered.unknown, recovered.missing.len()), (1, 3));
    assert!(recovered.added.is_empty(), "{recovered:?}");
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

    fn number(&self, id: u64, number: u32, value: u64) {
        let sql = "INSERT OR REPLACE INTO attribute VALUES (?1, ?2, ?3, ?4)";
        let row = params![id.cast_signed(), object::PAGE, number, value.to_le_bytes()];
        self.db.execute(sql, row).unwrap();
    }
}

fn ask(directory: &Path, sql: &str) -> String {
    let db = Connection::open(directory.join("again/server.db")).unwrap();
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn recovery_joins_replicas_and_keeps_each_version() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two, three] = [0, 1, 2].map(|id| Node::new(directory.path(), id));
    one.object(100, 10, "/kept", 1);
    two.object(100, 10, "/kept", 7);
    // The file was overwritten. Without a log nobody knows whether the version before was to be removed.
    one.object(101, 11, "/new", 1);
    three.object(101, 11, "/new", 2);
    one.object(102, 11, "/new", 3);
    // The node of the first replica is lost.
    two.object(103, 12, "/d/saved", 4);
    three.object(103, 12, "/d/saved", 5);
    // Two files with one path, one without a path, and one that is a part of an unknown version.
    one.object(104, 13, "/new", 2);
    one.object(105, 14, "", 9);
    one.object(106, 0, "/new", 9);
    let nodes = [one.path, two.path, three.path];
    let recovered = again(directory.path(), &nodes);
    let tree = tree(&directory.path().join("again")).into_iter();
    let files = tree.filter(|(_, (.., object))| *object > 0);
    let files: BTreeMap<_, _> = files
        .map(|(path, (_, n, object))| (path, (n, object)))
        .collect();
    let expected = [
        ("/d/saved", (1, 103)),
        ("/kept", (1, 100)),
        ("/lost+found/new", (1, 104)),
        ("/lost+found/new.object101", (1, 101)),
        ("/lost+found/object105", (1, 105)),
        ("/new", (1, 102)),
    ];
    let expected = expected.map(|(path, of)| (path.to_owned(), of));
    assert_eq!(files, BTreeMap::from(expected));
    assert_eq!(recovered.unknown, 1, "{recovered:?}");
    let ask = |sql| ask(directory.path(), sql);
    let first = "SELECT group_concat(object || '@' || node || '*' || replicas) FROM \
                 (SELECT * FROM version WHERE removed = 0 ORDER BY object)";
    assert_eq!(
        ask(first),
        "100@0*2,101@0*2,102@0*1,103@1*2,104@0*1,105@0*1"
    );
    let others = "SELECT group_concat(object || '@' || node || ':' || state) FROM \
                  (SELECT * FROM replica WHERE want = 0 ORDER BY object)";
    assert_eq!(ask(others), "100@1:2,101@2:2,103@2:2");
    let removal = "SELECT CAST(count(*) AS TEXT) FROM replica WHERE want = 2";
    assert_eq!(ask(removal), "0");
    let next = "SELECT CAST(min(next) AS TEXT) FROM counter WHERE name IN ('object', 'inode')";
    assert!(ask(next).parse::<u64>().unwrap() > 1 << 32);
}

#[test]
fn recovery_joins_parts_of_striped_file() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two, three] = [0, 1, 2].map(|id| Node::new(directory.path(), id));
    let part = |node: &Node, id, (version, index): (u64, u64), unit, sealed_at| {
        node.object(id, version - 100, "/f", sealed_at);
        // All bytes of the first part, and one of the second.
        node.number(id, object::SIZE, if index == 0 { 4096 } else { 1 });
        let of = PartOf {
            version: ObjectId(version),
            index,
            width: 2,
            unit,
        };
        node.attribute(id, object::PAGE, object::PART, &of.to_bytes());
    };
    // A whole version, with a replica of its second part, and the version after it.
    part(&one, 201, (110, 0), 4096, 1);
    part(&two, 202, (110, 1), 4096, 1);
    part(&three, 202, (110, 1), 4096, 5);
    // The first part of this version is lost.
    part(&two, 206, (115, 1), 4096, 3);
    // The places of these bytes in their file are unknown.
    part(&one, 207, (116, 0), 0, 4);
    part(&two, 208, (116, 1), 0, 4);
    let recovered = again(directory.path(), &[one.path, two.path, three.path]);
    let tree = tree(&directory.path().join("again"));
    assert_eq!(tree, BTreeMap::from([("/f".to_owned(), (10, 1, 110))]));
    assert_eq!(recovered.unknown, 3, "{recovered:?}");
    let ask = |sql| ask(directory.path(), sql);
    let vnodes = "SELECT ino || '@' || node || ':' || size FROM inode WHERE object != 0";
    assert_eq!(ask(vnodes), "10@-1:4097");
    let parts = "SELECT group_concat(object || '.' || seq || '=' || part || '@' || node || ':' || size) FROM \
                 (SELECT * FROM part ORDER BY object, seq)";
    assert_eq!(ask(parts), "110.0=201@0:4096,110.1=202@1:1");
    let replicas = "SELECT group_concat(object || '@' || node) FROM replica WHERE want = 0";
    assert_eq!(ask(replicas), "202@2");
}

#[test]
fn results_of_tasks_get_their_path_only_where_their_owner_may_write() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::new(directory.path(), 0);
    let file = |id: u64, path: &str, uid: u64, task: u64| {
        node.object(id, id, path, id);
        node.number(id, object::UID, uid);
        node.number(id, object::GID, uid);
        if task > 0 {
            node.number(id, object::TASK, task);
        }
    };
    // The result was written first, and must not make the directories of another user.
    file(100, "/home/bob/.bashrc", 7, 3);
    file(101, "/home/bob/notes", 9, 0);
    file(102, "/home/ann/data", 7, 0);
    file(103, "/home/ann/out", 7, 4);
    file(104, "/home/ann/data", 7, 4);
    file(105, "/home/ann/none/out", 7, 4);
    file(106, "/lost+found/theirs", 7, 4);
    let recovered = again(directory.path(), &[node.path]);
    let tree = tree(&directory.path().join("again"));
    assert_eq!(tree["/home/ann/out"].2, 103);
    assert_eq!(tree["/home/ann/data"].2, 102);
    let lost = tree
        .iter()
        .filter(|(path, (.., object))| *object > 0 && path.starts_with("/lost+found/"));
    let lost: Vec<_> = lost.map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        lost,
        [
            "/lost+found/home/ann/data",
            "/lost+found/home/ann/none/out",
            "/lost+found/home/bob/.bashrc",
            "/lost+found/lost+found/theirs"
        ]
    );
    assert_eq!(recovered.lost_and_found.len(), 4, "{recovered:?}");
    let owners =
        "SELECT group_concat(uid) FROM (SELECT uid FROM inode WHERE object != 0 ORDER BY object)";
    assert_eq!(ask(directory.path(), owners), "7,9,7,7,7,7,7");
    // A directory belongs to the owner of all files below it, or to the owner of the root directory.
    let owner = |path: &str| {
        let ino = tree[path].0;
        let sql = format!("SELECT printf('%d %o', uid, mode) FROM inode WHERE ino = {ino}");
        ask(directory.path(), &sql)
    };
    let directories = ["/home", "/home/ann", "/home/bob", "/lost+found"];
    assert_eq!(directories.map(owner), ["0 755", "7 700", "9 700", "0 755"]);
}
