//! Bridges.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::shown::line;
use tidemill_node::outside::packs::recovery::Recovered;
use tidemill_wire::v1;

/// Output of `tidemill bridge list`.
#[derive(Debug)]
pub(crate) struct BridgesView(pub(crate) Vec<v1::Bridge>);

impl View for BridgesView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = [
            "BRIDGE",
            "LEADS TO",
            "WRITES",
            "BY",
            "ADDED (UTC)",
            "DIRECTORY",
            "LOOKED AT (UTC)",
        ];
        let mut rows = table(&titles, &[]);
        for bridge in &self.0 {
            rows.add_row([
                line(&bridge.name),
                line(&bridge.uri),
                if bridge.read_only { "no" } else { "yes" }.to_owned(),
                users::name(bridge.uid),
                format::time(bridge.added),
                bound(bridge, |binding| line(&binding.directory)),
                bound(bridge, |binding| match binding.looked {
                    0 => "not yet".to_owned(),
                    looked => format::time(looked),
                }),
            ]);
        }
        write_table(out, &rows)?;
        for bridge in &self.0 {
            let Some(binding) = &bridge.binding else {
                continue;
            };
            if !binding.trouble.is_empty() {
                writeln!(out, "{}", line(&binding.trouble))?;
            }
            if binding.passed > 0 {
                let count = format::count(binding.passed, "object");
                let (name, example) = (line(&bridge.name), line(&binding.example));
                writeln!(
                    out,
                    "bridge {name}: {count} there and no file of the directory, such as {example}"
                )?;
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        self.0.iter().map(bridge_json).collect()
    }
}

fn bound(bridge: &v1::Bridge, shown: impl Fn(&v1::Binding) -> String) -> String {
    bridge.binding.as_ref().map_or("-".to_owned(), shown)
}

/// Output of `tidemill node recover`.
#[derive(Debug)]
pub(crate) struct RecoveredView(pub(crate) Vec<Recovered>);

impl View for RecoveredView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows = table(&["FILE", "SIZE", "PUT THERE (UTC)", ""], &[1]);
        for file in &self.0 {
            rows.add_row([
                line(&file.name),
                format::bytes(file.size),
                format::time(i64::try_from(file.time_ns).unwrap_or(i64::MAX)),
                if file.whole {
                    ""
                } else {
                    "not all of it is there"
                }
                .to_owned(),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        let file = |file: &Recovered| {
            json!({
                "file": file.name, "bytes": file.size, "put": file.time_ns, "object": file.object, "whole": file.whole,
            })
        };
        self.0.iter().map(file).collect()
    }
}

/// Returns a bridge as JSON.
pub(crate) fn bridge_json(bridge: &v1::Bridge) -> Value {
    let binding = bridge.binding.as_ref().map(|binding| {
        json!({
            "directory": binding.directory, "node": binding.node, "every_s": binding.every_s,
            "uid": binding.uid, "gid": binding.gid, "mode": format!("{:03o}", binding.mode),
            "looked": binding.looked, "files": binding.files, "passed_by": binding.passed,
            "example": binding.example, "trouble": binding.trouble,
        })
    });
    json!({
        "bridge": bridge.name, "uri": bridge.uri, "read_only": bridge.read_only,
        "uid": bridge.uid, "added": bridge.added, "bound": binding,
    })
}
