//! Planning: what would a workflow take on an array, before anyone buys or moves anything?
//!
//! - [`model`] has the equations of Active Flash: staging, feasibility, energy and cost;
//! - [`advisor`] says where a kernel should run: on the host, on the element that holds its input, or on both;
//! - [`sim`] runs jobs under a virtual clock over the dispatcher and the policies of a running array;
//! - [`units`] are the quantities the models compute with, and [`chart`] draws what they find as SVG.
//!
//! Nothing here touches the network, a clock or a running array; files are read only where a function says so.

pub mod advisor;
pub mod chart;
mod misspelt;
pub mod model;
pub mod sim;
pub mod units;
