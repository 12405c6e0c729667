//! Nodes of the cluster: a list, or one node with all that is known about it.

use super::energy::joules;
use super::table::{Text, columns};
use super::{Report, given, maybe, records, sorted};
use crate::format::{self, Bytes, Span, Time};
use serde_json::Value;
use std::collections::BTreeMap;
use tidemill_model::display::line;
use tidemill_node::flash_model;
use tidemill_sched::score::{energy_class, speed_class};
use tidemill_wire::v1;

records! {
    /// Nodes of the cluster.
    Nodes { nodes: Vec<Node> }

    /// Node of the cluster. A figure that is not known is 0 or an empty text.
    Node from of: v1::Node {
        node: u32,
        /// `store` or `server-cores`.
        role: String,
        url: String,
        /// Id of the host.
        host: String,
        /// Directory of the node on its host.
        directory: String,
        /// `capacity`, `burst` or `memory`.
        tier: String = if of.tier.is_empty() { "capacity".to_owned() } else { of.tier.clone() },
        up: bool,
        /// Whether the node is being drained: it receives no new files.
        draining: bool = of.emptied,
        suspension: Suspension = Suspension::from(&of.suspension.clone().unwrap_or_default()),
        cores: u32,
        /// Memory for tasks.
        memory_bytes: Bytes,
        /// Amounts of named resources, such as `gpu`.
        resources: BTreeMap<String, u64> = sorted(&of.resources),
        /// Number of running tasks.
        running: u32,
        /// Number of queued tasks.
        queued: u32,
        capacity_bytes: Bytes, free_bytes: Bytes, bytes_written: Bytes, bytes_read: Bytes,
        /// Bandwidths, in bytes per second, as configured.
        link_bytes_per_sec: u64,
        device_bytes_per_sec: u64,
        #[serde(skip)]
        scrub_bytes_per_sec: u64,
        /// Class of the device by its bandwidth, and of the node by its power.
        speed_class: u8 = speed_class(of.device_bytes_per_sec),
        energy_class: u8 = energy_class(of.watts_milli),
        /// Power at full load, in milliwatts.
        watts_milli: u64,
        idle_milliwatts: u64 = of.idle_milli,
        suspended_milliwatts: u64 = of.suspended_milli,
        /// Measured power; null if the node has no meter.
        measured_milliwatts: Option<u64> = (!of.measured_by.is_empty()).then_some(of.measured_milli),
        energy: Option<NodeEnergy> = maybe(&of.drawn),
        /// Load average of the host over one minute, in thousandths.
        load_milli: u32,
        /// Confinement of kernels.
        sandbox: String,
        /// Past runs of kernels, by kernel.
        history: BTreeMap<String, KernelHistory> = of.history.iter().map(|(name, one)| (name.clone(), one.into())).collect(),
        burst_files: Option<BurstFiles> = maybe(&of.burst_files),
        backend: Option<Backend> = maybe(&of.backend),
        /// Model of the flash memory of the node.
        flash_model: Option<Value> = of.flash_model.as_ref().map(flash_model::json),
        /// Time of the last message of the node.
        last_message: Time = Time(of.heard),
        /// Problem of the node; empty if there is none.
        trouble: String,
    }

    /// Past runs of a kernel on a node.
    KernelHistory from of: v1::KernelHistory { runs: u64, total_ns: Span, input_bytes: Bytes }

    /// Suspension of a node.
    Suspension from of: v1::Suspension {
        suspended: bool, resuming: bool, since: Time,
        /// Number of past resumes, and the usual time of one.
        resumes: u64,
        resume_ns: Span, trouble: String,
        /// Reason why the node can't be suspended.
        needed: String,
    }

    /// Energy that a node has drawn.
    NodeEnergy from of: v1::Drawn {
        joules: f64 = joules(of.microjoules),
        /// Time that the energy covers.
        counted_ns: Span,
        /// Method that determined the energy.
        by: String,
    }

    /// Files in the burst tier.
    BurstFiles from of: v1::BurstFiles {
        objects: u64, bytes: Bytes,
        /// Bytes that were staged out so far.
        staged_out: Bytes,
        /// Bytes that are not staged out yet.
        bytes_left: Bytes,
        reserved_bytes: Bytes,
        /// Reserved bytes that are not used yet.
        reserved_left: Bytes,
        /// Time of the oldest object that is not staged out.
        oldest: Option<Time> = given(&of.oldest),
    }

    /// External storage that keeps the files of a node.
    Backend from of: v1::Backend {
        uri: String,
        objects: u64 = of.files,
        bytes: Bytes,
        /// Number of objects that are not durable in the backend yet.
        waiting: u64,
        /// Bytes in the backend, which differ from `bytes` in a packed format.
        sent: Bytes,
        /// Format of files in the backend; empty for plain files.
        format: String = of.packing.clone(),
    }
}

columns! { node: Node {
    right "NODE" => node.node,
    left "ROLE" => node.role(),
    left "STATE" => node.state(),
    right "CORES" => node.cores,
    right "MEMORY" => if node.memory_bytes.0 == 0 { "-".to_owned() } else { node.memory_bytes.to_string() },
    left "RESOURCES" => node.resources(),
    right "RUNNING" => node.running,
    right "QUEUED" => node.queued,
    right "FREE" => node.free_bytes,
    right "CAPACITY" => node.capacity_bytes,
    right "WRITTEN" => node.bytes_written,
    left "URL" => node.url,
} }

/// Writes the table of nodes.
pub(super) fn nodes(nodes: &[Node], out: &mut Text) {
    out.table(nodes);
    if nodes.is_empty() {
        writeln!(out, "(none; start one with `tidemill node run`)");
    }
}

impl Report for Nodes {
    fn text(&self, out: &mut Text) {
        nodes(&self.nodes, out);
    }
}

impl Report for Node {
    fn text(&self, out: &mut Text) {
        for (name, value) in self.rows() {
            if !value.is_empty() {
                writeln!(out, "{name:<13}{}", line(&value));
            }
        }
    }
}

impl Node {
    fn state(&self) -> String {
        let state = match (self.up, self.suspension.suspended, self.suspension.resuming) {
            (true, ..) => "up",
            (_, true, true) => "resuming",
            (_, true, false) => "suspended",
            _ => "down",
        };
        let draining = if self.draining { ", draining" } else { "" };
        format!("{state}{draining}")
    }

    /// Returns the role, and the location of the files.
    fn role(&self) -> String {
        let tier = if self.tier == "capacity" {
            String::new()
        } else {
            format!(", {}", self.tier)
        };
        let backend = if self.backend.is_some() {
            ", backend"
        } else {
            ""
        };
        format!("{}{tier}{backend}", self.role)
    }

    /// Returns the named resources in the form of flags.
    fn resources(&self) -> String {
        let resources = self.resources.iter();
        let resources: Vec<String> = resources
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect();
        resources.join(",")
    }

    /// Writes the state of a suspended node. The problem of a node that does not resume is a state, and is shown with the states.
    pub(super) fn suspended(&self, out: &mut Text) {
        let (id, suspension) = (self.node, &self.suspension);
        if self.up && !suspension.trouble.is_empty() {
            writeln!(out, "\nnode {id}: {}", suspension.trouble);
        }
        if suspension.suspended && suspension.resumes > 0 {
            writeln!(
                out,
                "\nnode {id} is suspended; it takes {} to resume",
                suspension.resume_ns
            );
        }
    }

    /// Writes the number of files in the backend and in the burst tier.
    pub(super) fn staged(&self, out: &mut Text) {
        let id = self.node;
        if let Some(backend) = &self.backend {
            let (bytes, objects) = (backend.bytes, format::count(backend.objects, "object"));
            write!(
                out,
                "node {id}: {bytes} in {objects} in {}",
                line(&backend.uri)
            );
            if !backend.format.is_empty() && backend.sent != backend.bytes {
                write!(out, ", where they take {}", backend.sent);
            }
            match backend.waiting {
                0 => writeln!(out),
                waiting => writeln!(
                    out,
                    "; {} not stored there yet",
                    format::count(waiting, "object")
                ),
            }
        }
        if let Some(files) = &self.burst_files {
            writeln!(
                out,
                "node {id} holds {} on their way, {} of it not stored yet",
                files.bytes, files.bytes_left
            );
            if files.reserved_bytes.0 > 0 {
                writeln!(
                    out,
                    "{} of node {id} are reserved, {} of them not used yet; see `tidemill stage reservations`",
                    files.reserved_bytes, files.reserved_left
                );
            }
        }
    }

    /// Returns names and values; an empty value is not shown.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let some = |count: u64, unit: &str| match count {
            0 => String::new(),
            count => format!("{}{unit}", Bytes(count)),
        };
        vec![
            ("node", self.node.to_string()),
            ("role", self.role()),
            ("state", self.state()),
            ("url", self.url.clone()),
            ("host", self.host.clone()),
            ("directory", self.directory.clone()),
            ("cores", self.cores.to_string()),
            ("memory", some(self.memory_bytes.0, "")),
            ("resources", self.resources()),
            (
                "tasks",
                format!("{} running, {} queued", self.running, self.queued),
            ),
            (
                "space",
                format!("{} free of {}", self.free_bytes, self.capacity_bytes),
            ),
            ("written", some(self.bytes_written.0, "")),
            ("read", some(self.bytes_read.0, "")),
            ("network", some(self.link_bytes_per_sec, "/s")),
            ("device", some(self.device_bytes_per_sec, "/s")),
            ("scrub", some(self.scrub_bytes_per_sec, "/s")),
            ("power", self.power()),
            (
                "backend",
                self.backend
                    .as_ref()
                    .map_or_else(String::new, Backend::text),
            ),
            (
                "burst tier",
                self.burst_files
                    .as_ref()
                    .map_or_else(String::new, BurstFiles::text),
            ),
            ("sandbox", self.sandbox.clone()),
            (
                "last message",
                if self.last_message.0 == 0 {
                    String::new()
                } else {
                    format!("{} UTC", self.last_message)
                },
            ),
            ("problem", self.trouble.clone()),
        ]
    }

    /// Returns the known power figures in watts.
    fn power(&self) -> String {
        let figures = [
            (self.watts_milli, "at full load"),
            (self.idle_milliwatts, "idle"),
            (self.suspended_milliwatts, "suspended"),
            (self.measured_milliwatts.unwrap_or_default(), "measured now"),
        ];
        let known = figures.into_iter().filter(|(milli, _)| *milli > 0);
        super::joined(
            known.map(|(milli, when)| format!("{}.{} W {when}", milli / 1000, milli % 1000 / 100)),
        )
    }
}

impl Backend {
    fn text(&self) -> String {
        let (objects, waiting) = (
            format::count(self.objects, "object"),
            format::count(self.waiting, "object"),
        );
        format!(
            "{} in {objects} in {}; {waiting} not copied yet",
            self.bytes, self.uri
        )
    }
}

impl BurstFiles {
    fn text(&self) -> String {
        let (bytes, left, reserved) = (self.bytes, self.bytes_left, self.reserved_bytes);
        format!("{bytes} held, {left} not staged out yet, {reserved} reserved")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_view_leaves_unknown_values_out() {
        let node = v1::Node {
            node: 3,
            role: "store".into(),
            up: true,
            watts_milli: 190_500,
            ..v1::Node::default()
        };
        let text = crate::output::text_of(&Node::from(&node));
        assert!(text.contains("node         3\n"), "{text}");
        assert!(text.contains("state        up\n"), "{text}");
        assert!(text.contains("190.5 W at full load"), "{text}");
        assert!(
            !text.contains("problem") && !text.contains("device"),
            "{text}"
        );
    }
}
