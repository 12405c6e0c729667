//! Integration tests of the crate `tidemill-server`, in one binary.

mod budgets;
mod cluster;
mod directories;
mod edge;
mod jobs;
mod lineage;
mod local;
mod migrations;
mod model;
mod orphaned_versions;
mod posix;
mod recovery;
mod replicas;
#[path = "../../../../tests/require.rs"]
mod require;
mod rules;
mod scrub;
mod serving;
