//! `tidemill agent`: carries out the labels of a user's applications.

use anyhow::Context as _;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use tidemill_label::agent;

const EXAMPLES: &str = "Examples:
  tidemill agent                                  in the foreground
  systemd-run --user tidemill agent               as a service of yours

Applications start it themselves. It is one process of a user and host, does what applications have published, and ends
30 s after the last of them. What it could not do is in `agent.log`, in the folder of its logs: see `tidemill apps`.";

/// Carry out the labels that applications of yours publish; they start it themselves
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder of the logs [default: /dev/shm/tidemill-labels-UID]
    #[arg(long, value_name = "DIR", env = "TIDEMILL_LABELS")]
    folder: Option<PathBuf>,
    /// Go on in the background, in a session of its own
    #[arg(long)]
    detach: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.detach {
        detach(args)?;
    } else {
        // The application that started it may be ended with all of its session.
        let _ = rustix::process::setsid();
        agent::run(args.folder.as_deref(), |what| tracing::warn!("{what}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn detach(args: &Args) -> anyhow::Result<()> {
    let folder = tidemill_label::apps::list(args.folder.as_deref())?.folder;
    let log = folder.join("agent.log");
    let mut how = OpenOptions::new();
    let opened = how.create(true).append(true).mode(0o600).open(&log);
    let file = opened.with_context(|| log.display().to_string())?;
    let program = std::env::current_exe().context("where this program is")?;
    let mut command = Command::new(program);
    command.args(["agent", "--folder"]).arg(folder);
    // It keeps nothing of who started it: neither a terminal nor a folder.
    command.current_dir("/").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(file);
    command.spawn().context("can't start the agent")?;
    Ok(())
}
