//! Queue of labels outside of the server: it survives deaths of servers, and is unreachable at times.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_model::id::{LabelId, NodeId};
use tidemill_model::label::Label;
use tidemill_server::queue::{LabelQueue, MemoryQueue, Unavailable};

/// Simulated queue of labels outside of the server.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    pub(crate) labels: MemoryQueue,
    /// Whether the queue executes no requests.
    offline: AtomicBool,
    /// Whether the queue executes requests, but its answers are lost.
    mute: AtomicBool,
}

impl Broker {
    /// Sets the failures of the queue from now on.
    pub(crate) fn fail(&self, offline: bool, mute: bool) {
        self.offline.store(offline, Ordering::Relaxed);
        self.mute.store(mute, Ordering::Relaxed);
    }

    fn ask<T>(
        &self,
        question: impl FnOnce(&MemoryQueue) -> Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        let lost = || Unavailable("the broker does not answer".into());
        if self.offline.load(Ordering::Relaxed) {
            return Err(lost());
        }
        let answer = question(&self.labels)?;
        if self.mute.load(Ordering::Relaxed) {
            return Err(lost());
        }
        Ok(answer)
    }
}

impl LabelQueue for Broker {
    fn enqueue(&self, node: NodeId, labels: Vec<Label>) -> Result<(), Unavailable> {
        self.ask(|queue| queue.enqueue(node, labels))
    }

    fn fetch(&self, node: NodeId) -> Result<Vec<Label>, Unavailable> {
        self.ask(|queue| queue.fetch(node))
    }

    fn acknowledge(&self, node: NodeId, labels: &[LabelId]) -> Result<(), Unavailable> {
        self.ask(|queue| queue.acknowledge(node, labels))
    }

    fn redeliver(&self, node: NodeId, known: &BTreeSet<LabelId>) -> Result<(), Unavailable> {
        self.ask(|queue| queue.redeliver(node, known))
    }
}
