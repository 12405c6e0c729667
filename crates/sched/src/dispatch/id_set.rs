//! Set of nodes in order of their ids, with fast access by index: nodes are rarely added or removed, and often looked up.

use tidemill_model::id::NodeId;

/// Set of nodes in order of their ids.
#[derive(Debug, Default)]
pub(super) struct IdSet {
    ids: Vec<NodeId>,
}

impl IdSet {
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn contains(&self, id: &NodeId) -> bool {
        self.ids.binary_search(id).is_ok()
    }

    pub(super) fn insert(&mut self, id: NodeId) {
        if let Err(place) = self.ids.binary_search(&id) {
            self.ids.insert(place, id);
        }
    }

    pub(super) fn remove(&mut self, id: &NodeId) {
        if let Ok(place) = self.ids.binary_search(id) {
            self.ids.remove(place);
        }
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, NodeId> {
        self.ids.iter()
    }

    /// Returns the nodes after `last`, then all nodes from the first one on.
    pub(super) fn turn(&self, last: Option<NodeId>) -> impl Iterator<Item = &NodeId> {
        let passed = last.map_or(0, |last| self.ids.partition_point(|&id| id <= last));
        self.ids[passed..].iter().chain(&self.ids)
    }

    /// Returns the number of nodes of the set that are not in `without`, which is in order of ids.
    pub(super) fn count(&self, without: &[NodeId]) -> usize {
        let left_out = without.iter().filter(|id| self.contains(id));
        self.len() - left_out.count()
    }

    /// Returns the node at an index among the nodes of the set that are not in `without`, which is in order of ids.
    pub(super) fn nth(&self, index: usize, without: &[NodeId]) -> Option<NodeId> {
        let mut place = index;
        for id in without {
            // Each node of `without` up to the position moves the position up by one.
            match self.ids.binary_search(id) {
                Ok(left_out) if left_out <= place => place = place.checked_add(1)?,
                _ => {}
            }
        }
        self.ids.get(place).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn id_set_indexes_like_a_list_without_excluded_nodes(
            all in proptest::collection::btree_set(0_u32..20, 0..20),
            without in proptest::collection::btree_set(0_u32..20, 0..20),
            last in proptest::option::of(0_u32..20),
        ) {
            let ids = |set: &BTreeSet<u32>| set.iter().map(|&id| NodeId(id)).collect::<Vec<_>>();
            let mut roll = IdSet::default();
            for &id in ids(&all).iter().rev() {
                roll.insert(id);
                roll.insert(id);
            }
            let left: Vec<NodeId> = ids(&all.difference(&without).copied().collect());
            let without = ids(&without);
            prop_assert_eq!(roll.count(&without), left.len());
            let found: Vec<_> = (0..=all.len()).filter_map(|at| roll.nth(at, &without)).collect();
            prop_assert_eq!(&found, &left);
            let after = ids(&all).into_iter().find(|&id| Some(id.0) > last);
            let first = after.or(ids(&all).first().copied());
            prop_assert_eq!(roll.turn(last.map(NodeId)).next().copied(), first);
            for id in &without {
                roll.remove(id);
            }
            prop_assert_eq!(roll.iter().copied().collect::<Vec<_>>(), left);
        }
    }
}
