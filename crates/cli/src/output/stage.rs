//! Files in the burst tier.

use super::View;
use crate::files::ClusterPath;
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Number and size of objects.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ObjectSum {
    /// Number of objects.
    pub(crate) objects: u64,
    /// Bytes of these objects.
    pub(crate) bytes: u64,
}

impl ObjectSum {
    /// Adds one object.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn text(self) -> String {
        let objects = format::count(self.objects, "object");
        format!("{objects} ({})", format::bytes(self.bytes))
    }

    fn json(self) -> Value {
        json!({ "objects": self.objects, "bytes": self.bytes })
    }
}

/// Locations of the files at or below a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Placed {
    /// Number of files.
    pub(crate) files: u64,
    /// Number of files without a sealed version.
    pub(crate) unsealed: u64,
    /// All objects.
    pub(crate) all: ObjectSum,
    /// Objects with a replica in the burst tier.
    pub(crate) in_tier: ObjectSum,
    /// Objects with replicas in the burst tier only.
    pub(crate) only_in_tier: ObjectSum,
}

/// Output of `tidemill stage status`.
#[derive(Debug)]
pub(crate) struct PlacedView {
    /// Path of a file or directory.
    pub(crate) path: ClusterPath,
    /// Locations of its files.
    pub(crate) placed: Placed,
}

impl View for PlacedView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let placed = &self.placed;
        write!(
            out,
            "{}: {}, {}; in the burst tier: {}, of which only there: {}",
            self.path,
            format::count(placed.files, "file"),
            placed.all.text(),
            placed.in_tier.text(),
            placed.only_in_tier.text()
        )?;
        if placed.unsealed > 0 {
            let files = format::count(placed.unsealed, "file");
            write!(out, "; {files} not closed yet")?;
        }
        writeln!(out)
    }

    fn json(&self) -> Value {
        json!({
            "path": self.path,
            "files": self.placed.files,
            "unsealed": self.placed.unsealed,
            "all": self.placed.all.json(),
            "in_tier": self.placed.in_tier.json(),
            "only_in_tier": self.placed.only_in_tier.json(),
        })
    }
}

/// Output of `tidemill stage out --dry-run`.
#[derive(Debug)]
pub(crate) struct StageOutPlan {
    /// Path of a file or directory.
    pub(crate) path: ClusterPath,
    /// Locations of its files.
    pub(crate) placed: Placed,
    /// Whether the objects would be evicted.
    pub(crate) evict: bool,
}

impl StageOutPlan {
    /// Returns the objects that would be evicted.
    fn evicted(&self) -> ObjectSum {
        match self.evict {
            true => self.placed.in_tier,
            false => ObjectSum::default(),
        }
    }
}

impl View for StageOutPlan {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let copied = self.placed.only_in_tier.text();
        write!(out, "{}: would copy {copied}", self.path)?;
        if self.evict {
            write!(out, " and evict {}", self.evicted().text())?;
        }
        writeln!(out)
    }

    fn json(&self) -> Value {
        json!({
            "path": self.path,
            "dry_run": true,
            "copied": self.placed.only_in_tier.json(),
            "evicted": self.evicted().json(),
        })
    }
}
