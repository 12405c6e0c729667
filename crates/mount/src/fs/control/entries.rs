//! The entries of the control directory: the names that the mount looks up and lists, with the texts of the reference.

use super::{ControlRequest, Special};
use tidemill_model::id::Inode;

/// Entry of the control directory.
#[derive(Clone, Copy, Debug)]
pub struct ControlEntry {
    /// Path below `.tidemill`, with `<user>`, `<handle>`, `<n>` and `<path>` for variable parts.
    pub path: &'static str,
    /// Use of the entry, as Markdown.
    pub content: &'static str,
    /// The entry's file, or the directory that its path begins with; `None`: the name of the entry is variable.
    special: Option<fn(u32) -> Special>,
}

/// All entries.
pub const ENTRIES: [ControlEntry; 11] = [
    ControlEntry {
        path: "<user>/submit",
        content: "write the path of a job file to submit the job",
        special: Some(|uid| Special::Order(ControlRequest::Submit, uid)),
    },
    ControlEntry {
        path: "<user>/cancel",
        content: "write the handle of a job, as for `tidemill job cancel`",
        special: Some(|uid| Special::Order(ControlRequest::Cancel, uid)),
    },
    ControlEntry {
        path: "<user>/events",
        content: "write a question, then read [file events](../labels.md#files-of-others)",
        special: Some(Special::Events),
    },
    ControlEntry {
        path: "<user>/joblist",
        content: "read one line for each job: script, handle",
        special: Some(Special::JobList),
    },
    ControlEntry {
        path: "<user>/last-error",
        content: "read the reason of the last refused submission: file, line, task",
        special: Some(Special::LastError),
    },
    ControlEntry {
        path: "<user>/new-files",
        content: "write up to 1024 [small new files](../formats.md#new-files) in one call",
        special: Some(Special::NewFiles),
    },
    ControlEntry {
        path: "<user>/<handle>-status",
        content: "read the state of a job and its tasks",
        special: None,
    },
    ControlEntry {
        path: "status",
        content: "read this mount's files that are closed and not yet sealed",
        special: Some(|_| Special::Status),
    },
    ControlEntry {
        path: "hooks",
        content: "write hooks in [the paper's format](../hooks.md#the-papers-format), or read your own",
        special: Some(|_| Special::Hooks),
    },
    ControlEntry {
        path: "nodes/<n>/status",
        content: "read the state of one node",
        special: Some(|_| Special::Nodes),
    },
    ControlEntry {
        path: "lineage/<path>",
        content: "read the lineage of a readable file, as from `tidemill lineage show`",
        special: Some(|_| Special::Lineage(Inode::ROOT.0)),
    },
];

/// First component of the path of entries of one user.
const USER: &str = "<user>";

/// Returns the names and files of the directory itself.
pub(super) fn top() -> impl Iterator<Item = (&'static str, Special)> {
    ENTRIES.iter().filter_map(|entry| {
        let name = entry.path.split('/').next()?;
        let special = entry.special.filter(|_| name != USER)?;
        Some((name, special(0)))
    })
}

/// Returns the names and files of a user's directory, without the jobs.
pub(super) fn of_user(uid: u32) -> impl Iterator<Item = (&'static str, Special)> {
    ENTRIES.iter().filter_map(move |entry| {
        let (first, name) = entry.path.split_once('/')?;
        let special = entry.special.filter(|_| first == USER)?;
        Some((name, special(uid)))
    })
}
