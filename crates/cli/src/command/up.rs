//! `tidemill up`: a cluster on this machine. Each daemon is a process of its own in the background.

use super::mount;
use crate::command::server::run::{QUEUE, QueueArg};
use crate::context::CommandContext;
use crate::format::{ByteSize, QueueText};
use crate::output::messages::StartedCluster;
use crate::output::{Message, exact};
use crate::process;
use anyhow::Context as _;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};
use tidemill_client::Endpoint;
use tidemill_mount::mountpoint::{self, is_mounted};
use tidemill_node::backend::packs::Packing;

const EXAMPLES: &str = "Examples:
  tidemill up                                   a server, four nodes, a mount at DIR/mnt
  tidemill up --nodes 8 --cores 2 --server-cores 4
  tidemill up --memory-tier 2GiB                add a node of the memory tier, for directories that ask for it
  tidemill up --burst /nvme/tidemill            add a node of the burst tier on a fast disk, for new files
  tidemill up --burst /nvme/tidemill --backend s3://bucket/run --backend-keys ~/keys
                                                and stage files out to an object store
  tidemill --dir /data/cluster up --mount /mnt/cluster

You can repeat the command at any time: it starts missing processes and leaves running ones alone.
Logs are in DIR/log, pid files in DIR/run.";

/// Maximum time until a daemon is ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval at which a daemon is asked whether it is ready.
const PERIOD: Duration = Duration::from_millis(20);

/// Number of nodes of a new cluster.
const NODES: u32 = 4;

/// Number of the node of the memory tier.
const MEMORY_TIER: u32 = 999;
/// Number of the node of the burst tier.
const BURST: u32 = 998;
/// Number of the node whose files are in a backend.
const BACKEND: u32 = 997;

/// Start a server, nodes and a mount on this machine, in the background
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of nodes [default: the present number in DIR, else 4]
    #[arg(long, short = 'n', value_name = "N", env = "TIDEMILL_UP_NODES")]
    nodes: Option<u32>,
    /// Size of an additional node, number 999, that keeps files in memory [default: as before]
    #[arg(long, value_name = "SIZE", env = "TIDEMILL_UP_MEMORY_TIER")]
    memory_tier: Option<ByteSize>,
    /// Directory of an additional node, number 998, of the burst tier, on a fast disk [default: as before]
    #[arg(long, value_name = "DIRECTORY", env = "TIDEMILL_UP_BURST")]
    burst: Option<PathBuf>,
    /// External store of an additional node, number 997: file:///DIRECTORY, s3://BUCKET/…, webdav(s)://HOST/…; files of the burst
    /// tier are staged out to this node [default: as before]
    #[arg(long, value_name = "URI", env = "TIDEMILL_UP_BACKEND")]
    backend: Option<String>,
    /// File with the keys of that store, which nobody else may be able to read [default: as before, or none]
    #[arg(
        long,
        value_name = "FILE",
        requires = "backend",
        env = "TIDEMILL_UP_BACKEND_KEYS"
    )]
    backend_keys: Option<PathBuf>,
    /// Format of files in that store: files, dedup or "dedup | zstd", as for `tidemill node run --backend-format` [default: as
    /// before, at first files]
    #[arg(
        long,
        value_name = "STEPS",
        requires = "backend",
        env = "TIDEMILL_UP_BACKEND_FORMAT"
    )]
    backend_format: Option<Packing>,
    /// Number of kernels that each node runs at once [default: the machine's cores, divided among the nodes]
    #[arg(long, value_name = "C", env = "TIDEMILL_NODE_CORES")]
    cores: Option<u32>,
    /// Mountpoint [default: DIR/mnt]
    #[arg(long, value_name = "PATH", env = "TIDEMILL_MOUNT_PATH")]
    mount: Option<PathBuf>,
    /// Don't mount the cluster
    #[arg(long, conflicts_with = "mount")]
    no_mount: bool,
    /// Number of the server cores for the policies hybrid and advised [default: 0]
    #[arg(long, value_name = "N", env = "TIDEMILL_SERVER_SERVER_CORES")]
    server_cores: Option<u32>,
    #[command(flatten)]
    queue: QueueArg,
}

/// Names of started and of running processes.
#[derive(Debug, Default)]
struct StartedProcesses {
    started: Vec<String>,
    already: Vec<String>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let mut ids = node_ids(&args, context)?;
    let disks = ids.len();
    let memory_tier = memory_tier(&args, context)?;
    let burst = burst(&args, context)?;
    let backend = backend(&args, context)?;
    if let Some(path) = &args.mount
        && let Err(reason) = mount_path(&args, context)
    {
        let path = path.display();
        anyhow::bail!("can't mount the cluster at {path}: {reason}; without a mount: --no-mount");
    }
    refuse_lost_database(context)?;
    let mut up = UpProcesses {
        context,
        endpoint: Endpoint::Unix(context.cluster.socket()),
        children: Vec::new(),
        done: StartedProcesses::default(),
    };
    up.server(&args)?;
    up.until("the server", async |up| up.connect().await.is_some())
        .await?;
    for &id in &ids {
        let directory = up.context.cluster.node(id);
        up.node((id, &directory), &args, disks)?;
    }
    if let Some(directory) = burst {
        up.node((BURST, &directory), &args, disks)?;
        ids.push(BURST);
    }
    if let Some(at) = &backend {
        up.backend(at, &args, disks)?;
        ids.push(BACKEND);
    }
    if let Some(bytes) = memory_tier {
        up.memory_tier(bytes)?;
        ids.push(MEMORY_TIER);
    }
    up.until("the nodes", async |up| up.nodes_are_up(&ids).await)
        .await?;
    let mount = match mount_path(&args, context) {
        Ok(path) => {
            up.mount(&path)?;
            let wanted = path.clone();
            up.until("the mount", async move |_| is_mounted(&wanted))
                .await?;
            Some(path)
        }
        Err(reason) => {
            context.note(format_args!("not mounted: {reason}"));
            None
        }
    };
    tell(context, &up.done, &ids, mount.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses to make a new cluster in a directory in which nodes of another one have data.
fn refuse_lost_database(context: &CommandContext) -> anyhow::Result<()> {
    let cluster = &context.cluster;
    let database = cluster.server().join("server.db");
    let node = cluster
        .nodes()
        .into_iter()
        .map(|id| cluster.node(id))
        .find(|node| node.join("node.db").exists());
    match node {
        Some(node) if !database.exists() => anyhow::bail!(
            "{} is missing, but {} has data of its cluster: recover the database (`tidemill server recover`), or move the nodes' directories \
             elsewhere to begin a new cluster",
            database.display(),
            node.display()
        ),
        _ => Ok(()),
    }
}

/// Returns the nodes that have a directory here, since they may hold data, and as many as requested.
fn node_ids(args: &Args, context: &CommandContext) -> anyhow::Result<Vec<u32>> {
    let mut there = context.cluster.nodes();
    // The cluster may consist of a node of another kind only.
    let burst = noted_burst(context)?;
    let is_new =
        there.is_empty() && !burst.is_some_and(|directory| directory.join("node.db").exists());
    there.retain(|id| ![MEMORY_TIER, BURST, BACKEND].contains(id));
    let directory = |id: u32| context.cluster.node(id);
    let removed = there.extract_if(.., |id| tidemill_node::is_removed(&directory(*id)));
    let removed: Vec<u32> = removed.collect();
    for id in &removed {
        let directory = context.cluster.node(*id);
        context.note(format_args!(
            "node {id} was removed from the cluster and is not started; its directory {} can be removed",
            directory.display()
        ));
    }
    let wanted = args.nodes.or(context.config.up.nodes);
    let count = wanted.unwrap_or(if is_new { NODES } else { 0 });
    let mut ids: std::collections::BTreeSet<u32> = there.into_iter().chain(0..count).collect();
    ids.retain(|id| !removed.contains(id));
    if let Some(count) = wanted
        && ids.len() > count as usize
    {
        context.note(format_args!(
            "{} nodes have directories here and may hold data: all are started",
            ids.len()
        ));
    }
    Ok(ids.into_iter().collect())
}

/// Returns the capacity of the node of the memory tier, if it is wanted or existed before.
fn memory_tier(args: &Args, context: &CommandContext) -> anyhow::Result<Option<u64>> {
    let path = context.cluster.memory_tier();
    let shown = || path.display().to_string();
    if let Some(ByteSize(bytes)) = args.memory_tier.or(context.config.up.memory_tier) {
        std::fs::create_dir_all(context.cluster.path()).with_context(shown)?;
        std::fs::write(&path, format!("{bytes}\n")).with_context(shown)?;
        return Ok(Some(bytes));
    }
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().parse().with_context(shown)?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(shown),
    }
}

/// Returns the directory of the node of the burst tier, if there is to be one or one existed before.
fn burst(args: &Args, context: &CommandContext) -> anyhow::Result<Option<PathBuf>> {
    let note = context.cluster.burst();
    let shown = || note.display().to_string();
    if let Some(directory) = args.burst.as_ref().or(context.config.up.burst.as_ref()) {
        let directory = std::path::absolute(directory)?;
        if let Some(before) = noted_burst(context)?
            && before != directory
        {
            anyhow::bail!(
                "node {BURST} has its files in {}, and can't be moved to {} like that: start it there as before, or empty it \
                 (`tidemill stage out / --evict --wait`), stop it, remove it from the cluster (`tidemill node remove {BURST}`) and remove {}",
                before.display(),
                directory.display(),
                shown()
            );
        }
        std::fs::create_dir_all(context.cluster.path()).with_context(shown)?;
        std::fs::write(&note, directory.as_os_str().as_bytes()).with_context(shown)?;
        return Ok(Some(directory));
    }
    noted_burst(context)
}

/// Returns its previous directory.
fn noted_burst(context: &CommandContext) -> anyhow::Result<Option<PathBuf>> {
    let note = context.cluster.burst();
    match std::fs::read(&note) {
        Ok(text) => Ok(Some(PathBuf::from(OsString::from_vec(text)))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| note.display().to_string()),
    }
}

/// Backend of a node, with its keys and format.
#[derive(Debug, PartialEq, Eq)]
struct BackendOption {
    uri: String,
    keys: Option<PathBuf>,
    packing: Packing,
}

/// Returns the backend, if there is to be one or one existed before.
fn backend(args: &Args, context: &CommandContext) -> anyhow::Result<Option<BackendOption>> {
    let note = context.cluster.backend();
    let shown = || note.display().to_string();
    let before = match std::fs::read_to_string(&note) {
        Ok(text) => {
            let mut lines = text.lines();
            let mut next = || lines.next().unwrap_or_default();
            let (uri, keys, packing) = (next(), next(), next());
            Some(BackendOption {
                uri: uri.to_owned(),
                keys: (!keys.is_empty()).then(|| keys.into()),
                // A file without a format means the default.
                packing: packing.parse().unwrap_or_default(),
            })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(shown),
    };
    let file = &context.config.up;
    let Some(uri) = args.backend.as_ref().or(file.backend.as_ref()) else {
        return Ok(before);
    };
    let keys = args.backend_keys.as_ref().or(file.backend_keys.as_ref());
    let keys = keys.map(std::path::absolute).transpose()?;
    let keys = keys.or_else(|| before.as_ref()?.keys.clone());
    if let Some(before) = before.as_ref().filter(|before| before.uri != *uri) {
        anyhow::bail!(
            "node {BACKEND} has its files in {}, and can't be moved to {uri} like that: start it as before, or empty it \
             (`tidemill node drain {BACKEND} --wait`), stop it, remove it from the cluster (`tidemill node remove {BACKEND}`) and remove {}",
            before.uri,
            shown()
        );
    }
    // The node would not start, and would report the reason in its log only.
    super::node::backend::open(uri, keys.as_deref())
        .with_context(|| format!("--backend: can't have files in {uri}"))?;
    let packing = args.backend_format.or(file.backend_format);
    let packing = packing.or(before.map(|before| before.packing));
    let at = BackendOption {
        uri: uri.clone(),
        keys,
        packing: packing.unwrap_or_default(),
    };
    std::fs::create_dir_all(context.cluster.path()).with_context(shown)?;
    let packing = at.packing.to_string();
    let text = [
        Path::new(&at.uri),
        at.keys.as_deref().unwrap_or(Path::new("")),
        Path::new(&packing),
    ];
    let text = text.map(|one| one.as_os_str().as_bytes()).join(&b'\n');
    std::fs::write(&note, text).with_context(shown)?;
    Ok(Some(at))
}

/// Returns the mountpoint, or the reason why none is mounted.
fn mount_path(args: &Args, context: &CommandContext) -> Result<PathBuf, String> {
    if args.no_mount {
        return Err("--no-mount was given".into());
    }
    mount::check_needs()?;
    let path = args
        .mount
        .clone()
        .or_else(|| context.config.mount.path.clone());
    let path = path.unwrap_or_else(|| context.cluster.mount());
    std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))
}

struct UpProcesses<'a> {
    context: &'a CommandContext,
    endpoint: Endpoint,
    children: Vec<(String, Child)>,
    done: StartedProcesses,
}

impl UpProcesses<'_> {
    fn server(&mut self, args: &Args) -> anyhow::Result<()> {
        let mut flags: Vec<OsString> = vec![
            "server".into(),
            "run".into(),
            "--data-dir".into(),
            self.context.cluster.server().into(),
        ];
        flags.extend(["--socket".into(), self.context.cluster.socket().into()]);
        if let Some(address) = self.address_before() {
            flags.extend(["--listen".into(), address.to_string().into()]);
        }
        if let Some(cores) = args
            .server_cores
            .or(self.context.config.server.server_cores)
        {
            flags.extend(["--server-cores".into(), cores.to_string().into()]);
        }
        // Other users see arguments, and the address may contain a password.
        let queue = args.queue.queue.as_ref();
        let queue = queue.map(|QueueText(text)| (QUEUE, text.as_str()));
        self.start("server", flags, queue)
    }

    /// Returns the address of the server's last run, unless another address is configured or another program uses it now.
    fn address_before(&self) -> Option<SocketAddr> {
        let cluster = &self.context.cluster;
        if self.context.config.server.listen.is_some()
            || std::env::var_os("TIDEMILL_SERVER_LISTEN").is_some()
            || process::running(&cluster.pid_file("server")).is_some()
        {
            return None;
        }
        let noted = std::fs::read_to_string(cluster.server().join("address")).ok()?;
        match free_again(&noted)? {
            Ok(address) => Some(address),
            Err(address) => {
                self.context.note(format_args!(
                    "another program listens at {address}, where the server was before: it gets another port"
                ));
                None
            }
        }
    }

    /// Starts the node whose files are in a backend.
    fn backend(&mut self, at: &BackendOption, args: &Args, nodes: usize) -> anyhow::Result<()> {
        let directory = self.context.cluster.node(BACKEND);
        let mut flags = self.flags_of((BACKEND, &directory), args, nodes);
        flags.extend(["--backend".into(), OsString::from(&at.uri)]);
        if let Some(keys) = &at.keys {
            flags.extend(["--backend-keys".into(), keys.into()]);
        }
        flags.extend(["--backend-format".into(), at.packing.to_string().into()]);
        self.start(&format!("node-{BACKEND}"), flags, None)
    }

    fn node(
        &mut self,
        (id, directory): (u32, &Path),
        args: &Args,
        nodes: usize,
    ) -> anyhow::Result<()> {
        let mut flags = self.flags_of((id, directory), args, nodes);
        if id == BURST {
            flags.extend(["--tier".into(), "burst".into()]);
        }
        self.start(&format!("node-{id}"), flags, None)
    }

    fn flags_of(&self, (id, directory): (u32, &Path), args: &Args, nodes: usize) -> Vec<OsString> {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = u32::try_from(all / nodes.max(1)).unwrap_or(1).max(1);
        let cores = args
            .cores
            .or(self.context.config.node.cores)
            .unwrap_or(shared);
        let mut flags: Vec<OsString> = vec![
            "node".into(),
            "run".into(),
            "--id".into(),
            id.to_string().into(),
            "--data-dir".into(),
            directory.into(),
            "--cores".into(),
            cores.to_string().into(),
            "--listen".into(),
            "127.0.0.1:0".into(),
        ];
        flags.extend(self.memory_of_each(nodes));
        flags
    }

    /// Starts the node of the memory tier, which runs nothing.
    fn memory_tier(&mut self, bytes: u64) -> anyhow::Result<()> {
        let directory = self.context.cluster.node(MEMORY_TIER);
        let flags: [OsString; 12] = [
            "node".into(),
            "run".into(),
            "--id".into(),
            MEMORY_TIER.to_string().into(),
            "--data-dir".into(),
            directory.into(),
            "--tier".into(),
            "memory".into(),
            "--capacity".into(),
            bytes.to_string().into(),
            "--listen".into(),
            "127.0.0.1:0".into(),
        ];
        self.start(&format!("node-{MEMORY_TIER}"), flags.into(), None)
    }

    /// The nodes of one machine must not each offer all of its memory; memory that an administrator configures counts as configured.
    fn memory_of_each(&self, nodes: usize) -> Vec<OsString> {
        let file = &self.context.config.node;
        let variables = ["TIDEMILL_NODE_MEMORY", "TIDEMILL_NODE_KERNELS_MEMORY"];
        let configured = file.memory.is_some() || file.kernels_memory.is_some();
        if configured
            || variables
                .iter()
                .any(|name| std::env::var_os(name).is_some())
        {
            return Vec::new();
        }
        let memory = tidemill_node::config::machine_memory_bytes() / nodes.max(1) as u64;
        vec!["--memory".into(), memory.to_string().into()]
    }

    fn mount(&mut self, path: &Path) -> anyhow::Result<()> {
        let cluster = &self.context.cluster;
        let mut running = process::running(&cluster.pid_file("mount"));
        if running.as_ref().is_some_and(|running| running.ending) {
            if let Err(error) = mountpoint::abort(path) {
                tracing::debug!("the remains of the killed mount can't be unmounted: {error}");
            }
            running = process::running(&cluster.pid_file("mount"));
        }
        if running.is_none() {
            if mountpoint::is_there(path) {
                mountpoint::check(path)?;
            }
            cluster.note_mountpoint(path)?;
        }
        self.start("mount", vec!["mount".into(), path.into()], None)
    }

    fn start(
        &mut self,
        name: &str,
        mut flags: Vec<OsString>,
        variable: Option<(&str, &str)>,
    ) -> anyhow::Result<()> {
        let cluster = &self.context.cluster;
        if let Some(running) = process::running(&cluster.pid_file(name)) {
            anyhow::ensure!(
                !running.ending,
                "{name} was killed but has not ended: process {}; see what it waits for (`ps -o stat,wchan -p {}`), \
                 then run `tidemill up` again",
                running.pid,
                running.pid
            );
            self.done.already.push(name.to_owned());
            return Ok(());
        }
        flags.extend(["--dir".into(), cluster.path().into()]);
        flags.extend(["--server".into(), self.endpoint.to_string().into()]);
        if let Some(config) = &self.context.global.config {
            flags.extend(["--config".into(), std::path::absolute(config)?.into()]);
        }
        if !self.context.tls() {
            flags.extend(["--tls".into(), "off".into()]);
        }
        flags.extend((0..self.context.global.verbose).map(|_| "-v".into()));
        let child = process::start(
            &flags,
            variable,
            &cluster.pid_file(name),
            &cluster.log(name),
        )?;
        self.children.push((name.to_owned(), child));
        self.done.started.push(name.to_owned());
        Ok(())
    }

    /// Waits for something; fails early when a process has ended.
    async fn until(
        &mut self,
        what: &str,
        ready: impl AsyncFn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let spinner = self.context.draws().then(|| {
            let spinner =
                indicatif::ProgressBar::new_spinner().with_message(format!("waiting for {what}"));
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        let began = Instant::now();
        let result = loop {
            if ready(self).await {
                break Ok(());
            }
            if let Err(error) = self.check_children() {
                break Err(error);
            }
            if began.elapsed() > PATIENCE {
                let logs = self.context.cluster.log("*");
                break Err(anyhow::anyhow!(
                    "{what} not ready after {} s: see {}",
                    PATIENCE.as_secs(),
                    logs.display()
                ));
            }
            tokio::time::sleep(PERIOD).await;
        };
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        result
    }

    fn check_children(&mut self) -> anyhow::Result<()> {
        for (name, child) in &mut self.children {
            if let Some(status) = child.try_wait()? {
                let log = self.context.cluster.log(name);
                anyhow::bail!(
                    "{name} ended at once ({status}): {}\n{}",
                    log.display(),
                    process::tail(&log, 5)
                );
            }
        }
        Ok(())
    }

    async fn connect(&self) -> Option<tidemill_client::Server> {
        tidemill_client::Server::connect(&self.endpoint, None)
            .await
            .ok()
    }

    async fn nodes_are_up(&self, ids: &[u32]) -> bool {
        let Some(server) = self.connect().await else {
            return false;
        };
        let status = server.status().await.unwrap_or_default();
        ids.iter().all(|id| {
            status
                .nodes
                .iter()
                .any(|node| node.node == *id && (node.up || is_suspended(node)))
        })
    }
}

/// Returns the address of a noted `https://HOST:PORT` of this host alone; the error is an address that is in use.
fn free_again(noted: &str) -> Option<Result<SocketAddr, SocketAddr>> {
    let (_, address) = noted.trim().split_once("://")?;
    let address: SocketAddr = address.parse().ok()?;
    if !address.ip().is_loopback() || address.port() == 0 {
        return None;
    }
    let bound = std::net::TcpListener::bind(address);
    Some(bound.map(|_| address).map_err(|_| address))
}

/// Returns whether the node is suspended, which counts as running.
fn is_suspended(node: &tidemill_wire::v1::Node) -> bool {
    node.suspension
        .as_ref()
        .is_some_and(|suspension| suspension.suspended)
}

fn tell(
    context: &CommandContext,
    done: &StartedProcesses,
    ids: &[u32],
    mount: Option<&Path>,
) -> anyhow::Result<()> {
    let dir = context.cluster.path().display().to_string();
    let mut lines = Vec::new();
    if !done.already.is_empty() {
        lines.push(format!("already running: {}", done.already.join(", ")));
    }
    if !done.started.is_empty() {
        lines.push(format!("started: {}", done.started.join(", ")));
    }
    let by_flag = context.global.dir.is_some() && std::env::var_os("TIDEMILL_DIR").is_none();
    let tidemill = if by_flag {
        format!("tidemill --dir {dir}")
    } else {
        "tidemill".to_owned()
    };
    lines.push(String::new());
    match mount {
        Some(path) => {
            let path = path.display();
            lines.push(format!("Mounted at {path}: copy data in with cp."));
            lines.push(format!("Run a job:   {tidemill} submit --watch SCRIPT"));
            lines.push(format!(
                "         or  echo SCRIPT > {path}/.tidemill/$USER/submit"
            ));
        }
        None => {
            lines.push(format!("Put data in: {tidemill} put FILE... /"));
            lines.push(format!("Run a job:   {tidemill} submit --watch SCRIPT"));
        }
    }
    lines.push(format!("Look around: {tidemill} status, {tidemill} ls -l"));
    lines.push(format!("Stop it:     {tidemill} down"));
    let started = StartedCluster {
        dir,
        endpoint: Endpoint::Unix(context.cluster.socket()).to_string(),
        mount: mount.map(exact),
        nodes: ids.to_vec(),
        started: done.started.clone(),
        already_running: done.already.clone(),
    };
    context.output.show(&Message(lines.join("\n"), started))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::free_again;

    #[test]
    fn noted_address_is_reused_unless_in_use() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let noted = format!("https://{address}\n");
        assert_eq!(free_again(&noted), Some(Err(address)));
        drop(taken);
        assert_eq!(free_again(&noted), Some(Ok(address)));
        for noted in ["", "https://192.0.2.1:80", "https://127.0.0.1:0", "x"] {
            assert_eq!(free_again(noted), None, "{noted}");
        }
    }
}
