//! Tests of the dispatcher from the view of its driver: single scenarios, and random ones under faults.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::cast_possible_truncation, reason = "small random numbers")]

mod cluster;
mod faults;
mod scenarios;
