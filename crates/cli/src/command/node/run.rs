//! `tidemill node run`: one storage node, in the foreground.

use super::backend;
use crate::config::{self, Resources};
use crate::context::CommandContext;
use crate::format::{ByteSize, OrOff};
use crate::process::{self, Foreground};
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_model::event::Role;
use tidemill_model::id::NodeId;
use tidemill_node::backend::packs::Packing;
use tidemill_node::power::Meter;
use tidemill_plan::units::Watts;

const EXAMPLES: &str = "Examples:
  tidemill node run --id 0                         for a server on this machine
  tidemill node run --id 3 --data-dir /data/tidemill --server https://10.0.0.1:7700 \\
      --token-file /etc/tidemill.token --listen 10.0.0.14:7701 --cores 16

  tidemill node run --id 999 --tier memory --capacity 2GiB         for directories that ask for memory; files are lost with this
                                                                   machine

  tidemill node run --id 20 --backend s3://bucket/cluster --backend-keys ~/keys      keep files in an object store
  tidemill node run --id 20 --backend s3://bucket/cluster --backend-format \"dedup | zstd\"        the same, in fewer bytes

As root, kernels run as the owners of their jobs; otherwise all run as the node's user. The node ends on SIGTERM, after
a message to the server; interrupted tasks run again.

Exit codes: 0 ended by a signal; 1 failed; 5 the server can't be reached; 6 the node was removed from the cluster, so a restart
fails again (systemd: RestartPreventExitStatus=6).";

/// Set for a process whose node is suspended.
const SUSPENDED: &str = "TIDEMILL_NODE_SUSPENDED";

/// Run a storage node in the foreground
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number in the cluster, below 1000. Its directory belongs to this number forever [default: 0]
    #[arg(
        long,
        help_heading = "Process",
        value_name = "ID",
        env = "TIDEMILL_NODE_ID"
    )]
    id: Option<u32>,
    /// Directory for all its data [default: DIR/node-ID]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "DIRECTORY",
        env = "TIDEMILL_NODE_DATA_DIR"
    )]
    data_dir: Option<PathBuf>,
    /// Address for requests for bytes; port 0 takes a free port [default: 127.0.0.1:0]
    #[arg(
        long,
        help_heading = "Network",
        value_name = "HOST:PORT",
        env = "TIDEMILL_NODE_LISTEN"
    )]
    listen: Option<SocketAddr>,
    /// URL at which others reach the node [default: https:// and the address of --listen]
    #[arg(
        long,
        help_heading = "Network",
        value_name = "URL",
        env = "TIDEMILL_NODE_URL"
    )]
    url: Option<String>,
    /// Number of cores for kernels, one kernel each [default: the machine's; none with --tier memory]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "N",
        env = "TIDEMILL_NODE_CORES"
    )]
    cores: Option<u32>,
    /// Memory for tasks that declare their need, such as 48GiB [default: that of --kernels-memory]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "SIZE",
        env = "TIDEMILL_NODE_MEMORY"
    )]
    memory: Option<ByteSize>,
    /// Other resources for tasks that ask for them, such as gpu=2,licence.x=1: up to 64 names, amounts up to 10⁹ [default: none]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "NAME=N,…",
        env = "TIDEMILL_NODE_RESOURCES"
    )]
    resources: Option<Resources>,
    /// Processor priority of kernels: idle (time that no other program wants, so that reads and writes have precedence) or
    /// normal (as all others) [default: idle]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "PRIORITY",
        env = "TIDEMILL_NODE_KERNELS"
    )]
    kernels: Option<config::KernelPriority>,
    /// Memory limit of all kernels together, such as 48G, where the system has control groups [default: 7/8 of
    /// the machine's]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "SIZE",
        env = "TIDEMILL_NODE_KERNELS_MEMORY"
    )]
    kernels_memory: Option<ByteSize>,
    /// Directories of this machine that kernels may read, with all directories below them, if their tasks ask for them, such as
    /// /sw,/cvmfs [default: none]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "DIRECTORIES",
        value_delimiter = ',',
        env = "TIDEMILL_NODE_TASK_DIRS"
    )]
    task_dirs: Option<Vec<PathBuf>>,
    /// Directories that are searched for programs before the system's directories, such as /sw/bin; all kernels may read them [default:
    /// none]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "DIRECTORIES",
        value_delimiter = ',',
        env = "TIDEMILL_NODE_KERNELS_PATH"
    )]
    kernels_path: Option<Vec<PathBuf>>,
    /// Environment variables of all kernels, such as MODULEPATH=/sw/modules; may be given again [default: none]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "NAME=VALUE",
        env = "TIDEMILL_NODE_KERNELS_ENVIRONMENT"
    )]
    kernels_environment: Option<Vec<String>>,
    /// Tier: capacity (files stay), burst (takes new files first, and stages them out to the capacity tier) or memory. Memory is lost with
    /// this machine, and only takes files of directories that ask for it (user.tidemill.tier) [default: capacity]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "TIER",
        env = "TIDEMILL_NODE_TIER"
    )]
    tier: Option<config::NodeTier>,
    /// Maximum size of all objects, such as 500G; with --tier memory, the maximum of memory [default: all space of its file
    /// system]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "SIZE",
        env = "TIDEMILL_NODE_CAPACITY"
    )]
    capacity: Option<ByteSize>,
    /// Memory for intermediate files of jobs with intermediate = "memory", in addition to the disk, 64 MiB at least [default:
    /// none, intermediate files are stored on disk]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "SIZE",
        env = "TIDEMILL_NODE_INTERMEDIATE_MEMORY"
    )]
    intermediate_memory: Option<ByteSize>,
    /// Rate at which it fetches from other nodes, in bytes per second [default: measured]
    #[arg(
        long,
        help_heading = "Network",
        value_name = "SIZE",
        env = "TIDEMILL_NODE_LINK"
    )]
    link: Option<ByteSize>,
    /// Rate of its device in bytes per second, such as 550M. It decides the speed class that the policies constraint:… weigh
    /// [default: unknown]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "SIZE",
        env = "TIDEMILL_NODE_DEVICE_RATE"
    )]
    device_rate: Option<ByteSize>,
    /// Power at full load, such as "190 W". It decides the energy class that the policies constraint:… and minmax weigh
    /// [default: unknown]
    #[arg(
        long,
        help_heading = "Power",
        value_name = "POWER",
        env = "TIDEMILL_NODE_BUSY_POWER"
    )]
    busy_power: Option<Watts>,
    /// Power when idle, such as "63 W". With --busy-power, the cluster computes energy [default: unknown]
    #[arg(
        long,
        help_heading = "Power",
        value_name = "POWER",
        env = "TIDEMILL_NODE_IDLE_POWER"
    )]
    idle_power: Option<Watts>,
    /// Power when suspended, such as "16 W" [default: unknown]
    #[arg(
        long,
        help_heading = "Power",
        value_name = "POWER",
        env = "TIDEMILL_NODE_SUSPENDED_POWER"
    )]
    suspended_power: Option<Watts>,
    /// Command that prints the present power in watts, run every second, or rapl for the counters of the host's processors
    /// [default: none, nothing is measured]
    #[arg(
        long,
        help_heading = "Power",
        value_name = "COMMAND|rapl",
        env = "TIDEMILL_NODE_POWER_METER"
    )]
    power_meter: Option<String>,
    /// Size of the cache for fetched inputs, for later tasks [default: 256Mi]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "SIZE",
        env = "TIDEMILL_NODE_INPUT_CACHE"
    )]
    input_cache: Option<ByteSize>,
    /// Read objects of nodes on the same machine directly from their directories; false: fetch them like all others
    /// [default: true]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "BOOL",
        env = "TIDEMILL_NODE_IN_PLACE"
    )]
    in_place: Option<bool>,
    /// Rate in bytes per second at which an idle node reads its objects, to hash them and to find corruption; off: the node
    /// does neither by itself [default: 64Mi]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "SIZE|off",
        env = "TIDEMILL_NODE_SCRUB_RATE"
    )]
    scrub_rate: Option<OrOff<ByteSize>>,
    /// Role: store (keeps data) or server-cores (only lends cores) [default: store]
    #[arg(
        long,
        help_heading = "Process",
        value_name = "ROLE",
        env = "TIDEMILL_NODE_ROLE"
    )]
    role: Option<config::NodeRole>,
    /// Backend: external store that keeps its files: file:///DIRECTORY, s3://BUCKET/…, webdav(s)://HOST/…, as for `tidemill
    /// remote add`. Then --capacity limits the bytes in that store [default: in its directory]
    #[arg(
        long,
        help_heading = "Backend",
        value_name = "URI",
        env = "TIDEMILL_NODE_BACKEND"
    )]
    pub(super) backend: Option<String>,
    /// File with the keys of that store, which nobody else may be able to read [default: none]
    #[arg(
        long,
        help_heading = "Backend",
        value_name = "FILE",
        env = "TIDEMILL_NODE_BACKEND_KEYS"
    )]
    pub(super) backend_keys: Option<PathBuf>,
    /// Format of files in that store: files (each file as it is, under its name), dedup (chunks in packs; a chunk that is stored already is
    /// not sent again) or "dedup | zstd" (the same, compressed) [default: files]
    #[arg(
        long,
        help_heading = "Backend",
        value_name = "STEPS",
        env = "TIDEMILL_NODE_BACKEND_FORMAT"
    )]
    pub(super) backend_format: Option<Packing>,
    /// Maximum size of bytes of the backend that are also kept in the directory, for fast reads [default: 4Gi]
    #[arg(
        long,
        help_heading = "Backend",
        value_name = "SIZE",
        env = "TIDEMILL_NODE_BACKEND_CACHE"
    )]
    pub(super) backend_cache: Option<ByteSize>,
    #[command(flatten)]
    foreground: Foreground,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let _running = args.foreground.enter()?;
    let config = config(&args, context)?;
    if std::env::var_os(SUSPENDED).is_some() {
        tokio::select! {
            ended = process::asked_to_end() => { ended?; return Ok(ExitCode::SUCCESS); }
            () = tidemill_node::until_resumed(&config) => {}
        }
        return Err(process::again(SUSPENDED, false).into());
    }
    let mut node = start(config).await?;
    let failed = tokio::select! {
        ended = process::asked_to_end() => { ended?; None }
        error = node.failed() => Some(error),
    };
    tracing::info!("stopping");
    node.stop().await;
    match failed {
        Some(tidemill_node::Error::Suspended) => Err(process::again(SUSPENDED, true).into()),
        None => Ok(ExitCode::SUCCESS),
        Some(error) => Err(error.into()),
    }
}

fn config(args: &Args, context: &CommandContext) -> anyhow::Result<tidemill_node::NodeConfig> {
    let file = &context.config.node;
    let id = args.id.or(file.id).unwrap_or(0);
    let directory = args.data_dir.clone().or_else(|| file.data_dir.clone());
    let directory = directory.unwrap_or_else(|| context.cluster.node(id));
    let endpoint = context.endpoint()?;
    let mut config = tidemill_node::NodeConfig::new(NodeId(id), directory, endpoint);
    config.credential = context.credential(&config.server)?;
    config.tls = context.tls();
    config.role = match args.role.or(file.role) {
        Some(config::NodeRole::ServerCores) => Role::ServerCores,
        Some(config::NodeRole::Store) | None => Role::Store,
    };
    if let Some(listen) = args.listen.or(file.listen) {
        config.listen = listen;
    }
    config.url = args.url.clone().or_else(|| file.url.clone());
    if args.tier.or(file.tier) == Some(config::NodeTier::Memory) {
        config.memory_tier = true;
        // Outputs of tasks there would be in memory although nobody asked for it.
        config.cores = 0;
    }
    set_place(&mut config, args, file)?;
    if let Some(cores) = args.cores.or(file.cores) {
        anyhow::ensure!(cores > 0, "no cores: --cores 0; a node needs at least 1");
        config.cores = cores;
    }
    config.memory_bytes = args.memory.or(file.memory).map(|ByteSize(bytes)| bytes);
    let resources = args.resources.clone().or_else(|| file.resources.clone());
    config.resources = resources.map_or_else(Default::default, |Resources(named)| named);
    let kernels = args.kernels.or(file.kernels);
    config.kernels_idle = kernels != Some(config::KernelPriority::Normal);
    let memory = args.kernels_memory.or(file.kernels_memory);
    config.kernels_memory_bytes = memory.map(|ByteSize(bytes)| bytes);
    let directories = args.task_dirs.as_ref();
    let directories = directories.or(file.task_dirs.as_ref());
    config.task_dirs = absolute("task-dirs", directories)?;
    let path = args.kernels_path.as_ref().or(file.kernels_path.as_ref());
    config.kernels_path = absolute("kernels-path", path)?;
    let variables = args.kernels_environment.as_ref();
    let variables = variables.or(file.kernels_environment.as_ref());
    let variables = variables.into_iter().flatten().map(|one| variable(one));
    config.kernels_environment = variables.collect::<Result<_, _>>()?;
    config.hidden = context.private();
    config.capacity_bytes = args.capacity.or(file.capacity).map(|ByteSize(bytes)| bytes);
    let intermediate = args.intermediate_memory.or(file.intermediate_memory);
    // A node of the memory tier has all files in memory.
    let intermediate = intermediate.filter(|_| !config.memory_tier);
    config.intermediate_bytes = intermediate.map(|ByteSize(bytes)| bytes);
    config.link_bytes_per_sec = args.link.or(file.link).map(|ByteSize(rate)| rate);
    let device = args.device_rate.or(file.device_rate);
    config.device_bytes_per_sec = device.map(|ByteSize(rate)| rate);
    set_power(&mut config, args, file);
    if let Some(ByteSize(bytes)) = args.input_cache.or(file.input_cache) {
        config.input_cache_bytes_max = bytes;
    }
    config.in_place = args.in_place.or(file.in_place).unwrap_or(true);
    if let Some(OrOff(rate)) = args.scrub_rate.or(file.scrub_rate) {
        config.scrub_bytes_per_sec = rate.map(|ByteSize(bytes)| bytes);
    }
    Ok(config)
}

/// Sets the tier, and the backend if files do not stay in the directory.
fn set_place(
    config: &mut tidemill_node::NodeConfig,
    args: &Args,
    file: &config::NodeSection,
) -> anyhow::Result<()> {
    let stores = config.role == Role::Store && !config.memory_tier;
    config.burst = args.tier.or(file.tier) == Some(config::NodeTier::Burst);
    anyhow::ensure!(
        !config.burst || stores,
        "--tier burst: a node that only lends cores has no tier; leave out --role"
    );
    config.backend = backend::place(args, file)?;
    anyhow::ensure!(
        config.backend.is_none() || stores && !config.burst,
        "--backend: a node that only lends cores, or is of the memory tier or the burst tier, keeps no files in a backend; \
         leave out --role and --tier"
    );
    Ok(())
}

/// Sets the power figures that flags or the configuration give.
fn set_power(config: &mut tidemill_node::NodeConfig, args: &Args, file: &config::NodeSection) {
    config.watts_milli = args.busy_power.or(file.busy_power).map(watts_milli);
    config.idle_milli = args.idle_power.or(file.idle_power).map(watts_milli);
    let suspended = args.suspended_power.or(file.suspended_power);
    config.suspended_milli = suspended.map(watts_milli);
    let meter = args.power_meter.as_ref().or(file.power_meter.as_ref());
    config.meter = meter.map(|meter| match meter.as_str() {
        "rapl" => Meter::Rapl,
        _ => Meter::Command(meter.clone()),
    });
}

/// Converts a power to thousandths of a watt.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a power is not negative, and a too large one becomes the largest number"
)]
fn watts_milli(power: Watts) -> u64 {
    (power.get() * 1000.0).round() as u64
}

fn absolute(setting: &str, directories: Option<&Vec<PathBuf>>) -> anyhow::Result<Vec<PathBuf>> {
    let directories = directories.cloned().unwrap_or_default();
    for directory in &directories {
        let shown = directory.display();
        anyhow::ensure!(
            directory.is_absolute() && !shown.to_string().contains(':'),
            "{setting}: {shown} is not an absolute path of a directory, without ':'"
        );
    }
    Ok(directories)
}

fn variable(given: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = given
        .split_once('=')
        .with_context(|| format!("kernels-environment: {given:?}; write NAME=VALUE"))?;
    if let Some(reason) = tidemill_model::runtime_environment::refusal(name) {
        anyhow::bail!("kernels-environment: {name:?} can't be set: {reason}");
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Starts a node.
///
/// # Errors
/// If its directory or its address can't be used.
pub(crate) async fn start(
    config: tidemill_node::NodeConfig,
) -> anyhow::Result<tidemill_node::RunningNode> {
    let what = format!("can't start node {}", config.node);
    tidemill_node::RunningNode::start(config)
        .await
        .context(what)
}
