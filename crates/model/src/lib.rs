//! Data model of Tidemill: ids, time, labels, objects and layouts, locks, lineage, and the small grammars that several crates read.
//!
//! No module does I/O, reads a clock, starts a thread or knows a wire format.

pub mod attribute;
pub mod backoff;
pub mod calendar;
pub mod condition;
pub mod content;
pub mod directory;
pub mod display;
pub mod event;
pub mod follow;
pub mod glob;
pub mod id;
pub mod label;
pub mod layout;
pub mod lineage;
pub mod locks;
pub mod object;
pub mod processor_share;
pub mod quantity;
pub mod queue;
pub mod random;
pub mod rate_limit;
pub mod replicas;
pub mod resources;
pub mod runtime_environment;
pub mod similar_names;
pub mod substitute;
pub mod time;
pub mod timers;
pub mod user_kernels;
