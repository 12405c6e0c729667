//! Metadata of files, and locations of their bytes.

use super::files::{entry_json, kind_name, mode};
use super::{View, table, write_table};
use crate::files::ClusterPath;
use crate::format;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::display::line;
use tidemill_wire::v1;

/// Output of `tidemill stat` for one path.
#[derive(Debug)]
pub(crate) struct StatView {
    /// Path.
    pub(crate) path: ClusterPath,
    /// Entry of the path.
    pub(crate) entry: v1::Entry,
    /// Layout of a file in the server's form.
    pub(crate) layout: Option<Value>,
    /// Nodes of the cluster.
    pub(crate) nodes: Vec<v1::Node>,
}

impl View for StatView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.layout {
            Some(layout) => writeln!(out, "{}: {}", self.path, summary(layout))?,
            None => writeln!(out, "{}: {}", self.path, kind_name(&self.entry))?,
        }
        let attr = self.entry.attr.unwrap_or_default();
        writeln!(
            out,
            "mode {}, owner {}, group {}, modified {} (UTC), inode {}",
            mode(&self.entry),
            line(&users::name(attr.uid)),
            attr.gid,
            format::time(attr.mtime),
            attr.ino
        )?;
        match &self.layout {
            Some(layout) => self.parts_text(layout, out),
            None => Ok(()),
        }
    }

    fn json(&self) -> Value {
        let mut shown = entry_json(&self.entry);
        if let Some(shown) = shown.as_object_mut() {
            shown.remove("name");
            shown.insert("path".into(), json!(self.path));
            let layout = self.layout.as_ref().and_then(Value::as_object);
            shown.extend(layout.cloned().into_iter().flatten());
        }
        shown
    }
}

impl StatView {
    fn parts_text(&self, layout: &Value, out: &mut dyn Write) -> io::Result<()> {
        let parts = parts(layout);
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
            if let Some(note) = self.note(part, wanted(layout)) {
                writeln!(out, "{note}")?;
            }
        }
        Ok(())
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

/// Returns size, stripes, version and wanted number of replicas.
fn summary(layout: &Value) -> String {
    let wanted = match wanted(layout) {
        1 => "1 replica".into(),
        wanted => format!("{wanted} replicas"),
    };
    format!(
        "{}, {}version {}, {wanted} wanted",
        format::bytes(layout["size"].as_u64().unwrap_or(0)),
        stripes(layout),
        layout["version"]
    )
}

fn wanted(layout: &Value) -> u64 {
    layout["replicas"].as_u64().unwrap_or(1)
}

fn parts(layout: &Value) -> &[Value] {
    layout["parts"].as_array().map_or(&[], Vec::as_slice)
}

fn stripes(layout: &Value) -> String {
    let unit = layout["unit"].as_u64();
    let stripes = unit.map(|unit| format!("stripes of {}, ", format::bytes(unit)));
    let extents = layout["extents"].as_u64();
    let extents = || extents.map(|count| format!("{count} extents, "));
    stripes.or_else(extents).unwrap_or_default()
}
