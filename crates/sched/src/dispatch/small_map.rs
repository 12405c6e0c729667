//! Map with few entries: one list in the order of keys, which takes less memory than a tree and is fast to search.
//!
//! The map is intended for ids that are inserted and removed in about their order, such as the labels of a queue or the tasks that a task
//! waits for: such entries are at an end of the list, where few entries have to be moved.

use std::collections::VecDeque;

/// Map with few entries, sorted by key.
#[derive(Debug)]
pub(super) struct SmallMap<K, V = ()> {
    entries: VecDeque<(K, V)>,
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        let entries = VecDeque::new();
        Self { entries }
    }
}

impl<K: Ord + Copy, V> SmallMap<K, V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn find(&self, key: K) -> Result<usize, usize> {
        match self.entries.back() {
            Some((last, _)) if *last >= key => {}
            _ => return Err(self.entries.len()),
        }
        self.entries.binary_search_by_key(&key, |(key, _)| *key)
    }

    pub(super) fn contains_key(&self, key: K) -> bool {
        self.find(key).is_ok()
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        let place = self.find(key).ok()?;
        Some(&self.entries[place].1)
    }

    /// Inserts a value and returns the key's previous value.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(key) {
            Ok(place) => Some(std::mem::replace(&mut self.entries[place].1, value)),
            Err(place) => {
                self.entries.insert(place, (key, value));
                None
            }
        }
    }

    /// Returns the value of a key, and inserts a value if the key is absent.
    pub(super) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let place = match self.find(key) {
            Ok(place) => place,
            Err(place) => {
                self.entries.insert(place, (key, make()));
                place
            }
        };
        &mut self.entries[place].1
    }

    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        let place = self.find(key).ok()?;
        self.entries.remove(place).map(|(_, value)| value)
    }

    /// Removes all entries of the map without freeing its memory.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(super) fn retain_keys(&mut self, keep: impl Fn(K) -> bool) {
        self.entries.retain(|(key, _)| keep(*key));
    }

    pub(super) fn pop_first(&mut self) -> Option<(K, V)> {
        self.entries.pop_front()
    }

    /// Returns the key at an index of the sorted list.
    pub(super) fn nth_key(&self, place: usize) -> Option<K> {
        self.entries.get(place).map(|(key, _)| *key)
    }

    pub(super) fn keys(&self) -> impl DoubleEndedIterator<Item = K> {
        self.entries.iter().map(|(key, _)| *key)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().map(|(key, value)| (*key, value))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// After any inserts and removals, the short map holds the entries of a `BTreeMap` in the same order.
        #[test]
        fn short_map_behaves_like_btree_map(
            steps in proptest::collection::vec((0_u64..40, 0_u8..4), 0..200),
        ) {
            let mut short = SmallMap::default();
            let mut model = BTreeMap::new();
            for (step, (key, what)) in steps.into_iter().enumerate() {
                match what {
                    0 => prop_assert_eq!(short.remove(key), model.remove(&key)),
                    1 if step % 7 == 0 => {
                        short.retain_keys(|key| key % 3 > 0);
                        model.retain(|key, _| key % 3 > 0);
                    }
                    1 if step % 5 == 0 => prop_assert_eq!(short.pop_first(), model.pop_first()),
                    1 => prop_assert_eq!(
                        short.get_or_insert_with(key, || step),
                        model.entry(key).or_insert(step)
                    ),
                    _ => prop_assert_eq!(short.insert(key, step), model.insert(key, step)),
                }
                prop_assert_eq!(short.get(key), model.get(&key));
                prop_assert_eq!(short.contains_key(key), model.contains_key(&key));
                prop_assert_eq!(short.len(), model.len());
                prop_assert_eq!(short.is_empty(), model.is_empty());
                prop_assert_eq!(short.nth_key(3), model.keys().nth(3).copied());
            }
            prop_assert!(short.keys().eq(model.keys().copied()));
            prop_assert!(short.values().eq(model.values()));
        }
    }
}
