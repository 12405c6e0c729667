//! Runs work on several threads, which all end before the call returns.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `work` for each item in a separate thread, for the last item in this thread. Results are in the order of the items.
pub(crate) fn in_threads<I: Send, O: Send>(
    mut items: Vec<I>,
    work: impl Fn(I) -> O + Sync,
) -> Vec<O> {
    let work = &work;
    thread::scope(|scope| {
        let last = items.pop();
        let others: Vec<_> = items
            .into_iter()
            .map(|item| scope.spawn(move || work(item)))
            .collect();
        let last = last.map(work);
        let others = others.into_iter().map(|other| match other.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        others.chain(last).collect()
    })
}

/// Items that threads take one after the other, the last first.
#[derive(Debug)]
pub(crate) struct Pile<I>(Mutex<Vec<I>>);

impl<I> Pile<I> {
    pub(crate) fn new(items: Vec<I>) -> Self {
        Self(Mutex::new(items))
    }

    /// Takes the next item of the pile; no other thread gets the item.
    pub(crate) fn take(&self) -> Option<I> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}
