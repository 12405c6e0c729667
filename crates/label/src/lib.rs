//! Labels of applications: asynchronous requests (next: `label/src/agent.rs`).
//!
//! An application registers and publishes labels. A label is a request: write, read, delete or rename a file. Publishing is a copy into
//! memory that a file of this host backs. So publishing takes as long as a copy, and a published label survives the end of any process. The
//! user's **agent** carries the label out through the mount, merges related labels, and continues after the application has ended.
//! [docs/labels.md](../../../docs/labels.md) describes the guarantees.
//!
//! ```no_run
//! use tidemill_label::{App, LabelRequest, RegistrationOptions};
//!
//! let app = App::register("simulation", &RegistrationOptions::default())?;
//! let step = vec![0_u8; 1 << 20];
//! let written = app.publish(&LabelRequest::write("tidemill:/run/step-1", 0, &step))?;
//! // … the computation continues …
//! written.wait()?; // stored in the cluster, visible to all
//! # Ok::<(), tidemill_label::Error>(())
//! ```

pub mod agent;
mod analysis;
mod app;
pub mod apps;
pub mod c;
mod directory;
mod error;
mod events;
mod execute;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod intent;
mod jobs;
mod limits;
mod log;
mod new_files;
mod notices;
#[doc(hidden)]
pub mod request_scheduler;
mod root;
mod shared;
mod shared_index;

pub use analysis::FileAnalysis;
pub use app::{App, LabelRequest, RegistrationOptions, Ticket, wait_all, wait_any, wait_some};
pub use directory::mounts;
pub use error::Error;
pub use events::{FileEvent, Subscription};
pub use intent::Intent;
