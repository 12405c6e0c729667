//! The server of a cluster: names, jobs, the dispatcher's driver, lineage.
//!
//! [`RunningServer::start`] opens the server's directory and serves the control protocol on a Unix socket and a TCP address. Bytes of files
//! pass through the server to a client only for files by URL (`files`).

mod access;
mod attached;
mod authentication;
mod ca;
mod check;
mod chores;
mod cluster;
mod cluster_service;
mod conditions;
pub mod elastic;
mod events;
mod feed;
mod files;
mod find;
mod headers;
mod health;
mod jobs;
mod leadership;
mod lease_recall;
mod lineage;
mod local_names;
mod locks;
mod log_copies;
mod migrations;
mod migrator;
mod namespace_service;
#[cfg(feature = "nats")]
mod nats;
mod orphaned_versions;
pub mod queue;
pub mod recovery;
mod reductions;
mod remotes;
mod removal;
mod replicas;
#[cfg(feature = "nats")]
mod replication;
mod rules;
mod scrub;
mod serve;
mod session;
#[cfg(feature = "simulation")]
pub mod simulated;
mod token_service;
mod tokens;
mod workspaces;

use tidemill_meta::clock;

pub use serve::{
    MOVE_BYTES_PER_SEC, ReplicationConfig, Role, RunningServer, ServeConfig, StartError,
};
pub use tidemill_meta::UserLimits;
