//! One element in virtual time: the labels that it has, its cores and resources, and the objects that it pulled.
//!
//! Does what `tidemill-element` does, with the same book of what is free: labels run first come, first served, but none
//! before those it comes after, and none before all that it needs is free; that is taken from the first pull of a label to
//! its last write; pulled objects are shared while in use and kept up to a bound, oldest out first.

use super::faults::Room;
use super::platform::Element;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tidemill_core::id::ObjectId;
use tidemill_core::resources::{Ledger, Needs, first_to_start};

/// An element's state. Labels are named by their index in the engine.
#[derive(Debug)]
pub(super) struct Node {
    ledger: Ledger,
    /// Labels that may run, and how many of them need no core.
    ready: BTreeSet<u32>,
    light: usize,
    /// Cores that nobody has, by their numbers.
    free: BTreeSet<u32>,
    pub(super) pulled: Pulled,
    pub(super) room: Room,
}

impl Node {
    pub(super) fn new(element: &Element) -> Self {
        Self {
            ledger: Ledger::new(element.offers()),
            ready: BTreeSet::new(),
            light: 0,
            free: (0..element.cores.max(1)).collect(),
            pulled: Pulled {
                bytes_max: element.pulled_bytes_max,
                ..Pulled::default()
            },
            room: Room::of(element),
        }
    }

    /// A label may run from now on.
    pub(super) fn add(&mut self, label: u32, needs: &Needs) {
        let new = self.ready.insert(label);
        self.light += usize::from(new && needs.cores == 0);
    }

    /// A label that has not begun goes.
    pub(super) fn remove(&mut self, label: u32, needs: &Needs) {
        let removed = self.ready.remove(&label);
        self.light -= usize::from(removed && needs.cores == 0);
    }

    /// Takes the next label that can begin, and the cores that it has. `needs` gives what a label needs.
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

    /// What is free on its device; `None`: there is no bound.
    pub(super) fn free(&self) -> Option<u64> {
        self.room.free(self.pulled.bytes)
    }

    /// A label that had these cores has ended.
    pub(super) fn end(&mut self, needs: &Needs, cores: &[u32]) {
        self.ledger.give_back(needs);
        self.free.extend(cores);
    }
}

/// Objects of other elements.
#[derive(Debug, Default)]
pub(super) struct Pulled {
    bytes_max: u64,
    /// Of all that is here or on its way.
    bytes: u64,
    slots: HashMap<ObjectId, Slot>,
    /// Objects that no label uses, longest first.
    idle: BTreeMap<u64, ObjectId>,
    idle_bytes: u64,
    idle_count: u64,
}

#[derive(Debug)]
struct Slot {
    size: u64,
    users: u32,
    here: bool,
    /// Its place in `idle` while it has no users.
    idle: u64,
    /// Labels that wait for it.
    waiting: Vec<u32>,
}

/// Whether a label has an object it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// It is here and stays until it is given back.
    Here,
    /// Another label pulls it; this one is told.
    Waits,
    /// This label is the one to pull it.
    Pull,
}

impl Pulled {
    /// It was pulled before, and no label uses it.
    pub(super) fn keep(&mut self, object: ObjectId, size: u64) {
        let slot = Slot {
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

    /// Bytes of all that is here or on its way.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is here or on its way.
    pub(super) fn has(&self, object: ObjectId) -> bool {
        self.slots.contains_key(&object)
    }

    /// Asks for an object. A label that waited asks again.
    pub(super) fn share(&mut self, object: ObjectId, size: u64, label: u32) -> Share {
        let Some(slot) = self.slots.get_mut(&object) else {
            let slot = Slot {
                size,
                users: 1,
                here: false,
                idle: 0,
                waiting: Vec::new(),
            };
            self.bytes += size;
            self.slots.insert(object, slot);
            return Share::Pull;
        };
        if !slot.here {
            slot.waiting.push(label);
            return Share::Waits;
        }
        if slot.users == 0 {
            self.idle.remove(&slot.idle);
            self.idle_bytes -= slot.size;
        }
        slot.users += 1;
        Share::Here
    }

    /// A pull has ended: the labels that waited for it.
    pub(super) fn arrived(&mut self, object: ObjectId) -> Vec<u32> {
        let Some(slot) = self.slots.get_mut(&object) else {
            return Vec::new();
        };
        slot.here = true;
        std::mem::take(&mut slot.waiting)
    }

    /// A label does not use an object any more.
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
    fn node_gives_labels_free_cores_and_waits_for_enough() {
        let element = Element {
            cores: 2,
            ..Element::default()
        };
        let mut node = Node::new(&element);
        let cores = |cores| Needs {
            cores,
            ..Needs::default()
        };
        let all = [cores(1), cores(1), cores(2), cores(1), cores(0)];
        let needs = |label: u32| &all[label as usize];
        (0..5).for_each(|label| node.add(label, needs(label)));
        assert_eq!(node.take(needs), Some((0, vec![0])));
        assert_eq!(node.take(needs), Some((1, vec![1])));
        assert_eq!(node.take(needs), Some((4, vec![])), "it needs no core");
        assert_eq!(node.take(needs), None);
        node.end(needs(1), &[1]);
        assert_eq!(
            node.take(needs),
            None,
            "the core is kept for the one with two"
        );
        node.end(needs(0), &[0]);
        assert_eq!(node.take(needs), Some((2, vec![0, 1])));
        node.end(needs(2), &[0, 1]);
        assert_eq!(node.take(needs), Some((3, vec![0])));
        assert_eq!(node.take(needs), None);
    }

    #[test]
    fn pulled_object_is_shared_and_kept_until_evicted_by_limit() {
        let mut pulled = Pulled {
            bytes_max: 10,
            ..Pulled::default()
        };
        let (one, other) = (ObjectId(1), ObjectId(2));
        assert_eq!(pulled.share(one, 6, 7), Share::Pull);
        assert_eq!(pulled.share(one, 6, 8), Share::Waits);
        assert_eq!(pulled.arrived(one), [8]);
        assert_eq!(pulled.share(one, 6, 8), Share::Here);
        pulled.give_back(one);
        pulled.give_back(one);
        assert_eq!(pulled.share(one, 6, 9), Share::Here);
        pulled.give_back(one);
        assert_eq!(pulled.share(other, 5, 9), Share::Pull);
        pulled.arrived(other);
        pulled.give_back(other);
        assert_eq!(pulled.share(one, 6, 9), Share::Pull);
        assert_eq!(pulled.share(other, 5, 9), Share::Here);
    }
}
