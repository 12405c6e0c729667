//! Availability of files.

use super::View;
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_core::display::{escaped, line};
use tidemill_wire::{condition, v1};

/// Output of `tidemill cluster health`.
#[derive(Debug)]
pub(crate) struct HealthView {
    pub(crate) health: v1::HealthReply,
    /// Nodes of the cluster.
    pub(crate) nodes: Vec<v1::Node>,
    /// States that an administrator must act on, the worst first.
    pub(crate) conditions: Vec<v1::Condition>,
}

impl HealthView {
    /// Returns the exit code: 0 if there is no fault, 3 if nodes or replicas are missing, 4 if files are not available.
    pub(crate) fn exit(&self) -> u8 {
        match self.word() {
            "well" => 0,
            "lost" | "unavailable" => 4,
            _ => 3,
        }
    }

    /// Returns the health of the cluster in one word for programs.
    pub(super) fn word(&self) -> &'static str {
        let health = &self.health;
        let worst = self.conditions.iter().map(|one| one.exit).max();
        let only_replicas = self
            .conditions
            .iter()
            .all(|one| one.exit == 0 || is_repairing(one));
        let is_lost = self
            .conditions
            .iter()
            .any(|one| one.name == condition::DATA_LOST.name);
        if health.lost + health.all_corrupt > 0 || is_lost {
            "lost"
        } else if health.unavailable > 0 || worst >= Some(4) {
            "unavailable"
        } else if !health.failed_nodes.is_empty() || self.has_no_space() || !only_replicas {
            "degraded"
        } else if health.short + health.corrupt + health.repairing > 0 {
            "repairing"
        } else {
            "well"
        }
    }

    /// Returns the nodes that report a fault.
    fn troubled(&self) -> impl Iterator<Item = &v1::Node> {
        let nodes = self.nodes.iter();
        nodes.filter(|one| one.up && !one.trouble.is_empty())
    }

    /// Returns whether replicas are missing and none of them can be made.
    fn has_no_space(&self) -> bool {
        let health = &self.health;
        health.short > 0 && health.resting >= health.short && health.repairing == 0
    }

    /// Returns the time until the missing replicas are made, in nanoseconds; `None` if it is not known.
    fn left_ns(&self) -> Option<u64> {
        let health = &self.health;
        if self.has_no_space() {
            return None;
        }
        let links = self.nodes.iter().filter(|one| one.up);
        let slowest = links.map(|one| one.link_bytes_per_sec).min();
        let rate = match health.bytes_per_sec {
            0 => slowest?,
            rate => rate,
        };
        let ns = u128::from(health.bytes_left) * 1_000_000_000 / u128::from(rate.max(1));
        Some(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    fn repairing_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let health = &self.health;
        if health.short + health.corrupt + health.repairing == 0 {
            return Ok(());
        }
        writeln!(
            out,
            "short     {} with fewer replicas than wanted",
            format::count(health.short, "file")
        )?;
        if self.has_no_space() {
            return writeln!(
                out,
                "no space  {} can't be made: the other nodes that are up have no space; add one, or remove files",
                format::bytes(health.bytes_left)
            );
        }
        let left = match self.left_ns() {
            Some(left) => format!(", about {}", format::span(left)),
            None => String::new(),
        };
        writeln!(
            out,
            "repairing {} at this moment; {} left{left}",
            match health.repairing {
                1 => "1 replica is made".to_owned(),
                count => format!("{count} replicas are made"),
            },
            format::bytes(health.bytes_left),
        )
    }

    fn scrubs_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let stores = self.nodes.iter().filter(|one| one.role == "store");
        for node in stores.map(|one| one.node) {
            let of = |one: &&v1::NodeScrub| one.node == node;
            let scrubs = self.health.scrubs.iter().filter(of);
            let last = scrubs
                .clone()
                .filter(|one| one.ended > 0 && one.objects + one.corrupt > 0)
                .max_by_key(|one| one.ended);
            write!(out, "scrub     node {node}: ")?;
            match last {
                Some(last) => write!(
                    out,
                    "all read until {} UTC ({}, {} corrupt)",
                    format::time(last.ended),
                    format::bytes(last.bytes),
                    last.corrupt
                )?,
                None => write!(out, "never read as a whole")?,
            }
            for now in scrubs.filter(|one| one.ended == 0) {
                let percent = now.done_milli / 10;
                let idle = if now.idle { " when it is idle" } else { "" };
                write!(out, "; reads again{idle}, {percent}%")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

impl View for HealthView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let health = &self.health;
        let printed = match self.word() {
            "well" => "all files have as many replicas as wanted",
            "repairing" => "all files are available; missing replicas are being made",
            "degraded" if self.has_no_space() => {
                "degraded: all files are available, but replicas are missing and there is no space to make them"
            }
            "degraded" if health.short > 0 => {
                "degraded: all files are available, and missing replicas are being made; something needs an administrator"
            }
            "degraded" => "degraded: all files are available, but something needs an administrator",
            "unavailable" => "some files are unavailable until their nodes answer",
            _ => "some files are lost: no intact replica remains",
        };
        writeln!(out, "health    {printed}")?;
        conditions_text(&self.conditions, out)?;
        if health.lost > 0 {
            let files = format::count(health.lost, "file");
            writeln!(out, "lost      {files} that only removed nodes had")?;
        }
        if health.unavailable > 0 {
            let files = format::count(health.unavailable, "file");
            writeln!(out, "unavailable {files} that no online node has")?;
        }
        if health.corrupt > 0 {
            let replicas = format::count(health.corrupt, "corrupt file");
            writeln!(
                out,
                "corrupt   {replicas}, {} of which there is no other replica",
                health.all_corrupt
            )?;
        }
        if health.all_corrupt > 0 {
            writeln!(
                out,
                "          `tidemill get --corrupt PATH LOCAL` gets such bytes as they are; a new version, or `tidemill rm`, resolves the fault"
            )?;
        }
        self.repairing_text(out)?;
        for one in &health.ailing {
            ailing_text(one, out)?;
        }
        self.scrubs_text(out)
    }

    fn json(&self) -> Value {
        let health = &self.health;
        json!({
            "health": self.word(),
            "states": conditions_json(&self.conditions),
            "resting": health.resting,
            "short": health.short,
            "lost": health.lost,
            "unavailable": health.unavailable,
            "corrupt": health.corrupt,
            "all_corrupt": health.all_corrupt,
            "repairing": health.repairing,
            "bytes_left": health.bytes_left,
            "left_ns": self.left_ns(),
            "failed_nodes": health.failed_nodes,
            "troubled": self.troubled().map(troubled_json).collect::<Vec<_>>(),
            "scrubs": health.scrubs.iter().map(scrub_json).collect::<Vec<_>>(),
            "files": health.ailing.iter().map(ailing_json).collect::<Vec<_>>(),
        })
    }
}

/// Returns whether a state ends by itself when replicas have been made.
fn is_repairing(one: &v1::Condition) -> bool {
    let kinds = [condition::REPLICAS_MISSING, condition::FILES_CORRUPT];
    kinds.iter().any(|kind| kind.name == one.name)
}

/// Writes one line for each state: its name, node, cause and remedy.
pub(super) fn conditions_text(conditions: &[v1::Condition], out: &mut dyn Write) -> io::Result<()> {
    for one in conditions {
        let node = one.node.map(|node| format!("node {node}: "));
        let (node, cause) = (node.unwrap_or_default(), line(&one.cause));
        writeln!(out, "state     {}: {node}{cause}; {}", one.name, one.remedy)?;
    }
    Ok(())
}

/// Returns the states for programs.
pub(super) fn conditions_json(conditions: &[v1::Condition]) -> Vec<Value> {
    let state = |one: &v1::Condition| {
        json!({
            "name": one.name,
            "node": one.node,
            "cause": one.cause,
            "remedy": one.remedy,
            "exit": one.exit,
        })
    };
    conditions.iter().map(state).collect()
}

fn troubled_json(one: &v1::Node) -> Value {
    json!({ "node": one.node, "trouble": one.trouble })
}

/// Writes one file with a fault.
pub(super) fn ailing_text(one: &v1::Ailing, out: &mut dyn Write) -> io::Result<()> {
    let nodes: Vec<String> = one.nodes.iter().map(ToString::to_string).collect();
    writeln!(
        out,
        "{:<9} {}, node {}: {}{}",
        one.kind,
        line(&String::from_utf8_lossy(&one.path)),
        nodes.join(", "),
        line(&one.what),
        if one.repairing {
            " (being recreated)"
        } else {
            ""
        }
    )
}

pub(super) fn ailing_json(one: &v1::Ailing) -> Value {
    json!({
        "kind": one.kind,
        "path": escaped(&one.path),
        "object": format!("{:016x}", one.object),
        "bytes": one.size,
        "nodes": one.nodes,
        "what": one.what,
        "repairing": one.repairing,
    })
}

pub(super) fn scrub_json(one: &v1::NodeScrub) -> Value {
    json!({
        "node": one.node,
        "begun": one.begun,
        "ended": one.ended,
        "objects": one.objects,
        "bytes": one.bytes,
        "corrupt": one.corrupt,
        "idle": one.idle,
        "done_milli": one.done_milli,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(health: v1::HealthReply) -> (u8, &'static str, String) {
        let nodes = vec![v1::Node {
            up: true,
            link_bytes_per_sec: 1,
            ..v1::Node::default()
        }];
        let view = HealthView {
            health,
            nodes,
            conditions: Vec::new(),
        };
        let mut text = Vec::new();
        view.text(&mut text).unwrap();
        (view.exit(), view.word(), String::from_utf8(text).unwrap())
    }

    #[test]
    fn missing_node_degrades_health() {
        let (exit, word, text) = printed(v1::HealthReply {
            failed_nodes: vec![3],
            ..v1::HealthReply::default()
        });
        assert_eq!((exit, word), (3, "degraded"), "{text}");
        assert!(text.contains("degraded"), "{text}");
        let (exit, word, _) = printed(v1::HealthReply::default());
        assert_eq!((exit, word), (0, "well"));
        let (exit, word, _) = printed(v1::HealthReply {
            unavailable: 1,
            failed_nodes: vec![3],
            ..v1::HealthReply::default()
        });
        assert_eq!((exit, word), (4, "unavailable"));
    }

    #[test]
    fn health_shows_trouble_of_a_node() {
        let view = HealthView {
            health: v1::HealthReply::default(),
            nodes: vec![v1::Node {
                node: 2,
                up: true,
                trouble: "its clock is wrong".into(),
                ..v1::Node::default()
            }],
            conditions: vec![condition::NODE_CLOCK.of(Some(2), "its clock is wrong")],
        };
        let mut text = Vec::new();
        view.text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("node-clock: node 2: its clock"), "{text}");
        assert_eq!(view.json()["troubled"][0]["node"], 2);
        assert_eq!(view.json()["states"][0]["name"], "node-clock");
        assert_eq!((view.exit(), view.word()), (3, "degraded"));
    }

    #[test]
    fn worst_state_decides_the_exit_code() {
        let states = |kinds: &[condition::ConditionKind]| {
            let conditions = kinds.iter().map(|kind| kind.of(None, "cause")).collect();
            let view = HealthView {
                health: v1::HealthReply::default(),
                nodes: Vec::new(),
                conditions,
            };
            (view.exit(), view.word())
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
        let (exit, word, text) = printed(health.clone());
        assert_eq!((exit, word), (3, "repairing"));
        assert!(text.contains("about"), "{text}");
        health.resting = 2;
        let (exit, word, text) = printed(health);
        assert_eq!((exit, word), (3, "degraded"));
        assert!(
            text.contains("no space") && !text.contains("about"),
            "{text}"
        );
    }
}
