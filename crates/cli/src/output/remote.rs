//! RemoteList: external storage that the cluster knows.

use super::table::{Text, columns, listing};
use super::{Report, exact, maybe, records};
use crate::format::{self, Bytes, Time};
use schemars::JsonSchema;
use serde::Serialize;
use tidemill_client::users;
use tidemill_model::display::line;
use tidemill_node::backend::packs::recovery::Recovered;
use tidemill_wire::v1;

/// List of remotes.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RemoteList(pub(crate) Vec<Remote>);

records! {
    /// Remote.
    Remote from of: v1::Remote {
        remote: String = of.name.clone(),
        uri: String, read_only: bool, uid: u32, added: Time,
        attached: Option<Attachment> = maybe(&of.attachment),
    }

    /// Directory of the cluster with the objects of a remote.
    Attachment from of: v1::Attachment {
        directory: String,
        /// Node that scans the remote.
        node: u32,
        /// Interval of scans in seconds.
        every_s: u32,
        uid: u32, gid: u32,
        /// Mode of new directories, in octal digits.
        mode: String = format!("{:03o}", of.mode),
        /// Time of the last scan.
        scanned: Time = Time(of.looked),
        /// Number of objects with a file.
        files: u64,
        /// Number of objects that can be no file, and the key of one of them.
        skipped: u64 = of.passed,
        example: String,
        /// Problem of the last scan; empty if there is none.
        trouble: String,
    }
}

columns! { remote: Remote {
    left "REMOTE" => remote.remote,
    left "ADDRESS" => remote.uri,
    left "WRITES" => if remote.read_only { "no" } else { "yes" },
    left "BY" => users::name(remote.uid),
    left "ADDED (UTC)" => remote.added,
    left "DIRECTORY" => super::dash(&remote.attached.as_ref().map(|one| &one.directory)),
    left "SCANNED (UTC)" => match &remote.attached {
        Some(Attachment { scanned: Time(0), .. }) => "not yet".to_owned(),
        attached => super::dash(&attached.as_ref().map(|one| one.scanned)),
    },
} }

impl Report for RemoteList {
    fn text(&self, out: &mut Text) {
        out.table(&self.0);
        for (remote, attached) in self
            .0
            .iter()
            .filter_map(|remote| Some((remote, remote.attached.as_ref()?)))
        {
            if !attached.trouble.is_empty() {
                writeln!(out, "{}", line(&attached.trouble));
            }
            if attached.skipped > 0 {
                let count = format::count(attached.skipped, "object");
                let (name, example) = (line(&remote.remote), line(&attached.example));
                writeln!(
                    out,
                    "remote {name}: {count} of the store can be no file of the directory, such as {example}"
                );
            }
        }
    }
}

listing! {
    /// Files in the packs of a lost node.
    RecoverableFiles of RecoverableFile
}

records! {
    /// File in the packs of a lost node.
    RecoverableFile from of: Recovered {
        file: String = exact(&of.name),
        bytes: Bytes = Bytes(of.size),
        /// Time at which the file was stored.
        put: Time = Time(i64::try_from(of.time_ns).unwrap_or(i64::MAX)),
        object: u64,
        /// Whether all parts of the file exist.
        whole: bool,
    }
}

columns! { file: RecoverableFile {
    left "FILE" => file.file,
    right "SIZE" => file.bytes,
    left "STORED (UTC)" => file.put,
    left "STATE" => if file.whole { "" } else { "incomplete" },
} }
