//! Reasons why an element can't start or continue.

use crate::db::DbError;
use crate::store::StoreError;
use std::net::SocketAddr;
use std::path::PathBuf;
use tidemill_core::id::ElementId;

/// Reason why an element can't start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder can't be created or used.
    #[error("the element's folder {path} can't be used: {source}")]
    Folder {
        /// Path of the folder or of a file in it.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The folder can't be in memory.
    #[error("the element's folder {path} can't be in memory: {why}")]
    Memory {
        /// Path of the folder.
        path: PathBuf,
        /// Human-readable reason.
        why: String,
    },
    /// Another process uses the folder.
    #[error(
        "the folder {0} is in use by another element that runs; stop it or give another folder"
    )]
    InUse(PathBuf),
    /// The folder belongs to another element.
    #[error(
        "the folder {path} belongs to element {theirs}, not to element {ours}: give another folder or id"
    )]
    OtherElement {
        /// Path of the folder.
        path: PathBuf,
        /// Id with which the folder was created.
        theirs: String,
        /// Requested id.
        ours: ElementId,
    },
    /// The server belongs to another array.
    #[error(
        "the folder {path} belongs to array {ours:016x}, but the server at {server} is that of array {theirs:016x}: \
         give another folder or the right server"
    )]
    OtherArray {
        /// Path of the folder.
        path: PathBuf,
        /// Address of the server.
        server: String,
        /// Array of the folder.
        ours: u64,
        /// Array of the server.
        theirs: u64,
    },
    /// The database failed.
    #[error(transparent)]
    Db(#[from] DbError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The element can't serve HTTP.
    #[error("can't listen on {address}: {source}; give another address with `--listen`")]
    Listen {
        /// Address to listen on.
        address: SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The scheme of the URL differs from the scheme that the element serves.
    #[error(
        "the URL {url} is wrong: this element is reached by {scheme}://; give another with `--url`, or see `--tls`"
    )]
    Scheme {
        /// Configured URL.
        url: String,
        /// Required scheme.
        scheme: &'static str,
    },
    /// The key can't be read or created.
    #[error("the element's key can't be used: {0}")]
    Key(#[from] rcgen::Error),
    /// The certificate that the server issued can't be used.
    #[error("the element's certificate can't be used: {0}")]
    Certificate(#[from] tidemill_client::tls::Problem),
    /// The element can't confine or start kernels.
    #[error("this element can't run kernels: {0}")]
    Kernel(#[from] tidemill_kernel::SetupError),
    /// The server has taken the element out of the array.
    #[error(
        "element {element} was taken out of the array, and does not start again: give a new element another id and an empty \
         folder, and remove {path}. If the server's database was since replaced by an older copy, run \
         `sqlite3 {path}/element.db \"DELETE FROM identity WHERE key = 'removed'\"` first"
    )]
    Removed {
        /// Id of the element.
        element: ElementId,
        /// Folder of the element.
        path: PathBuf,
    },
    /// The server has suspended the element.
    #[error("the element is suspended")]
    Suspended,
    /// A thread could not be started.
    #[error("can't start a thread: {0}")]
    Thread(std::io::Error),
}
