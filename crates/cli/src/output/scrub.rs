//! Results of a scrub.

use super::View;
use super::health::{ailing_json, ailing_text, scrub_json};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_wire::v1;

/// Requested scrub.
#[derive(Debug)]
pub(crate) struct AskedView(pub(crate) v1::ScrubReply);

impl View for AskedView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let asked = &self.0;
        let what = match asked.objects {
            0 => "all their objects".to_owned(),
            some => format::count(some, "object"),
        };
        let count = asked.nodes.len() as u64;
        let nodes = format::count(count, "node");
        let reads = if count == 1 { "reads" } else { "read" };
        writeln!(out, "{nodes} {reads} {what}; see `tidemill cluster health`")?;
        offline_text(&asked.offline, out)
    }

    fn json(&self) -> Value {
        json!({
            "request": self.0.request,
            "nodes": self.0.nodes,
            "offline": self.0.offline,
            "objects": self.0.objects,
        })
    }
}

fn offline_text(offline: &[u32], out: &mut dyn Write) -> io::Result<()> {
    for node in offline {
        writeln!(out, "node {node} is offline: it reads when it is back")?;
    }
    Ok(())
}

/// Completed scrub.
#[derive(Debug)]
pub(crate) struct ScrubView {
    pub(crate) reply: v1::ScrubsReply,
    pub(crate) offline: Vec<u32>,
}

impl View for ScrubView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let sum = |of: fn(&v1::NodeScrub) -> u64| self.reply.scrubs.iter().map(of).sum::<u64>();
        writeln!(
            out,
            "{} read ({}): {}",
            format::count(sum(|one| one.objects), "object"),
            format::bytes(sum(|one| one.bytes)),
            match sum(|one| one.corrupt) {
                0 => "all match the sealed content".to_owned(),
                some => format!("{some} corrupt"),
            }
        )?;
        for one in &self.reply.corrupt {
            ailing_text(one, out)?;
        }
        offline_text(&self.offline, out)
    }

    fn json(&self) -> Value {
        let scrubs = self.reply.scrubs.iter().map(scrub_json);
        json!({
            "scrubs": scrubs.collect::<Vec<_>>(),
            "offline": self.offline,
            "corrupt": self.reply.corrupt.iter().map(ailing_json).collect::<Vec<_>>(),
        })
    }
}
