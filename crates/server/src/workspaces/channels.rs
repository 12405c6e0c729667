//! Sends each node the list of the channels that the node keeps. Next: `node/src`, which stores the channels' messages.

use crate::cluster::Cluster;
use crate::names::SqliteNames;
use crate::names::channels::kept;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1::{self, to_node::Message as To};

/// Interval at which the server checks for reconnected nodes, and for channels deleted with their workspaces.
const LOOK: Duration = Duration::from_secs(1);

/// Last list of channels sent to each node, and the number of the connection on which it was sent.
type Reported = BTreeMap<u32, (u64, Vec<v1::KeptChannel>)>;

/// Sends lists of channels to nodes as long as the server runs. New and removed channels are sent at once.
pub(crate) async fn run(names: Arc<SqliteNames>, cluster: Arc<Cluster>) {
    let mut reported = Reported::new();
    loop {
        let news = names.shared().channel_news.notified();
        let _ = tokio::time::timeout(LOOK, news).await;
        match names.database().read(kept) {
            Ok(kept) => tell(&cluster, kept, &mut reported),
            Err(fault) => fault.put_off("nodes are not notified of channels for now"),
        }
    }
}

fn tell(cluster: &Cluster, mut kept: BTreeMap<u32, Vec<v1::KeptChannel>>, reported: &mut Reported) {
    let mut now = Reported::new();
    for node in cluster.up() {
        let Some(epoch) = cluster.epoch(node) else {
            continue;
        };
        let channels = kept.remove(&node).unwrap_or_default();
        let word = (epoch, channels);
        if reported.get(&node) == Some(&word) {
            now.insert(node, word);
            continue;
        }
        let channels = word.1.clone();
        if cluster.send(node, To::Channels(v1::Channels { channels })) {
            now.insert(node, word);
        }
    }
    *reported = now;
}
