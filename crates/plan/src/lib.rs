//! Planning: predicts the costs of a workflow on a cluster before anyone buys hardware or moves data.
//!
//! - [`model`] contains the equations of Active Flash: staging, feasibility, energy and cost;
//! - [`advisor`] decides where a kernel should run: on the client, on the node that holds its input, or on both;
//! - [`sim`] runs jobs under a virtual clock with the dispatcher and the policies of a running cluster;
//! - [`units`] contains the quantities of the models, and [`chart`] draws their results as SVG.
//!
//! No module accesses the network, a clock or a running cluster; only functions that document it read files.

pub mod advisor;
pub mod chart;
pub mod model;
pub mod sim;
mod suggestions;
pub mod units;
pub mod xml;
