//! The nodes of the cluster: which nodes are up, the last status of each node, and the stream of messages to each node.
//!
//! A node is up as long as its stream is open. This module passes reports about labels through a channel to the dispatcher's driver
//! and does not decide where work runs. Next: `server/src/jobs`, which receives each `DriverReport`.

pub(crate) mod conditions;
mod peers;
pub(crate) mod revocations;
pub(crate) mod suspended_connections;

use crate::ca::Ca;
use crate::clock;
use crate::jobs::DriverMessage;
use crate::log_copies::CopiedLogs;
use crate::migrations::NodeProperties;
use parking_lot::Mutex;
use peers::{AddressChanges, KnownAddresses};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidemill_client::Error as ClientError;
use tidemill_client::objects::Objects;
use tidemill_meta::changes::ChangeSender;
use tidemill_meta::commit::Database;
use tidemill_meta::placement::burst::TierNode;
use tidemill_meta::placement::{burst, corruption, energy, nodes};
use tidemill_meta::shared::{NamesShared, Spaces};
use tidemill_meta::wakes::FILLED;
use tidemill_meta::{Changed, Connection, Fault, SqliteNames, version};
use tidemill_model::id::NodeId;
use tidemill_model::label::Owner;
use tidemill_model::layout::FreeSpace;
use tidemill_model::replicas::OnlineNode;
use tidemill_sched::burst::TierLimits;
use tidemill_sched::dispatch::{Demand, NodeLoad};
use tidemill_sched::elastic::ElasticEvent as SuspendEvent;
use tidemill_wire::capability::{Attributes, rights};
use tidemill_wire::condition::{self, ConditionKind};
use tidemill_wire::convert::BURST;
use tidemill_wire::route::{self, SealBody, SealItem, SealResult};
use tidemill_wire::v1::{self, from_node::Message as From, to_node::Message as To};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

/// Maximum number of messages that wait for one node. A node that reads more slowly loses its connection and has to reconnect.
const OUTBOX_MAX: usize = 4096;

/// Maximum silence of a node before the server treats the node as hanging. A healthy node sends its status every second. The server places
/// new files on other nodes than hanging ones.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Tier of a node that loses all its data when its host stops.
const MEMORY: &str = "memory";

/// Time limit for a node to seal the objects of one request. The node may have to copy objects first.
const SEAL_MAX: Duration = Duration::from_secs(120);
/// Maximum number of objects in one question for their files.
const FIND_FILES_MAX: usize = 4096;
/// Maximum number of programs that the server remembers for a node.
const PROGRAMS_MAX: usize = 1000;
/// Part of a node's capacity by which its free space changes before the driver hears of it, which needs nothing else of a load update.
const FREE_PARTS: u64 = 1000;
/// Time for which the first change of a node's free space waits for others.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// Pause before the server retries storing a node's properties.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Maximum wait for the driver's reply about the load of the nodes. The driver may be storing decisions or answering other callers.
const LOAD_WAIT: Duration = Duration::from_millis(500);
const PROBE_WAIT: Duration = Duration::from_secs(2);

/// Report of a node to the dispatcher's driver.
#[derive(Debug)]
pub(crate) enum DriverReport {
    /// The node joined or reconnected, and knows the labels with these ids.
    Up { node: v1::Node, labels: Vec<u64> },
    /// The node was offline for longer than the node timeout.
    Down { node: u32 },
    /// The node is suspended, not lost.
    Suspended { node: u32 },
    /// Objects on the node are corrupt; the server learned their ids from the node.
    Corrupt {
        node: u32,
        corrupt: v1::CorruptObjects,
    },
    /// The node was removed from the cluster.
    Removed { node: u32 },
    /// New status of the node.
    Status { node: v1::Node },
    /// Answer of a node to the question which of the requested programs are installed there.
    Programs {
        node: u32,
        found: Vec<String>,
        missing: Vec<String>,
    },
    /// The node started to execute a label.
    Started { node: u32, label: u64 },
    /// The node finished executing a label.
    Finished {
        node: u32,
        label: u64,
        outcome: v1::LabelOutcome,
    },
}

/// A node, and the names of those requested programs that are installed there.
type NodePrograms = (u32, Vec<String>);

/// State of one node of the cluster.
#[derive(Debug)]
struct NodeSlot {
    status: v1::Node,
    /// Time of the node's last message.
    heard: Instant,
    connection: Option<NodeConnection>,
    /// Start of the time without a connection. For a node that has not connected since the server started, this is the start of the server.
    /// The monotonic clock is used, so that a change of the host's clock makes no node lost.
    offline_since: tokio::time::Instant,
    /// Number of the current connection, so that the end of an old connection is not taken for the end of the new one.
    epoch: u64,
    /// Free space in bytes that the driver knows.
    told_free_bytes: u64,
    /// Requested programs that the node has, since it connected.
    programs: BTreeSet<String>,
    /// Whether the properties that the node reported at its connection are stored, as far as they must be stored before files are
    /// placed there.
    remembered: bool,
}

#[derive(Debug)]
struct NodeConnection {
    outbox: mpsc::Sender<v1::ToNode>,
    /// Addresses of other nodes that were sent.
    known: KnownAddresses,
    /// Signal that ends the node's stream.
    end: watch::Sender<bool>,
}

/// State of all nodes of the cluster, as described in the module's documentation.
#[derive(Debug)]
pub(crate) struct Cluster {
    slots: Mutex<BTreeMap<u32, NodeSlot>>,
    shared: Arc<NamesShared>,
    database: Arc<Database>,
    teller: ChangeSender,
    cluster_id: u64,
    reports: std::sync::mpsc::Sender<DriverMessage>,
    node_timeout: Duration,
    link_bytes_per_sec: u64,
    tls: bool,
    ca: Arc<Ca>,
    next_question: AtomicU64,
    questions: Mutex<BTreeMap<u64, mpsc::UnboundedSender<NodePrograms>>>,
    probes: Mutex<BTreeMap<u64, oneshot::Sender<v1::Probed>>>,
    /// Held while a node measures its processor share, so that only one probe runs at a time.
    probing: tokio::sync::Mutex<()>,
    addresses: Mutex<AddressChanges>,
    /// Whether a task will report the free space of the nodes to the namespace.
    refreshing: AtomicBool,
    copied_logs: CopiedLogs,
    /// Processes that stay connected for suspended nodes and wait for a resume message.
    keepers: Mutex<BTreeMap<u32, (u64, NodeConnection)>>,
    /// Rejected nodes, each with the kind of condition, the reason and the time of the rejection.
    refused: Mutex<BTreeMap<u32, (ConditionKind, String, Instant)>>,
    objects: OnceLock<Objects>,
}

/// Settings of the cluster that the server needs to create [`Cluster`].
#[derive(Clone, Debug)]
pub(crate) struct ClusterSettings {
    pub(crate) cluster_id: u64,
    pub(crate) node_timeout: Duration,
    pub(crate) link_bytes_per_sec: u64,
    /// Whether nodes must serve their data inside TLS.
    pub(crate) tls: bool,
    pub(crate) ca: Arc<Ca>,
}

impl NodeSlot {
    fn hangs(&self) -> bool {
        self.connection.is_some() && self.heard.elapsed() > SILENCE_MAX
    }

    fn in_memory(&self) -> bool {
        self.status.tier == MEMORY
    }

    fn is_burst(&self) -> bool {
        self.status.tier == BURST
    }

    /// Records which of the requested programs the node has.
    fn on_programs(&mut self, programs: &v1::Programs) {
        self.programs
            .retain(|name| !programs.missing.contains(name));
        for name in &programs.found {
            if self.programs.len() < PROGRAMS_MAX {
                self.programs.insert(name.clone());
            }
        }
    }

    /// Returns whether the node has reported these programs. Directories are not known: a node has to be asked for them.
    fn has_programs(&self, names: &[String]) -> bool {
        let known = |name: &String| self.programs.contains(name) && !name.ends_with('/');
        self.connection.is_some() && names.iter().all(known)
    }

    /// Sends a message to the node. Returns `false` if the node is offline.
    fn send(&self, message: To) -> bool {
        let Some(connection) = &self.connection else {
            return false;
        };
        let message = Some(message);
        match connection.outbox.try_send(v1::ToNode { message }) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                let node = self.status.node;
                tracing::warn!(node, "a node reads too slowly; its connection is closed");
                let _ = connection.end.send(true);
                false
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    /// Returns a readable description of the problem with this node, or `None` if the node has no problem.
    fn trouble(&self) -> Option<String> {
        let id = self.status.node;
        if self.connection.is_none() {
            return Some(format!("node {id} is offline"));
        }
        if self.hangs() {
            let silent_s = self.heard.elapsed().as_secs();
            return Some(format!("node {id} has not answered for {silent_s} s"));
        }
        let trouble = &self.status.trouble;
        (!trouble.is_empty()).then(|| format!("node {id}: {trouble}"))
    }
}

/// Reports to the namespace which nodes belong to the burst tier.
fn tell_bursts<'a>(shared: &NamesShared, known: impl IntoIterator<Item = &'a v1::Node>) {
    let bursts = known.into_iter().filter(|one| one.tier == BURST);
    let bursts: BTreeSet<u32> = bursts.map(|one| one.node).collect();
    if !bursts.is_empty() {
        // Versions with one wanted replica may have two.
        shared.nodes.set_moving();
    }
    shared.bursts.set(bursts);
}

impl Cluster {
    pub(crate) fn new(
        names: &SqliteNames,
        settings: ClusterSettings,
        reports: std::sync::mpsc::Sender<DriverMessage>,
    ) -> Result<Self, Fault> {
        let known = names.database().read(nodes::all)?;
        let stored = names.database().read(nodes::suspensions)?;
        names.shared().suspensions.restore(stored);
        tell_bursts(names.shared(), &known);
        let offline = |status: v1::Node| {
            let slot = NodeSlot {
                told_free_bytes: status.free_bytes,
                programs: BTreeSet::new(),
                status,
                heard: Instant::now(),
                connection: None,
                offline_since: tokio::time::Instant::now(),
                epoch: 0,
                remembered: true,
            };
            (slot.status.node, slot)
        };
        Ok(Self {
            slots: Mutex::new(known.into_iter().map(offline).collect()),
            shared: names.shared().clone(),
            database: names.database().clone(),
            teller: names.teller().clone(),
            cluster_id: settings.cluster_id,
            reports,
            node_timeout: settings.node_timeout,
            link_bytes_per_sec: settings.link_bytes_per_sec,
            tls: settings.tls,
            ca: settings.ca,
            next_question: AtomicU64::new(1),
            questions: Mutex::default(),
            probes: Mutex::default(),
            probing: tokio::sync::Mutex::default(),
            addresses: Mutex::default(),
            refreshing: AtomicBool::new(false),
            copied_logs: CopiedLogs::new(names.shared().wakes.clone()),
            keepers: Mutex::default(),
            refused: Mutex::default(),
            objects: OnceLock::new(),
        })
    }

    /// Sets the connections through which the server itself reads objects from nodes.
    pub(crate) fn read_by(&self, objects: Objects) {
        self.objects.get_or_init(|| objects);
    }

    /// Returns the connections through which the server reads objects from nodes, or `None` in a simulation.
    pub(crate) fn objects(&self) -> Option<&Objects> {
        self.objects.get()
    }

    /// Starts the node timeout for each node that an earlier run of the server knew, so that the nodes can reconnect.
    pub(crate) fn expect_known(self: &Arc<Self>) {
        let offline: Vec<u32> = self.slots.lock().keys().copied().collect();
        for node in offline {
            if self.shared.suspensions.is_suspended(node) {
                self.report(DriverReport::Suspended { node });
            }
            self.lose_if_offline(node, 0);
        }
    }

    /// Returns the cluster's id.
    pub(crate) fn id(&self) -> u64 {
        self.cluster_id
    }

    /// Returns the CA that signs the certificates of the cluster's server and nodes.
    pub(crate) fn ca(&self) -> &Arc<Ca> {
        &self.ca
    }

    /// Returns the URL of a node's data service, or `None` if the node is not up.
    pub(crate) fn url(&self, node: u32) -> Option<String> {
        let slots = self.slots.lock();
        let slot = slots.get(&node)?;
        slot.connection.as_ref().map(|_| slot.status.url.clone())
    }

    /// Returns all nodes that were ever part of the cluster, with `up` set to their present state.
    pub(crate) fn nodes(&self) -> Vec<v1::Node> {
        let slots = self.slots.lock();
        let shown = slots.values().map(|slot| {
            let mut node = slot.status.clone();
            if slot.hangs() {
                let silent_s = slot.heard.elapsed().as_secs();
                node.trouble = format!("it has not answered for {silent_s} s");
            }
            node.emptied = self.shared.nodes.is_emptied(node.node);
            node.suspension = self.shared.suspensions.reported(node.node);
            node.drawn = self.shared.suspensions.energy.of(node.node).map(drawn);
            node
        });
        shown.collect()
    }

    /// Returns a readable description of the problem with a node, or `None` if the node has no problem.
    pub(crate) fn trouble(&self, node: u32) -> Option<String> {
        if self.shared.suspensions.is_suspended(node) {
            return Some(format!("node {node} is suspended"));
        }
        let slots = self.slots.lock();
        slots.get(&node).map_or_else(
            || Some(format!("node {node} is not known")),
            NodeSlot::trouble,
        )
    }

    /// Returns the nodes that are up, as possible places for replicas.
    pub(crate) fn sites(&self) -> Vec<OnlineNode> {
        let slots = self.slots.lock();
        let up = slots.values().filter(|slot| slot.connection.is_some());
        let sites = up.map(|slot| OnlineNode {
            node: NodeId(slot.status.node),
            host: slot.status.host.clone(),
            free_bytes: slot.status.free_bytes,
            takes: slot.status.role == "store"
                && !slot.hangs()
                && !self.shared.suspensions.is_suspending(slot.status.node)
                && !self.shared.nodes.is_closed(slot.status.node),
            memory: slot.in_memory(),
            burst: slot.is_burst(),
            backend: slot.status.backend.is_some(),
        });
        sites.collect()
    }

    /// Returns the nodes that are up and scrub their objects when they are idle.
    pub(crate) fn scrubbing(&self) -> Vec<u32> {
        let slots = self.slots.lock();
        let up = slots.values().filter(|slot| slot.connection.is_some());
        let reading = up.filter(|slot| slot.status.scrub_bytes_per_sec > 0);
        reading.map(|slot| slot.status.node).collect()
    }

    /// Returns the nodes of the cluster with their properties.
    pub(crate) fn members(&self) -> Vec<NodeProperties> {
        let slots = self.slots.lock();
        let members = slots.values().map(|slot| NodeProperties {
            node: slot.status.node,
            store: slot.status.role == "store",
            memory: slot.in_memory(),
            burst: slot.is_burst(),
            up: slot.connection.is_some(),
        });
        members.collect()
    }

    /// Returns the nodes of the capacity tier that store data on disks, whether the nodes are up or not.
    pub(crate) fn stores(&self) -> Vec<u32> {
        let members = self.members().into_iter();
        let stores = members.filter(|member| member.store && !member.memory && !member.burst);
        stores.map(|member| member.node).collect()
    }

    /// Returns the nodes of the burst tier, whether the nodes are up or not.
    pub(crate) fn bursts(&self) -> BTreeSet<u32> {
        let members = self.members().into_iter();
        let bursts = members.filter(|member| member.burst);
        bursts.map(|member| member.node).collect()
    }

    /// Returns the limits at which the burst tier evicts files.
    pub(crate) fn limits(&self) -> TierLimits {
        self.shared.bursts.limits()
    }

    /// Returns the nodes of the burst tier that are up, with their free space.
    pub(crate) fn tier(&self) -> Vec<TierNode> {
        let slots = self.slots.lock();
        let up = slots.values();
        let up = up.filter(|slot| slot.connection.is_some() && slot.is_burst());
        let tier = up.map(|slot| &slot.status).map(|status| TierNode {
            node: status.node,
            bytes: status.free_bytes,
            capacity: status.capacity_bytes,
        });
        tier.collect()
    }

    /// Removes a node from the cluster. The node is not admitted again.
    pub(crate) fn forget(&self, node: u32) {
        let slot = self.slots.lock().remove(&node);
        self.shared.suspensions.forget(node);
        self.dismiss(node);
        if let Some(connection) = slot.and_then(|slot| slot.connection) {
            let _ = connection.end.send(true);
        }
        tracing::info!(node, "a node is removed from the cluster");
        self.report(DriverReport::Removed { node });
        self.refresh();
        self.tell_peers(node);
    }

    /// Returns the nodes that were offline for at least `longer_than`. Suspended nodes are not included.
    pub(crate) fn offline_for(&self, longer_than: Duration) -> BTreeSet<u32> {
        let slots = self.slots.lock();
        let offline = slots.iter().filter(|(_, slot)| slot.connection.is_none());
        let offline = offline.filter(|(_, slot)| slot.offline_since.elapsed() >= longer_than);
        let offline = offline.filter(|(node, _)| !self.shared.suspensions.is_suspended(**node));
        offline.map(|(&node, _)| node).collect()
    }

    /// Returns the time until another node has been offline for `long`, if any node is offline.
    pub(crate) fn next_offline_for(&self, long: Duration) -> Option<Duration> {
        let slots = self.slots.lock();
        let offline = slots.values().filter(|slot| slot.connection.is_none());
        let left = offline.filter_map(|slot| long.checked_sub(slot.offline_since.elapsed()));
        left.filter(|left| !left.is_zero()).min()
    }

    /// Returns the nodes that are up.
    pub(crate) fn up(&self) -> Vec<u32> {
        let slots = self.slots.lock();
        slots
            .iter()
            .filter(|(_, slot)| slot.connection.is_some())
            .map(|(&id, _)| id)
            .collect()
    }

    /// Returns the number of the present connection of a node, or `None` if the node is not up.
    pub(crate) fn epoch(&self, node: u32) -> Option<u64> {
        let slots = self.slots.lock();
        slots
            .get(&node)
            .filter(|slot| slot.connection.is_some())
            .map(|slot| slot.epoch)
    }

    /// Returns the numbers of the present connections of the nodes that are up.
    pub(crate) fn epochs(&self) -> BTreeMap<u32, u64> {
        let slots = self.slots.lock();
        let up = slots.iter().filter(|(_, slot)| slot.connection.is_some());
        up.map(|(&node, slot)| (node, slot.epoch)).collect()
    }

    /// Asks a node to seal objects of lost writers, authorized by the server itself. Returns the result for each object, or the reason why the
    /// server could not ask the node.
    pub(crate) async fn seal_all(
        &self,
        by: &Objects,
        node: u32,
        objects: &[(u64, Attributes)],
    ) -> Result<Vec<SealResult>, String> {
        let offline = || format!("node {node} is offline");
        let url = self.url(node).ok_or_else(offline)?.into();
        let item = |(object, attributes): &(u64, Attributes)| {
            let right =
                self.shared
                    .sign_to_write(node, *object, rights::WRITE, 0, attributes.clone());
            SealItem {
                object: *object,
                capability: route::hex(&right),
                body: SealBody {
                    lost: true,
                    ..SealBody::default()
                },
            }
        };
        let items: Vec<SealItem> = objects.iter().map(item).collect();
        let sealed = by.seal_all(NodeId(node), &url, &items);
        let sealed = tokio::time::timeout(SEAL_MAX, sealed).await;
        let silent = |_| format!("node {node} does not answer");
        sealed.map_err(silent)?.map_err(|error| match error {
            ClientError::NodeRefused { message, .. } => format!("node {node}: {message}"),
            error => error.to_string(),
        })
    }

    /// Returns the answers of nodes about copies of the log, and the state of the copies.
    pub(crate) fn copied_logs(&self) -> &CopiedLogs {
        &self.copied_logs
    }

    /// Returns the nodes on disk that store data, each with the name of its host and, if it is up, the number of its connection.
    pub(crate) fn stores_on_disk(&self) -> BTreeMap<u32, (String, Option<u64>)> {
        let slots = self.slots.lock();
        let stores = slots
            .values()
            .filter(|slot| slot.status.role == "store" && !slot.in_memory());
        let store = |slot: &NodeSlot| {
            let epoch = slot.connection.as_ref().map(|_| slot.epoch);
            (slot.status.node, (slot.status.host.clone(), epoch))
        };
        stores.map(store).collect()
    }

    /// Sends a message to a node. Returns `false` if the node is offline. When a node reconnects, the driver sends the content of lost
    /// messages again.
    pub(crate) fn send(&self, node: u32, message: To) -> bool {
        let slots = self.slots.lock();
        slots.get(&node).is_some_and(|slot| slot.send(message))
    }

    /// Admits a node to the cluster, from the `Hello` message at the start of the node's stream.
    pub(crate) fn join(
        self: &Arc<Self>,
        hello: v1::Hello,
        outbox: mpsc::Sender<v1::ToNode>,
    ) -> Result<(u32, u64, watch::Receiver<bool>), Status> {
        let checked = self.check(&hello);
        let mut node = checked.inspect_err(|status| self.note_refused(&hello, status))?;
        let id = node.node;
        self.complete(&mut node);
        let certificate = self.certify(&hello, id)?;
        let (end, ended) = watch::channel(false);
        let epoch = {
            let mut slots = self.slots.lock();
            let epoch = match slots.get(&id) {
                Some(old) => {
                    let same = check_same(&old.status, &node, old.connection.is_some());
                    same.inspect_err(|status| self.note_refused(&hello, status))?;
                    if let Some(connection) = &old.connection {
                        let _ = connection.end.send(true);
                    }
                    old.epoch + 1
                }
                None => 1,
            };
            let welcome = v1::Welcome {
                cluster_id: self.cluster_id,
                key: self.shared.key().as_bytes().to_vec(),
                certificate,
                time_ns: clock::now_ns(),
            };
            let _ = outbox.try_send(v1::ToNode {
                message: Some(To::Welcome(welcome)),
            });
            let known = KnownAddresses::default();
            let connection = Some(NodeConnection { outbox, known, end });
            slots.insert(
                id,
                NodeSlot {
                    told_free_bytes: node.free_bytes,
                    programs: BTreeSet::new(),
                    status: node.clone(),
                    heard: Instant::now(),
                    connection,
                    offline_since: tokio::time::Instant::now(),
                    epoch,
                    remembered: node.tier != MEMORY,
                },
            );
            epoch
        };
        tracing::info!(node = id, url = %node.url, labels = hello.labels.len(), "node is up");
        self.shared.suspensions.on(id, SuspendEvent::Up);
        // The free space is refreshed before the node is reported, since anybody who sees the node up may place a file there at
        // once.
        self.refresh();
        self.dismiss(id);
        self.store_properties(&node, epoch);
        // Before the driver sends labels that name the node.
        self.tell_peers(id);
        self.report(DriverReport::Up {
            node,
            labels: hello.labels,
        });
        Ok((id, epoch, ended))
    }

    fn check(&self, hello: &v1::Hello) -> Result<v1::Node, Status> {
        if hello.version != tidemill_wire::PROTOCOL_VERSION {
            return Err(condition::NODE_VERSION.refusal(format!(
                "the node speaks protocol version {}, the server {}: use the same release",
                hello.version,
                tidemill_wire::PROTOCOL_VERSION
            )));
        }
        if hello.cluster_id != 0 && hello.cluster_id != self.cluster_id {
            return Err(condition::NODE_OTHER_CLUSTER.refusal(
                "the node's directory belongs to another cluster; give it an empty directory or the right server",
            ));
        }
        let node = hello
            .node
            .clone()
            .ok_or_else(|| Status::invalid_argument("a greeting without status"))?;
        if self.shared.nodes.is_removed(node.node) {
            return Err(condition::NODE_REMOVED.refusal(format!(
                "node {} was removed from the cluster: give this node another id and an empty directory",
                node.node
            )));
        }
        tidemill_wire::convert::parse_role(&node.role)
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        if self.tls && node.url.starts_with("http:") {
            return Err(condition::NODE_PLAIN.refusal(format!(
                "node {} serves without TLS, which this cluster uses: start it without --tls off and with an https:// URL, or the server with --tls off, too",
                node.node
            )));
        }
        Ok(node)
    }

    /// Returns the certificate of a node that asked for a certificate, or an empty vector.
    fn certify(&self, hello: &v1::Hello, node: u32) -> Result<Vec<u8>, Status> {
        if hello.public_key.is_empty() {
            return Ok(Vec::new());
        }
        let certificate = self.ca.certify(NodeId(node), &hello.public_key);
        certificate.map_err(|error| Status::invalid_argument(format!("the public key: {error}")))
    }

    fn complete(&self, node: &mut v1::Node) {
        node.up = true;
        node.heard = clock::now_ns();
        if node.link_bytes_per_sec == 0 {
            node.link_bytes_per_sec = self.link_bytes_per_sec;
        }
    }

    /// Handles a message from a node.
    pub(crate) fn on_message(self: &Arc<Self>, node: u32, epoch: u64, message: From) {
        self.hear(node, epoch);
        match message {
            From::Hello(_) => tracing::warn!(node, "a second greeting on one connection"),
            From::Status(mut status) => {
                status.node = node;
                self.complete(&mut status);
                {
                    let mut slots = self.slots.lock();
                    let Some(slot) = slots.get_mut(&node).filter(|slot| slot.epoch == epoch) else {
                        return;
                    };
                    slot.told_free_bytes = status.free_bytes;
                    slot.status = status.clone();
                }
                if status.tier == BURST {
                    self.shared.wakes.wake(FILLED);
                }
                self.refresh_soon();
                self.report(DriverReport::Status { node: status });
            }
            From::Standing(standing) => self.on_load_update(node, epoch, &standing),
            From::Started(started) => self.report(DriverReport::Started {
                node,
                label: started.label,
            }),
            From::Finished(finished) => {
                let outcome = finished.outcome.unwrap_or_default();
                self.report(DriverReport::Finished {
                    node,
                    label: finished.label,
                    outcome,
                });
            }
            From::Suspended(_) => self.on_suspended(node, epoch),
            From::Stays(stays) => {
                self.shared.suspensions.stays(node, stays.why);
                self.refresh();
            }
            From::Corrupt(corrupt) => self.report(DriverReport::Corrupt { node, corrupt }),
            From::FindFiles(find) => self.find_files(node, find.objects),
            From::Log(copied) => self.copied_logs.on_copied(node, epoch, copied),
            From::Probed(probed) => {
                if let Some(asker) = self.probes.lock().remove(&probed.request) {
                    // The caller may have stopped waiting.
                    let _ = asker.send(probed);
                }
            }
            From::Programs(programs) => {
                {
                    let mut slots = self.slots.lock();
                    let Some(slot) = slots.get_mut(&node).filter(|slot| slot.epoch == epoch) else {
                        return;
                    };
                    slot.on_programs(&programs);
                }
                // The report precedes the answer to the caller, so that later placements know these programs.
                self.report(DriverReport::Programs {
                    node,
                    found: programs.found.clone(),
                    missing: programs.missing,
                });
                if let Some(asker) = self.questions.lock().get(&programs.request) {
                    let _ = asker.send((node, programs.found));
                }
            }
        }
    }

    /// Updates the frequently changing values of a node's status: running and queued labels, free space, transferred bytes and load.
    fn on_load_update(self: &Arc<Self>, node: u32, epoch: u64, standing: &v1::Standing) {
        let status = {
            let mut slots = self.slots.lock();
            let Some(slot) = slots.get_mut(&node).filter(|slot| slot.epoch == epoch) else {
                return;
            };
            let status = &mut slot.status;
            status.running = standing.running;
            status.queued = standing.queued;
            if status.tier == BURST && status.free_bytes != standing.free_bytes {
                self.shared.wakes.wake(FILLED);
            }
            status.free_bytes = standing.free_bytes;
            status.bytes_written = standing.bytes_written;
            status.bytes_read = standing.bytes_read;
            status.load_milli = standing.load_milli;
            let known = slot.told_free_bytes.abs_diff(status.free_bytes);
            if known < (status.capacity_bytes / FREE_PARTS).max(1) {
                None
            } else {
                slot.told_free_bytes = status.free_bytes;
                Some(status.clone())
            }
        };
        self.refresh_soon();
        if let Some(node) = status {
            self.report(DriverReport::Status { node });
        }
    }

    /// Answers a node's question about the files of its objects.
    fn find_files(self: &Arc<Self>, node: u32, mut objects: Vec<u64>) {
        let cluster = Arc::clone(self);
        objects.truncate(FIND_FILES_MAX);
        tokio::task::spawn_blocking(move || {
            let files = cluster
                .database
                .read(|db| version::files_on(db, node, &objects));
            match files {
                Ok(files) => _ = cluster.send(node, To::Files(v1::FilesOfObjects { files })),
                // The node asks again.
                Err(error) => {
                    tracing::warn!(node, %error, "the files of a node's objects can't be read");
                }
            }
        });
    }

    /// Records the time of a node's last message.
    fn hear(&self, node: u32, epoch: u64) {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(&node).filter(|slot| slot.epoch == epoch) else {
            return;
        };
        slot.status.heard = clock::now_ns();
        let silent_s = slot.heard.elapsed().as_secs();
        if slot.hangs() {
            tracing::info!(node, silent_s, "a node that did not respond answers again");
        }
        slot.heard = Instant::now();
    }

    /// Handles the end of a node's stream. The node's labels stay assigned to the node until the node timeout.
    pub(crate) fn leave(self: &Arc<Self>, node: u32, epoch: u64) {
        {
            let mut slots = self.slots.lock();
            let Some(slot) = slots.get_mut(&node).filter(|slot| slot.epoch == epoch) else {
                return;
            };
            slot.connection = None;
            slot.offline_since = tokio::time::Instant::now();
            slot.status.up = false;
            slot.status.trouble.clear();
            slot.status.conditions.clear();
        }
        self.shared.suspensions.on(node, SuspendEvent::Left);
        tracing::info!(node, "node is offline");
        self.refresh();
        self.tell_peers(node);
        self.lose_if_offline(node, epoch);
    }

    /// Declares a node lost unless the node reconnects within the node timeout.
    fn lose_if_offline(self: &Arc<Self>, node: u32, epoch: u64) {
        let cluster = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(cluster.node_timeout).await;
            let slot = |slot: &NodeSlot| slot.epoch == epoch;
            let is_suspended = cluster.shared.suspensions.is_suspended(node);
            if !is_suspended && cluster.slots.lock().get(&node).is_some_and(slot) {
                tracing::warn!(node, "node is offline; its labels are rescheduled");
                cluster.report(DriverReport::Down { node });
            }
        });
    }

    /// Stores the properties of a node, so that the cluster knows the node after a restart of the server. If the node has another memory
    /// tier than its stored properties say, its objects are lost.
    ///
    /// The task retries until the properties are stored or the node has reconnected. Before that, no file is placed in the node's new
    /// memory tier, since the server would later delete the file together with the old contents.
    fn store_properties(self: &Arc<Self>, node: &v1::Node, epoch: u64) {
        let status = v1::Node {
            up: false,
            ..node.clone()
        };
        let cluster = self.clone();
        tokio::spawn(async move {
            while let Err(fault) = cluster.keep_status(status.clone()).await {
                fault.log_delay("the properties of a node can't be stored");
                tokio::time::sleep(STORE_PAUSE).await;
                if cluster.epoch(status.node) != Some(epoch) {
                    return;
                }
            }
            let mut slots = cluster.slots.lock();
            let slot = slots.get_mut(&status.node);
            if let Some(slot) = slot.filter(|slot| slot.epoch == epoch) {
                slot.remembered = true;
            }
            drop(slots);
            cluster.refresh();
        });
    }

    async fn keep_status(&self, status: v1::Node) -> Result<(), Fault> {
        let shared = self.shared.clone();
        let work = move |db: &Connection| {
            let (known, now) = (nodes::known(db, status.node)?, clock::now_ns());
            let changes = corruption::forgotten(db, &shared, (known.as_ref(), &status), now)?;
            burst::met(db, (known.as_ref(), &status), now)?;
            nodes::put(db, &status)?;
            Ok(changes)
        };
        let changes = self.database.write(work).await?;
        self.teller.tell(Changed {
            session: 0,
            changes,
        });
        Ok(())
    }

    pub(crate) fn report(&self, report: DriverReport) {
        // The driver only stops when the server shuts down.
        let _ = self.reports.send(DriverMessage::Report(Box::new(report)));
    }

    /// Returns the number of versions since the server's start that were requested in memory and were placed elsewhere.
    pub(crate) fn overflowed(&self) -> u64 {
        self.shared.overflowed()
    }

    /// Returns the free space of the nodes.
    pub(crate) fn spaces(&self) -> Arc<Spaces> {
        self.shared.spaces()
    }

    /// Reports the free space of the nodes to the namespace within `REFRESH_PAUSE`, once for many changes.
    fn refresh_soon(self: &Arc<Self>) {
        if self.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let cluster = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(REFRESH_PAUSE).await;
            cluster.refreshing.store(false, Ordering::Release);
            cluster.refresh();
        });
    }

    /// Reports the free space of the nodes to the namespace.
    pub(crate) fn refresh(&self) {
        let known = self.slots.lock();
        tell_bursts(&self.shared, known.values().map(|slot| &slot.status));
        drop(known);
        let mut spaces = Spaces::default();
        let mut disks: BTreeMap<(String, u64), v1::Disk> = BTreeMap::new();
        for slot in self.slots.lock().values() {
            let node = slot.status.node;
            let suspensions = &self.shared.suspensions;
            if suspensions.is_suspended(node) || suspensions.is_suspending(node) {
                spaces.suspended.extend(self.space(slot));
            }
            if slot.connection.is_none() {
                continue;
            }
            spaces.up.push((slot.status.node, !slot.hangs()));
            spaces.urls.insert(node, slot.status.url.clone());
            if slot.status.role != "store" {
                continue;
            }
            let status = &slot.status;
            let node = NodeId(status.node);
            if !suspensions.is_suspending(status.node) {
                spaces.store.extend(self.space(slot));
            }
            if slot.in_memory() || slot.is_burst() {
                // No file is placed or kept on such a node unless a user asks for it, so its space is not published.
                continue;
            }
            // A node that does not know its disk counts as having a disk of its own. Nodes that store files in a backend are on no disk.
            let (host, disk) = match status.disk.filter(|_| status.backend.is_none()) {
                Some(disk) => (status.host.clone(), disk),
                None => (format!("node {node}"), v1::Disk::default()),
            };
            let own = status.disk.is_none() || status.backend.is_some();
            let most = |reported: u64| if own { u64::MAX } else { reported };
            let sum = disks.entry((host, disk.device)).or_default();
            let add = |sum: u64, more: u64, most: u64| sum.saturating_add(more).min(most);
            sum.capacity_bytes = add(
                sum.capacity_bytes,
                status.capacity_bytes,
                most(disk.capacity_bytes),
            );
            sum.free_bytes = add(sum.free_bytes, status.free_bytes, most(disk.free_bytes));
        }
        spaces.capacity_bytes = disks.values().map(|disk| disk.capacity_bytes).sum();
        spaces.free_bytes = disks.values().map(|disk| disk.free_bytes).sum();
        self.shared.set_spaces(spaces);
    }

    fn space(&self, slot: &NodeSlot) -> Option<FreeSpace> {
        let status = &slot.status;
        (status.role == "store" && slot.remembered).then(|| FreeSpace {
            node: NodeId(status.node),
            free_bytes: status.free_bytes,
            answers: !slot.hangs(),
            leaving: self.shared.nodes.is_closed(status.node),
            memory: slot.in_memory(),
            burst: slot.is_burst(),
            backend: status.backend.is_some(),
        })
    }

    /// Asks the nodes that are up which of these programs are installed there. Returns the programs of each node that answers in time. A
    /// node that has reported all of them is not asked again: it reports a program that is removed.
    pub(crate) async fn find_programs(
        &self,
        names: Vec<String>,
        wait: Duration,
    ) -> BTreeMap<u32, Vec<String>> {
        let request = self.next_question.fetch_add(1, Ordering::Relaxed);
        let (sender, mut answers) = mpsc::unbounded_channel();
        self.questions.lock().insert(request, sender);
        let known: BTreeSet<u32> = {
            let slots = self.slots.lock();
            let known = slots.iter().filter(|(_, slot)| slot.has_programs(&names));
            known.map(|(&node, _)| node).collect()
        };
        let mut asked = known.len();
        for node in self.up().into_iter().filter(|node| !known.contains(node)) {
            let question = v1::FindPrograms {
                request,
                names: names.clone(),
            };
            asked += usize::from(self.send(node, To::FindPrograms(question)));
        }
        let known = known.into_iter().map(|node| (node, names.clone()));
        let mut found: BTreeMap<u32, Vec<String>> = known.collect();
        let deadline = tokio::time::Instant::now() + wait;
        while found.len() < asked {
            match tokio::time::timeout_at(deadline, answers.recv()).await {
                Ok(Some((node, names))) => found.insert(node, names),
                _ => break,
            };
        }
        self.questions.lock().remove(&request);
        found
    }

    /// Returns the load of the nodes, or an empty list if the driver does not answer in time.
    pub(crate) async fn loads(&self) -> Vec<NodeLoad> {
        let (sender, answer) = oneshot::channel();
        // The driver only stops when the server shuts down.
        let _ = self.reports.send(DriverMessage::Load(sender));
        let answer = tokio::time::timeout(LOAD_WAIT, answer).await;
        answer.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Returns which nodes are needed for waiting work, or `None` if the driver does not answer in time.
    pub(crate) async fn demand(&self) -> Option<Demand> {
        let (sender, answer) = oneshot::channel();
        let _ = self.reports.send(DriverMessage::Demand(sender));
        tokio::time::timeout(LOAD_WAIT, answer).await.ok()?.ok()
    }

    /// Asks a node to measure the share of a processor that another kernel of this user would get on the node. Returns `None` if the node
    /// is not up or does not answer in time. Only one probe runs at a time in the cluster, so that users can't keep the processors busy
    /// with probes.
    pub(crate) async fn probe(&self, node: u32, owner: Owner) -> Option<v1::Probed> {
        let probed = async {
            let _turn = self.probing.lock().await;
            let request = self.next_question.fetch_add(1, Ordering::Relaxed);
            let (sender, answer) = oneshot::channel();
            self.probes.lock().insert(request, sender);
            let asked = PendingProbe(self, request);
            let Owner { uid, gid } = owner;
            let probe = v1::Probe { request, uid, gid };
            let answer = match self.send(node, To::Probe(probe)) {
                true => answer.await.ok(),
                false => None,
            };
            drop(asked);
            answer
        };
        tokio::time::timeout(PROBE_WAIT, probed)
            .await
            .ok()
            .flatten()
    }
}

/// A probe of a processor share that waits for the node's answer.
struct PendingProbe<'a>(&'a Cluster, u64);

impl Drop for PendingProbe<'_> {
    fn drop(&mut self) {
        self.0.probes.lock().remove(&self.1);
    }
}

fn drawn(drawn: energy::Drawn) -> v1::Drawn {
    v1::Drawn {
        microjoules: drawn.microjoules,
        counted_ns: drawn.counted_ns,
        by: drawn.by,
    }
}

/// Returns an error if a connected node has the same id as another node that connects.
fn check_same(old: &v1::Node, new: &v1::Node, connected: bool) -> Result<(), Status> {
    let same = old.host == new.host && old.directory == new.directory;
    if connected && !same {
        return Err(condition::NODE_TWICE.refusal(format!(
            "node {} is up already, in {} of another host or directory; give this node another id",
            old.node, old.directory
        )));
    }
    Ok(())
}

/// Creates the queue of messages to a node, with space for `OUTBOX_MAX` messages.
pub(crate) fn outbox() -> (mpsc::Sender<v1::ToNode>, mpsc::Receiver<v1::ToNode>) {
    mpsc::channel(OUTBOX_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    const NODES: u32 = 8;
    const ROUNDS: usize = 50;

    fn cluster(directory: &std::path::Path) -> Arc<Cluster> {
        // Messages to the driver wait for no receiver.
        cluster_that_reports(directory, std::sync::mpsc::channel().0)
    }

    fn cluster_that_reports(
        directory: &std::path::Path,
        reports: std::sync::mpsc::Sender<DriverMessage>,
    ) -> Arc<Cluster> {
        let names = SqliteNames::open(&directory.join("server.db"), (0, 0)).unwrap();
        let settings = ClusterSettings {
            cluster_id: 1,
            node_timeout: Duration::from_secs(60),
            link_bytes_per_sec: 0,
            tls: false,
            ca: Arc::new(Ca::open(&directory.join("ca")).unwrap()),
        };
        Arc::new(Cluster::new(&names, settings, reports).unwrap())
    }

    fn hello(node: u32) -> v1::Hello {
        v1::Hello {
            version: tidemill_wire::PROTOCOL_VERSION,
            node: Some(v1::Node {
                node,
                role: "store".into(),
                ..v1::Node::default()
            }),
            ..v1::Hello::default()
        }
    }

    /// A connected node: its number, epoch and messages, and the nodes whose addresses it knows.
    struct ConnectedNode {
        node: u32,
        epoch: u64,
        messages: mpsc::Receiver<v1::ToNode>,
        _ended: watch::Receiver<bool>,
        known: BTreeSet<u32>,
    }

    impl ConnectedNode {
        fn join(cluster: &Arc<Cluster>, node: u32) -> Self {
            let (outbox, messages) = outbox();
            let (_, epoch, _ended) = cluster.join(hello(node), outbox).unwrap();
            let known = BTreeSet::new();
            Self {
                node,
                epoch,
                messages,
                _ended,
                known,
            }
        }

        /// Reads all messages, as the node does. Returns the number of lists of addresses and of addresses in them.
        fn read(&mut self, cluster: &Cluster) -> (usize, usize) {
            let mut read = (0, 0);
            while let Ok(mut message) = self.messages.try_recv() {
                cluster.complete_message(self.node, self.epoch, &mut message);
                if let Some(To::Peers(peers)) = message.message {
                    read = (read.0 + 1, read.1 + peers.nodes.len() + peers.offline.len());
                    if peers.whole {
                        self.known.clear();
                    }
                    self.known.extend(peers.nodes.iter().map(|peer| peer.node));
                    self.known.retain(|node| !peers.offline.contains(node));
                }
            }
            read
        }
    }

    #[test]
    fn nodes_that_attach_simultaneously_receive_all_peer_addresses() {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let cluster = runtime.block_on(async { cluster(directory.path()) });
        let all: Vec<u32> = (0..NODES).collect();
        for round in 0..ROUNDS {
            let start = Barrier::new(all.len());
            let come = |&node: &u32| {
                let _entered = runtime.enter();
                start.wait();
                ConnectedNode::join(&cluster, node)
            };
            let here: Vec<_> = std::thread::scope(|scope| {
                let threads = all.iter().map(|node| scope.spawn(move || come(node)));
                let threads: Vec<_> = threads.collect();
                threads.into_iter().map(|one| one.join().unwrap()).collect()
            });
            for mut node in here {
                node.read(&cluster);
                let known: Vec<u32> = node.known.into_iter().collect();
                assert_eq!(known, all, "round {round}, node {}", node.node);
            }
            cluster.slots.lock().clear();
        }
    }

    /// A node that is slow to read gets one list, and a node that reads at once gets each change once.
    #[tokio::test]
    async fn addresses_are_sent_once() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = cluster(directory.path());
        let mut first = ConnectedNode::join(&cluster, 0);
        let mut quick = ConnectedNode::join(&cluster, 1);
        assert_eq!(quick.read(&cluster), (1, 2));
        let mut others: Vec<_> = (2..100)
            .map(|node| ConnectedNode::join(&cluster, node))
            .inspect(|_| assert_eq!(quick.read(&cluster), (1, 1)))
            .collect();
        assert_eq!(first.read(&cluster), (1, 100));
        let all: BTreeSet<u32> = (0..100).collect();
        assert_eq!((&first.known, &quick.known), (&all, &all));

        let gone = others.pop().unwrap();
        cluster.leave(gone.node, gone.epoch);
        let again = ConnectedNode::join(&cluster, gone.node);
        cluster.leave(again.node, again.epoch);
        cluster.forget(50);
        assert_eq!(first.read(&cluster), (1, 2));
        let left = |known: &BTreeSet<u32>| all.difference(known).copied().collect::<Vec<_>>();
        assert_eq!(left(&first.known), [50, 99]);
        for other in &mut others {
            let (lists, addresses) = other.read(&cluster);
            assert!(other.node == 50 || (lists == 1 && addresses <= 100));
        }
        // A node that connects again knows nothing of before.
        let mut first = ConnectedNode::join(&cluster, 0);
        assert_eq!(first.read(&cluster), (1, 98));
        assert_eq!(left(&first.known), [50, 99]);
    }

    /// A label that names a node reaches no other node before the address.
    #[tokio::test]
    async fn address_arrives_before_label() {
        let directory = tempfile::tempdir().unwrap();
        let (reports, driver) = std::sync::mpsc::channel();
        let cluster = cluster_that_reports(directory.path(), reports);
        let mut first = ConnectedNode::join(&cluster, 0);
        first.read(&cluster);
        let joined = ConnectedNode::join(&cluster, 1);
        // The driver sends a label as soon as it knows the node.
        assert_eq!(driver.try_iter().count(), 2);
        cluster.send(0, To::Labels(v1::Labels::default()));
        let mut message = first.messages.try_recv().unwrap();
        cluster.complete_message(0, first.epoch, &mut message);
        let Some(To::Peers(peers)) = message.message else {
            panic!("{message:?} is no list of addresses");
        };
        assert_eq!(peers.nodes[0].node, joined.node);
    }

    /// A node is asked once for a program that it has, and each time for one that it lacks.
    #[tokio::test]
    async fn nodes_are_asked_for_unknown_programs() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = cluster(directory.path());
        let mut nodes: Vec<_> = (0..2)
            .map(|node| ConnectedNode::join(&cluster, node))
            .collect();
        let mut ask = async |names: &[&str], has: fn(u32, &str) -> bool| {
            let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
            let asking = cluster.clone();
            let wanted = names.clone();
            let answer =
                tokio::spawn(async move { asking.find_programs(wanted, PROBE_WAIT).await });
            let mut asked = Vec::new();
            while !answer.is_finished() {
                for node in &mut nodes {
                    while let Ok(message) = node.messages.try_recv() {
                        let Some(To::FindPrograms(question)) = message.message else {
                            continue;
                        };
                        asked.push(node.node);
                        let (found, missing) = question
                            .names
                            .into_iter()
                            .partition(|name| has(node.node, name));
                        let answer = v1::Programs {
                            request: question.request,
                            found,
                            missing,
                        };
                        cluster.on_message(node.node, node.epoch, From::Programs(answer));
                    }
                }
                tokio::task::yield_now().await;
            }
            let found = answer.await.unwrap();
            (asked, [0, 1].map(|node| found[&node].join(" ")))
        };
        let all = |_: u32, _: &str| true;
        let first = |node: u32, _: &str| node == 0;
        let both = ["a b".to_owned(), "a b".to_owned()];
        assert_eq!(ask(&["a", "b"], all).await, (vec![0, 1], both.clone()));
        assert_eq!(ask(&["a", "b"], all).await, (vec![], both));
        let partly = ["c".to_owned(), String::new()];
        assert_eq!(ask(&["c"], first).await, (vec![0, 1], partly.clone()));
        assert_eq!(ask(&["c"], first).await, (vec![1], partly));
        // A node reports that a program was removed, and a node that connects again is asked again.
        let removed = v1::Programs {
            missing: vec!["a".into()],
            ..v1::Programs::default()
        };
        let epoch = cluster.epoch(1).unwrap();
        cluster.on_message(1, epoch, From::Programs(removed));
        let now = ["a".to_owned(), String::new()];
        assert_eq!(ask(&["a"], first).await, (vec![1], now));
        assert_eq!(ask(&["shared/"], all).await.0, [0, 1]);
        assert_eq!(ask(&["shared/"], all).await.0, [0, 1]);
    }
}
