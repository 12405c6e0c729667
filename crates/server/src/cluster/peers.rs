//! Addresses of the nodes, which other nodes need to fetch inputs. This module decides which addresses a node is sent; `Cluster` sends them.
//!
//! A node gets all addresses when it connects, and afterwards only the changes. The queue of messages to a node never has more than one list:
//! the content is read when the list leaves the queue. When all nodes connect at once, a busy node therefore gets few lists. A label that
//! follows a list in the queue never names a node that the list lacks.

use super::Cluster;
use std::collections::BTreeMap;
use tidemill_meta::wakes::NODES;
use tidemill_wire::v1::{self, to_node::Message as To};

/// Numbers of the last change of each node's address, or of its removal from the list.
#[derive(Debug, Default)]
pub(super) struct AddressChanges {
    last: u64,
    of: BTreeMap<u32, u64>,
    nodes: BTreeMap<u64, u32>,
}

impl AddressChanges {
    fn on_change(&mut self, node: u32) {
        self.last += 1;
        if let Some(before) = self.of.insert(node, self.last) {
            self.nodes.remove(&before);
        }
        self.nodes.insert(self.last, node);
    }

    /// Returns the nodes with a later change than `number`.
    fn since(&self, number: u64) -> impl Iterator<Item = u32> {
        self.nodes.range(number + 1..).map(|(_, &node)| node)
    }
}

/// Addresses that a connected node knows.
#[derive(Debug, Default)]
pub(super) struct KnownAddresses {
    /// Number of the last change that was sent.
    sent: u64,
    /// Whether a list is in the queue of messages to the node.
    queued: bool,
}

impl Cluster {
    /// Sends the address of a node, or its removal, to every node that is up.
    pub(crate) fn tell_peers(&self, node: u32) {
        self.shared.wakes.wake(NODES);
        self.addresses.lock().on_change(node);
        let mut slots = self.slots.lock();
        for slot in slots.values_mut() {
            let connection = slot.connection.as_mut();
            let is_queued =
                connection.is_none_or(|it| std::mem::replace(&mut it.known.queued, true));
            if !is_queued {
                slot.send(To::Peers(v1::Peers::default()));
            }
        }
    }

    /// Completes a message that leaves the queue of messages to a node: a list of addresses gets its content.
    pub(crate) fn complete_message(&self, node: u32, epoch: u64, message: &mut v1::ToNode) {
        let Some(To::Peers(peers)) = &mut message.message else {
            return;
        };
        let addresses = self.addresses.lock();
        let mut slots = self.slots.lock();
        let slot = slots.get_mut(&node).filter(|slot| slot.epoch == epoch);
        let Some(connection) = slot.and_then(|slot| slot.connection.as_mut()) else {
            return;
        };
        connection.known.queued = false;
        let since = std::mem::replace(&mut connection.known.sent, addresses.last);
        peers.whole = since == 0;
        for node in addresses.since(since) {
            match slots.get(&node).filter(|slot| slot.connection.is_some()) {
                Some(slot) => peers.nodes.push(address(&slot.status)),
                None if peers.whole => {}
                None => peers.offline.push(node),
            }
        }
    }
}

/// Returns the part of a node's status that other nodes need.
fn address(status: &v1::Node) -> v1::Node {
    v1::Node {
        node: status.node,
        url: status.url.clone(),
        host: status.host.clone(),
        directory: status.directory.clone(),
        up: true,
        ..v1::Node::default()
    }
}
