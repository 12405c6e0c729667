//! All elements, and those that are up in the orders in which they are looked for: by id among those with
//! room, and by wait and load among those of a kind. Placing a task so takes hardly longer in a large array.
//!
//! **Invariant:** an element that may have changed is in `changed` until its place in the orders is renewed:
//! [`Elements::get_mut`] and [`Elements::get_or_insert`] are the only ways to change one.
//!
//! Waits change with time. While labels run within their expected times a core gets rid of at most a
//! nanosecond of work per nanosecond, so an element's moment of being free (wait + now) never comes nearer
//! unless the element itself changes. Elements are kept by the last known such moment, a lower bound, which is
//! renewed where a search comes by. While no label runs within its time the wait itself stands still.

use super::element::Element;
use super::table::Table;
use crate::event::Role;
use crate::id::ElementId;
use crate::layout::RESERVE_BYTES;
use crate::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The elements.
#[derive(Debug, Default)]
pub(super) struct Elements {
    known: Table<ElementId, Known>,
    changed: BTreeSet<ElementId>,
    /// Storage elements that are up, and those of them whose queue has room.
    stores: BTreeSet<ElementId>,
    open: BTreeSet<ElementId>,
    /// Host elements that are up.
    hosts: BTreeSet<ElementId>,
    /// Elements that are up and full of data.
    full: BTreeSet<ElementId>,
    /// Cores of `stores`.
    store_cores: u64,
    kinds: BTreeMap<Kind, Queues>,
    /// The latest time that waits were looked at.
    latest: Time,
}

#[derive(Debug)]
struct Known {
    element: Element,
    /// Where the orders have it; `None` while it is not up.
    place: Option<Place>,
}

/// Storage elements that differ for a task by what they have to do, and by what they hold, only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    cores: u32,
    link_bytes_per_sec: u64,
    /// One that runs more labels than it has cores gets rid of work faster: it is a kind of its own.
    alone: Option<ElementId>,
}

/// A number of nanoseconds, then outstanding labels, then the id.
type Key = (u64, usize, ElementId);

/// Elements of a kind.
#[derive(Debug, Default)]
struct Queues {
    /// All of them.
    by_load: BTreeSet<(usize, ElementId)>,
    /// Those without a free core whose wait stands still, by wait.
    standing: BTreeSet<Key>,
    /// The others without a free core, by a moment before which they will not be free.
    moving: BTreeSet<Key>,
}

/// Where an element is in the orders.
#[derive(Clone, Copy, Debug)]
struct Place {
    role: Role,
    kind: Kind,
    outstanding: usize,
    queue: Queue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    FreeCore,
    Standing(u64),
    Moving(u64),
}

impl Elements {
    pub(super) fn get(&self, id: &ElementId) -> Option<&Element> {
        self.known.get(id).map(|known| &known.element)
    }

    pub(super) fn get_mut(&mut self, id: &ElementId) -> Option<&mut Element> {
        let known = self.known.get_mut(id)?;
        self.changed.insert(*id);
        Some(&mut known.element)
    }

    pub(super) fn get_or_insert(
        &mut self,
        id: ElementId,
        make: impl FnOnce() -> Element,
    ) -> &mut Element {
        if !self.known.contains_key(&id) {
            let element = make();
            let place = None;
            self.known.insert(id, Known { element, place });
        }
        self.get_mut(&id).expect("it was put in just now")
    }

    /// In the order of ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ElementId, &Element)> {
        let all = self.known.iter();
        all.map(|(&id, known)| (id, &known.element))
    }

    /// Calls `visit` for all that are up, in the order of ids, with their waits.
    pub(super) fn for_each_up(
        &mut self,
        now: Time,
        mut visit: impl FnMut(ElementId, &Element, Span),
    ) {
        let all = self
            .known
            .iter_mut()
            .filter(|(_, known)| known.element.up());
        for (&id, known) in all {
            let wait = known.element.wait_now(now);
            visit(id, &known.element, wait);
        }
    }

    /// One that is up, with its wait.
    pub(super) fn up(&mut self, id: ElementId, now: Time) -> Option<(&Element, Span)> {
        let known = self.known.get_mut(&id).filter(|known| known.element.up())?;
        let wait = known.element.wait_now(now);
        Some((&known.element, wait))
    }

    /// Brings the orders up to date. What follows answers for the state when this was called last.
    pub(super) fn renew(&mut self, now: Time) {
        if now < self.latest {
            // What was known of times to come need not hold for earlier ones.
            self.changed.extend(&self.stores);
        }
        self.latest = now;
        while let Some(id) = self.changed.pop_first() {
            self.take_out(id);
            self.put_in(id);
        }
    }

    fn take_out(&mut self, id: ElementId) {
        let known = self.known.get_mut(&id);
        let Some(place) = known.and_then(|known| known.place.take()) else {
            return;
        };
        self.full.remove(&id);
        self.hosts.remove(&id);
        if place.role == Role::Host {
            return;
        }
        self.stores.remove(&id);
        self.open.remove(&id);
        self.store_cores -= u64::from(place.kind.cores);
        if let Some(queues) = self.kinds.get_mut(&place.kind) {
            let load = (place.outstanding, id);
            queues.by_load.remove(&load);
            queues.take_out(place.queue, load);
            if queues.by_load.is_empty() {
                self.kinds.remove(&place.kind);
            }
        }
    }

    fn put_in(&mut self, id: ElementId) {
        let known = self.known.get_mut(&id);
        let Some(known) = known.filter(|known| known.element.up()) else {
            return;
        };
        let element = &known.element;
        let cores = element.view.cores;
        let crowded = element.running.len() > element.cores();
        let kind = Kind {
            cores,
            link_bytes_per_sec: element.view.link_bytes_per_sec,
            alone: crowded.then_some(id),
        };
        // A moment that is long past is a bound for every wait; the next search makes a better one.
        let free = element.outstanding.len() < element.cores();
        let queue = if free {
            Queue::FreeCore
        } else {
            Queue::Moving(0)
        };
        let place = Place {
            role: element.view.role,
            kind,
            outstanding: element.outstanding.len(),
            queue,
        };
        if element.view.free_bytes < RESERVE_BYTES {
            self.full.insert(id);
        }
        if place.role == Role::Host {
            self.hosts.insert(id);
        } else {
            self.stores.insert(id);
            if element.room() {
                self.open.insert(id);
            }
            self.store_cores += u64::from(cores);
            let queues = self.kinds.entry(kind).or_default();
            let load = (place.outstanding, id);
            queues.by_load.insert(load);
            queues.put_in(queue, load);
        }
        known.place = Some(place);
    }

    pub(super) fn stores(&self) -> &BTreeSet<ElementId> {
        &self.stores
    }

    pub(super) fn open(&self) -> &BTreeSet<ElementId> {
        &self.open
    }

    pub(super) fn hosts(&self) -> &BTreeSet<ElementId> {
        &self.hosts
    }

    pub(super) fn full(&self) -> &BTreeSet<ElementId> {
        &self.full
    }

    pub(super) fn store_cores(&self) -> u64 {
        self.store_cores
    }

    /// Of each kind of storage elements the one with the least wait, of these the one with the fewest outstanding labels,
    /// of these the one with the lowest id; those that `pass` says no to are passed over. Waits of less than
    /// `earliest` count as that.
    pub(super) fn least(
        &mut self,
        now: Time,
        earliest: Span,
        pass: impl Fn(ElementId) -> bool,
        found: &mut Vec<ElementId>,
    ) {
        for queues in self.kinds.values_mut() {
            let mut search = Search {
                known: &mut self.known,
                now,
                earliest,
                pass: &pass,
            };
            found.extend(search.least(queues));
        }
    }

    /// Whether the orders are those of the elements, for tests.
    pub(super) fn check(&self) {
        let now = self.latest;
        let settled = self.iter().filter(|(id, _)| !self.changed.contains(id));
        for (id, element) in settled {
            let store = element.up() && element.view.role == Role::Store;
            let host = element.up() && element.view.role == Role::Host;
            let full = element.up() && element.view.free_bytes < RESERVE_BYTES;
            assert_eq!(store, self.stores.contains(&id), "{id:?} is a store or not");
            assert_eq!(host, self.hosts.contains(&id), "{id:?} is a host or not");
            assert_eq!(full, self.full.contains(&id), "{id:?} is full or not");
            let open = store && element.room();
            assert_eq!(open, self.open.contains(&id), "{id:?} has room or not");
            let place = self.known.get(&id).and_then(|known| known.place);
            let queue = place.map(|place| (place.queue, place.kind.alone));
            let wait = element.wait(now).0;
            match queue {
                None => assert!(!element.up(), "{id:?} is up and has no place"),
                Some((Queue::FreeCore, _)) => assert_eq!(wait, 0, "{id:?} has no free core"),
                Some((Queue::Standing(at), _)) => assert_eq!(at, wait, "{id:?} moves"),
                Some((Queue::Moving(bound), None)) => {
                    assert!(bound <= now.0 + wait, "{id:?} is free before {bound}");
                }
                Some((Queue::Moving(_), Some(_))) => {}
            }
        }
    }
}

impl Queues {
    fn put_in(&mut self, queue: Queue, (outstanding, id): (usize, ElementId)) {
        match queue {
            Queue::FreeCore => false,
            Queue::Standing(wait) => self.standing.insert((wait, outstanding, id)),
            Queue::Moving(bound) => self.moving.insert((bound, outstanding, id)),
        };
    }

    fn take_out(&mut self, queue: Queue, (outstanding, id): (usize, ElementId)) {
        match queue {
            Queue::FreeCore => false,
            Queue::Standing(wait) => self.standing.remove(&(wait, outstanding, id)),
            Queue::Moving(bound) => self.moving.remove(&(bound, outstanding, id)),
        };
    }
}

/// A search for the element that is free first.
struct Search<'a, P> {
    known: &'a mut Table<ElementId, Known>,
    now: Time,
    earliest: Span,
    pass: &'a P,
}

impl<P: Fn(ElementId) -> bool> Search<'_, P> {
    /// Goes through a kind in two orders at once. By load, the first that is free before `earliest` is the one;
    /// by wait, all that are free before `earliest` have been seen at the first that is not.
    fn least(&mut self, queues: &mut Queues) -> Option<ElementId> {
        let pass = self.pass;
        let Queues {
            by_load,
            standing: still,
            moving,
        } = queues;
        let mut by_load = by_load.iter().filter(|(_, id)| !pass(*id)).peekable();
        let &&(_, first) = by_load.peek()?;
        if self.has_free_core(first) {
            return Some(first);
        }
        let (mut after_still, mut after_moving) = (Bound::Unbounded, Bound::Unbounded);
        let mut best: Option<(usize, ElementId)> = None;
        loop {
            if self.earliest > Span(0)
                && let Some(&(_, id)) = by_load.next()
                && self.wait(id) <= self.earliest.0
            {
                return Some(id);
            }
            let stands = still.range((after_still, Bound::Unbounded)).next();
            let moves = moving.range((after_moving, Bound::Unbounded)).next();
            let free_at = |key: Key| (key.0.saturating_add(self.now.0), key.1, key.2);
            let (wait, outstanding, id) = match (stands.copied(), moves.copied()) {
                (Some(stands), moves) if moves.is_none_or(|moves| free_at(stands) < moves) => {
                    after_still = Bound::Excluded(stands);
                    stands
                }
                (_, Some(moves)) => {
                    if self.improve(moves, still, moving) {
                        continue;
                    }
                    after_moving = Bound::Excluded(moves);
                    (self.wait(moves.2), moves.1, moves.2)
                }
                (_, None) => return best.map(|(_, id)| id),
            };
            if pass(id) {
                continue;
            }
            let load = (outstanding, id);
            if wait <= self.earliest.0 {
                best = Some(best.map_or(load, |best| best.min(load)));
            }
            if wait >= self.earliest.0 {
                return best.or(Some(load)).map(|(_, id)| id);
            }
        }
    }

    /// Gives an element that may move the place that it has now; whether it is another.
    fn improve(&mut self, key: Key, still: &mut BTreeSet<Key>, moving: &mut BTreeSet<Key>) -> bool {
        let (old, outstanding, id) = key;
        let Some(known) = self.known.get_mut(&id) else {
            return false;
        };
        let wait = known.element.wait_now(self.now).0;
        let free_at = wait.saturating_add(self.now.0);
        let queue = if known.element.stands_still() {
            Queue::Standing(wait)
        } else if free_at > old {
            Queue::Moving(free_at)
        } else {
            return false;
        };
        moving.remove(&key);
        match queue {
            Queue::Standing(_) => still.insert((wait, outstanding, id)),
            _ => moving.insert((free_at, outstanding, id)),
        };
        if let Some(place) = &mut known.place {
            place.queue = queue;
        }
        true
    }

    fn wait(&mut self, id: ElementId) -> u64 {
        let known = self.known.get_mut(&id);
        known.map_or(0, |known| known.element.wait_now(self.now).0)
    }

    fn has_free_core(&self, id: ElementId) -> bool {
        let place = self.known.get(&id).and_then(|known| known.place);
        place.is_some_and(|place| place.queue == Queue::FreeCore)
    }
}
