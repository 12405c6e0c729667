//! States that an administrator must act on: their names, their remedies, and the exit code of `tidemill cluster health`.
//!
//! `docs/troubleshooting.md` has one row for each state. A node reports its own states in its status; the server adds the states that it
//! detects itself (next: `server/src/conditions.rs`).

use crate::v1;

/// Exit code of `tidemill cluster health` for a state that affects no access to files.
const NOTICE: u32 = 0;
/// Exit code of `tidemill cluster health` for a state in which all files can be read, but a daemon of the cluster or a replica is missing.
pub const DEGRADED: u32 = 3;
/// Exit code of `tidemill cluster health` for a state in which files cannot be read.
pub const UNAVAILABLE: u32 = 4;

/// Key of the gRPC status metadata that contains the name of the state for which the server refused a request.
pub const METADATA: &str = "tidemill-state";

/// A state that an administrator must act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConditionKind {
    /// Name of the state, a stable word.
    pub name: &'static str,
    /// Exit code of `tidemill cluster health` in this state.
    pub exit: u32,
    /// Command or action that ends the state.
    pub remedy: &'static str,
}

/// Declares the states and the list of all states.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $exit:ident, $remedy:literal;)*) => {
        $($(#[$doc])* pub const $kind: ConditionKind = ConditionKind { name: $name, exit: $exit, remedy: $remedy };)*

        /// All states.
        pub const ALL: &[ConditionKind] = &[$($kind),*];
    };
}

kinds! {
    /// No node has a replica of these files any more.
    DATA_LOST = "data-lost", UNAVAILABLE,
        "`tidemill cluster health --all` names the files: write them again, or remove them";
    /// The nodes that have the replicas of these files do not answer.
    DATA_UNAVAILABLE = "data-unavailable", UNAVAILABLE,
        "start the nodes that have the files; `tidemill cluster health --all` names them";
    /// The cluster has no node that stores data.
    NO_NODE = "no-node", DEGRADED, "start one with `tidemill node run`";
    /// A node has no connection to the server.
    NODE_OFFLINE = "node-offline", DEGRADED,
        "start it; if its host never returns, `tidemill node drain`, then `remove`";
    /// A node has no connection to the server for longer than `--repair-after`.
    NODE_FAILED = "node-failed", DEGRADED,
        "start it; if its host never returns, `tidemill node drain`, then `remove`";
    /// A node is connected to the server and sends no messages.
    NODE_SILENT = "node-silent", DEGRADED, "look at its process, its disk and its host; restart it";
    /// A suspended node does not answer the request to resume.
    NODE_NOT_RESUMED = "node-not-resumed", DEGRADED, "start it, and fix the `resume` command";
    /// A node of another release tries to join the cluster.
    NODE_VERSION = "node-version", DEGRADED, "start it with the server's release";
    /// A node of another cluster tries to join the cluster.
    NODE_OTHER_CLUSTER = "node-other-cluster", DEGRADED, "give it an empty directory, or the right server";
    /// A removed node tries to join the cluster.
    NODE_REMOVED = "node-removed", NOTICE, "stop its process; a new node needs another id and an empty directory";
    /// Two nodes have the same id.
    NODE_TWICE = "node-twice", DEGRADED, "stop one of them, or give it another id and an empty directory";
    /// A node without TLS tries to join the cluster.
    NODE_PLAIN = "node-plain", DEGRADED, "start it without `--tls off`";
    /// A node's disk is full.
    NODE_FULL = "node-full", DEGRADED, "remove files, or add a node and `tidemill cluster rebalance`";
    /// A node's directory cannot be used.
    NODE_DIRECTORY = "node-directory", DEGRADED, "bring the directory's disk back, then restart the node";
    /// A node's database cannot be written.
    NODE_DATABASE = "node-database", DEGRADED,
        "make its disk writable, then restart it; if the disk is broken, drain it";
    /// A node's clock differs from the server's.
    NODE_CLOCK = "node-clock", DEGRADED, "set the clocks of both hosts";
    /// The backend of a node, which stores its files, is not found.
    STORE_OFFLINE = "store-offline", DEGRADED,
        "mount the store; if it is empty for good, put an empty `.tidemill-store` there";
    /// The backend of a node refuses files.
    STORE_FAILING = "store-failing", DEGRADED, "fix the cause: address, keys, space or network of the store";
    /// A directory that is attached to a remote cannot be updated.
    STORE_UNSEEN = "store-unseen", DEGRADED, "fix the cause, then `tidemill remote check`";
    /// No online node takes new files.
    CLUSTER_FULL = "cluster-full", DEGRADED, "remove files, or add a node";
    /// The disk of the server's database is full.
    SERVER_FULL = "server-full", DEGRADED, "make space on the disk of the server's directory";
    /// The server's database cannot be written.
    SERVER_DATABASE = "server-database", DEGRADED, "repair the disk of the server's directory, then restart the server";
    /// The server cannot put labels into the label queue.
    QUEUE_OFFLINE = "queue-offline", DEGRADED, "start NATS, or repair the connection to it";
    /// The server can't reach its replicated log, so it acknowledges no change.
    LOG_UNREACHABLE = "log-unreachable", UNAVAILABLE,
        "start the NATS servers of the log, or repair the connection to them";
    /// The server's database changes, and too few nodes receive the log of the changes.
    LOG_DELAYED = "log-delayed", DEGRADED,
        "make space on the named disk, or start the named node; see the server's log";
    /// A node has a log that the server's database does not know.
    DATABASE_OLD = "database-old", DEGRADED,
        "stop the server, and recover its database: `tidemill server recover`";
    /// The server's database was recovered from incomplete data.
    REBUILT_INCOMPLETE = "rebuilt-incomplete", DEGRADED,
        "`tidemill server recover` with better copies, if there are any";
    /// The cluster has no space for missing replicas of files.
    REPLICAS_NO_SPACE = "replicas-no-space", DEGRADED, "add a node, or remove files";
    /// Files have too few replicas, and replicas are being made.
    REPLICAS_MISSING = "replicas-missing", DEGRADED, "wait: `tidemill cluster health` shows how long";
    /// Replicas of files are corrupt and are being recreated from other replicas.
    FILES_CORRUPT = "files-corrupt", DEGRADED, "wait; if one node has many, drain it";
    /// Files whose writer is lost cannot be sealed.
    FILES_UNSEALED = "files-unsealed", DEGRADED, "start the node that has them";
    /// A hook processes files more slowly than they arrive.
    HOOK_BEHIND = "hook-behind", NOTICE, "wait, or give the hook more cores";
    /// Runs of a rule have failed.
    RULE_FAILED = "rule-failed", NOTICE, "`tidemill rule log NAME`, then `tidemill rule retry NAME`";
}

impl ConditionKind {
    /// Returns the gRPC status of a request that the server refuses because of this state.
    #[must_use]
    pub fn refusal(self, message: impl Into<String>) -> tonic::Status {
        let mut status = tonic::Status::failed_precondition(message);
        let name = tonic::metadata::MetadataValue::from_static(self.name);
        status.metadata_mut().insert(METADATA, name);
        status
    }

    /// Whether the server refused a request because of this state.
    #[must_use]
    pub fn is_cause_of(self, status: &tonic::Status) -> bool {
        let name = status.metadata().get(METADATA);
        name.is_some_and(|name| name.as_bytes() == self.name.as_bytes())
    }

    /// Returns the state for which the server refused a request; `None` if the server named none.
    #[must_use]
    pub fn why(status: &tonic::Status) -> Option<Self> {
        ALL.iter().copied().find(|kind| kind.is_cause_of(status))
    }

    /// Returns the condition that reports this state of a node (or of the cluster, without a node).
    #[must_use]
    pub fn of(self, node: Option<u32>, cause: impl Into<String>) -> v1::Condition {
        v1::Condition {
            name: self.name.into(),
            node,
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
