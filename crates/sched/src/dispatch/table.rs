//! Map from ids that are issued one after the other: neighbouring ids share a block, so that a look-up among many ids does not search a
//! deep tree. The map iterates in the order of ids, like a `BTreeMap`.

use std::collections::BTreeMap;
use tidemill_model::id::{LabelId, NodeId, TaskId};

/// Number of ids in a block of the map.
const BLOCK: u64 = SPACE as u64;
const SPACE: usize = 256;

/// Id that is a number, as a key of [`IdTable`].
pub(super) trait TableKey: Copy {
    fn number(self) -> u64;
}

impl TableKey for TaskId {
    fn number(self) -> u64 {
        self.0
    }
}

impl TableKey for LabelId {
    fn number(self) -> u64 {
        self.0
    }
}

impl TableKey for NodeId {
    fn number(self) -> u64 {
        self.0.into()
    }
}

/// Values by id.
#[derive(Debug)]
pub(super) struct IdTable<K, V> {
    blocks: BTreeMap<u64, TableBlock<K, V>>,
    len: usize,
    /// Memory of an empty block, reused for the next block: ids are added and removed in order.
    spare: Vec<Option<(K, V)>>,
}

#[derive(Debug)]
struct TableBlock<K, V> {
    values: Vec<Option<(K, V)>>,
    used: usize,
}

impl<K, V> Default for IdTable<K, V> {
    fn default() -> Self {
        Self {
            blocks: BTreeMap::new(),
            len: 0,
            spare: Vec::new(),
        }
    }
}

fn split(key: impl TableKey) -> (u64, usize) {
    (key.number() / BLOCK, (key.number() % BLOCK) as usize)
}

impl<K: TableKey, V> IdTable<K, V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let (block, place) = split(*key);
        let slot = self.blocks.get(&block)?.values.get(place)?;
        slot.as_ref().map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (block, place) = split(*key);
        let slot = self.blocks.get_mut(&block)?.values.get_mut(place)?;
        slot.as_mut().map(|(_, value)| value)
    }

    pub(super) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Inserts a value and returns the id's previous value.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (block, place) = split(key);
        // A block after the first one is allocated completely, so that it need not grow step by step.
        let space = if self.blocks.is_empty() { 0 } else { SPACE };
        let block = self.blocks.entry(block).or_insert_with(|| {
            let mut values = std::mem::take(&mut self.spare);
            values.reserve_exact(space);
            TableBlock { values, used: 0 }
        });
        if block.values.len() <= place {
            block.values.resize_with(place + 1, || None);
        }
        let old = block.values[place].replace((key, value));
        if old.is_none() {
            block.used += 1;
            self.len += 1;
        }
        old.map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (number, place) = split(*key);
        let block = self.blocks.get_mut(&number)?;
        let (_, value) = block.values.get_mut(place)?.take()?;
        block.used -= 1;
        self.len -= 1;
        if block.used == 0 {
            let empty = self.blocks.remove(&number);
            self.spare = empty.map(|block| block.values).unwrap_or_default();
            self.spare.clear();
        }
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let slots = self.blocks.values().flat_map(|block| &block.values);
        slots.flatten().map(|(key, value)| (key, value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let slots = self.blocks.values_mut().flat_map(|block| &mut block.values);
        slots.flatten().map(|(key, value)| (&*key, value))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// After any inserts and removals, the table holds the entries of a `BTreeMap` in the same order.
        #[test]
        fn id_table_behaves_like_btree_map(
            steps in proptest::collection::vec((0_u64..700, any::<bool>()), 0..300),
        ) {
            let mut table = IdTable::default();
            let mut model = BTreeMap::new();
            for (step, (key, put)) in steps.into_iter().enumerate() {
                let key = TaskId(key);
                if put {
                    prop_assert_eq!(table.insert(key, step), model.insert(key, step));
                } else {
                    prop_assert_eq!(table.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(table.get(&key), model.get(&key));
                prop_assert_eq!(table.get_mut(&key), model.get_mut(&key));
                prop_assert_eq!(table.contains_key(&key), model.contains_key(&key));
            }
            prop_assert_eq!(table.len(), model.len());
            let all: Vec<_> = table.iter().collect();
            prop_assert_eq!(all, model.iter().collect::<Vec<_>>());
            let all: Vec<_> = table.iter_mut().collect();
            prop_assert_eq!(all, model.iter_mut().collect::<Vec<_>>());
            prop_assert_eq!(table.blocks.is_empty(), model.is_empty());
        }
    }
}
