//! Limits for the concurrent work of one user, such as requests: the user's next request waits, and requests of other users do not.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum time that a caller waits for a permit.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of users without running work whose limit is kept in memory.
const IDLE_MAX: usize = 1024;

/// Permits of all users for concurrent work.
#[derive(Debug)]
pub struct UserPermits {
    each_max: usize,
    patience: Duration,
    users: Mutex<HashMap<u32, Arc<Semaphore>>>,
}

/// Error for a user who has too much concurrent work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "user {uid} already has {each_max} running requests of this kind: wait until one of them has ended"
)]
pub struct Busy {
    uid: u32,
    each_max: usize,
}

impl UserPermits {
    /// Returns permits with a limit of `each_max` for each user.
    #[must_use]
    pub fn new(each_max: usize) -> Self {
        Self::with_patience(each_max, PATIENCE)
    }

    /// Returns permits with a limit of `each_max` for each user, and a maximum wait of `patience`.
    #[must_use]
    pub fn with_patience(each_max: usize, patience: Duration) -> Self {
        Self {
            each_max,
            patience,
            users: Mutex::default(),
        }
    }

    /// Takes a permit of a user, until the returned value is dropped.
    ///
    /// # Errors
    /// No permit of the user becomes free in time.
    pub async fn take(&self, uid: u32) -> Result<OwnedSemaphorePermit, Busy> {
        let own = self.of(uid);
        let each_max = self.each_max;
        let busy = Busy { uid, each_max };
        let turn = tokio::time::timeout(self.patience, own.acquire_owned()).await;
        turn.map_err(|_| busy)?.map_err(|_| busy)
    }

    fn of(&self, uid: u32) -> Arc<Semaphore> {
        let mut users = self.users.lock();
        if users.len() > IDLE_MAX {
            let each_max = self.each_max;
            // A caller that waits, or is about to, shares its user's semaphore.
            users.retain(|_, own| Arc::strong_count(own) > 1 || own.available_permits() < each_max);
        }
        let new = || Arc::new(Semaphore::new(self.each_max));
        users.entry(uid).or_insert_with(new).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn user_permits_limit_one_user_and_not_others() {
        let turns = UserPermits::new(2);
        let first = turns.take(7).await.unwrap();
        let _second = turns.take(7).await.unwrap();
        let _other = turns.take(8).await.unwrap();
        assert!(
            turns
                .take(7)
                .await
                .unwrap_err()
                .to_string()
                .contains("user 7")
        );
        drop(first);
        drop(turns.take(7).await.unwrap());
    }

    #[tokio::test]
    async fn user_permits_forget_idle_users() {
        let turns = UserPermits::new(1);
        let _kept = turns.take(0).await.unwrap();
        for uid in 1..3 * u32::try_from(IDLE_MAX).unwrap() {
            drop(turns.take(uid).await.unwrap());
        }
        let users = turns.users.lock();
        assert!(users.len() <= IDLE_MAX + 1 && users.contains_key(&0));
    }
}
