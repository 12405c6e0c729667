//! Remotes.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::display::line;
use tidemill_node::backend::packs::recovery::Recovered;
use tidemill_wire::v1;

/// Output of `tidemill remote list`.
#[derive(Debug)]
pub(crate) struct RemotesView(pub(crate) Vec<v1::Remote>);

impl View for RemotesView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = [
            "REMOTE",
            "ADDRESS",
            "WRITES",
            "BY",
            "ADDED (UTC)",
            "DIRECTORY",
            "SCANNED (UTC)",
        ];
        let mut rows = table(&titles, &[]);
        for remote in &self.0 {
            rows.add_row([
                line(&remote.name),
                line(&remote.uri),
                if remote.read_only { "no" } else { "yes" }.to_owned(),
                users::name(remote.uid),
                format::time(remote.added),
                attached(remote, |attachment| line(&attachment.directory)),
                attached(remote, |attachment| match attachment.looked {
                    0 => "not yet".to_owned(),
                    looked => format::time(looked),
                }),
            ]);
        }
        write_table(out, &rows)?;
        for remote in &self.0 {
            let Some(attachment) = &remote.attachment else {
                continue;
            };
            if !attachment.trouble.is_empty() {
                writeln!(out, "{}", line(&attachment.trouble))?;
            }
            if attachment.passed > 0 {
                let count = format::count(attachment.passed, "object");
                let (name, example) = (line(&remote.name), line(&attachment.example));
                writeln!(
                    out,
                    "remote {name}: {count} of the store can be no file of the directory, such as {example}"
                )?;
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        self.0.iter().map(remote_json).collect()
    }
}

fn attached(remote: &v1::Remote, shown: impl Fn(&v1::Attachment) -> String) -> String {
    remote.attachment.as_ref().map_or("-".to_owned(), shown)
}

/// Output of `tidemill node recover-files`.
#[derive(Debug)]
pub(crate) struct RecoveredView(pub(crate) Vec<Recovered>);

impl View for RecoveredView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut rows = table(&["FILE", "SIZE", "STORED (UTC)", ""], &[1]);
        for file in &self.0 {
            rows.add_row([
                line(&file.name),
                format::bytes(file.size),
                format::time(i64::try_from(file.time_ns).unwrap_or(i64::MAX)),
                if file.whole { "" } else { "incomplete" }.to_owned(),
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

/// Returns a remote as JSON.
pub(crate) fn remote_json(remote: &v1::Remote) -> Value {
    let attachment = remote.attachment.as_ref().map(|attachment| {
        json!({
            "directory": attachment.directory, "node": attachment.node, "every_s": attachment.every_s,
            "uid": attachment.uid, "gid": attachment.gid, "mode": format!("{:03o}", attachment.mode),
            "looked": attachment.looked, "files": attachment.files, "passed_by": attachment.passed,
            "example": attachment.example, "trouble": attachment.trouble,
        })
    });
    json!({
        "remote": remote.name, "uri": remote.uri, "read_only": remote.read_only,
        "uid": remote.uid, "added": remote.added, "attached": attachment,
    })
}
