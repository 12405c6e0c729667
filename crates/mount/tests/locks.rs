//! Locks between mounts, and what who gets one sees.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't have its array fails"
)]

mod array;

use array::{Array, Mounted, can_mount};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program that says what it does, one line each, and goes on when it is told.
struct Program {
    child: Child,
    say: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Program {
    fn start(script: &str, paths: &[&Path]) -> Self {
        let prelude = "import fcntl, os, sys, sqlite3, signal, errno\n\
            def say(what): print(what, flush=True)\n\
            def wait(): sys.stdin.readline()\n\
            path = sys.argv[1:]\n";
        let mut child = Command::new("python3")
            .args(["-c", &format!("{prelude}{script}")])
            .args(paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let say = child.stdin.take().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, say, said }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) {
        writeln!(self.say).unwrap();
    }

    fn ends(mut self) {
        drop(self.say);
        let mut rest = String::new();
        while self.said.read_line(&mut rest).unwrap() > 0 {}
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {rest}");
    }
}

/// Mounts of one array, in place and by HTTP.
fn mounts(array: &mut Array) -> Vec<[Mounted; 2]> {
    let mut all = Vec::new();
    for in_place in [true, false] {
        all.push([array.mount(in_place), array.mount(in_place)]);
    }
    all
}

/// Takes a lock that guards a file, and rewrites that with one more.
const COUNT_BESIDE: &str = "
for _ in range(int(path[1])):
    with open(path[0] + '/lock', 'a') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            count = int(open(path[0] + '/count').read())
        except FileNotFoundError:
            count = 0
        with open(path[0] + '/new', 'w') as f: f.write(str(count + 1))
        os.rename(path[0] + '/new', path[0] + '/count')
";

/// Adds one to a file that stays open, under a lock of that file.
const COUNT_WITHIN: &str = "
f = os.open(path[0] + '/within', os.O_RDWR | os.O_CREAT)
for _ in range(int(path[1])):
    fcntl.lockf(f, fcntl.LOCK_EX)
    count = int(os.pread(f, 20, 0) or b'0')
    os.pwrite(f, b'%d' % (count + 1), 0)
    fcntl.lockf(f, fcntl.LOCK_UN)
";

/// Adds one to a row of a database, by a connection that stays open.
const COUNT_ROWS: &str = "
db = sqlite3.connect(path[0] + '/db', timeout=120, isolation_level=None)
for _ in range(int(path[1])):
    db.execute('BEGIN IMMEDIATE')
    db.execute('UPDATE t SET n = n + 1')
    db.execute('COMMIT')
assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)
";

fn count(script: &str, mounts: &[Mounted; 2], times: usize) {
    let times = times.to_string();
    let programs: Vec<Program> = mounts
        .iter()
        .chain(mounts)
        .map(|mount| Program::start(script, &[mount.path(), Path::new(&times)]))
        .collect();
    programs.into_iter().for_each(Program::ends);
}

#[test]
fn what_a_lock_guards_is_counted_from_two_mounts_and_none_is_lost() {
    if !can_mount() {
        return;
    }
    let mut array = Array::start();
    for (number, pair) in mounts(&mut array).iter().enumerate() {
        count(COUNT_BESIDE, pair, 15);
        let beside = std::fs::read_to_string(pair[1].join("count")).unwrap();
        assert_eq!(beside, (60 * (number + 1)).to_string());
    }
}

#[test]
fn a_file_that_stays_open_on_two_mounts_is_counted_up_and_none_is_lost() {
    if !can_mount() {
        return;
    }
    let mut array = Array::start();
    for (number, pair) in mounts(&mut array).iter().enumerate() {
        count(COUNT_WITHIN, pair, 15);
        let within = std::fs::read_to_string(pair[1].join("within")).unwrap();
        assert_eq!(within, (60 * (number + 1)).to_string());
    }
}

#[test]
fn a_database_is_written_from_two_mounts() {
    if !can_mount() {
        return;
    }
    let mut array = Array::start();
    for (number, pair) in mounts(&mut array).iter().enumerate() {
        let make = "
db = sqlite3.connect(path[0] + '/db', isolation_level=None)
db.execute('CREATE TABLE IF NOT EXISTS t(n INTEGER)')
if not db.execute('SELECT * FROM t').fetchall(): db.execute('INSERT INTO t VALUES (0)')
";
        Program::start(make, &[pair[0].path()]).ends();
        count(COUNT_ROWS, pair, 10);
        let read = "
db = sqlite3.connect(path[0] + '/db', timeout=60)
say(db.execute('SELECT n FROM t').fetchone()[0])
";
        let mut reader = Program::start(read, &[pair[1].path()]);
        assert_eq!(reader.says(), (40 * (number + 1)).to_string());
        reader.ends();
    }
}
