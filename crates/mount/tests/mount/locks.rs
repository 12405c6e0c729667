//! Tests of locks between mounts, and of the bytes that the next holder of a lock sees.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't have its cluster fails"
)]

use crate::cluster::{MountCluster, Mounted, can_mount};
use std::fs::{OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A program that prints its steps, one line each, and waits for a line before it continues.
struct Program {
    child: Child,
    say: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(script: &str, paths: &[&Path]) -> Self {
        let prelude = "import fcntl, os, sys, sqlite3, signal, errno\n\
            def failed(kind, error, trace):\n\
            \x20   print(error, getattr(error, 'sqlite_errorname', ''), flush=True)\n\
            \x20   sys.__excepthook__(kind, error, trace)\n\
            sys.excepthook = failed\n\
            def say(what): print(what, flush=True)\n\
            def wait(): sys.stdin.readline()\n\
            path = sys.argv[1:]\n\
            signal.alarm(120)\n";
        let mut child = Command::new("python3")
            .args(["-c", &format!("{prelude}{script}")])
            .args(paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let say = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, say, output }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) {
        writeln!(self.say).unwrap();
    }

    fn ends(mut self) {
        drop(self.say);
        let mut rest = String::new();
        while self.output.read_line(&mut rest).unwrap() > 0 {}
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {rest}");
    }
}

/// Returns pairs of mounts of one cluster, with direct access and over HTTP.
fn mounts(cluster: &mut MountCluster) -> Vec<[Mounted; 2]> {
    let mut all = Vec::new();
    for in_place in [true, false] {
        all.push([cluster.mount(in_place), cluster.mount(in_place)]);
    }
    all
}

/// Script that takes the lock of a file, and adds one to the number in another file.
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

/// Script that adds one to the number in a file that stays open, under a lock of that file.
const COUNT_WITHIN: &str = "
f = os.open(path[0] + '/within', os.O_RDWR | os.O_CREAT)
last = 0
for _ in range(int(path[1])):
    fcntl.lockf(f, fcntl.LOCK_EX)
    count = int(os.pread(f, 20, 0) or b'0')
    assert count >= last, ('counted back', last, count, os.fstat(f))
    last = count + 1
    os.pwrite(f, b'%d' % (count + 1), 0)
    fcntl.lockf(f, fcntl.LOCK_UN)
";

/// Script like [`COUNT_WITHIN`] that opens one file after the other while other programs count in them.
const COUNT_MANY: &str = "
for n in range(int(path[1])):
    f = os.open(path[0] + '/many%d' % n, os.O_RDWR | os.O_CREAT)
    last = 0
    for _ in range(5):
        fcntl.lockf(f, fcntl.LOCK_EX)
        count = int(os.pread(f, 20, 0) or b'0')
        assert count >= last, ('counted back', n, last, count, os.fstat(f))
        last = count + 1
        os.pwrite(f, b'%d' % (count + 1), 0)
        fcntl.lockf(f, fcntl.LOCK_UN)
    os.close(f)
";

/// Script that adds one to a row of a database, by a connection that stays open.
const COUNT_ROWS: &str = "
db = sqlite3.connect(path[0] + '/db', timeout=120, isolation_level=None)
for _ in range(int(path[1])):
    db.execute('BEGIN IMMEDIATE')
    db.execute('UPDATE t SET n = n + 1')
    db.execute('COMMIT')
assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)
";

/// Number of files of [`COUNT_MANY`].
const MANY: usize = 15;

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
fn counter_with_lock_file_is_exact_on_two_mounts() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for (number, pair) in mounts(&mut cluster).iter().enumerate() {
        count(COUNT_BESIDE, pair, 15);
        let unlocked = std::fs::read_to_string(pair[1].join("count")).unwrap();
        assert_eq!(unlocked, (60 * (number + 1)).to_string());
    }
}

#[test]
fn counter_in_open_locked_file_is_exact_on_two_mounts() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for (number, pair) in mounts(&mut cluster).iter().enumerate() {
        count(COUNT_WITHIN, pair, 15);
        let within = std::fs::read_to_string(pair[1].join("within")).unwrap();
        assert_eq!(within, (60 * (number + 1)).to_string());
    }
}

#[test]
fn counters_in_reopened_locked_files_are_exact() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for (number, pair) in mounts(&mut cluster).iter().enumerate() {
        count(COUNT_MANY, pair, MANY);
        for n in 0..MANY {
            let many = std::fs::read_to_string(pair[1].join(format!("many{n}"))).unwrap();
            assert_eq!(many, (20 * (number + 1)).to_string(), "file {n}");
        }
    }
}

#[test]
fn sqlite_database_is_written_from_two_mounts() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for (number, pair) in mounts(&mut cluster).iter().enumerate() {
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

/// Script that appends a line to a file that stays open, under a lock, and reads nothing.
const APPEND: &str = "
f = os.open(path[0] + '/log', os.O_RDWR | os.O_CREAT | os.O_APPEND)
for _ in range(int(path[1])):
    fcntl.flock(f, fcntl.LOCK_EX)
    os.write(f, b'line' + path[0][-1].encode() + b'\\n')
    fcntl.flock(f, fcntl.LOCK_UN)
";

/// Script like [`APPEND`] that writes like a log: it opens the file only for appending, and again for every third line.
const LOG: &str = "
for n in range(int(path[1])):
    if n % 3 == 0: f = open(path[0] + '/log', 'a')
    fcntl.flock(f, fcntl.LOCK_EX)
    f.write('line' + path[0][-1] + '\\n')
    f.flush()
    fcntl.flock(f, fcntl.LOCK_UN)
";

#[test]
fn locked_appends_from_two_mounts_do_not_overlap() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for pair in mounts(&mut cluster) {
        for script in [APPEND, LOG] {
            count(script, &pair, 15);
            let log = std::fs::read_to_string(pair[1].join("log")).unwrap();
            assert_eq!(log.lines().count(), 60);
            assert!(log.lines().all(|line| line.len() == 5), "{log}");
            std::fs::remove_file(pair[0].join("log")).unwrap();
        }
    }
}

/// A process of an ordinary user can take the same locks on root's mounts as a process of root.
#[test]
fn ordinary_users_get_locks_on_mount_of_root() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for (number, pair) in mounts(&mut cluster).iter().enumerate() {
        let log = pair[0].join("log");
        drop(OpenOptions::new().append(true).create(true).open(&log));
        std::fs::set_permissions(&log, Permissions::from_mode(0o666)).unwrap();
        count(
            &format!("os.setgid(1234); os.setuid(1234)\n{APPEND}"),
            pair,
            10,
        );
        let log = std::fs::read_to_string(pair[1].join("log")).unwrap();
        assert_eq!(log.lines().count(), 40 * (number + 1));
    }
}

/// An unlock waits until the written bytes are visible. No other process gets the lock before the bytes are visible.
#[test]
fn unlock_waits_until_written_bytes_are_visible() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (here, there) = (cluster.mount(true), cluster.mount(true));
    std::fs::write(here.join("f"), "old").unwrap();
    let writes = "
f = os.open(path[0], os.O_RDWR)
fcntl.flock(f, fcntl.LOCK_EX)
os.pwrite(f, b'new', 0)
say('wrote')
wait()
say('ends it')
fcntl.flock(f, fcntl.LOCK_UN)
say('free')
";
    let reads = "
f = os.open(path[0], os.O_RDWR)
say('open')
wait()
say('asks')
fcntl.flock(f, fcntl.LOCK_EX)
say(os.pread(f, 9, 0).decode())
";
    let mut writer = Program::start(writes, &[&here.join("f")]);
    assert_eq!(writer.says(), "wrote");
    let mut reader = Program::start(reads, &[&there.join("f")]);
    assert_eq!(reader.says(), "open");
    cluster.stop_node(0);
    cluster.stop_node(1);
    reader.go_on();
    assert_eq!(reader.says(), "asks");
    writer.go_on();
    assert_eq!(writer.says(), "ends it");
    cluster.start_node(0);
    cluster.start_node(1);
    assert_eq!(writer.says(), "free");
    assert_eq!(reader.says(), "new");
    writer.ends();
    reader.ends();
}

#[test]
fn lock_downgrade_publishes_written_bytes() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (here, there) = (cluster.mount(true), cluster.mount(false));
    std::fs::write(here.join("f"), "old").unwrap();
    let writes = "
f = os.open(path[0], os.O_RDWR)
fcntl.flock(f, fcntl.LOCK_EX)
say('has it')
wait()
os.pwrite(f, b'new', 0)
fcntl.flock(f, fcntl.LOCK_SH)
say('shares it')
wait()
";
    let reads = "
f = os.open(path[0], os.O_RDWR)
say('asks')
fcntl.flock(f, fcntl.LOCK_SH)
say(os.pread(f, 9, 0).decode())
";
    for (one, other) in [(&here, &there), (&there, &here)] {
        std::fs::write(here.join("f"), "old").unwrap();
        let mut writer = Program::start(writes, &[&one.join("f")]);
        assert_eq!(writer.says(), "has it");
        let mut reader = Program::start(reads, &[&other.join("f")]);
        assert_eq!(reader.says(), "asks");
        writer.go_on();
        assert_eq!(writer.says(), "shares it");
        assert_eq!(reader.says(), "new");
        reader.ends();
        writer.go_on();
        writer.ends();
    }
}

#[test]
fn file_locks_end_with_last_close() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (here, there) = (cluster.mount(true), cluster.mount(true));
    std::fs::write(here.join("f"), "f").unwrap();
    let closes = "
import struct
lock = struct.pack('hhqqi4x', fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
first = os.open(path[0], os.O_RDWR)
fcntl.fcntl(first, fcntl.F_OFD_SETLK, lock)
second = os.open(path[0], os.O_RDWR)
try:
    fcntl.fcntl(second, fcntl.F_OFD_SETLK, lock)
    say('both')
except BlockingIOError: say('one')
os.close(first)
fcntl.fcntl(second, fcntl.F_OFD_SETLKW, lock)
say('closed')
";
    for mount in [&here, &there] {
        let mut closes = Program::start(closes, &[&mount.join("f")]);
        assert_eq!(closes.says(), "one");
        assert_eq!(closes.says(), "closed");
        closes.ends();
    }
    for mount in [&here, &there] {
        assert!(is_free(&mount.join("f"), (0, 0), true));
    }
}

#[test]
fn open_with_truncate_truncates_file_of_other_writer() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for [here, there] in mounts(&mut cluster) {
        let holds = "
f = os.open(path[0], os.O_RDWR | os.O_CREAT)
fcntl.flock(f, fcntl.LOCK_EX)
os.pwrite(f, b'written by the first', 0)
say('wrote')
wait()
fcntl.flock(f, fcntl.LOCK_UN)
say('free')
wait()
";
        let cuts = "
f = os.open(path[0], os.O_RDWR | os.O_TRUNC)
say('open')
wait()
fcntl.flock(f, fcntl.LOCK_EX)
if len(path) > 1: os.pwrite(f, b'cut', 0)
fcntl.flock(f, fcntl.LOCK_UN)
os.close(f)
";
        let name = here.join("cut");
        let wrote = Path::new("and writes");
        for (paths, left) in [
            (vec![there.join("cut"), wrote.to_owned()], "cut"),
            (vec![there.join("cut")], ""),
        ] {
            let mut first = Program::start(holds, &[&name]);
            assert_eq!(first.says(), "wrote");
            let paths: Vec<&Path> = paths.iter().map(|path| &**path).collect();
            let mut second = Program::start(cuts, &paths);
            assert_eq!(second.says(), "open");
            first.go_on();
            assert_eq!(first.says(), "free");
            second.go_on();
            second.ends();
            first.go_on();
            first.ends();
            assert_eq!(std::fs::read_to_string(&name).unwrap(), left);
        }
    }
}

/// Tries to lock a range in another process. Returns whether the lock was granted.
fn is_free(path: &Path, range: (u64, u64), exclusive: bool) -> bool {
    let (start, length) = range;
    let kind = if exclusive { "LOCK_EX" } else { "LOCK_SH" };
    let script = format!(
        "f = os.open(path[0], os.O_RDWR)\n\
         try:\n  fcntl.lockf(f, fcntl.{kind} | fcntl.LOCK_NB, {length}, {start})\n  say('free')\n\
         except BlockingIOError: say('taken')\n"
    );
    let mut program = Program::start(&script, &[path]);
    let output = program.says();
    program.ends();
    output == "free"
}

#[test]
fn lock_ranges_closes_and_forks_act_alike_on_all_mounts() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for [here, there] in &mounts(&mut cluster) {
        std::fs::write(here.join("f"), "0123456789").unwrap();
        let script = "
f = os.open(path[0], os.O_RDWR)
fcntl.lockf(f, fcntl.LOCK_EX, 9, 0)
fcntl.lockf(f, fcntl.LOCK_UN, 3, 3)
fcntl.lockf(f, fcntl.LOCK_SH, 3, 6)
say('cut')
wait()
if os.fork() == 0:
    # Not its own: neither has it the locks, nor does its close give them free.
    os.close(f)
    os._exit(0)
os.wait()
say('forked')
wait()
os.close(os.dup(f))
say('closed')
wait()
";
        let mut program = Program::start(script, &[&here.join("f")]);
        for state in ["cut", "forked"] {
            assert_eq!(program.says(), state);
            for path in [here.join("f"), there.join("f")] {
                let free = |range, exclusive| is_free(&path, range, exclusive);
                assert!(!free((0, 1), false) && !free((2, 1), false));
                assert!(free((3, 3), true) && free((9, 0), true));
                assert!(free((6, 3), false) && !free((8, 1), true));
            }
            program.go_on();
        }
        assert_eq!(program.says(), "closed");
        assert!(is_free(&here.join("f"), (0, 0), true));
        assert!(is_free(&there.join("f"), (0, 0), true));
        program.go_on();
        program.ends();
    }
}

#[test]
fn lock_holder_is_reported_and_flock_and_fcntl_are_separate() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    for [here, there] in &mounts(&mut cluster) {
        std::fs::write(here.join("f"), "").unwrap();
        let hold = "
f = open(path[0], 'r+')
fcntl.lockf(f, fcntl.LOCK_EX, 5, 10)
say(os.getpid())
wait()
fcntl.flock(f, fcntl.LOCK_EX)
say('both')
wait()
";
        let ask = "
import struct
f = open(path[0], 'r+')
flock = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
kind, _, start, length, pid = struct.unpack('hhqqi4x', fcntl.fcntl(f, fcntl.F_GETLK, flock))
say(f'{kind == fcntl.F_WRLCK} {start} {length} {pid}')
";
        let mut holder = Program::start(hold, &[&here.join("f")]);
        let pid = holder.says();
        for path in [here.join("f"), there.join("f")] {
            let mut asker = Program::start(ask, &[&path]);
            assert_eq!(asker.says(), format!("True 10 5 {pid}"));
            asker.ends();
        }
        holder.go_on();
        assert_eq!(holder.says(), "both");
        holder.go_on();
        holder.ends();
    }
}

#[test]
fn lock_wait_is_interruptible_and_deadlock_is_refused() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let [[here, there], _] = &mounts(&mut cluster)[..] else {
        unreachable!()
    };
    for name in ["f", "g"] {
        std::fs::write(here.join(name), "").unwrap();
    }
    let hold = "
f = open(path[0], 'r+')
fcntl.lockf(f, fcntl.LOCK_EX)
say('held')
wait()
";
    let mut holder = Program::start(hold, &[&here.join("f")]);
    assert_eq!(holder.says(), "held");
    // On both sides: at the mount of the lock, and at a mount that asks the server.
    for path in [here.join("f"), there.join("f")] {
        let alarmed = "
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
f = open(path[0], 'r+')
signal.setitimer(signal.ITIMER_REAL, 0.3)
try: fcntl.lockf(f, fcntl.LOCK_EX)
except Late: say('late')
";
        let mut alarmed = Program::start(alarmed, &[&path]);
        assert_eq!(alarmed.says(), "late");
        alarmed.ends();
        for signal in [rustix::process::Signal::KILL, rustix::process::Signal::INT] {
            let waits = "
signal.signal(signal.SIGINT, signal.SIG_DFL)
f = open(path[0], 'r+')
say('waits')
fcntl.lockf(f, fcntl.LOCK_EX)
";
            let mut waiter = Program::start(waits, &[&path]);
            assert_eq!(waiter.says(), "waits");
            let pid = rustix::process::Pid::from_child(&waiter.child);
            rustix::process::kill_process(pid, signal).unwrap();
            // It would wait for the holder, which waits for this program.
            assert!(!waiter.child.wait().unwrap().success());
        }
    }
    holder.go_on();
    holder.ends();
    assert!(is_free(&there.join("f"), (0, 0), true));
    let circle = "
f, g = (open(p, 'r+') for p in path)
fcntl.lockf(f, fcntl.LOCK_EX)
ready, begin = os.pipe(), os.pipe()
if os.fork() == 0:
    fcntl.lockf(g, fcntl.LOCK_EX)
    os.write(ready[1], b'x')
    try: fcntl.lockf(f, fcntl.LOCK_EX)
    except OSError as e: os._exit(1 if e.errno == errno.EDEADLK else 2)
    os._exit(0)
os.read(ready[0], 1)
refused = 0
try: fcntl.lockf(g, fcntl.LOCK_EX)
except OSError as e:
    refused = 1 if e.errno == errno.EDEADLK else 2
    fcntl.lockf(f, fcntl.LOCK_UN)
say(refused + os.waitstatus_to_exitcode(os.wait()[1]))
";
    let mut circle = Program::start(circle, &[&here.join("f"), &here.join("g")]);
    // Whichever of the two asks last.
    assert_eq!(circle.says(), "1");
    circle.ends();
}

#[test]
fn locks_survive_server_restart() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (here, there) = (cluster.mount(true), cluster.mount(false));
    for how in ["'a'", "'r+'", "'r'"] {
        let hold = format!(
            "
f = open(path[0], {how})
fcntl.flock(f, fcntl.LOCK_EX)
say('held')
wait()
open(path[1], 'w').write('done')
fcntl.flock(f, fcntl.LOCK_UN)
wait()
"
        );
        let waits = format!(
            "
f = open(path[0], {how})
say('waits')
fcntl.flock(f, fcntl.LOCK_EX)
say(open(path[1]).read())
"
        );
        std::fs::write(here.join("lock"), "").unwrap();
        std::fs::write(here.join("data"), "").unwrap();
        let mut holder = Program::start(&hold, &[&here.join("lock"), &here.join("data")]);
        assert_eq!(holder.says(), "held");
        let mut waiter = Program::start(&waits, &[&there.join("lock"), &there.join("data")]);
        assert_eq!(waiter.says(), "waits");
        cluster.stop_server();
        cluster.start_server();
        cluster.wait_nodes(2);
        let mut late = Program::start(&waits, &[&there.join("lock"), &there.join("data")]);
        assert_eq!(late.says(), "waits");
        holder.go_on();
        assert_eq!((waiter.says(), late.says()), ("done".into(), "done".into()));
        waiter.ends();
        late.ends();
        holder.go_on();
        holder.ends();
    }
}

#[test]
fn mount_without_locks_delays_no_lock_after_server_restart() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (here, there) = (cluster.mount(true), cluster.mount(true));
    for name in ["f", "g"] {
        std::fs::write(here.join(name), "").unwrap();
    }
    assert!(is_free(&here.join("f"), (0, 0), true));
    // The mount's table moves there: the first mount has no locks.
    assert!(is_free(&there.join("f"), (0, 0), true));
    cluster.stop_server();
    cluster.start_server();
    assert!(is_free(&there.join("g"), (0, 0), true));
}

#[test]
fn number_of_locks_of_one_user_is_limited() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let (here, there) = (cluster.mount(true), cluster.mount(true));
    std::fs::write(here.join("f"), "").unwrap();
    let many = "
f = os.open(path[0], os.O_RDONLY)
try:
    for n in range(10000): fcntl.lockf(f, fcntl.LOCK_SH, 1, 2 * n)
except OSError as e: say(f'{errno.errorcode[e.errno]} {n}')
wait()
";
    let mut many = Program::start(many, &[&here.join("f")]);
    assert_eq!(many.says(), "ENOLCK 4096");
    // A read lock is enough to keep writers out; others' locks of other files are not affected.
    assert!(!is_free(&there.join("f"), (0, 1), true));
    assert!(is_free(&there.join("f"), (1, 1), true));
    many.go_on();
    many.ends();
    assert!(is_free(&there.join("f"), (0, 0), true));
}
