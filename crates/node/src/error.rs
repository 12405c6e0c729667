//! Reasons why a node can't start or continue.

use crate::db::DbError;
use crate::store::StoreError;
use std::net::SocketAddr;
use std::path::PathBuf;
use tidemill_model::id::NodeId;

/// Reason why a node can't start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node's directory can't be created or used.
    #[error("the node's directory {path} can't be used: {source}")]
    Directory {
        /// Path of the directory or of a file in it.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The node's directory can't be in memory.
    #[error("the node's directory {path} can't be in memory: {why}")]
    Memory {
        /// Path of the node's directory.
        path: PathBuf,
        /// Human-readable reason.
        why: String,
    },
    /// Another process uses the node's directory.
    #[error(
        "the directory {0} is in use by another running node; stop that node or give another directory"
    )]
    InUse(PathBuf),
    /// The directory belongs to another node.
    #[error(
        "the directory {path} belongs to node {theirs}, not to node {ours}: give another directory or id"
    )]
    OtherNode {
        /// Path of the directory.
        path: PathBuf,
        /// Node id with which the directory was created.
        theirs: String,
        /// Node id that was requested.
        ours: NodeId,
    },
    /// The server belongs to another cluster.
    #[error(
        "the directory {path} belongs to cluster {ours:016x}, but the server at {server} is that of cluster {theirs:016x}: \
         give another directory or the right server"
    )]
    OtherCluster {
        /// Path of the node's directory.
        path: PathBuf,
        /// Address of the server.
        server: String,
        /// Id of the cluster that the directory belongs to.
        ours: u64,
        /// Id of the cluster that the server belongs to.
        theirs: u64,
    },
    /// The node's database returned an error.
    #[error(transparent)]
    Db(#[from] DbError),
    /// The node's store returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node can't serve HTTP.
    #[error("can't listen on {address}: {source}; give another address with `--listen`")]
    Listen {
        /// Address on which the node was to listen.
        address: SocketAddr,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The scheme of the configured URL differs from the scheme that the node serves.
    #[error(
        "the URL {url} is wrong: this node is reached by {scheme}://; give another with `--url`, or see `--tls`"
    )]
    Scheme {
        /// URL in the configuration.
        url: String,
        /// Scheme that the URL must have.
        scheme: &'static str,
    },
    /// The node's TLS key can't be read or created.
    #[error("the node's key can't be used: {0}")]
    Key(#[from] rcgen::Error),
    /// The certificate that the server issued can't be used.
    #[error("the node's certificate can't be used: {0}")]
    Certificate(#[from] tidemill_client::tls::TlsProblem),
    /// The node can't confine or start kernels.
    #[error("this node can't run kernels: {0}")]
    Kernel(#[from] tidemill_sandbox::SetupError),
    /// The server has removed the node from the cluster.
    #[error(
        "node {node} was taken out of the cluster, and does not start again: give a new node another id and an empty \
         directory, and remove {path}. If the server's database was replaced by an older copy since, run \
         `sqlite3 {path}/node.db \"DELETE FROM identity WHERE key = 'removed'\"` first"
    )]
    Removed {
        /// Id of the node.
        node: NodeId,
        /// Directory of the node.
        path: PathBuf,
    },
    /// The server has suspended the node.
    #[error("the node is suspended")]
    Suspended,
    /// A thread could not be started.
    #[error("can't start a thread: {0}")]
    Thread(std::io::Error),
}
