//! Locations of the bytes of a file.

use super::{View, table, write_table};
use crate::files::ClusterPath;
use crate::format;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};
use tidemill_core::display::line;
use tidemill_wire::v1;

/// Output of `tidemill layout` for one file.
#[derive(Debug)]
pub(crate) struct LayoutView {
    /// Path.
    pub(crate) path: ClusterPath,
    /// Layout in the server's form.
    pub(crate) layout: Value,
    /// Nodes of the cluster.
    pub(crate) nodes: Vec<v1::Node>,
}

impl View for LayoutView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let parts = self.parts();
        let size = self.layout["size"].as_u64().unwrap_or(0);
        let wanted = self.layout["replicas"].as_u64().unwrap_or(1);
        writeln!(
            out,
            "{}: {}, {}version {}, {} wanted",
            self.path,
            format::bytes(size),
            self.stripes(),
            self.layout["version"],
            if wanted == 1 {
                "1 replica".into()
            } else {
                format!("{wanted} replicas")
            }
        )?;
        let header = ["OFFSET", "SIZE", "OBJECT", "NODE", "STATE", "HOST"];
        let mut rows = table(&header, &[0, 1, 3]);
        for part in parts {
            for replica in part["replicas"].as_array().into_iter().flatten() {
                let node = replica["node"].as_u64().unwrap_or(0);
                rows.add_row([
                    part["offset"].to_string(),
                    format::bytes(part["size"].as_u64().unwrap_or(0)),
                    part["object"].as_str().unwrap_or_default().to_owned(),
                    node.to_string(),
                    replica["state"].as_str().unwrap_or_default().to_owned(),
                    line(self.host(node).unwrap_or_default()),
                ]);
            }
        }
        write_table(out, &rows)?;
        for part in parts {
            if let Some(note) = self.note(part, wanted) {
                writeln!(out, "{note}")?;
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let mut layout = self.layout.clone();
        layout["path"] = json!(self.path);
        layout
    }
}

impl LayoutView {
    fn parts(&self) -> &[Value] {
        self.layout["parts"].as_array().map_or(&[], Vec::as_slice)
    }

    fn stripes(&self) -> String {
        let unit = self.layout["unit"].as_u64();
        let stripes = unit.map(|unit| format!("stripes of {}, ", format::bytes(unit)));
        let extents = self.layout["extents"].as_u64();
        let extents = || extents.map(|count| format!("{count} extents, "));
        stripes.or_else(extents).unwrap_or_default()
    }

    fn host(&self, node: u64) -> Option<&str> {
        let mut nodes = self.nodes.iter();
        let found = nodes.find(|one| u64::from(one.node) == node)?;
        Some(&found.host)
    }

    /// Returns a note about a fault of a part.
    fn note(&self, part: &Value, wanted: u64) -> Option<String> {
        let replicas = part["replicas"].as_array()?;
        let current: Vec<u64> = replicas
            .iter()
            .filter(|replica| replica["state"] == "current")
            .filter_map(|replica| replica["node"].as_u64())
            .collect();
        if (current.len() as u64) < wanted {
            let missing = wanted - current.len() as u64;
            return Some(format!(
                "{} missing: made as soon as nodes with space are up",
                if missing == 1 {
                    "1 replica is".into()
                } else {
                    format!("{missing} replicas are")
                }
            ));
        }
        let hosts: BTreeSet<_> = current.iter().map(|&node| self.host(node)).collect();
        (wanted > 1 && hosts.len() == 1).then(|| {
            "all replicas are on one host: they outlive a node, and not the host".to_owned()
        })
    }
}
