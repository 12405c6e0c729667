//! State of the whole cluster: its nodes, its server, its running jobs.

use super::health::{HealthView, conditions_json, conditions_text};
use super::{View, energy, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_core::score::{energy_class, speed_class};
use tidemill_wire::convert::state_name;
use tidemill_wire::v1;

/// Output of `tidemill status`.
#[derive(Debug)]
pub(crate) struct ClusterView {
    /// Address at which the server was reached.
    pub(crate) endpoint: String,
    /// Reply of the server.
    pub(crate) status: v1::StatusReply,
    /// Jobs that have not ended.
    pub(crate) running: Vec<v1::Job>,
}

impl View for ClusterView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let status = &self.status;
        writeln!(
            out,
            "server    {}, since {} UTC",
            self.endpoint,
            format::time(status.started)
        )?;
        writeln!(
            out,
            "policies  {} (default {})",
            status.policies.join(", "),
            status.default_policy
        )?;
        conditions_text(&status.conditions, out)?;
        let up = status.nodes.iter().filter(|node| node.up).count();
        let is_suspended = |node: &&v1::Node| node.suspension.as_ref().is_some_and(|s| s.suspended);
        let suspended = match status.nodes.iter().filter(is_suspended).count() {
            0 => String::new(),
            count => format!(", {count} suspended"),
        };
        writeln!(
            out,
            "nodes     {up} of {} up{}, {} free of {}\n",
            status.nodes.len(),
            suspended,
            format::bytes(status.free_bytes),
            format::bytes(status.capacity_bytes)
        )?;
        self.nodes_text(out)?;
        self.suspension_text(out)?;
        self.staged_text(out)?;
        for hook in &status.hooks_behind {
            let files = format::count(hook.files, "file");
            let bytes = format::bytes(hook.bytes);
            let name = tidemill_core::display::line(&hook.name);
            writeln!(
                out,
                "\nhook      {name} lags behind: {files}, {bytes} closed and not mapped yet; files are mapped after they are closed"
            )?;
        }
        if status.maps_held > 0 {
            let files = format::count(status.maps_held, "file");
            let share = status.burst_share;
            writeln!(
                out,
                "\nhooks     {files} mapped when the burst is over, or in a moment (--burst-share {share})"
            )?;
        }
        self.energy_text(out)?;
        self.mounts_text(out)?;
        if status.overflowed > 0 {
            let overflowed = format::count(status.overflowed, "file");
            writeln!(
                out,
                "\nmemory    {overflowed} found no space in memory and are on disks, since the server started"
            )?;
        }
        self.unsealed_text(out)?;
        self.replicas_text(out)?;
        if self.running.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        super::job::jobs_text(&self.running, out)
    }

    fn json(&self) -> Value {
        let status = &self.status;
        json!({
            "endpoint": self.endpoint,
            "protocol": status.version,
            "cluster": format!("{:016x}", status.cluster_id),
            "started": status.started,
            "default_policy": status.default_policy,
            "policies": status.policies,
            "trouble": status.trouble,
            "capacity_bytes": status.capacity_bytes,
            "free_bytes": status.free_bytes,
            "nodes": status.nodes.iter().map(node_json).collect::<Vec<_>>(),
            "mounts": status.mounts.iter().map(mount_json).collect::<Vec<_>>(),
            "health": health_word(status),
            "states": conditions_json(&status.conditions),
            "replicas": replicas_json(status.replicas.as_ref()),
            "overflowed": status.overflowed,
            "hooks_behind": status.hooks_behind.iter().map(|hook| json!({
                "name": hook.name, "uid": hook.uid, "files": hook.files, "bytes": hook.bytes,
            })).collect::<Vec<_>>(),
            "maps_held": status.maps_held,
            "burst_share": status.burst_share,
            "unsealed": status.unsealed.iter().map(unsealed_json).collect::<Vec<_>>(),
            "running_jobs": self.running.iter().map(super::job::job_json).collect::<Vec<_>>(),
        })
    }
}

impl ClusterView {
    pub(super) fn nodes_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "NODE",
            "ROLE",
            "STATE",
            "CORES",
            "MEMORY",
            "RESOURCES",
            "RUNNING",
            "QUEUED",
            "FREE",
            "CAPACITY",
            "WRITTEN",
            "URL",
        ];
        let mut rows = table(&header, &[0, 3, 4, 6, 7, 8, 9, 10]);
        for node in &self.status.nodes {
            rows.add_row([
                node.node.to_string(),
                role_of(node),
                state_of(node),
                node.cores.to_string(),
                match node.memory_bytes {
                    0 => "-".into(),
                    bytes => format::bytes(bytes),
                },
                resources(node),
                node.running.to_string(),
                node.queued.to_string(),
                format::bytes(node.free_bytes),
                format::bytes(node.capacity_bytes),
                format::bytes(node.bytes_written),
                node.url.clone(),
            ]);
        }
        write_table(out, &rows)?;
        if self.status.nodes.is_empty() {
            writeln!(out, "(none; start one with `tidemill node run`)")?;
        }
        Ok(())
    }

    fn staged_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for node in &self.status.nodes {
            if let Some(backend) = &node.backend {
                let (id, uri) = (node.node, tidemill_core::display::line(&backend.uri));
                let (files, bytes) = (backend.files, format::bytes(backend.bytes));
                let files = format::count(files, "object");
                write!(out, "node {id}: {bytes} in {files} in {uri}")?;
                if !backend.packing.is_empty() && backend.sent != backend.bytes {
                    write!(out, ", where they take {}", format::bytes(backend.sent))?;
                }
                match backend.waiting {
                    0 => writeln!(out)?,
                    waiting => writeln!(
                        out,
                        "; {} not stored there yet",
                        format::count(waiting, "object")
                    )?,
                }
            }
            if let Some(burst_files) = &node.burst_files {
                let (id, bytes) = (node.node, format::bytes(burst_files.bytes));
                let left = format::bytes(burst_files.bytes_left);
                writeln!(
                    out,
                    "node {id} holds {bytes} on their way, {left} of it not stored yet"
                )?;
                if burst_files.reserved_bytes > 0 {
                    let reserved = format::bytes(burst_files.reserved_bytes);
                    let left = format::bytes(burst_files.reserved_left);
                    writeln!(
                        out,
                        "{reserved} of node {id} are reserved, {left} of them not used yet; see `tidemill stage reservations`"
                    )?;
                }
            }
        }
        Ok(())
    }

    fn energy_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for node in &self.status.nodes {
            if let Some(drawn) = &node.drawn {
                let (id, joules) = (node.node, energy::joules(drawn.microjoules));
                let span = format::span(drawn.counted_ns);
                let by = &drawn.by;
                writeln!(out, "\nnode {id} has drawn {joules:.0} J in {span}, {by}")?;
            }
        }
        Ok(())
    }

    fn suspension_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for node in &self.status.nodes {
            let Some(suspension) = &node.suspension else {
                continue;
            };
            let id = node.node;
            // The trouble of a node that does not resume is a state, and is shown with the states.
            if node.up && !suspension.trouble.is_empty() {
                writeln!(out, "\nnode {id}: {}", suspension.trouble)?;
            }
            if suspension.suspended && suspension.resumes > 0 {
                let span = format::span(suspension.resume_ns);
                writeln!(out, "\nnode {id} is suspended; it takes {span} to resume")?;
            }
        }
        Ok(())
    }

    fn mounts_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (index, mount) in self.status.mounts.iter().enumerate() {
            if index == 0 {
                writeln!(out)?;
            }
            writeln!(
                out,
                "mounted   {} on {}, since {} UTC",
                mount.path,
                mount.host,
                format::time(mount.since)
            )?;
        }
        Ok(())
    }

    fn replicas_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(replicas) = &self.status.replicas else {
            return Ok(());
        };
        let failed = replicas.failed_nodes.len() as u64;
        let printed = [
            (replicas.unavailable, "file", "unavailable or lost"),
            (replicas.corrupt, "corrupt replica", ""),
            (replicas.short, "file", "with fewer replicas than wanted"),
            (failed, "node", "declared failed"),
        ];
        let printed = printed.into_iter().filter(|(count, ..)| *count > 0);
        let printed = printed.map(|(count, noun, what)| {
            let counted = match (noun, count) {
                ("corrupt replica", 2..) => format!("{count} corrupt replicas"),
                _ => format::count(count, noun),
            };
            format!("{counted} {what}").trim_end().to_owned()
        });
        let printed: Vec<String> = printed.collect();
        if !printed.is_empty() {
            writeln!(
                out,
                "\nhealth    {}: {}: see `tidemill cluster health`",
                health_word(&self.status),
                printed.join(", ")
            )?;
        }
        Ok(())
    }

    fn unsealed_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (index, unsealed) in self.status.unsealed.iter().enumerate() {
            if index == 0 {
                writeln!(out)?;
            }
            writeln!(
                out,
                "unsealed  {} on node {}, the oldest since {} UTC: {}",
                format::count(unsealed.versions, "version"),
                unsealed.node,
                format::time(unsealed.oldest),
                unsealed.why
            )?;
        }
        Ok(())
    }
}

pub(super) fn state_of(node: &v1::Node) -> String {
    let suspension = node.suspension.as_ref();
    let resuming = suspension.is_some_and(|suspension| suspension.resuming);
    let suspended = suspension.is_some_and(|suspension| suspension.suspended);
    let state = match (node.up, suspended, resuming) {
        (true, ..) => "up",
        (_, true, true) => "resuming",
        (_, true, false) => "suspended",
        _ => "down",
    };
    match node.emptied {
        true => format!("{state}, emptied"),
        false => state.into(),
    }
}

/// Returns the energy of a node and the method that determined it; null if it is not known.
fn energy_json(node: &v1::Node) -> Value {
    let Some(drawn) = &node.drawn else {
        return Value::Null;
    };
    json!({
        "joules": energy::joules(drawn.microjoules),
        "counted_ns": drawn.counted_ns,
        "by": drawn.by,
    })
}

fn suspension_json(node: &v1::Node) -> Value {
    let suspension = node.suspension.clone().unwrap_or_default();
    json!({
        "suspended": suspension.suspended,
        "resuming": suspension.resuming,
        "since": suspension.since,
        "resumes": suspension.resumes,
        "resume_ns": suspension.resume_ns,
        "trouble": suspension.trouble,
        "needed": suspension.needed,
    })
}

/// Returns the named resources in the form of flags.
pub(super) fn resources(node: &v1::Node) -> String {
    let named = node.resources.iter();
    let named: Vec<String> = named
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect();
    named.join(",")
}

fn mount_json(mount: &v1::Mount) -> Value {
    json!({
        "session": mount.session,
        "host": mount.host,
        "path": mount.path,
        "since": mount.since,
    })
}

/// Returns the health of the cluster in one word, like `tidemill cluster health`.
fn health_word(status: &v1::StatusReply) -> &'static str {
    let replicas = status.replicas.clone().unwrap_or_default();
    let view = HealthView {
        health: v1::HealthReply {
            unavailable: replicas.unavailable,
            short: replicas.short,
            corrupt: replicas.corrupt,
            failed_nodes: replicas.failed_nodes,
            ..v1::HealthReply::default()
        },
        nodes: Vec::new(),
        conditions: status.conditions.clone(),
    };
    view.word()
}

fn replicas_json(replicas: Option<&v1::ReplicaHealth>) -> Value {
    let replicas = replicas.cloned().unwrap_or_default();
    let paths = replicas.unavailable_paths.iter();
    json!({
        "short": replicas.short,
        "unavailable": replicas.unavailable,
        "unavailable_paths": paths.map(|path| tidemill_core::display::escaped(path)).collect::<Vec<_>>(),
        "failed_nodes": replicas.failed_nodes,
        "corrupt": replicas.corrupt,
    })
}

fn unsealed_json(unsealed: &v1::Unsealed) -> Value {
    json!({
        "node": unsealed.node,
        "session": unsealed.session,
        "versions": unsealed.versions,
        "oldest": unsealed.oldest,
        "ended": unsealed.ended,
        "why": unsealed.why,
    })
}

/// Returns the role of a node, and the location of its files.
pub(super) fn role_of(node: &v1::Node) -> String {
    let backend = node.backend.as_ref().map(|_| "backend".to_owned());
    let more = [&node.tier];
    let more = more
        .into_iter()
        .chain(&backend)
        .filter(|word| !word.is_empty());
    let words: Vec<&str> = std::iter::once(&node.role)
        .chain(more)
        .map(String::as_str)
        .collect();
    words.join(", ")
}

fn burst_files_json(node: &v1::Node) -> Option<Value> {
    let burst_files = node.burst_files?;
    Some(json!({
        "objects": burst_files.objects,
        "bytes": burst_files.bytes,
        "staged_out": burst_files.staged_out,
        "bytes_left": burst_files.bytes_left,
        "reserved_bytes": burst_files.reserved_bytes,
        "reserved_left": burst_files.reserved_left,
        "oldest": (burst_files.oldest != 0).then_some(burst_files.oldest),
    }))
}

fn backend_json(node: &v1::Node) -> Option<Value> {
    let backend = node.backend.as_ref()?;
    Some(json!({
        "uri": backend.uri,
        "objects": backend.files,
        "bytes": backend.bytes,
        "waiting": backend.waiting,
        "sent": backend.sent,
        "format": backend.packing,
    }))
}

pub(super) fn node_json(node: &v1::Node) -> Value {
    let mut value = tidemill_node::status_json(node);
    let known_by_the_server = [
        ("tier", tier(node).into()),
        ("burst_files", burst_files_json(node).into()),
        ("backend", backend_json(node).into()),
        ("up", node.up.into()),
        ("emptied", node.emptied.into()),
        ("suspension", suspension_json(node)),
        ("energy", energy_json(node)),
        ("measured_milliwatts", measured(node)),
        ("idle_milliwatts", node.idle_milli.into()),
        ("suspended_milliwatts", node.suspended_milli.into()),
        ("host", node.host.clone().into()),
        ("directory", node.directory.clone().into()),
        ("speed_class", speed_class(node.device_bytes_per_sec).into()),
        ("energy_class", energy_class(node.watts_milli).into()),
        ("heard", node.heard.into()),
        ("trouble", node.trouble.clone().into()),
    ];
    for (name, known) in known_by_the_server {
        value[name] = known;
    }
    value
}

fn tier(node: &v1::Node) -> &str {
    match node.tier.as_str() {
        "" => "capacity",
        tier => tier,
    }
}

/// Returns the measured power, if the node has a meter.
fn measured(node: &v1::Node) -> Value {
    let has_meter = !node.measured_by.is_empty();
    has_meter.then_some(node.measured_milli).into()
}

/// Returns the name of a state from the network.
pub(crate) fn state(number: i32) -> &'static str {
    state_name(v1::State::try_from(number).unwrap_or(v1::State::Unspecified))
}
