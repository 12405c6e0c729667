//! The truth of a cluster: all tables of the server in one SQLite file, their SQL, and the group commit.
//!
//! - Files: directories, versions, attributes and parts are in modules of the root. [`SqliteNames`] applies requests of clients ([`Names`]).
//! - `jobs`, `placement`, `rules`, `index` and `lineage` have the other tables. One file writes each table.
//!
//! This crate does not use the network and never reads or writes the bytes of files. It records objects to be removed from nodes in the
//! table `removal` (next: `server/src/removal.rs`).

mod apply;
pub mod attribute;
pub mod budget;
pub mod changes;
pub mod claims;
pub mod clock;
pub mod commit;
mod connection;
mod did_you_mean;
mod emptying;
pub mod expiry;
mod fault;
pub mod feed;
pub mod granted_capabilities;
pub mod health;
pub mod holdings;
pub mod ids;
pub mod index;
pub mod jobs;
pub mod json;
mod kernels;
pub mod known_attributes;
pub mod limits;
pub mod lineage;
pub mod multi_writer;
pub mod node_database;
pub mod overflow;
pub mod parts;
mod paths;
pub mod placement;
mod query;
pub mod quota;
pub mod random;
pub mod read_pins;
pub mod remotes;
mod reserve;
pub mod rules;
pub mod schema;
pub mod settings;
pub mod shared;
mod sqlite;
pub mod transaction;
pub mod tree;
pub mod version;
pub mod visibility;
pub mod vnode;
pub mod wakes;
pub mod workspaces;
mod writers;

pub use apply::only_reads;
pub use changes::Changes;
pub use connection::Connection;
pub use fault::Fault;
pub use limits::UserLimits;
pub use paths::path_of;
#[cfg(feature = "simulation")]
pub use rusqlite::Error as SqliteError;
pub use schema::{OpenError, SCHEMA_VERSION};
pub use settings::cluster_id;
pub use sqlite::SqliteNames;
pub use transaction::Change;
pub use vnode::Caller;
pub use writers::SILENCE_NS_MAX;

use std::future::Future;
use std::pin::Pin;
use tidemill_model::layout::PartOf;
use tidemill_wire::v1;

/// Future that a [`Names`] method returns.
pub type NamesFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One batch of namespace operations by one caller.
#[derive(Clone, Debug, Default)]
pub struct NamesRequest {
    /// Caller whose rights the operations use.
    pub caller: Caller,
    /// Session of the mount that sent the request; 0 for other clients.
    pub session: u64,
    /// Whether the changes must survive power loss before the server answers.
    pub durable: bool,
    /// The namespace operations, in the order in which they are applied.
    pub ops: Vec<v1::NameOp>,
}

impl NamesRequest {
    /// Builds a request from the message of a caller whose rights are known. Only mounts have sessions, and mounts are daemons with the
    /// rights of an administrator.
    pub fn of(caller: Caller, message: v1::NameRequest) -> Self {
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

/// Namespace changes of one commit, and the session of the mount that caused the changes.
#[derive(Debug)]
pub struct Changed {
    /// Session of the mount that requested the changes; this mount needs no notification.
    pub session: u64,
    /// The changes of names, attributes and versions.
    pub changes: Vec<Change>,
}

/// The namespace of a cluster.
pub trait Names: std::fmt::Debug + Send + Sync {
    /// Applies operations in order, in one transaction. The operations before a failed operation take effect, those after it do not.
    ///
    /// # Errors
    /// If the changes could not be committed; then no operation has taken effect. Errors of single operations are among the results.
    fn apply(&self, request: NamesRequest) -> NamesFuture<'_, Result<Vec<v1::NameResult>, Fault>>;

    /// Applies operations as [`Self::apply`] does, for threads outside the runtime.
    ///
    /// # Errors
    /// The same as for [`Self::apply`].
    fn apply_blocking(&self, request: NamesRequest) -> Result<Vec<v1::NameResult>, Fault>;

    /// Reserves inode and object ids; returns the first id of each kind. The server never issues an id twice.
    ///
    /// # Errors
    /// If the reservation could not be stored.
    fn reserve(
        &self,
        caller: Caller,
        inodes: u32,
        objects: u32,
    ) -> NamesFuture<'_, Result<(u64, u64), Fault>>;

    /// Returns a stream of all namespace changes from now on.
    fn changes(&self) -> Changes;

    /// Returns a session number that no mount has used before.
    ///
    /// # Errors
    /// If the session number could not be stored.
    fn new_session(&self) -> NamesFuture<'_, Result<u64, Fault>>;

    /// Ends the session of a mount and releases the inodes that the mount held open.
    ///
    /// # Errors
    /// If the database fails.
    fn end_session(&self, session: u64) -> NamesFuture<'_, Result<(), Fault>>;

    /// Returns all versions that are not sealed, counted by writer and node.
    ///
    /// # Errors
    /// If the database fails.
    fn unsealed(&self) -> Result<Vec<UnsealedCount>, Fault>;

    /// Returns versions that a mount was still writing on a node when the mount disconnected, so that the server can seal or abort them: at
    /// most `limit`, in order of their objects, from the first object after `after`.
    ///
    /// # Errors
    /// If the database fails.
    fn unfinished(
        &self,
        writer: (u64, u32),
        after: u64,
        limit: usize,
    ) -> Result<Vec<Unfinished>, Fault>;

    /// Aborts versions of clients that are not mounts and sent nothing for too long.
    ///
    /// # Errors
    /// If the database fails.
    fn abandon_silent(&self) -> NamesFuture<'_, Result<(), Fault>>;

    /// Returns the sessions of mounts that may have locks.
    ///
    /// # Errors
    /// If the database fails.
    fn lockers(&self) -> Result<Vec<u64>, Fault>;

    /// Records whether a mount may have locks from now on.
    ///
    /// # Errors
    /// If the record could not be stored.
    fn set_locker(&self, session: u64, has: bool) -> NamesFuture<'_, Result<(), Fault>>;

    /// Returns the version of a file that is being written, if any. For a file with several writers, returns the object of each writer.
    ///
    /// # Errors
    /// If the database fails.
    fn written(&self, ino: u64) -> Result<Vec<OpenVersion>, Fault>;
}

/// A version that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenVersion {
    /// The object that receives the written bytes.
    pub object: u64,
    /// Session of the mount that writes the version; 0 for other clients.
    pub session: u64,
    /// Whether other mounts may write the same version.
    pub multi_writer: bool,
}

/// A version that a mount was still writing when it disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The object that the server is to seal.
    pub object: u64,
    /// The version being written: either the object itself, or the version that contains the object as a part.
    pub version: u64,
    /// The version that contains the object as a part, and the part's position; `None` if the object is a whole version.
    pub part: Option<PartOf>,
    /// Inode of the file.
    pub ino: u64,
    /// The file's user and group.
    pub owner: (u32, u32),
    /// Permission bits of the file.
    pub mode: u32,
    /// Path of the file; empty if the file no longer has a name.
    pub path: Vec<u8>,
}

/// Number of versions of one writer on one node that are not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsealedCount {
    /// Session of the mount that writes or wrote the versions; 0 for other clients.
    pub session: u64,
    /// Id of the node that stores the versions.
    pub node: u32,
    /// Number of versions that are not sealed.
    pub versions: u64,
    /// Start time of the oldest version. For clients without a session, the time of the writer's last request.
    pub oldest: i64,
}
