//! `tidemill server run`: the server of a cluster, in the foreground.

use crate::command::node;
use crate::config::BurstFull;
use crate::context::CommandContext;
use crate::format::{ByteSize, OrOff, QueueText, ReplicaCount, TimeLength};
use crate::process::{self, Foreground};
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_client::Endpoint;
use tidemill_model::event::Role;
use tidemill_model::id::NodeId;
use tidemill_model::replicas::WantedReplicas;
use tidemill_model::time::Span;
use tidemill_sched::burst::TierLimits;
use tidemill_server::elastic::{Commands, ShellCommand};

const EXAMPLES: &str = "Examples:
  tidemill server run                                 for this machine only
  tidemill server run --listen 10.0.0.1:7700          for nodes and mounts on other hosts
  tidemill server run --server-cores 8                run reduce tasks on the server cores
  tidemill server run --queue nats://10.0.0.5:4222    labels wait in NATS
  tidemill server run --log nats://10.0.0.5:4222      each change is in NATS before its caller continues

The directory holds the database, the socket `server.sock`, `token` (copy it to nodes and mounts on other
hosts, nobody else), `ca.pem` (copy it nowhere) and `address`, the TCP address. The server ends on SIGTERM; jobs continue
after its next start.";

/// Name of the queue's environment variable.
pub(crate) const QUEUE: &str = "TIDEMILL_SERVER_QUEUE";

/// Name of the environment variable of the replicated log.
pub(crate) const LOG: &str = "TIDEMILL_SERVER_LOG";

/// Name of the environment variable that is set for a server that has led and may not any more.
const DEPOSED: &str = "TIDEMILL_SERVER_DEPOSED";

/// Place of waiting labels, for all commands that start a server.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct QueueArg {
    /// Place where labels wait for their nodes: journal (the server's database), or NATS servers with `JetStream`, as <nats://HOST:PORT>,
    /// several separated by commas; ?replicas=3 at the end stores each label on three servers. An address with a password belongs into the
    /// configuration or the environment, which other users don't see [default: journal]
    #[arg(long, value_name = "journal|NATS", env = QUEUE, hide_env_values = true)]
    pub(crate) queue: Option<QueueText>,
}

/// The node that stands for the server cores. Nodes that keep data have lower ids.
pub(crate) const SERVER_CORES_NODE: NodeId = NodeId(1000);

/// Run the server of a cluster in the foreground
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Directory for all data of the server [default: DIR/server]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "DIRECTORY",
        env = "TIDEMILL_SERVER_DATA_DIR"
    )]
    data_dir: Option<PathBuf>,
    /// TCP address; port 0 takes a free port [default: 127.0.0.1:0]
    #[arg(
        long,
        help_heading = "Network",
        value_name = "HOST:PORT",
        env = "TIDEMILL_SERVER_LISTEN"
    )]
    listen: Option<SocketAddr>,
    /// Further names or addresses for the server's certificate, under which programs fetch files by URL. The certificate always
    /// has localhost, the host's own name and the address of --listen
    #[arg(
        long,
        help_heading = "Network",
        value_name = "NAME,…",
        value_delimiter = ',',
        env = "TIDEMILL_SERVER_TLS_NAMES"
    )]
    tls_names: Option<Vec<String>>,
    /// Unix socket [default: server.sock in its directory]
    #[arg(
        long,
        help_heading = "Network",
        value_name = "PATH",
        env = "TIDEMILL_SERVER_SOCKET"
    )]
    socket: Option<PathBuf>,
    /// Number of the server cores for the policies hybrid and advised; 0: none [default: 0]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "N",
        env = "TIDEMILL_SERVER_SERVER_CORES"
    )]
    server_cores: Option<u32>,
    /// Address at which the server cores serve bytes [default: the address of --listen, a free port]
    #[arg(
        long,
        help_heading = "Network",
        value_name = "HOST:PORT",
        env = "TIDEMILL_SERVER_SERVER_CORES_LISTEN"
    )]
    server_cores_listen: Option<SocketAddr>,
    /// Policy of jobs that name none [default: min-wait]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "POLICY",
        env = "TIDEMILL_SERVER_POLICY"
    )]
    policy: Option<String>,
    /// Time after which the work of an offline node is given to other nodes [default: 10s]
    #[arg(
        long,
        help_heading = "Network",
        value_name = "TIME",
        env = "TIDEMILL_SERVER_NODE_TIMEOUT"
    )]
    node_timeout: Option<TimeLength>,
    /// Assumed rate at which nodes fetch from each other, in bytes per second, until a measurement [default: 125M]
    #[arg(
        long,
        help_heading = "Network",
        value_name = "SIZE",
        env = "TIDEMILL_SERVER_LINK"
    )]
    link: Option<ByteSize>,
    /// Time that finished jobs stay on the list, such as 30d [default: until they are deleted]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "TIME",
        env = "TIDEMILL_SERVER_KEEP_JOBS"
    )]
    keep_jobs: Option<TimeLength>,
    /// Number of nodes with a replica of each file, on other hosts first, 1 to 8, such as 2, or 2,now if seals wait for
    /// the replicas; directories may have another number [default: 1]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "N[,now]",
        env = "TIDEMILL_SERVER_REPLICAS"
    )]
    replicas: Option<WantedReplicas>,
    /// Time for which a node may be offline before its replicas of files are recreated elsewhere, such as 30m [default: 10m]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "TIME",
        env = "TIDEMILL_SERVER_REPAIR_AFTER"
    )]
    repair_after: Option<TimeLength>,
    /// Interval at which an idle node reads all its objects and compares them with the sealed content, such as
    /// 30d; off: only by `tidemill cluster scrub` [default: 7d]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "TIME|off",
        env = "TIDEMILL_SERVER_SCRUB_EVERY"
    )]
    scrub_every: Option<OrOff<TimeLength>>,
    /// Maximum rate of copying for repairs and migrations, all nodes together, in bytes per second, such as 50M; 0: no limit [default:
    /// 250M]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "SIZE",
        env = "TIDEMILL_SERVER_MIGRATION_RATE"
    )]
    migration_rate: Option<ByteSize>,
    #[command(flatten, next_help_heading = "Kernels")]
    queue: QueueArg,
    /// Log of all changes in NATS servers with `JetStream`, as <nats://HOST:PORT>, several separated by commas; ?replicas=3 at the end stores
    /// each change on three servers. A change is acknowledged when the log has it. Further servers with the same log, started with a copy of
    /// `cluster.key` in their directories, follow as standbys and take over. An address with a password belongs into the configuration or
    /// the environment [default: none]
    #[arg(
        long,
        help_heading = "Availability",
        value_name = "NATS",
        env = LOG,
        hide_env_values = true
    )]
    log: Option<QueueText>,
    /// Follow the log, and never lead before another server has led [default: false]
    #[arg(
        long,
        help_heading = "Availability",
        value_name = "BOOL",
        env = "TIDEMILL_SERVER_STANDBY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    standby: Option<bool>,
    #[command(flatten, next_help_heading = "Storage")]
    burst_limits: BurstLimits,
    /// Time without use after which nodes are suspended, such as 10m, until something needs them; off: only by `tidemill
    /// node suspend` [default: off]
    #[arg(
        long,
        help_heading = "Power",
        value_name = "TIME|off",
        env = "TIDEMILL_SERVER_SUSPEND_AFTER"
    )]
    suspend_after: Option<OrOff<TimeLength>>,
    /// Command to run after a node was suspended, with its number in $TIDEMILL_NODE, such as "ssh node$TIDEMILL_NODE systemctl suspend"
    /// [default: none, only its process ends]
    #[arg(
        long,
        help_heading = "Power",
        value_name = "COMMAND",
        env = "TIDEMILL_SERVER_SUSPEND"
    )]
    suspend: Option<String>,
    /// Command that resumes a node, such as "wakeonlan …" [default: none, a waiting process resumes the node on request]
    #[arg(
        long,
        help_heading = "Power",
        value_name = "COMMAND",
        env = "TIDEMILL_SERVER_RESUME"
    )]
    resume: Option<String>,
    /// Maximum time for resuming a node [default: 5m]
    #[arg(
        long,
        help_heading = "Power",
        value_name = "TIME",
        env = "TIDEMILL_SERVER_RESUME_LIMIT"
    )]
    resume_limit: Option<TimeLength>,
    /// Maximum number of unfinished jobs of one user; root has no limit [default: 1000]
    #[arg(
        long,
        help_heading = "Kernels",
        value_name = "N",
        env = "TIDEMILL_SERVER_JOBS_EACH"
    )]
    jobs_each: Option<u32>,
    /// Maximum sum of the quotas of one user's workspaces, such as 10GiB: workspaces then need a quota [default: no limit]
    #[arg(
        long,
        help_heading = "Storage",
        value_name = "SIZE",
        env = "TIDEMILL_SERVER_WORKSPACES_EACH"
    )]
    workspaces_each: Option<ByteSize>,
    #[command(flatten)]
    foreground: Foreground,
}

/// Times and limits of the burst tier.
#[derive(Debug, clap::Args)]
struct BurstLimits {
    /// Time from the close of a file to its copy from the burst tier to nodes of the capacity tier, such as 5m [default: 30s]
    #[arg(long, value_name = "TIME", env = "TIDEMILL_SERVER_STAGE_OUT_AFTER")]
    stage_out_after: Option<TimeLength>,
    /// Fill level of a node of the burst tier, in percent of its capacity, above which stored files are evicted from it, the oldest first
    /// [default: 80]
    #[arg(long, value_name = "PERCENT", env = "TIDEMILL_SERVER_EVICT_ABOVE")]
    evict_above: Option<u8>,
    /// Fill level in percent at which the eviction stops [default: 60]
    #[arg(long, value_name = "PERCENT", env = "TIDEMILL_SERVER_EVICT_TO")]
    evict_to: Option<u8>,
    /// Treatment of new files when the burst tier is full: wait (until files are staged out) or capacity (write them to nodes of the
    /// capacity tier) [default: wait]
    #[arg(long, value_name = "WAY", env = "TIDEMILL_SERVER_BURST_FULL")]
    burst_full: Option<BurstFull>,
    /// Percentage of the capacity of a node of the burst tier for the reservations of all users together (`tidemill stage reserve`);
    /// reservations of root may exceed it [default: 50]
    #[arg(long, value_name = "PERCENT", env = "TIDEMILL_SERVER_RESERVE_MAX")]
    reserve_max: Option<u8>,
    /// Percentage of a node's processors that maps of hooks leave to programs that write into the burst tier there, 0 to 99; with 0 maps
    /// begin at once, without a wait [default: 90]
    #[arg(long, value_name = "PERCENT", env = "TIDEMILL_SERVER_BURST_SHARE")]
    burst_share: Option<u8>,
}

impl BurstLimits {
    fn limits(&self, file: &crate::config::ServerSection) -> anyhow::Result<TierLimits> {
        let mut limits = TierLimits::default();
        if let Some(TimeLength(after)) = self.stage_out_after.or(file.stage_out_after) {
            limits.after = Span(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        }
        limits.high = self.evict_above.or(file.evict_above).unwrap_or(limits.high);
        limits.low = self.evict_to.or(file.evict_to).unwrap_or(limits.low);
        limits.pass = self.burst_full.or(file.burst_full) == Some(BurstFull::Capacity);
        limits.reserve = self
            .reserve_max
            .or(file.reserve_max)
            .unwrap_or(limits.reserve);
        anyhow::ensure!(
            limits.reserve <= 100,
            "--reserve-max: {} is no percentage: give 0 to 100",
            limits.reserve
        );
        limits.share = self
            .burst_share
            .or(file.burst_share)
            .unwrap_or(limits.share);
        anyhow::ensure!(
            limits.share <= 99,
            "--burst-share: {} % of the processors can't be left to programs that write: give 0 to 99, as maps need processors, too",
            limits.share
        );
        limits.checked().context("--evict-above, --evict-to")
    }
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let _running = args.foreground.enter()?;
    let server_cores = args
        .server_cores
        .or(context.config.server.server_cores)
        .unwrap_or(0);
    let server_cores_listen = args
        .server_cores_listen
        .or(context.config.server.server_cores_listen);
    let config = config(args, context)?;
    let directory = config.dir.clone();
    let tls = config.tls;
    if !tls {
        tracing::warn!(
            "TLS IS OFF (--tls off): anybody on the network can read and change data and the cluster's token"
        );
    }
    let replicated = config.log.is_some();
    let started = tokio::select! {
        started = tidemill_server::RunningServer::start(config) => started,
        // A standby waits until it leads.
        ended = process::asked_to_end(), if replicated => {
            ended?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let server = started.context("can't start the server")?;
    note_address(&directory, tls, server.address())?;
    let serve = async {
        let cores = match server_cores {
            0 => return Ok(process::asked_to_end().await?),
            cores => cores,
        };
        let ip = server.address().ip();
        anyhow::ensure!(
            server_cores_listen.is_some() || !ip.is_unspecified(),
            "no address for the server cores: --listen {ip}; give --server-cores-listen one that nodes reach"
        );
        let endpoint = Endpoint::Unix(server.socket().to_path_buf());
        let mut server_cores =
            tidemill_node::NodeConfig::new(SERVER_CORES_NODE, directory.join("cores"), endpoint);
        server_cores.role = Role::ServerCores;
        server_cores.cores = cores;
        server_cores.tls = tls;
        server_cores.listen = server_cores_listen.unwrap_or(SocketAddr::new(ip, 0));
        serve_with_server_cores(server_cores).await
    };
    let ended = tokio::select! {
        ended = serve => ended,
        (why, by_other) = server.deposed() => {
            tracing::error!("{why}; from now on it follows as a standby");
            return Err(process::again(DEPOSED, by_other).into());
        }
    };
    tracing::info!("stopping");
    server.shutdown().await;
    ended.map(|()| ExitCode::SUCCESS)
}

/// Returns the settings of the replicated log, if there is one.
fn replication(
    log: Option<&QueueText>,
    standby: Option<bool>,
    file: &crate::config::ServerSection,
) -> anyhow::Result<Option<tidemill_server::ReplicationConfig>> {
    let Some(log) = log.or(file.log.as_ref()) else {
        return Ok(None);
    };
    let follows = standby.or(file.standby).unwrap_or(false);
    let follows = follows || std::env::var_os(DEPOSED).is_some();
    Ok(Some(tidemill_server::ReplicationConfig {
        address: log.address().context("--log")?,
        role: match follows {
            true => tidemill_server::Role::Standby,
            false => tidemill_server::Role::Leader,
        },
    }))
}

fn config(args: Args, context: &CommandContext) -> anyhow::Result<tidemill_server::ServeConfig> {
    let file = &context.config.server;
    let directory = args.data_dir.or_else(|| file.data_dir.clone());
    let mut config =
        tidemill_server::ServeConfig::new(directory.unwrap_or_else(|| context.cluster.server()));
    if let Some(listen) = args.listen.or(file.listen) {
        config.listen = listen;
    }
    config.tls = context.tls();
    if let Some(names) = args.tls_names.or_else(|| file.tls_names.clone()) {
        config.tls_names = names;
    }
    config.socket = args.socket.or_else(|| file.socket.clone());
    if let Some(policy) = args.policy.or_else(|| file.policy.clone()) {
        config.default_policy = policy;
    }
    if let Some(TimeLength(time)) = args.node_timeout.or(file.node_timeout) {
        config.node_timeout = time;
    }
    config.keep_jobs = args
        .keep_jobs
        .or(file.keep_jobs)
        .map(|TimeLength(time)| time);
    if let Some(ByteSize(rate)) = args.link.or(file.link) {
        config.link_bytes_per_sec = rate;
    }
    if let Some(replicas) = args
        .replicas
        .or(file.replicas.map(|ReplicaCount(wanted)| wanted))
    {
        config.replicas = replicas;
    }
    if let Some(TimeLength(time)) = args.repair_after.or(file.repair_after) {
        config.repair_after = time;
    }
    if let Some(OrOff(every)) = args.scrub_every.or(file.scrub_every) {
        config.scrub_every = every.map(|TimeLength(time)| time);
    }
    if let Some(ByteSize(rate)) = args.migration_rate.or(file.migration_rate) {
        config.move_bytes_per_sec = rate;
    }
    if let Some(queue) = args.queue.queue.as_ref().or(file.queue.as_ref()) {
        config.queue = queue.place().context("--queue")?;
    }
    config.log = replication(args.log.as_ref(), args.standby, file)?;
    if let Some(jobs) = args.jobs_each.or(file.jobs_each) {
        config.limits.jobs_each = jobs;
    }
    let workspaces = args.workspaces_each.or(file.workspaces_each);
    config.limits.workspaces_each_bytes = workspaces.map(|ByteSize(bytes)| bytes);
    config.burst = args.burst_limits.limits(file)?;
    config.elastic.after = args
        .suspend_after
        .or(file.suspend_after)
        .and_then(|OrOff(after)| after.map(|TimeLength(time)| time));
    if let Some(TimeLength(limit)) = args.resume_limit.or(file.resume_limit) {
        config.elastic.resume_limit = limit;
    }
    let suspend = args.suspend.or_else(|| file.suspend.clone());
    let resume = args.resume.or_else(|| file.resume.clone());
    config.elastic.all = commands(suspend, resume);
    for (node, own) in &file.nodes {
        let number = node.parse();
        let number = number.with_context(|| format!("[server.nodes.{node}]: no number"))?;
        let own = commands(own.suspend.clone(), own.resume.clone());
        config.elastic.each.insert(number, own);
    }
    Ok(config)
}

/// Returns the commands that suspend and resume nodes.
fn commands(suspend: Option<String>, resume: Option<String>) -> Commands {
    Commands {
        suspend: suspend.map(ShellCommand),
        resume: resume.map(ShellCommand),
    }
}

/// Writes the TCP address to a file where people and scripts find it, since the port may have been chosen by the system.
fn note_address(directory: &Path, tls: bool, address: SocketAddr) -> anyhow::Result<()> {
    let file = directory.join("address");
    let scheme = if tls { "https" } else { "http" };
    std::fs::write(&file, format!("{scheme}://{address}\n"))
        .with_context(|| file.display().to_string())
}

/// Runs the node of the server cores until this process is asked to end. If the node fails, the server continues.
async fn serve_with_server_cores(config: tidemill_node::NodeConfig) -> anyhow::Result<()> {
    let mut server_cores = node::run::start(config).await?;
    let ended = tokio::select! {
        ended = process::asked_to_end() => ended,
        error = server_cores.failed() => {
            tracing::error!(%error, "the server cores are lost; the cluster continues without them");
            process::asked_to_end().await
        }
    };
    server_cores.stop().await;
    Ok(ended?)
}
