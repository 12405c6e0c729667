//! The simulator: runs jobs on a cluster under a virtual clock, with the dispatcher of a running cluster.
//!
//! [`Platform`] is the cluster, and [`Workflow`] is the job with run times and sizes; [`Simulation`] runs the job on the cluster and
//! returns a [`SimulationReport`]. The dispatcher, its policies and the ledger of free resources are those of `tidemill_sched`: this module
//! only carries out the decisions in virtual time. `docs/planning.md` is the user's page; `docs/simulator.md` describes the model.
//!
//! ```
//! use tidemill_plan::sim::{Placement, Platform, Simulation, job};
//!
//! let platform = "[AFE]\n cores_per_afe = 2\n read_bandwidth = 550 # MB/s\n write_bandwidth = 450\n \
//!                 read_latency = 15 # ms\n write_latency = 15\n [SERVER]\n number_afes = 4\n";
//! let platform = Platform::parse("cluster.ini", platform)?;
//! let script = r#"name = "two"; workdir = "/w"; tasks = (
//!     { name = "a"; kernel = "sort"; input = [ "raw" ]; output = [ "sorted" ]; },
//!     { name = "b"; kernel = "head"; input = [ "sorted" ]; output = [ "top" ]; } );"#;
//! let costs = r#"
//!     [files]
//!     raw = "100 MB"
//!     sorted = "100 MB"
//!     top = 1000
//!     [kernels]
//!     sort = { rate = "50 MB/s" }
//!     head = { time = "10 ms" }"#;
//! let workflow = job::parse("two.conf", script, "costs.toml", costs)?;
//! let report = Simulation::new(&platform, &workflow)
//!     .policy("min-wait")
//!     .placement(Placement::RoundRobin)
//!     .run()?;
//! assert_eq!(report.tasks.len(), 2);
//! assert_eq!(report.transferred_bytes, 0);
//! println!("{}", report.text());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
pub mod compare;
pub mod elastic;
mod engine;
mod error;
mod faults;
mod flow;
pub mod gantt;
mod ini;
pub mod job;
mod json;
mod node;
mod platform;
mod quantity;
mod report;
mod simulation;
mod source;
pub mod sweep;
pub mod trace;
pub mod wfformat;
mod workflow;

pub use error::{FileProblem, InputError, SimError};
pub use platform::{CORES_MAX, LINK_ASSUMED_BYTES_PER_SEC, NODES_MAX, Platform, PlatformNode};
pub use report::{EventCounts, NodeReport, SimulationReport, TaskReport};
pub use simulation::{Allocation, Placement, Simulation};
pub use source::{SourceKind, source};
pub use workflow::{Reused, StripedFile, Workflow, WorkflowFile, WorkflowTask};
