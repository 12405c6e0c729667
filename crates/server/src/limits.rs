//! What an administrator allows each user. Root and parts of the array have no such bounds.

use parking_lot::RwLock;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Jobs of a user that have not ended.
    pub jobs_each: u32,
    /// Bytes that quotas of a user's rooms come to together; each room then has one. `None`: no bound.
    pub rooms_each_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            jobs_each: 1000,
            rooms_each_bytes: None,
        }
    }
}

/// Those that hold, for all who look.
#[derive(Debug, Default)]
pub(crate) struct Allowed(RwLock<Limits>);

impl Allowed {
    pub(crate) fn set(&self, limits: Limits) {
        *self.0.write() = limits;
    }

    pub(crate) fn get(&self) -> Limits {
        *self.0.read()
    }
}
