//! Who is to be called when labels have ended.

use crate::app::Ticket;
use crate::error::Error;

/// What is called, with what waiting would give.
pub(crate) type Callback = Box<dyn FnOnce(Result<Vec<u8>, Error>) + Send>;

/// Labels that somebody wants to hear of.
#[derive(Default)]
pub(crate) struct Notices {
    waiting: Vec<(Ticket, Callback)>,
    /// Whether a thread looks after them.
    looked_after: bool,
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.waiting.len();
        f.debug_struct("Notices")
            .field("waiting", &waiting)
            .finish()
    }
}

impl Notices {
    /// Takes note of one; says whether a thread is to be started.
    pub(crate) fn add(&mut self, ticket: Ticket, callback: Callback) -> bool {
        self.waiting.push((ticket, callback));
        !std::mem::replace(&mut self.looked_after, true)
    }

    /// Those that have ended; `None` if there are no others either, and the thread has nothing to do any more.
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
