//! End-to-end tests: real processes, a real mount, real programs. See docs/testing.md.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod apps;
mod asynchronous_writes;
mod attached;
mod attached_faults;
mod backend;
mod book;
#[cfg(feature = "nats")]
#[path = "../../crates/server/tests/broker/mod.rs"]
mod broker;
mod burst;
mod by_grpc;
mod by_url;
mod chance;
mod cluster;
mod deployments;
mod directories;
mod dry_run;
mod elastic;
mod events;
mod examples;
mod faults;
mod files;
mod find;
mod first_day;
mod follow;
mod hooks;
mod instances;
mod intermediate;
mod jobs;
mod kernels;
mod lineage;
mod locks;
mod log;
mod mapped;
mod mapper_jobs;
mod memory_tier;
mod migrations;
mod names;
mod new_files;
mod offline;
mod offload;
mod open;
mod orphaned_versions;
mod packs;
mod plan;
mod preload;
mod provenance;
mod queue;
mod ranks;
mod reads;
mod reduce;
mod reductions;
mod remote;
mod remotes;
mod remotes_faults;
mod remotes_seen;
mod replicas;
#[path = "../require.rs"]
mod require;
mod resources;
mod results;
mod rules;
mod runtime_environment;
mod scripts;
#[path = "../../crates/remote/tests/servers/mod.rs"]
mod servers;
#[path = "../../crates/remote/tests/stand_in/mod.rs"]
#[allow(dead_code, reason = "tests of the stores need more of it")]
mod stand_in;
#[cfg(feature = "nats")]
mod standby;
mod states;
mod store;
mod stores;
mod streaming;
mod striped;
mod together;
mod traces;
mod users;
mod variables;
mod workspaces;
