//! `tidemill down`: stops what `tidemill up` started.

use crate::context::CommandContext;
use crate::output::Message;
use crate::output::messages::StoppedCluster;
use crate::process;
use rustix::process::Signal;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "Examples:
  tidemill down                     stop the mount, then nodes, then the server
  tidemill down --force             kill processes that do not end in time

Nothing is lost: files stay in their directories, and jobs continue after the next `tidemill up`.";

/// Maximum time until a process ends by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time limit for the mount, which first waits for open files and seals written files.
const MOUNT_PATIENCE: Duration = Duration::from_secs(80);

/// Stop the cluster that `tidemill up` started
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Kill processes that do not end by themselves
    #[arg(long, short)]
    force: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let mut stopped = Vec::new();
    for name in started(context) {
        let Some(running) = process::running(&context.cluster.pid_file(&name)) else {
            // Left by a process that was killed.
            let _ = std::fs::remove_file(context.cluster.pid_file(&name));
            continue;
        };
        running.signal(Signal::TERM)?;
        let patience = if name == "mount" {
            MOUNT_PATIENCE
        } else {
            PATIENCE
        };
        if !running.wait(patience) {
            anyhow::ensure!(
                args.force,
                "{name} has not ended after {} s: process {}; see {}, or give --force to kill it",
                patience.as_secs(),
                running.pid,
                context.cluster.log(&name).display()
            );
            running.signal(Signal::KILL)?;
            running.wait(PATIENCE);
            let _ = std::fs::remove_file(context.cluster.pid_file(&name));
        }
        stopped.push(name);
    }
    let mountpoint = context.cluster.noted_mountpoint();
    if let Err(error) = tidemill_mount::mountpoint::give_back(&mountpoint) {
        context.note(format_args!("{}: {error}", mountpoint.display()));
    }
    let dir = context.cluster.path().display();
    let text = match stopped.as_slice() {
        [] => format!("nothing was running in {dir}"),
        names => format!("stopped {}", names.join(", ")),
    };
    let dir = dir.to_string();
    context
        .output
        .show(&Message(text, StoppedCluster { dir, stopped }))?;
    Ok(ExitCode::SUCCESS)
}

/// Names of the processes that have pid files, in the order they are to be stopped in.
fn started(context: &CommandContext) -> Vec<String> {
    let pid_file = context.cluster.pid_file("any");
    let entries = pid_file
        .parent()
        .and_then(|directory| std::fs::read_dir(directory).ok());
    let mut names: Vec<String> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".pid")?.to_owned()))
        .collect();
    let rank = |name: &str| match name {
        "mount" => 0,
        "server" => 2,
        _ => 1,
    };
    names.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
    names
}
