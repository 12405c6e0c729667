//! Metadata of files, and locations of their bytes.

use super::files::Metadata;
use super::table::{Text, columns};
use super::{Report, records};
use crate::files::ClusterPath;
use crate::format::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tidemill_client::users;
use tidemill_model::display::line;
use tidemill_wire::v1;

records! {
    /// Metadata of a path, and the layout of a file.
    Stat new(path: ClusterPath, entry: &v1::Entry, layout: Option<Layout>, nodes: &[v1::Node]) {
        path: ClusterPath,
        #[serde(flatten)]
        metadata: Metadata = entry.into(),
        #[serde(flatten)]
        layout: Option<Layout>,
        /// Hosts of nodes.
        #[serde(skip)]
        hosts: Vec<(u32, String)> = nodes.iter().map(|node| (node.node, node.host.clone())).collect(),
    }
}

/// Layout of a file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Layout {
    /// `whole`, `striped` or `extents`.
    layout: String,
    #[serde(skip_serializing)]
    version: u64,
    #[serde(skip_serializing)]
    size: u64,
    /// Wanted number of replicas.
    replicas: u64,
    /// Stripe size in bytes; absent if the file is not striped.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<u64>,
    /// Number of extents; absent if the file has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    extents: Option<u64>,
    pub(crate) parts: Vec<Part>,
}

/// Part of a file on one node.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Part {
    /// Offset of the first byte in the file.
    #[serde(default)]
    offset: u64,
    /// Number of bytes.
    pub(crate) size: u64,
    /// Id of the object, in 16 hexadecimal digits.
    #[serde(default)]
    object: String,
    pub(crate) replicas: Vec<Replica>,
}

/// Replica of a part.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Replica {
    node: u32,
    /// State, such as `current`, `coming`, `offline`, `lost` or `corrupt`.
    pub(crate) state: String,
}

/// Replica of a part with its host: a row of the table.
pub(crate) struct Place {
    part: Part,
    replica: Replica,
    host: String,
}

columns! { place: Place {
    right "OFFSET" => place.part.offset,
    right "SIZE" => Bytes(place.part.size),
    left "OBJECT" => place.part.object,
    right "NODE" => place.replica.node,
    left "STATE" => place.replica.state,
    left "HOST" => place.host,
} }

impl Stat {
    fn host(&self, node: u32) -> Option<&str> {
        let mut hosts = self.hosts.iter();
        Some(&hosts.find(|(number, _)| *number == node)?.1)
    }

    /// Returns a note about a fault of a part.
    fn note(&self, part: &Part, wanted: usize) -> Option<String> {
        let current = part
            .replicas
            .iter()
            .filter(|replica| replica.state == "current");
        let current: Vec<u32> = current.map(|replica| replica.node).collect();
        if current.len() < wanted {
            let missing = match wanted - current.len() {
                1 => "1 replica is".to_owned(),
                missing => format!("{missing} replicas are"),
            };
            return Some(format!(
                "{missing} missing: made as soon as nodes with space are up"
            ));
        }
        let hosts: BTreeSet<_> = current.iter().map(|&node| self.host(node)).collect();
        (wanted > 1 && hosts.len() == 1).then(|| {
            "all replicas are on one host: they outlive a node, and not the host".to_owned()
        })
    }
}

impl Layout {
    /// Returns size, stripes, version and wanted number of replicas.
    fn summary(&self) -> String {
        let wanted = match self.replicas {
            1 => "1 replica".into(),
            wanted => format!("{wanted} replicas"),
        };
        let stripes = match (self.unit, self.extents) {
            (Some(unit), _) => format!("stripes of {}, ", Bytes(unit)),
            (None, Some(extents)) => format!("{extents} extents, "),
            (None, None) => String::new(),
        };
        format!(
            "{}, {stripes}version {}, {wanted} wanted",
            Bytes(self.size),
            self.version
        )
    }
}

impl Report for Stat {
    fn text(&self, out: &mut Text) {
        let metadata = &self.metadata;
        match &self.layout {
            Some(layout) => writeln!(out, "{}: {}", self.path, layout.summary()),
            None => writeln!(out, "{}: {}", self.path, metadata.kind),
        }
        writeln!(
            out,
            "mode {}, owner {}, group {}, modified {} (UTC), inode {}",
            metadata.listed_mode,
            line(&users::name(metadata.uid)),
            metadata.gid,
            metadata.mtime,
            metadata.inode
        );
        let Some(layout) = &self.layout else { return };
        let mut places = Vec::new();
        for part in &layout.parts {
            let replicas = part.replicas.iter();
            places.extend(replicas.map(|replica| Place {
                part: part.clone(),
                replica: replica.clone(),
                host: self.host(replica.node).unwrap_or_default().to_owned(),
            }));
        }
        out.table(&places);
        let wanted = usize::try_from(layout.replicas).unwrap_or(usize::MAX);
        for note in layout
            .parts
            .iter()
            .filter_map(|part| self.note(part, wanted))
        {
            writeln!(out, "{note}");
        }
    }
}
