//! `tidemill mount`: the cluster as a file system, in the foreground.

use crate::command::remote::KeysFile;
use crate::context::CommandContext;
use crate::format::{LengthError, TimeLength};
use crate::process::Foreground;
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_mount::mountpoint;

const EXAMPLES: &str = "Examples:
  tidemill mount /mnt/tidemill
  tidemill mount /mnt/tidemill --server https://10.0.0.1:7700 --token-file /etc/tidemill.token

Needs /dev/fuse; for users other than root also the program fusermount3 (Debian: fuse3). Mounted by root, all
users may use it with their own rights; mounted by another user, only that user. Stores of remotes are in /remotes,
for root and the user of the mount, with that user's keys. The mount waits for a server that has not
started yet. It ends on SIGTERM or when it is unmounted; files that are open for writing are sealed first.";

/// Shortest time limit of a call.
const LIMIT_MIN: Duration = Duration::from_secs(1);
const CACHED_FILES_MIN: u64 = 1000;

/// Mount the cluster as a file system, in the foreground
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Mountpoint, made if it is missing. Takes precedence over --path
    #[arg(value_name = "PATH")]
    place: Option<PathBuf>,
    /// Mountpoint, made if it is missing [default: DIR/mnt]
    #[arg(long, value_name = "PATH", env = "TIDEMILL_MOUNT_PATH")]
    path: Option<PathBuf>,
    /// Open files of nodes on this machine in their directories; false: all bytes by HTTP [default: true]
    #[arg(long, value_name = "BOOL", env = "TIDEMILL_MOUNT_IN_PLACE")]
    in_place: Option<bool>,
    /// Allow access to other users, too [default: true for root]
    #[arg(long, value_name = "BOOL", env = "TIDEMILL_MOUNT_ALLOW_OTHER")]
    allow_other: Option<bool>,
    /// Lifetime of cached names and attributes without a notice of the server [default: 60s]
    #[arg(long, value_name = "TIME", env = "TIDEMILL_MOUNT_ATTR_TTL")]
    attr_ttl: Option<TimeLength>,
    /// Maximum number of files in memory, 1000 or more; above it the mount forgets files that nobody has open [default: 200000]
    #[arg(long, value_name = "N", env = "TIDEMILL_MOUNT_CACHED_FILES", value_parser = clap::value_parser!(u64).range(CACHED_FILES_MIN..))]
    cached_files: Option<u64>,
    /// Maximum time for one answer of a store of `/remotes`, 1s or more [default: 30s]
    #[arg(long, value_name = "TIME", env = "TIDEMILL_MOUNT_REMOTE_TIMEOUT", value_parser = limit)]
    remote_timeout: Option<TimeLength>,
    /// Maximum wait of a call for an offline server or node, 1s or more; then the call fails with ETIMEDOUT or EHOSTUNREACH
    /// [default: 30s]
    #[arg(long, value_name = "TIME", env = "TIDEMILL_MOUNT_PATIENCE", value_parser = limit)]
    patience: Option<TimeLength>,
    /// Let calls wait without a limit, until their program is killed [default: false]
    #[arg(long, value_name = "BOOL", env = "TIDEMILL_MOUNT_HARD", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    hard: Option<bool>,
    #[command(flatten)]
    foreground: Foreground,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let _running = args.foreground.enter()?;
    let file = &context.config.mount;
    let path = args.place.or(args.path).or_else(|| file.path.clone());
    let path = path.unwrap_or_else(|| context.cluster.mount());
    check_needs()
        .map_err(|missing| anyhow::anyhow!("can't mount on {}: {missing}", path.display()))?;
    if !mountpoint::is_there(&path) {
        std::fs::create_dir_all(&path)
            .with_context(|| format!("can't make the mount point: {}", path.display()))?;
    }
    let endpoint = context.endpoint()?;
    let credential = context.credential(&endpoint)?;
    let mut config = tidemill_mount::MountConfig::new(endpoint, credential, path);
    config.in_place = args.in_place.or(file.in_place).unwrap_or(config.in_place);
    config.allow_other = args
        .allow_other
        .or(file.allow_other)
        .unwrap_or(config.allow_other);
    if let Some(TimeLength(time)) = args.attr_ttl.or(file.attr_ttl) {
        config.attr_ttl = time;
    }
    if let Some(files) = args.cached_files.or(file.cached_files) {
        config.cached_files = usize::try_from(files.max(CACHED_FILES_MIN))?;
    }
    if let Some(TimeLength(time)) = args.remote_timeout.or(file.remote_timeout) {
        config.remote_timeout = time.max(LIMIT_MIN);
    }
    if let Some(TimeLength(time)) = args.patience.or(file.patience) {
        config.patience = Some(time.max(LIMIT_MIN));
    }
    if args.hard.or(file.hard).unwrap_or(false) {
        config.patience = None;
    }
    config.guarded = true;
    config.remote_keys = Some(KeysFile::usual);
    // The mount has threads of its own and blocks until it ends.
    let served = tokio::task::spawn_blocking(move || {
        let session = tidemill_mount::mount(&config)?;
        tracing::info!(path = %session.mountpoint().display(), "mounted");
        session.run()
    });
    served.await?.context("the mount failed")?;
    Ok(ExitCode::SUCCESS)
}

/// Parses a time limit.
fn limit(text: &str) -> Result<TimeLength, String> {
    let time: TimeLength = text
        .parse()
        .map_err(|error: LengthError| error.to_string())?;
    match time.0 >= LIMIT_MIN {
        true => Ok(time),
        false => Err(format!("`{text}` is too short: give 1s or more")),
    }
}

/// Checks whether the user can mount here. The error says what to install or change.
pub(crate) fn check_needs() -> Result<(), String> {
    let mut open = std::fs::File::options();
    if let Err(error) = open.read(true).write(true).open("/dev/fuse") {
        let denied = error.kind() == std::io::ErrorKind::PermissionDenied;
        let remedy = if denied {
            "the machine's administrator opens it by `chmod 666 /dev/fuse`, else "
        } else {
            ""
        };
        return Err(format!(
            "/dev/fuse: {error}; {remedy}use `tidemill put`, `get` and `submit` instead"
        ));
    }
    let root = rustix::process::geteuid().is_root();
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !root
        && !std::env::split_paths(&path).any(|directory| directory.join("fusermount3").exists())
    {
        return Err(
            "fusermount3 is missing, which users other than root need; install fuse3".into(),
        );
    }
    Ok(())
}
