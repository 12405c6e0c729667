//! Bridges.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::shown::line;
use tidemill_wire::v1;

/// What `tidemill bridge list` shows.
#[derive(Debug)]
pub(crate) struct BridgesView(pub(crate) Vec<v1::Bridge>);

impl View for BridgesView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows = table(&["BRIDGE", "LEADS TO", "WRITES", "BY", "ADDED (UTC)"], &[]);
        for bridge in &self.0 {
            rows.add_row([
                line(&bridge.name),
                line(&bridge.uri),
                if bridge.read_only { "no" } else { "yes" }.to_owned(),
                users::name(bridge.uid),
                format::time(bridge.added),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        self.0.iter().map(bridge_json).collect()
    }
}

/// One bridge.
pub(crate) fn bridge_json(bridge: &v1::Bridge) -> Value {
    json!({
        "bridge": bridge.name, "uri": bridge.uri, "read_only": bridge.read_only,
        "uid": bridge.uid, "added": bridge.added,
    })
}
