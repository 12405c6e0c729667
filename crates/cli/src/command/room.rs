//! `tidemill room`: directories that end.

use crate::command::cat;
use crate::context::{Context, credentials};
use crate::files;
use crate::format::{self, Length, Size};
use crate::output::Said;
use crate::output::room::{RoomsView, room_json};
use anyhow::Context as _;
use rustix::process::{Pid, Signal};
use serde_json::json;
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
  tidemill room create m51 --quota 1GiB --ttl 2h       your room /rooms/m51, in memory if the cluster has any
  tidemill room create shared --group 1200 --mode 770  for a group, by its number
  tidemill room join m51 -- ./simulate                 the room ends with the last program
  tidemill room get m51 step-7.dat --wait 30s > step   wait until a program has written it
  tidemill room list
  tidemill room remove m51

Files in a room are normal files, below /rooms in the mount.";

/// Interval at which a member renews its membership.
const RENEWAL: Duration = Duration::from_secs(5);
/// Pause before another request to an offline server.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Manage rooms: directories with a quota and an end, in memory if the cluster has a node in memory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: RoomCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RoomCommand {
    /// Make a room: the directory /rooms/NAME
    Create(Create),
    /// List the rooms that you may enter
    List,
    /// End a room and delete all its files
    Remove {
        /// Room name
        name: String,
    },
    /// Join a room as a member, as long as a program runs or until you leave. A room ends with its last member
    Join(Join),
    /// End a membership
    Leave {
        /// Room name
        name: String,
        /// Number of the member, as in `room join` and `room list`
        member: u64,
    },
    /// Print a file of a room, as soon as it exists
    Get(Get),
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Room name
    name: String,
    /// Group whose members may enter the room, as far as its mode permits, by number [default: yours]
    #[arg(long, value_name = "GROUP")]
    group: Option<u32>,
    /// Mode of the room, in octal as for chmod: rights to enter it and to change its files
    #[arg(long, default_value = "700", value_name = "MODE", value_parser = mode)]
    mode: u32,
    /// Maximum size of all files in the room together [default: no limit]
    #[arg(long, value_name = "SIZE")]
    quota: Option<Size>,
    /// Lifetime, after which the room ends even if it has members, such as 30m, 2h [default: unlimited]
    #[arg(long, value_name = "TIME")]
    ttl: Option<Length>,
}

#[derive(Debug, clap::Args)]
struct Join {
    /// Room name
    name: String,
    /// Program and its arguments; without a program you are a member until you leave
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// Room name
    name: String,
    /// Path of the file, below the room
    key: OsString,
    /// Maximum wait for the file, such as 30s [default: no wait]
    #[arg(long, value_name = "TIME")]
    wait: Option<Length>,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("`{text}` is no mode: give three octal digits, such as 770"))
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    match args.command {
        RoomCommand::Create(args) => create(args, context, &server).await?,
        RoomCommand::List => {
            let request = v1::ListRoomsRequest {
                credentials: Some(credentials()),
            };
            let rooms = server.rooms().list(request).await;
            let rooms = rooms.map_err(|status| server.explain(status))?;
            context.output.show(&RoomsView(rooms.into_inner().rooms))?;
        }
        RoomCommand::Remove { name } => {
            let request = v1::RoomRequest {
                credentials: Some(credentials()),
                name,
            };
            let room = server.rooms().remove(request).await;
            let room = room.map_err(|status| server.explain(status))?.into_inner();
            let files = format::count(room.files, "file");
            let text = format!("room {} has ended, with {files}", room.name);
            context.output.show(&Said::new(text, room_json(&room)))?;
        }
        RoomCommand::Join(args) => return join(args, context, &server).await,
        RoomCommand::Leave { name, member } => {
            let place = Place {
                server: &server,
                room: &name,
            };
            place.leave(member).await?;
            let text = format!("member {member} has left room {name}");
            let said = json!({ "room": name, "member": member });
            context.output.show(&Said::new(text, said))?;
        }
        RoomCommand::Get(args) => get(args, context, &server).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(args: Create, context: &Context, server: &Server) -> anyhow::Result<()> {
    let ttl = args.ttl.map(|Length(ttl)| i64::try_from(ttl.as_nanos()));
    let request = v1::CreateRoomRequest {
        credentials: Some(credentials()),
        name: args.name,
        mode: args.mode,
        gid: args.group,
        quota_bytes: args.quota.map_or(0, |Size(bytes)| bytes),
        ttl_ns: ttl.transpose().context("--ttl is too long")?.unwrap_or(0),
    };
    let room = server.rooms().create(request).await;
    let room = room.map_err(|status| server.explain(status))?.into_inner();
    let text = format!("/rooms/{} is made", room.name);
    context.output.show(&Said::new(text, room_json(&room)))?;
    Ok(())
}

/// A room of a server.
struct Place<'a> {
    server: &'a Server,
    room: &'a str,
}

impl Place<'_> {
    /// A new member, or one that is still there; gives its number.
    async fn join(&self, member: u64, stays: bool) -> Result<u64, Status> {
        let request = v1::JoinRoomRequest {
            credentials: Some(credentials()),
            name: self.room.to_owned(),
            member,
            stays,
        };
        let joined = self.server.rooms().join(request).await?;
        Ok(joined.into_inner().member)
    }

    async fn leave(&self, member: u64) -> anyhow::Result<()> {
        let request = v1::LeaveRoomRequest {
            credentials: Some(credentials()),
            name: self.room.to_owned(),
            member,
        };
        let left = self.server.rooms().leave(request).await;
        left.map_err(|status| self.server.explain(status))?;
        Ok(())
    }

    /// Renews a membership. Returns the number of the member, a new number if the server has ended the membership.
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
                tracing::warn!("room {}: {}", self.room, self.server.explain(status));
            }
            Err(_) => tracing::warn!("room {}: the server does not answer", self.room),
        }
        member
    }
}

async fn join(args: Join, context: &Context, server: &Server) -> anyhow::Result<ExitCode> {
    let room = &args.name;
    let place = Place { server, room };
    let joined = place.join(0, args.program.is_empty()).await;
    let mut member = joined.map_err(|status| server.explain(status))?;
    let Some((program, rest)) = args.program.split_first() else {
        let text =
            format!("you are a member of room {room} until `tidemill room leave {room} {member}`");
        let said = json!({ "room": room, "member": member });
        context.output.show(&Said::new(text, said))?;
        return Ok(ExitCode::SUCCESS);
    };
    // Installed before the program starts, so that no signal ends this process instead of the program.
    let mut asked = Asked::new()?;
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
    // An offline server ends the membership by itself.
    let left = tokio::time::timeout(RENEWAL, place.leave(member)).await;
    if let Ok(Err(error)) = left {
        tracing::debug!("room {room}: {error:#}");
    }
    let status = status?;
    let killed = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(killed);
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Signals that ask to end. Those of the terminal have reached the program, too.
struct Asked {
    interrupt: Signals,
    quit: Signals,
    terminate: Signals,
    hangup: Signals,
}

impl Asked {
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

async fn get(args: Get, context: &Context, server: &Server) -> anyhow::Result<()> {
    let room = files::path(format!("/rooms/{}", args.name))?;
    let path = room.join(args.key.as_bytes());
    if let Some(Length(wait)) = args.wait {
        await_file(server, &path, wait).await?;
    }
    cat::to_stdout(&context.transfer().await?, &path, false).await?;
    Ok(())
}

/// Waits until there is a file, also through the server's restart.
async fn await_file(server: &Server, path: &files::Path, wait: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let request = v1::WaitForFileRequest {
            credentials: Some(credentials()),
            path: path.clone().into_bytes(),
            wait_ns: u64::try_from(left.as_nanos()).unwrap_or(u64::MAX),
        };
        let Err(status) = server.rooms().wait(request).await else {
            return Ok(());
        };
        let error = server.explain(status);
        if !error.is_lost() || left.is_zero() {
            return Err(error.into());
        }
        tokio::time::sleep(RETRY_PAUSE.min(left)).await;
    }
}
