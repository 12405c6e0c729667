//! End-to-end tests: real processes, a real mount, real programs. See docs/testing.md.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod apps;
mod arrivals;
mod asked;
mod bound;
mod bound_faults;
mod bridges;
mod bridges_faults;
mod bridges_seen;
#[cfg(feature = "nats")]
#[path = "../../crates/server/tests/broker/mod.rs"]
mod broker;
mod burst;
mod by_grpc;
mod by_url;
mod chance;
mod channels;
mod cluster;
mod components;
mod deployments;
mod directories;
mod dry_run;
mod elastic;
mod ends;
mod examples;
mod faults;
mod files;
mod find;
mod first_day;
mod follow;
mod given_away;
mod hooks;
mod intermediate;
mod jobs;
mod kernels;
mod lineage;
mod locks;
mod mapped;
mod migrations;
mod names;
mod new_files;
mod offline;
mod offload;
mod open;
mod outside;
mod packs;
mod pipelined;
mod plan;
mod preload;
mod provenance;
mod queue;
mod ranks;
mod reads;
mod reduce;
mod reductions;
mod remote;
mod replicas;
#[path = "../require.rs"]
mod require;
mod resources;
mod results;
mod rooms;
mod rules;
mod scripts;
#[path = "../../crates/bridge/tests/servers/mod.rs"]
mod servers;
#[path = "../../crates/bridge/tests/stand_in/mod.rs"]
#[allow(dead_code, reason = "tests of the stores need more of it")]
mod stand_in;
mod states;
mod store;
mod stores;
mod striped;
mod surroundings;
mod together;
mod traces;
mod users;
mod variables;
mod warehouse;
