//! Tests files that are stored after programs have closed them: `tidemill exec --async`.

use crate::cluster::{Cluster, Options, Printed, wait};
use crate::preload::Programs;
use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

const MIB: usize = 1 << 20;

fn start() -> Option<Cluster> {
    with_capacity(None)
}

fn with_capacity(capacity: Option<&'static str>) -> Option<Cluster> {
    Cluster::with(Options {
        mount: false,
        nodes: 1,
        capacity,
        ..Options::default()
    })
}

/// Executes commands, one on each line, and prints their results.
const WRITER: &str = r"
import errno, os, sys
fds = {}
while True:
    words = sys.stdin.readline().split()
    if not words: break
    op, name = words[:2]
    try:
        if op == 'open': fds[name] = os.open('/t/' + name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if op == 'write': assert os.write(fds[name], words[2].encode() * int(words[3])) == int(words[3])
        if op == 'sync': os.fsync(fds[name])
        if op == 'close': os.close(fds.pop(name))
        print('done', flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
";

struct Writer {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Writer {
    fn of(programs: &Programs) -> Self {
        let mut command = programs.command();
        command.args(["python3", "-c", WRITER]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        Self {
            to: process.stdin.take().unwrap(),
            from: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    fn begin(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn say(&mut self, line: &str) -> String {
        self.begin(line);
        self.answer()
    }

    fn all(&mut self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.say(line), "done", "{line}");
        }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Returns the files with bytes that are not stored yet.
fn unstored_files(programs: &Programs) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(programs.directory.join("a")).into_iter();
    let paths = entries.flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_none()).collect()
}

fn stored(programs: &Programs) {
    let printed = programs.try_wait();
    assert!(
        printed.ok,
        "{}{}{}",
        printed.out,
        printed.err,
        programs.log()
    );
    assert_eq!(
        (printed.out.as_str(), unstored_files(programs).len()),
        ("", 0)
    );
}

fn not_stored(programs: &Programs, words: &[&str]) -> Printed {
    let printed = programs.try_wait();
    assert_eq!(printed.code, Some(1), "{}{}", printed.out, printed.err);
    for word in words {
        assert!(printed.out.contains(word), "{word}: {}", printed.out);
    }
    printed
}

fn cat(cluster: &Cluster, path: &str) -> String {
    cluster.run(&["cat", path]).out
}

/// If no file is waiting to be stored, `wait` returns at once and no process stays.
#[test]
fn async_wait_returns_at_once_without_async_files() {
    let Some(cluster) = start() else { return };
    let programs = Programs::asynchronous(&cluster, "p");
    let printed = programs.try_wait();
    assert!(
        printed.ok && printed.out.is_empty(),
        "{}{}",
        printed.out,
        printed.err
    );
    assert!(!programs.directory.exists(), "nobody was started");
    // The started process inherits nothing from its starter.
    let mut command = programs.command();
    let lock = cluster.path("lock");
    let held = File::create(&lock).unwrap();
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).unwrap();
    assert!(command.arg("true").status().unwrap().success());
    drop(held);
    assert!(!programs.has_open(&lock));
    programs.sh("echo text > f");
    stored(&programs);
    assert_eq!(cat(&cluster, "/f"), "text\n");
    let printed = cluster.json(&[
        "exec",
        "--data-dir",
        programs.directory.to_str().unwrap(),
        "--wait",
    ]);
    assert_eq!(
        printed,
        serde_json::json!({ "failed": 0, "not_stored": [] })
    );
}

/// A close succeeds without a node. Programs on this host see the bytes, the bytes survive the writing program, and
/// a call that guarantees storage waits for it.
#[test]
fn async_close_returns_at_once_and_outlives_program() {
    let Some(mut cluster) = start() else { return };
    let programs = Programs::asynchronous(&cluster, "p");
    programs.sh("echo before > old");
    stored(&programs);
    let mut writer = Writer::of(&programs);
    writer.all(&["open old", "open new", "open cut"]);
    cluster.kill_node(0);
    let new = format!("write new n {}", 5 * MIB);
    writer.all(&[
        &new,
        "close new",
        "write old a 3",
        "close old",
        "write cut c 7",
    ]);
    writer.kill();
    let seen = "cat old; stat -c %s new cut; head -c 2 new; tail -c 2 new; ls";
    let wanted = format!("before\naaa{}\n7\nnnnncut\nkernels\nnew\nold\n", 5 * MIB);
    assert_eq!(programs.sh(seen), wanted);
    // Each of these calls needs a stored file.
    let waits = ["mv new moved", "truncate -s 2 cut", "sync old"].map(|script| {
        let mut command = programs.command();
        let script = format!("cd /t; {script}");
        let process = command.args(["bash", "-c", &script]).spawn().unwrap();
        (script, process)
    });
    cluster.start_node(0);
    for (script, mut process) in waits {
        assert!(process.wait().unwrap().success(), "{script}");
    }
    stored(&programs);
    let (old, cut, moved) = (
        cat(&cluster, "/old"),
        cat(&cluster, "/cut"),
        cat(&cluster, "/moved"),
    );
    assert_eq!((old.as_str(), cut.as_str()), ("before\naaa", "cc"));
    assert!(moved.len() == 5 * MIB && moved.bytes().all(|byte| byte == b'n'));
}

/// The file system is killed while it holds closed files. The next file system has them, whichever user starts it, and also the files
/// that are still being written.
#[test]
fn async_closed_files_survive_kill_of_file_system() {
    let Some(mut cluster) = start() else { return };
    let programs = Programs::asynchronous(&cluster, "p");
    programs.sh("echo before > old");
    stored(&programs);
    let mut writer = Writer::of(&programs);
    writer.all(&["open old", "open new", "open later"]);
    cluster.kill_node(0);
    let new = format!("write new n {}", 3 * MIB);
    writer.all(&[
        &new,
        "close new",
        "write old a 3",
        "close old",
        "write later x 5",
    ]);
    programs.signal(Signal::KILL);
    wait("it is dead", || writer.say("open none") == "ENOTCONN");
    cluster.start_node(0);
    // Any next program uses the next file system.
    assert_eq!(
        programs.sh("cat old; stat -c %s new"),
        format!("before\naaa{}\n", 3 * MIB)
    );
    assert_eq!(
        writer.say("sync later"),
        "ENOTCONN",
        "no process can guarantee that it is stored"
    );
    writer.all(&["write later y 1", "close later"]);
    stored(&programs);
    assert_eq!(
        cat(&cluster, "/old") + &cat(&cluster, "/later"),
        "before\naaaxxxxxy"
    );
    assert_eq!(cat(&cluster, "/new").len(), 3 * MIB);
    // A waiting program starts one, too, which ends by itself.
    writer.all(&["open again"]);
    cluster.kill_node(0);
    writer.all(&["write again z 4", "close again"]);
    programs.signal(Signal::KILL);
    writer.kill();
    cluster.start_node(0);
    stored(&programs);
    assert_eq!(cat(&cluster, "/again"), "zzzz");
    wait("it has ended", || !programs.directory.join("s").exists());
}

/// A file that does not fit into the space is stored by its close, as without `--async`. A file that does not fit into
/// the cluster is reported, kept and tried again.
#[test]
fn async_closed_files_survive_full_spool_and_full_cluster() {
    let Some(cluster) = with_capacity(Some("64MiB")) else {
        return;
    };
    let mut programs = Programs::asynchronous(&cluster, "p");
    programs.add(&["--space", "1MiB"]);
    let mut writer = Writer::of(&programs);
    writer.all(&["open small", "open large"]);
    cluster.signal_node(0, Signal::STOP);
    let large = format!("write large l {}", 3 * MIB);
    writer.all(&["write small s 9", "close small", &large]);
    writer.begin("close large");
    assert_eq!(programs.sh("stat -c %s large"), format!("{}\n", 3 * MIB));
    cluster.signal_node(0, Signal::CONT);
    assert_eq!(writer.answer(), "done");
    // Except for this one, no node is full.
    stored(&programs);
    programs.sh("head -c 40M /dev/zero > filling");
    stored(&programs);
    let wide = Programs::asynchronous(&cluster, "wide");
    wide.sh("head -c 30M /dev/zero | tr '\\0' w > full");
    let printed = not_stored(&wide, &["/full", "space"]);
    assert!(
        printed
            .out
            .contains(unstored_files(&wide)[0].to_str().unwrap()),
        "{}",
        printed.out
    );
    assert_eq!(
        unstored_files(&wide)[0].metadata().unwrap().len(),
        30 * MIB as u64
    );
    assert!(!wide.try_sh("mv full elsewhere").ok);
    programs.sh("rm filling");
    wait("it is stored when there is space", || wide.try_wait().ok);
    assert_eq!(
        wide.sh("tr -d w < full | wc -c; stat -c %s full"),
        format!("0\n{}\n", 30 * MIB)
    );
    stored(&wide);
    assert_eq!(cat(&cluster, "/full").len(), 30 * MIB);
}

/// A file that another program has written since keeps that content, and a cluster gets no file of another cluster. Both
/// cases are reported, and the bytes are kept.
#[test]
fn async_close_never_overwrites_newer_files_of_others() {
    let (Some(mut cluster), Some(other)) = (start(), start()) else {
        return;
    };
    let programs = Programs::asynchronous(&cluster, "p");
    let mut writer = Writer::of(&programs);
    writer.all(&["open f"]);
    cluster.kill_node(0);
    writer.all(&["write f m 4", "close f"]);
    programs.signal(Signal::KILL);
    writer.kill();
    cluster.start_node(0);
    let kept = unstored_files(&programs);
    assert_eq!(std::fs::read(&kept[0]).unwrap(), b"mmmm");
    let theirs = programs.of_other(&other);
    not_stored(
        &theirs,
        &["/f", "another cluster", kept[0].to_str().unwrap()],
    );
    assert_eq!(other.run(&["ls", "/"]).out, "kernels\n");
    wait("it has ended", || !programs.directory.join("s").exists());
    let source = cluster.path("source");
    std::fs::write(&source, "theirs").unwrap();
    let put = ["put", source.to_str().unwrap(), "/f"];
    wait("somebody else writes it", || cluster.run(&put).ok);
    not_stored(
        &programs,
        &[
            "/f",
            "another process has written",
            kept[0].to_str().unwrap(),
        ],
    );
    assert_eq!(cat(&cluster, "/f"), "theirs");
    assert_eq!(std::fs::read(&kept[0]).unwrap(), b"mmmm");
    std::fs::remove_file(&kept[0]).unwrap();
    stored(&programs);
}
