//! Whether files can be had.

use super::View;
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_core::shown::line;
use tidemill_wire::v1;

/// What `tidemill health` shows.
#[derive(Debug)]
pub(crate) struct HealthView {
    pub(crate) health: v1::HealthReply,
    /// The array's.
    pub(crate) elements: Vec<v1::Element>,
}

impl HealthView {
    /// 0: all is well; 1: it is being mended; 2: something can't be had.
    pub(crate) fn exit(&self) -> u8 {
        let health = &self.health;
        if health.lost + health.hopeless > 0 {
            2
        } else {
            u8::from(health.short + health.damaged + health.mending > 0)
        }
    }

    /// Time that making the missing copies will take, in nanoseconds; `None` if that can't be told.
    fn left_ns(&self) -> Option<u64> {
        let health = &self.health;
        let links = self.elements.iter().filter(|one| one.up);
        let slowest = links.map(|one| one.link_bytes_per_sec).min();
        let rate = match health.bytes_per_sec {
            0 => slowest?,
            rate => rate,
        };
        let ns = u128::from(health.bytes_left) * 1_000_000_000 / u128::from(rate.max(1));
        Some(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    fn mending_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let health = &self.health;
        if health.short + health.damaged + health.mending == 0 {
            return Ok(());
        }
        writeln!(
            out,
            "short     {} with fewer copies than wanted",
            format::count(health.short, "file")
        )?;
        let left = match self.left_ns() {
            Some(left) => format!(", about {}", format::span(left)),
            None => String::new(),
        };
        writeln!(
            out,
            "mending   {} at this moment; {} left{left}",
            match health.mending {
                1 => "1 copy is made".to_owned(),
                count => format!("{count} copies are made"),
            },
            format::bytes(health.bytes_left),
        )
    }

    fn scrubs_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let stores = self.elements.iter().filter(|one| one.role == "store");
        for element in stores.map(|one| one.element) {
            let of = |one: &&v1::ElementScrub| one.element == element;
            let scrubs = self.health.scrubs.iter().filter(of);
            let last = scrubs
                .clone()
                .filter(|one| one.ended > 0 && one.objects + one.damaged > 0)
                .max_by_key(|one| one.ended);
            write!(out, "scrub     element {element}: ")?;
            match last {
                Some(last) => write!(
                    out,
                    "all read until {} UTC ({}, {} damaged)",
                    format::time(last.ended),
                    format::bytes(last.bytes),
                    last.damaged
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
        let said = match self.exit() {
            0 => "all files have as many copies as wanted",
            1 => "all files can be had; what is missing is being made",
            _ => "some files can't be had",
        };
        writeln!(out, "health    {said}")?;
        for element in &health.lost_elements {
            writeln!(
                out,
                "lost      element {element} has been away for too long: start it, or leave it; what else has copies of is made again"
            )?;
        }
        if health.lost > 0 {
            let files = format::count(health.lost, "file");
            writeln!(
                out,
                "lost      {files} until an element is back that has them"
            )?;
        }
        if health.damaged > 0 {
            let copies = format::count(health.damaged, "damaged file");
            writeln!(
                out,
                "damaged   {copies}, {} of which there is no other copy",
                health.hopeless
            )?;
        }
        if health.hopeless > 0 {
            writeln!(
                out,
                "          `tidemill get --damaged PATH LOCAL` gets such bytes as they are; a new version, or `tidemill rm`, settles it"
            )?;
        }
        self.mending_text(out)?;
        for one in &health.ailing {
            ailing_text(one, out)?;
        }
        self.scrubs_text(out)
    }

    fn json(&self) -> Value {
        let health = &self.health;
        json!({
            "health": match self.exit() {
                0 => "well",
                1 => "mending",
                _ => "lost",
            },
            "short": health.short,
            "lost": health.lost,
            "damaged": health.damaged,
            "hopeless": health.hopeless,
            "mending": health.mending,
            "bytes_left": health.bytes_left,
            "left_ns": self.left_ns(),
            "lost_elements": health.lost_elements,
            "scrubs": health.scrubs.iter().map(scrub_json).collect::<Vec<_>>(),
            "files": health.ailing.iter().map(ailing_json).collect::<Vec<_>>(),
        })
    }
}

/// One file that is not well.
pub(super) fn ailing_text(one: &v1::Ailing, out: &mut dyn Write) -> io::Result<()> {
    let elements: Vec<String> = one.elements.iter().map(ToString::to_string).collect();
    writeln!(
        out,
        "{:<9} {}, element {}: {}{}",
        one.kind,
        line(&String::from_utf8_lossy(&one.path)),
        elements.join(", "),
        line(&one.what),
        if one.mending {
            " (being made anew)"
        } else {
            ""
        }
    )
}

pub(super) fn ailing_json(one: &v1::Ailing) -> Value {
    json!({
        "kind": one.kind,
        "path": String::from_utf8_lossy(&one.path),
        "object": format!("{:016x}", one.object),
        "bytes": one.size,
        "elements": one.elements,
        "what": one.what,
        "mending": one.mending,
    })
}

pub(super) fn scrub_json(one: &v1::ElementScrub) -> Value {
    json!({
        "element": one.element,
        "begun": one.begun,
        "ended": one.ended,
        "objects": one.objects,
        "bytes": one.bytes,
        "damaged": one.damaged,
        "idle": one.idle,
        "done_milli": one.done_milli,
    })
}
