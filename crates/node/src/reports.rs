//! Reports of the node to the server, from any thread (next: `server/src/cluster.rs`).
//!
//! The module stores nothing. Without a connection it drops messages: a new connection starts with all information that the server needs.
//! So the queue only contains the unsent messages of one connection. The number of queued messages is limited by the number of labels
//! ([`tidemill_model::queue::LABELS_MAX`]).

use parking_lot::Mutex;
use tidemill_model::id::LabelId;
use tidemill_model::time::Time;
use tidemill_wire::convert::time_to_wire;
use tidemill_wire::v1::{self, from_node::Message};
use tokio::sync::mpsc;

/// Sender of reports to the server, if a connection exists.
#[derive(Debug, Default)]
pub struct Reports {
    sender: Mutex<Option<mpsc::UnboundedSender<v1::FromNode>>>,
}

impl Reports {
    /// Uses a new connection from now on and sends `hello` first. Returns the receiver of the messages for the connection.
    pub fn connect(&self, hello: v1::Hello) -> mpsc::UnboundedReceiver<v1::FromNode> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let message = Some(Message::Hello(hello));
        // This can't fail: the receiver still exists.
        let _ = sender.send(v1::FromNode { message });
        *self.sender.lock() = Some(sender);
        receiver
    }

    /// Records that the connection to the server has ended.
    pub fn disconnect(&self) {
        *self.sender.lock() = None;
    }

    /// Sends a message to the server if a connection exists.
    pub fn send(&self, message: Message) {
        if let Some(sender) = &*self.sender.lock() {
            // A broken connection is treated like a missing one.
            let _ = sender.send(v1::FromNode {
                message: Some(message),
            });
        }
    }

    /// Reports that a label has started to fetch its inputs or to run.
    pub fn started(&self, label: LabelId, time: Time, state: &str) {
        self.send(Message::Started(v1::Started {
            label: label.0,
            time: time_to_wire(time),
            state: state.into(),
        }));
    }

    /// Reports that a label has ended.
    pub fn finished(&self, label: LabelId, outcome: v1::LabelOutcome) {
        self.send(Message::Finished(v1::Finished {
            label: label.0,
            outcome: Some(outcome),
        }));
    }
}
