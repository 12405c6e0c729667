//! The core of Tidemill without I/O: ids, time, labels, jobs, the dispatcher and its policies.
//!
//! No module does I/O, reads a clock, starts a thread or knows a wire format. The server drives this crate with real events and carries out
//! its actions over the network; the simulator of `tidemill-plan` does so under a virtual clock.

pub mod attribute;
pub mod balance;
pub mod burst;
pub mod calendar;
pub mod condition;
pub mod content;
pub mod directory;
pub mod display;
pub mod elastic;
pub mod find;
pub mod flash;
pub mod follow;
pub mod glob;
pub mod id;
pub mod job;
pub mod label;
pub mod layout;
pub mod lineage;
pub mod locks;
pub mod object;
pub mod quantity;
pub mod random;
pub mod rate_limit;
pub mod replicas;
pub mod reservation;
pub mod resources;
pub mod rule;
pub mod runtime_environment;
pub mod score;
pub mod script;
pub mod similar_names;
pub mod substitute;
pub mod time;
pub mod xml;

pub mod dispatch;
pub mod event;
pub mod policy;
pub mod queue;
