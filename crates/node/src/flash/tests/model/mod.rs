//! Models for tests of the translation layer: a host that writes bytes, a device that serves requests and an analysis together in virtual
//! time, and the published write amplification.

pub(crate) mod analysis;
pub(crate) mod closed_form;
pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod timeline;
pub(crate) mod workload;
