//! Pauses between attempts at work that fails.

use std::time::Duration;

/// Pauses between attempts: each pause is twice the pause before, up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Returns pauses that begin with `first` and never exceed `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// Returns the pause before the next attempt, and makes the pause after it longer.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// Returns the pause that the next call of [`Self::pause`] returns.
    #[must_use]
    pub const fn next(&self) -> Duration {
        self.next
    }

    /// Begins with the first pause again, because an attempt has succeeded.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again_after_success() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(350));
        let pauses = [(); 4].map(|()| backoff.pause());
        assert_eq!(pauses, [ms(100), ms(200), ms(350), ms(350)]);
        backoff.reset();
        assert_eq!(backoff.next(), ms(100));
        assert_eq!(backoff.pause(), ms(100));
        assert_eq!(backoff.pause(), ms(200));
    }
}
