//! Reasons why a namespace operation fails, and the errno of each reason. Only this module assigns errnos.

use rustix::io::Errno;
use std::sync::Arc;
use tidemill_model::layout::{LayoutError, PlacementError};
use tidemill_wire::v1;

/// Reason why a namespace operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The name or inode does not exist.
    #[error("{0}: no such file or directory")]
    NotFound(String),
    /// The name does not exist, but a similar name does, which the error suggests.
    #[error("{0}: no such file or directory; {1}")]
    Misspelt(String, String),
    /// The name exists already.
    #[error("{0}: exists already; choose another name or remove it first")]
    Exists(String),
    /// A component of a path is not a directory.
    #[error("{0}: not a directory")]
    NotDirectory(String),
    /// The operation can't be applied to directories.
    #[error("{0}: is a directory")]
    IsDirectory(String),
    /// The directory still has entries.
    #[error("{0}: directory is not empty")]
    NotEmpty(String),
    /// The caller lacks a permission on the path.
    #[error("{0}: permission denied for user {1}")]
    Denied(String, u32),
    /// The path contains a symbolic link of another user, which the server does not follow.
    #[error("{0}: the path leads through a symbolic link of user {1}, which is not followed")]
    ForeignLink(String, u32),
    /// Only the owner or root may do the operation.
    #[error("{0}: only its owner or root may do this")]
    NotOwner(String),
    /// A directory has more entries below it than one request may remove.
    #[error("{0}: has more than {1} files and directories below it; remove them first")]
    TooManyBelow(String, usize),
    /// Hard links to directories do not exist.
    #[error("{0}: a directory can't have a second name")]
    DirectoryLink(String),
    /// A name or path is too long.
    #[error("name has {0} bytes; a name may have 255, a path 4095")]
    NameTooLong(usize),
    /// The path contains too many symbolic links.
    #[error("{0}: more than 40 symbolic links in the path")]
    Loop(String),
    /// The name contains a slash or a zero byte, or is a reserved name such as `..`.
    #[error("{0:?} can't be a name")]
    BadName(String),
    /// The name at the root is reserved for the control directory of mounts.
    #[error("/{0}: the name belongs to the control directory of mounts; choose another")]
    Reserved(String),
    /// The directory of users' kernels may have no entry except each user's own directory.
    #[error(
        "/kernels has one directory for each user, created by that user: yours is /kernels/{0}"
    )]
    NotOwnPlace(u32),
    /// A directory can't be moved into itself.
    #[error("{0}: a directory can't be moved into itself")]
    IntoItself(String),
    /// The request is malformed.
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
    /// The locks of a mount are unknown to the server, or were revoked.
    #[error("the locks of mount {0} are not known: it was offline too long, or has to join first")]
    NotJoined(u64),
    /// The object is not the object that is being written.
    #[error("object {0} is not being written any more; another writer has taken over")]
    Stale(u64),
    /// The length of an object in a seal is not that which the object's node confirmed.
    #[error(
        "object {object} is not sealed at {size} bytes: the writer has no receipt of node {node} for that length"
    )]
    NoReceipt {
        /// The object.
        object: u64,
        /// Node on which the object is written.
        node: i64,
        /// Length in bytes that the writer declared.
        size: u64,
    },
    /// The bytes of the older version are deleted.
    #[error("version {0} of {1} is no longer kept")]
    VersionGone(u64, String),
    /// No replica of a file has the sealed content.
    #[error(
        "{0} is corrupt: on node {1} it {2}, and no other replica exists; `tidemill get --corrupt` reads its bytes unchanged"
    )]
    CorruptFile(String, u32, String),
    /// The file has too many hard links.
    #[error("{0}: has the maximum number of hard links")]
    TooManyLinks(String),
    /// The extended attribute does not exist.
    #[error("no attribute {0}")]
    NoAttribute(String),
    /// The extended attribute exists already.
    #[error("attribute {0} exists already")]
    AttributeExists(String),
    /// The attribute can only be set by the system.
    #[error("attribute {0} can't be set: the cluster computes it")]
    AttributeReadOnly(String),
    /// The attribute's name does not begin with `user.`.
    #[error("attribute {0}: only attributes in `user.` are kept")]
    AttributeUnsupported(String),
    /// An attribute's value or name is too long.
    #[error("attribute {0} is too long: names may have 255 bytes, values 65536")]
    AttributeTooLong(String),
    /// The value of a directory attribute names no node.
    #[error("{0:?} is not the number of a node")]
    BadNode(String),
    /// The value of a directory attribute is not a possible number of replicas.
    #[error("{0}")]
    BadReplicas(String),
    /// The value of a directory attribute names no tier.
    #[error("{0}")]
    BadTier(String),
    /// The value of a directory attribute names no state to wait for.
    #[error("{0}")]
    BadDurable(String),
    /// The value of `user.tidemill.wait` is neither `1` (readers wait) nor `0` (readers do not wait).
    #[error(
        "{0} is not valid for `user.tidemill.wait`: give 1 if readers wait for bytes that are still to be written, or 0"
    )]
    BadWait(String),
    /// The value of a directory attribute is not a valid layout.
    #[error(transparent)]
    BadLayout(LayoutError),
    /// The value of a directory attribute is not a valid rule, or the user may not set the rule.
    #[error("{0}")]
    BadRule(String),
    /// Only one node could store a file, and that node's backend is read-only.
    #[error(
        "{0}: its store is attached read-only, and only node {1}, which has that store, could take the file: add a node that \
         keeps files, or write elsewhere"
    )]
    StoreReadOnly(String, u32),
    /// The quota of a workspace is used up.
    #[error("{0}: the workspace is full: remove files in it, see `tidemill workspace list`")]
    WorkspaceFull(String),
    /// A file that several mounts write has too many extents.
    #[error(
        "{0} extents are too many for one file: let each writer write more bytes at once, or a file of its own"
    )]
    TooManyExtents(usize),
    /// No node could store a new file.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// An SQL statement failed.
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
    /// The database contains a row that no release can have written.
    #[error(
        "the server's database is corrupt: {0}; restore it from a backup, or recover it with `tidemill server recover`"
    )]
    Corrupt(String),
    /// The device of the server's directory is nearly full.
    #[error(
        "the device of the server's directory is nearly full: free some space on it, or remove files or jobs, then try again"
    )]
    Low,
    /// The request causes more work than one request may cause.
    #[error("this is too much for one request: ask for the rest again, in smaller requests")]
    TooMuch,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Closed,
}

impl Fault {
    /// Returns the Linux errno of the fault.
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
            Self::NoReceipt { .. } => Errno::BADMSG,
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

    /// Returns the same fault, or `TooMuch` if SQLite interrupted a statement of the request because it took too long.
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
    pub fn is_database_failure(&self) -> bool {
        matches!(
            self,
            Self::Database(_) | Self::NotKept(_) | Self::Unsynced(_) | Self::Closed
        )
    }

    /// Logs that this fault delays `what`. While the database commits no changes, nothing is logged, since the writer has logged the cause.
    pub fn log_delay(&self, what: &'static str) {
        if self.is_database_failure() || self.is_full() {
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

/// Returns whether an SQLite error means a full device. The index of the write-ahead log is also a file, and SQLite reports an input/output
/// error if that file can't grow.
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
