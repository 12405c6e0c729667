//! Messages for the dispatcher's driver, in order.
//!
//! While the database can't be written, the driver decides nothing more, but nodes continue to report. The queue of messages is bounded: a
//! status replaces the earlier status of its node, and a repeated message is queued once.

use super::DriverMessage;
use crate::cluster::DriverReport;
#[cfg(feature = "simulation")]
use crate::simulated::time as clock;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Error: the server stops, and the driver with it.
#[derive(Debug)]
pub(crate) struct Stopped;

/// Messages for the dispatcher's driver that it has not processed.
#[derive(Debug)]
pub(crate) struct Inbox {
    incoming: Receiver<DriverMessage>,
    /// Messages that arrived while the driver could process none.
    waiting: VecDeque<DriverMessage>,
}

impl Inbox {
    pub(crate) fn new(incoming: Receiver<DriverMessage>) -> Self {
        Self {
            incoming,
            waiting: VecDeque::new(),
        }
    }

    /// Returns the next message, or `None` if no message arrives within `wait`.
    pub(super) fn next(&mut self, wait: Duration) -> Result<Option<DriverMessage>, Stopped> {
        if let Some(first) = self.waiting.pop_front() {
            return Ok(Some(first));
        }
        match self.incoming.recv_timeout(wait) {
            Ok(DriverMessage::Stop) | Err(RecvTimeoutError::Disconnected) => Err(Stopped),
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// Queues the messages that have arrived, without waiting; returns whether any message is available.
    #[cfg(feature = "simulation")]
    pub(crate) fn has_more(&mut self) -> bool {
        self.waiting.extend(self.incoming.try_recv());
        !self.waiting.is_empty()
    }

    /// Waits for `time` and queues the messages that arrive.
    pub(super) fn rest(&mut self, time: Duration) -> Result<(), Stopped> {
        #[cfg(feature = "simulation")]
        if clock::rest() {
            return Ok(());
        }
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.incoming.recv_timeout(left) {
                Ok(DriverMessage::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(Stopped);
                }
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

/// Returns whether the caller that sent the message no longer waits for the answer.
fn is_abandoned(message: &DriverMessage) -> bool {
    matches!(message, DriverMessage::Plan(_, answer) if answer.is_closed())
}

/// Returns whether the later message contains all content of the earlier message.
fn supersedes(later: &DriverMessage, earlier: &DriverMessage) -> bool {
    let (DriverMessage::Report(later), DriverMessage::Report(earlier)) = (later, earlier) else {
        return matches!(
            (later, earlier),
            (
                DriverMessage::NamesChanged | DriverMessage::RightsChanged,
                DriverMessage::NamesChanged
            ) | (DriverMessage::RightsChanged, DriverMessage::RightsChanged)
                | (DriverMessage::Garbage, DriverMessage::Garbage)
        );
    };
    match (&**later, &**earlier) {
        (DriverReport::Status { node: a }, DriverReport::Status { node: b })
        | (DriverReport::Up { node: a, .. }, DriverReport::Up { node: b, .. }) => a.node == b.node,
        (DriverReport::Down { node: a }, DriverReport::Down { node: b }) => a == b,
        (
            DriverReport::Started { node: a, label: x },
            DriverReport::Started { node: b, label: y },
        )
        | (
            DriverReport::Finished {
                node: a, label: x, ..
            },
            DriverReport::Finished {
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

    fn report(report: DriverReport) -> DriverMessage {
        DriverMessage::Report(Box::new(report))
    }

    fn status(node: u32, free_bytes: u64) -> DriverMessage {
        report(DriverReport::Status {
            node: v1::Node {
                node,
                free_bytes,
                ..v1::Node::default()
            },
        })
    }

    fn finished(label: u64) -> DriverMessage {
        report(DriverReport::Finished {
            node: 1,
            label,
            outcome: v1::LabelOutcome::default(),
        })
    }

    #[test]
    fn driver_inbox_stores_repeated_messages_once() {
        let (sender, incoming) = std::sync::mpsc::channel();
        let mut inbox = Inbox::new(incoming);
        for round in 0..1000 {
            for message in [
                status(1, round),
                finished(7),
                status(2, round),
                finished(8),
                DriverMessage::NamesChanged,
                DriverMessage::Garbage,
            ] {
                sender.send(message).unwrap();
            }
        }
        inbox.rest(Duration::ZERO).unwrap();
        let mut reported = Vec::new();
        while let Ok(Some(message)) = inbox.next(Duration::ZERO) {
            reported.push(format!("{message:?}"));
        }
        assert_eq!(reported.len(), 6, "{reported:#?}");
        assert!(reported[0].contains("free_bytes: 999"), "{}", reported[0]);
    }

    #[test]
    fn driver_inbox_drops_plan_requests_whose_caller_left() {
        let (sender, incoming) = std::sync::mpsc::channel();
        let mut inbox = Inbox::new(incoming);
        let mut answers = Vec::new();
        for _ in 0..3 {
            let (answer, answered) = tokio::sync::oneshot::channel();
            let job = Box::new(crate::jobs::SubmittedJob {
                spec: tidemill_model::event::JobSpec {
                    job: tidemill_model::id::JobId(0),
                    owner: tidemill_model::label::Owner::default(),
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
            sender.send(DriverMessage::Plan(job, answer)).unwrap();
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
        assert_eq!(
            left, 2,
            "the plan that a client waits for, and a node's status"
        );
    }

    #[test]
    fn driver_inbox_rest_ends_at_once_after_stop_message() {
        let (sender, incoming) = std::sync::mpsc::channel();
        let mut inbox = Inbox::new(incoming);
        sender.send(finished(1)).unwrap();
        sender.send(DriverMessage::Stop).unwrap();
        assert!(inbox.rest(Duration::from_secs(3600)).is_err());
    }
}
