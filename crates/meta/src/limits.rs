//! Limits that an administrator sets for each user. The limits do not apply to root and to daemons of the cluster.

use parking_lot::RwLock;

/// Limits of each user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// Maximum number of unfinished jobs of one user.
    pub jobs_each: u32,
    /// Maximum sum of the quotas of one user's workspaces, in bytes. With this limit, each workspace must have a quota. `None`: no limit.
    pub workspaces_each_bytes: Option<u64>,
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            jobs_each: 1000,
            workspaces_each_bytes: None,
        }
    }
}

/// Present limits of each user, shared by all code that checks them.
#[derive(Debug, Default)]
pub struct Allowed(RwLock<UserLimits>);

impl Allowed {
    /// Replaces the limits; later checks use the new limits, and existing jobs and workspaces stay unchanged.
    pub fn set(&self, limits: UserLimits) {
        *self.0.write() = limits;
    }

    /// Returns a copy of the limits that apply at present.
    pub fn get(&self) -> UserLimits {
        *self.0.read()
    }
}
