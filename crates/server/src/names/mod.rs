//! The namespace: directories, files, links and their versions.
//!
//! [`Names`] is the interface for the rest of the server; [`SqliteNames`] implements it with one SQLite file. The namespace has no
//! access to connections and never touches the bytes of files. It records objects to be removed from nodes in the table
//! `removal` (next: `server/src/removal.rs`).

mod apply;
pub(crate) mod attribute;
pub(crate) mod budget;
pub(crate) mod burst;
pub(crate) mod changes;
pub(crate) mod channels;
pub(crate) mod claims;
pub(crate) mod commit;
mod did_you_mean;
pub(crate) mod draining;
mod emptying;
pub(crate) mod events;
mod fault;
pub(crate) mod granted_capabilities;
pub(crate) mod holdings;
pub(crate) mod ids;
pub(crate) mod input_deletion;
mod kernels;
pub(crate) mod lineage;
pub(crate) mod multi_writer;
pub(crate) mod notes;
pub(crate) mod overflow;
pub(crate) mod parts;
mod quota;
pub(crate) mod read_pins;
pub(crate) mod replicas;
pub(crate) mod reservations;
mod reserve;
pub(crate) mod schema;
pub(crate) mod shared;
mod sqlite;
pub(crate) mod transaction;
mod tree;
mod version;
pub(crate) mod visibility;
pub(crate) mod vnode;
pub(crate) mod workspaces;
mod writers;

pub(crate) use apply::only_reads;
pub use changes::Changes;
pub use fault::Fault;
pub use schema::{OpenError, SCHEMA_VERSION};
pub use sqlite::SqliteNames;
pub(crate) use sqlite::cluster_id;
pub use transaction::Change;
pub(crate) use transaction::path_of;
pub use vnode::Caller;
pub(crate) use writers::SILENCE_NS_MAX;

use std::future::Future;
use std::pin::Pin;
use tidemill_core::layout::PartOf;
use tidemill_wire::v1;

/// A future of a [`Names`] method.
pub type NamesFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One batch of operations by one caller.
#[derive(Clone, Debug, Default)]
pub struct NamesRequest {
    /// Caller whose rights the operations use.
    pub caller: Caller,
    /// Session of the mount that asks; 0 for other clients.
    pub session: u64,
    /// Whether the changes must survive power loss before the answer.
    pub durable: bool,
    /// The operations, in order.
    pub ops: Vec<v1::NameOp>,
}

impl NamesRequest {
    /// Builds a request from a message of a caller whose rights are known. Only mounts have sessions, and mounts are daemons with an administrator's
    /// rights.
    pub(crate) fn of(caller: Caller, message: v1::NameRequest) -> Self {
        let session = if caller.administrator {
            message.session
        } else {
            0
        };
        Self {
            caller,
            session,
            durable: message.durable,
            ops: message.ops,
        }
    }
}

/// Changes of one commit, and the session that caused them.
#[derive(Debug)]
pub struct Changed {
    /// Session of the mount that asked for the changes; it needs no notice of them.
    pub session: u64,
    /// The changes.
    pub changes: Vec<Change>,
}

/// The namespace of a cluster.
pub trait Names: std::fmt::Debug + Send + Sync {
    /// Carries out operations in order, in one transaction: all before a failed one take effect, none after.
    ///
    /// # Errors
    /// If the changes could not be kept; then none has taken effect. Errors of single operations are among the results.
    fn apply(&self, request: NamesRequest) -> NamesFuture<'_, Result<Vec<v1::NameResult>, Fault>>;

    /// Does the same as [`Self::apply`], for threads outside the runtime.
    ///
    /// # Errors
    /// As for [`Self::apply`].
    fn apply_blocking(&self, request: NamesRequest) -> Result<Vec<v1::NameResult>, Fault>;

    /// Reserves inode and object ids; returns the first of each. The server never issues an id twice.
    ///
    /// # Errors
    /// If the reservation could not be kept.
    fn reserve(
        &self,
        caller: Caller,
        inodes: u32,
        objects: u32,
    ) -> NamesFuture<'_, Result<(u64, u64), Fault>>;

    /// Returns all changes from now on.
    fn changes(&self) -> Changes;

    /// Returns a session number for a mount, never used before.
    ///
    /// # Errors
    /// If the number could not be kept.
    fn new_session(&self) -> NamesFuture<'_, Result<u64, Fault>>;

    /// Ends the session of a mount and forgets the inodes that it held open.
    ///
    /// # Errors
    /// If the database fails.
    fn end_session(&self, session: u64) -> NamesFuture<'_, Result<(), Fault>>;

    /// Returns all versions that are not sealed, counted by writer and node.
    ///
    /// # Errors
    /// If the database fails.
    fn unsealed(&self) -> Result<Vec<UnsealedCount>, Fault>;

    /// Returns versions that a mount was still writing on a node when it disconnected, for others to seal or abandon: at most
    /// `limit`, in order of their objects, from the first after `after`.
    ///
    /// # Errors
    /// If the database fails.
    fn unfinished(
        &self,
        writer: (u64, u32),
        after: u64,
        limit: usize,
    ) -> Result<Vec<Unfinished>, Fault>;

    /// Aborts versions of clients that are not mounts and have been silent for too long.
    ///
    /// # Errors
    /// If the database fails.
    fn abandon_silent(&self) -> NamesFuture<'_, Result<(), Fault>>;

    /// Returns the sessions of mounts that may have locks.
    ///
    /// # Errors
    /// If the database fails.
    fn lockers(&self) -> Result<Vec<u64>, Fault>;

    /// Records that a mount may have locks from now on, or has none any more.
    ///
    /// # Errors
    /// If the record could not be kept.
    fn set_locker(&self, session: u64, has: bool) -> NamesFuture<'_, Result<(), Fault>>;

    /// Returns the version of a file that is being written, if any. With several writers, returns the object of each writer.
    ///
    /// # Errors
    /// If the database fails.
    fn written(&self, ino: u64) -> Result<Vec<OpenVersion>, Fault>;
}

/// A version that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenVersion {
    /// The object being written.
    pub object: u64,
    /// Session of the mount that writes the version; 0 for other clients.
    pub session: u64,
    /// Whether other mounts may write the same version.
    pub multi_writer: bool,
}

/// A version that a mount was still writing when it disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The object that is to be sealed.
    pub object: u64,
    /// The version being written: the object itself, or the version that the object is a part of.
    pub version: u64,
    /// The version and position that the object is a part of; `None` if the object is a whole version.
    pub part: Option<PartOf>,
    /// The file.
    pub ino: u64,
    /// The file's user and group.
    pub owner: (u32, u32),
    /// Its permission bits.
    pub mode: u32,
    /// Path of the file; empty if the file has no name any more.
    pub path: Vec<u8>,
}

/// Versions that are not sealed, of one writer on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsealedCount {
    /// Session of the mount that writes or wrote the versions; 0 for other clients.
    pub session: u64,
    /// The node.
    pub node: u32,
    /// Number of versions.
    pub versions: u64,
    /// Start of the oldest version. For clients without a session, the time when the server last heard of the writer.
    pub oldest: i64,
}
