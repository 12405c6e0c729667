//! The mounted file system.
//!
//! `fs` is the file system and does not depend on FUSE; `fuse` is the thin adapter between the file system and the Linux kernel, `preload`
//! the adapter between the file system and programs without a mount; [`session`] attaches and detaches it, [`mountpoint`] manages its
//! directory; [`agent`] carries out the asynchronous requests of applications. The crate may send requests to the server and to nodes through `tidemill-client`, and open object files of nodes on the same
//! host directly. The crate's guarantees are in `docs/semantics.md` and `docs/consistency.md`.

pub mod agent;
pub mod error;
pub mod extents;
mod fs;
mod fuse;
mod guard;
pub mod mountpoint;
pub mod preload;
pub mod session;

pub use error::Error;
pub use fs::control::entries::{ControlEntry, ENTRIES as CONTROL_ENTRIES};
pub use fs::remote_stores::KeysPath;
pub use session::{MountConfig, MountSession, mount};
