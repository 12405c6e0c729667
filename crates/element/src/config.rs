//! What an element is told when it starts.

use crate::outside::Where;
use crate::power::Meter;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_client::{Credential, Endpoint};
use tidemill_core::event::Role;
use tidemill_core::id::ElementId;
use tidemill_core::layout::Medium;
use tidemill_core::resources::Offers;

/// Rate that is reported until a pull has been measured: 1 Gbit/s in bytes per second.
pub const LINK_BYTES_PER_SEC_DEFAULT: u64 = 125_000_000;

/// Bytes of pulled objects that are kept after their last use.
pub const PULLED_BYTES_MAX_DEFAULT: u64 = tidemill_core::dispatch::COPIES_BYTES_MAX;

/// Bytes per second that it reads at most of its objects, to hash and to compare them, when it has nothing else to do: a device
/// of 16 TB in three days.
pub const SCRUB_BYTES_PER_SEC_DEFAULT: u64 = 64 << 20;

/// What an element is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its id in the array; a folder belongs to one id for ever.
    pub element: ElementId,
    /// What it is for.
    pub role: Role,
    /// Whether what is written there goes on to others: it is of the burst tier.
    pub burst: bool,
    /// Where it keeps everything. Made if need be.
    pub folder: PathBuf,
    /// Where it serves HTTP; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Whether it serves inside TLS, as an array does unless it was told not to.
    pub tls: bool,
    /// How others reach it, `https://host:port` (`http://` without TLS); `None`: the address that it listens on.
    pub url: Option<String>,
    /// Id of the host it is on; see `tidemill_client::host::id`.
    pub host: String,
    /// The array's server.
    pub server: Endpoint,
    /// Content of the array's token file; needed over TCP only.
    pub credential: Option<Credential>,
    /// Cores for kernels that it runs at once.
    pub cores: u32,
    /// Memory for tasks that say how much they need, in bytes; `None`: that which all kernels may have together.
    pub memory_bytes: Option<u64>,
    /// Named resources for kernels that it runs at once, such as GPUs and licences.
    pub resources: BTreeMap<String, u64>,
    /// Whether kernels run only where nobody else wants the processor, so that reads and writes of clients keep
    /// their latency.
    pub kernels_idle: bool,
    /// Memory that all its kernels may have together, where the host allows control groups; `None`: seven eighths of the
    /// host's.
    pub kernels_memory_bytes: Option<u64>,
    /// Folders of its host that kernels may see, and all below them, if their tasks ask for them.
    pub kernels_folders: Vec<PathBuf>,
    /// Files and folders of the array on its host, and of its keys, that kernels never see, beside its own.
    pub hidden: Vec<PathBuf>,
    /// Folders that programs are looked for in before the system's, which all kernels see.
    pub kernels_path: Vec<PathBuf>,
    /// Environment variables of all kernels, unless their tasks set them.
    pub kernels_environment: Vec<(String, String)>,
    /// What it keeps them in.
    pub medium: Medium,
    /// Where its files stay, if that is outside of the array.
    pub outside: Option<Where>,
    /// Bytes that its objects may take; `None`: all that the device has.
    pub capacity_bytes: Option<u64>,
    /// Memory for what tasks of jobs hand to each other, in bytes, beside what is on its disk; `None`: that goes to the disk.
    pub intermediate_bytes: Option<u64>,
    /// Rate of pulls from other elements in bytes per second; `None`: measured.
    pub link_bytes_per_sec: Option<u64>,
    /// Rate of its device in bytes per second, for policies that prefer fast elements; `None`: nobody said.
    pub device_bytes_per_sec: Option<u64>,
    /// What it draws at full load in thousandths of a watt, for policies that prefer thrifty elements; `None`: nobody said.
    pub watts_milli: Option<u64>,
    /// With nothing to do, and suspended.
    pub idle_milli: Option<u64>,
    /// See `idle_milli`.
    pub suspended_milli: Option<u64>,
    /// What says how much it draws now.
    pub meter: Option<Meter>,
    /// How often its status is refreshed and sent.
    pub status_period: Duration,
    /// The program that runs built-in and native kernels when it is started with the hidden argument of
    /// `tidemill_kernel`; normally this very program.
    pub program: PathBuf,
    /// Whether objects of elements on the same host are taken from their folders; otherwise they are pulled
    /// over HTTP like all others.
    pub in_place: bool,
    /// Bytes of pulled objects that are kept after their last use, for tasks to come.
    pub pulled_bytes_max: u64,
    /// Rate at which it reads its objects when nobody asks for that, in bytes per second, to hash them and to find damage;
    /// `None`: it does not.
    pub scrub_bytes_per_sec: Option<u64>,
}

/// The memory of this machine that kernels may have, unless the configuration of an element names another: seven eighths of
/// it, or of the limit of this process's control group.
#[must_use]
pub fn machine_memory_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    let bytes = (host.totalram as u64).saturating_mul(host.mem_unit.into());
    let bytes = tidemill_kernel::memory_limit().map_or(bytes, |limit| bytes.min(limit));
    bytes - bytes / 8
}

impl Config {
    /// What it has for kernels that run at once.
    #[must_use]
    pub fn offers(&self) -> Offers {
        let memory = self.memory_bytes;
        Offers {
            cores: self.cores,
            memory_bytes: memory.unwrap_or_else(|| self.kernels_memory_bytes()),
            named: self.resources.clone(),
        }
    }

    /// Memory that all kernels may have together.
    #[must_use]
    pub fn kernels_memory_bytes(&self) -> u64 {
        self.kernels_memory_bytes
            .unwrap_or_else(machine_memory_bytes)
    }

    /// An element of role `store` with the defaults: any port of the loopback, as many cores as the host,
    /// status every second, TLS unless the
    /// server is reached without it.
    #[must_use]
    pub fn new(element: ElementId, folder: impl Into<PathBuf>, server: Endpoint) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            element,
            role: Role::Store,
            burst: false,
            folder: folder.into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls: !matches!(server, Endpoint::Http(_)),
            url: None,
            host: tidemill_client::host::id(),
            server,
            credential: None,
            cores: u32::try_from(cores).unwrap_or(1),
            memory_bytes: None,
            resources: BTreeMap::new(),
            kernels_idle: true,
            kernels_memory_bytes: None,
            kernels_folders: Vec::new(),
            hidden: Vec::new(),
            kernels_path: Vec::new(),
            kernels_environment: Vec::new(),
            medium: Medium::Disk,
            outside: None,
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
            pulled_bytes_max: PULLED_BYTES_MAX_DEFAULT,
            scrub_bytes_per_sec: Some(SCRUB_BYTES_PER_SEC_DEFAULT),
        }
    }
}
