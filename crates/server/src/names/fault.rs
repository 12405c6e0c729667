//! Reasons why a namespace operation fails, and the errno of each: the only place where errnos are chosen.

use rustix::io::Errno;
use std::sync::Arc;
use tidemill_core::layout::{LayoutError, PlacementError};
use tidemill_wire::v1;

/// Reason why a namespace operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No such name or inode.
    #[error("{0}: no such file or directory")]
    NotFound(String),
    /// No such name; with a suggestion.
    #[error("{0}: no such file or directory; {1}")]
    Misspelt(String, String),
    /// The name is taken.
    #[error("{0}: exists already; choose another name or remove it first")]
    Exists(String),
    /// A part of a path is not a directory.
    #[error("{0}: not a directory")]
    NotDirectory(String),
    /// The operation is not for directories.
    #[error("{0}: is a directory")]
    IsDirectory(String),
    /// A directory that has entries.
    #[error("{0}: directory is not empty")]
    NotEmpty(String),
    /// The caller lacks a permission.
    #[error("{0}: permission denied for user {1}")]
    Denied(String, u32),
    /// A symbolic link of another user, which is not followed.
    #[error("{0}: the path leads through a symbolic link of user {1}, which is not followed")]
    ForeignLink(String, u32),
    /// Only the owner or root may do this.
    #[error("{0}: only its owner or root may do this")]
    NotOwner(String),
    /// More entries below a directory than one request may remove.
    #[error("{0}: has more than {1} files and directories below it; remove them first")]
    TooManyBelow(String, usize),
    /// Hard links to directories do not exist.
    #[error("{0}: a directory can't have a second name")]
    DirectoryLink(String),
    /// A name or path is too long.
    #[error("name has {0} bytes; a name may have 255, a path 4095")]
    NameTooLong(usize),
    /// Too many symbolic links in a path.
    #[error("{0}: more than 40 symbolic links in the path")]
    Loop(String),
    /// A name with a slash, a zero byte, or a reserved one.
    #[error("{0:?} can't be a name")]
    BadName(String),
    /// A name at the root that mounts reserve for their control directory.
    #[error("/{0}: the name belongs to the control directory of mounts; choose another")]
    Reserved(String),
    /// An entry other than the caller's own directory in the directory of users' kernels.
    #[error(
        "/kernels has one directory for each user, created by that user: yours is /kernels/{0}"
    )]
    NotOwnPlace(u32),
    /// A directory moved into itself.
    #[error("{0}: a directory can't be moved into itself")]
    IntoItself(String),
    /// A malformed request.
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// Another client is writing the file.
    #[error("{0} is being written by another process; try again when it is closed")]
    Busy(String),
    /// A mount has written the file and may have closed it, but the server can't find out.
    #[error(
        "the file was written by a mount that does not answer, or can't be sealed because its node is offline; \
         try again, or see `tidemill status`"
    )]
    Unsettled,
    /// The locks of a mount are not known, or were revoked.
    #[error("the locks of mount {0} are not known: it was offline too long, or has to join first")]
    NotJoined(u64),
    /// The object is not the one being written.
    #[error("object {0} is not being written any more; another writer has taken over")]
    Stale(u64),
    /// An older version whose bytes are deleted.
    #[error("version {0} of {1} is no longer kept")]
    VersionGone(u64, String),
    /// No replica of a file has the sealed content.
    #[error(
        "{0} is corrupt: on node {1} it {2}, and no other replica exists; `tidemill get --corrupt` reads its bytes unchanged"
    )]
    CorruptFile(String, u32, String),
    /// Too many hard links.
    #[error("{0}: has the maximum number of hard links")]
    TooManyLinks(String),
    /// No such extended attribute.
    #[error("no attribute {0}")]
    NoAttribute(String),
    /// The extended attribute exists already.
    #[error("attribute {0} exists already")]
    AttributeExists(String),
    /// An attribute that only the system sets.
    #[error("attribute {0} can't be set: the cluster computes it")]
    AttributeReadOnly(String),
    /// An attribute outside `user.`.
    #[error("attribute {0}: only attributes in `user.` are kept")]
    AttributeUnsupported(String),
    /// An attribute's value or name is too long.
    #[error("attribute {0} is too long: names may have 255 bytes, values 65536")]
    AttributeTooLong(String),
    /// A directory attribute that names no node.
    #[error("{0:?} is not the number of a node")]
    BadNode(String),
    /// An impossible number of replicas.
    #[error("{0}")]
    BadReplicas(String),
    /// A directory attribute that is no tier.
    #[error("{0}")]
    BadTier(String),
    /// A directory attribute that names no state to wait for.
    #[error("{0}")]
    BadDurable(String),
    /// A value that is neither `1` (readers wait) nor `0` (they do not).
    #[error(
        "{0} is not valid for `user.tidemill.wait`: give 1 if readers wait for bytes that are still to be written, or 0"
    )]
    BadWait(String),
    /// An invalid layout.
    #[error(transparent)]
    BadLayout(LayoutError),
    /// A directory attribute that is no rule, or that may not be one.
    #[error("{0}")]
    BadRule(String),
    /// Only one node could take a file, and its store is read-only.
    #[error(
        "{0}: its store is attached read-only, and only node {1}, which has that store, could take the file: add a node that \
         keeps files, or write elsewhere"
    )]
    StoreReadOnly(String, u32),
    /// A workspace is full.
    #[error("{0}: the workspace is full: remove files in it, see `tidemill workspace list`")]
    WorkspaceFull(String),
    /// Too many extents of a file that several mounts write.
    #[error(
        "{0} extents are too many for one file: let each writer write more bytes at once, or a file of its own"
    )]
    TooManyExtents(usize),
    /// No place for a new file.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A statement failed.
    #[error("the server's database failed: {0}{advice}", advice = advice(.0))]
    Database(#[from] rusqlite::Error),
    /// The transaction could not begin or commit, so none of its changes has taken effect.
    #[error("the server's database can't store changes: {0}{advice}", advice = advice(.0))]
    NotKept(Arc<rusqlite::Error>),
    /// The change has taken effect, but may not survive power loss.
    #[error(
        "the change was made, but the server's database could not be synced: {0}; it may not survive power loss"
    )]
    Unsynced(String),
    /// A row that neither this release nor an earlier one can have written.
    #[error(
        "the server's database is corrupt: {0}; restore it from a backup, or recover it with `tidemill server recover`"
    )]
    Corrupt(String),
    /// The device of the server's directory is nearly full.
    #[error(
        "the device of the server's directory is nearly full: free some space on it, or remove files or jobs, then try again"
    )]
    Low,
    /// More work than one request may cause.
    #[error("this is too much for one request: ask for the rest again, in smaller requests")]
    TooMuch,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Closed,
}

impl Fault {
    /// Returns the Linux errno.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound(_) | Self::Misspelt(..) | Self::VersionGone(..) => Errno::NOENT,
            Self::Exists(_) | Self::AttributeExists(_) => Errno::EXIST,
            Self::NotDirectory(_) => Errno::NOTDIR,
            Self::IsDirectory(_) => Errno::ISDIR,
            Self::NotEmpty(_) | Self::TooManyBelow(..) => Errno::NOTEMPTY,
            Self::Denied(..) | Self::ForeignLink(..) => Errno::ACCESS,
            Self::NotOwner(_)
            | Self::DirectoryLink(_)
            | Self::AttributeReadOnly(_)
            | Self::NotOwnPlace(_)
            | Self::Reserved(_) => Errno::PERM,
            Self::NameTooLong(_) => Errno::NAMETOOLONG,
            Self::Loop(_) => Errno::LOOP,
            Self::BadName(_)
            | Self::IntoItself(_)
            | Self::Malformed(_)
            | Self::BadNode(_)
            | Self::BadReplicas(_)
            | Self::BadTier(_)
            | Self::BadDurable(_)
            | Self::BadWait(_)
            | Self::BadLayout(_)
            | Self::BadRule(_)
            | Self::Placement(PlacementError::Width { .. }) => Errno::INVAL,
            Self::Busy(_) => Errno::TXTBSY,
            Self::Unsettled => Errno::TIMEDOUT,
            Self::Stale(_) | Self::NotJoined(_) => Errno::STALE,
            Self::TooManyLinks(_) => Errno::MLINK,
            Self::StoreReadOnly(..) => Errno::ROFS,
            Self::WorkspaceFull(_) => Errno::DQUOT,
            Self::TooManyExtents(_) => Errno::FBIG,
            Self::NoAttribute(_) => Errno::NODATA,
            Self::AttributeUnsupported(_) => Errno::OPNOTSUPP,
            Self::AttributeTooLong(_) => Errno::TOOBIG,
            Self::Placement(PlacementError::Full(_) | PlacementError::AllFull) => Errno::NOSPC,
            Self::Placement(PlacementError::BurstFull) | Self::TooMuch => Errno::AGAIN,
            Self::Placement(_) => Errno::HOSTUNREACH,
            Self::Low => Errno::NOSPC,
            _ if self.is_full() => Errno::NOSPC,
            Self::Database(_)
            | Self::NotKept(_)
            | Self::Unsynced(_)
            | Self::Corrupt(_)
            | Self::CorruptFile(..)
            | Self::Closed => Errno::IO,
        }
    }

    /// Returns the same fault, but blames the request for a statement that took too long.
    pub(crate) fn unless_interrupted(self) -> Self {
        match self {
            Self::Database(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) =>
            {
                Self::TooMuch
            }
            other => other,
        }
    }

    /// Returns whether the database failed. The same request may succeed when the database works again.
    #[must_use]
    pub fn of_database(&self) -> bool {
        matches!(
            self,
            Self::Database(_) | Self::NotKept(_) | Self::Unsynced(_) | Self::Closed
        )
    }

    /// Logs the work that this fault delays. While the database keeps no changes, its writer has already logged the cause, once.
    pub(crate) fn put_off(&self, what: &'static str) {
        if self.of_database() || self.is_full() {
            tracing::debug!(fault = %self, "{what}");
        } else {
            tracing::warn!(fault = %self, "{what}");
        }
    }

    /// Returns whether the database has no space left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Database(error) => full(error),
            Self::NotKept(error) => full(error),
            Self::Low => true,
            _ => false,
        }
    }
}

/// Returns whether an error means a full device. The index of the write-ahead log is a file, too; SQLite reports an error of input
/// and output if the index can't grow.
fn full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
        || error
            .sqlite_error()
            .is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}

fn advice(error: &rusqlite::Error) -> &'static str {
    if full(error) {
        "; free some space on the device of the server's directory"
    } else {
        ""
    }
}

impl From<&Fault> for v1::NameError {
    fn from(fault: &Fault) -> Self {
        Self {
            errno: fault.errno().raw_os_error(),
            message: fault.to_string(),
            resuming: matches!(fault, Fault::Placement(PlacementError::Suspended(_))),
        }
    }
}
