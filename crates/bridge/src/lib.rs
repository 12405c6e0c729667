//! Stores outside of the cluster: directories, S3, SFTP, WebDAV, HDFS, HTTP. The crate lists them, reads ranges of their files, and writes files
//! so that no incomplete file is visible. It has no knowledge of the cluster (`docs/bridges.md`).

mod directory;
mod error;
#[cfg(feature = "hdfs")]
mod hdfs;
mod keys;
mod look;
mod part;
mod place;
mod reach;
mod remote;
mod sftp;
mod store;
mod tree;
mod uploads;
mod webhdfs;

pub use error::Error;
pub use keys::Keys;
pub use look::{Entries, Entry, Seen};
pub use place::Place;
pub use store::{Bridge, Listed, Lister, Object, Over, Reader, Writer};
