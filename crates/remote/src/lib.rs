//! Stores outside of the cluster: directories, S3, SFTP, WebDAV, HDFS, HTTP. The crate lists stores, reads ranges of their files, and
//! writes files so that no incomplete file is visible. The crate has no knowledge of the cluster (`docs/remotes.md`).

mod address;
mod browse;
mod directory;
mod error;
#[cfg(feature = "hdfs")]
mod hdfs;
mod keys;
mod object_store;
mod partial_file;
mod redirects;
mod sftp;
mod store;
mod tree;
mod uploads;
mod webhdfs;

pub use address::RemoteAddress;
pub use browse::{DirectoryPages, ListingEntry, PathType};
pub use error::Error;
pub use keys::Keys;
pub use store::{FileReader, ListedItem, Lister, Overwrite, Remote, StoreFile, StoreWriter};
