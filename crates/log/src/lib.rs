//! Log of a SQLite database in WAL mode (next: `log/src/writer.rs`).
//!
//! The log is a directory of encrypted files. A **snapshot** has all pages of the database at one moment. A **segment** has the pages that
//! changed since the segment before it. [`restore`] makes a database, byte for byte equal to the logged one, from a snapshot and the
//! segments after it. The files may be copied anywhere, and each file shows whether it was changed, truncated or renamed.
//!
//! A log begins with each start of the server, with a snapshot and a **term** that is higher than that of each earlier log.
//! [docs/formats-log.md](../../../docs/formats-log.md) describes the files.

mod database_file;
mod file;
mod follower;
mod name;
mod pages;
mod replicator;
mod restore;
mod wal;
mod writer;

pub use file::{AttachedFile, FileProblem, LogKey};
pub use follower::Follower;
pub use name::{FileKind, FileName, names_in};
pub use replicator::{
    Deposed, Record, RecordBase, RecordSender, Replicator, ReplicatorSettings, SnapshotFile,
};
pub use restore::{RestoreError, Restored, restore};
pub use writer::{Checkpoints, LogSettings, LogStatus, LogWriter};
