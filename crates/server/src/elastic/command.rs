//! Commands that suspend or resume a host: `systemctl`, `ssh`, `ipmitool`, wake-on-LAN, a batch system. An administrator configures the
//! commands. This module runs them as processes, which may hang, fail, or print without end.

use parking_lot::Mutex;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for one run of a command.
const LIMIT: Duration = Duration::from_secs(60);
/// Interval at which a running command is checked for its end.
const PERIOD: Duration = Duration::from_millis(20);
/// Maximum number of bytes of a command's output that are stored.
const PRINTED_BYTES_MAX: usize = 400;
/// Maximum wait for the last output of a command after its end.
const LAST_OUTPUT_WAIT: Duration = Duration::from_millis(100);

/// A command line for the shell. The environment variable `TIDEMILL_NODE` contains the node's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellCommand(pub String);

/// Commands that suspend and resume the host of a node, if ending and resuming the node's process is not enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// Command that runs after the node's process has ended in order.
    pub suspend: Option<ShellCommand>,
    /// Command that has to start the node's process, or the host, which then starts the process.
    pub resume: Option<ShellCommand>,
}

impl ShellCommand {
    /// Runs the command and waits until it ends or exceeds the time limit. Blocks the thread.
    pub(super) fn run(&self, node: u32) -> Result<(), String> {
        self.run_within(node, LIMIT)
    }

    fn run_within(&self, node: u32, limit: Duration) -> Result<(), String> {
        let named = |what: String| format!("`{}` {what}", tidemill_model::display::line(&self.0));
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", &self.0]);
        command.env("TIDEMILL_NODE", node.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped()).process_group(0);
        let mut child = command
            .spawn()
            .map_err(|error| named(format!("can't be run: {error}")))?;
        let printed = listen(&mut child);
        let ended = wait(&mut child, limit).map_err(|error| named(error.to_string()))?;
        match ended {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                std::thread::sleep(LAST_OUTPUT_WAIT);
                let printed = String::from_utf8_lossy(&printed.lock()).trim().to_owned();
                let printed = tidemill_model::display::line(&printed).to_string();
                Err(named(format!("failed ({status}): {printed}")))
            }
            None => Err(named(format!(
                "had not ended after {} s and was killed",
                limit.as_secs()
            ))),
        }
    }
}

/// Reads the command's output to its end in a thread, and stores the beginning. If a process holds the pipe open forever, the thread never
/// ends.
fn listen(child: &mut Child) -> Arc<Mutex<Vec<u8>>> {
    let printed = Arc::<Mutex<Vec<u8>>>::default();
    if let Some(mut pipe) = child.stderr.take() {
        let kept = printed.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut piece) {
                let mut kept = kept.lock();
                let space = PRINTED_BYTES_MAX.saturating_sub(kept.len());
                kept.extend_from_slice(&piece[..count.min(space)]);
            }
        });
    }
    printed
}

/// Waits for the command. Returns the exit status; `None` if the command was killed, with all processes that it has started.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            let pid = rustix::process::Pid::from_child(child);
            // The process may have ended at this very moment.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<(), String> {
        ShellCommand(line.into()).run_within(7, Duration::from_millis(700))
    }

    #[test]
    fn shell_command_receives_node_number_and_reports_failure() {
        assert_eq!(run("test $TIDEMILL_NODE = 7"), Ok(()));
        let failed = run("echo 'no such host' >&2; exit 3").unwrap_err();
        assert!(
            failed.contains("no such host") && failed.contains("exit status: 3"),
            "{failed}"
        );
    }

    #[test]
    fn hanging_shell_command_is_killed_with_its_child_processes() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        let line = format!("sleep 1000 & echo $! > {}; yes >&2", pid.display());
        let failed = run(&line).unwrap_err();
        assert!(failed.contains("was killed"), "{failed}");
        let pid: i32 = std::fs::read_to_string(pid)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let gone = |_| {
            std::thread::sleep(PERIOD);
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            stat.map_or(true, |stat| stat.contains(") Z"))
        };
        assert!((0..500).any(gone), "the started process still runs");
    }
}
