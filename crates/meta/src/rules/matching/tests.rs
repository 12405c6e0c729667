use super::*;
use crate::SqliteNames;
use crate::feed::{KEPT_MAX, make};
use crate::placement::removals;
use crate::rules::definitions;
use std::path::Path;
use tidemill_lang::rule::Rule;
use tidemill_model::id::ObjectId;
use tidemill_wire::v1::{self, Kind};

const RULE: &str = r#"
name = "count"; workdir = "/"; pattern = "in/{n}.dat";
task = { kernel = "max"; output = [ "out/{n}.txt" ]; };
"#;

fn open(directory: &Path) -> SqliteNames {
    SqliteNames::open(&directory.join("server.db"), (0, 0)).unwrap()
}

/// Calls `work` in a transaction of user `uid`.
fn by<T: Send + 'static>(
    names: &SqliteNames,
    uid: u32,
    work: impl FnOnce(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let shared = names.shared().clone();
    let caller = Caller {
        uid,
        gid: uid,
        administrator: true,
        ..Caller::default()
    };
    let work = move |db: &Connection| work(&mut Tx::new(db, &shared, &caller, 0, 1));
    Ok(names.database().write_here(false, work)?.value)
}

fn with<T: Send + 'static>(
    names: &SqliteNames,
    work: impl FnOnce(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
) -> T {
    by(names, 0, work).unwrap()
}

/// Gives a file its next version, as a seal does. Returns the object.
fn seal(tx: &mut Tx<'_>, path: &str) -> Result<u64, Fault> {
    let mut vnode = tx.resolve(path.as_bytes(), true)?;
    let before = vnode.object;
    vnode.version += 1;
    vnode.object = ids::reserve(tx.db, "object", 1)?;
    vnode.node = 3;
    tx.record_version(&vnode, vnode.uid, 0)?;
    tx.drop_object(before, 3)?;
    vnode.update(tx.db)?;
    Ok(vnode.object)
}

/// Creates the directory of the rule's inputs, for all users.
fn prepare(names: &SqliteNames) {
    with(names, |tx| make(tx, "/in", Kind::Directory, (0, 0o777)));
}

fn put(names: &SqliteNames, path: &'static str) -> u64 {
    with(names, move |tx| {
        make(tx, path, Kind::File, (0, 0o777))?;
        seal(tx, path)
    })
}

/// Stores the rule with another pattern of file names below `/in`, and returns the rule's number.
fn add_rule(names: &SqliteNames, pattern: &str, before: Option<u64>, for_all: bool) -> u64 {
    let text = RULE.replace("in/{n}", pattern);
    with(names, move |tx| {
        let kept = StoredRule {
            id: 0,
            owner: Caller::root(),
            revision: 1,
            for_all,
            paused: false,
            source: "r.conf".into(),
            changed: 1,
            directory: 0,
            rule: Rule::read("r.conf", &text).unwrap(),
            text,
        };
        tx.settle_rules()?;
        let id = definitions::put(tx.db, &kept, before)?;
        tx.reload_rules()?;
        Ok(id)
    })
}

/// Lets the rules take the feed, as their driver does.
fn take_feed(names: &SqliteNames) -> FeedStep {
    let shared = names.shared().clone();
    let step = with(names, move |tx| take(tx.db, &shared, 1));
    step.committed(names.shared());
    step
}

/// Returns the objects with rule runs, in order.
fn queued(names: &SqliteNames) -> Vec<u64> {
    let sql = "SELECT object FROM rule_run ORDER BY rule_run";
    let read =
        |db: &Connection| crate::query::rows(db, sql, [], |row| crate::query::unsigned(row, 0));
    names.database().read(read).unwrap()
}

fn stored_cursor(names: &SqliteNames) -> u64 {
    names.database().read(|db| ids::next(db, CURSOR)).unwrap()
}

#[test]
fn sealed_version_triggers_rule_once_after_restarts_and_failed_step() {
    let directory = tempfile::tempdir().unwrap();
    let names = open(directory.path());
    prepare(&names);
    add_rule(&names, "in/{n}", None, false);
    let first = put(&names, "/in/1.dat");
    // The server is killed before the rules read the feed, twice.
    drop(names);
    drop(open(directory.path()));
    let names = open(directory.path());
    assert!(queued(&names).is_empty());
    let shared = names.shared().clone();
    let failed = by(&names, 0, move |tx| {
        take(tx.db, &shared, 1)?;
        Err::<(), _>(Fault::Malformed("the commit fails"))
    });
    failed.unwrap_err();
    assert!(queued(&names).is_empty());
    assert!(take_feed(&names).due);
    assert_eq!(queued(&names), [first]);
    assert_eq!(take_feed(&names), FeedStep::default());
    drop(names);
    let names = open(directory.path());
    assert_eq!(take_feed(&names), FeedStep::default());
    assert_eq!(queued(&names), [first]);
}

#[test]
fn rows_that_concern_no_rule_move_no_stored_cursor() {
    let directory = tempfile::tempdir().unwrap();
    let names = open(directory.path());
    prepare(&names);
    add_rule(&names, "in/{n}", None, false);
    let before = stored_cursor(&names);
    for path in ["/in/1.txt", "/2.dat"] {
        put(&names, path);
    }
    assert!(!take_feed(&names).due);
    assert_eq!(stored_cursor(&names), before);
    assert_eq!(take_feed(&names), FeedStep::default());
    let third = put(&names, "/in/3.dat");
    take_feed(&names);
    assert!(stored_cursor(&names) > before);
    assert_eq!(queued(&names), [third]);
}

#[test]
fn rule_sees_no_version_from_before_its_creation_or_with_its_later_text() {
    let directory = tempfile::tempdir().unwrap();
    let names = open(directory.path());
    prepare(&names);
    put(&names, "/in/0.dat");
    let rule = add_rule(&names, "in/{n}", None, false);
    let first = put(&names, "/in/1.dat");
    // The rule is replaced before it has read the feed.
    add_rule(&names, "in/x{n}", Some(rule), false);
    assert_eq!(queued(&names), [first]);
    put(&names, "/in/2.dat");
    let second = put(&names, "/in/x2.dat");
    take_feed(&names);
    assert_eq!(queued(&names), [first, second]);
}

#[test]
fn replaced_version_is_kept_until_rules_have_seen_it() {
    let directory = tempfile::tempdir().unwrap();
    let names = open(directory.path());
    prepare(&names);
    let shared = names.shared().clone();
    let removable = |names: &SqliteNames| {
        let page = names.database().read(|db| {
            let compared = position(db, &shared)?;
            removals::page(db, (3, ObjectId(0)), (i64::MAX, 0), compared)
        });
        page.unwrap()
            .into_iter()
            .map(|(object, _)| object.0)
            .collect::<Vec<_>>()
    };
    let old = put(&names, "/in/1.dat");
    with(&names, |tx| seal(tx, "/in/1.dat"));
    assert_eq!(removable(&names), [old], "there is no rule");
    add_rule(&names, "in/{n}", None, false);
    let first = put(&names, "/in/2.dat");
    let second = with(&names, |tx| seal(tx, "/in/2.dat"));
    assert_eq!(removable(&names), [old]);
    take_feed(&names);
    assert_eq!(queued(&names), [first, second]);
    assert_eq!(removable(&names), [old], "the rule run is open");
    with(&names, |tx| {
        Ok(tx.db.sql.execute("UPDATE rule_run SET state = 3", [])?)
    });
    assert_eq!(removable(&names), [old, first]);
}

#[test]
fn rule_for_all_users_ignores_files_that_others_have_moved() {
    let directory = tempfile::tempdir().unwrap();
    let names = open(directory.path());
    prepare(&names);
    add_rule(&names, "in/{n}", None, true);
    let rename = |uid: u32, from: &'static str, to: &'static str| {
        by(&names, uid, move |tx| {
            let op = v1::Rename {
                parent: 1,
                name: from.into(),
                new_parent: tx.resolve(b"/in", true)?.ino,
                new_name: to.into(),
                ..v1::Rename::default()
            };
            tx.rename(&op).map(drop)
        })
        .unwrap();
    };
    with(&names, |tx| {
        tx.db
            .sql
            .execute("UPDATE inode SET mode = 511 WHERE ino = 1", [])?;
        for path in ["/a", "/b"] {
            make(tx, path, Kind::File, (7, 0o777))?;
            seal(tx, path)?;
        }
        Ok(())
    });
    rename(8, "a", "1.dat");
    rename(7, "b", "2.dat");
    // The present owner does not matter.
    with(&names, |tx| {
        Ok(tx
            .db
            .sql
            .execute("UPDATE inode SET uid = 8 WHERE uid = 7", [])?)
    });
    take_feed(&names);
    let moved = with(&names, |tx| tx.resolve(b"/in/2.dat", true));
    assert_eq!(queued(&names), [moved.object]);
}

#[test]
fn removed_file_triggers_no_rule() {
    let directory = tempfile::tempdir().unwrap();
    let names = open(directory.path());
    prepare(&names);
    add_rule(&names, "in/{n}", None, false);
    put(&names, "/in/1.dat");
    with(&names, |tx| {
        let parent = tx.resolve(b"/in", true)?.ino;
        let op = v1::Unlink {
            parent,
            name: b"1.dat".to_vec(),
            ..v1::Unlink::default()
        };
        tx.unlink(&op).map(drop)
    });
    assert!(take_feed(&names).due);
    assert!(queued(&names).is_empty());
}

#[test]
fn full_feed_is_compared_with_rules_before_its_first_rows_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let names = open(directory.path());
    prepare(&names);
    add_rule(&names, "in/{n}", None, false);
    let first = put(&names, "/in/1.dat");
    with(&names, |tx| {
        let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
                   INSERT INTO feed SELECT i + (SELECT max(seq) FROM feed), 0, 1, 7, 0, CAST('/x' AS BLOB) FROM n";
        Ok(tx.db.sql.execute(sql, [KEPT_MAX + 1024])?)
    });
    // The count of rows is read again after a restart.
    drop(names);
    let names = open(directory.path());
    let rows = |names: &SqliteNames| {
        let count = "SELECT count(*) FROM feed";
        let read = |db: &Connection| Ok(db.sql.query_row(count, [], |row| row.get::<_, i64>(0))?);
        names.database().read(read).unwrap()
    };
    let second = put(&names, "/in/2.dat");
    assert!(rows(&names) < KEPT_MAX + 1024, "{}", rows(&names));
    assert_eq!(queued(&names), [first]);
    while take_feed(&names).more {}
    assert_eq!(queued(&names), [first, second]);
}
