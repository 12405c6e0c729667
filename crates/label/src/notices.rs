//! Callbacks that are called when labels have ended.

use crate::app::Ticket;
use crate::error::Error;

/// Callback that gets the result of a wait for a label.
pub(crate) type Callback = Box<dyn FnOnce(Result<Vec<u8>, Error>) + Send>;

/// Labels whose callbacks have not been called.
#[derive(Default)]
pub(crate) struct CallbackLabels {
    waiting: Vec<(Ticket, Callback)>,
    /// Whether a thread calls the callbacks.
    looked_after: bool,
}

impl std::fmt::Debug for CallbackLabels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.waiting.len();
        f.debug_struct("Notices")
            .field("waiting", &waiting)
            .finish()
    }
}

impl CallbackLabels {
    /// Adds a label and its callback. Returns whether a thread has to be started.
    pub(crate) fn add(&mut self, ticket: Ticket, callback: Callback) -> bool {
        self.waiting.push((ticket, callback));
        !std::mem::replace(&mut self.looked_after, true)
    }

    /// Returns the labels that have ended; `None` if no label with a callback is left, so that the thread ends.
    pub(crate) fn ended(&mut self) -> Option<Vec<(Ticket, Callback)>> {
        if self.waiting.is_empty() {
            self.looked_after = false;
            return None;
        }
        Some(
            self.waiting
                .extract_if(.., |(ticket, _)| ticket.test())
                .collect(),
        )
    }
}
