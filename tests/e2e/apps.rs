//! Applications that give their requests away. Semantics: docs/labels.md.

use crate::array::{Array, Options, OtherMount, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A user whom nobody knows.
const USER: u32 = 1234;

struct Labels<'a> {
    array: &'a Array,
    folder: PathBuf,
    user: u32,
}

impl<'a> Labels<'a> {
    fn of(array: &'a Array, user: u32) -> Self {
        let folder = array.path(&format!("labels-{user}"));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .unwrap();
        chown(&folder, Some(user), Some(user)).unwrap();
        Self {
            array,
            folder,
            user,
        }
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let tidemill = Path::new(env!("CARGO_BIN_EXE_tidemill"));
        let library = tidemill.with_file_name("deps/libtidemill_label.so");
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/labels");
        let mut command = Command::new(program);
        command.env("TIDEMILL_LABELS", &self.folder);
        command.env("TIDEMILL_MOUNT", self.array.at(""));
        command.env("TIDEMILL", tidemill);
        command.env("TIDEMILL_LABEL_LIBRARY", library);
        command.env("PYTHONPATH", examples);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.uid(self.user).gid(self.user);
        command
    }

    /// A program that has `app`, and prints.
    fn python(&self, script: &str) -> Child {
        let prelude = "import os, sys\nfrom tidemill_label import *\napp = App('test')\n";
        let mut command = self.command("python3");
        command.arg("-c").arg(format!("{prelude}{script}"));
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    fn said_by(&self, script: &str) -> String {
        let ended = self.python(script).wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    }

    fn known(&self) -> serde_json::Value {
        let mut command = self.command(env!("CARGO_BIN_EXE_tidemill"));
        let output = command.args(["--json", "apps"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn kill_agent(&self) {
        let pid = self.known()["agent"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    fn start_agent(&self) {
        let mut command = self.command(env!("CARGO_BIN_EXE_tidemill"));
        assert!(
            command
                .args(["agent", "--detach"])
                .status()
                .unwrap()
                .success()
        );
    }

    fn wait_until_done(&self) {
        wait("all labels are done", || {
            let known = self.known();
            assert_eq!(known["damaged"].as_array().unwrap().len(), 0);
            known["applications"].as_array().unwrap().is_empty()
        });
    }
}

impl Drop for Labels<'_> {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

/// The next line that a program prints.
fn line(out: &mut ChildStdout) -> String {
    use std::io::Read;
    let mut line = Vec::new();
    let mut byte = [0];
    while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

const STEPS: usize = 1500;
const FILES: usize = 20;

/// Writes pieces of files in turn, and a log, and says how far it is.
const PUBLISHES: &str = "
for n in range(1500):
    app.write(f'tidemill:/w/{n % 20}', n // 20 * 100, b'%099d\\n' % n)
    last = app.append('tidemill:/w/log', b'%09d\\n' % n)
    if n % 300 == 150: app.rename(f'tidemill:/w/{n % 20}', f'tidemill:/w/{n % 20}')
    if n % 100 == 99: print(n, flush=True)
    if n % 250 == 249: last.wait()
print('all', flush=True)
sys.stdin.readline()
";

fn check_published(array: &Array) {
    let read = |name: String| std::fs::read_to_string(array.at(&name)).unwrap();
    for file in 0..FILES {
        let numbers = (file..STEPS).step_by(FILES);
        let expected: String = numbers.map(|n| format!("{n:099}\n")).collect();
        assert_eq!(read(format!("w/{file}")), expected, "{file}");
    }
    let expected: String = (0..STEPS).map(|n| format!("{n:09}\n")).collect();
    assert_eq!(read("w/log".into()), expected);
}

/// Agents are killed while they work, and the application when it has published all: each label is done once.
#[test]
fn what_was_published_is_done_once_whoever_is_killed() {
    let Some(array) = Array::with(Options::default()) else {
        return;
    };
    array.sh("mkdir w && chmod 777 w");
    let labels = Labels::of(&array, USER);
    let mut program = {
        let mut command = labels.command("python3");
        let prelude = "import os, sys\nfrom tidemill_label import *\napp = App('test')\n";
        command.arg("-c").arg(format!("{prelude}{PUBLISHES}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut out = program.stdout.take().unwrap();
    while line(&mut out) != "all" {
        labels.kill_agent();
    }
    program.kill().unwrap();
    program.wait().unwrap();
    labels.kill_agent();
    let left = labels.known();
    assert_eq!(left["applications"][0]["failed"], 0, "{left}");
    labels.start_agent();
    labels.wait_until_done();
    check_published(&array);
    let owner = array.sh("stat -c %u w/log");
    assert_eq!(owner.trim(), USER.to_string());
}

/// While the mount is gone, labels wait, and nothing is written into the folder that was below it.
#[test]
fn labels_wait_for_a_mount_that_is_gone() {
    let Some(mut array) = Array::with(Options::default()) else {
        return;
    };
    let folder = array.at("");
    {
        let labels = Labels::of(&array, 0);
        labels.said_by("app.write('tidemill:/a', 0, b'before').wait()");
        labels.kill_agent();
        labels.said_by(
            "
for n in range(100): app.append('tidemill:/b', b'%09d\\n' % n)
",
        );
        labels.kill_agent();
    }
    array.kill_mount();
    // The kernel may have it still, without anybody who serves it.
    let mut unmount = Command::new("umount");
    let _ = unmount
        .arg("-l")
        .arg(&folder)
        .stderr(Stdio::null())
        .status();
    let labels = Labels {
        array: &array,
        folder: array.path("labels-0"),
        user: 0,
    };
    labels.start_agent();
    std::thread::sleep(std::time::Duration::from_millis(300));
    // There is a file that says so, and no other.
    let below: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert!(below.len() <= 1 && !folder.join("b").exists(), "{below:?}");
    drop(labels);
    array.start_mount();
    let labels = Labels {
        array: &array,
        folder: array.path("labels-0"),
        user: 0,
    };
    labels.start_agent();
    labels.wait_until_done();
    let log = std::fs::read_to_string(array.at("b")).unwrap();
    let expected: String = (0..100).map(|n| format!("{n:09}\n")).collect();
    assert_eq!(log, expected);
}

/// Who has waited knows that all see it; who may not write is told so, and of whose rights those are.
#[test]
fn what_was_waited_for_is_seen_on_other_hosts_and_rights_are_the_users() {
    let Some(array) = Array::with(Options::default()) else {
        return;
    };
    array.sh("mkdir w own && chmod 777 w && chmod 700 own");
    let other = OtherMount::start(&array, "m1");
    let labels = Labels::of(&array, USER);
    let there = other.path.join("w/f");
    let script = format!(
        "
for n in range(20):
    app.write('tidemill:/w/f', n, b'%c' % (97 + n)).wait()
    seen = open('{}').read()
    assert len(seen) == n + 1, seen
assert app.read('tidemill:/w/f', 3, 4).wait() == b'defg'
try: app.write('tidemill:/own/f', 0, b'x').wait()
except PermissionError as error: print(error)
",
        there.display()
    );
    let said = labels.said_by(&script);
    assert!(
        said.contains("tidemill:/own/f: Permission denied"),
        "{said}"
    );
    labels.wait_until_done();
}
