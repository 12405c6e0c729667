//! Tests open files: many programs open and close one file at once, lock it, follow it, make it durable. Semantics: docs/consistency.md,
//! chapter "Versions".

use crate::cluster::{Cluster, Options, wait};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Runs a test once in place and once over HTTP.
fn both(test: impl Fn(&Cluster)) {
    for remote in [false, true] {
        let options = Options {
            remote,
            ..Options::default()
        };
        let Some(cluster) = Cluster::with(options) else {
            return;
        };
        eprintln!("over HTTP: {remote}");
        test(&cluster);
    }
}

fn python(cluster: &Cluster, script: &str) {
    cluster.sh(&format!("python3 - <<'P'\n{script}\nP"));
}

/// Every append is kept, however quickly the file is closed and opened again, by however many processes.
#[test]
fn append_between_close_and_open_is_never_lost() {
    both(|cluster| {
        cluster.sh("for i in $(seq 400); do echo $i >> f; done; seq 400 | cmp - f");
        python(
            cluster,
            r#"
import os
def append(k):
    for n in range(150):
        fd = os.open("g", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b"process %d line %03d\n" % (k, n))
        os.close(fd)
pids = []
for k in range(4):
    pid = os.fork()
    if pid == 0:
        append(k)
        os._exit(0)
    pids.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
lines = open("g", "rb").read().splitlines()
assert sorted(lines) == sorted(b"process %d line %03d" % (k, n) for k in range(4) for n in range(150)), len(lines)
"#,
        );
    });
}

/// Processes that open, write somewhere, truncate, read and close, in turn and in any order, see one file: its content
/// equals the content of a model.
#[test]
fn rapid_closes_and_opens_match_model() {
    both(|cluster| {
        python(
            cluster,
            r#"
import os, random
r = random.Random(11)
SIZE = 60000
model = bytearray(os.urandom(SIZE))
with open("f", "wb") as f:
    f.write(model)
held = []
for n in range(500):
    what = r.randrange(10)
    if what == 0 and len(held) < 3:
        held.append(os.open("f", r.choice([os.O_RDONLY, os.O_RDWR])))
    elif what == 1 and held:
        os.close(held.pop(r.randrange(len(held))))
    elif what == 2:
        model = bytearray()
        os.close(os.open("f", os.O_WRONLY | os.O_TRUNC))
    elif what == 3:
        size = r.randrange(SIZE)
        os.truncate("f", size)
        model = model[:size]
        model.extend(bytes(size - len(model)))
    elif what == 4:
        os.close(os.open("f", os.O_RDWR))
    else:
        at, data = r.randrange(SIZE), os.urandom(r.randrange(1, 5000))
        fd = os.open("f", os.O_RDWR)
        os.pwrite(fd, data, at)
        os.close(fd)
        model.extend(bytes(max(0, at + len(data) - len(model))))
        model[at:at + len(data)] = data
    fd = os.open("f", os.O_RDONLY)
    for reader in held + [fd]:
        assert os.fstat(reader).st_size == len(model), (n, os.fstat(reader).st_size, len(model))
        assert os.pread(reader, 1 << 20, 0) == model, n
    os.close(fd)
"#,
        );
    });
}

/// On one mount a file is one file: readers follow it, locks of readers and writers exclude each other.
#[test]
fn tail_follows_appends_and_file_locks_exclude() {
    both(|cluster| {
        cluster.sh(
            "echo 0 > log; (timeout 20 tail -n +1 -f log > ../followed & echo $! > ../tail.pid); \
             until grep -q 0 ../followed; do sleep 0.05; done; \
             for n in 1 2 3; do echo $n >> log; done; \
             until [ \"$(tail -n 1 ../followed)\" = 3 ]; do sleep 0.05; kill -0 $(cat ../tail.pid); done; \
             kill $(cat ../tail.pid); [ \"$(cat ../followed)\" = $'0\\n1\\n2\\n3' ]",
        );
        python(
            cluster,
            r#"
import fcntl, os, sqlite3, subprocess, sys
open("l", "w").write("x")
reader, writer = os.open("l", os.O_RDONLY), os.open("l", os.O_RDWR)
fcntl.flock(reader, fcntl.LOCK_SH)
try:
    fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sys.exit("flock: two who exclude each other")
except BlockingIOError:
    pass
os.close(writer)
fcntl.flock(reader, fcntl.LOCK_UN)
fcntl.lockf(reader, fcntl.LOCK_SH)
attempt = "import fcntl, os\ntry: fcntl.lockf(os.open('l', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError: os._exit(3)"
assert subprocess.run([sys.executable, "-c", attempt]).returncode == 3, "fcntl: two who exclude each other"
subprocess.run(["sqlite3", "x.db", "create table t(a); insert into t values(1)"], check=True)
r = sqlite3.connect("file:x.db?mode=ro", uri=True)
for count in range(1, 6):
    assert r.execute("select count(*) from t").fetchone()[0] == count
    subprocess.run(["sqlite3", "x.db", "insert into t values(2)"], check=True)
"#,
        );
    });
}

/// A sealed object never changes for a process that has its file open directly, though programs on the mount read it
/// and write its next version at the same time.
#[test]
fn sealed_object_with_other_openers_never_changes() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("printf 'the old version' > f; printf 'another' > g; sync f g");
    for (name, old) in [("f", "the old version"), ("g", "another")] {
        let reader = std::fs::File::open(cluster.at(name)).unwrap();
        let objects = || {
            let directories = (0..2).map(|n| cluster.node_directory(n).join("objects"));
            let files = directories
                .flat_map(|directory| std::fs::read_dir(directory).unwrap())
                .flat_map(|directory| std::fs::read_dir(directory.unwrap().path()).unwrap());
            files.map(|file| file.unwrap().path()).collect::<Vec<_>>()
        };
        let holds = |path: &std::path::PathBuf| std::fs::read(path).unwrap() == old.as_bytes();
        let path = objects().into_iter().find(holds).unwrap();
        let other_user = std::fs::File::open(&path).unwrap();
        cluster.sh(&format!(
            "printf 'new' > {name}; [ \"$(cat {name})\" = new ]"
        ));
        let mut bytes = vec![0; old.len()];
        other_user.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, old.as_bytes());
        // The mount's own reader keeps its previous version, complete.
        let length = reader.metadata().unwrap().len();
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, old.as_bytes());
    }
    // Without any other opener, the readers of the mount continue with the next version, and no sealed file is written to: a sealed
    // object has no writable bit, and its content is that of a closed version.
    let reader = std::fs::File::open(cluster.at("f")).unwrap();
    cluster.sh("printf 'newest' > f");
    let mut bytes = [0; 6];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"newest");
}

/// A running task keeps the inputs it started with, though its file is open on the mount and written to before it reads
/// it.
#[test]
fn running_task_keeps_inputs_that_are_overwritten() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("echo 'what the task reads' > in; sync in");
    let reader = std::fs::File::open(cluster.at("in")).unwrap();
    let job = cluster.submit(
        r#"name = "slow"; workdir = "/"; tasks = (
        { name = "slow"; kernel = "/bin/sh"; args = ["-c", "sleep 3; cat in"]; input = ["in"]; output = ["out"]; stdout = "out"; } );"#,
    );
    wait("the task runs", || {
        cluster.job(job)["tasks"][0]["state"] == "running"
    });
    cluster.sh("echo 'something else' > in; [ \"$(cat in)\" = 'something else' ]");
    cluster.done(job);
    assert_eq!(cluster.sh("cat out"), "what the task reads\n");
    drop(reader);
}

/// `fsync` on any handle waits for the seal: afterwards another mount reads the written bytes.
#[test]
fn fsync_by_others_waits_for_seal() {
    both(|cluster| {
        python(
            cluster,
            r#"
import os, subprocess
for n in range(20):
    with open("f", "w") as f:
        f.write(str(n))
    fd = os.open("f", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    subprocess.run(["sync", "f"], check=True)
"#,
        );
        let back = cluster.path("back");
        cluster.sh("echo sealed > f; sync f");
        let printed = cluster.run(&["get", "/f", back.to_str().unwrap()]);
        assert!(printed.ok, "{}", printed.err);
        assert_eq!(std::fs::read(back).unwrap(), b"sealed\n");
    });
}

/// Opening a file that is mostly hole for writing copies only its data. Opening without writing changes nothing.
#[test]
fn holes_are_kept_on_open_for_write() {
    both(|cluster| {
        cluster.sh("truncate -s 2G s; printf end >> s; sync s");
        let used = || {
            let mut used = 0;
            for node in 0..2 {
                let objects = cluster.node_directory(node).join("objects");
                for directory in std::fs::read_dir(objects).unwrap() {
                    for file in std::fs::read_dir(directory.unwrap().path()).unwrap() {
                        used += file.unwrap().metadata().unwrap().blocks() * 512;
                    }
                }
            }
            used
        };
        let before = used();
        cluster
            .sh("exec 7<>s; printf x >&7; exec 7>&-; [ \"$(head -c 1 s)$(tail -c 3 s)\" = xend ]");
        assert!(used() - before < 10 << 20, "{} bytes more", used() - before);
        cluster.sh(
            "fallocate -l 5M a; [ $(stat -c %s a) = $((5 << 20)) ]; fallocate -n -o 5M -l 5M a; \
             [ $(stat -c %s a) = $((5 << 20)) ]; head -c 5M /dev/zero | tr '\\0' y > b; fallocate -p -o 0 -l 1M b; \
             fallocate -z -o 2M -l 1M b; cmp -n $((1 << 20)) b /dev/zero; cmp -n $((1 << 20)) -i $((2 << 20)):0 b /dev/zero; \
             [ $(tail -c 2M b | tr -d 'y\\n' | wc -c) = 0 ]; sync b",
        );
    });
}

/// A user who writes to or truncates another's file clears its set-user-id bit, and memory mapped writes show in its
/// times.
#[test]
fn set_user_id_bits_and_times_follow_writes() {
    both(|cluster| {
        python(
            cluster,
            r#"
import mmap, os, time
for flags in (os.O_WRONLY | os.O_TRUNC, os.O_WRONLY):
    with open("suid", "w") as f:
        f.write("program")
    os.chmod("suid", 0o6777)
    os.chmod(".", 0o777)
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(12345)
        os.setuid(12345)
        fd = os.open("suid", flags)
        os.write(fd, b"x")
        os.close(fd)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.stat("suid").st_mode & 0o6000 == 0, oct(os.stat("suid").st_mode)
with open("m", "wb") as f:
    f.write(bytes(8192))
os.utime("m", (1_000_000_000, 1_000_000_000))
assert os.stat("m").st_mtime == 1_000_000_000
fd = os.open("m", os.O_RDWR)
with mmap.mmap(fd, 8192) as m:
    m[5000] = 1
    m.flush()
    stat = os.stat("m")
    assert stat.st_mtime > 1_000_000_000 and stat.st_ctime >= stat.st_mtime - 1, stat
os.close(fd)
assert os.stat("m").st_mtime > 1_000_000_000
"#,
        );
    });
}
