//! The binary without a cluster: help, completions, error messages, exit codes, and the precedence of flags, environment and
//! file.

use std::path::Path;
use std::process::{Command, Output};

/// The binary, with an environment without variables of Tidemill.
fn tidemill(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    command
        .args(arguments)
        .env_clear()
        .env("HOME", home)
        .env("PATH", "/usr/bin:/bin");
    command
}

/// Runs the binary and returns its output and exit code.
fn run(home: &Path, arguments: &[&str]) -> Output {
    tidemill(home, arguments)
        .output()
        .expect("the binary was built for this test")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn unreachable_server_prints_one_line_and_exits_with_5() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("no.sock");
    let output = run(
        home.path(),
        &["--server", &format!("unix:{}", socket.display()), "status"],
    );
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    assert!(
        text.starts_with("error: can't reach the server at unix:"),
        "{text}"
    );
    assert!(
        text.contains("start it there, or give the address"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn wrong_usage_exits_with_2_and_suggests_fix() {
    let home = tempfile::tempdir().unwrap();
    let output = run(home.path(), &["sumbit", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("submit"), "{}", stderr(&output));
    let output = run(home.path(), &["--server", "localhost", "status"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("unix:PATH or https://HOST:PORT"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn missing_job_script_is_named() {
    let home = tempfile::tempdir().unwrap();
    let output = run(home.path(), &["submit", "/no/such/job.conf"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("/no/such/job.conf"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn unknown_config_key_error_names_line() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("t.toml");
    std::fs::write(&file, "[client]\nserver = \"unix:/a\"\ntoken = \"x\"\n").unwrap();
    let output = run(home.path(), &["--config", file.to_str().unwrap(), "status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("t.toml:3: unknown field `token`"),
        "{}",
        stderr(&output)
    );
    let output = run(home.path(), &["--config", "/no/such.toml", "status"]);
    assert!(
        stderr(&output).contains("/no/such.toml"),
        "{}",
        stderr(&output)
    );
}

/// The error about an unreachable server names its address.
#[test]
fn flag_overrides_environment_then_file_then_default() {
    let home = tempfile::tempdir().unwrap();
    let tried = |flag: bool, env: bool, file: bool| {
        let directory = home.path().join(".config/tidemill");
        std::fs::create_dir_all(&directory).unwrap();
        let text = if file {
            "[client]\nserver = \"unix:/by-file\"\n"
        } else {
            ""
        };
        std::fs::write(directory.join("tidemill.toml"), text).unwrap();
        let mut command = tidemill(home.path(), &["status"]);
        if flag {
            command.args(["--server", "unix:/by-flag"]);
        }
        if env {
            command.env("TIDEMILL_SERVER", "unix:/by-env");
        }
        command.env("TIDEMILL_DIR", "/by-default");
        let text = stderr(&command.output().unwrap());
        let (_, rest) = text.split_once("unix:").unwrap();
        rest.split(':').next().unwrap().to_owned()
    };
    assert_eq!(tried(true, true, true), "/by-flag");
    assert_eq!(tried(false, true, true), "/by-env");
    assert_eq!(tried(false, false, true), "/by-file");
    assert_eq!(tried(false, false, false), "/by-default/server/server.sock");
}

#[test]
fn completions_know_every_command() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(home.path(), &["completions", shell]);
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        for command in ["submit", "lineage", "node", "completions"] {
            assert!(text.contains(command), "{shell} does not know {command}");
        }
    }
}

#[test]
fn closed_output_pipe_is_no_error() {
    let home = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = tidemill(home.path(), &["completions", "bash"])
        .stdout(writer)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn down_reports_that_nothing_runs() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("cluster");
    let output = run(
        home.path(),
        &["--json", "--dir", dir.to_str().unwrap(), "down"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["stopped"], serde_json::json!([]));
}

/// The operating system gave the pid to another process: `down` must not touch that process.
#[test]
fn down_ignores_process_that_only_has_the_pid() {
    let home = tempfile::tempdir().unwrap();
    let run_directory = home.path().join("run");
    std::fs::create_dir_all(&run_directory).unwrap();
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    std::fs::write(
        run_directory.join("server.pid"),
        format!("{} 1\n", other.id()),
    )
    .unwrap();
    let output = run(
        home.path(),
        &["--dir", home.path().to_str().unwrap(), "down"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        other.try_wait().unwrap().is_none(),
        "another process was ended"
    );
    assert!(!run_directory.join("server.pid").exists());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn columns_are_checked_before_the_command_runs() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (
            &["job", "list", "--columns", "job,age"][..],
            "no such column: age; the columns are job,name,state",
        ),
        (
            &["--columns", "path", "rm", "/a"],
            "the output has no table",
        ),
        (
            &["--json", "node", "list", "--columns", "node"],
            "cannot be used with '--json'",
        ),
    ] {
        let output = run(home.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    let output = run(
        home.path(),
        &["config", "show", "--all", "--columns", "origin,key"],
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("\nORIGIN   KEY\n"), "{text}");
}
