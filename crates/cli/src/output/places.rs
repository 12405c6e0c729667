//! Places of files: nodes that are drained, files that move, and the labels that move them.

use super::{View, table, write_table};
use crate::files::ClusterPath;
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_core::display::{escaped, line};
use tidemill_wire::v1;

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.map_or(0, |since| since.as_nanos());
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

/// Progress of a node's drain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrainView(pub(crate) v1::Drain);

impl DrainView {
    /// Returns whether no file is left on the node.
    pub(crate) fn is_empty(&self) -> bool {
        let drain = &self.0;
        // An offline node removes no file and completes no label, and does not need to before it is removed.
        let there = match drain.offline {
            true => 0,
            false => drain.removals + drain.labels,
        };
        let left = drain.files_left + drain.writing + there;
        !drain.listing && left == 0
    }

    /// Returns the remaining time at the rate so far, in nanoseconds, if it is known.
    fn left_ns(&self) -> Option<u64> {
        let drain = &self.0;
        let taken = u128::from(now_ns().saturating_sub(drain.began).unsigned_abs());
        let (moved, left) = match drain.bytes_moved {
            0 => (drain.files_moved, drain.files_left),
            bytes => (bytes, drain.bytes_left),
        };
        if moved == 0 || drain.listing {
            return None;
        }
        u64::try_from(taken * u128::from(left) / u128::from(moved)).ok()
    }
}

impl View for DrainView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let drain = &self.0;
        if self.is_empty() {
            let state = match drain.offline {
                true => "offline, and all files that it had are elsewhere",
                false => "empty",
            };
            return writeln!(
                out,
                "node {} is {state}: {} moved ({}); remove it with `tidemill node remove {}`",
                drain.node,
                format::count(drain.files_moved, "file"),
                format::bytes(drain.bytes_moved),
                drain.node
            );
        }
        write!(
            out,
            "node {} is being emptied: {} moved ({}), {} left ({})",
            drain.node,
            format::count(drain.files_moved, "file"),
            format::bytes(drain.bytes_moved),
            drain.files_left,
            format::bytes(drain.bytes_left)
        )?;
        if drain.listing {
            write!(out, ", and the search for more files continues")?;
        }
        for (count, what) in [
            (
                drain.files_waiting,
                "that can't move now: the other nodes are full, offline, or have them",
            ),
            (
                drain.removals,
                "still to be removed there, some of which may be read",
            ),
            (drain.writing, "being written there"),
        ] {
            if count > 0 {
                write!(out, ", {} {what}", format::count(count, "file"))?;
            }
        }
        if drain.labels > 0 {
            write!(
                out,
                ", {} still to end there",
                format::count(drain.labels, "task")
            )?;
        }
        match self.left_ns() {
            Some(left) if drain.files_left > 0 => {
                writeln!(out, "; about {} left", format::span(left))
            }
            _ => writeln!(out),
        }
    }

    fn json(&self) -> Value {
        let drain = &self.0;
        json!({
            "node": drain.node,
            "began": drain.began,
            "empty": self.is_empty(),
            "offline": drain.offline,
            "listing": drain.listing,
            "files_moved": drain.files_moved,
            "bytes_moved": drain.bytes_moved,
            "files_left": drain.files_left,
            "bytes_left": drain.bytes_left,
            "files_waiting": drain.files_waiting,
            "removals": drain.removals,
            "writing": drain.writing,
            "tasks": drain.labels,
            "left_ns": self.left_ns(),
        })
    }
}

/// Output of `tidemill migrate` for one path.
#[derive(Debug)]
pub(crate) struct MovedView {
    pub(crate) path: ClusterPath,
    /// Target nodes; empty if the migration was cancelled.
    pub(crate) nodes: Vec<u32>,
    pub(crate) moved: v1::MoveReply,
    /// Whether nothing was requested of the server.
    pub(crate) dry_run: bool,
}

impl View for MovedView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let moved = &self.moved;
        let files = format::count(moved.files, "file");
        let bytes = format::bytes(moved.bytes);
        let Some((last, others)) = self.nodes.split_last() else {
            return writeln!(out, "{}: {files} ({bytes}) will not migrate", self.path);
        };
        let others: Vec<String> = others.iter().map(u32::to_string).collect();
        let nodes = match others.is_empty() {
            true => format!("node {last}"),
            false => format!("nodes {} and {last}", others.join(", ")),
        };
        let will = if self.dry_run { "would" } else { "will" };
        let path = &self.path;
        write!(out, "{path}: {files} ({bytes}) {will} migrate to {nodes}")?;
        for (count, what) in [
            (moved.there, "already on a target node"),
            (moved.unsealed, "skipped: still being written"),
        ] {
            if count > 0 {
                write!(out, ", {} {what}", format::count(count, "file"))?;
            }
        }
        writeln!(out)
    }

    fn json(&self) -> Value {
        json!({
            "path": self.path,
            "node": (self.nodes.len() == 1).then(|| self.nodes[0]),
            "nodes": self.nodes,
            "files": self.moved.files,
            "bytes": self.moved.bytes,
            "there": self.moved.there,
            "unsealed": self.moved.unsealed,
            "dry_run": self.dry_run,
        })
    }
}

/// Files that move between nodes.
#[derive(Debug)]
pub(crate) struct RebalanceView(pub(crate) v1::RebalanceReply);

impl View for RebalanceView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows = table(&["NODE", "HOLDS", "FREE"], &[0, 1, 2]);
        for fill in &self.0.nodes {
            rows.add_row([
                fill.node.to_string(),
                format::bytes(fill.held_bytes),
                format::bytes(fill.free_bytes),
            ]);
        }
        write_table(out, &rows)?;
        if self.0.flows.is_empty() {
            return writeln!(out, "\nnothing has to move");
        }
        writeln!(out)?;
        let mut rows = table(&["FROM", "TO", "FILES", "BYTES"], &[0, 1, 2, 3]);
        for flow in &self.0.flows {
            rows.add_row([
                flow.source.to_string(),
                flow.target.to_string(),
                flow.files.to_string(),
                format::bytes(flow.bytes),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        let flow = |flow: &v1::Flow| {
            json!({
                "from": flow.source,
                "to": flow.target,
                "files": flow.files,
                "bytes": flow.bytes,
            })
        };
        let fill = |fill: &v1::Fill| {
            json!({
                "node": fill.node,
                "held_bytes": fill.held_bytes,
                "free_bytes": fill.free_bytes,
            })
        };
        json!({
            "flows": self.0.flows.iter().map(flow).collect::<Vec<_>>(),
            "nodes": self.0.nodes.iter().map(fill).collect::<Vec<_>>(),
        })
    }
}

/// Progress of copying files from the burst tier to stores, or from stores to the burst tier.
#[derive(Debug)]
pub(crate) struct StagedView {
    pub(crate) path: ClusterPath,
    pub(crate) stages_in: bool,
    pub(crate) staged: v1::StageReply,
}

impl View for StagedView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (path, staged) = (&self.path, &self.staged);
        match (staged.objects, staged.held) {
            (0, 0) if self.stages_in => {
                write!(out, "{path}: all that is closed is in the burst tier")?
            }
            (0, 0) => write!(out, "{path}: all that is closed is stored")?,
            (0, held) => write!(
                out,
                "{path}: stored; {held} still to be evicted from the burst tier"
            )?,
            (objects, _) => write!(
                out,
                "{path}: {} ({}) still to be copied",
                format::count(objects, "object"),
                format::bytes(staged.bytes)
            )?,
        }
        if let Some(node) = staged.node.checked_sub(1) {
            write!(out, " to node {node}")?;
        }
        if staged.unsealed > 0 {
            write!(
                out,
                ", {} being written",
                format::count(staged.unsealed, "file")
            )?;
        }
        if let Some(node) = staged.offline.checked_sub(1) {
            write!(out, "; node {node}, which has some of it, is offline")?;
        }
        writeln!(out)
    }

    fn json(&self) -> Value {
        let staged = &self.staged;
        json!({
            "path": self.path,
            "files": staged.files,
            "objects": staged.objects,
            "bytes": staged.bytes,
            "held": staged.held,
            "unsealed": staged.unsealed,
            "offline": staged.offline.checked_sub(1),
            "node": staged.node.checked_sub(1),
        })
    }
}

/// Labels that belong to no job.
#[derive(Debug)]
pub(crate) struct LabelsView(pub(crate) v1::MigrationsReply);

impl View for LabelsView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "LABEL", "NODE", "KIND", "STATE", "WHY", "AGE", "BYTES", "OBJECT", "FILE",
        ];
        let mut rows = table(&header, &[0, 1, 6]);
        for label in &self.0.labels {
            rows.add_row([
                label.label.to_string(),
                label.node.to_string(),
                match label.kind.as_str() {
                    "copy" => format!("copy of {}", label.from),
                    kind => kind.to_owned(),
                },
                state(label).into(),
                label.why.clone(),
                age_ns(label).map_or_else(|| "-".into(), format::span),
                format::bytes(label.bytes),
                match label.objects {
                    1 => format!("{:016x}", label.object),
                    more => format!("{:016x} and {} more", label.object, more.saturating_sub(1)),
                },
                line(&String::from_utf8_lossy(&label.path)),
            ]);
        }
        write_table(out, &rows)?;
        for pending in &self.0.pending {
            let files = format::count(pending.files, "file");
            let bytes = match pending.bytes {
                0 => String::new(),
                bytes => format!(" ({})", format::bytes(bytes)),
            };
            writeln!(out, "\n{files}{bytes} not done yet: {}", pending.why)?;
        }
        for drain in &self.0.drains {
            writeln!(out)?;
            DrainView(*drain).text(out)?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let label = |label: &v1::MaintenanceTask| {
            json!({
                "label": label.label,
                "node": label.node,
                "kind": label.kind,
                "state": state(label),
                "why": label.why,
                "age_ns": age_ns(label),
                "bytes": label.bytes,
                "object": format!("{:016x}", label.object),
                "objects": label.objects,
                "from": (label.kind == "copy").then_some(label.from),
                "path": escaped(&label.path),
            })
        };
        let pending =
            |one: &v1::Pending| json!({ "why": one.why, "files": one.files, "bytes": one.bytes });
        json!({
            "labels": self.0.labels.iter().map(label).collect::<Vec<_>>(),
            "pending": self.0.pending.iter().map(pending).collect::<Vec<_>>(),
            "drains": self.0.drains.iter().map(|drain| DrainView(*drain).json()).collect::<Vec<_>>(),
        })
    }
}

fn state(label: &v1::MaintenanceTask) -> &'static str {
    if label.running { "running" } else { "queued" }
}

fn age_ns(label: &v1::MaintenanceTask) -> Option<u64> {
    let age = now_ns().saturating_sub(label.at).unsigned_abs();
    (label.at != 0).then_some(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_of_offline_node_ends_when_files_are_elsewhere() {
        let mut drain = v1::Drain {
            node: 3,
            files_moved: 4,
            removals: 4,
            ..v1::Drain::default()
        };
        assert!(!DrainView(drain).is_empty());
        drain.offline = true;
        assert!(DrainView(drain).is_empty());
        let mut text = Vec::new();
        DrainView(drain).text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("offline") && text.contains("node remove 3"),
            "{text}"
        );
        drain.files_left = 1;
        assert!(!DrainView(drain).is_empty());
    }
}
