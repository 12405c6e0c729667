//! Sends nodes the lists of the channels that they keep. Next: `node/src`, which keeps the channels' messages.

use crate::cluster::Cluster;
use crate::names::SqliteNames;
use crate::names::channels::kept;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1::{self, to_node::Message as To};

/// Interval in which reconnected nodes, and channels deleted with their workspaces, are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// Last list sent to each node, and the connection on which it was sent.
type Reported = BTreeMap<u32, (u64, Vec<v1::KeptChannel>)>;

/// Sends lists as long as the server runs. New and removed channels are sent at once.
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
