//! Configuration of a node at its start. The module only contains values and reads the size of the host's memory.

use crate::backend::BackendSettings;
use crate::power::Meter;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_client::{Credential, Endpoint};
use tidemill_model::event::Role;
use tidemill_model::id::NodeId;
use tidemill_model::replicas::INPUT_CACHE_BYTES_MAX;
use tidemill_model::resources::Offers;

/// Rate that a node reports until it has measured a fetch: 1 Gbit/s in bytes per second.
pub const LINK_BYTES_PER_SEC_DEFAULT: u64 = 125_000_000;

/// Default rate of an idle node that hashes and compares its objects, in bytes per second: 16 TB in three days.
pub const SCRUB_BYTES_PER_SEC_DEFAULT: u64 = 64 << 20;

/// Configuration of a node at its start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Id of the node in the cluster; a data directory belongs to one id for ever.
    pub node: NodeId,
    /// Role of the node.
    pub role: Role,
    /// Whether the node belongs to the burst tier, so that its files are staged out to other nodes.
    pub burst: bool,
    /// Directory for all files of the node. It is created if it does not exist.
    pub directory: PathBuf,
    /// Address on which the node serves HTTP; port 0 takes any free port.
    pub listen: SocketAddr,
    /// Whether the node serves with TLS, which is the default of a cluster.
    pub tls: bool,
    /// URL at which other processes reach the node, `https://host:port` (`http://` without TLS); `None`: the address that the node listens
    /// on.
    pub url: Option<String>,
    /// Id of the node's host; see `tidemill_client::host_id::id`.
    pub host: String,
    /// Address of the cluster's server.
    pub server: Endpoint,
    /// Content of the cluster's token file, which only a connection over TCP needs.
    pub credential: Option<Credential>,
    /// Number of cores for concurrent kernels.
    pub cores: u32,
    /// Memory for tasks with a declared need, in bytes; `None`: the memory of all kernels together.
    pub memory_bytes: Option<u64>,
    /// Named resources for concurrent kernels, such as GPUs and licences.
    pub resources: BTreeMap<String, u64>,
    /// Whether kernels run only on idle processors, so that reads and writes of clients keep their latency.
    pub kernels_idle: bool,
    /// Memory limit of all kernels together, in bytes, if the host allows control groups; `None`: seven eighths of the host's memory.
    pub kernels_memory_bytes: Option<u64>,
    /// Directories of the host that kernels may see, with all their subdirectories, if the kernels' tasks request them.
    pub task_dirs: Vec<PathBuf>,
    /// Files and directories of the cluster and of its keys on this host that kernels never see, in addition to the node's own directory.
    pub hidden: Vec<PathBuf>,
    /// Directories that are searched for programs before the system's directories. All kernels see them.
    pub kernels_path: Vec<PathBuf>,
    /// Environment variables of all kernels, unless their tasks set them.
    pub kernels_environment: Vec<(String, String)>,
    /// Whether the node belongs to the memory tier.
    pub memory_tier: bool,
    /// Backend that stores the objects' bytes; `None`: the data directory stores them.
    pub backend: Option<BackendSettings>,
    /// Bytes that the node's objects may take; `None`: the whole device.
    pub capacity_bytes: Option<u64>,
    /// Memory for intermediate files of jobs, in bytes; `None`: intermediate files are stored on the disk.
    pub intermediate_bytes: Option<u64>,
    /// Rate of fetches from other nodes in bytes per second; `None`: measured.
    pub link_bytes_per_sec: Option<u64>,
    /// Rate of the device in bytes per second, for policies that prefer fast nodes; `None`: not configured.
    pub device_bytes_per_sec: Option<u64>,
    /// Power at full load in thousandths of a watt, for policies that prefer efficient nodes; `None`: not configured.
    pub watts_milli: Option<u64>,
    /// Power of the idle node in thousandths of a watt; `None`: not configured.
    pub idle_milli: Option<u64>,
    /// Power of the suspended node in thousandths of a watt; `None`: not configured.
    pub suspended_milli: Option<u64>,
    /// Meter of the host's current power; `None`: the power is not measured.
    pub meter: Option<Meter>,
    /// Interval at which the node refreshes its status.
    pub status_period: Duration,
    /// Program that runs built-in and native kernels if it is started with the hidden argument of `tidemill_sandbox`; normally the running
    /// program.
    pub program: PathBuf,
    /// Whether the node reads objects of nodes on the same host from their directories. Otherwise it fetches them over HTTP like all other
    /// objects.
    pub in_place: bool,
    /// Limit in bytes of the fetched objects that the node keeps after their last use for later tasks.
    pub input_cache_bytes_max: u64,
    /// Rate at which the node reads its objects in the background, in bytes per second, to find corruption. `None`: never.
    pub scrub_bytes_per_sec: Option<u64>,
}

/// Returns the memory of this host that kernels may use by default, in bytes: seven eighths of the host's memory or of its control group's
/// limit.
#[must_use]
pub fn machine_memory_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    let bytes = (host.totalram as u64).saturating_mul(host.mem_unit.into());
    let bytes = tidemill_sandbox::memory_limit().map_or(bytes, |limit| bytes.min(limit));
    bytes - bytes / 8
}

impl NodeConfig {
    /// Returns the resources that the node offers for concurrent kernels.
    #[must_use]
    pub fn offers(&self) -> Offers {
        let memory = self.memory_bytes;
        Offers {
            cores: self.cores,
            memory_bytes: memory.unwrap_or_else(|| self.kernels_memory_bytes()),
            named: self.resources.clone(),
        }
    }

    /// Returns the memory limit of all kernels together, in bytes.
    #[must_use]
    pub fn kernels_memory_bytes(&self) -> u64 {
        self.kernels_memory_bytes
            .unwrap_or_else(machine_memory_bytes)
    }

    /// Returns the configuration of a node of role `store` with the defaults: any port of the loopback, all cores of the host, status every
    /// second, TLS unless the server's address is without TLS.
    #[must_use]
    pub fn new(node: NodeId, directory: impl Into<PathBuf>, server: Endpoint) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            node,
            role: Role::Store,
            burst: false,
            directory: directory.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls: !server.is_plain(),
            url: None,
            host: tidemill_client::host_id::id(),
            server,
            credential: None,
            cores: u32::try_from(cores).unwrap_or(1),
            memory_bytes: None,
            resources: BTreeMap::new(),
            kernels_idle: true,
            kernels_memory_bytes: None,
            task_dirs: Vec::new(),
            hidden: Vec::new(),
            kernels_path: Vec::new(),
            kernels_environment: Vec::new(),
            memory_tier: false,
            backend: None,
            capacity_bytes: None,
            intermediate_bytes: None,
            link_bytes_per_sec: None,
            device_bytes_per_sec: None,
            watts_milli: None,
            idle_milli: None,
            suspended_milli: None,
            meter: None,
            status_period: Duration::from_secs(1),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("tidemill")),
            in_place: true,
            input_cache_bytes_max: INPUT_CACHE_BYTES_MAX,
            scrub_bytes_per_sec: Some(SCRUB_BYTES_PER_SEC_DEFAULT),
        }
    }
}
