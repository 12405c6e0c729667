//! States that an administrator must act on: their names, their remedies, and the exit code of `tidemill health`.
//!
//! `docs/operating.md` has one row for each. An element reports its own states in its status; the server adds those that it detects itself
//! (next: `server/src/conditions.rs`).

use crate::v1;

/// Exit code of `tidemill health` for a state that affects no access to files.
const NOTICE: u32 = 0;
/// For a state in which all files can be read, but a part of the array or a copy is missing.
const DEGRADED: u32 = 3;
/// For a state in which files cannot be read.
const UNAVAILABLE: u32 = 4;

/// Key of the metadata of a gRPC status with the name of the state that is the reason of the refusal.
pub const METADATA: &str = "tidemill-state";

/// A state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Name: a stable word.
    pub name: &'static str,
    /// Exit code of `tidemill health`.
    pub exit: u32,
    /// The command or the action that ends the state.
    pub remedy: &'static str,
}

/// Declares the states and the list of all of them.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $exit:ident, $remedy:literal;)*) => {
        $($(#[$doc])* pub const $kind: Kind = Kind { name: $name, exit: $exit, remedy: $remedy };)*

        /// All states.
        pub const ALL: &[Kind] = &[$($kind),*];
    };
}

kinds! {
    /// No element has the only copies of these files any more.
    DATA_LOST = "data-lost", UNAVAILABLE,
        "`tidemill health --all` names the files: write them again, or remove them";
    /// The elements that have these files do not answer.
    DATA_UNAVAILABLE = "data-unavailable", UNAVAILABLE,
        "start the elements that have the files; `tidemill health --all` names them";
    /// No element stores data.
    NO_ELEMENT = "no-element", DEGRADED, "start one with `tidemill element`";
    /// An element has no connection to the server.
    ELEMENT_AWAY = "element-away", DEGRADED,
        "start it; if its host is lost, `tidemill element drain`, then `remove`";
    /// An element has no connection for longer than `--repair-after`.
    ELEMENT_GIVEN_UP = "element-given-up", DEGRADED,
        "start it; if its host is lost, `tidemill element drain`, then `remove`";
    /// An element is connected and sends no messages.
    ELEMENT_SILENT = "element-silent", DEGRADED, "look at its process, its disk and its host; restart it";
    /// A suspended element does not resume.
    ELEMENT_NOT_WOKEN = "element-not-woken", DEGRADED, "start it, and mend the `wake` command";
    /// An element of another release wants to attach.
    ELEMENT_VERSION = "element-version", DEGRADED, "start it with the server's release";
    /// An element of another array wants to attach.
    ELEMENT_OTHER_ARRAY = "element-other-array", DEGRADED, "give it an empty folder, or the right server";
    /// A removed element wants to attach.
    ELEMENT_REMOVED = "element-removed", NOTICE, "stop its process; a new element needs another id and an empty folder";
    /// Two elements have the same id.
    ELEMENT_TWICE = "element-twice", DEGRADED, "stop one of them, or give it another id and an empty folder";
    /// An element without TLS wants to attach.
    ELEMENT_PLAIN = "element-plain", DEGRADED, "start it without `--tls off`";
    /// An element's disk is full.
    ELEMENT_FULL = "element-full", DEGRADED, "remove files, or add an element and `tidemill rebalance`";
    /// An element's folder cannot be used.
    ELEMENT_FOLDER = "element-folder", DEGRADED, "bring the folder's disk back, then restart the element";
    /// An element's database cannot be written.
    ELEMENT_DATABASE = "element-database", DEGRADED,
        "make its disk writable, then restart it; if the disk is broken, drain it";
    /// An element's clock differs from the server's.
    ELEMENT_CLOCK = "element-clock", DEGRADED, "set the clocks of both hosts";
    /// The store of an element's files is not found.
    STORE_AWAY = "store-away", DEGRADED,
        "mount the store; if it is empty for good, put an empty `.tidemill-store` there";
    /// The store of an element's files refuses them.
    STORE_FAILING = "store-failing", DEGRADED, "mend the cause: address, keys, space or network of the store";
    /// A folder that is bound to a store cannot be updated.
    STORE_UNSEEN = "store-unseen", DEGRADED, "mend the cause, then `tidemill bridge check`";
    /// No element that is up takes new files.
    ARRAY_FULL = "array-full", DEGRADED, "remove files, or add an element";
    /// The disk of the server's database is full.
    SERVER_FULL = "server-full", DEGRADED, "make space on the disk of the server's folder";
    /// The server's database cannot be written.
    SERVER_DATABASE = "server-database", DEGRADED, "mend the disk of the server's folder, then restart the server";
    /// Labels cannot be put into their queue.
    QUEUE_AWAY = "queue-away", DEGRADED, "start NATS, or mend the way to it";
    /// The server's database was rebuilt from incomplete data.
    REBUILT_INCOMPLETE = "rebuilt-incomplete", DEGRADED,
        "`tidemill rebuild` with better copies, if there are any";
    /// Copies cannot be made.
    COPIES_NO_ROOM = "copies-no-room", DEGRADED, "add an element, or remove files";
    /// Copies are being made.
    COPIES_MISSING = "copies-missing", DEGRADED, "wait: `tidemill health` says how long";
    /// Copies are damaged and are recreated from others.
    FILES_DAMAGED = "files-damaged", DEGRADED, "wait; if one element has many, drain it";
    /// Files of a lost writer cannot be sealed.
    FILES_UNSEALED = "files-unsealed", DEGRADED, "start the element that has them";
    /// A hook cannot keep up with its files.
    HOOK_BEHIND = "hook-behind", NOTICE, "wait, or give the hook more cores";
    /// Runs of a rule have failed.
    RULE_FAILED = "rule-failed", NOTICE, "`tidemill rule log NAME`, then `tidemill rule retry NAME`";
}

impl Kind {
    /// Returns a refusal because of this state.
    #[must_use]
    pub fn refusal(self, message: impl Into<String>) -> tonic::Status {
        let mut status = tonic::Status::failed_precondition(message);
        let name = tonic::metadata::MetadataValue::from_static(self.name);
        status.metadata_mut().insert(METADATA, name);
        status
    }

    /// Whether the server refused because of this state.
    #[must_use]
    pub fn is_why(self, status: &tonic::Status) -> bool {
        let name = status.metadata().get(METADATA);
        name.is_some_and(|name| name.as_bytes() == self.name.as_bytes())
    }

    /// Returns the state that is the reason of the server's refusal; `None` if the server named none.
    #[must_use]
    pub fn why(status: &tonic::Status) -> Option<Self> {
        ALL.iter().copied().find(|kind| kind.is_why(status))
    }

    /// Returns the condition of this state, of an element or of the array.
    #[must_use]
    pub fn of(self, element: Option<u32>, cause: impl Into<String>) -> v1::Condition {
        v1::Condition {
            name: self.name.into(),
            element,
            cause: cause.into(),
            remedy: self.remedy.into(),
            exit: self.exit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn condition_names_are_unique_lowercase_words() {
        let names: BTreeSet<&str> = ALL.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), ALL.len());
        for kind in ALL {
            let word = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(kind.name.chars().all(word), "{}", kind.name);
            assert!([0, 3, 4].contains(&kind.exit), "{}", kind.name);
        }
    }
}
