//! Replicas of objects on nodes other than the first: the objects that nodes should have fetched for earlier labels, and the permanent
//! replicas. This module only records replicas for the dispatcher.
//!
//! Fetched replicas only influence estimated costs. Labels name a node that holds an object, and a node that dropped its replica fetches
//! the object again; so a wrong guess transfers bytes but loses nothing. Permanent replicas are equal to the first replica: an input is
//! available as long as a node with any permanent replica is online.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{Layout, Selection, StripedLayout};
use tidemill_model::object::Placed;
use tidemill_model::replicas::INPUT_CACHE_BYTES_MAX;

/// Maximum number of fetched replicas per node that estimates consider.
pub const REPLICAS_MAX: usize = 4096;

/// Maximum number of recorded permanent replicas: beyond it only the first replica of an object is known.
pub const LASTING_MAX: usize = 1 << 20;

/// Known replicas of objects in the cluster.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// Objects with the nodes that keep a permanent replica in addition to the first replica.
    lasting: BTreeSet<(ObjectId, NodeId)>,
    /// Layouts of objects that consist of parts.
    parts: BTreeMap<ObjectId, Layout>,
    /// Objects with the nodes whose replicas of the object were deleted or are corrupt.
    missing: BTreeSet<(ObjectId, NodeId)>,
    /// Objects with the nodes that should have a fetched replica.
    holders: BTreeSet<(ObjectId, NodeId)>,
    kept: BTreeMap<NodeId, ReplicaOrder>,
}

/// Fetched replicas of one node, oldest first.
#[derive(Debug, Default)]
struct ReplicaOrder {
    order: VecDeque<(ObjectId, u64)>,
    bytes: u64,
}

impl Replicas {
    /// Records that a node will fetch an object.
    pub(super) fn note(&mut self, node: NodeId, object: ObjectId, size: u64) {
        if self.lasting.contains(&(object, node)) || !self.holders.insert((object, node)) {
            return;
        }
        let kept = self.kept.entry(node).or_default();
        kept.order.push_back((object, size));
        kept.bytes = kept.bytes.saturating_add(size);
        // The newest replica stays, because it is in use.
        while kept.order.len() > 1
            && (kept.bytes > INPUT_CACHE_BYTES_MAX || kept.order.len() > REPLICAS_MAX)
        {
            let Some((oldest, size)) = kept.order.pop_front() else {
                break;
            };
            kept.bytes = kept.bytes.saturating_sub(size);
            self.holders.remove(&(oldest, node));
        }
    }

    /// Records that a node has gained or lost a permanent replica of an object; the node of the first replica may lose it, too.
    pub(super) fn set(&mut self, object: ObjectId, node: NodeId, there: bool) {
        if there {
            self.missing.remove(&(object, node));
            if self.lasting.len() < LASTING_MAX {
                self.lasting.insert((object, node));
            }
        } else {
            self.lasting.remove(&(object, node));
            if self.missing.len() < LASTING_MAX {
                self.missing.insert((object, node));
            }
        }
    }

    /// Records that an object consists of parts.
    pub(super) fn part(&mut self, object: ObjectId, layout: Layout) {
        self.parts.insert(object, layout);
    }

    /// Returns the parts of an object, each at its first location; `None` if the object has no parts.
    pub(super) fn parts(&self, object: ObjectId) -> Option<impl Iterator<Item = Placed> + '_> {
        if self.parts.is_empty() {
            return None;
        }
        let layout = self.parts.get(&object)?;
        Some((0..layout.parts().len()).filter_map(|part| placed(layout, part)))
    }

    /// Returns the stripes of an object; `None` if the object is not striped.
    pub(super) fn striped(&self, object: ObjectId) -> Option<&StripedLayout> {
        match self.parts.get(&object)? {
            Layout::Striped(striped) => Some(striped),
            Layout::Whole(_) | Layout::Extents(_) => None,
        }
    }

    /// Returns the parts of an object that hold bytes of a selection, with the number of these bytes; `None` if the object has no parts.
    pub(super) fn selected(
        &self,
        object: ObjectId,
        selection: &Selection,
    ) -> Option<Vec<(Placed, u64)>> {
        if self.parts.is_empty() {
            return None;
        }
        let layout = self.parts.get(&object)?;
        if selection.is_whole() {
            let parts = self.parts(object)?.filter(|part| part.size > 0);
            return Some(parts.map(|part| (part, part.size)).collect());
        }
        // A selection beyond the object is refused when the object is read.
        let bytes = layout.selected(selection).map(|one| one.bytes_by_part());
        let bytes = bytes.unwrap_or_default().into_iter();
        let parts = bytes.filter_map(|(part, bytes)| Some((placed(layout, part)?, bytes)));
        Some(parts.collect())
    }

    /// Returns whether a node has lost an object that the node was reported to hold.
    pub(super) fn is_missing(&self, object: ObjectId, node: NodeId) -> bool {
        self.missing.contains(&(object, node))
    }

    /// Returns whether permanent replicas of an object, or their losses, were reported.
    pub(super) fn knows(&self, object: ObjectId) -> bool {
        self.lasting(object).next().is_some() || of(&self.missing, object).next().is_some()
    }

    /// Removes the records of an object's permanent replicas, which no job needs any more.
    pub(super) fn forget_lasting(&mut self, object: ObjectId) {
        if let Some(layout) = self.parts.remove(&object) {
            for part in layout.parts() {
                self.forget_lasting(part.object);
            }
        }
        let nodes: Vec<NodeId> = self.lasting(object).collect();
        for node in nodes {
            self.lasting.remove(&(object, node));
        }
        let missing: Vec<NodeId> = of(&self.missing, object).collect();
        for node in missing {
            self.missing.remove(&(object, node));
        }
    }

    /// Returns the nodes that keep a permanent replica of an object in addition to the first replica.
    pub(super) fn lasting(&self, object: ObjectId) -> impl Iterator<Item = NodeId> + '_ {
        of(&self.lasting, object)
    }

    /// Returns the nodes that should have a fetched replica of an object.
    pub(super) fn of(&self, object: ObjectId) -> impl Iterator<Item = NodeId> + '_ {
        let fetched = of(&self.holders, object);
        let fetched = fetched.filter(move |&node| !self.lasting.contains(&(object, node)));
        self.lasting(object).chain(fetched)
    }

    /// Returns the fetched replicas that a node should have, oldest first.
    pub(super) fn on(&self, node: NodeId) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
        let kept = self.kept.get(&node);
        kept.into_iter().flat_map(|kept| kept.order.iter().copied())
    }

    /// Removes the records of the fetched replicas of a node that restarts without them.
    pub(super) fn forget(&mut self, node: NodeId) {
        for (object, _) in self.kept.remove(&node).unwrap_or_default().order {
            self.holders.remove(&(object, node));
        }
    }
}

/// Returns a part of an object at the part's first location.
fn placed(layout: &Layout, part: usize) -> Option<Placed> {
    let part = layout.parts().get(part)?;
    Some(Placed {
        object: part.object,
        node: part.replicas.first()?.node,
        size: part.size,
    })
}

fn of(
    replicas: &BTreeSet<(ObjectId, NodeId)>,
    object: ObjectId,
) -> impl Iterator<Item = NodeId> + '_ {
    let all = (object, NodeId(0))..=(object, NodeId(u32::MAX));
    replicas.range(all).map(|(_, node)| *node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(replicas: &Replicas, object: u64) -> Vec<u32> {
        replicas.of(ObjectId(object)).map(|node| node.0).collect()
    }

    #[test]
    fn oldest_replicas_of_a_node_are_forgotten_first() {
        let mut replicas = Replicas::default();
        let (here, there) = (NodeId(1), NodeId(2));
        replicas.note(there, ObjectId(7), 1);
        replicas.note(here, ObjectId(7), INPUT_CACHE_BYTES_MAX - 1);
        replicas.note(here, ObjectId(8), 1);
        assert_eq!(
            (holders(&replicas, 7), holders(&replicas, 8)),
            (vec![1, 2], vec![1])
        );
        replicas.note(here, ObjectId(9), 1);
        assert_eq!(
            (holders(&replicas, 7), holders(&replicas, 9)),
            (vec![2], vec![1])
        );
    }

    #[test]
    fn replicas_are_bounded_in_number_and_bytes() {
        let mut replicas = Replicas::default();
        let node = NodeId(1);
        replicas.note(node, ObjectId(1), 2 * INPUT_CACHE_BYTES_MAX);
        assert_eq!(holders(&replicas, 1), [1]);
        for object in 2..=REPLICAS_MAX as u64 + 2 {
            replicas.note(node, ObjectId(object), 0);
        }
        assert_eq!(replicas.kept[&node].order.len(), REPLICAS_MAX);
        assert_eq!(
            (holders(&replicas, 1), holders(&replicas, 2)),
            (vec![], vec![])
        );
        replicas.forget(node);
        assert!(replicas.holders.is_empty() && replicas.kept.is_empty());
    }
}
