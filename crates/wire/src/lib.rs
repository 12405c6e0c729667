//! Formats on the network: the protobuf services, the HTTP routes of a node, capabilities, and the conversions between messages and the
//! types of the data model.
//!
//! The crate only defines formats: it opens no connection.

pub mod capability;
pub mod condition;
pub mod control;
pub mod convert;
pub mod descriptors;
pub mod lineage;
pub mod local;
pub mod replicas;
pub mod route;
pub mod size_limits;

/// Version of the control protocol. Peers of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 1;

/// Maximum size of a control message, in bytes. Larger requests are split into batches.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Maximum size of a job script of an ordinary user, in bytes, also through the control directory.
pub const USER_SCRIPT_BYTES_MAX: usize = 4 << 20;

/// Maximum size of a request of an ordinary user, in bytes: the largest job script, and the rest of its message.
pub const USER_MESSAGE_BYTES_MAX: usize = USER_SCRIPT_BYTES_MAX + (1 << 20);

/// The generated protobuf messages, clients and servers.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    clippy::cast_possible_truncation,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod v1 {
    tonic::include_proto!("tidemill.v1");
}

/// The generated protobuf messages and clients for labels of applications, which agents serve.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    clippy::cast_possible_truncation,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod labels {
    tonic::include_proto!("tidemill.labels.v1");
}
