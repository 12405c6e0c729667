//! Results of a check of the cluster.

use super::View;
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_core::display::{escaped, line};
use tidemill_wire::v1;

/// One fault.
#[derive(Debug)]
pub(crate) struct FindingView(pub(crate) v1::Finding);

impl View for FindingView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let finding = &self.0;
        write!(out, "{:<9} node {}", finding.kind, finding.node)?;
        if finding.object != 0 {
            write!(out, ", object {:016x}", finding.object)?;
            write!(out, ", {}", format::bytes(finding.size))?;
        }
        if !finding.path.is_empty() {
            write!(out, ", {}", line(&String::from_utf8_lossy(&finding.path)))?;
        }
        let repaired = if finding.repaired { " (repaired)" } else { "" };
        writeln!(out, ": {}{repaired}", finding.text)
    }

    fn json(&self) -> Value {
        let finding = &self.0;
        json!({
            "kind": finding.kind,
            "node": finding.node,
            "object": finding.object,
            "bytes": finding.size,
            "path": escaped(&finding.path),
            "text": finding.text,
            "repaired": finding.repaired,
        })
    }
}

/// Number of checked objects.
#[derive(Debug)]
pub(crate) struct CheckedView {
    pub(crate) checked: v1::Checked,
    pub(crate) findings: u64,
}

impl View for CheckedView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let checked = &self.checked;
        writeln!(
            out,
            "{} on {} and {} checked: {}",
            format::count(checked.objects, "object"),
            format::count(checked.nodes, "node"),
            format::count(checked.files, "file"),
            match self.findings {
                0 => "all is well".to_owned(),
                some => format::count(some, "finding"),
            }
        )
    }

    fn json(&self) -> Value {
        json!({
            "kind": "checked",
            "objects": self.checked.objects,
            "nodes": self.checked.nodes,
            "files": self.checked.files,
            "findings": self.findings,
        })
    }
}
