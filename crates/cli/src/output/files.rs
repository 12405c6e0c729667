//! Files and directories of the namespace.

use super::{View, table, write_table};
use crate::files::ClusterPath;
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_core::display::{escaped, line};
use tidemill_wire::v1;

/// Output of `tidemill ls` for one directory.
#[derive(Debug)]
pub(crate) struct DirectoryView {
    /// Path of the directory, or of the file if only one was named.
    pub(crate) path: ClusterPath,
    /// Entries of the directory.
    pub(crate) entries: Vec<v1::Entry>,
    /// Whether all details of each entry are shown.
    pub(crate) long: bool,
    /// Whether the path is shown above.
    pub(crate) titled: bool,
}

impl View for DirectoryView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.titled {
            writeln!(out, "{}:", self.path)?;
        }
        if self.long {
            let header = [
                "MODE",
                "LINKS",
                "OWNER",
                "GROUP",
                "SIZE",
                "MODIFIED (UTC)",
                "NODE",
                "NAME",
            ];
            let mut rows = table(&header, &[1, 2, 3, 4, 6]);
            for entry in &self.entries {
                rows.add_row(row(entry));
            }
            write_table(out, &rows)?;
        } else {
            for entry in &self.entries {
                writeln!(out, "{}", line(&name(entry)))?;
            }
        }
        if self.titled { writeln!(out) } else { Ok(()) }
    }

    fn json(&self) -> Value {
        json!({
            "path": self.path,
            "entries": self.entries.iter().map(entry_json).collect::<Vec<_>>(),
        })
    }
}

/// Returns the entry's name as text; invalid UTF-8 is replaced.
pub(crate) fn name(entry: &v1::Entry) -> String {
    String::from_utf8_lossy(&entry.name).into_owned()
}

/// Returns the kind of an entry.
pub(crate) fn kind(entry: &v1::Entry) -> v1::Kind {
    entry
        .attr
        .as_ref()
        .map_or(v1::Kind::Unspecified, |attr| attr.kind())
}

/// Returns type and mode of an entry as `ls -l` shows them.
pub(super) fn mode(entry: &v1::Entry) -> String {
    let letter = match kind(entry) {
        v1::Kind::Directory => 'd',
        v1::Kind::Symlink => 'l',
        v1::Kind::Fifo => 'p',
        v1::Kind::Socket => 's',
        v1::Kind::CharDevice => 'c',
        v1::Kind::BlockDevice => 'b',
        v1::Kind::File | v1::Kind::Unspecified => '-',
    };
    format::mode(letter, entry.attr.unwrap_or_default().mode)
}

fn row(entry: &v1::Entry) -> Vec<String> {
    let attr = entry.attr.unwrap_or_default();
    let place = if attr.parts {
        "several".to_owned()
    } else {
        attr.node.to_string()
    };
    let node = match (attr.object, attr.writing) {
        (_, true) => format!("{place} (being written)"),
        (0, false) => "-".into(),
        (_, false) => place,
    };
    let mut shown = name(entry);
    if kind(entry) == v1::Kind::Symlink {
        shown = format!("{shown} -> {}", String::from_utf8_lossy(&entry.target));
    }
    vec![
        mode(entry),
        attr.nlink.to_string(),
        attr.uid.to_string(),
        attr.gid.to_string(),
        format::bytes(attr.size),
        format::time(attr.mtime),
        node,
        line(&shown),
    ]
}

/// Returns the name of an entry's kind, as in JSON.
pub(crate) fn kind_name(entry: &v1::Entry) -> &'static str {
    match kind(entry) {
        v1::Kind::Directory => "directory",
        v1::Kind::Symlink => "symlink",
        v1::Kind::File => "file",
        v1::Kind::Fifo => "fifo",
        v1::Kind::Socket => "socket",
        v1::Kind::CharDevice => "char-device",
        v1::Kind::BlockDevice => "block-device",
        v1::Kind::Unspecified => "unknown",
    }
}

/// Returns an entry as JSON.
pub(super) fn entry_json(entry: &v1::Entry) -> Value {
    let attr = entry.attr.unwrap_or_default();
    json!({
        "name": escaped(&entry.name),
        "kind": kind_name(entry),
        "target": escaped(&entry.target),
        "inode": attr.ino,
        "mode": attr.mode,
        "links": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "mtime": attr.mtime,
        "version": attr.version,
        "object": attr.object,
        "node": (!attr.parts).then_some(attr.node),
        "writing": attr.writing,
    })
}
