//! Tests real processes that are killed, stopped or late: all readers read the acknowledged data, all work continues by itself, and no
//! process waits for data that it did not request.

use crate::cluster::{Cluster, Options, wait};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FILES: usize = 20;

fn options(remote: bool) -> Options {
    Options {
        remote,
        ..Options::default()
    }
}

fn rewrite(cluster: &Cluster, text: &str) {
    for number in 0..FILES {
        let mut file = File::create(cluster.at(&format!("w/f{number}"))).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.sync_all().unwrap();
    }
}

/// The mount, a client and a job read the bytes that `close` acknowledged just before the server was killed.
#[test]
fn closed_file_is_readable_after_server_restart() {
    for remote in [false, true] {
        let Some(mut cluster) = Cluster::with(options(remote)) else {
            return;
        };
        cluster.sh("mkdir w");
        let job = r#"name = "j"; workdir = "/w"; tasks = ( { name = "t"; kernel = "/bin/cat"; args = ["f7"];
            input = ["f7"]; output = ["out"]; stdout = "out"; } );"#;
        for round in 0..3 {
            let text = format!("version {round}\n");
            rewrite(&cluster, &text);
            cluster.kill_server();
            cluster.start_server();
            for number in 0..FILES {
                let name = format!("w/f{number}");
                assert_eq!(fs::read_to_string(cluster.at(&name)).unwrap(), text);
                wait("clients read it", || {
                    cluster.run(&["cat", &format!("/{name}")]).out == text
                });
            }
            cluster.wait_for_nodes(2);
            fs::remove_file(cluster.at("w/out")).ok();
            cluster.done(cluster.submit(job));
            assert_eq!(cluster.sh("cat w/out"), text);
        }
        let status = cluster.sh("cat .tidemill/status");
        assert!(status.starts_with("unsealed 0\n"), "{status}");
    }
}

/// Every operation waits for a server that is killed and started again, and nothing happens twice.
#[test]
fn file_operations_succeed_across_server_restart() {
    for remote in [false, true] {
        let Some(mut cluster) = Cluster::with(options(remote)) else {
            return;
        };
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let directory = cluster.at(&format!("d{worker}"));
                let stop = stop.clone();
                std::thread::spawn(move || work(&directory, &stop))
            })
            .collect();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(700));
            cluster.kill_server();
            cluster.start_server();
        }
        stop.store(true, Ordering::Release);
        for worker in workers {
            assert!(worker.join().unwrap() > 0);
        }
        assert_eq!(
            cluster.sh("ls -A d0 d1 d2 d3 | grep -v '^d[0-3]:' | grep -v '^$' || true"),
            ""
        );
    }
}

/// Makes, moves and removes files until `stop` is set; returns the number of repetitions. No operation may fail.
fn work(directory: &Path, stop: &AtomicBool) -> usize {
    let says = |what: &str, outcome: std::io::Result<()>| {
        outcome.unwrap_or_else(|error| panic!("{what} in {}: {error}", directory.display()));
    };
    says("mkdir", fs::create_dir(directory));
    let (a, b) = (directory.join("a"), directory.join("b"));
    let mut rounds = 0;
    while !stop.load(Ordering::Acquire) {
        says("mkdir", fs::create_dir(&a));
        says("rename", fs::rename(&a, &b));
        says("rmdir", fs::remove_dir(&b));
        says("symlink", std::os::unix::fs::symlink("x", &a));
        says("unlink", fs::remove_file(&a));
        says("write", fs::write(&a, "text"));
        says("link", fs::hard_link(&a, &b));
        says("unlink", fs::remove_file(&a));
        assert_eq!(fs::read_to_string(&b).unwrap(), "text");
        says("unlink", fs::remove_file(&b));
        rounds += 1;
    }
    rounds
}

/// A node that does not answer blocks only operations on its files, and gets no new files.
#[test]
fn hung_node_blocks_only_files_on_that_node() {
    let nodes = 3;
    let Some(cluster) = Cluster::with(Options {
        nodes,
        ..options(true)
    }) else {
        return;
    };
    cluster.sh(
        "for e in 0 1 2; do mkdir e$e; setfattr -n user.tidemill.node -v $e e$e; done; mkdir any",
    );
    cluster.sh("echo before > e1/before");
    wait("it is sealed", || {
        cluster.run(&["cat", "/e1/before"]).out == "before\n"
    });
    cluster.signal_node(0, Signal::STOP);
    let stuck = cluster.at("e0/stuck");
    let stuck = std::thread::spawn(move || fs::write(stuck, "stuck"));
    let path = cluster.at("");
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for number in 0..12 {
            for directory in ["e1", "e2", "any"] {
                fs::write(path.join(format!("{directory}/n{number}")), "new").unwrap();
            }
        }
        assert_eq!(
            fs::read_to_string(path.join("e1/before")).unwrap(),
            "before\n"
        );
        done.send(()).unwrap();
    });
    // These operations end before the blocked one times out: its 30 s began first.
    finished.recv_timeout(Duration::from_secs(29)).unwrap();
    cluster.signal_node(0, Signal::CONT);
    stuck.join().unwrap().unwrap();
    for directory in ["e1", "e2", "any"] {
        for number in 0..12 {
            let name = format!("/{directory}/n{number}");
            wait("it is sealed", || cluster.run(&["cat", &name]).out == "new");
        }
    }
    wait("it is sealed", || {
        cluster.run(&["cat", "/e0/stuck"]).out == "stuck"
    });
}

/// The file can't be sealed, and the Linux kernel has forgotten its names. It blocks only directories above it.
#[test]
fn file_that_cannot_be_sealed_blocks_no_other_directory() {
    let Some(mut cluster) = Cluster::with(options(false)) else {
        return;
    };
    cluster.sh("mkdir -p e1/in other; setfattr -n user.tidemill.node -v 1 e1");
    let mut file = File::create(cluster.at("e1/in/f")).unwrap();
    file.write_all(b"before").unwrap();
    cluster.kill_node(1);
    drop(file);
    // Only root can make the kernel forget the names; it may forget them without that, too.
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
    cluster.sh("mv other moved");
    cluster.start_node(1);
    wait("it is sealed", || {
        cluster.run(&["cat", "/e1/in/f"]).out == "before"
    });
}

/// Ctrl-C and SIGKILL end programs that wait for a stopped server, in any operation.
#[test]
fn programs_on_mount_terminate_while_server_is_stopped() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("echo text > f");
    cluster.signal_server(Signal::STOP);
    // One program handles the signal itself, the others do not.
    let python =
        "import os, sys\ntry: os.mkdir(sys.argv[1])\nexcept KeyboardInterrupt: os._exit(7)";
    let programs: BTreeMap<&str, Vec<&str>> = [
        ("python3", vec!["-c", python]),
        ("mkdir", vec![]),
        ("sh", vec!["-c", "echo x > $0"]),
        ("ls", vec!["-l"]),
    ]
    .into();
    for (program, arguments) in programs {
        for signal in [Signal::INT, Signal::KILL] {
            // If the tests run in the background of a shell, they ignore SIGINT, and so do all programs that they start.
            let mut child = Command::new("env")
                .args(["--default-signal=INT", program])
                .args(&arguments)
                .arg(cluster.at("new"))
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let place = format!("/proc/{}/wchan", child.id());
            wait("it waits for the mount", || {
                let place = fs::read_to_string(&place).unwrap();
                place.contains("fuse") || place.contains("request_wait")
            });
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, signal).unwrap();
            // Half of the time that an operation waits by itself.
            let limit = Instant::now() + Duration::from_secs(15);
            let mut ended = None;
            wait("it ends", || {
                assert!(Instant::now() < limit, "{program} continues to wait");
                ended = child.try_wait().unwrap();
                ended.is_some()
            });
            let ended = ended.unwrap();
            let handled = program == "python3" && signal == Signal::INT;
            let expected = if handled {
                (Some(7), None)
            } else {
                (None, Some(signal.as_raw()))
            };
            assert_eq!((ended.code(), ended.signal()), expected, "{program}");
        }
    }
    cluster.signal_server(Signal::CONT);
    assert_eq!(cluster.sh("cat f"), "text\n");
}

/// A mount that starts before the server waits for it.
#[test]
fn mount_may_start_before_server() {
    let Some(mut cluster) = Cluster::with(Options {
        mount: false,
        ..Options::default()
    }) else {
        return;
    };
    cluster.kill_server();
    cluster.spawn_mount();
    wait("the mount reports the reason of its wait", || {
        cluster.log("mount.log").contains("waiting for the server")
    });
    cluster.start_server();
    cluster.wait_for_mount();
    cluster.wait_for_nodes(2);
    cluster.sh("echo x > f; cat f");
}
