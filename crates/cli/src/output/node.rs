//! Nodes of the cluster: a list, or one node with all that is known about it.

use super::View;
use super::cluster::{ClusterView, node_json, resources, role_of, state_of};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_core::display::line;
use tidemill_wire::v1;

/// Output of `tidemill node list`: only the nodes of the cluster.
#[derive(Debug)]
pub(crate) struct NodesView(pub(crate) ClusterView);

impl View for NodesView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.0.nodes_text(out)
    }

    fn json(&self) -> Value {
        json!({ "nodes": self.0.status.nodes.iter().map(node_json).collect::<Vec<_>>() })
    }
}

/// Output of `tidemill node show`.
#[derive(Debug)]
pub(crate) struct NodeView(pub(crate) v1::Node);

impl View for NodeView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (name, value) in self.rows() {
            if !value.is_empty() {
                writeln!(out, "{name:<13}{}", line(&value))?;
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        node_json(&self.0)
    }
}

impl NodeView {
    /// Returns names and values; an empty value is not shown.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let node = &self.0;
        let bytes = |count: u64| {
            if count > 0 {
                format::bytes(count)
            } else {
                String::new()
            }
        };
        let rate = |count: u64| match count {
            0 => String::new(),
            count => format!("{}/s", format::bytes(count)),
        };
        let space = format!(
            "{} free of {}",
            format::bytes(node.free_bytes),
            format::bytes(node.capacity_bytes)
        );
        let heard = match node.heard {
            0 => String::new(),
            heard => format!("{} UTC", format::time(heard)),
        };
        vec![
            ("node", node.node.to_string()),
            ("role", role_of(node)),
            ("state", state_of(node)),
            ("url", node.url.clone()),
            ("host", node.host.clone()),
            ("directory", node.directory.clone()),
            ("cores", node.cores.to_string()),
            ("memory", bytes(node.memory_bytes)),
            ("resources", resources(node)),
            (
                "tasks",
                format!("{} running, {} queued", node.running, node.queued),
            ),
            ("space", space),
            ("written", bytes(node.bytes_written)),
            ("read", bytes(node.bytes_read)),
            ("network", rate(node.link_bytes_per_sec)),
            ("device", rate(node.device_bytes_per_sec)),
            ("scrub", rate(node.scrub_bytes_per_sec)),
            ("power", power(node)),
            ("backend", backend(node)),
            ("burst tier", burst(node)),
            ("sandbox", node.sandbox.clone()),
            ("last message", heard),
            ("problem", node.trouble.clone()),
        ]
    }
}

/// Returns the known power figures in watts.
fn power(node: &v1::Node) -> String {
    let figures = [
        (node.watts_milli, "at full load"),
        (node.idle_milli, "idle"),
        (node.suspended_milli, "suspended"),
        (node.measured_milli, "measured now"),
    ];
    let known = figures.into_iter().filter(|(milli, _)| *milli > 0);
    let known: Vec<String> = known
        .map(|(milli, when)| format!("{}.{} W {when}", milli / 1000, milli % 1000 / 100))
        .collect();
    known.join(", ")
}

fn backend(node: &v1::Node) -> String {
    let Some(backend) = &node.backend else {
        return String::new();
    };
    format!(
        "{} in {} in {}; {} not copied yet",
        format::bytes(backend.bytes),
        format::count(backend.files, "object"),
        backend.uri,
        format::count(backend.waiting, "object")
    )
}

fn burst(node: &v1::Node) -> String {
    let Some(files) = &node.burst_files else {
        return String::new();
    };
    format!(
        "{} held, {} not staged out yet, {} reserved",
        format::bytes(files.bytes),
        format::bytes(files.bytes_left),
        format::bytes(files.reserved_bytes)
    )
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
        let mut text = Vec::new();
        NodeView(node).text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("node         3\n"), "{text}");
        assert!(text.contains("state        up\n"), "{text}");
        assert!(text.contains("190.5 W at full load"), "{text}");
        assert!(
            !text.contains("problem") && !text.contains("device"),
            "{text}"
        );
    }
}
