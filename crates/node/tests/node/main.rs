//! Integration tests of the crate `tidemill-node`, in one binary.

mod cluster;
mod directories;
mod fetch;
mod flash_model;
mod full;
mod http;
mod labels;
mod recovery;
mod replicas;
mod scrub;
mod selection;
mod store;
