//! State of one node, for commands that show it and for dry runs.

use anyhow::Context as _;
use tidemill_client::Server;
use tidemill_wire::v1;

/// State of a node that is to be drained or removed.
#[derive(Debug)]
pub(super) struct NodeState {
    /// The node.
    pub(super) node: v1::Node,
    /// Progress of its drain, if it is being drained.
    pub(super) drain: Option<v1::Drain>,
    /// Number of the other nodes that take files now.
    pub(super) others: u64,
    /// Free bytes of these nodes.
    pub(super) free_bytes: u64,
}

impl NodeState {
    /// Asks the server.
    ///
    /// # Errors
    /// If the cluster has no such node, or the caller is no administrator.
    pub(super) async fn ask(server: &Server, number: u32) -> anyhow::Result<Self> {
        let status = server.status().await?;
        let node = find(&status.nodes, number)?.clone();
        let takes = |other: &&v1::Node| {
            let stores = other.role == "store" && other.tier.is_empty();
            other.node != number && other.up && !other.emptied && stores
        };
        let others: Vec<&v1::Node> = status.nodes.iter().filter(takes).collect();
        let drains = drains(server).await?;
        Ok(Self {
            node,
            drain: drains.into_iter().find(|drain| drain.node == number),
            others: others.len() as u64,
            free_bytes: others.iter().map(|other| other.free_bytes).sum(),
        })
    }

    /// Returns the bytes that are in use on its device.
    pub(super) fn used_bytes(&self) -> u64 {
        let node = &self.node;
        node.capacity_bytes.saturating_sub(node.free_bytes)
    }
}

/// Returns the nodes that are being drained.
///
/// # Errors
/// If the caller is no administrator.
pub(super) async fn drains(server: &Server) -> anyhow::Result<Vec<v1::Drain>> {
    let listed = server.answer(server.places().list(v1::MigrationsRequest {}).await)?;
    Ok(listed.drains)
}

/// Returns the node with this number.
///
/// # Errors
/// If the cluster has no such node.
pub(super) fn find(nodes: &[v1::Node], number: u32) -> anyhow::Result<&v1::Node> {
    let found = nodes.iter().find(|node| node.node == number);
    found.with_context(|| {
        format!(
            "no such node: {number} is not in the cluster; `tidemill node list` lists the nodes"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_node_is_named() {
        let nodes = [v1::Node {
            node: 3,
            ..v1::Node::default()
        }];
        assert_eq!(find(&nodes, 3).unwrap().node, 3);
        let error = find(&nodes, 4).unwrap_err().to_string();
        assert!(
            error.contains("no such node: 4") && error.contains("node list"),
            "{error}"
        );
    }
}
