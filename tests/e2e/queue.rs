//! Tests the queue of labels: the error of a program without NATS, and that no password is printed.

use crate::array::{Said, said};
use std::process::Command;

const ADDRESS: &str = "nats://mill:hush@127.0.0.1:1";

/// Runs `tidemill ARGS` in a folder of its own, with the queue in the environment.
fn run(folder: &std::path::Path, queue: &str, args: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    command.env("TIDEMILL_DIR", folder);
    command.env("TIDEMILL_SERVER_QUEUE", queue).args(args);
    said(command.output().unwrap())
}

#[test]
fn unreachable_queue_is_reported_without_password() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let told = |said: &Said| assert!(!format!("{}{}", said.out, said.err).contains("hush"));
    for command in ["server", "up"] {
        let help = run(folder, ADDRESS, &[command, "--help"]);
        assert!(help.ok && help.out.contains("TIDEMILL_SERVER_QUEUE"));
        told(&help);
        let bad = run(folder, "http://mill:hush@127.0.0.1:1", &[command]);
        assert!(
            !bad.ok && bad.err.contains("nats://HOST:PORT"),
            "{}",
            bad.err
        );
        told(&bad);
        // With NATS the server starts anyway (`server/tests/nats.rs`).
        if !cfg!(feature = "nats") {
            let without = run(folder, "", &[command, "--queue", ADDRESS]);
            assert!(
                !without.ok && without.err.contains("--features nats"),
                "{}",
                without.err
            );
            told(&without);
        }
    }
    for log in std::fs::read_dir(folder.join("log")).unwrap() {
        let log = std::fs::read_to_string(log.unwrap().path()).unwrap();
        assert!(!log.contains("hush"), "{log}");
    }
}

#[cfg(feature = "nats")]
#[test]
fn array_with_nats_queue_runs_jobs() {
    use crate::broker::{Broker, PASSWORD};
    let Some(broker) = Broker::start(1, crate::require::tell) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ok = |args: &[&str]| {
        let said = run(folder, "journal", args);
        assert!(said.ok, "{args:?}: {}", said.err);
        said.out
    };
    let script = folder.join("job");
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
    let pid = std::fs::read_to_string(folder.join("run/server.pid")).unwrap();
    let pid = pid.split_whitespace().next().unwrap();
    let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    ok(&["put", script, "/in"]);
    ok(&["submit", "--watch", script]);
    assert!(ok(&["ls", "/"]).contains("out"));
    ok(&["down"]);
    let log = std::fs::read_to_string(folder.join("log/server.log")).unwrap();
    assert!(log.contains("labels wait in NATS"), "{log}");
    let password = PASSWORD.split('/').next().unwrap();
    assert!(!format!("{arguments}{log}").contains(password));
}
