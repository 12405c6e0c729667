//! An offline server or node, and lost answers: acknowledged changes are kept, waiting programs get errors, and no change happens twice.
//! The sentences of `docs/semantics.md` and `docs/consistency.md` stand above the tests that prove them.

#![allow(
    clippy::unwrap_used,
    reason = "a test that can't do what it needs fails"
)]

use crate::cluster::loss::Lossy;
use crate::cluster::{MountCluster, Mounted, can_mount};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Repeats a check until it is true, because changes by another process take a moment.
fn soon(what: &str, mut so: impl FnMut() -> bool) {
    within(Duration::from_secs(60), what, &mut so);
}

fn within(limit: Duration, what: &str, so: &mut dyn FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !so() {
        assert!(Instant::now() < deadline, "never came about: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pin(directory: &Path, node: usize) {
    fs::create_dir(directory).unwrap();
    let value = node.to_string();
    let name = "user.tidemill.node";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(directory, name, value.as_bytes(), flags).unwrap();
}

/// Returns lines of `.tidemill/status`: the number of waiting versions, and the reason why they wait.
fn unsealed(mounted: &Mounted) -> (usize, String) {
    let status = fs::read_to_string(mounted.join(".tidemill/status")).unwrap();
    let line = |name: &str| {
        let mut lines = status.lines();
        let value = lines.find_map(|line| line.strip_prefix(name));
        value.unwrap_or_default().trim().to_owned()
    };
    (line("unsealed").parse().unwrap(), line("reason"))
}

fn reads(mounted: &Mounted, name: &str) -> String {
    fs::read_to_string(mounted.join(name)).unwrap_or_default()
}

/// A closed version is sealed, however often the seal fails. Until the seal this mount reads the new bytes, and other versions are sealed.
#[test]
fn failing_seal_is_retried_and_blocks_no_other_seal() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let mounted = cluster.mount(true);
    let other = cluster.mount(false);
    pin(&mounted.join("offline"), 0);
    pin(&mounted.join("here"), 1);
    fs::write(mounted.join("offline/f"), "old").unwrap();
    soon("it is sealed", || reads(&other, "offline/f") == "old");
    let new = File::create(mounted.join("offline/f")).unwrap();
    std::io::Write::write_all(&mut &new, b"new").unwrap();
    cluster.stop_node(0);
    drop(new);
    soon("the mount says why", || {
        let (count, why) = unsealed(&mounted);
        count == 1 && !why.is_empty()
    });
    fs::write(mounted.join("here/g"), "others").unwrap();
    soon("others are sealed", || reads(&other, "here/g") == "others");
    assert_eq!(reads(&mounted, "offline/f"), "new");
    assert_eq!(unsealed(&mounted).0, 1);
    cluster.start_node(0);
    soon("it is sealed when its node is back", || {
        reads(&other, "offline/f") == "new"
    });
    soon("nothing waits any more", || unsealed(&mounted).0 == 0);
}

/// Versions closed before and during a restart of the server are sealed after the restart.
#[test]
fn seals_continue_after_server_restart() {
    if !can_mount() {
        return;
    }
    for in_place in [true, false] {
        let mut cluster = MountCluster::start();
        let mounted = cluster.mount(in_place);
        for round in 0..3 {
            let text = format!("version {round}");
            let names: Vec<_> = (0..20).map(|file| format!("f{file}")).collect();
            for name in &names {
                fs::write(mounted.join(name), &text).unwrap();
            }
            // Before they are gathered for their seal.
            cluster.stop_server();
            cluster.start_server();
            let other = cluster.mount(true);
            for name in &names {
                soon("it is sealed", || reads(&other, name) == text);
                assert_eq!(reads(&mounted, name), text);
            }
        }
    }
}

/// Only the server's answer ends the wait for a seal: a deleted file needs no seal.
#[test]
fn deleted_file_waits_for_no_seal() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let mounted = cluster.mount(true);
    pin(&mounted.join("offline"), 0);
    let file = File::create(mounted.join("offline/f")).unwrap();
    std::io::Write::write_all(&mut &file, b"new").unwrap();
    cluster.stop_node(0);
    drop(file);
    soon("it waits", || unsealed(&mounted).0 == 1);
    fs::remove_file(mounted.join("offline/f")).unwrap();
    cluster.start_node(0);
    soon("nothing waits any more", || unsealed(&mounted).0 == 0);
    assert!(!mounted.join("offline/f").exists());
}

/// Over HTTP, the mount sends written bytes until they arrive at the node.
#[test]
fn written_bytes_are_resent_until_node_returns() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start();
    let mounted = cluster.mount(false);
    pin(&mounted.join("offline"), 0);
    let path = mounted.join("offline/f");
    let mut file = File::create(&path).unwrap();
    cluster.stop_node(0);
    let data = vec![7; 9 << 20];
    let writer = std::thread::spawn(move || {
        std::io::Write::write_all(&mut file, &data).unwrap();
        drop(file);
        data
    });
    // A waiting request delays no other request.
    assert!(path.metadata().unwrap().is_file());
    cluster.start_node(0);
    let data = writer.join().unwrap();
    assert!(fs::read(&path).unwrap() == data);
    let other = cluster.mount(true);
    soon("it is sealed", || {
        fs::read(other.join("offline/f")).is_ok_and(|read| read == data)
    });
}

/// The mount sends a request without an answer again, and the request has its effect once.
#[test]
fn operation_with_lost_answer_is_repeated_with_one_effect() {
    if !can_mount() {
        return;
    }
    // The first request of an operation may be a look-up.
    for (local, others) in [(true, 0), (true, 1), (true, 2), (false, 0), (false, 2)] {
        let mut cluster = MountCluster::start();
        let lossy = Lossy::new(&cluster, local);
        let mounted = cluster.mount_by(lossy.endpoint(), true);
        let at = |name: &str| mounted.join(name);
        fs::write(at("a"), "a").unwrap();
        fs::write(at("b"), "b").unwrap();
        let inode = |name: &str| fs::symlink_metadata(at(name)).unwrap().ino();
        let (a, b) = (inode("a"), inode("b"));
        let loses = |what: &str, op: &mut dyn FnMut() -> std::io::Result<()>| {
            lossy.lose_after(others);
            op().unwrap_or_else(|error| panic!("{what}, local {local}, {others}: {error}"));
            soon("an answer is lost", || {
                // If no answer was lost yet, this request, which is always sent, loses one.
                let _ = rustix::fs::statvfs(mounted.path());
                lossy.lost()
            });
        };
        loses("mkdir", &mut || fs::create_dir(at("d")));
        loses("rename", &mut || fs::rename(at("a"), at("d/a")));
        assert_eq!((inode("d/a"), at("a").exists()), (a, false));
        loses("link", &mut || fs::hard_link(at("d/a"), at("a")));
        assert_eq!((inode("a"), at("a").metadata().unwrap().nlink()), (a, 2));
        loses("exchange", &mut || exchange(&at("a"), &at("b")));
        assert_eq!((inode("a"), inode("b")), (b, a));
        loses("unlink", &mut || fs::remove_file(at("b")));
        assert_eq!(at("d/a").metadata().unwrap().nlink(), 1);
        loses("symlink", &mut || symlink("a", at("s")));
        assert_eq!(fs::read_link(at("s")).unwrap(), Path::new("a"));
        loses("rename of a directory", &mut || {
            fs::rename(at("d"), at("e"))
        });
        loses("replace", &mut || fs::rename(at("a"), at("e/a")));
        assert_eq!(inode("e/a"), b);
        loses("create", &mut || fs::write(at("new"), "new"));
        loses("rewrite", &mut || fs::write(at("new"), "newer"));
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "newer");
        let create = rustix::fs::XattrFlags::CREATE;
        loses("setxattr", &mut || {
            Ok(rustix::fs::setxattr(at("new"), "user.k", b"v", create)?)
        });
        loses("removexattr", &mut || {
            Ok(rustix::fs::removexattr(at("new"), "user.k")?)
        });
        fs::remove_file(at("e/a")).unwrap();
        loses("rmdir", &mut || fs::remove_dir(at("e")));
        let mut names: Vec<_> = fs::read_dir(mounted.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != "kernels")
            .collect();
        names.sort();
        assert_eq!(names, ["new", "s"]);
        // A request that fails without a lost answer also fails with one.
        lossy.lose_after(0);
        let failed = fs::create_dir(at("new")).unwrap_err();
        assert_eq!(failed.kind(), std::io::ErrorKind::AlreadyExists);
    }
}

fn exchange(a: &Path, b: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

/// Starts a program and waits until it waits in a system call for the mount.
fn waiting(mut command: Command) -> Child {
    let child = command.spawn().unwrap();
    let place = format!("/proc/{}/wchan", child.id());
    soon("it waits for the mount", || {
        let place = fs::read_to_string(&place).unwrap();
        place.contains("fuse") || place.contains("request_wait")
    });
    child
}

/// Time that is shorter than the time limit of an operation.
const AT_ONCE: Duration = Duration::from_secs(15);

/// A program that waits for the mount can be ended at any time.
#[test]
fn waiting_program_can_be_killed() {
    if !can_mount() {
        return;
    }
    for in_place in [true, false] {
        let mut cluster = MountCluster::start();
        let mounted = cluster.mount(in_place);
        fs::write(mounted.join("f"), "text").unwrap();
        soon("it is sealed", || unsealed(&mounted).0 == 0);
        cluster.stop_server();
        let programs = [
            ("mkdir", "-m700", "d"),
            ("touch", "-c", "n"),
            ("touch", "-a", "n"),
            ("stat", "-t", "unknown"),
            ("rm", "-f", "f"),
            ("truncate", "-s9", "f"),
        ];
        for (program, argument, name) in programs {
            for signal in [libc::SIGKILL, libc::SIGINT] {
                // A shell makes its background programs ignore SIGINT.
                let mut command = Command::new("env");
                command.args(["--default-signal=INT", program, argument]);
                command.arg(mounted.join(name));
                let mut child = waiting(command);
                let pid = rustix::process::Pid::from_child(&child);
                let number = rustix::process::Signal::from_named_raw(signal).unwrap();
                rustix::process::kill_process(pid, number).unwrap();
                let mut ended = None;
                within(AT_ONCE, program, &mut || {
                    ended = child.try_wait().unwrap();
                    ended.is_some()
                });
                assert_eq!(ended.unwrap().signal(), Some(signal), "{program}");
            }
        }
        cluster.start_server();
        soon("the mount continues", || {
            fs::write(mounted.join("after"), "after").is_ok()
        });
        assert_eq!(reads(&mounted, "after"), "after");
        // The interrupted request leaves no writer.
        soon("it can be written", || {
            fs::write(mounted.join("n"), "n").is_ok()
        });
    }
}
