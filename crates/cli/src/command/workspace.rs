//! `tidemill workspace`: directories with a quota and an end.

use crate::command::cat;
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::format::{self, ByteSize, TimeLength};
use crate::output::Message;
use crate::output::list;
use crate::output::messages::WorkspaceLease;
use crate::output::workspace::{Workspace, Workspaces};
use anyhow::Context as _;
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidemill_client::Server;
use tidemill_wire::v1;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tonic::{Code, Status};

const EXAMPLES: &str = "Examples:
  tidemill workspace create m51 --quota 1GiB --ttl 2h       your workspace /workspaces/m51, in memory if the cluster has any
  tidemill workspace create shared --group 1200 --mode 770  for a group, by its number
  tidemill workspace join m51 -- ./simulate                 the workspace ends with the last program
  tidemill workspace get m51 step-7.dat --wait --timeout 30s > step   wait until a program has written it
  tidemill workspace list
  tidemill workspace leave m51 3                            the lease holder 3 of `tidemill workspace list`
  tidemill workspace delete m51

Files in a workspace are normal files, below /workspaces in the mount.";

/// Interval at which a lease holder renews its lease.
const RENEWAL: Duration = Duration::from_secs(5);
/// Pause before another request to an offline server.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Wait without a limit: centuries.
const UNLIMITED: Duration = Duration::from_nanos(u64::MAX);

/// Manage workspaces: directories with a quota and an end, in memory if the cluster has a node of the memory tier
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: WorkspaceCommand,
}

#[derive(Debug, clap::Subcommand)]
enum WorkspaceCommand {
    /// Create a workspace: the directory /workspaces/NAME
    Create(CreateWorkspace),
    /// List the workspaces that you may enter
    List,
    /// Join a workspace as a lease holder, as long as a program runs or until you leave. A workspace ends with its last lease holder
    Join(JoinWorkspace),
    /// End a lease
    Leave {
        /// Workspace name
        name: String,
        /// Number of the lease holder, as in `workspace join` and `workspace list`
        member: u64,
    },
    /// Print a file of a workspace; with --wait, as soon as it exists
    Get(Get),
    /// Delete a workspace and all its files
    Delete {
        /// Workspace name
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct CreateWorkspace {
    /// Workspace name
    name: String,
    /// Group whose members may enter the workspace, as far as its mode permits, by number [default: yours]
    #[arg(long, value_name = "GROUP")]
    group: Option<u32>,
    /// Mode of the workspace, in octal as for chmod: rights to enter it and to change its files
    #[arg(long, default_value = "700", value_name = "MODE", value_parser = mode)]
    mode: u32,
    /// Maximum size of all files in the workspace together [default: no limit]
    #[arg(long, value_name = "SIZE")]
    quota: Option<ByteSize>,
    /// Lifetime, after which the workspace ends even if it has lease holders, such as 30m, 2h [default: unlimited]
    #[arg(long, value_name = "TIME")]
    ttl: Option<TimeLength>,
}

#[derive(Debug, clap::Args)]
struct JoinWorkspace {
    /// Workspace name
    name: String,
    /// Program and its arguments; without a program you are a lease holder until you leave
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// Workspace name
    name: String,
    /// Path of the file, below the workspace
    key: OsString,
    /// Wait until the file exists
    #[arg(long)]
    wait: bool,
    /// Maximum time of --wait, such as 30s [default: no limit]
    #[arg(long, value_name = "TIME", requires = "wait")]
    timeout: Option<TimeLength>,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("bad mode: `{text}`; give three octal digits, such as 770"))
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    match args.command {
        WorkspaceCommand::Create(args) => create(args, context, &server).await?,
        WorkspaceCommand::List => {
            let request = v1::ListWorkspacesRequest {
                credentials: Some(credentials()),
            };
            let workspaces = server.answer(server.workspaces().list(request).await)?;
            let workspaces = list(&workspaces.workspaces);
            context.output.show(&Workspaces(workspaces))?;
        }
        WorkspaceCommand::Delete { name } => {
            let request = v1::WorkspaceRequest {
                credentials: Some(credentials()),
                name,
            };
            let workspace = server.answer(server.workspaces().remove(request).await)?;
            let files = format::count(workspace.files, "file");
            let text = format!("workspace {} is deleted, with {files}", workspace.name);
            context
                .output
                .show(&Message(text, Workspace::from(&workspace)))?;
        }
        WorkspaceCommand::Join(args) => return join(args, context, &server).await,
        WorkspaceCommand::Leave { name, member } => {
            let place = ServerWorkspace {
                server: &server,
                workspace: &name,
            };
            place.leave(member).await?;
            let text = format!("lease holder {member} has left workspace {name}");
            let workspace = name;
            context
                .output
                .show(&Message(text, WorkspaceLease { workspace, member }))?;
        }
        WorkspaceCommand::Get(args) => get(args, context, &server).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(
    args: CreateWorkspace,
    context: &CommandContext,
    server: &Server,
) -> anyhow::Result<()> {
    let ttl = args
        .ttl
        .map(|TimeLength(ttl)| i64::try_from(ttl.as_nanos()));
    let request = v1::CreateWorkspaceRequest {
        credentials: Some(credentials()),
        name: args.name,
        mode: args.mode,
        gid: args.group,
        quota_bytes: args.quota.map_or(0, |ByteSize(bytes)| bytes),
        ttl_ns: ttl.transpose().context("--ttl is too long")?.unwrap_or(0),
    };
    let workspace = server.answer(server.workspaces().create(request).await)?;
    let text = format!("/workspaces/{} is created", workspace.name);
    context
        .output
        .show(&Message(text, Workspace::from(&workspace)))?;
    Ok(())
}

/// A workspace of a server.
struct ServerWorkspace<'a> {
    server: &'a Server,
    workspace: &'a str,
}

impl ServerWorkspace<'_> {
    /// Joins as a new lease holder, or as one that still exists; returns its number.
    async fn join(&self, member: u64, stays: bool) -> Result<u64, Status> {
        let request = v1::JoinWorkspaceRequest {
            credentials: Some(credentials()),
            name: self.workspace.to_owned(),
            member,
            stays,
        };
        let joined = self.server.workspaces().join(request).await?;
        Ok(joined.into_inner().member)
    }

    async fn leave(&self, member: u64) -> anyhow::Result<()> {
        let request = v1::LeaveWorkspaceRequest {
            credentials: Some(credentials()),
            name: self.workspace.to_owned(),
            member,
        };
        let left = self.server.workspaces().leave(request).await;
        left.map_err(|status| self.server.explain(status))?;
        Ok(())
    }

    /// Renews a lease. Returns the number of the lease holder, a new number if the server has ended the lease.
    async fn renew(&self, member: u64) -> u64 {
        let renewed = async {
            match self.join(member, false).await {
                Err(status) if status.code() == Code::NotFound => self.join(0, false).await,
                other => other,
            }
        };
        match tokio::time::timeout(RENEWAL, renewed).await {
            Ok(Ok(member)) => return member,
            Ok(Err(status)) => {
                tracing::warn!(
                    "workspace {}: {}",
                    self.workspace,
                    self.server.explain(status)
                );
            }
            Err(_) => tracing::warn!("workspace {}: the server does not answer", self.workspace),
        }
        member
    }
}

async fn join(
    args: JoinWorkspace,
    context: &CommandContext,
    server: &Server,
) -> anyhow::Result<ExitCode> {
    let workspace = &args.name;
    let place = ServerWorkspace { server, workspace };
    let joined = place.join(0, args.program.is_empty()).await;
    let mut member = joined.map_err(|status| server.explain(status))?;
    let Some((program, rest)) = args.program.split_first() else {
        let text = format!(
            "you are a lease holder of workspace {workspace} until `tidemill workspace leave {workspace} {member}`"
        );
        let workspace = workspace.clone();
        context
            .output
            .show(&Message(text, WorkspaceLease { workspace, member }))?;
        return Ok(ExitCode::SUCCESS);
    };
    // Installed before the program starts, so that no signal ends this process instead of the program.
    let mut asked = EndSignals::new()?;
    let child = tokio::process::Command::new(program).args(rest).spawn();
    let status = match child {
        Ok(mut child) => {
            let mut renewals = tokio::time::interval(RENEWAL);
            loop {
                tokio::select! {
                    status = child.wait() => break status.context("the program can't be waited for"),
                    signal = asked.next() => pass_on(&child, signal),
                    _ = renewals.tick() => member = place.renew(member).await,
                }
            }
        }
        Err(error) => Err(error).with_context(|| program.display().to_string()),
    };
    // An offline server ends the lease by itself.
    let left = tokio::time::timeout(RENEWAL, place.leave(member)).await;
    if let Ok(Err(error)) = left {
        tracing::debug!("workspace {workspace}: {error:#}");
    }
    let status = status?;
    let killed = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(killed);
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Signals that ask to end. Those of the terminal have reached the program, too.
struct EndSignals {
    interrupt: Signals,
    quit: Signals,
    terminate: Signals,
    hangup: Signals,
}

impl EndSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal for the program.
    async fn next(&mut self) -> Signal {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.quit.recv() => {}
                _ = self.terminate.recv() => return Signal::TERM,
                _ = self.hangup.recv() => return Signal::HUP,
            }
        }
    }
}

fn pass_on(child: &tokio::process::Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        // It may have ended.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

async fn get(args: Get, context: &CommandContext, server: &Server) -> anyhow::Result<()> {
    let workspace = files::path(format!("/workspaces/{}", args.name))?;
    let path = workspace.join(args.key.as_bytes());
    if args.wait {
        let limit = args
            .timeout
            .map_or(UNLIMITED, |TimeLength(timeout)| timeout);
        await_file(server, &path, limit).await?;
    }
    cat::to_stdout(&context.transfer().await?, &path, false).await?;
    Ok(())
}

/// Waits until a file exists, also during a restart of the server.
async fn await_file(
    server: &Server,
    path: &files::ClusterPath,
    wait: Duration,
) -> anyhow::Result<()> {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let request = v1::WaitForFileRequest {
            credentials: Some(credentials()),
            path: path.clone().into_bytes(),
            wait_ns: u64::try_from(left.as_nanos()).unwrap_or(u64::MAX),
        };
        let Err(status) = server.workspaces().wait(request).await else {
            return Ok(());
        };
        // The server ends each request after an hour.
        let ended = status.code() == Code::DeadlineExceeded;
        let error = server.explain(status);
        if !(ended || error.is_lost()) || Instant::now() >= until {
            return Err(error.into());
        }
        tokio::time::sleep(RETRY_PAUSE.min(left)).await;
    }
}
