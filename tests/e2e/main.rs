//! End-to-end tests: real processes, a real mount, real programs. See docs/testing.md.

mod array;
mod faults;
mod files;
mod jobs;
mod lineage;
mod scripts;
