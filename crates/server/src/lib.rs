//! The server of a cluster: names, jobs, the dispatcher's driver, lineage.
//!
//! [`Server::start`] opens the cluster's directory and serves the control protocol on a Unix socket and a TCP address. Bytes of files pass
//! through the server to a client only for files by URL (`files`).

mod access;
mod arrivals;
mod bound;
mod bridges;
mod ca;
mod check;
mod clock;
mod cluster;
mod cluster_service;
mod conditions;
mod corruption;
pub mod elastic;
mod ends;
mod files;
mod find;
mod gate;
mod headers;
mod health;
mod jobs;
mod limits;
mod lineage;
mod local_names;
mod locks;
mod migrations;
mod migrator;
pub mod names;
mod namespace_service;
mod notes;
pub mod queue;
pub mod rebuild;
mod recall;
mod reductions;
mod removal;
mod replicas;
mod rooms;
mod rules;
mod scrub;
mod serve;
mod session;
#[cfg(feature = "simulation")]
pub mod simulated;
mod token_service;
mod tokens;

pub use limits::Limits;
pub use serve::{Config, MOVE_BYTES_PER_SEC, Server, StartError};
