//! Files and directories of the namespace.

use super::table::{Text, columns};
use super::{Report, list, records, shown};
use crate::files::ClusterPath;
use crate::format::{self, Bytes, Time};
use std::collections::BTreeMap;
use tidemill_wire::v1;

records! {
    /// Entries of a directory.
    Listing new(path: ClusterPath, found: &[v1::Entry], long: bool, titled: bool) {
        /// Path of the directory, or of the file if only one was named.
        path: ClusterPath,
        entries: Vec<Entry> = list(found),
        /// Whether all details of each entry are shown.
        #[serde(skip)]
        long: bool,
        /// Whether the path is shown above.
        #[serde(skip)]
        titled: bool,
    }

    /// Entry of a directory.
    Entry from of: v1::Entry { name: ClusterPath, #[serde(flatten)] metadata: Metadata = of.into() }

    /// Metadata of a file, directory or other entry.
    Metadata from of: v1::Entry {
        /// `directory`, `symlink`, `file`, `fifo`, `socket`, `char-device` or `block-device`.
        kind: &'static str = kind_name(of),
        /// Target of a symbolic link.
        target: ClusterPath,
        inode: u64 = of.attr.unwrap_or_default().ino,
        /// Permissions, as a number.
        mode: u32 = of.attr.unwrap_or_default().mode,
        /// Number of hard links.
        links: u32 = of.attr.unwrap_or_default().nlink,
        uid: u32 = of.attr.unwrap_or_default().uid,
        gid: u32 = of.attr.unwrap_or_default().gid,
        size: Bytes = Bytes(of.attr.unwrap_or_default().size),
        /// Time of the last change.
        mtime: Time = Time(of.attr.unwrap_or_default().mtime),
        version: u64 = of.attr.unwrap_or_default().version,
        /// Id of the object with the content; 0 for an empty file.
        object: u64 = of.attr.unwrap_or_default().object,
        /// Node with the content; null if several nodes have parts of it.
        node: Option<u32> = Some(of.attr.unwrap_or_default()).filter(|attr| !attr.parts).map(|attr| attr.node),
        writing: bool = of.attr.unwrap_or_default().writing,
        #[serde(skip)]
        listed_mode: String = mode(of),
    }
}

columns! { entry: Entry {
    left "MODE" => entry.metadata.listed_mode,
    right "LINKS" => entry.metadata.links,
    right "OWNER" => entry.metadata.uid,
    right "GROUP" => entry.metadata.gid,
    right "SIZE" => entry.metadata.size,
    left "MODIFIED (UTC)" => entry.metadata.mtime,
    right "NODE" => entry.metadata.place(),
    left "NAME" => match entry.metadata.kind {
        "symlink" => format!("{} -> {}", entry.name, entry.metadata.target),
        _ => entry.name.to_string(),
    },
} }

impl Metadata {
    fn place(&self) -> String {
        let place = self
            .node
            .map_or_else(|| "several".to_owned(), |node| node.to_string());
        match (self.object, self.writing) {
            (_, true) => format!("{place} (being written)"),
            (0, false) => "-".into(),
            (_, false) => place,
        }
    }
}

impl Report for Listing {
    fn text(&self, out: &mut Text) {
        if self.titled {
            writeln!(out, "{}:", self.path);
        }
        match self.long {
            true => out.table(&self.entries),
            false => self
                .entries
                .iter()
                .for_each(|entry| writeln!(out, "{}", entry.name)),
        }
        if self.titled {
            writeln!(out);
        }
    }
}

/// Returns the entry's name as text; invalid UTF-8 is replaced.
pub(crate) fn name(entry: &v1::Entry) -> String {
    shown(&entry.name)
}

/// Returns the kind of an entry.
pub(crate) fn kind(entry: &v1::Entry) -> v1::Kind {
    entry
        .attr
        .as_ref()
        .map_or(v1::Kind::Unspecified, |attr| attr.kind())
}

/// Returns type and mode of an entry as `ls -l` shows them.
fn mode(entry: &v1::Entry) -> String {
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

records! {
    /// Settings of a directory for new files.
    Settings {
        path: ClusterPath,
        /// Values; null for a setting that the directory itself does not have.
        settings: BTreeMap<&'static str, Option<String>>,
        /// Settings with a value, in the usual order.
        #[serde(skip)]
        rows: Vec<DirectorySetting>,
    }
}

/// DirectorySetting with a value: a row of the table.
#[derive(Clone, Debug)]
pub(crate) struct DirectorySetting(&'static str, String);

columns! { one: DirectorySetting {
    left "SETTING" => one.0,
    left "VALUE" => one.1,
} }

impl Settings {
    /// Makes the result from keys and values.
    pub(crate) fn new(path: ClusterPath, all: Vec<(&'static str, Option<String>)>) -> Self {
        let rows = all
            .iter()
            .filter_map(|(key, value)| Some(DirectorySetting(key, value.clone()?)));
        Self {
            path,
            rows: rows.collect(),
            settings: all.into_iter().collect(),
        }
    }
}

impl Report for Settings {
    fn text(&self, out: &mut Text) {
        match self.rows.is_empty() {
            true => writeln!(out, "{}: no settings", self.path),
            false => out.table(&self.rows),
        }
    }
}
