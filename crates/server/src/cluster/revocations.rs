//! Messages to the nodes about revoked capabilities (next: `meta/src/granted_capabilities.rs`).

use super::Cluster;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_meta::granted_capabilities::GrantedCapabilities;
use tidemill_wire::v1::{self, to_node::Message as To};
use tokio::time::Instant;

/// Interval at which the server checks for nodes that have reconnected.
const LOOK: Duration = Duration::from_secs(1);

/// Interval at which expired capabilities are deleted from memory.
const FORGET: Duration = Duration::from_secs(30);

/// Sends revocations to nodes as long as the server runs.
pub(crate) async fn run(granted: impl AsRef<GrantedCapabilities>, cluster: Arc<Cluster>) {
    let granted = granted.as_ref();
    let mut epochs: BTreeMap<u32, u64> = BTreeMap::new();
    let mut forgot = Instant::now();
    loop {
        let _ = tokio::time::timeout(LOOK, granted.revoked()).await;
        if forgot.elapsed() > FORGET {
            granted.forget();
            forgot = Instant::now();
        }
        let up = cluster.up().into_iter();
        let up: BTreeMap<u32, u64> = up
            .filter_map(|node| Some((node, cluster.epoch(node)?)))
            .collect();
        let reconnected = |node| up.get(&node) != epochs.get(&node);
        for (node, revoked) in granted.to_tell(reconnected) {
            cluster.send(node, To::Revoke(v1::Revoke { revoked }));
        }
        epochs = up;
    }
}
