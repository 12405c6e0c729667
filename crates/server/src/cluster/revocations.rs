//! Messages to the nodes about revoked capabilities (next: `meta/src/granted_capabilities.rs`).

use super::Cluster;
use crate::chores::{Chore, Due, Step};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::Fault;
use tidemill_meta::shared::NamesShared;
use tidemill_meta::wakes::{NODES, REVOKED};
use tidemill_model::timers::Signals;
use tidemill_wire::v1::{self, to_node::Message as To};

/// Interval at which expired capabilities are deleted from memory.
const FORGET: Duration = Duration::from_secs(30);

/// Sends revocations to nodes: new ones to all of their nodes, and all to a node that has reconnected.
pub(crate) struct Revocations {
    shared: Arc<NamesShared>,
    cluster: Arc<Cluster>,
    /// Connections of the nodes at the last step.
    epochs: BTreeMap<u32, u64>,
}

impl Revocations {
    pub(crate) fn new(shared: &Arc<NamesShared>, cluster: &Arc<Cluster>) -> Self {
        Self {
            shared: shared.clone(),
            cluster: cluster.clone(),
            epochs: BTreeMap::new(),
        }
    }
}

impl Chore for Revocations {
    fn delays(&self) -> &'static str {
        "revocations are postponed"
    }

    fn woken_by(&self) -> Signals {
        NODES.and(REVOKED)
    }

    fn rest(&self) -> Duration {
        Duration::ZERO
    }

    fn due(&mut self, _: i64) -> Result<Due, Fault> {
        Ok(Due::NOW)
    }

    fn step(&mut self, _: i64) -> Step<'_> {
        let granted = self.shared.granted();
        granted.forget();
        let epochs = self.cluster.epochs();
        let reconnected = |node| epochs.get(&node) != self.epochs.get(&node);
        for (node, revoked) in granted.to_tell(reconnected) {
            self.cluster.send(node, To::Revoke(v1::Revoke { revoked }));
        }
        self.epochs = epochs;
        let again = match granted.any() {
            true => Due::After(FORGET),
            false => Due::Woken,
        };
        Box::pin(std::future::ready(Ok(again)))
    }
}
