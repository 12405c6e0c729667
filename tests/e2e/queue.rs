//! Tests the queue of labels: the error of a program without NATS, and that no password is printed.

use crate::cluster::{Printed, printed};
use std::process::Command;

const ADDRESS: &str = "nats://mill:hush@127.0.0.1:1";

/// Runs `tidemill ARGS` in a directory of its own, with the queue in the environment.
fn run(directory: &std::path::Path, queue: &str, args: &[&str]) -> Printed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    command.env("TIDEMILL_DIR", directory);
    command.env("TIDEMILL_SERVER_QUEUE", queue).args(args);
    printed(command.output().unwrap())
}

#[test]
fn unreachable_queue_is_reported_without_password() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let reported =
        |printed: &Printed| assert!(!format!("{}{}", printed.out, printed.err).contains("hush"));
    for command in [&["server", "run"][..], &["up"]] {
        let help = run(directory, ADDRESS, &[command, &["--help"]].concat());
        assert!(help.ok && help.out.contains("TIDEMILL_SERVER_QUEUE"));
        reported(&help);
        let bad = run(directory, "http://mill:hush@127.0.0.1:1", command);
        assert!(
            !bad.ok && bad.err.contains("nats://HOST:PORT"),
            "{}",
            bad.err
        );
        reported(&bad);
        // With NATS the server starts anyway (`server/tests/nats.rs`).
        if !cfg!(feature = "nats") {
            let without = run(directory, "", &[command, &["--queue", ADDRESS]].concat());
            assert!(
                !without.ok && without.err.contains("--features nats"),
                "{}",
                without.err
            );
            reported(&without);
        }
    }
    for log in std::fs::read_dir(directory.join("log")).unwrap() {
        let log = std::fs::read_to_string(log.unwrap().path()).unwrap();
        assert!(!log.contains("hush"), "{log}");
    }
}

#[cfg(feature = "nats")]
#[test]
fn cluster_with_nats_queue_runs_jobs() {
    use crate::broker::{Broker, PASSWORD};
    let Some(broker) = Broker::start(1, crate::require::tell) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let ok = |args: &[&str]| {
        let printed = run(directory, "journal", args);
        assert!(printed.ok, "{args:?}: {}", printed.err);
        printed.out
    };
    let script = directory.join("job");
    std::fs::write(&script, r#"name = "n"; workdir = "/"; tasks = ({ name = "t"; kernel = "gzip"; input = ["in"]; output = ["out"]; });"#)
        .unwrap();
    let script = script.to_str().unwrap();
    ok(&[
        "-vv",
        "up",
        "--no-mount",
        "--nodes",
        "2",
        "--queue",
        &broker.url(),
    ]);
    let pid = std::fs::read_to_string(directory.join("run/server.pid")).unwrap();
    let pid = pid.split_whitespace().next().unwrap();
    let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    ok(&["put", script, "/in"]);
    ok(&["submit", "--watch", script]);
    assert!(ok(&["ls", "/"]).contains("out"));
    ok(&["down"]);
    let log = std::fs::read_to_string(directory.join("log/server.log")).unwrap();
    assert!(log.contains("labels wait in NATS"), "{log}");
    let password = PASSWORD.split('/').next().unwrap();
    assert!(!format!("{arguments}{log}").contains(password));
}
