//! State of one node that its modules share: the node's configuration, its identity in the cluster, and its components. The module uses the
//! database and sends status reports to the server (next: `server/src/cluster.rs`).

use crate::clock_check::Clocks;
use crate::config::{LINK_BYTES_PER_SEC_DEFAULT, NodeConfig};
use crate::db::{Db, DbError};
use crate::error::Error;
use crate::executor::{Executor, ExecutorParts};
use crate::identity::NodeIdentity;
use crate::labels::NodeLabels;
use crate::log_copies::LogCopies;
use crate::power::{Meter, PowerReading};
use crate::ranks::Ranks;
use crate::revoked::Revoked;
use crate::store::{StoreError, StoreSpace};
use crate::suspended::Traffic;
use crate::task::now;
use crate::{records, status};
use std::sync::Arc;
use std::time::Duration;
use tidemill_model::label::Owner;
use tidemill_wire::capability::CapabilityKey;
use tidemill_wire::convert::{BURST, role_name};
use tidemill_wire::{condition, v1};
use tokio::sync::watch;

/// Key of the table `identity` with the id of the node.
const NODE: &str = "node";
const CLUSTER: &str = "cluster";
const KEY: &str = "key";
/// Key of the table `identity` that is set when the server has removed the node from the cluster (next:
/// `meta/src/node_database.rs`).
const REMOVED: &str = "removed";

/// Maximum time that a request waits for a newly started node to join its cluster.
const JOIN_MAX: Duration = Duration::from_secs(5);

/// Number of refreshes of the status object between two searches for installed and removed programs.
const REFRESHES_PER_LOOK: u32 = 5;
/// Number of refreshes after which the node sends its complete status, including the use of kernels, even if it is unchanged.
const REFRESHES_PER_STATUS: u32 = 3;

/// Number of refreshes of the status object between two clean-ups of the label table and of the directory of tasks.
const REFRESHES_PER_PRUNE: u32 = 30;

/// State that the modules of a node share.
#[derive(Debug)]
pub struct Daemon {
    /// Configuration of the node.
    pub config: NodeConfig,
    /// URL at which other processes reach the node.
    pub url: String,
    /// Executor of labels, which also owns the labels and all other components.
    pub executor: Executor,
    membership: watch::Sender<Membership>,
    /// TLS identity of the node; `None` without TLS.
    pub(crate) identity: Option<NodeIdentity>,
    pub(crate) revoked: Revoked,
    pub(crate) log_copies: LogCopies,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) ranks: Ranks,
    pub(crate) clocks: Clocks,
    /// Power meter of the host and its last reading.
    meter: Option<(Meter, PowerReading)>,
    /// Number that identifies the memory of a node of the memory tier; 0 for other nodes. See [`crate::memory`].
    memory_id: u64,
    counts_space: bool,
}

/// Membership of the node in a cluster.
#[derive(Clone, Debug, Default)]
struct Membership {
    cluster: u64,
    key: Option<CapabilityKey>,
}

/// Checks that a directory belongs to this node. Records the node's id in a new directory.
///
/// # Errors
/// [`Error::OtherNode`], [`Error::Removed`], or an error of the database.
pub(crate) fn claim(db: &Db, config: &NodeConfig) -> Result<(), Error> {
    let ours = config.node.to_string();
    if db
        .read(|connection| records::identity(connection, REMOVED))?
        .is_some()
    {
        return Err(Error::Removed {
            node: config.node,
            path: config.directory.clone(),
        });
    }
    match db.read(|connection| records::identity(connection, NODE))? {
        Some(theirs) if theirs == ours.as_bytes() => Ok(()),
        Some(theirs) => Err(Error::OtherNode {
            path: config.directory.clone(),
            theirs: String::from_utf8_lossy(&theirs).into_owned(),
            ours: config.node,
        }),
        None => {
            db.submit(
                true,
                move |connection| records::set_identity(connection, NODE, ours.as_bytes()),
                |result| {
                    if let Err(error) = result {
                        tracing::error!(%error, "the node's id could not be stored");
                    }
                },
            );
            Ok(())
        }
    }
}

/// Returns whether the server has taken the node of this directory out of the cluster, according to the directory's database.
#[must_use]
pub fn is_removed(directory: &std::path::Path) -> bool {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let database = rusqlite::Connection::open_with_flags(directory.join("node.db"), flags);
    let removed = database.and_then(|db| records::identity(&db, REMOVED));
    removed.is_ok_and(|removed| removed.is_some())
}

impl Daemon {
    /// Creates the state of the node and restores its membership in the cluster from the database.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn new(config: NodeConfig, url: String, executor: Executor) -> Result<Self, Error> {
        let (cluster, key) = executor.parts().db.read(|connection| {
            Ok((
                records::identity(connection, CLUSTER)?,
                records::identity(connection, KEY)?,
            ))
        })?;
        let cluster = cluster.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        let membership = Membership {
            cluster: cluster.map_or(0, u64::from_le_bytes),
            key: key.and_then(|bytes| CapabilityKey::from_slice(&bytes).ok()),
        };
        let identity = config.tls.then(|| NodeIdentity::open(&executor.parts().db));
        let identity = identity.transpose()?;
        let meter = config.meter.clone();
        let log_copies = LogCopies::new(&config.directory);
        Ok(Self {
            meter: meter.map(|meter| (meter.clone(), meter.start())),
            config,
            url,
            executor,
            membership: watch::Sender::new(membership),
            identity,
            revoked: Revoked::default(),
            log_copies,
            traffic: Arc::default(),
            ranks: Ranks::default(),
            clocks: Clocks::default(),
            memory_id: 0,
            counts_space: false,
        })
    }

    /// Marks the node as a node of the memory tier, with this number. `counts_space` is set if the node must count its used memory, because
    /// no other limit exists.
    #[must_use]
    pub(crate) fn in_memory(self, memory_id: u64, counts_space: bool) -> Self {
        Self {
            memory_id,
            counts_space,
            ..self
        }
    }

    pub(crate) fn parts_shared(&self) -> &Arc<ExecutorParts> {
        self.executor.parts()
    }

    /// Returns the components of the node.
    #[must_use]
    pub fn parts(&self) -> &ExecutorParts {
        self.executor.parts()
    }

    /// Returns the labels of the node.
    #[must_use]
    pub fn labels(&self) -> &Arc<NodeLabels> {
        self.executor.labels()
    }

    /// Returns the key that verifies capabilities; `None` if the node does not join a cluster within `JOIN_MAX`.
    pub async fn key(&self) -> Option<CapabilityKey> {
        if let Some(key) = &self.membership.borrow().key {
            return Some(key.clone());
        }
        let mut changes = self.membership.subscribe();
        let joined = changes.wait_for(|membership| membership.key.is_some());
        let joined = tokio::time::timeout(JOIN_MAX, joined).await;
        joined.ok()?.ok()?.key.clone()
    }

    /// Returns the id of the node's cluster; 0 until the node has joined a cluster.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.membership.borrow().cluster
    }

    /// Joins a cluster, or reconnects to it.
    ///
    /// # Errors
    /// [`Error::OtherCluster`] if the node belongs to another cluster; an error of the database if it can't store the membership.
    pub async fn join(&self, cluster: u64, key: CapabilityKey) -> Result<(), Error> {
        let before = self.membership.borrow().clone();
        if before.cluster != 0 && before.cluster != cluster {
            return Err(Error::OtherCluster {
                path: self.config.directory.clone(),
                server: self.config.server.to_string(),
                ours: before.cluster,
                theirs: cluster,
            });
        }
        let same = before
            .key
            .is_some_and(|old| old.as_bytes() == key.as_bytes());
        if !same || before.cluster == 0 {
            let bytes = key.as_bytes().to_vec();
            let change = move |connection: &rusqlite::Connection| {
                records::set_identity(connection, CLUSTER, &cluster.to_le_bytes())?;
                records::set_identity(connection, KEY, &bytes)
            };
            self.parts().db.write(true, change).await?;
        }
        self.membership.send_replace(Membership {
            cluster,
            key: Some(key),
        });
        Ok(())
    }

    /// Records in the node's database that the server has removed the node from the cluster. Returns the reason to end the process.
    pub(crate) async fn leave(&self) -> Error {
        let change =
            |connection: &rusqlite::Connection| records::set_identity(connection, REMOVED, &[1]);
        match self.parts().db.write(true, change).await {
            Ok(()) => Error::Removed {
                node: self.config.node,
                path: self.config.directory.clone(),
            },
            Err(error) => error.into(),
        }
    }

    /// Returns the node's public key, which the server certifies; empty without TLS.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        self.identity.as_ref().map_or(&[], NodeIdentity::public_key)
    }

    /// Stores the certificate (DER) that the server has issued for the node.
    ///
    /// # Errors
    /// The certificate is not for this node's key, or can't be stored.
    pub async fn renew(&self, certificate: &[u8]) -> Result<(), Error> {
        match &self.identity {
            Some(identity) => identity.renew(&self.parts().db, certificate).await,
            None => Ok(()),
        }
    }

    /// Returns the host name that the node reports. The name differs if others must not open the directory of a backend.
    fn host(&self) -> String {
        match self.config.backend {
            Some(_) => format!("{} (backend)", self.config.host),
            None => self.config.host.clone(),
        }
    }

    /// Returns the conditions of this node that an administrator must act on.
    fn conditions(&self, unusable: Option<StoreError>) -> Vec<v1::Condition> {
        let (parts, node) = (self.parts(), self.config.node.0);
        let directory = unusable.map(|error| {
            let cause = format!("its directory can't be used: {error}");
            condition::NODE_DIRECTORY.of(Some(node), cause)
        });
        let store = parts.backend.as_ref();
        let store = store.and_then(|backend| backend.condition(node));
        let mut found: Vec<v1::Condition> = directory.into_iter().collect();
        found.extend(parts.db.left().conditions(node));
        found.extend(store);
        found.extend(self.clocks.condition(node, now().0));
        found
    }

    /// Returns the current status of the node.
    #[must_use]
    pub fn describe(&self) -> v1::Node {
        let parts = self.parts();
        // Without its directory the node takes no files. The server must learn the reason.
        let (space, unusable) = match parts.store.space() {
            Ok(space) => (space, None),
            Err(error) => (StoreSpace::NONE, Some(error)),
        };
        let (running, queued) = self.labels().counts();
        let link = self.config.link_bytes_per_sec;
        let link = link.or_else(|| parts.fetcher.measured_bytes_per_sec());
        let mut node = v1::Node {
            node: self.config.node.0,
            role: role_name(self.config.role).into(),
            up: true,
            url: self.url.clone(),
            host: self.host(),
            directory: self.config.directory.display().to_string(),
            cores: self.config.cores,
            memory_bytes: self.config.offers().memory_bytes,
            resources: self.config.resources.clone(),
            running: u32::try_from(running).unwrap_or(u32::MAX),
            queued: u32::try_from(queued).unwrap_or(u32::MAX),
            capacity_bytes: space.capacity_bytes,
            free_bytes: space.free_bytes,
            link_bytes_per_sec: link.unwrap_or(LINK_BYTES_PER_SEC_DEFAULT),
            device_bytes_per_sec: self.config.device_bytes_per_sec.unwrap_or(0),
            watts_milli: self.config.watts_milli.unwrap_or(0),
            idle_milli: self.config.idle_milli.unwrap_or(0),
            suspended_milli: self.config.suspended_milli.unwrap_or(0),
            sandbox: parts.runner.sandbox(),
            disk: Some(v1::Disk {
                device: space.disk.device,
                capacity_bytes: space.disk.capacity_bytes,
                free_bytes: space.disk.free_bytes,
            }),
            scrub_bytes_per_sec: self.config.scrub_bytes_per_sec.unwrap_or(0),
            tier: if self.config.memory_tier {
                "memory"
            } else if self.config.burst {
                BURST
            } else {
                ""
            }
            .into(),
            memory_id: self.memory_id,
            counts_space: self.counts_space,
            ..v1::Node::default()
        };
        if let Some((meter, reading)) = &self.meter
            && let Some(milli) = reading.milliwatts()
        {
            node.measured_milli = milli;
            node.measured_by = meter.name();
        }
        node.backend = parts.backend.as_ref().map(|backend| backend.reported());
        node.conditions = self.conditions(unusable);
        let causes = node.conditions.iter().map(|one| one.cause.as_str());
        node.trouble = causes.collect::<Vec<_>>().join("; ");
        if parts.db.left().is_short() {
            // The server then places new files on other nodes.
            node.free_bytes = 0;
        }
        parts.counters.report(&mut node);
        if !self.config.memory_tier {
            node.flash_model = parts.flash.report();
        }
        node
    }

    /// Checks whether the node may suspend: it has no labels, the server knows all outcomes, and no request arrived for the time `quiet`.
    ///
    /// # Errors
    /// The reason why the node may not suspend.
    pub(crate) fn may_suspend(&self, quiet: Duration) -> Result<(), String> {
        let known = self.labels().known().map_err(|error| error.to_string())?;
        if !known.is_empty() || self.labels().counts() != (0, 0) {
            return Err("it has labels".into());
        }
        let backend = &self.parts().backend;
        if backend
            .as_ref()
            .is_some_and(|backend| backend.reported().waiting > 0)
        {
            return Err("some of its files are not durable in the backend yet".into());
        }
        match self.traffic.quiet() {
            None => Err("it is being read or written".into()),
            Some(since) if since < quiet => Err(format!("it was used {} s ago", since.as_secs())),
            Some(_) => Ok(()),
        }
    }

    /// Returns the share of a processor that a kernel of the user in `probe` would get now. Blocks while it measures.
    #[must_use]
    pub fn probe(&self, probe: &v1::Probe) -> v1::Probed {
        let parts = self.parts();
        let (uid, gid) = (probe.uid, probe.gid);
        let directory = parts.directory.join("run");
        let directory = directory.join(format!("probe-{}", probe.request));
        let share = parts.runner.probe(directory, Owner { uid, gid });
        let share = share.inspect_err(
            |error| tracing::warn!(%error, "the load of the processors can't be reported"),
        );
        let processors = std::thread::available_parallelism().map_or(0, |count| count.get());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share is between 0 and 1"
        )]
        v1::Probed {
            request: probe.request,
            share_milli: share.map_or(0, |share| (share * 1000.0).round() as u32),
            processors: u32::try_from(processors).unwrap_or(u32::MAX),
        }
    }

    /// Updates the model of the flash device with the latest writes.
    async fn settle(&self) {
        let flash = Arc::clone(&self.parts().flash);
        let (db, store) = (self.parts().db.clone(), Arc::clone(&self.parts().store));
        let settled = tokio::task::spawn_blocking(move || flash.settle(&db, &*store));
        if let Err(error) = settled.await {
            tracing::error!(%error, "the flash model can't continue");
        }
    }

    /// Removes the private directories and files of ended labels.
    async fn sweep(self: &Arc<Self>) {
        let daemon = Arc::clone(self);
        if let Err(error) = tokio::task::spawn_blocking(move || daemon.executor.sweep()).await {
            tracing::error!(%error, "files that ended labels have left can't be removed");
        }
    }

    /// Reports installed and removed programs to the server.
    async fn look_for_programs(self: &Arc<Self>) {
        let daemon = Arc::clone(self);
        let look = move || daemon.parts().look_for_programs();
        if let Err(error) = tokio::task::spawn_blocking(look).await {
            tracing::error!(%error, "the programs of this host can't be checked");
        }
    }

    /// Refreshes the status object with the configured period and sends it to the server. Never returns, unless the database is stopped.
    pub async fn refresh(self: &Arc<Self>) {
        use v1::from_node::Message;
        let (mut kept, mut reported) = (Vec::new(), v1::Node::default());
        let mut ticks = tokio::time::interval(self.config.status_period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for count in 1_u32.. {
            ticks.tick().await;
            self.settle().await;
            self.labels().keep_again();
            let node = self.describe();
            let attributes = status::attributes(&node);
            let whole = count % REFRESHES_PER_STATUS == 1;
            let message = match status::standing(&reported, &node).filter(|_| !whole) {
                Some(standing) => Message::Standing(standing),
                None => Message::Status(node.clone()),
            };
            reported = node;
            self.parts().reports.send(message);
            let prune = count % REFRESHES_PER_PRUNE == 0;
            if prune {
                self.sweep().await;
            }
            if count % REFRESHES_PER_LOOK == 0 {
                self.look_for_programs().await;
            }
            let own = status::own(&attributes);
            if own == kept && !prune {
                self.parts().db.flush();
                continue;
            }
            let change = move |connection: &rusqlite::Connection| {
                records::put_status(connection, &attributes)?;
                if prune {
                    records::prune_labels(connection)?;
                }
                Ok(())
            };
            match self.parts().db.write(false, change).await {
                Ok(()) => kept = own,
                Err(DbError::Stopped) => return,
                // The writer has logged the reason, once.
                Err(error) => tracing::debug!(%error, "the status object can't be stored"),
            }
        }
    }
}
