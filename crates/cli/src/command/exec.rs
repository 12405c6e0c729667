//! `tidemill exec`: runs a program that finds the cluster below a path, without a mount.

mod program;
mod wait;

use crate::context::CommandContext;
use crate::format::{ByteSize, TimeLength};
use anyhow::{Context as _, bail, ensure};
use program::ProgramFile;
use rustix::fd::{AsFd, OwnedFd};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tidemill_client::Endpoint;
use tidemill_mount::preload;
use tidemill_preload_api::{ASYNC_VARIABLE, DIRECTORY_VARIABLE, PREFIX_VARIABLE, SOCKET_VARIABLE};

const EXAMPLES: &str = "Examples:
  tidemill exec -- ls -l /t
  tidemill exec --prefix /data -- python3 analyse.py /data/in.csv
  tidemill exec -- bash                        a shell whose programs all find the cluster below /t
  tidemill exec --async -- ./simulate /t/out   store closed files in the background
  tidemill exec --wait                         wait until all are stored; report files that failed, with exit code 1

The command needs neither /dev/fuse nor root. The file system is your own process. It starts on demand and ends 60 s
after the last program; root may run one for everybody. Statically linked programs, Go programs and set-user-id
programs bypass the library and find nothing below the path: the command reports this before they start. docs/preload.md
describes the limits, and the service for all users of a machine.";

/// Time after which a file system without users ends.
const IDLE: Duration = Duration::from_secs(60);
/// The same for a file system that was started only to store remaining files.
const IDLE_AFTER_WAIT: Duration = Duration::from_secs(1);
/// Maximum time until a file system that another command started at the same time is ready, and the interval of the checks.
const TOGETHER: Duration = Duration::from_secs(30);
const TOGETHER_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of restarts while another process starts: that process may have ended instead.
const TOGETHER_LOOKS: u32 = 50;
/// Default time that attributes of files are cached.
const ATTR_TTL: Duration = Duration::from_secs(60);
/// Message of the file system when programs can use it.
const READY: &str = "ready";
/// Name of the library.
const LIBRARY: &str = "libtidemill_preload.so";
/// Bytes of the prefix at most, as of the library.
const PREFIX_BYTES_MAX: usize = 255;
/// Bytes of the socket's path at most, as of the system.
const SOCKET_BYTES_MAX: usize = 107;
/// Descriptor of the connection that keeps the file system running, above the descriptors that programs use.
const KEPT_AT: i32 = 700;

/// Run a program that finds the cluster below a path, without a mount
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Path at which the program finds the cluster
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/t",
        env = "TIDEMILL_PRELOAD_PATH"
    )]
    prefix: PathBuf,
    /// Program and its arguments
    #[arg(value_name = "PROGRAM", last = true)]
    program: Vec<OsString>,
    /// Store files in the background after the program closes them, if their node is not on this machine. Until then they are
    /// kept on this machine, even if the program is killed
    #[arg(long = "async", conflicts_with_all = ["serve", "wait"])]
    asynchronous: bool,
    /// Wait until all files that were closed under --async are stored
    #[arg(long, conflicts_with_all = ["serve", "program"])]
    wait: bool,
    /// Maximum size of closed files that are not stored yet, on this machine. At the limit, closing a file waits. Applies to the
    /// file system that this command starts
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        env = "TIDEMILL_PRELOAD_SPACE"
    )]
    space: ByteSize,
    /// Run the file system that programs use, in the foreground, until SIGTERM
    #[arg(long, hide = true, conflicts_with = "program")]
    serve: bool,
    /// With --serve: allow access to other users, too, with their own rights
    #[arg(long, hide = true, requires = "serve")]
    allow_other: bool,
    /// Directory of the file system's socket [default: one for each user and cluster]
    #[arg(long, value_name = "DIR", env = "TIDEMILL_PRELOAD_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Open files of nodes on this machine in their directories; false: all bytes by HTTP [default: true]
    #[arg(long, value_name = "BOOL", env = "TIDEMILL_PRELOAD_IN_PLACE")]
    in_place: Option<bool>,
    /// Path of the library [default: next to the binary, or in ../lib]
    #[arg(long, value_name = "FILE", env = "TIDEMILL_PRELOAD_LIBRARY")]
    library: Option<PathBuf>,
    /// Start the program without a check that the library can work with it
    #[arg(long)]
    unchecked: bool,
    /// With --serve: time without users after which it ends [default: never]
    #[arg(long, value_name = "TIME", hide = true, requires = "serve")]
    idle: Option<TimeLength>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let prefix = checked_prefix(&args.prefix)?;
    let endpoint = absolute(context.endpoint()?);
    let directories = directories(&args, &endpoint);
    if args.serve {
        let directory = directories.into_iter().next().context("no directory")?;
        return serve(args, context, (endpoint, prefix), directory).await;
    }
    if args.wait {
        return tokio::task::block_in_place(|| {
            wait::run(context, &directories, |directory| {
                start(&args, context, &endpoint, directory, IDLE_AFTER_WAIT)
            })
        });
    }
    let Some(name) = args.program.first() else {
        bail!("no program: give it after `--`, as in `tidemill exec -- PROGRAM ARGS`");
    };
    let library = library(args.library.as_deref())?;
    let inside = Path::new(name).starts_with(&prefix);
    if !args.unchecked && !inside {
        ProgramFile::find(name)?.check()?;
    }
    let (directory, kept) =
        tokio::task::block_in_place(|| connected(&args, context, &endpoint, &directories))?;
    let socket = preload::socket_in(&directory);
    ensure!(
        socket.as_os_str().len() <= SOCKET_BYTES_MAX,
        "{}: path is longer than {SOCKET_BYTES_MAX} bytes, which a socket does not allow; give a shorter --data-dir",
        socket.display()
    );
    // Every program of this one has the connection, so that the file system does not end before them.
    let kept = rustix::io::fcntl_dupfd_cloexec(&kept, KEPT_AT).unwrap_or(kept);
    rustix::io::fcntl_setfd(kept.as_fd(), rustix::io::FdFlags::empty())?;
    let mut command = if inside {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec \"$0\" \"$@\""]).arg(name);
        command
    } else {
        Command::new(name)
    };
    let mut preloaded = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    command
        .args(&args.program[1..])
        .env("LD_PRELOAD", preloaded)
        .env(SOCKET_VARIABLE, socket)
        .env(PREFIX_VARIABLE, &prefix)
        .env(ASYNC_VARIABLE, if args.asynchronous { "1" } else { "" })
        .env_remove(DIRECTORY_VARIABLE);
    let error = command.exec();
    Err(error).with_context(|| format!("can't run {}", name.display()))
}

/// Returns the endpoint in a form that is the same from every working directory.
fn absolute(endpoint: Endpoint) -> Endpoint {
    match endpoint {
        Endpoint::Unix(path) => Endpoint::Unix(std::path::absolute(&path).unwrap_or(path)),
        other => other,
    }
}

fn checked_prefix(prefix: &Path) -> anyhow::Result<PathBuf> {
    let mut parts = prefix.components();
    let rooted = parts.next() == Some(Component::RootDir);
    let plain = parts
        .clone()
        .all(|part| matches!(part, Component::Normal(_)));
    ensure!(
        rooted && plain && parts.next().is_some() && prefix.as_os_str().len() <= PREFIX_BYTES_MAX,
        "--prefix {}: not possible; give an absolute path of at most {PREFIX_BYTES_MAX} bytes, not /, without `..`",
        prefix.display()
    );
    Ok(prefix.components().collect())
}

/// Returns the directories of file systems that this user may use, first the user's own.
fn directories(args: &Args, endpoint: &Endpoint) -> Vec<PathBuf> {
    if let Some(directory) = &args.data_dir {
        return vec![directory.clone()];
    }
    let mut hasher = DefaultHasher::new();
    endpoint.to_string().hash(&mut hasher);
    args.in_place.hash(&mut hasher);
    let cluster = format!("{:016x}", hasher.finish());
    let uid = rustix::process::geteuid();
    let of_root = Path::new("/run/tidemill-preload").join(&cluster);
    if uid.is_root() {
        return vec![of_root];
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|directory| directory.is_absolute());
    let own = match runtime {
        Some(directory) => directory.join("tidemill-preload"),
        None => PathBuf::from(format!("/tmp/tidemill-preload-{}", uid.as_raw())),
    };
    vec![own.join(cluster), of_root]
}

/// The library, as an absolute path.
fn library(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("can't find the path of this program")?;
    let binary_directory = own.parent().unwrap_or(Path::new("/"));
    let known = [
        binary_directory.join(LIBRARY),
        binary_directory.join("../lib").join(LIBRARY),
        binary_directory.join("../lib/tidemill").join(LIBRARY),
    ];
    let found = match given {
        Some(given) => Some(given.to_owned()).filter(|path| path.exists()),
        None => known.iter().find(|path| path.exists()).cloned(),
    };
    let found = found.with_context(|| {
        let looked = known[..2].iter().map(|path| path.display().to_string());
        let looked: Vec<_> = looked.collect();
        format!(
            "{LIBRARY} does not exist ({}); give --library FILE",
            given.map_or_else(|| looked.join(", "), |path| path.display().to_string())
        )
    })?;
    let found = std::fs::canonicalize(&found).with_context(|| found.display().to_string())?;
    // The loader treats both as separators.
    let name = found.as_os_str().as_bytes();
    ensure!(
        !name.contains(&b':') && !name.contains(&b' '),
        "{}: the path has a colon or a space, which LD_PRELOAD does not allow; move the file",
        found.display()
    );
    Ok(found)
}

/// Connects to a file system, and starts one if none is running.
fn connected(
    args: &Args,
    context: &CommandContext,
    endpoint: &Endpoint,
    directories: &[PathBuf],
) -> anyhow::Result<(PathBuf, OwnedFd)> {
    for directory in directories {
        if owned_by_us_or_root(directory)
            && let Ok(connection) = preload::connect(directory)
        {
            return Ok((directory.clone(), connection));
        }
    }
    let directory = directories.first().context("no directory")?;
    let connection = start(args, context, endpoint, directory, IDLE)?;
    Ok((directory.clone(), connection))
}

/// Returns whether only this user and root can make a socket in the directory.
fn owned_by_us_or_root(directory: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    directory
        .symlink_metadata()
        .is_ok_and(|stat| stat.is_dir() && [0, own].contains(&stat.uid()))
}

/// Starts a file system in the background, waits until it is ready, and connects to it.
fn start(
    args: &Args,
    context: &CommandContext,
    endpoint: &Endpoint,
    directory: &Path,
    idle: Duration,
) -> anyhow::Result<OwnedFd> {
    let mut how = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(how.recursive(true), 0o700);
    how.create(directory)
        .with_context(|| directory.display().to_string())?;
    ensure!(
        owned_by_us_or_root(directory),
        "{}: the directory belongs to another user; choose another directory with --data-dir",
        directory.display()
    );
    let until = Instant::now() + TOGETHER;
    loop {
        let why = match start_once(args, context, endpoint, directory, idle)? {
            Ok(connection) => return Ok(connection),
            Err(why) => why,
        };
        ensure!(
            why.contains(preload::IS_SERVED) && Instant::now() < until,
            "the file system could not be started: {why}"
        );
        for _ in 0..TOGETHER_LOOKS {
            std::thread::sleep(TOGETHER_PAUSE);
            if let Ok(connection) = preload::connect(directory) {
                return Ok(connection);
            }
        }
    }
}

/// Starts a file system and connects to it. Returns the reason as text if it could not start.
fn start_once(
    args: &Args,
    context: &CommandContext,
    endpoint: &Endpoint,
    directory: &Path,
    idle: Duration,
) -> anyhow::Result<Result<OwnedFd, String>> {
    let log = directory.join("log");
    let mut how = std::fs::File::options();
    let opened = how.create(true).append(true).mode(0o600).open(&log);
    let file = opened.with_context(|| log.display().to_string())?;
    let began = file.metadata().map_or(0, |stat| stat.len());
    let mut command = serving(args, context, endpoint, directory, idle)?;
    let mut child = command
        .stderr(file)
        .spawn()
        .context("can't start the file system")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    // Somebody else may have started one at the same time.
    let ready = line.trim() == READY;
    match preload::connect(directory) {
        Ok(connection) => return Ok(Ok(connection)),
        Err(error) if ready => {
            return Err(error).with_context(|| {
                format!("the file system in {} does not answer", directory.display())
            });
        }
        Err(_) => {}
    }
    let text = std::fs::read(&log).unwrap_or_default();
    let from = usize::try_from(began).unwrap_or(0).min(text.len());
    let printed = String::from_utf8_lossy(&text[from..]);
    let why = printed.trim().trim_start_matches("error: ");
    Ok(Err(why.to_owned()))
}

/// Returns the command that serves a directory in the background. It keeps neither the terminal nor the working directory of the caller.
fn serving(
    args: &Args,
    context: &CommandContext,
    endpoint: &Endpoint,
    directory: &Path,
    idle: Duration,
) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("can't find the path of this program")?;
    let mut command = Command::new(program);
    command
        .arg("--server")
        .arg(endpoint.to_string())
        .args(context.forwarded())
        .args(["exec", "--serve", "--idle"])
        .arg(format!("{}s", idle.as_secs()))
        .arg("--space")
        .arg(args.space.0.to_string())
        .arg("--prefix")
        .arg(&args.prefix)
        .arg("--data-dir")
        .arg(directory);
    if let Some(in_place) = args.in_place {
        command.args(["--in-place", if in_place { "true" } else { "false" }]);
    }
    command
        .current_dir("/")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    Ok(command)
}

/// Serves programs in the foreground.
async fn serve(
    args: Args,
    context: &CommandContext,
    (endpoint, prefix): (Endpoint, PathBuf),
    directory: PathBuf,
) -> anyhow::Result<ExitCode> {
    if args.idle.is_some() {
        preload::close_inherited();
        // A new session survives the end of the caller's session.
        let _ = rustix::process::setsid();
    }
    let credential = context.credential(&endpoint)?;
    if args.allow_other
        && args.data_dir.is_none()
        && let Some(all) = directory.parent()
    {
        // The directory may exist already, for root alone.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        let made = std::fs::create_dir_all(all);
        made.and_then(|()| std::fs::set_permissions(all, open))
            .with_context(|| all.display().to_string())?;
    }
    let config = preload::PreloadConfig {
        endpoint,
        credential,
        directory,
        prefix,
        in_place: args.in_place.unwrap_or(true),
        allow_other: args.allow_other,
        attr_ttl: context
            .config
            .mount
            .attr_ttl
            .map_or(ATTR_TTL, |TimeLength(ttl)| ttl),
        idle: args.idle.map(|TimeLength(idle)| idle),
        space_bytes: args.space.0,
    };
    let served = tokio::task::spawn_blocking(move || {
        let serving = preload::serve(&config)?;
        let mut out = std::io::stdout();
        // Nobody may be listening.
        let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
        serving.run()
    });
    served.await.context("the file system failed")??;
    Ok(ExitCode::SUCCESS)
}
