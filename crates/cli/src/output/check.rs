//! Results of a check of the cluster.

use super::table::Text;
use super::{Report, records};
use crate::files::ClusterPath;
use crate::format::{self, Bytes};
use tidemill_wire::v1;

records! {
    /// Fault that a check found.
    Finding from of: v1::Finding {
        kind: String, node: u32,
        /// Id of the object; 0 if the fault has no object.
        object: u64,
        bytes: Bytes = Bytes(of.size),
        path: ClusterPath,
        /// Description of the fault.
        text: String,
        repaired: bool,
    }
}

impl Report for Finding {
    fn text(&self, out: &mut Text) {
        write!(out, "{:<9} node {}", self.kind, self.node);
        if self.object != 0 {
            write!(out, ", object {:016x}, {}", self.object, self.bytes);
        }
        if self.path != ClusterPath::default() {
            write!(out, ", {}", self.path);
        }
        let repaired = if self.repaired { " (repaired)" } else { "" };
        writeln!(out, ": {}{repaired}", self.text);
    }
}

records! {
    /// Summary of a check: the last line of its output.
    Checked new(checked: &v1::Checked, findings: u64) {
        /// Always `checked`.
        kind: &'static str = "checked",
        objects: u64 = checked.objects, nodes: u32 = checked.nodes, files: u64 = checked.files,
        /// Number of faults.
        findings: u64,
    }
}

impl Report for Checked {
    fn text(&self, out: &mut Text) {
        let result = match self.findings {
            0 => "all is well".to_owned(),
            some => format::count(some, "finding"),
        };
        writeln!(
            out,
            "{} on {} and {} checked: {result}",
            format::count(self.objects, "object"),
            format::count(self.nodes, "node"),
            format::count(self.files, "file"),
        );
    }
}
