//! The simulator: jobs on an array under a virtual clock, over the dispatcher of a running one.
//!
//! [`Platform`] is the array, [`Workflow`] the job with run times and sizes, [`Simulation`] runs the one on the
//! other and gives a [`Report`]. The dispatcher, its policies and the fabric schedulers are those of
//! `tidemill_core`: this module only carries out, in virtual time, what they decide. `docs/planning.md` is the
//! user's page, and says what is modelled.

mod clock;
mod element;
mod engine;
mod error;
mod flow;
mod ini;
mod platform;
mod quantity;
mod report;
mod simulation;
pub mod wfformat;
mod workflow;

pub use error::{InputError, Problem, SimError};
pub use platform::{CORES_MAX, ELEMENTS_MAX, Element, LINK_ASSUMED_BYTES_PER_SEC, Platform};
pub use report::{ElementReport, EventCounts, Report, TaskReport};
pub use simulation::{Placement, Simulation};
pub use workflow::{File, Task, Workflow};
