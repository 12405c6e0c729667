//! Reasons why a node can't start or continue.

use crate::db::DbError;
use crate::store::StoreError;
use std::net::SocketAddr;
use std::path::PathBuf;
use tidemill_core::id::NodeId;

/// Reason why a node can't start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder can't be created or used.
    #[error("the node's folder {path} can't be used: {source}")]
    Folder {
        /// Path of the folder or of a file in it.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The folder can't be in memory.
    #[error("the node's folder {path} can't be in memory: {why}")]
    Memory {
        /// Path of the folder.
        path: PathBuf,
        /// Human-readable reason.
        why: String,
    },
    /// Another process uses the folder.
    #[error("the folder {0} is in use by another node that runs; stop it or give another folder")]
    InUse(PathBuf),
    /// The folder belongs to another node.
    #[error(
        "the folder {path} belongs to node {theirs}, not to node {ours}: give another folder or id"
    )]
    OtherNode {
        /// Path of the folder.
        path: PathBuf,
        /// Id with which the folder was created.
        theirs: String,
        /// Requested id.
        ours: NodeId,
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
    /// The node can't serve HTTP.
    #[error("can't listen on {address}: {source}; give another address with `--listen`")]
    Listen {
        /// Address to listen on.
        address: SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The scheme of the URL differs from the scheme that the node serves.
    #[error(
        "the URL {url} is wrong: this node is reached by {scheme}://; give another with `--url`, or see `--tls`"
    )]
    Scheme {
        /// Configured URL.
        url: String,
        /// Required scheme.
        scheme: &'static str,
    },
    /// The key can't be read or created.
    #[error("the node's key can't be used: {0}")]
    Key(#[from] rcgen::Error),
    /// The certificate that the server issued can't be used.
    #[error("the node's certificate can't be used: {0}")]
    Certificate(#[from] tidemill_client::tls::Problem),
    /// The node can't confine or start kernels.
    #[error("this node can't run kernels: {0}")]
    Kernel(#[from] tidemill_kernel::SetupError),
    /// The server has taken the node out of the array.
    #[error(
        "node {node} was taken out of the array, and does not start again: give a new node another id and an empty \
         folder, and remove {path}. If the server's database was since replaced by an older copy, run \
         `sqlite3 {path}/node.db \"DELETE FROM identity WHERE key = 'removed'\"` first"
    )]
    Removed {
        /// Id of the node.
        node: NodeId,
        /// Folder of the node.
        path: PathBuf,
    },
    /// The server has suspended the node.
    #[error("the node is suspended")]
    Suspended,
    /// A thread could not be started.
    #[error("can't start a thread: {0}")]
    Thread(std::io::Error),
}
