//! Present load of client and node: requested from the cluster, and measured on the processors.
//!
//! A kernel that only computes runs for a moment on either side. If both sides are on one machine, it also runs on both at once. Its time
//! shows the share of a processor that a kernel gets, whatever uses the rest.

use super::known::{ClusterNode, nanos};
use crate::context::credentials;
use tidemill_plan::advisor::{Load, MachineLoad, SideQueue};
use tidemill_plan::units::{Seconds, significant};
use tidemill_sandbox::{Launcher, LauncherSettings};
use tidemill_wire::v1;

/// Load of client and node.
#[derive(Debug)]
pub(super) struct Loads {
    pub(super) client: Load,
    pub(super) node: Load,
    /// Share of a processor that copying between them gets, if both are on one machine.
    pub(super) copying: f64,
    /// One sentence for each source.
    pub(super) sources: Vec<String>,
}

impl Loads {
    /// Neither client nor node has any other work.
    pub(super) fn none(processors: u32, cluster: Option<&ClusterNode>) -> Self {
        let mut machine = MachineLoad::idle(processors);
        if cluster.is_some_and(ClusterNode::is_here) {
            machine.share_beside = f64::min(1.0, f64::from(processors) / 2.0);
        }
        let cores = cluster.map_or(1, |cluster| cluster.node.cores);
        let queue = SideQueue {
            cores,
            running: 0,
            queued: 0,
            left: Seconds::ZERO,
        };
        Self {
            client: Load::of_client(&machine),
            node: Load::of_node(&queue, &machine),
            copying: 1.0,
            sources: Vec::new(),
        }
    }

    /// Measures the load, which takes half a second.
    ///
    /// # Errors
    /// If the cluster can't be reached.
    pub(super) async fn look(
        processors: u32,
        cluster: Option<&ClusterNode>,
    ) -> anyhow::Result<Self> {
        let mut loads = Self::none(processors, cluster);
        let Some(cluster) = cluster else {
            let share = try_here().await;
            loads.client = Load::of_client(&MachineLoad {
                share,
                share_beside: share,
                ..MachineLoad::idle(processors)
            });
            loads.sources.push(client_source(&loads.client));
            return Ok(loads);
        };
        let here = cluster.is_here();
        // On one machine, the kernels run one after the other, and then both at once.
        let before = if here {
            Some((try_here().await, ask(cluster).await?.share))
        } else {
            None
        };
        let (concurrent, there) = tokio::join!(try_here(), ask(cluster));
        let there = there?;
        let alone = before.unwrap_or((concurrent, there.share));
        // Other load only ever reduces a share. A smaller share without it is a bad measurement.
        let machine = |processors, share: f64, concurrent: f64, (running, left)| MachineLoad {
            processors,
            share: share.max(concurrent),
            share_beside: concurrent,
            running,
            left,
        };
        let node = machine(
            there.processors,
            alone.1,
            there.share,
            there.of_machine(cluster, &cluster.node.host),
        );
        let own = tidemill_client::host_id::id();
        let client = machine(
            processors,
            alone.0,
            concurrent,
            there.of_machine(cluster, &own),
        );
        let queue = there.queue(cluster);
        loads.client = Load::of_client(&client);
        loads.node = Load::of_node(&queue, &node);
        loads.copying = if here { client.share } else { 1.0 };
        loads.sources.push(client_source(&loads.client));
        loads.sources.push(node_source(cluster, &queue, &node));
        Ok(loads)
    }
}

fn percent(share: f64) -> String {
    significant((share * 100.0).round())
}

fn client_source(load: &Load) -> String {
    let first = percent(load.share);
    if load.share_later > load.share && load.crowded > Seconds::ZERO {
        return format!(
            "client: one more kernel gets {first} % of a processor, and {} % when the kernels of nodes on this machine have ended, in {}",
            percent(load.share_later),
            load.crowded
        );
    }
    format!("client: one more kernel gets {first} % of a processor")
}

fn node_source(cluster: &ClusterNode, queue: &SideQueue, machine: &MachineLoad) -> String {
    let SideQueue {
        cores,
        running,
        queued,
        left,
    } = *queue;
    format!(
        "{}: {running} kernels run and {queued} wait for its {cores} cores, {left} of work; one more gets {} % of a processor",
        cluster.name(),
        percent(machine.share)
    )
}

/// Facts that a cluster reported about its nodes.
struct ReportedLoad {
    nodes: Vec<v1::NodeLoad>,
    share: f64,
    processors: u32,
}

impl ReportedLoad {
    /// Returns the work of the node in question. Where the server can't tell, kernels count with their mean time.
    fn queue(&self, cluster: &ClusterNode) -> SideQueue {
        let node = &cluster.node;
        let printed = self.nodes.iter();
        let Some(load) = printed.clone().find(|load| load.node == node.node) else {
            return cluster.queue();
        };
        SideQueue {
            cores: node.cores,
            running: load.running,
            queued: load.queued.saturating_add(load.waiting),
            left: nanos(load.left_ns),
        }
    }

    /// Number of kernels that nodes of one machine run, and the time until they end.
    fn of_machine(&self, cluster: &ClusterNode, host: &str) -> (u32, Seconds) {
        let there = self.nodes.iter().filter(|load| {
            let mut known = cluster.nodes.iter();
            known.any(|node| node.node == load.node && node.host == host)
        });
        there.fold((0, Seconds::ZERO), |(running, left), load| {
            let own = nanos(load.left_ns);
            let left = if own > left { own } else { left };
            (load.running.saturating_add(running), left)
        })
    }
}

/// Asks the cluster for the work of its nodes, and lets the node in question measure.
async fn ask(cluster: &ClusterNode) -> anyhow::Result<ReportedLoad> {
    let request = v1::LoadRequest {
        credentials: Some(credentials()),
        node: cluster.node.node,
    };
    let reply = match cluster.server.cluster().load(request).await {
        Ok(reply) => reply.into_inner(),
        Err(status) => return Err(cluster.server.explain(status).into()),
    };
    let share = match reply.share_milli {
        0 => 1.0,
        milli => f64::from(milli.min(1000)) / 1000.0,
    };
    Ok(ReportedLoad {
        nodes: reply.nodes,
        share,
        processors: reply.processors.max(1),
    })
}

/// Returns the share of a processor that a kernel gets on this machine: a whole processor if no kernel can be run, because the share is
/// then unknown.
async fn try_here() -> f64 {
    match share_here().await {
        Ok(share) => share,
        Err(error) => {
            tracing::warn!("the load of this machine can't be measured: {error:#}");
            1.0
        }
    }
}

async fn share_here() -> anyhow::Result<f64> {
    let tried = tokio::task::spawn_blocking(|| {
        let directory = tempfile::tempdir()?;
        let launcher = Launcher::new(LauncherSettings::default())?;
        anyhow::Ok(launcher.probe(directory.path().join("run"), None)?)
    });
    tried.await?
}
