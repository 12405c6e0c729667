//! Connections to the server and to elements, used by everything that talks: element, mount, command line.
//!
//! [`Server`] is the control connection (gRPC), [`Objects`] moves bytes between here and elements (HTTP),
//! [`tls`] says who is at the other end of both,
//! [`LocalNames`] is a short way to the namespace of a server on this host, [`users`] are those of this host. [`transfer`] puts the two together for whole files, [`channel`] for messages. [`blocks`] are what is kept of files of stores outside. It decides nothing about placement or order.
//!
//! What those who are connected to allow others has its bounds here, too: [`guests`] for connections, [`turns`] for
//! requests, [`sparse`] for log lines.

pub mod blocks;
pub mod channel;
pub mod credential;
pub mod endpoint;
pub mod error;
pub mod follow;
pub mod guests;
pub mod host;
pub mod ids;
pub mod local;
pub mod object_file;
pub mod objects;
pub mod placed;
pub mod published;
pub mod ranged;
mod rewrite;
pub mod server;
mod silence;
pub mod sparse;
mod striped;
pub mod tls;
pub mod transfer;
pub mod turns;
pub mod users;
pub mod windows;

pub use channel::Channel;
pub use credential::Credential;
pub use endpoint::Endpoint;
pub use error::Error;
pub use local::LocalNames;
pub use objects::Objects;
pub use server::Server;
pub use tls::Trust;
