//! Planning: predicts the costs of a workflow on a cluster, before anyone buys or moves anything.
//!
//! - [`model`] contains the equations of Active Flash: staging, feasibility, energy and cost;
//! - [`advisor`] decides where a kernel should run: on the client, on the node that holds its input, or on both;
//! - [`sim`] runs jobs under a virtual clock with the dispatcher and the policies of a running cluster;
//! - [`units`] contains the quantities of the models, and [`chart`] draws their results as SVG.
//!
//! No module touches the network, a clock or a running cluster; files are read only by functions that document it.

pub mod advisor;
pub mod chart;
pub mod model;
pub mod sim;
mod suggestions;
pub mod units;
