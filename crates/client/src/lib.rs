//! Connections to the server and to nodes, for node, mount and command line. The crate decides nothing about placement or order.
//!
//! [`Server`] is the control connection (gRPC), [`Objects`] transfers bytes between this process and nodes (HTTP), and [`tls`] verifies the
//! peers of both connections. [`LocalNames`] is a direct connection to the namespace of a server on this host, and [`users`] looks up users
//! of this host. [`transfer`] combines server and nodes for whole files. [`reader`] drives the requests of all
//! readers of objects. [`blocks`] caches blocks of files in
//! stores outside of the cluster.
//!
//! The crate also contains the limits for the peers of a listener: [`connections`] for connections, [`concurrency_limit`] for requests,
//! [`log_limit`] for log lines.

mod answer_timeout;
pub mod blocks;
pub mod concurrency_limit;
pub mod connections;
pub mod credential;
pub mod endpoint;
pub mod error;
pub mod follow;
pub mod host_id;
pub mod id_pool;
pub mod local;
pub mod log_limit;
pub mod object_file;
pub mod objects;
mod opened;
pub mod placed;
pub mod published;
pub mod ranged;
pub mod reader;
mod rewrite;
pub mod server;
pub mod tls;
pub mod transfer;
pub mod users;
mod written;

pub use credential::Credential;
pub use endpoint::Endpoint;
pub use error::Error;
pub use local::LocalNames;
pub use objects::Objects;
pub use server::Server;
pub use tls::Trust;
