//! Stores outside of the cluster: directories, S3, SFTP, WebDAV, HDFS, HTTP. The crate lists stores, reads ranges of their files, and
//! writes files so that no incomplete file is visible. The crate has no knowledge of the cluster (`docs/remotes.md`).

#![cfg_attr(
    not(feature = "services"),
    allow(dead_code, reason = "stores that this build lacks use the code")
)]

mod address;
mod directory;
mod error;
#[cfg(feature = "hdfs")]
mod hdfs;
mod keys;
#[cfg(feature = "services")]
mod object_store;
mod partial_file;
#[cfg(feature = "services")]
mod redirects;
mod sftp;
mod store;
mod tree;
#[cfg(feature = "services")]
mod uploads;
#[cfg(feature = "services")]
mod webhdfs;

pub use address::RemoteAddress;
pub use error::Error;
pub use keys::Keys;
pub use store::{
    DirectoryPages, FileReader, ListedItem, Lister, ListingEntry, Overwrite, PathType, Remote,
    RemoteStore, StoreFile, StoreWriter, open,
};
