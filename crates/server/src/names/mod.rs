//! The namespace: directories, files, links and their versions.
//!
//! [`Names`] is what the rest of the server knows of it; [`SqliteNames`] keeps it in one SQLite file. It
//! knows nothing of connections and never touches the bytes of files: what must be removed from elements is
//! noted in the table `removal`, for others to carry out.

mod apply;
pub(crate) mod arrivals;
pub(crate) mod attribute;
pub(crate) mod budget;
pub(crate) mod burst;
pub(crate) mod changes;
pub(crate) mod channels;
pub(crate) mod claims;
pub(crate) mod commit;
pub(crate) mod copies;
pub(crate) mod drops;
mod emptying;
mod fault;
pub(crate) mod holdings;
pub(crate) mod ids;
mod kernels;
pub(crate) mod leaving;
pub(crate) mod lent;
pub(crate) mod lineage;
mod meant;
pub(crate) mod node;
pub(crate) mod notes;
pub(crate) mod parts;
pub(crate) mod promises;
mod quota;
pub(crate) mod reading;
mod reserve;
pub(crate) mod rooms;
pub(crate) mod schema;
pub(crate) mod shared;
pub(crate) mod sight;
pub(crate) mod spill;
mod sqlite;
pub(crate) mod together;
pub(crate) mod transaction;
mod tree;
mod version;
mod writers;

pub(crate) use apply::only_reads;
pub use changes::Changes;
pub use fault::Fault;
pub use node::Caller;
pub use schema::{OpenError, SCHEMA_VERSION};
pub use sqlite::SqliteNames;
pub(crate) use sqlite::array_id;
pub use transaction::Change;
pub(crate) use transaction::path_of;
pub(crate) use writers::SILENCE_NS_MAX;

use std::future::Future;
use std::pin::Pin;
use tidemill_core::layout::PartOf;
use tidemill_wire::v1;

/// A future of a [`Names`] method.
pub type Answered<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One batch of operations by one caller.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Whose rights they use.
    pub caller: Caller,
    /// The mount that asks; 0 if it is none.
    pub session: u64,
    /// Whether the changes must survive power loss before the answer.
    pub durable: bool,
    /// The operations, in order.
    pub ops: Vec<v1::NameOp>,
}

impl Request {
    /// A message of somebody whose rights are known. Only mounts have sessions, and they are trusted.
    pub(crate) fn of(caller: Caller, message: v1::NameRequest) -> Self {
        let session = if caller.trusted { message.session } else { 0 };
        Self {
            caller,
            session,
            durable: message.durable,
            ops: message.ops,
        }
    }
}

/// What one commit changed, and on whose behalf.
#[derive(Debug)]
pub struct Changed {
    /// The mount that asked; it knows already.
    pub session: u64,
    /// What changed.
    pub changes: Vec<Change>,
}

/// The namespace of an array.
pub trait Names: std::fmt::Debug + Send + Sync {
    /// Carries out operations in order, in one transaction: all before a failed one take effect, none after.
    ///
    /// # Errors
    /// If the changes could not be kept; then none has taken effect. Errors of single operations are among
    /// the results.
    fn apply(&self, request: Request) -> Answered<'_, Result<Vec<v1::NameResult>, Fault>>;

    /// As [`Self::apply`], for threads outside the runtime.
    ///
    /// # Errors
    /// As for [`Self::apply`].
    fn apply_blocking(&self, request: Request) -> Result<Vec<v1::NameResult>, Fault>;

    /// Reserves inode and object ids; gives the first of each. They are never given again.
    ///
    /// # Errors
    /// If the reservation could not be kept.
    fn reserve(
        &self,
        caller: Caller,
        inodes: u32,
        objects: u32,
    ) -> Answered<'_, Result<(u64, u64), Fault>>;

    /// All changes from now on.
    fn changes(&self) -> Changes;

    /// A number for a mount, never used before.
    ///
    /// # Errors
    /// If it could not be kept.
    fn new_session(&self) -> Answered<'_, Result<u64, Fault>>;

    /// A mount is gone: forgets what it had open.
    ///
    /// # Errors
    /// If the database fails.
    fn end_session(&self, session: u64) -> Answered<'_, Result<(), Fault>>;

    /// All versions that are not sealed, counted by writer and element.
    ///
    /// # Errors
    /// If the database fails.
    fn unsealed(&self) -> Result<Vec<Unsealed>, Fault>;

    /// Some of the versions that a mount was writing on an element when it went away, for others to seal or abandon:
    /// at most `limit`, in order of their objects, from the one after `after` on.
    ///
    /// # Errors
    /// If the database fails.
    fn unfinished(
        &self,
        writer: (u64, u32),
        after: u64,
        limit: usize,
    ) -> Result<Vec<Unfinished>, Fault>;

    /// Gives up versions of clients that are no mounts and have been silent for too long.
    ///
    /// # Errors
    /// If the database fails.
    fn give_up_silent(&self) -> Answered<'_, Result<(), Fault>>;

    /// The mounts that may have locks.
    ///
    /// # Errors
    /// If the database fails.
    fn lockers(&self) -> Result<Vec<u64>, Fault>;

    /// A mount may have locks from now on, or has none any more.
    ///
    /// # Errors
    /// If that could not be kept.
    fn set_locker(&self, session: u64, has: bool) -> Answered<'_, Result<(), Fault>>;

    /// The version of a file that is being written, if there is one; of several writers each one's.
    ///
    /// # Errors
    /// If the database fails.
    fn written(&self, ino: u64) -> Result<Vec<Written>, Fault>;
}

/// A version that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The object being written.
    pub object: u64,
    /// The mount that writes it; 0 if it is none.
    pub session: u64,
    /// Others may write the same version, too.
    pub together: bool,
}

/// A version that a mount was writing when it went away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The object that is to be sealed.
    pub object: u64,
    /// The version that is being written: that object, or one that it is a part of.
    pub version: u64,
    /// What the object is a part of.
    pub part: Option<PartOf>,
    /// The file.
    pub ino: u64,
    /// The file's user and group.
    pub owner: (u32, u32),
    /// Its permission bits.
    pub mode: u32,
    /// Its path; empty if it has no name any more.
    pub path: Vec<u8>,
}

/// Versions that are not sealed, of one writer on one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsealed {
    /// The mount that writes, or wrote, them; 0 for other clients.
    pub session: u64,
    /// Where.
    pub element: u32,
    /// How many.
    pub versions: u64,
    /// When the oldest was begun, or, of other clients, its writer was last heard of.
    pub oldest: i64,
}
