//! Names that nothing may have, mountpoints that keep files from being lost, and arrays that start again at once.

use crate::array::{Array, Options, Said, can_mount, folder_of_nobody, said, wait};
use crate::require;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An array of `tidemill up`, taken down at its end.
struct Up(tempfile::TempDir);

impl Up {
    fn new() -> Option<Self> {
        can_mount().then(|| {
            let folder = tempfile::Builder::new().prefix("tidemill-e2e-").tempdir();
            Self(folder.unwrap())
        })
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.0.path().join(relative)
    }

    fn run(&self, args: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
        said(
            command
                .arg("--dir")
                .arg(self.0.path())
                .args(args)
                .output()
                .unwrap(),
        )
    }

    fn ok(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert!(said.ok, "tidemill {args:?}: {}{}", said.out, said.err);
        said.out
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
fn killed_parts_are_started_again_at_once() {
    let Some(up) = Up::new() else { return };
    up.ok(&["up", "--elements", "1"]);
    let mnt = up.path("mnt");
    for round in 0..4 {
        for part in ["server", "element-0", "mount"] {
            up.kill(part);
            let said = up.run(&["up"]);
            assert!(said.ok, "{round}, {part}: {}{}", said.out, said.err);
            assert!(said.out.contains(part), "{round}, {part}: {}", said.out);
            let started = said.out.lines().find(|line| line.starts_with("started:"));
            assert!(
                started.is_some_and(|line| line.contains(part)),
                "{round}, {part}: {}",
                said.out
            );
            std::fs::write(mnt.join(format!("{part}{round}")), "x").unwrap();
        }
    }
    for part in ["server", "element-0", "mount"] {
        up.kill(part);
    }
    up.ok(&["up"]);
    assert_eq!(std::fs::read(mnt.join("server0")).unwrap(), b"x");
}

/// What a mount knows it says by itself: a server that has stopped is not missed.
#[test]
fn what_is_known_needs_no_server() {
    use rustix::process::Signal;
    let Some(up) = Up::new() else { return };
    up.ok(&["up", "--elements", "1"]);
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
fn files_that_a_mount_would_hide_are_refused() {
    let Some(up) = Up::new() else { return };
    std::fs::create_dir(up.path("mnt")).unwrap();
    std::fs::write(up.path("mnt/results"), "x").unwrap();
    let said = up.run(&["up", "--elements", "1"]);
    assert!(!said.ok, "{}", said.out);
    assert!(
        said.err.contains("results") && said.err.contains("move them"),
        "{}",
        said.err
    );
    std::fs::remove_file(up.path("mnt/results")).unwrap();
    up.ok(&["up"]);
    std::fs::write(up.path("mnt/results"), "x").unwrap();
    let file = up.path("another");
    std::fs::create_dir(&file).unwrap();
}

#[test]
fn the_mountpoint_of_a_killed_mount_takes_nothing_and_is_given_back() {
    let Some(up) = Up::new() else { return };
    up.ok(&["up", "--elements", "1"]);
    let mnt = up.path("mnt");
    up.kill("mount");
    wait("the mount is dead", || std::fs::read_dir(&mnt).is_err());
    assert!(std::fs::write(mnt.join("f"), "x").is_err());
    let unmounted = Command::new("umount").arg("-l").arg(&mnt).status().unwrap();
    assert!(unmounted.success());
    assert!(mnt.join("NOT-MOUNTED").exists());
    let mode = std::fs::metadata(&mnt).unwrap().permissions().mode();
    assert_eq!(mode & 0o222, 0, "{mode:o}");
    let flags = said(Command::new("lsattr").arg("-d").arg(&mnt).output().unwrap());
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
fn two_arrays_do_not_take_each_others_mounts_away() {
    let (Some(one), Some(two)) = (Up::new(), Up::new()) else {
        return;
    };
    one.ok(&["up", "--elements", "1"]);
    let mnt = one.path("mnt");
    std::fs::write(mnt.join("f"), "one").unwrap();
    let path = mnt.to_str().unwrap();
    for args in [
        &["up", "--elements", "1", "--mount", path][..],
        &["mount", path],
    ] {
        let said = two.run(args);
        assert!(!said.ok, "{args:?}: {}", said.out);
        assert!(
            said.err.contains("mounted there already"),
            "{args:?}: {}",
            said.err
        );
    }
    two.ok(&["down"]);
    assert!(is_mounted(&mnt));
    assert_eq!(std::fs::read(mnt.join("f")).unwrap(), b"one");
}

/// Another user's array, mounted by `fusermount3`.
#[test]
fn a_users_own_array_is_mounted_and_unmounted() {
    let Some(folder) = folder_of_nobody("true") else {
        return;
    };
    let run = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command
            .arg(env!("CARGO_BIN_EXE_tidemill"))
            .arg("--dir")
            .arg(folder.path());
        command.env("HOME", folder.path()).current_dir("/");
        said(command.args(args).output().unwrap())
    };
    let device = std::fs::metadata("/dev/fuse").unwrap().permissions().mode();
    if device & 0o006 != 0o006 || !run(&["--version"]).ok {
        require::tell("users may not mount, or not run the program");
        return;
    }
    let mnt = folder.path().join("mnt");
    for round in 0..2 {
        let up = run(&["up", "--elements", "1"]);
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
fn nothing_gets_the_names_of_the_control_folder() {
    let Some(array) = Array::with(Options::default()) else {
        return;
    };
    array.sh("mkdir d w; echo x > f; echo x > w/in");
    let local = array.path("local");
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
            let said = array.run(args);
            assert!(!said.ok, "{args:?}: {}", said.out);
            assert!(
                said.err.contains("control folder"),
                "{args:?}: {}",
                said.err
            );
        }
        for output in [name, &below] {
            let said = array.try_submit(&format!(
                "name = \"s\"; workdir = \"/\"; tasks = ( {{ name = \"t\"; kernel = \"/bin/sh\"; \
                 args = [\"-c\", \"cat w/in > out\"]; input = [\"w/in\"]; output = [\"{output}\"]; }} );"
            ));
            assert!(!said.ok, "{output}: {}", said.out);
            assert!(
                said.err.contains("control folder"),
                "{output}: {}",
                said.err
            );
        }
    }
    assert_eq!(
        array.sh("cat f; ls -A | sort | tr '\\n' ' '"),
        "x\nd f kernels w "
    );
}
