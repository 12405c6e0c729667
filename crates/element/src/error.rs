//! Why an element can't start or go on.

use crate::db::DbError;
use crate::store::StoreError;
use std::net::SocketAddr;
use std::path::PathBuf;
use tidemill_core::id::ElementId;

/// Why an element can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its folder can't be made or used.
    #[error("the element's folder {path} can't be used: {source}")]
    Folder {
        /// The folder or a file in it.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It can't keep what it has in memory there.
    #[error("the element's folder {path} can't be in memory: {why}")]
    Memory {
        /// The folder.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Another process has it.
    #[error(
        "the folder {0} is in use by another element that runs; stop it or give another folder"
    )]
    InUse(PathBuf),
    /// The folder is that of another element.
    #[error(
        "the folder {path} belongs to element {theirs}, not to element {ours}: give another folder or id"
    )]
    OtherElement {
        /// The folder.
        path: PathBuf,
        /// The id it was made with.
        theirs: String,
        /// The id that was asked for.
        ours: ElementId,
    },
    /// The server is that of another array.
    #[error(
        "the folder {path} belongs to array {ours:016x}, but the server at {server} is that of array {theirs:016x}: \
         give another folder or the right server"
    )]
    OtherArray {
        /// The folder.
        path: PathBuf,
        /// Where the server is.
        server: String,
        /// The array of the folder.
        ours: u64,
        /// The array of the server.
        theirs: u64,
    },
    /// Its database.
    #[error(transparent)]
    Db(#[from] DbError),
    /// Its objects.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It can't serve HTTP.
    #[error("can't listen on {address}: {source}; give another address with `--listen`")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its URL does not say how it serves.
    #[error(
        "the URL {url} is wrong: this element is reached by {scheme}://; give another with `--url`, or see `--tls`"
    )]
    Scheme {
        /// The URL that was given.
        url: String,
        /// What it has to begin with.
        scheme: &'static str,
    },
    /// Its key can't be read or made.
    #[error("the element's key can't be used: {0}")]
    Key(#[from] rcgen::Error),
    /// The certificate that the server made can't be used.
    #[error("the element's certificate can't be used: {0}")]
    Certificate(#[from] tidemill_client::tls::Problem),
    /// It can't confine or start kernels.
    #[error("this element can't run kernels: {0}")]
    Kernel(#[from] tidemill_kernel::SetupError),
    /// The server has taken it out of the array.
    #[error(
        "element {element} was taken out of the array, and does not start again: give a new element another id and an empty \
         folder, and remove {path}. If the server's database was since replaced by an older copy, run \
         `sqlite3 {path}/element.db \"DELETE FROM identity WHERE key = 'removed'\"` first"
    )]
    Removed {
        /// Its id.
        element: ElementId,
        /// Its folder.
        path: PathBuf,
    },
    /// The server has had it suspended.
    #[error("the element is suspended")]
    Suspended,
    /// A thread could not be started.
    #[error("can't start a thread: {0}")]
    Thread(std::io::Error),
}
