//! Tests reserved names, mountpoints that protect files from being lost, and clusters that are restarted at once.

use crate::cluster::{Cluster, Options, Printed, can_mount, directory_of_nobody, printed, wait};
use crate::require;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cluster of `tidemill up`, stopped at its end.
struct Up(tempfile::TempDir);

impl Up {
    fn new() -> Option<Self> {
        can_mount().then(|| {
            let directory = tempfile::Builder::new().prefix("tidemill-e2e-").tempdir();
            Self(directory.unwrap())
        })
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.0.path().join(relative)
    }

    fn run(&self, args: &[&str]) -> Printed {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
        printed(
            command
                .arg("--dir")
                .arg(self.0.path())
                .args(args)
                .output()
                .unwrap(),
        )
    }

    fn ok(&self, args: &[&str]) -> String {
        let printed = self.run(args);
        assert!(
            printed.ok,
            "tidemill {args:?}: {}{}",
            printed.out, printed.err
        );
        printed.out
    }

    /// Kills one of its processes and does not wait for its end.
    fn kill(&self, part: &str) {
        self.signal(part, rustix::process::Signal::KILL);
    }

    fn signal(&self, part: &str, signal: rustix::process::Signal) {
        let text = std::fs::read_to_string(self.path(&format!("run/{part}.pid"))).unwrap();
        let pid: i32 = text.split_whitespace().next().unwrap().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.run(&["down", "--force"]);
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    table.contains(&format!(" {} fuse", path.display()))
}

#[test]
fn killed_daemons_are_restarted_at_once() {
    let Some(up) = Up::new() else { return };
    up.ok(&["up", "--nodes", "1"]);
    let mnt = up.path("mnt");
    for round in 0..4 {
        for part in ["server", "node-0", "mount"] {
            up.kill(part);
            let printed = up.run(&["up"]);
            assert!(
                printed.ok,
                "{round}, {part}: {}{}",
                printed.out, printed.err
            );
            assert!(
                printed.out.contains(part),
                "{round}, {part}: {}",
                printed.out
            );
            let started = printed
                .out
                .lines()
                .find(|line| line.starts_with("started:"));
            assert!(
                started.is_some_and(|line| line.contains(part)),
                "{round}, {part}: {}",
                printed.out
            );
            std::fs::write(mnt.join(format!("{part}{round}")), "x").unwrap();
        }
    }
    for part in ["server", "node-0", "mount"] {
        up.kill(part);
    }
    up.ok(&["up"]);
    assert_eq!(std::fs::read(mnt.join("server0")).unwrap(), b"x");
}

/// A mount answers from its cache: a stopped server is not needed.
#[test]
fn mount_answers_cached_names_without_server() {
    use rustix::process::Signal;
    let Some(up) = Up::new() else { return };
    up.ok(&["up", "--nodes", "1"]);
    let made = up.path("mnt/d");
    std::fs::create_dir(&made).unwrap();
    for name in ["a", "b", "old"] {
        std::fs::write(made.join(name), "x").unwrap();
    }
    std::fs::rename(made.join("old"), made.join("new")).unwrap();
    std::fs::remove_file(made.join("b")).unwrap();
    std::fs::hard_link(made.join("a"), made.join("c")).unwrap();
    up.signal("server", Signal::STOP);
    let found = ["a", "c", "new"].map(|name| std::fs::metadata(made.join(name)).is_ok());
    let missing = ["b", "old", "never"].map(|name| {
        let error = std::fs::metadata(made.join(name)).unwrap_err();
        error.kind() == std::io::ErrorKind::NotFound
    });
    up.signal("server", Signal::CONT);
    assert_eq!((found, missing), ([true; 3], [true; 3]));
}

#[test]
fn mountpoint_with_files_is_refused() {
    let Some(up) = Up::new() else { return };
    std::fs::create_dir(up.path("mnt")).unwrap();
    std::fs::write(up.path("mnt/results"), "x").unwrap();
    let printed = up.run(&["up", "--nodes", "1"]);
    assert!(!printed.ok, "{}", printed.out);
    assert!(
        printed.err.contains("results") && printed.err.contains("move them"),
        "{}",
        printed.err
    );
    std::fs::remove_file(up.path("mnt/results")).unwrap();
    up.ok(&["up"]);
    std::fs::write(up.path("mnt/results"), "x").unwrap();
    let file = up.path("another");
    std::fs::create_dir(&file).unwrap();
}

#[test]
fn mountpoint_of_killed_mount_refuses_files_until_down() {
    let Some(up) = Up::new() else { return };
    up.ok(&["up", "--nodes", "1"]);
    let mnt = up.path("mnt");
    up.kill("mount");
    wait("the mount is dead", || std::fs::read_dir(&mnt).is_err());
    assert!(std::fs::write(mnt.join("f"), "x").is_err());
    let unmounted = Command::new("umount").arg("-l").arg(&mnt).status().unwrap();
    assert!(unmounted.success());
    assert!(mnt.join("NOT-MOUNTED").exists());
    let mode = std::fs::metadata(&mnt).unwrap().permissions().mode();
    assert_eq!(mode & 0o222, 0, "{mode:o}");
    let flags = printed(Command::new("lsattr").arg("-d").arg(&mnt).output().unwrap());
    if flags.out.split(' ').next().unwrap().contains('i') {
        assert!(
            std::fs::write(mnt.join("f"), "x").is_err(),
            "root writes to it"
        );
    }
    up.ok(&["up"]);
    std::fs::write(mnt.join("f"), "x").unwrap();
    up.kill("mount");
    up.ok(&["down"]);
    assert!(!is_mounted(&mnt));
    std::fs::remove_dir_all(&mnt).unwrap();
}

#[test]
fn up_and_mount_refuse_mountpoint_of_another_cluster() {
    let (Some(one), Some(two)) = (Up::new(), Up::new()) else {
        return;
    };
    one.ok(&["up", "--nodes", "1"]);
    let mnt = one.path("mnt");
    std::fs::write(mnt.join("f"), "one").unwrap();
    let path = mnt.to_str().unwrap();
    for args in [
        &["up", "--nodes", "1", "--mount", path][..],
        &["mount", path],
    ] {
        let printed = two.run(args);
        assert!(!printed.ok, "{args:?}: {}", printed.out);
        assert!(
            printed.err.contains("mounted there already"),
            "{args:?}: {}",
            printed.err
        );
    }
    two.ok(&["down"]);
    assert!(is_mounted(&mnt));
    assert_eq!(std::fs::read(mnt.join("f")).unwrap(), b"one");
}

/// Another user's cluster is mounted by `fusermount3`.
#[test]
fn cluster_of_ordinary_user_mounts_and_unmounts() {
    let Some(directory) = directory_of_nobody("true") else {
        return;
    };
    let run = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command
            .arg(env!("CARGO_BIN_EXE_tidemill"))
            .arg("--dir")
            .arg(directory.path());
        command.env("HOME", directory.path()).current_dir("/");
        printed(command.args(args).output().unwrap())
    };
    let device = std::fs::metadata("/dev/fuse").unwrap().permissions().mode();
    if device & 0o006 != 0o006 || !run(&["--version"]).ok {
        require::tell("users may not mount, or not run the program");
        return;
    }
    let mnt = directory.path().join("mnt");
    for round in 0..2 {
        let up = run(&["up", "--nodes", "1"]);
        let mounted = is_mounted(&mnt);
        let down = run(&["down"]);
        assert!(up.ok && mounted, "{round}: {}{}", up.out, up.err);
        assert!(down.ok, "{}{}", down.out, down.err);
        assert!(!is_mounted(&mnt), "{round}");
    }
    let mode = std::fs::metadata(&mnt).unwrap().permissions().mode();
    assert_eq!(mode & 0o222, 0, "{mode:o}");
}

#[test]
fn control_directory_names_are_refused_everywhere() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.sh("mkdir d w; echo x > f; echo x > w/in");
    let local = cluster.path("local");
    std::fs::write(&local, "x").unwrap();
    let local = local.to_str().unwrap();
    for name in ["/.tidemill", "/.analyzethis"] {
        let below = format!("{name}/x");
        for args in [
            &["mv", "/d", name][..],
            &["mv", "/f", name],
            &["put", local, name],
            &["mkdir", name],
            &["mkdir", "-p", &below],
        ] {
            let printed = cluster.run(args);
            assert!(!printed.ok, "{args:?}: {}", printed.out);
            assert!(
                printed.err.contains("control directory"),
                "{args:?}: {}",
                printed.err
            );
        }
        for output in [name, &below] {
            let printed = cluster.try_submit(&format!(
                "name = \"s\"; workdir = \"/\"; tasks = ( {{ name = \"t\"; kernel = \"/bin/sh\"; \
                 args = [\"-c\", \"cat w/in > out\"]; input = [\"w/in\"]; output = [\"{output}\"]; }} );"
            ));
            assert!(!printed.ok, "{output}: {}", printed.out);
            assert!(
                printed.err.contains("control directory"),
                "{output}: {}",
                printed.err
            );
        }
    }
    assert_eq!(
        cluster.sh("cat f; ls -A | sort | tr '\\n' ' '"),
        "x\nd f kernels w "
    );
}

/// Runs a command with arguments of any bytes, which must succeed.
fn ok_bytes(cluster: &Cluster, args: &[&[u8]]) -> Vec<u8> {
    let args = args.iter().map(|arg| OsStr::from_bytes(arg));
    let done = cluster.tidemill().args(args.clone()).output().unwrap();
    let printed = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "{:?}: {printed}",
        args.collect::<Vec<_>>()
    );
    done.stdout
}

fn json_bytes(cluster: &Cluster, args: &[&[u8]]) -> Value {
    let args = [&[b"--json".as_slice()][..], args].concat();
    serde_json::from_slice(&ok_bytes(cluster, &args)).unwrap()
}

#[test]
fn commands_and_json_handle_names_that_are_not_utf8() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (ff, fe) = (OsStr::from_bytes(b"n\xff"), OsStr::from_bytes(b"n\xfe"));
    let plain = r"n\xff";
    for (name, text) in [(ff, "one"), (fe, "two"), (OsStr::new(plain), "three")] {
        std::fs::write(cluster.at("").join(name), text).unwrap();
    }
    cluster.sh("sync .; mkdir d");
    assert_eq!(ok_bytes(&cluster, &[b"cat", b"/n\xff"]), b"one");
    assert_eq!(
        ok_bytes(&cluster, &[b"cat", b"/n\xfe", plain.as_bytes()]),
        b"twothree"
    );
    let listed = json_bytes(&cluster, &[b"ls", b"/"]);
    let entries = listed["entries"].as_array().unwrap().iter();
    let names: Vec<&str> = entries.map(|one| one["name"].as_str().unwrap()).collect();
    for name in [r"n\xff", r"n\xfe", r"n\x5cxff"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let text = String::from_utf8(ok_bytes(&cluster, &[b"ls", b"/n\xff"])).unwrap();
    assert_eq!(text, "/n\u{fffd}\n");
    let found = ok_bytes(&cluster, &[b"--json", b"find", b"name = n* and size = 3"]);
    let found = String::from_utf8(found).unwrap();
    assert!(
        found.contains(r#""/n\\xff""#) && found.contains(r#""/n\\xfe""#),
        "{found}"
    );

    let layout = json_bytes(&cluster, &[b"stat", b"/n\xff"]);
    assert_eq!(
        (&layout["path"], &layout["size"]),
        (&json!(r"/n\xff"), &json!(3))
    );
    let lineage = json_bytes(&cluster, &[b"lineage", b"versions", b"/n\xff"]);
    assert_eq!(lineage["versions"][0]["path"], r"/n\xff", "{lineage}");
    assert_eq!(
        lineage["found"]["objects"].as_array().unwrap().len(),
        1,
        "{lineage}"
    );
    let scrub = cluster
        .tidemill()
        .args(["cluster", "scrub", "--wait"])
        .arg(OsStr::from_bytes(b"/n\xff"))
        .output();
    assert!(scrub.unwrap().status.success());

    are_copied_and_moved(&cluster);
}

fn are_copied_and_moved(cluster: &Cluster) {
    let local = cluster.path("local");
    std::fs::create_dir(&local).unwrap();
    ok_bytes(
        cluster,
        &[b"get", b"/n\xff", b"/n\xfe", local.as_os_str().as_bytes()],
    );
    assert_eq!(
        std::fs::read(local.join(OsStr::from_bytes(b"n\xfe"))).unwrap(),
        b"two"
    );
    ok_bytes(
        cluster,
        &[b"put", b"-r", local.as_os_str().as_bytes(), b"/d\xff"],
    );
    assert_eq!(
        std::fs::read(cluster.at("").join(OsStr::from_bytes(b"d\xff/n\xff"))).unwrap(),
        b"one"
    );
    ok_bytes(cluster, &[b"set", b"/d\xff", b"stripe=1MiB,2"]);
    ok_bytes(cluster, &[b"mkdir", b"-p", b"/d\xff/e\xff"]);
    ok_bytes(cluster, &[b"mv", b"/n\xff", b"/d\xff/e\xff"]);
    assert_eq!(ok_bytes(cluster, &[b"cat", b"/d\xff/e\xff/n\xff"]), b"one");
    ok_bytes(cluster, &[b"migrate", b"/d\xff", b"--node", b"0"]);
    ok_bytes(cluster, &[b"rm", b"/n\xfe"]);
    ok_bytes(cluster, &[b"rm", b"-r", b"/d\xff"]);
    assert!(!cluster.at("").join(OsStr::from_bytes(b"d\xff")).exists());
    let missing = cluster
        .tidemill()
        .arg("cat")
        .arg(OsStr::from_bytes(b"/n\xff"))
        .output()
        .unwrap();
    let printed = String::from_utf8(missing.stderr).unwrap();
    assert!(
        printed.contains("no such file") && !missing.status.success(),
        "{printed}"
    );
    assert_eq!(ok_bytes(cluster, &[b"cat", br"n\xff"]), b"three");
}

/// A script has only text, so a pattern never leaves a file out in silence.
#[test]
fn job_patterns_refuse_names_that_are_not_utf8() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir in && echo 1 > in/a.txt && echo 2 > in/b.dat && sync in/a.txt");
    std::fs::write(cluster.at("in").join(OsStr::from_bytes(b"n\xff.txt")), "3").unwrap();
    let script = |pattern: &str| {
        format!(
            "name = \"j\"; workdir = \"/\"; tasks = ( {{ name = \"t\"; kernel = \"wordcount\"; input = [ \"{pattern}\" ]; output = [ \"o\" ]; }} );"
        )
    };
    for pattern in ["in/*.txt", "in/*", "in/"] {
        let refused = cluster.try_submit(&script(pattern));
        assert!(!refused.ok, "{pattern}");
        assert!(
            refused.err.contains("n\u{fffd}.txt") && refused.err.contains("not UTF-8"),
            "{pattern}: {}",
            refused.err
        );
    }
    cluster.done(cluster.submit(&script("in/*.dat")));
}
