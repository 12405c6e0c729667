//! One node in virtual time: its labels, its cores and resources, and the objects that it fetched.
//!
//! A simulated node behaves like `tidemill-node` and uses the same ledger of free resources. Labels run first come, first served, but only
//! after the labels that they follow, and when all resources that they need are free. A label holds its resources from its first fetch to
//! its last write. Fetched objects are shared while they are in use and are kept up to a limit, and the oldest object is dropped first.

use super::faults::UsedSpace;
use super::platform::PlatformNode;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tidemill_model::id::ObjectId;
use tidemill_model::resources::{Needs, ResourceLedger, first_to_start};

/// State of a simulated node. Labels are named by their index in the engine.
#[derive(Debug)]
pub(super) struct Station {
    ledger: ResourceLedger,
    /// Labels that may run, and the number of those labels that need no core.
    ready: BTreeSet<u32>,
    light: usize,
    /// Free cores of the node, by their numbers.
    free: BTreeSet<u32>,
    pub(super) input_cache: InputCache,
    pub(super) space: UsedSpace,
}

impl Station {
    pub(super) fn new(node: &PlatformNode) -> Self {
        Self {
            ledger: ResourceLedger::new(node.offers()),
            ready: BTreeSet::new(),
            light: 0,
            free: (0..node.cores.max(1)).collect(),
            input_cache: InputCache {
                bytes_max: node.input_cache_bytes_max,
                ..InputCache::default()
            },
            space: UsedSpace::of(node),
        }
    }

    /// Adds a label to the labels that are ready to run.
    pub(super) fn add(&mut self, label: u32, needs: &Needs) {
        let new = self.ready.insert(label);
        self.light += usize::from(new && needs.cores == 0);
    }

    /// Removes a label that has not begun.
    pub(super) fn remove(&mut self, label: u32, needs: &Needs) {
        let removed = self.ready.remove(&label);
        self.light -= usize::from(removed && needs.cores == 0);
    }

    /// Takes the next label that can begin, with its cores. `needs` returns the resources that a label needs.
    pub(super) fn take<'a>(&mut self, needs: impl Fn(u32) -> &'a Needs) -> Option<(u32, Vec<u32>)> {
        let ready = self.ready.iter().map(|&label| (label, needs(label)));
        let label = first_to_start(&self.ledger, ready, self.light > 0, |_| true)?;
        let needs = needs(label);
        if !self.ledger.take(needs) {
            return None;
        }
        self.remove(label, needs);
        let cores = (0..needs.cores).map_while(|_| self.free.pop_first());
        Some((label, cores.collect()))
    }

    /// Returns the free space of the node's device; `None` if the device has no limit.
    pub(super) fn free(&self) -> Option<u64> {
        self.space.free(self.input_cache.bytes)
    }

    /// Ends a label that used these cores, and frees its resources.
    pub(super) fn end(&mut self, needs: &Needs, cores: &[u32]) {
        self.ledger.give_back(needs);
        self.free.extend(cores);
    }
}

/// Cache of objects that a node fetched from other nodes.
#[derive(Debug, Default)]
pub(super) struct InputCache {
    bytes_max: u64,
    /// Size of all objects that were fetched or are being fetched, in bytes.
    bytes: u64,
    slots: HashMap<ObjectId, ObjectSlot>,
    /// Cached objects that no label uses, the least recently used first.
    idle: BTreeMap<u64, ObjectId>,
    idle_bytes: u64,
    idle_count: u64,
}

#[derive(Debug)]
struct ObjectSlot {
    size: u64,
    users: u32,
    here: bool,
    /// Key of the object in `InputCache::idle` while no label uses it.
    idle: u64,
    /// Labels that wait for the fetch of the object.
    waiting: Vec<u32>,
}

/// State of an object that a label requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectState {
    /// The object is on the node and stays until the label gives it back.
    Here,
    /// Another label fetches the object; the requesting label continues after the fetch.
    Waits,
    /// The requesting label has to fetch the object.
    Fetch,
}

impl InputCache {
    /// Adds an object to the cache that was fetched before and that no label uses.
    pub(super) fn keep(&mut self, object: ObjectId, size: u64) {
        let slot = ObjectSlot {
            size,
            users: 1,
            here: true,
            idle: 0,
            waiting: Vec::new(),
        };
        self.bytes += size;
        self.slots.insert(object, slot);
        self.give_back(object);
    }

    /// Returns the size of all objects in the cache, fetched or being fetched, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the object was fetched or is being fetched.
    pub(super) fn has(&self, object: ObjectId) -> bool {
        self.slots.contains_key(&object)
    }

    /// Requests an object for a label. A label that waited must request the object again.
    pub(super) fn share(&mut self, object: ObjectId, size: u64, label: u32) -> ObjectState {
        let Some(slot) = self.slots.get_mut(&object) else {
            let slot = ObjectSlot {
                size,
                users: 1,
                here: false,
                idle: 0,
                waiting: Vec::new(),
            };
            self.bytes += size;
            self.slots.insert(object, slot);
            return ObjectState::Fetch;
        };
        if !slot.here {
            slot.waiting.push(label);
            return ObjectState::Waits;
        }
        if slot.users == 0 {
            self.idle.remove(&slot.idle);
            self.idle_bytes -= slot.size;
        }
        slot.users += 1;
        ObjectState::Here
    }

    /// Records the end of a fetch. Returns the labels that waited for the object.
    pub(super) fn arrived(&mut self, object: ObjectId) -> Vec<u32> {
        let Some(slot) = self.slots.get_mut(&object) else {
            return Vec::new();
        };
        slot.here = true;
        std::mem::take(&mut slot.waiting)
    }

    /// Records that a label does not use an object any more.
    pub(super) fn give_back(&mut self, object: ObjectId) {
        let Some(slot) = self.slots.get_mut(&object) else {
            return;
        };
        slot.users -= 1;
        if slot.users > 0 {
            return;
        }
        self.idle_count += 1;
        slot.idle = self.idle_count;
        self.idle.insert(slot.idle, object);
        self.idle_bytes += slot.size;
        while self.idle_bytes > self.bytes_max {
            let Some((_, oldest)) = self.idle.pop_first() else {
                break;
            };
            let size = self.slots.remove(&oldest).map_or(0, |slot| slot.size);
            self.idle_bytes -= size;
            self.bytes -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn station_gives_labels_free_cores_and_waits_for_enough() {
        let node = PlatformNode {
            cores: 2,
            ..PlatformNode::default()
        };
        let mut station = Station::new(&node);
        let cores = |cores| Needs {
            cores,
            ..Needs::default()
        };
        let all = [cores(1), cores(1), cores(2), cores(1), cores(0)];
        let needs = |label: u32| &all[label as usize];
        (0..5).for_each(|label| station.add(label, needs(label)));
        assert_eq!(station.take(needs), Some((0, vec![0])));
        assert_eq!(station.take(needs), Some((1, vec![1])));
        assert_eq!(station.take(needs), Some((4, vec![])), "it needs no core");
        assert_eq!(station.take(needs), None);
        station.end(needs(1), &[1]);
        assert_eq!(
            station.take(needs),
            None,
            "the core is kept for the one with two"
        );
        station.end(needs(0), &[0]);
        assert_eq!(station.take(needs), Some((2, vec![0, 1])));
        station.end(needs(2), &[0, 1]);
        assert_eq!(station.take(needs), Some((3, vec![0])));
        assert_eq!(station.take(needs), None);
    }

    #[test]
    fn fetched_object_is_shared_and_kept_until_evicted_by_limit() {
        let mut input_cache = InputCache {
            bytes_max: 10,
            ..InputCache::default()
        };
        let (one, other) = (ObjectId(1), ObjectId(2));
        assert_eq!(input_cache.share(one, 6, 7), ObjectState::Fetch);
        assert_eq!(input_cache.share(one, 6, 8), ObjectState::Waits);
        assert_eq!(input_cache.arrived(one), [8]);
        assert_eq!(input_cache.share(one, 6, 8), ObjectState::Here);
        input_cache.give_back(one);
        input_cache.give_back(one);
        assert_eq!(input_cache.share(one, 6, 9), ObjectState::Here);
        input_cache.give_back(one);
        assert_eq!(input_cache.share(other, 5, 9), ObjectState::Fetch);
        input_cache.arrived(other);
        input_cache.give_back(other);
        assert_eq!(input_cache.share(one, 6, 9), ObjectState::Fetch);
        assert_eq!(input_cache.share(other, 5, 9), ObjectState::Here);
    }
}
