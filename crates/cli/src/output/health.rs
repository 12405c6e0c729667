//! Availability of files: health, faults and scrubs.

use super::table::Text;
use super::{Report, joined, list, records};
use crate::files::ClusterPath;
use crate::format::{self, Bytes, Span, Time};
use tidemill_model::display::line;
use tidemill_wire::{condition, v1};

records! {
    /// Health of the cluster.
    Health new(reply: &v1::HealthReply, nodes: &[v1::Node], conditions: &[v1::Condition]) {
        /// `well`, `repairing`, `degraded`, `unavailable` or `lost`.
        health: &'static str = word(reply, conditions),
        /// States that an administrator must act on, the worst first.
        states: Vec<Condition> = list(conditions),
        /// Number of files that lack replicas for which no node has space.
        waiting_for_space: u64 = reply.resting,
        /// Number of files with fewer replicas than wanted.
        short: u64 = reply.short,
        /// Number of files without an online replica.
        unavailable: u64 = reply.unavailable,
        /// Number of files whose replicas were all on removed nodes.
        lost: u64 = reply.lost,
        /// Number of files with a corrupt replica.
        corrupt: u64 = reply.corrupt,
        /// Number of corrupt files without an intact replica.
        all_corrupt: u64 = reply.all_corrupt,
        /// Number of replicas that are being made.
        repairing: u64 = reply.repairing,
        /// Bytes of the replicas that are still to be made.
        bytes_left: Bytes = Bytes(reply.bytes_left),
        /// Estimated time until all replicas are made; null if it is not known.
        left_ns: Option<Span> = left_ns(reply, nodes),
        /// Nodes that are declared failed.
        failed_nodes: Vec<u32> = reply.failed_nodes.clone(),
        /// Nodes that report a problem.
        node_problems: Vec<NodeProblem> = list(nodes.iter().filter(|node| node.up && !node.trouble.is_empty())),
        scrubs: Vec<Scrub> = list(&reply.scrubs),
        /// Some of the files with a fault.
        files: Vec<FileFault> = list(&reply.ailing),
        /// Whether replicas are missing and none of them can be made.
        #[serde(skip)]
        no_space: bool = has_no_space(reply),
        /// Numbers of the nodes that store files.
        #[serde(skip)]
        stores: Vec<u32> = nodes.iter().filter(|node| node.role == "store").map(|node| node.node).collect(),
    }

    /// State of the cluster that an administrator must act on.
    Condition from of: v1::Condition {
        /// Name of the state, as in `docs/troubleshooting.md`.
        name: String,
        node: Option<u32>, cause: String, remedy: String,
        /// Exit code of `tidemill cluster health` for this state alone.
        exit: u32,
    }

    /// Problem that a node reports.
    NodeProblem from of: v1::Node { node: u32, trouble: String }

    /// File with a fault.
    FileFault from of: v1::Ailing {
        /// Kind of fault, such as `lost` or `corrupt`.
        kind: String,
        path: ClusterPath,
        /// Id of the object, in 16 hexadecimal digits.
        object: String = format!("{:016x}", of.object),
        bytes: Bytes = Bytes(of.size),
        /// Nodes with the fault.
        nodes: Vec<u32>,
        /// Description of the fault.
        what: String,
        /// Whether a replica is being recreated.
        repairing: bool,
    }

    /// Scrub of a node: the node reads its objects and compares them with their hashes.
    Scrub from of: v1::NodeScrub {
        node: u32, begun: Time,
        /// End of the scrub; 0 while it runs.
        ended: Time,
        /// Number of read objects.
        objects: u64,
        bytes: Bytes,
        /// Number of corrupt objects.
        corrupt: u64,
        /// Whether the node reads only when it is idle.
        idle: bool,
        /// Progress in thousandths.
        done_milli: u32,
    }
}

impl Health {
    /// Returns the exit code: 0 if there is no fault, 3 if nodes or replicas are missing, 4 if files are not available.
    pub(crate) fn exit(&self) -> u8 {
        match self.health {
            "well" => 0,
            "lost" | "unavailable" => 4,
            _ => 3,
        }
    }

    fn repairs(&self, out: &mut Text) {
        if self.short + self.corrupt + self.repairing == 0 {
            return;
        }
        writeln!(
            out,
            "short     {} with fewer replicas than wanted",
            format::count(self.short, "file")
        );
        if self.no_space {
            return writeln!(
                out,
                "no space  {} can't be made: the other nodes that are up have no space; add one, or remove files",
                self.bytes_left
            );
        }
        let left = self
            .left_ns
            .map_or_else(String::new, |left| format!(", about {left}"));
        let made = match self.repairing {
            1 => "1 replica is made".to_owned(),
            count => format!("{count} replicas are made"),
        };
        writeln!(
            out,
            "repairing {made} at this moment; {} left{left}",
            self.bytes_left
        );
    }

    fn scrubs(&self, out: &mut Text) {
        for node in &self.stores {
            let scrubs = self.scrubs.iter().filter(|one| one.node == *node);
            let ended = |one: &&Scrub| one.ended.0 > 0 && one.objects + one.corrupt > 0;
            let last = scrubs.clone().filter(ended).max_by_key(|one| one.ended);
            write!(out, "scrub     node {node}: ");
            match last {
                Some(last) => write!(
                    out,
                    "all read until {} UTC ({}, {} corrupt)",
                    last.ended, last.bytes, last.corrupt
                ),
                None => write!(out, "never read as a whole"),
            }
            for now in scrubs.filter(|one| one.ended.0 == 0) {
                let idle = if now.idle { " when it is idle" } else { "" };
                write!(out, "; reads again{idle}, {}%", now.done_milli / 10);
            }
            writeln!(out);
        }
    }
}

impl Report for Health {
    fn text(&self, out: &mut Text) {
        let summary = match self.health {
            "well" => "all files have as many replicas as wanted",
            "repairing" => "all files are available; missing replicas are being made",
            "degraded" if self.no_space => {
                "degraded: all files are available, but replicas are missing and there is no space to make them"
            }
            "degraded" if self.short > 0 => {
                "degraded: all files are available, and missing replicas are being made; something needs an administrator"
            }
            "degraded" => "degraded: all files are available, but something needs an administrator",
            "unavailable" => "some files are unavailable until their nodes answer",
            _ => "some files are lost: no intact replica remains",
        };
        writeln!(out, "health    {summary}");
        states(&self.states, out);
        if self.lost > 0 {
            writeln!(
                out,
                "lost      {} that only removed nodes had",
                format::count(self.lost, "file")
            );
        }
        if self.unavailable > 0 {
            writeln!(
                out,
                "unavailable {} that no online node has",
                format::count(self.unavailable, "file")
            );
        }
        if self.corrupt > 0 {
            let files = format::count(self.corrupt, "corrupt file");
            writeln!(
                out,
                "corrupt   {files}, {} of which there is no other replica",
                self.all_corrupt
            );
        }
        if self.all_corrupt > 0 {
            writeln!(
                out,
                "          `tidemill get --corrupt PATH LOCAL` gets such bytes as they are; a new version, or `tidemill rm`, resolves the fault"
            );
        }
        self.repairs(out);
        faults(&self.files, out);
        self.scrubs(out);
    }
}

/// Returns the health of the cluster in one word for programs.
pub(super) fn word(health: &v1::HealthReply, conditions: &[v1::Condition]) -> &'static str {
    let worst = conditions.iter().map(|one| one.exit).max();
    // These states end by themselves when replicas have been made.
    let repairing = [
        condition::REPLICAS_MISSING.name,
        condition::FILES_CORRUPT.name,
    ];
    let mut all = conditions.iter();
    let only_replicas = all.all(|one| one.exit == 0 || repairing.contains(&&*one.name));
    let is_lost = conditions
        .iter()
        .any(|one| one.name == condition::DATA_LOST.name);
    if health.lost + health.all_corrupt > 0 || is_lost {
        "lost"
    } else if health.unavailable > 0 || worst >= Some(4) {
        "unavailable"
    } else if !health.failed_nodes.is_empty() || has_no_space(health) || !only_replicas {
        "degraded"
    } else if health.short + health.corrupt + health.repairing > 0 {
        "repairing"
    } else {
        "well"
    }
}

fn has_no_space(health: &v1::HealthReply) -> bool {
    health.short > 0 && health.resting >= health.short && health.repairing == 0
}

/// Returns the time until the missing replicas are made; `None` if it is not known.
fn left_ns(health: &v1::HealthReply, nodes: &[v1::Node]) -> Option<Span> {
    let up = nodes.iter().filter(|node| node.up);
    let rate = match health.bytes_per_sec {
        _ if has_no_space(health) => return None,
        0 => up.map(|node| node.link_bytes_per_sec).min()?,
        rate => rate,
    };
    let ns = u128::from(health.bytes_left) * 1_000_000_000 / u128::from(rate.max(1));
    Some(Span(u64::try_from(ns).unwrap_or(u64::MAX)))
}

/// Writes one line for each state: its name, node, cause and remedy.
pub(super) fn states(states: &[Condition], out: &mut Text) {
    for one in states {
        let node = one.node.map(|node| format!("node {node}: "));
        let (node, cause) = (node.unwrap_or_default(), line(&one.cause));
        writeln!(out, "state     {}: {node}{cause}; {}", one.name, one.remedy);
    }
}

/// Writes one line for each file with a fault.
pub(super) fn faults(faults: &[FileFault], out: &mut Text) {
    for one in faults {
        let again = if one.repairing {
            " (being recreated)"
        } else {
            ""
        };
        let (nodes, what) = (joined(&one.nodes), line(&one.what));
        writeln!(
            out,
            "{:<9} {}, node {nodes}: {what}{again}",
            one.kind, one.path
        );
    }
}

records! {
    /// Scrub that was started.
    ScrubRequest from of: v1::ScrubReply {
        /// Number of the request.
        request: u64,
        /// Nodes that read their objects.
        nodes: Vec<u32>,
        /// Offline nodes, which read their objects when they are back.
        offline: Vec<u32>,
        /// Number of objects; 0 for all objects.
        objects: u64,
    }
}

impl Report for ScrubRequest {
    fn text(&self, out: &mut Text) {
        let what = match self.objects {
            0 => "all their objects".to_owned(),
            some => format::count(some, "object"),
        };
        let nodes = format::count(self.nodes.len() as u64, "node");
        let reads = if self.nodes.len() == 1 {
            "reads"
        } else {
            "read"
        };
        writeln!(out, "{nodes} {reads} {what}; see `tidemill cluster health`");
        offline(&self.offline, out);
    }
}

fn offline(nodes: &[u32], out: &mut Text) {
    for node in nodes {
        writeln!(out, "node {node} is offline: it reads when it is back");
    }
}

records! {
    /// Completed scrub.
    ScrubResult {
        scrubs: Vec<Scrub>,
        /// Offline nodes, which read their objects when they are back.
        offline: Vec<u32>,
        corrupt: Vec<FileFault>,
    }
}

impl Report for ScrubResult {
    fn text(&self, out: &mut Text) {
        let sum = |of: fn(&Scrub) -> u64| self.scrubs.iter().map(of).sum::<u64>();
        let result = match sum(|one| one.corrupt) {
            0 => "all match the sealed content".to_owned(),
            some => format!("{some} corrupt"),
        };
        let (objects, bytes) = (sum(|one| one.objects), sum(|one| one.bytes.0));
        writeln!(
            out,
            "{} read ({}): {result}",
            format::count(objects, "object"),
            Bytes(bytes)
        );
        faults(&self.corrupt, out);
        offline(&self.offline, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text_of;

    fn printed(health: &v1::HealthReply) -> (u8, &'static str, String) {
        let node = v1::Node {
            up: true,
            link_bytes_per_sec: 1,
            ..v1::Node::default()
        };
        let health = Health::new(health, &[node], &[]);
        (health.exit(), health.health, text_of(&health))
    }

    #[test]
    fn missing_node_degrades_health() {
        let mut health = v1::HealthReply::default();
        assert_eq!(printed(&health).1, "well");
        health.failed_nodes = vec![3];
        let (exit, word, text) = printed(&health);
        assert_eq!((exit, word), (3, "degraded"), "{text}");
        assert!(text.contains("degraded"), "{text}");
        health.unavailable = 1;
        assert_eq!(printed(&health).0, 4);
    }

    #[test]
    fn health_shows_trouble_of_a_node() {
        let node = v1::Node {
            node: 2,
            up: true,
            trouble: "its clock is wrong".into(),
            ..v1::Node::default()
        };
        let state = condition::NODE_CLOCK.of(Some(2), "its clock is wrong");
        let health = Health::new(&v1::HealthReply::default(), &[node], &[state]);
        let text = text_of(&health);
        assert!(text.contains("node-clock: node 2: its clock"), "{text}");
        assert_eq!(health.node_problems[0].node, 2);
        assert_eq!((health.exit(), health.health), (3, "degraded"));
    }

    #[test]
    fn worst_state_decides_the_exit_code() {
        let states = |kinds: &[condition::ConditionKind]| {
            let states: Vec<_> = kinds.iter().map(|kind| kind.of(None, "cause")).collect();
            let health = Health::new(&v1::HealthReply::default(), &[], &states);
            (health.exit(), health.health)
        };
        assert_eq!(states(&[condition::RULE_FAILED]), (0, "well"));
        assert_eq!(states(&[condition::STORE_OFFLINE]), (3, "degraded"));
        let both = [condition::DATA_UNAVAILABLE, condition::NODE_OFFLINE];
        assert_eq!(states(&both), (4, "unavailable"));
        let lost = [condition::DATA_UNAVAILABLE, condition::DATA_LOST];
        assert_eq!(states(&lost), (4, "lost"));
    }

    #[test]
    fn health_estimates_no_time_for_impossible_replicas() {
        let mut health = v1::HealthReply {
            short: 2,
            bytes_left: 100,
            ..v1::HealthReply::default()
        };
        let (exit, word, text) = printed(&health);
        assert_eq!((exit, word), (3, "repairing"));
        assert!(text.contains("about"), "{text}");
        health.resting = 2;
        let (exit, word, text) = printed(&health);
        assert_eq!((exit, word), (3, "degraded"));
        assert!(
            text.contains("no space") && !text.contains("about"),
            "{text}"
        );
    }
}
