//! Tests locks of mounts that fail. Semantics: docs/consistency.md, chapter "Locks".

use crate::cluster::{Cluster, Options, OtherMount, wait};
use rustix::process::Signal;
use std::process::{Child, Command};
use std::time::Duration;

fn shell(script: &str) -> Child {
    let mut command = Command::new("bash");
    command.arg("-c").arg(script).spawn().unwrap()
}

/// A waiter gets the lock, and reads the bytes that the holder wrote before. Bytes that the holder's program writes afterwards, in place
/// and without its mount, are in no version.
#[test]
fn file_locks_of_dead_mount_are_freed() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    let (killed, stopped) = (
        OtherMount::start(&cluster, "m1"),
        OtherMount::start(&cluster, "m2"),
    );
    let mut holders = Vec::new();
    for other in [&killed, &stopped] {
        let at = other.path.display();
        let name = other.path.file_name().unwrap().to_str().unwrap().to_owned();
        let script = format!(
            "exec 9>{at}/lock-{name} 8>{at}/data-{name}; flock 9; echo before >&8; : >{at}/held-{name}; \
             while sleep 0.05; do echo after >&8; done"
        );
        holders.push(shell(&script));
        wait("the lock is held", || {
            cluster.at(&format!("held-{name}")).exists()
        });
    }
    killed.signal(Signal::KILL);
    stopped.signal(Signal::STOP);
    for name in ["m1", "m2"] {
        let seen = cluster.sh(&format!(
            "flock lock-{name} sh -c 'cat data-{name} >seen; sleep 0.5; cmp data-{name} seen && head -n 1 seen'"
        ));
        assert_eq!(seen.trim(), "before", "{name}");
    }
    stopped.signal(Signal::CONT);
    // The mount cannot keep a lock that others may have taken since then, and reports this; a new request on it waits for its turn.
    let at = stopped.path.display();
    cluster.sh(&format!("flock {at}/lock-m2 true"));
    for holder in &mut holders {
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
}

/// A process with an open file waits for an offline node as any operation does. The wait has the same length for a
/// write whose previous version is still being sealed on a node that hangs, and is not bounded like the wait of an
/// open.
#[test]
fn sqlite_database_on_two_mounts_survives_hanging_nodes() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    let other = OtherMount::start(&cluster, "m1");
    let count = r"
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1] + '/db', timeout=60, isolation_level=None)
db.execute('CREATE TABLE IF NOT EXISTS t(n INTEGER)')
end, counted = time.time() + float(sys.argv[2]), 0
while time.time() < end:
    db.execute('INSERT INTO t VALUES (0)')
    counted += 1
print(counted)
";
    let at = [
        cluster.at(""),
        cluster.at(""),
        other.path.clone(),
        other.path.clone(),
    ];
    let make = Command::new("python3")
        .args(["-c", count])
        .arg(&at[0])
        .arg("0")
        .status();
    assert!(make.unwrap().success());
    let programs = at.map(|at| {
        let mut program = Command::new("python3");
        program.args(["-c", count]).arg(at).arg("10");
        program
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    });
    std::thread::sleep(Duration::from_secs(1));
    let nodes = 0..Options::default().nodes;
    nodes
        .clone()
        .for_each(|node| cluster.signal_node(node, Signal::STOP));
    std::thread::sleep(Duration::from_secs(8));
    nodes.for_each(|node| cluster.signal_node(node, Signal::CONT));
    let counted = programs.map(|program| {
        let ended = program.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout)
            .unwrap()
            .trim()
            .parse::<usize>()
            .unwrap()
    });
    let rows = cluster.sh("sqlite3 db 'SELECT count(*) FROM t'");
    assert_eq!(rows.trim(), counted.iter().sum::<usize>().to_string());
}

/// The index of a write-ahead log is memory that programs share, and mounts share no memory. The second mount is
/// refused before it reads or writes anything, and the first mount continues.
#[test]
fn sqlite_write_ahead_log_open_on_one_mount_is_refused_to_others() {
    for remote in [false, true] {
        let Some(cluster) = Cluster::with(Options {
            remote,
            ..Options::default()
        }) else {
            return;
        };
        let other = OtherMount::start(&cluster, "m1");
        let holds = r"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1] + '/db', timeout=5, isolation_level=None)
assert db.execute('PRAGMA journal_mode=wal').fetchone()[0] == 'wal'
db.execute('CREATE TABLE IF NOT EXISTS t(n INTEGER)')
for n in range(50):
    db.execute('INSERT INTO t VALUES (1)')
print('open', flush=True)
sys.stdin.readline()
for n in range(50):
    db.execute('INSERT INTO t VALUES (1)')
assert db.execute('SELECT sum(n) FROM t').fetchone()[0] == 100
assert db.execute('PRAGMA integrity_check').fetchone()[0] == 'ok'
";
        let mut holder = Command::new("python3")
            .args(["-c", holds])
            .arg(cluster.at(""))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(holder.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert_eq!(line, "open\n");
        let script = r"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1] + '/db', timeout=1, isolation_level=None)
print(db.execute(sys.argv[2]).fetchall())
";
        let ask = |at: &std::path::Path, sql: &str| {
            let done = Command::new("python3")
                .args(["-c", script])
                .arg(at)
                .arg(sql)
                .output();
            let done = done.unwrap();
            let text = [done.stdout, done.stderr].concat();
            (done.status.success(), String::from_utf8(text).unwrap())
        };
        for sql in ["SELECT sum(n) FROM t", "INSERT INTO t VALUES (1000)"] {
            let (well, text) = ask(&other.path, sql);
            // SQLite has two messages for a lock that it does not get.
            let refused = ["database is locked", "locking protocol"];
            let refused = refused.iter().any(|word| text.contains(word));
            assert!(!well && refused, "{sql}: {text}");
        }
        // Another program of the same mount shares the log.
        assert_eq!(
            ask(&cluster.at(""), "SELECT sum(n) FROM t"),
            (true, "[(50,)]\n".into())
        );
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        let after = ask(&other.path, "SELECT sum(n) FROM t");
        assert_eq!(after, (true, "[(100,)]\n".into()));
    }
}
