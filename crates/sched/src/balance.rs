//! Planning of migrations of bytes between nodes, so that all nodes reach the same fill level. This module does no I/O.

use tidemill_model::id::NodeId;

/// Online node that accepts files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFill {
    /// Id of the node.
    pub node: NodeId,
    /// Failure domain of the node: its host.
    pub host: String,
    /// Size of the node's files, in bytes.
    pub held_bytes: u64,
    /// Free space of the node, in bytes.
    pub free_bytes: u64,
}

/// Bytes to move from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeFlow {
    source: usize,
    target: usize,
    left: u64,
}

/// Migrations that make the fill levels of all nodes equal.
#[derive(Clone, Debug)]
pub struct BalancePlan {
    fills: Vec<NodeFill>,
    flows: Vec<NodeFlow>,
}

impl NodeFill {
    /// Returns the space that files on the node could take: stored files plus free space, in bytes.
    fn could(&self) -> u128 {
        u128::from(self.held_bytes) + u128::from(self.free_bytes)
    }
}

/// Returns whether the fill level of node `more` exceeds that of node `less` by more than `percent` percent of capacity.
fn differ(more: &NodeFill, less: &NodeFill, percent: u32) -> bool {
    let (could, other) = (more.could(), less.could());
    let held = u128::from(more.held_bytes).saturating_mul(other);
    let held_other = u128::from(less.held_bytes).saturating_mul(could);
    let differ = held.saturating_sub(held_other);
    differ > could.saturating_mul(other) / 100 * u128::from(percent)
}

impl BalancePlan {
    /// Plans the migrations; the plan is empty if no two nodes differ by more than `within_percent` percent of their capacity.
    #[must_use]
    pub fn new(fills: &[NodeFill], within_percent: u32) -> Self {
        let differ = |more: &NodeFill| fills.iter().any(|less| differ(more, less, within_percent));
        let flows = match fills.iter().any(differ) {
            true => flows(fills),
            false => Vec::new(),
        };
        Self {
            fills: fills.to_vec(),
            flows,
        }
    }

    /// Returns whether no migrations are left in the plan.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.flows.iter().all(|flow| flow.left == 0)
    }

    /// Returns the target node for an object of `size` bytes on `source`, if the object must be moved; the nodes `others` have replicas of
    /// the object, too. Replicas on different hosts stay on different hosts.
    pub fn take(&mut self, source: NodeId, size: u64, others: &[NodeId]) -> Option<NodeId> {
        let fills = &self.fills;
        let host = |node: &NodeId| {
            let fill = fills.iter().find(|fill| fill.node == *node);
            fill.map(|fill| fill.host.as_str())
        };
        let fits = |flow: &&mut NodeFlow| {
            let target = &fills[flow.target];
            let mut holding = others.iter();
            fills[flow.source].node == source
                && flow.left >= size
                && !holding
                    .any(|other| *other == target.node || host(other) == Some(target.host.as_str()))
        };
        let flow = self.flows.iter_mut().find(fits)?;
        flow.left -= size;
        Some(fills[flow.target].node)
    }
}

/// Returns the migrations from nodes above the mean fill level to nodes below it, the largest differences first.
fn flows(fills: &[NodeFill]) -> Vec<NodeFlow> {
    let held: u128 = fills.iter().map(|fill| u128::from(fill.held_bytes)).sum();
    let could: u128 = fills.iter().map(NodeFill::could).sum();
    let part = |fill: &NodeFill| {
        let part = fill.could().saturating_mul(held) / could.max(1);
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let parts: Vec<u64> = fills.iter().map(part).collect();
    let over = |at: usize| fills[at].held_bytes.saturating_sub(parts[at]);
    let under = |at: usize| parts[at].saturating_sub(fills[at].held_bytes);
    let mut sources: Vec<(u64, usize)> = (0..fills.len()).map(|at| (over(at), at)).collect();
    let mut targets: Vec<(u64, usize)> = (0..fills.len()).map(|at| (under(at), at)).collect();
    sources.sort_unstable_by_key(|&(bytes, at)| (std::cmp::Reverse(bytes), at));
    targets.sort_unstable_by_key(|&(bytes, at)| (std::cmp::Reverse(bytes), at));
    let mut flows = Vec::new();
    let mut targets = targets.into_iter().peekable();
    for (mut left, source) in sources {
        while left > 0
            && let Some((space, target)) = targets.peek_mut()
        {
            let bytes = left.min(*space);
            if bytes > 0 {
                flows.push(NodeFlow {
                    source,
                    target: *target,
                    left: bytes,
                });
            }
            left -= bytes;
            *space -= bytes;
            if *space == 0 {
                targets.next();
            }
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_model::random::RandomSource;

    fn fill(node: u32, held_bytes: u64, free_bytes: u64) -> NodeFill {
        NodeFill {
            node: NodeId(node),
            host: format!("host {node}"),
            held_bytes,
            free_bytes,
        }
    }

    #[test]
    fn balance_fills_empty_node_from_all_others() {
        let mut plan = BalancePlan::new(&[fill(0, 90, 10), fill(1, 60, 40), fill(2, 0, 100)], 10);
        assert_eq!(plan.take(NodeId(0), 40, &[]), Some(NodeId(2)));
        assert_eq!(plan.take(NodeId(0), 1, &[]), None, "it gave its part");
        assert_eq!(plan.take(NodeId(1), 10, &[NodeId(2)]), None, "it is there");
        assert_eq!(plan.take(NodeId(1), 10, &[]), Some(NodeId(2)));
        assert!(plan.is_done());
    }

    #[test]
    fn balance_never_puts_two_replicas_on_one_host() {
        let mut fills = [fill(0, 90, 10), fill(1, 50, 50), fill(2, 0, 100)];
        fills[1].host = fills[2].host.clone();
        let mut plan = BalancePlan::new(&fills, 10);
        assert_eq!(plan.take(NodeId(0), 10, &[NodeId(1)]), None);
        assert_eq!(plan.take(NodeId(0), 10, &[]), Some(NodeId(2)));
    }

    #[test]
    fn balance_ignores_small_differences() {
        assert!(BalancePlan::new(&[fill(0, 54, 46), fill(1, 50, 50)], 5).is_done());
        assert!(!BalancePlan::new(&[fill(0, 56, 44), fill(1, 50, 50)], 5).is_done());
        assert!(BalancePlan::new(&[], 5).is_done());
        assert!(
            BalancePlan::new(&[fill(0, u64::MAX, 0), fill(1, u64::MAX, u64::MAX)], 100).is_done()
        );
        let most = BalancePlan::new(&[fill(0, u64::MAX, 0), fill(1, 0, u64::MAX)], 50);
        assert!(!most.is_done());
    }

    #[test]
    fn balance_of_small_objects_evens_fill_and_terminates() {
        for seed in 0..500 {
            let mut dice = RandomSource::seeded(seed);
            let mut roll = |sides: u64| dice.next_u64() % sides;
            let count = 2 + u32::try_from(roll(6)).unwrap();
            let mut fills = Vec::new();
            for node in 0..count {
                fills.push(fill(node, roll(1000), 1000 + roll(5000)));
            }
            let mut plan = BalancePlan::new(&fills, 5);
            let before: u64 = fills.iter().map(|fill| fill.held_bytes).sum();
            for at in 0..fills.len() {
                let source = fills[at].node;
                while let Some(target) = plan.take(source, 1, &[]) {
                    assert_ne!(source, target, "seed {seed}");
                    let target = &mut fills[target.0 as usize];
                    target.held_bytes += 1;
                    target.free_bytes -= 1;
                    fills[at].held_bytes -= 1;
                    fills[at].free_bytes += 1;
                }
            }
            assert!(plan.is_done(), "seed {seed}");
            let after: u64 = fills.iter().map(|fill| fill.held_bytes).sum();
            assert_eq!(before, after);
            assert!(
                BalancePlan::new(&fills, 6).is_done(),
                "seed {seed}: {fills:?}"
            );
        }
    }
}
