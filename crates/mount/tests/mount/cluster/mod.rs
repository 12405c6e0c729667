//! A real cluster in the test process: a server, two nodes, and as many mounts as a test requests.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test uses its own part of this"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test that can't have its cluster fails"
)]

#[path = "../../../../../tests/require.rs"]
pub mod require;

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidemill_client::Endpoint;
use tidemill_model::id::NodeId;
use tidemill_mount::{Error, MountConfig, MountSession, mount};
use tidemill_node::RunningNode;
use tidemill_server::RunningServer;
use tokio::runtime::Runtime;

pub mod loss;

/// Lock by which clusters of different tests do not exist at the same time: the start of a node forks this process, and the forked process
/// keeps descriptors open that this process closes in the meantime.
static ONE: ReentrantMutex<()> = ReentrantMutex::new(());

/// Changes the settings of a node.
pub type NodeSetup = fn(&mut tidemill_node::NodeConfig);

/// Changes the settings of a server.
pub type ServerSetup = fn(&mut tidemill_server::ServeConfig);

pub struct MountCluster {
    runtime: Runtime,
    /// The server, on a separate runtime, so that its connections end with it as the connections of a process do.
    server: Option<(Runtime, RunningServer)>,
    nodes: Vec<Option<RunningNode>>,
    directory: TempDir,
    mounts: u32,
    setup: ServerSetup,
    node_setups: Vec<NodeSetup>,
    _one: ReentrantMutexGuard<'static, ()>,
}

/// A mount that is detached at the end of the test.
#[derive(Debug)]
pub struct Mounted(Option<MountSession>);

impl Mounted {
    pub fn path(&self) -> &Path {
        self.0.as_ref().unwrap().mountpoint()
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    pub fn cached_files(&self) -> usize {
        self.0.as_ref().unwrap().cached_files()
    }

    pub fn unmount(self) {
        self.try_unmount().unwrap();
    }

    pub fn try_unmount(mut self) -> Result<(), Error> {
        self.0.take().unwrap().unmount()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            let _ = session.unmount();
        }
    }
}

/// Whether this host can mount file systems. Prints a message if not.
pub fn can_mount() -> bool {
    let able = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !able {
        require::skip("mounting needs root and /dev/fuse");
    }
    able
}

impl MountCluster {
    pub fn start() -> Self {
        Self::start_with(|_| {}, &[|_| {}, |_| {}])
    }

    /// Starts a cluster whose server and nodes have settings of the test's choice, one function for each node.
    pub fn start_with(setup: ServerSetup, nodes: &[NodeSetup]) -> Self {
        let log = tracing_subscriber::fmt()
            .with_test_writer()
            .with_env_filter(std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into()));
        let _ = log.try_init();
        let one = ONE.lock();
        let runtime = Runtime::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = Self {
            runtime,
            server: None,
            nodes: Vec::new(),
            directory,
            mounts: 0,
            setup,
            node_setups: nodes.to_vec(),
            _one: one,
        };
        cluster.start_server();
        cluster.nodes.resize_with(nodes.len(), || None);
        for number in 0..nodes.len() {
            cluster.start_node(number);
        }
        cluster.wait_nodes(nodes.len());
        cluster
    }

    pub fn start_node(&mut self, number: usize) {
        let directory = self.directory.path().join(format!("e{number}"));
        let id = NodeId(number.try_into().unwrap());
        let mut config = tidemill_node::NodeConfig::new(id, directory, self.endpoint());
        self.node_setups[number](&mut config);
        let node = self.runtime.block_on(RunningNode::start(config)).unwrap();
        self.nodes[number] = Some(node);
    }

    /// Stops a node. The server knows that the node is offline when the function returns.
    pub fn stop_node(&mut self, number: usize) {
        let node = self.nodes[number].take().unwrap();
        self.runtime.block_on(node.stop());
        let left = self.nodes.iter().flatten().count();
        if self.server.is_some() {
            self.wait_nodes(left);
        }
    }

    /// Returns the numbers of committed changes of the server and of each node.
    pub fn commits(&self) -> Vec<u64> {
        let server = self.server.iter().map(|(_, server)| server.commits());
        let nodes = self.nodes.iter().flatten();
        let nodes = nodes.map(|node| node.daemon().parts().db.commits());
        server.chain(nodes).collect()
    }

    /// Sends a request to the server.
    pub fn ask<T>(
        &self,
        ask: impl AsyncFnOnce(tidemill_client::Server) -> Result<T, tonic::Status>,
    ) -> T {
        let endpoint = self.endpoint();
        self.runtime.block_on(async {
            let server = tidemill_client::Server::connect(&endpoint, None).await;
            ask(server.unwrap()).await.unwrap()
        })
    }

    pub fn wait_nodes(&self, count: usize) {
        let endpoint = self.endpoint();
        self.runtime.block_on(async {
            let client = tidemill_client::Server::connect(&endpoint, None)
                .await
                .unwrap();
            loop {
                let status = client.status().await.unwrap();
                if status.nodes.iter().filter(|node| node.up).count() == count {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        });
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.directory.path().join("server/server.sock"))
    }

    pub fn start_server(&mut self) {
        let mut config = tidemill_server::ServeConfig::new(self.directory.path().join("server"));
        (self.setup)(&mut config);
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(RunningServer::start(config)).unwrap();
        self.server = Some((runtime, server));
    }

    pub fn stop_server(&mut self) {
        let (runtime, server) = self.server.take().unwrap();
        runtime.block_on(server.shutdown());
        runtime.shutdown_background();
    }

    /// Mounts the cluster; with `in_place` the mount opens object files directly.
    pub fn mount(&mut self, in_place: bool) -> Mounted {
        let endpoint = self.endpoint();
        self.mount_by(endpoint, in_place)
    }

    /// Mounts the cluster like [`Self::mount`], through another address of the server.
    pub fn mount_by(&mut self, endpoint: Endpoint, in_place: bool) -> Mounted {
        self.mount_with(endpoint, |config| config.in_place = in_place)
    }

    /// Mounts the cluster with other settings.
    pub fn mount_with(
        &mut self,
        endpoint: Endpoint,
        set: impl FnOnce(&mut MountConfig),
    ) -> Mounted {
        self.mounts += 1;
        let mountpoint = self.directory.path().join(format!("mnt{}", self.mounts));
        std::fs::create_dir(&mountpoint).unwrap();
        let mut config = MountConfig::new(endpoint, None, mountpoint);
        set(&mut config);
        Mounted(Some(mount(&config).unwrap()))
    }

    /// Mounts the cluster at a path that the test chooses.
    pub fn try_mount(&mut self, mountpoint: &Path) -> Result<Mounted, Error> {
        let config = MountConfig::new(self.endpoint(), None, mountpoint.to_owned());
        Ok(Mounted(Some(mount(&config)?)))
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for MountCluster {
    fn drop(&mut self) {
        for node in self.nodes.drain(..).flatten() {
            self.runtime.block_on(node.stop());
        }
        if self.server.is_some() {
            self.stop_server();
        }
    }
}
