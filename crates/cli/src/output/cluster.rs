//! State of the whole cluster: its server, its nodes, its running jobs.

use super::health::{self, Condition};
use super::job::Job;
use super::node::Node;
use super::table::Text;
use super::{Report, list, records};
use crate::files::ClusterPath;
use crate::format::{self, Bytes, Time};
use tidemill_model::display::line;
use tidemill_wire::v1;

records! {
    /// State of the cluster.
    Status from of: v1::StatusReply {
        /// Address at which the server was reached.
        endpoint: String = String::new(),
        /// Version of the protocol.
        protocol: u32 = of.version,
        /// Id of the cluster, in 16 hexadecimal digits.
        cluster: String = format!("{:016x}", of.cluster_id),
        /// Start of the server.
        started: Time,
        default_policy: String, policies: Vec<String>,
        /// Problem of the server; empty if there is none.
        trouble: String,
        capacity_bytes: Bytes, free_bytes: Bytes,
        nodes: Vec<Node> = list(&of.nodes),
        mounts: Vec<Mount> = list(&of.mounts),
        /// `well`, `repairing`, `degraded`, `unavailable` or `lost`, as in `tidemill cluster health`.
        health: &'static str = health_word(of),
        /// States that an administrator must act on, the worst first.
        states: Vec<Condition> = list(&of.conditions),
        replicas: ReplicaHealth = ReplicaHealth::from(&of.replicas.clone().unwrap_or_default()),
        /// Number of files that found no space in the memory tier since the server started.
        overflowed: u64,
        hooks_behind: Vec<HookLag> = list(&of.hooks_behind),
        /// Number of files whose maps wait for the end of a burst.
        maps_held: u64,
        /// Share of the processors for maps during a burst, in percent.
        burst_share: u32,
        unsealed: Vec<Unsealed> = list(&of.unsealed),
        /// Replicated log; null if the server has none.
        replication: Option<Replication> = of.replication.as_ref().map(Replication::from),
        /// Jobs that have not ended.
        running_jobs: Vec<Job> = Vec::new(),
    }

    /// Replicated log of the server's database.
    Replication from of: v1::Replication {
        /// Address of the leader.
        leader: String,
        /// Number of the leadership.
        term: u64,
        standbys: Vec<StandbyServer> = list(&of.standbys),
        /// Reason why no change is acknowledged now; empty if changes are acknowledged.
        trouble: String,
    }

    /// Server that follows the replicated log.
    StandbyServer from of: v1::Standby {
        address: String,
        /// Number of messages of the log that the standby lacked at its last report.
        behind: u64,
    }

    /// Mount of the cluster.
    Mount from of: v1::Mount { session: u64, host: String, path: String, since: Time }

    /// Number of files with missing replicas.
    ReplicaHealth from of: v1::ReplicaHealth {
        /// Number of files with fewer replicas than wanted.
        short: u64,
        /// Number of files without an online replica, and some of their paths.
        unavailable: u64,
        unavailable_paths: Vec<ClusterPath> = of.unavailable_paths.iter().cloned().map(Into::into).collect(),
        /// Nodes that are declared failed.
        failed_nodes: Vec<u32>,
        /// Number of corrupt replicas.
        corrupt: u64,
    }

    /// Hook with closed files that are not mapped yet.
    HookLag from of: v1::HookLag { name: String, uid: u32, files: u64, bytes: Bytes }

    /// Versions of a node that are not sealed.
    Unsealed from of: v1::Unsealed {
        node: u32, session: u64,
        /// Number of versions.
        versions: u64,
        /// Begin of the oldest version.
        oldest: Time,
        /// Whether the session has ended.
        ended: bool,
        why: String,
    }
}

/// Returns the health of the cluster in one word, like `tidemill cluster health`.
fn health_word(status: &v1::StatusReply) -> &'static str {
    let replicas = status.replicas.clone().unwrap_or_default();
    let reply = v1::HealthReply {
        unavailable: replicas.unavailable,
        short: replicas.short,
        corrupt: replicas.corrupt,
        failed_nodes: replicas.failed_nodes,
        ..v1::HealthReply::default()
    };
    health::word(&reply, &status.conditions)
}

impl Report for Status {
    fn text(&self, out: &mut Text) {
        writeln!(
            out,
            "server    {}, since {} UTC",
            self.endpoint, self.started
        );
        writeln!(
            out,
            "policies  {} (default {})",
            self.policies.join(", "),
            self.default_policy
        );
        health::states(&self.states, out);
        let up = self.nodes.iter().filter(|node| node.up).count();
        let suspended = match self
            .nodes
            .iter()
            .filter(|node| node.suspension.suspended)
            .count()
        {
            0 => String::new(),
            count => format!(", {count} suspended"),
        };
        let (count, free, capacity) = (self.nodes.len(), self.free_bytes, self.capacity_bytes);
        writeln!(
            out,
            "nodes     {up} of {count} up{suspended}, {free} free of {capacity}\n"
        );
        super::node::nodes(&self.nodes, out);
        self.nodes.iter().for_each(|node| node.suspended(out));
        self.nodes.iter().for_each(|node| node.staged(out));
        self.hooks(out);
        for node in &self.nodes {
            if let Some(energy) = &node.energy {
                let (joules, span, by) = (energy.joules, energy.counted_ns, &energy.by);
                writeln!(
                    out,
                    "\nnode {} has drawn {joules:.0} J in {span}, {by}",
                    node.node
                );
            }
        }
        for (index, mount) in self.mounts.iter().enumerate() {
            let begin = if index == 0 { "\n" } else { "" };
            writeln!(
                out,
                "{begin}mounted   {} on {}, since {} UTC",
                mount.path, mount.host, mount.since
            );
        }
        if self.overflowed > 0 {
            let files = format::count(self.overflowed, "file");
            writeln!(
                out,
                "\nmemory    {files} found no space in memory and are on disks, since the server started"
            );
        }
        self.unsealed(out);
        self.replication(out);
        self.replicas(out);
        if !self.running_jobs.is_empty() {
            writeln!(out);
            out.table(&self.running_jobs);
        }
    }
}

impl Status {
    fn replication(&self, out: &mut Text) {
        let Some(replication) = &self.replication else {
            return;
        };
        let Replication { leader, term, .. } = replication;
        writeln!(out, "\nleader    {leader}, term {term}");
        for StandbyServer { address, behind } in &replication.standbys {
            writeln!(out, "standby   {address}, {behind} messages behind");
        }
        if replication.standbys.is_empty() {
            writeln!(
                out,
                "standby   none: no server takes over if this one is lost"
            );
        }
    }

    fn unsealed(&self, out: &mut Text) {
        for (index, unsealed) in self.unsealed.iter().enumerate() {
            let begin = if index == 0 { "\n" } else { "" };
            let versions = format::count(unsealed.versions, "version");
            let Unsealed {
                node, oldest, why, ..
            } = unsealed;
            writeln!(
                out,
                "{begin}unsealed  {versions} on node {node}, the oldest since {oldest} UTC: {why}"
            );
        }
    }

    fn hooks(&self, out: &mut Text) {
        for hook in &self.hooks_behind {
            let (name, files, bytes) = (
                line(&hook.name),
                format::count(hook.files, "file"),
                hook.bytes,
            );
            writeln!(
                out,
                "\nhook      {name} lags behind: {files}, {bytes} closed and not mapped yet; files are mapped after they are closed"
            );
        }
        if self.maps_held > 0 {
            let (files, share) = (format::count(self.maps_held, "file"), self.burst_share);
            writeln!(
                out,
                "\nhooks     {files} mapped when the burst is over, or in a moment (--burst-share {share})"
            );
        }
    }

    fn replicas(&self, out: &mut Text) {
        let replicas = &self.replicas;
        let corrupt = match replicas.corrupt {
            1 => "corrupt replica",
            _ => "corrupt replicas",
        };
        let counts = [
            (
                replicas.unavailable,
                format::count(replicas.unavailable, "file") + " unavailable or lost",
            ),
            (replicas.corrupt, format!("{} {corrupt}", replicas.corrupt)),
            (
                replicas.short,
                format::count(replicas.short, "file") + " with fewer replicas than wanted",
            ),
            (
                replicas.failed_nodes.len() as u64,
                format::count(replicas.failed_nodes.len() as u64, "node") + " declared failed",
            ),
        ];
        let counts: Vec<_> = counts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(_, text)| text)
            .collect();
        if !counts.is_empty() {
            writeln!(
                out,
                "\nhealth    {}: {}: see `tidemill cluster health`",
                self.health,
                counts.join(", ")
            );
        }
    }
}
