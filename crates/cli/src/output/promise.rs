//! Promised room of the burst tier.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::shown::{escaped, line};
use tidemill_wire::v1;

/// Output of `tidemill stage list`.
#[derive(Debug)]
pub(crate) struct PromisesView(pub(crate) Vec<v1::Promise>);

impl View for PromisesView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "PROMISE",
            "NODE",
            "BYTES",
            "USED",
            "OPEN",
            "OWNER",
            "ENDS (UTC)",
            "DIRECTORY",
        ];
        let mut rows = table(&header, &[0, 1, 2, 3, 4]);
        for promise in &self.0 {
            rows.add_row([
                promise.id.to_string(),
                promise.node.to_string(),
                format::bytes(promise.bytes),
                format::bytes(promise.used),
                promise.open.to_string(),
                users::name(promise.uid),
                format::time(promise.until),
                line(&String::from_utf8_lossy(&promise.directory)),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        self.0.iter().map(promise_json).collect()
    }
}

/// Returns a promise as JSON.
pub(crate) fn promise_json(promise: &v1::Promise) -> Value {
    json!({
        "promise": promise.id,
        "directory": escaped(&promise.directory),
        "node": promise.node,
        "bytes": promise.bytes,
        "used": promise.used,
        "open": promise.open,
        "uid": promise.uid,
        "since": promise.since,
        "until": promise.until,
    })
}
