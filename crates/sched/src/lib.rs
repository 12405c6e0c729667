//! Dispatcher, policies and placement: pure state machines and functions.
//!
//! The server drives [`dispatch`] with real events and carries out its actions over the network; the simulator of `tidemill-plan` does so
//! under a virtual clock.

pub mod balance;
pub mod burst;
pub mod dispatch;
pub mod elastic;
pub mod policy;
pub mod reservation;
pub mod score;
