//! Languages of users: job files, rules and hooks, and conditions of `find`. No module does I/O; a caller passes the text and resolves names.

pub mod find;
pub mod job;
pub mod rule;
pub mod script;
