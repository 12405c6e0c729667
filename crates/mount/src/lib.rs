//! The mounted file system.
//!
//! `fs` is the file system and knows no FUSE; `fuse` is the thin adapter between it and the kernel, `preload` the one
//! between it and programs that have no mount;
//! [`session`] attaches and detaches, [`mountpoint`] is where. It may talk to the server and to elements through `tidemill-client`,
//! and open object files of elements on the same host in place. What it promises is in `docs/semantics.md`.

pub mod error;
mod fs;
mod fuse;
mod guard;
pub mod mountpoint;
pub mod pieces;
pub mod preload;
pub mod session;
pub mod stores;

pub use error::Error;
pub use session::{Config, Session, mount};
