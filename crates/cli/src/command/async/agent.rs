//! `tidemill async agent`: carries out the labels of a user's applications, and serves labels to programs in any language.

use crate::context::CommandContext;
use anyhow::Context as _;
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use tidemill_mount::agent;

const EXAMPLES: &str = "Examples:
  tidemill async agent                            in the foreground
  systemd-run --user tidemill async agent --stay  as your service
  tidemill async agent --listen 127.0.0.1:7070    labels by gRPC on a port of this host, too, with the token in agent.token

Applications start the agent themselves. Each user has one agent on a host. It carries out published labels, and ends
30 s after the last application. Programs in any language reach it by gRPC at `agent.sock`, in the directory of its logs.
Failures are in `agent.log`, in the same directory: see `tidemill async status`.";

/// Carry out the labels that your applications publish. Applications start the agent themselves
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Directory of the logs [default: /dev/shm/tidemill-labels-UID]
    #[arg(long, value_name = "DIR", env = "TIDEMILL_LABELS")]
    data_dir: Option<PathBuf>,
    /// Continue in the background, in a new session
    #[arg(long)]
    detach: bool,
    /// Keep running when no application is left
    #[arg(long)]
    stay: bool,
    /// Address of this host for labels by gRPC, in addition to the socket. Clients need the token in `agent.token`. Implies --stay
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

pub(crate) async fn run(args: Args, _context: &CommandContext) -> anyhow::Result<ExitCode> {
    if args.detach {
        detach(&args)?;
    } else {
        agent::run(args.data_dir.as_deref(), args.stay, args.listen)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn detach(args: &Args) -> anyhow::Result<()> {
    let directory = tidemill_label::apps::list(args.data_dir.as_deref())?.directory;
    let log = directory.join("agent.log");
    let mut how = OpenOptions::new();
    let opened = how.create(true).append(true).mode(0o600).open(&log);
    let file = opened.with_context(|| log.display().to_string())?;
    let program = std::env::current_exe().context("can't find the path of this program")?;
    let mut command = Command::new(program);
    command
        .args(["async", "agent", "--data-dir"])
        .arg(directory);
    if args.stay {
        command.arg("--stay");
    }
    if let Some(address) = args.listen {
        command.arg("--listen").arg(address.to_string());
    }
    // The child keeps neither the terminal nor the working directory of the caller.
    command.current_dir("/").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(file);
    command.spawn().context("can't start the agent")?;
    Ok(())
}
