//! Messages for the driver, in order.
//!
//! While the database can't be written, the driver decides nothing more, but nodes continue to report. The queue is bounded: a
//! status replaces the earlier status, and a repeated message is queued once.

use super::Incoming;
use crate::cluster::Report;
#[cfg(feature = "simulation")]
use crate::simulated::time as clock;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The server stops.
#[derive(Debug)]
pub(crate) struct Stopped;

/// Messages for the driver.
#[derive(Debug)]
pub(crate) struct Inbox {
    incoming: Receiver<Incoming>,
    /// Messages that arrived while none could be processed.
    waiting: VecDeque<Incoming>,
}

impl Inbox {
    pub(crate) fn new(incoming: Receiver<Incoming>) -> Self {
        Self {
            incoming,
            waiting: VecDeque::new(),
        }
    }

    /// Returns the next message, if one arrives within `wait`.
    pub(super) fn next(&mut self, wait: Duration) -> Result<Option<Incoming>, Stopped> {
        if let Some(first) = self.waiting.pop_front() {
            return Ok(Some(first));
        }
        match self.incoming.recv_timeout(wait) {
            Ok(Incoming::Stop) | Err(RecvTimeoutError::Disconnected) => Err(Stopped),
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// Takes the messages that have arrived; returns whether any message is available. Does not wait.
    #[cfg(feature = "simulation")]
    pub(crate) fn has_more(&mut self) -> bool {
        self.waiting.extend(self.incoming.try_recv());
        !self.waiting.is_empty()
    }

    /// Waits for a time and queues the messages that arrive.
    pub(super) fn rest(&mut self, time: Duration) -> Result<(), Stopped> {
        #[cfg(feature = "simulation")]
        if clock::rest() {
            return Ok(());
        }
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.incoming.recv_timeout(left) {
                Ok(Incoming::Stop) | Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
                Ok(message) => {
                    self.waiting
                        .retain(|known| !supersedes(&message, known) && !is_abandoned(known));
                    self.waiting.push_back(message);
                }
                Err(RecvTimeoutError::Timeout) => return Ok(()),
            }
        }
    }
}

/// Returns whether the caller no longer waits for the answer.
fn is_abandoned(message: &Incoming) -> bool {
    matches!(message, Incoming::Plan(_, answer) if answer.is_closed())
}

/// Returns whether the later message contains all content of the earlier one.
fn supersedes(later: &Incoming, earlier: &Incoming) -> bool {
    let (Incoming::Report(later), Incoming::Report(earlier)) = (later, earlier) else {
        return matches!(
            (later, earlier),
            (Incoming::NamesChanged, Incoming::NamesChanged)
                | (Incoming::Garbage, Incoming::Garbage)
        );
    };
    match (&**later, &**earlier) {
        (Report::Status { node: a }, Report::Status { node: b })
        | (Report::Up { node: a, .. }, Report::Up { node: b, .. }) => a.node == b.node,
        (Report::Down { node: a }, Report::Down { node: b }) => a == b,
        (Report::Started { node: a, label: x }, Report::Started { node: b, label: y })
        | (
            Report::Finished {
                node: a, label: x, ..
            },
            Report::Finished {
                node: b, label: y, ..
            },
        ) => (a, x) == (b, y),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_wire::v1;

    fn report(report: Report) -> Incoming {
        Incoming::Report(Box::new(report))
    }

    fn status(node: u32, free_bytes: u64) -> Incoming {
        report(Report::Status {
            node: v1::Node {
                node,
                free_bytes,
                ..v1::Node::default()
            },
        })
    }

    fn finished(label: u64) -> Incoming {
        report(Report::Finished {
            node: 1,
            label,
            outcome: v1::LabelOutcome::default(),
        })
    }

    #[test]
    fn inbox_is_bounded_by_distinct_messages() {
        let (sender, incoming) = std::sync::mpsc::channel();
        let mut inbox = Inbox::new(incoming);
        for round in 0..1000 {
            for message in [
                status(1, round),
                finished(7),
                status(2, round),
                finished(8),
                Incoming::NamesChanged,
                Incoming::Garbage,
            ] {
                sender.send(message).unwrap();
            }
        }
        inbox.rest(Duration::ZERO).unwrap();
        let mut told = Vec::new();
        while let Ok(Some(message)) = inbox.next(Duration::ZERO) {
            told.push(format!("{message:?}"));
        }
        assert_eq!(told.len(), 6, "{told:#?}");
        assert!(told[0].contains("free_bytes: 999"), "{}", told[0]);
    }

    #[test]
    fn inbox_drops_plans_without_waiting_caller() {
        let (sender, incoming) = std::sync::mpsc::channel();
        let mut inbox = Inbox::new(incoming);
        let mut answers = Vec::new();
        for _ in 0..3 {
            let (answer, answered) = tokio::sync::oneshot::channel();
            let job = Box::new(crate::jobs::Accepted {
                spec: tidemill_core::event::JobSpec {
                    job: tidemill_core::id::JobId(0),
                    owner: tidemill_core::label::Owner::default(),
                    policy: None,
                    tasks: Vec::new(),
                },
                groups: Vec::new(),
                replace: false,
                cache: true,
                anchors: std::collections::BTreeMap::new(),
                lifetimes: Vec::new(),
                files: std::collections::BTreeMap::new(),
            });
            sender.send(Incoming::Plan(job, answer)).unwrap();
            answers.push(answered);
        }
        inbox.rest(Duration::ZERO).unwrap();
        answers.truncate(1);
        sender.send(finished(1)).unwrap();
        inbox.rest(Duration::ZERO).unwrap();
        let mut left = 0;
        while let Ok(Some(_)) = inbox.next(Duration::ZERO) {
            left += 1;
        }
        assert_eq!(left, 2, "the plan that is waited for, and what a node says");
    }

    #[test]
    fn inbox_rest_ends_at_once_on_stop() {
        let (sender, incoming) = std::sync::mpsc::channel();
        let mut inbox = Inbox::new(incoming);
        sender.send(finished(1)).unwrap();
        sender.send(Incoming::Stop).unwrap();
        assert!(inbox.rest(Duration::from_secs(3600)).is_err());
    }
}
