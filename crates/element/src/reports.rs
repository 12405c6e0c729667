//! What the element has to tell the server, from any thread.
//!
//! Nothing is kept here: while there is no connection a message is dropped, since a new connection begins
//! with all that is to be known. So this never holds more than one connection is behind, which the number
//! of labels ([`tidemill_core::queue::LABELS_MAX`]) bounds.

use parking_lot::Mutex;
use tidemill_core::id::LabelId;
use tidemill_core::time::Time;
use tidemill_wire::convert::time_to_wire;
use tidemill_wire::v1::{self, from_element::Message};
use tokio::sync::mpsc;

/// The way to the server, if there is one.
#[derive(Debug, Default)]
pub struct Reports {
    sender: Mutex<Option<mpsc::UnboundedSender<v1::FromElement>>>,
}

impl Reports {
    /// Sends by a new connection from now on, `hello` first; gives what it is to send.
    pub fn connect(&self, hello: v1::Hello) -> mpsc::UnboundedReceiver<v1::FromElement> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let message = Some(Message::Hello(hello));
        // The receiver is still in our hands.
        let _ = sender.send(v1::FromElement { message });
        *self.sender.lock() = Some(sender);
        receiver
    }

    /// The connection has ended.
    pub fn disconnect(&self) {
        *self.sender.lock() = None;
    }

    /// Sends a message if there is a connection.
    pub fn send(&self, message: Message) {
        if let Some(sender) = &*self.sender.lock() {
            // A connection that just broke is the same as none.
            let _ = sender.send(v1::FromElement {
                message: Some(message),
            });
        }
    }

    /// A label has begun to fetch its inputs or to run.
    pub fn started(&self, label: LabelId, time: Time, state: &str) {
        self.send(Message::Started(v1::Started {
            label: label.0,
            time: time_to_wire(time),
            state: state.into(),
        }));
    }

    /// A label has ended.
    pub fn finished(&self, label: LabelId, outcome: v1::LabelOutcome) {
        self.send(Message::Finished(v1::Finished {
            label: label.0,
            outcome: Some(outcome),
        }));
    }
}
