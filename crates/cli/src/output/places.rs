//! Places of files: nodes that are drained, files that migrate, and the work that moves them.

use super::table::{Text, columns};
use super::{Report, dash, list, records};
use crate::files::ClusterPath;
use crate::format::{self, Bytes, Span, Time};
use tidemill_wire::v1;

records! {
    /// Progress of the drain of a node.
    Drain from of: v1::Drain {
        node: u32, began: Time,
        /// Whether the node can be removed.
        empty: bool = is_empty(of),
        offline: bool,
        /// Whether the server still searches for files of the node.
        listing: bool,
        files_moved: u64, bytes_moved: Bytes, files_left: u64, bytes_left: Bytes,
        /// Number of files that no other node can take now.
        files_waiting: u64,
        /// Number of moved files that are still to be removed from the node.
        removals: u64,
        /// Number of files that are being written on the node.
        writing: u64,
        /// Number of tasks that still run on the node.
        tasks: u64 = of.labels,
        /// Estimated remaining time; null if it is not known.
        left_ns: Option<Span> = left_ns(of),
    }
}

/// Returns whether no file is left on the node.
fn is_empty(drain: &v1::Drain) -> bool {
    // An offline node removes no file and completes no label, and does not need to before it is removed.
    let there = match drain.offline {
        true => 0,
        false => drain.removals + drain.labels,
    };
    !drain.listing && drain.files_left + drain.writing + there == 0
}

/// Returns the remaining time at the rate so far, if it is known.
fn left_ns(drain: &v1::Drain) -> Option<Span> {
    let taken = u128::from(format::now().0.saturating_sub(drain.began).unsigned_abs());
    let (moved, left) = match drain.bytes_moved {
        0 => (drain.files_moved, drain.files_left),
        bytes => (bytes, drain.bytes_left),
    };
    if moved == 0 || drain.listing {
        return None;
    }
    u64::try_from(taken * u128::from(left) / u128::from(moved))
        .ok()
        .map(Span)
}

impl Report for Drain {
    fn text(&self, out: &mut Text) {
        let (node, moved) = (self.node, format::count(self.files_moved, "file"));
        if self.empty {
            let state = match self.offline {
                true => "offline, and all files that it had are elsewhere",
                false => "empty",
            };
            return writeln!(
                out,
                "node {node} is {state}: {moved} moved ({}); remove it with `tidemill node remove {node}`",
                self.bytes_moved
            );
        }
        write!(
            out,
            "node {node} is being drained: {moved} moved ({}), {} left ({})",
            self.bytes_moved, self.files_left, self.bytes_left
        );
        if self.listing {
            write!(out, ", and the search for more files continues");
        }
        for (count, noun, what) in [
            (
                self.files_waiting,
                "file",
                "that can't move now: the other nodes are full, offline, or have them",
            ),
            (
                self.removals,
                "file",
                "still to be removed there, some of which may be read",
            ),
            (self.writing, "file", "being written there"),
            (self.tasks, "task", "still to end there"),
        ] {
            if count > 0 {
                write!(out, ", {} {what}", format::count(count, noun));
            }
        }
        match self.left_ns {
            Some(left) if self.files_left > 0 => writeln!(out, "; about {left} left"),
            _ => writeln!(out),
        }
    }
}

records! {
    /// Migration of the files at or below a path.
    Migration new(path: ClusterPath, targets: &[u32], moved: &v1::MoveReply, dry_run: bool) {
        path: ClusterPath,
        /// The only target node; null if there are several.
        node: Option<u32> = (targets.len() == 1).then(|| targets[0]),
        /// Target nodes; empty if the migration was cancelled.
        nodes: Vec<u32> = targets.to_vec(),
        /// Number of files that migrate, and their bytes.
        files: u64 = moved.files,
        bytes: Bytes = Bytes(moved.bytes),
        /// Number of files that are already on a target node.
        already_placed: u64 = moved.there,
        /// Number of skipped files, which are still being written.
        unsealed: u64 = moved.unsealed,
        /// Whether nothing was requested of the server.
        dry_run: bool,
    }
}

impl Report for Migration {
    fn text(&self, out: &mut Text) {
        let (path, files, bytes) = (&self.path, format::count(self.files, "file"), self.bytes);
        let nodes = match self.nodes.as_slice() {
            [] => return writeln!(out, "{path}: {files} ({bytes}) will not migrate"),
            [node] => format!("node {node}"),
            [others @ .., last] => format!("nodes {} and {last}", super::joined(others)),
        };
        let will = if self.dry_run { "would" } else { "will" };
        write!(out, "{path}: {files} ({bytes}) {will} migrate to {nodes}");
        for (count, what) in [
            (self.already_placed, "already on a target node"),
            (self.unsealed, "skipped: still being written"),
        ] {
            if count > 0 {
                write!(out, ", {} {what}", format::count(count, "file"));
            }
        }
        writeln!(out);
    }
}

records! {
    /// Files that move between nodes so that the nodes are equally full.
    Rebalance from of: v1::RebalanceReply {
        flows: Vec<Flow> = list(&of.flows),
        nodes: Vec<Fill> = list(&of.nodes),
    }

    /// Files that move from one node to another.
    Flow from of: v1::Flow { from: u32 = of.source, to: u32 = of.target, files: u64, bytes: Bytes }

    /// Space of a node.
    Fill from of: v1::Fill { node: u32, held_bytes: Bytes, free_bytes: Bytes }
}

columns! { fill: Fill {
    right "NODE" => fill.node,
    right "HOLDS" => fill.held_bytes,
    right "FREE" => fill.free_bytes,
} }

columns! { flow: Flow {
    right "FROM" => flow.from,
    right "TO" => flow.to,
    right "FILES" => flow.files,
    right "BYTES" => flow.bytes,
} }

impl Report for Rebalance {
    fn text(&self, out: &mut Text) {
        out.table(&self.nodes);
        if self.flows.is_empty() {
            return writeln!(out, "\nnothing has to move");
        }
        writeln!(out);
        out.table(&self.flows);
    }
}

records! {
    /// Maintenance of the cluster: work that belongs to no job.
    Maintenance from of: v1::MigrationsReply {
        labels: Vec<MaintenanceTask> = list(&of.labels),
        pending: Vec<PendingFiles> = list(&of.pending),
        drains: Vec<Drain> = list(&of.drains),
    }

    /// Unit of maintenance work on a node.
    MaintenanceTask from of: v1::MaintenanceTask {
        label: u64, node: u32,
        /// Kind of work, such as `copy`.
        kind: String,
        /// `running` or `queued`.
        state: &'static str = if of.running { "running" } else { "queued" },
        why: String,
        /// Time since the work was queued.
        age_ns: Option<Span> = (of.at != 0).then(|| Span(format::now().0.saturating_sub(of.at).unsigned_abs())),
        bytes: Bytes,
        /// Id of the first object, in 16 hexadecimal digits.
        object: String = format!("{:016x}", of.object),
        /// Number of objects.
        objects: u64,
        /// Node with the source of a copy.
        from: Option<u32> = (of.kind == "copy").then_some(of.from),
        path: ClusterPath,
    }

    /// Files that wait for maintenance.
    PendingFiles from of: v1::Pending { why: String, files: u64, bytes: Bytes }
}

columns! { one: MaintenanceTask {
    right "LABEL" => one.label,
    right "NODE" => one.node,
    left "KIND" => one.from.map_or_else(|| one.kind.clone(), |node| format!("copy of {node}")),
    left "STATE" => one.state,
    left "WHY" => one.why,
    left "AGE" => dash(&one.age_ns),
    right "BYTES" => one.bytes,
    left "OBJECT" => match one.objects {
        1 => one.object.clone(),
        more => format!("{} and {} more", one.object, more.saturating_sub(1)),
    },
    left "FILE" => one.path,
} }

impl Report for Maintenance {
    fn text(&self, out: &mut Text) {
        out.table(&self.labels);
        for pending in &self.pending {
            let files = format::count(pending.files, "file");
            let bytes = match pending.bytes {
                Bytes(0) => String::new(),
                bytes => format!(" ({bytes})"),
            };
            writeln!(out, "\n{files}{bytes} not done yet: {}", pending.why);
        }
        for drain in &self.drains {
            writeln!(out);
            drain.text(out);
        }
    }
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
        assert!(!Drain::from(&drain).empty);
        drain.offline = true;
        assert!(Drain::from(&drain).empty);
        let text = crate::output::text_of(&Drain::from(&drain));
        assert!(
            text.contains("offline") && text.contains("node remove 3"),
            "{text}"
        );
        drain.files_left = 1;
        assert!(!Drain::from(&drain).empty);
    }
}
