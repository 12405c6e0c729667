//! Integration tests of the crate `tidemill-mount`, in one binary.

mod cluster;
mod commits;
mod locks;
mod mounted;
mod mountpoints;
mod names;
mod offline;
