//! Sources of the advisor's numbers: flags first, then the calibration, then the cluster's records.

use super::Args;
use super::load::Loads;
use crate::calibration::{Calibration, KernelSpeed};
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::plan::per_second;
use anyhow::{Context as _, ensure};
use tidemill_client::Server;
use tidemill_client::transfer::Transfer;
use tidemill_compute::builtin_hash;
use tidemill_plan::advisor::{Link, Load, SideFacts, SideQueue};
use tidemill_plan::units::{Bytes, BytesPerSecond, Seconds};
use tidemill_wire::v1;

/// The node in question, of a cluster that is up.
#[derive(Debug)]
pub(super) struct ClusterNode {
    id: String,
    pub(super) server: Server,
    pub(super) node: v1::Node,
    /// All nodes of the cluster.
    pub(super) nodes: Vec<v1::Node>,
    /// Size of the file, if a file was named.
    size: Option<u64>,
}

impl ClusterNode {
    /// Returns the node that holds a file.
    ///
    /// # Errors
    /// If the cluster can't be reached, there is no such file, or its node is down.
    pub(super) async fn of_file(
        context: &CommandContext,
        file: &std::ffi::OsStr,
    ) -> anyhow::Result<Self> {
        let server = context.connect().await?;
        let path = files::path(file)?;
        let transfer = Transfer::new(server.clone(), credentials());
        let attr = transfer.resolve(&path).await?;
        ensure!(attr.kind() == v1::Kind::File, "not a file: {path}");
        ensure!(
            attr.object != 0,
            "{path} is still being written: ask again once it is closed"
        );
        ensure!(
            attr.size > 0,
            "{path} is empty: there is nothing to run over"
        );
        let status = server.status().await?;
        let mut nodes = status.nodes.iter();
        let node = nodes.find(|node| node.node == attr.node);
        let node = node
            .filter(|node| node.up)
            .cloned()
            .with_context(|| format!("node {} that holds {path} is down", attr.node))?;
        Ok(Self {
            id: format!("{:016x}", status.cluster_id),
            server,
            node,
            nodes: status.nodes,
            size: Some(attr.size),
        })
    }

    /// Returns the named node, or else the storage node with the least work; `None` if there is none.
    ///
    /// # Errors
    /// If the cluster can't be reached.
    pub(super) async fn of_node(
        context: &CommandContext,
        id: Option<u32>,
    ) -> anyhow::Result<Option<Self>> {
        let server = context.connect().await?;
        let status = server.status().await?;
        let stores = status.nodes.iter();
        let node = stores
            .filter(|node| node.up && node.role == "store")
            .filter(|node| id.is_none_or(|id| id == node.node))
            .min_by_key(|node| (node.running + node.queued, node.node));
        Ok(node.cloned().map(|node| Self {
            id: format!("{:016x}", status.cluster_id),
            server,
            node,
            nodes: status.nodes,
            size: None,
        }))
    }

    /// Returns the name of the node for people.
    pub(super) fn name(&self) -> String {
        format!("node {}", self.node.node)
    }

    /// Returns whether the node is on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.node.host == tidemill_client::host_id::id()
    }

    /// Returns the work in the node's queue, according to its last report. A kernel is expected to take the mean of all kernels that ran
    /// there, and running kernels count as half done.
    pub(super) fn queue(&self) -> SideQueue {
        let (runs, total_ns) = self.node.history.values().fold((0, 0), |sum, history| {
            (sum.0 + history.runs, sum.1 + history.total_ns)
        });
        let v1::Node {
            cores,
            running,
            queued,
            ..
        } = self.node;
        let kernels = f64::from(queued) + f64::from(running) / 2.0;
        let mean = nanos(total_ns.checked_div(runs).unwrap_or(0));
        SideQueue {
            cores,
            running,
            queued,
            left: mean * (kernels / f64::from(cores.max(1))),
        }
    }
}

/// All numbers of a case except the place of the result, each with its source.
#[derive(Debug)]
pub(super) struct CaseFacts {
    pub(super) input: Bytes,
    pub(super) output_ratio: f64,
    pub(super) node: SideFacts,
    pub(super) client: SideFacts,
    pub(super) link: Link,
    /// One sentence for each source.
    pub(super) sources: Vec<String>,
}

impl CaseFacts {
    /// Looks up all numbers.
    ///
    /// # Errors
    /// If the rate of the link is unknown.
    pub(super) fn gather(
        args: &Args,
        measured: &KernelSpeed,
        calibration: &Calibration,
        cluster: Option<&ClusterNode>,
        loads: &Loads,
    ) -> anyhow::Result<Self> {
        let mut sources = Vec::new();
        if builtin_hash(&args.kernel).is_some_and(|hash| hash != measured.hash) {
            sources.push(format!(
                "another version of {} was measured: measure again with `tidemill kernel bench {0}`",
                args.kernel
            ));
        }
        let mut node = node(args, measured, calibration, cluster, &mut sources);
        let mut client = client(measured, calibration, &mut sources);
        let mut link = link(args, calibration, cluster, &mut sources)?;
        (node.load, client.load) = (loads.node, loads.client);
        if cluster.is_some_and(ClusterNode::is_here) && args.node_speed.is_none() {
            // Both use the same processors: a difference of the two measurements is chance, and real jobs give a better rate.
            client.rate = node.rate.or(client.rate);
        }
        // On one machine, its processors do the copying.
        link.bandwidth = link.bandwidth * loads.copying;
        sources.extend(loads.sources.iter().cloned());
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let ratio = measured.output_bytes as f64 / measured.input_bytes as f64;
        let size = cluster.and_then(|cluster| cluster.size).map(bytes);
        Ok(Self {
            input: args
                .size
                .map(|size| bytes(size.0))
                .or(size)
                .context("no size: give --size")?,
            output_ratio: args.output_ratio.unwrap_or(ratio),
            node,
            client,
            link,
            sources,
        })
    }
}

fn client(
    measured: &KernelSpeed,
    calibration: &Calibration,
    sources: &mut Vec<String>,
) -> SideFacts {
    let rate = BytesPerSecond::new(measured.alone_bytes_per_sec());
    sources.push(format!(
        "client: {}, measured {} on {}",
        per_second(rate),
        measured.measured,
        calibration.host
    ));
    SideFacts {
        rate: Some(rate),
        start: nanos(measured.start_ns.saturating_add(calibration.command_ns)),
        load: Load::none(calibration.cores),
        free: free_here(),
    }
}

fn node(
    args: &Args,
    measured: &KernelSpeed,
    calibration: &Calibration,
    cluster: Option<&ClusterNode>,
    sources: &mut Vec<String>,
) -> SideFacts {
    let known = cluster.and_then(|cluster| calibration.node(&cluster.id, cluster.node.node));
    let connect = known.map_or(0, |known| known.connect_ns);
    let command = connect.saturating_add(calibration.command_ns);
    let mut side = SideFacts {
        rate: None,
        start: nanos(measured.start_ns.saturating_add(command)),
        load: Load::none(1),
        free: cluster.map(|cluster| bytes(cluster.node.free_bytes)),
    };
    let name = cluster.map_or_else(|| "node".to_owned(), ClusterNode::name);
    if cluster.is_some_and(ClusterNode::is_here) {
        sources.push(format!(
            "{name} is on this machine: client and node share its cores"
        ));
    }
    let known = known.and_then(|known| known.kernels.iter().find(|one| one.name == args.kernel));
    let history = cluster.and_then(|cluster| cluster.node.history.get(&args.kernel));
    if let Some(factor) = args.node_speed {
        let rate = BytesPerSecond::new(measured.alone_bytes_per_sec() * factor);
        side.rate = Some(rate);
        sources.push(format!(
            "{name}: {}, {factor} of the client's as --node-speed says",
            per_second(rate)
        ));
    } else if let Some(known) = known {
        let rate = BytesPerSecond::new(known.alone_bytes_per_sec());
        (side.rate, side.start) = (Some(rate), nanos(known.start_ns.saturating_add(command)));
        let rate = per_second(rate);
        sources.push(format!("{name}: {rate}, measured {}", known.measured));
    } else if let Some(history) = history.filter(|one| one.total_ns > 0 && one.input_bytes > 0) {
        let rate = bytes(history.input_bytes) / nanos(history.total_ns);
        // A history counts whole runs: the start is in its rate.
        (side.rate, side.start) = (Some(rate), nanos(command));
        sources.push(format!(
            "{name}: {}, the mean of its {} runs so far",
            per_second(rate),
            history.runs
        ));
    } else {
        sources.push(format!(
            "{name}: {} was never measured there; `tidemill kernel bench --nodes {0}` does, or give --node-speed",
            args.kernel
        ));
    }
    side
}

fn link(
    args: &Args,
    calibration: &Calibration,
    cluster: Option<&ClusterNode>,
    sources: &mut Vec<String>,
) -> anyhow::Result<Link> {
    let known = cluster.and_then(|cluster| calibration.node(&cluster.id, cluster.node.node));
    let reported = cluster.map(|cluster| cluster.node.link_bytes_per_sec);
    let reported = reported.filter(|&rate| rate > 0);
    let (bandwidth, from) = match (args.link, known, reported) {
        (Some(rate), _, _) => (rate, "as --link says"),
        (None, Some(known), _) => (
            BytesPerSecond::new(known.link_bytes_per_sec),
            "measured from the node to this machine",
        ),
        (None, None, Some(rate)) => (
            bytes(rate) / Seconds::new(1.0),
            "as the node reports of its fetches",
        ),
        (None, None, None) => anyhow::bail!("the rate of the link is unknown: give --link"),
    };
    let measured = known.map_or(Seconds::ZERO, |known| {
        nanos(known.link_latency_ns) + nanos(known.connect_ns) + nanos(calibration.command_ns)
    });
    let latency = args.latency.unwrap_or(measured);
    let rate = per_second(bandwidth);
    sources.push(format!("link: {rate}, {from}; latency {latency}"));
    Ok(Link { bandwidth, latency })
}

/// Returns the space for the input and the result on the user's machine.
fn free_here() -> Option<Bytes> {
    let file_system = rustix::fs::statvfs(".").ok()?;
    Some(bytes(
        file_system.f_bavail.saturating_mul(file_system.f_frsize),
    ))
}

#[expect(clippy::cast_precision_loss, reason = "planning computes in floats")]
fn bytes(count: u64) -> Bytes {
    Bytes::new(count as f64)
}

#[expect(clippy::cast_precision_loss, reason = "planning computes in floats")]
pub(in crate::command::plan) fn nanos(count: u64) -> Seconds {
    Seconds::new(count as f64 / 1e9)
}
