//! One element in virtual time: the labels that it has, its cores, and the objects that it pulled.
//!
//! Does what `tidemill-element` does: labels run first come, first served, but none before those it comes after;
//! a core is taken from the first pull of a label to its last write; pulled objects are shared while in use and
//! kept up to a bound, oldest out first.

use super::faults::Room;
use super::platform::Element;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use tidemill_core::fabric::{self, Fabric};
use tidemill_core::id::ObjectId;
use tidemill_core::time::Span;

/// Run time that is reckoned with for a kernel that never ran.
const UNKNOWN_RUN: Span = tidemill_core::dispatch::UNKNOWN_RUN;

/// An element's state. Labels are named by their index in the engine.
#[derive(Debug)]
pub(super) struct Node {
    fabric: Box<dyn Fabric>,
    /// Labels that may run and are bound to no core.
    ready: BTreeSet<u32>,
    cores: Vec<Core>,
    view: Vec<fabric::Core>,
    /// Runs and their times together, by the number of the kernel.
    history: Vec<(u64, Span)>,
    pub(super) pulled: Pulled,
    pub(super) room: Room,
}

#[derive(Debug, Default)]
struct Core {
    running: Option<u32>,
    bound: VecDeque<(u32, Span)>,
}

impl Node {
    /// `kernels` are the names of the workflow's kernels, by their numbers.
    pub(super) fn new(element: &Element, fabric: Box<dyn Fabric>, kernels: &[&str]) -> Self {
        let history = kernels.iter().map(|&kernel| {
            let known = element.history.get(kernel);
            known.map_or((0, Span(0)), |known| (known.runs, Span(known.total_ns)))
        });
        let cores = element.cores.max(1) as usize;
        Self {
            fabric,
            ready: BTreeSet::new(),
            cores: (0..cores).map(|_| Core::default()).collect(),
            view: vec![fabric::Core::default(); cores],
            history: history.collect(),
            pulled: Pulled {
                bytes_max: element.pulled_bytes_max,
                ..Pulled::default()
            },
            room: Room::of(element),
        }
    }

    /// A label may run from now on.
    pub(super) fn add(&mut self, label: u32) {
        self.ready.insert(label);
    }

    /// A label that has not begun goes.
    pub(super) fn remove(&mut self, label: u32) {
        self.ready.remove(&label);
        for (core, view) in self.cores.iter_mut().zip(&mut self.view) {
            let Some(at) = core.bound.iter().position(|&(bound, _)| bound == label) else {
                continue;
            };
            if let Some((_, expected)) = core.bound.remove(at) {
                view.labels -= 1;
                view.expected = Span(view.expected.0.saturating_sub(expected.0));
            }
        }
    }

    /// Binds labels to cores as far as the fabric scheduler will, and takes the next label that a core can
    /// begin: the label and the core. `kernel` gives the kernel of a label.
    pub(super) fn take(&mut self, kernel: impl Fn(u32) -> u32) -> Option<(u32, u32)> {
        while let Some(&label) = self.ready.first() {
            let Some(core) = self.fabric.pick(&self.view) else {
                break;
            };
            self.ready.pop_first();
            let expected = self.expected(kernel(label));
            let view = &mut self.view[core];
            view.labels += 1;
            view.expected = view.expected + expected;
            self.cores[core].bound.push_back((label, expected));
            if self.cores[core].running.is_none() {
                break;
            }
        }
        let can_begin = |core: &Core| core.running.is_none() && !core.bound.is_empty();
        let core = self.cores.iter().position(can_begin)?;
        let &(label, _) = self.cores[core].bound.front()?;
        self.cores[core].running = Some(label);
        Some((label, u32::try_from(core).unwrap_or(u32::MAX)))
    }

    /// What is free on its device; `None`: there is no bound.
    pub(super) fn free(&self) -> Option<u64> {
        self.room.free(self.pulled.bytes)
    }

    /// The label that a core ran has ended; how long it took if it ended well.
    pub(super) fn end(&mut self, core: u32, kernel: u32, run: Option<Span>) {
        let index = core as usize;
        self.cores[index].running = None;
        if let Some((_, expected)) = self.cores[index].bound.pop_front() {
            let view = &mut self.view[index];
            view.labels -= 1;
            view.expected = Span(view.expected.0.saturating_sub(expected.0));
        }
        if let Some(run) = run {
            let (runs, total) = &mut self.history[kernel as usize];
            *runs += 1;
            *total = *total + run;
        }
    }

    fn expected(&self, kernel: u32) -> Span {
        let (runs, total) = self.history[kernel as usize];
        total.0.checked_div(runs).map_or(UNKNOWN_RUN, Span)
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

    fn node(cores: u32, fabric: &str) -> Node {
        let element = Element {
            cores,
            ..Element::default()
        };
        Node::new(&element, fabric::by_name(fabric).unwrap(), &["k"])
    }

    #[test]
    fn labels_of_one_queue_go_to_whichever_core_is_free_and_bound_ones_wait_for_theirs() {
        for (fabric, third) in [("first-free", 1), ("round-robin", 0)] {
            let mut node = node(2, fabric);
            (0..3).for_each(|label| node.add(label));
            assert_eq!(node.take(|_| 0), Some((0, 0)));
            assert_eq!(node.take(|_| 0), Some((1, 1)));
            assert_eq!(node.take(|_| 0), None);
            node.end(1, 0, Some(Span(5)));
            let next = node.take(|_| 0);
            assert_eq!(next, (third == 1).then_some((2, 1)), "{fabric}");
            node.end(0, 0, None);
            let next = node.take(|_| 0);
            assert_eq!(next, (third == 0).then_some((2, 0)), "{fabric}");
        }
    }

    #[test]
    fn a_pull_is_shared_and_kept_until_the_bound_pushes_it_out() {
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
