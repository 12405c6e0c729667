//! All nodes, and indices of the online nodes in the orders of searches: by id among nodes with capacity, and by wait and load among nodes
//! of the same kind. With these indices, placing a task takes hardly longer in a large cluster.
//!
//! **Invariant:** a node that may have changed is in `changed` until [`Nodes::renew`], and then in `shifted` until its load is read:
//! [`Nodes::get_mut`] and [`Nodes::get_or_insert`] are the only ways to change a node. Many policies never read loads, so loads
//! are updated only on demand.
//!
//! Waits of nodes change with time. While labels run within their expected times, a core completes at most a nanosecond of work per
//! nanosecond. So the time at which a node becomes free (wait + now) never decreases unless the node itself changes. Nodes are indexed by
//! the last known value of this time, which is a lower bound. A search updates the bounds that it reads. While no label runs within its
//! expected time, the wait itself is constant.

use super::id_set::IdSet;
use super::node::NodeState;
use super::scored::Scored;
use super::table::IdTable;
use crate::score::Weights;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use tidemill_model::event::Role;
use tidemill_model::id::NodeId;
use tidemill_model::layout::RESERVE_BYTES;
use tidemill_model::time::{Span, Time};

/// Maximum number of policy weights for which storage nodes are kept in the order of their scores.
const SCORED_MAX: usize = 8;

/// All nodes of the cluster, with the search indices.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    known: IdTable<NodeId, IndexedNode>,
    changed: Vec<NodeId>,
    shifted: Vec<NodeId>,
    /// Online storage nodes, and the online storage nodes whose queue is not full.
    stores: IdSet,
    open: IdSet,
    /// Online nodes of server cores.
    server_cores: BTreeSet<NodeId>,
    /// Online nodes that are full of data.
    full: BTreeSet<NodeId>,
    /// Total number of cores of the nodes in `stores`.
    store_cores: u64,
    kinds: BTreeMap<NodeClass, Queues>,
    /// Storage nodes in the order of their scores, for the most recently used weights, the latest first.
    scored: Vec<Scored>,
    /// Latest time for which waits were computed.
    latest: Time,
}

#[derive(Debug)]
struct IndexedNode {
    node: NodeState,
    /// Whether the node is in `Nodes::changed`, and in `Nodes::shifted`.
    changed: bool,
    shifted: bool,
    /// Position of the node in the indices; `None` while the node is not online.
    place: Option<NodeProfile>,
    /// Position of the node in the indices by load; `None` unless the node is an online storage node.
    load: Option<QueueLoad>,
}

/// Storage nodes that differ for a task only by their load and by the data they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NodeClass {
    cores: u32,
    link_bytes_per_sec: u64,
    /// Set for a node that runs more labels than it has cores. The node completes work faster, so it is a class of its own.
    alone: Option<NodeId>,
}

/// Time in nanoseconds, then number of outstanding labels, then id of the node.
type LoadKey = (u64, usize, NodeId);

/// Nodes of the same class, in the orders of searches.
#[derive(Debug, Default)]
struct Queues {
    /// All nodes of the class, and the nodes with a free core, by load. A node with tasks that need no core or several cores may have fewer
    /// labels and no free core, or more labels and a free core.
    by_load: BTreeSet<(usize, NodeId)>,
    free: BTreeSet<(usize, NodeId)>,
    /// Nodes without a free core whose wait is constant, by wait.
    standing: BTreeSet<LoadKey>,
    /// Other nodes without a free core, by a lower bound of the time at which they become free.
    moving: BTreeSet<LoadKey>,
}

/// Indexed properties of an online node, except its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeProfile {
    role: Role,
    cores: u32,
    open: bool,
    full: bool,
}

/// Indexed load of a node.
#[derive(Clone, Copy, Debug)]
struct QueueLoad {
    kind: NodeClass,
    outstanding: usize,
    queue: QueueState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    FreeCore,
    Standing(u64),
    Moving(u64),
}

impl Nodes {
    pub(super) fn get(&self, id: &NodeId) -> Option<&NodeState> {
        self.known.get(id).map(|known| &known.node)
    }

    pub(super) fn get_mut(&mut self, id: &NodeId) -> Option<&mut NodeState> {
        let known = self.known.get_mut(id)?;
        if !std::mem::replace(&mut known.changed, true) {
            self.changed.push(*id);
        }
        Some(&mut known.node)
    }

    pub(super) fn get_or_insert(
        &mut self,
        id: NodeId,
        make: impl FnOnce() -> NodeState,
    ) -> &mut NodeState {
        if !self.known.contains_key(&id) {
            let known = IndexedNode {
                node: make(),
                changed: false,
                shifted: false,
                place: None,
                load: None,
            };
            self.known.insert(id, known);
        }
        self.get_mut(&id).expect("it was put in just now")
    }

    /// Returns all nodes in the order of ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &NodeState)> {
        let all = self.known.iter();
        all.map(|(&id, known)| (id, &known.node))
    }

    /// Calls `visit` for all online nodes and their waits, in the order of ids.
    pub(super) fn for_each_up(
        &mut self,
        now: Time,
        mut visit: impl FnMut(NodeId, &NodeState, Span),
    ) {
        let all = self.known.iter_mut().filter(|(_, known)| known.node.up());
        for (&id, known) in all {
            let wait = known.node.wait_now(now);
            visit(id, &known.node, wait);
        }
    }

    /// Returns an online node with its wait.
    pub(super) fn up(&mut self, id: NodeId, now: Time) -> Option<(&NodeState, Span)> {
        let known = self.known.get_mut(&id).filter(|known| known.node.up())?;
        let wait = known.node.wait_now(now);
        Some((&known.node, wait))
    }

    /// Updates the search indices. All queries answer for the state of the last call.
    pub(super) fn renew(&mut self, now: Time) {
        if now < self.latest {
            // Bounds for later times need not hold for earlier ones.
            let stores: Vec<NodeId> = self.stores.iter().copied().collect();
            for id in stores {
                self.get_mut(&id);
            }
        }
        self.latest = now;
        while let Some(id) = self.changed.pop() {
            let Some(known) = self.known.get_mut(&id) else {
                continue;
            };
            known.changed = false;
            if !std::mem::replace(&mut known.shifted, true) {
                self.shifted.push(id);
            }
            for scored in &mut self.scored {
                scored.shift(id);
            }
            let place = NodeProfile::of(&known.node);
            let old = std::mem::replace(&mut known.place, place);
            if old != place {
                self.move_to(id, old, place);
            }
        }
    }

    fn move_to(&mut self, id: NodeId, old: Option<NodeProfile>, new: Option<NodeProfile>) {
        let store = |place: NodeProfile| place.role == Role::Store;
        let both =
            |belongs: fn(NodeProfile) -> bool| (old.is_some_and(belongs), new.is_some_and(belongs));
        enrol(
            &mut self.stores,
            id,
            both(|place| place.role == Role::Store),
        );
        enter(
            &mut self.server_cores,
            id,
            both(|place| place.role == Role::ServerCores),
        );
        enter(&mut self.full, id, both(|place| place.full));
        enrol(
            &mut self.open,
            id,
            both(|place| place.role == Role::Store && place.open),
        );
        let cores = |place: Option<NodeProfile>| {
            let place = place.filter(|place| store(*place));
            place.map_or(0, |place| u64::from(place.cores))
        };
        self.store_cores = self.store_cores - cores(old) + cores(new);
    }

    /// Updates the search indices by load.
    fn renew_loads(&mut self) {
        while let Some(id) = self.shifted.pop() {
            let Some(known) = self.known.get_mut(&id) else {
                continue;
            };
            known.shifted = false;
            let load = QueueLoad::of(id, &known.node);
            if let Some(old) = std::mem::replace(&mut known.load, load)
                && let Some(queues) = self.kinds.get_mut(&old.kind)
            {
                queues.take_out(id, old);
                if queues.by_load.is_empty() && load.is_none_or(|load| load.kind != old.kind) {
                    self.kinds.remove(&old.kind);
                }
            }
            if let Some(load) = load {
                self.kinds.entry(load.kind).or_default().put_in(id, load);
            }
        }
    }

    pub(super) fn stores(&self) -> &IdSet {
        &self.stores
    }

    pub(super) fn open(&self) -> &IdSet {
        &self.open
    }

    pub(super) fn server_cores(&self) -> &BTreeSet<NodeId> {
        &self.server_cores
    }

    pub(super) fn full(&self) -> &BTreeSet<NodeId> {
        &self.full
    }

    pub(super) fn store_cores(&self) -> u64 {
        self.store_cores
    }

    /// Returns, for each class of storage nodes, the node with the least wait, then the fewest outstanding labels, then the lowest id.
    /// Skips nodes for which `pass` returns true. Waits of less than `earliest` count as `earliest`.
    pub(super) fn least(
        &mut self,
        now: Time,
        earliest: Span,
        pass: impl Fn(NodeId) -> bool,
        found: &mut Vec<NodeId>,
    ) {
        self.renew_loads();
        for queues in self.kinds.values_mut() {
            let mut search = NodeSearch {
                known: &mut self.known,
                now,
                earliest,
                pass: &pass,
            };
            found.extend(search.least(queues));
        }
    }

    /// Returns the best storage node: a node with capacity if there is any, then the highest score, then the fewest outstanding labels per
    /// core, then the lowest id. Skips nodes for which `pass` returns true.
    pub(super) fn best(
        &mut self,
        weights: &Weights,
        pass: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        match self.scored.iter().position(|scored| scored.is_by(weights)) {
            Some(place) => self.scored[..=place].rotate_right(1),
            None => {
                self.scored.truncate(SCORED_MAX - 1);
                self.scored
                    .insert(0, Scored::of(*weights, self.stores.iter().copied()));
            }
        }
        let known = &self.known;
        let node = |id| Some(&known.get(&id)?.node);
        self.scored.first_mut()?.best(node, pass)
    }

    /// Checks that the indices match the nodes, for tests.
    pub(super) fn check(&self) {
        for (&id, known) in self.known.iter() {
            if !known.changed {
                self.check_place(id, &known.node);
            }
            if !known.changed && !known.shifted {
                self.check_load(id, known);
            }
        }
    }

    fn check_place(&self, id: NodeId, node: &NodeState) {
        let place = NodeProfile::of(node);
        let store = place.is_some_and(|place| place.role == Role::Store);
        let server_cores = place.is_some_and(|place| place.role == Role::ServerCores);
        let full = place.is_some_and(|place| place.full);
        let open = store && place.is_some_and(|place| place.open);
        assert_eq!(store, self.stores.contains(&id), "{id:?} is a store or not");
        assert_eq!(
            server_cores,
            self.server_cores.contains(&id),
            "{id:?} is of the server cores or not"
        );
        assert_eq!(full, self.full.contains(&id), "{id:?} is full or not");
        assert_eq!(open, self.open.contains(&id), "{id:?} has space or not");
    }

    fn check_load(&self, id: NodeId, known: &IndexedNode) {
        let wait = known.node.wait(self.latest).0;
        let expected = QueueLoad::of(id, &known.node).map(|load| (load.kind, load.outstanding));
        let load = known.load;
        assert_eq!(load.map(|load| (load.kind, load.outstanding)), expected);
        match load.map(|load| (load.queue, load.kind.alone)) {
            Some((QueueState::FreeCore, _)) => assert_eq!(wait, 0, "{id:?} has no free core"),
            Some((QueueState::Standing(at), _)) => assert_eq!(at, wait, "{id:?} moves"),
            Some((QueueState::Moving(bound), None)) => {
                assert!(bound <= self.latest.0 + wait, "{id:?} is free earlier");
            }
            Some((QueueState::Moving(_), Some(_))) | None => {}
        }
    }
}

/// Adds a node to an id set, whose nodes can be found by their index, or removes it, like [`enter`].
fn enrol(roll: &mut IdSet, id: NodeId, (was_in, is_in): (bool, bool)) {
    if is_in && !was_in {
        roll.insert(id);
    } else if was_in && !is_in {
        roll.remove(&id);
    }
}

/// Adds a node to a set or removes it, if its membership changes.
fn enter(set: &mut BTreeSet<NodeId>, id: NodeId, (was_in, is_in): (bool, bool)) {
    if is_in && !was_in {
        set.insert(id);
    } else if was_in && !is_in {
        set.remove(&id);
    }
}

impl NodeProfile {
    fn of(node: &NodeState) -> Option<Self> {
        node.up().then(|| Self {
            role: node.view.role,
            cores: node.view.offers.cores,
            open: node.has_space(),
            full: node.view.free_bytes < RESERVE_BYTES,
        })
    }
}

impl QueueLoad {
    fn of(id: NodeId, node: &NodeState) -> Option<Self> {
        if !node.up() || node.view.role != Role::Store {
            return None;
        }
        let crowded = node.overrun();
        let free = node.has_free_core();
        Some(Self {
            kind: NodeClass {
                cores: node.view.offers.cores,
                link_bytes_per_sec: node.view.link_bytes_per_sec,
                alone: crowded.then_some(id),
            },
            outstanding: node.outstanding.len(),
            // A time in the past is a bound for every wait; the next search computes a better one.
            queue: if free {
                QueueState::FreeCore
            } else {
                QueueState::Moving(0)
            },
        })
    }
}

impl Queues {
    fn put_in(&mut self, id: NodeId, load: QueueLoad) {
        let outstanding = load.outstanding;
        self.by_load.insert((outstanding, id));
        match load.queue {
            QueueState::FreeCore => self.free.insert((outstanding, id)),
            QueueState::Standing(wait) => self.standing.insert((wait, outstanding, id)),
            QueueState::Moving(bound) => self.moving.insert((bound, outstanding, id)),
        };
    }

    fn take_out(&mut self, id: NodeId, load: QueueLoad) {
        let outstanding = load.outstanding;
        self.by_load.remove(&(outstanding, id));
        match load.queue {
            QueueState::FreeCore => self.free.remove(&(outstanding, id)),
            QueueState::Standing(wait) => self.standing.remove(&(wait, outstanding, id)),
            QueueState::Moving(bound) => self.moving.remove(&(bound, outstanding, id)),
        };
    }
}

/// Search for the node that becomes free first.
struct NodeSearch<'a, P> {
    known: &'a mut IdTable<NodeId, IndexedNode>,
    now: Time,
    earliest: Span,
    pass: &'a P,
}

impl<P: Fn(NodeId) -> bool> NodeSearch<'_, P> {
    /// Searches a class of nodes in two orders at once. By load, the result is the first node that is free before `earliest`. By wait, all
    /// nodes that are free before `earliest` precede the first node that is not.
    fn least(&mut self, queues: &mut Queues) -> Option<NodeId> {
        let pass = self.pass;
        let Queues {
            by_load,
            free,
            standing: still,
            moving,
        } = queues;
        let mut by_load = by_load.iter().filter(|(_, id)| !pass(*id)).peekable();
        let &&(_, first) = by_load.peek()?;
        // The best node with a wait of at most `earliest`; nodes that are free now come first.
        let mut best = free.iter().find(|(_, id)| !pass(*id)).copied();
        if best.is_some_and(|(_, id)| id == first) {
            return Some(first);
        }
        let (mut after_still, mut after_moving) = (Bound::Unbounded, Bound::Unbounded);
        loop {
            if self.earliest > Span(0)
                && let Some(&(_, id)) = by_load.next()
                && self.wait(id) <= self.earliest.0
            {
                return Some(id);
            }
            let stands = still.range((after_still, Bound::Unbounded)).next();
            let moves = moving.range((after_moving, Bound::Unbounded)).next();
            let free_at = |key: LoadKey| (key.0.saturating_add(self.now.0), key.1, key.2);
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

    /// Updates the position of a node in `moving`. Returns whether the node's position changed.
    fn improve(
        &mut self,
        key: LoadKey,
        still: &mut BTreeSet<LoadKey>,
        moving: &mut BTreeSet<LoadKey>,
    ) -> bool {
        let (old, outstanding, id) = key;
        let Some(known) = self.known.get_mut(&id) else {
            return false;
        };
        let wait = known.node.wait_now(self.now).0;
        let free_at = wait.saturating_add(self.now.0);
        let queue = if known.node.wait_is_constant() {
            QueueState::Standing(wait)
        } else if free_at > old {
            QueueState::Moving(free_at)
        } else {
            return false;
        };
        moving.remove(&key);
        match queue {
            QueueState::Standing(_) => still.insert((wait, outstanding, id)),
            _ => moving.insert((free_at, outstanding, id)),
        };
        if let Some(load) = &mut known.load {
            load.queue = queue;
        }
        true
    }

    fn wait(&mut self, id: NodeId) -> u64 {
        let known = self.known.get_mut(&id);
        known.map_or(0, |known| known.node.wait_now(self.now).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::node::Presence;
    use crate::dispatch::query::unknown_view;
    use proptest::prelude::*;
    use tidemill_model::event::NodeView;
    use tidemill_model::id::LabelId;
    use tidemill_model::resources::{Needs, Offers};

    /// Random change of a node, or random search.
    #[derive(Clone, Debug)]
    enum IndexStep {
        Up(u32, u64, bool),
        Down,
        Add(u64, u32, bool),
        Start(usize),
        Remove(usize),
        Pass(u64),
        Back(u64),
        /// Search for the node with the least wait of each class, with an earliest time and nodes to skip.
        Look(u64, u32),
        /// Search for the node with the best score by some weights, with nodes to skip.
        Best(usize, u32),
    }

    fn weights(number: usize) -> Weights {
        // More weights than are kept at once.
        let weights = [
            "low-latency",
            "energy",
            "bandwidth",
            "load=1",
            "speed=1",
            "capacity=1",
        ];
        let own = number
            .checked_sub(weights.len())
            .map(|more| format!("load={},energy=1", more + 1));
        own.as_deref()
            .unwrap_or(weights[number % weights.len()])
            .parse()
            .unwrap()
    }

    /// Returns the best node by examining every node.
    fn scan_best(nodes: &Nodes, weights: &Weights, passed: u32) -> Option<NodeId> {
        let stores = nodes.iter().filter(|(id, node)| {
            node.up() && node.view.role == Role::Store && passed & (1 << id.0) == 0
        });
        let best = stores.min_by_key(|(id, node)| {
            let bucket = crate::score::bucket(weights.score(&node.standing()));
            let cores = node.view.offers.cores;
            let load = crate::policy::labels_per_core(node.outstanding.len(), cores);
            (!node.has_space(), std::cmp::Reverse(bucket), load, *id)
        });
        best.map(|(id, _)| id)
    }

    fn step() -> impl Strategy<Value = IndexStep> {
        prop_oneof![
            1 => (1_u32..3, 0_u64..2, any::<bool>()).prop_map(|(c, l, s)| IndexStep::Up(c, l, s)),
            1 => Just(IndexStep::Down),
            12 => (0_u64..40, 0_u32..4, any::<bool>()).prop_map(|(t, c, f)| IndexStep::Add(t, c, f)),
            6 => (0_usize..8).prop_map(IndexStep::Start),
            3 => (0_usize..8).prop_map(IndexStep::Remove),
            6 => (0_u64..30).prop_map(IndexStep::Pass),
            1 => (0_u64..30).prop_map(IndexStep::Back),
            8 => (prop_oneof![Just(0), 0_u64..60], prop_oneof![Just(0), 0_u32..256]).prop_map(|(e, p)| IndexStep::Look(e, p)),
            8 => (0_usize..12, prop_oneof![Just(0), 0_u32..256]).prop_map(|(w, p)| IndexStep::Best(w, p)),
        ]
    }

    /// Returns the node with the least wait of each class by examining every node.
    fn scan(nodes: &Nodes, now: Time, earliest: Span, passed: u32) -> BTreeSet<NodeId> {
        let mut least = BTreeMap::new();
        for (id, node) in nodes.iter() {
            if let Some(load) = QueueLoad::of(id, node)
                && passed & (1 << id.0) == 0
            {
                let wait = node.wait(now).max(earliest);
                let key = (wait, load.outstanding, id);
                let best = least.entry(load.kind).or_insert(key);
                *best = (*best).min(key);
            }
        }
        least.into_values().map(|(.., id)| id).collect()
    }

    fn change(nodes: &mut Nodes, id: NodeId, step: &IndexStep, now: Time, label: LabelId) {
        let known = || NodeState::new(Presence::Expected, unknown_view());
        let node = nodes.get_or_insert(id, known);
        match *step {
            IndexStep::Up(cores, link_bytes_per_sec, store) => {
                node.presence = Presence::Up;
                node.view = NodeView {
                    role: if store {
                        Role::Store
                    } else {
                        Role::ServerCores
                    },
                    offers: Offers::of_cores(cores),
                    link_bytes_per_sec,
                    device_bytes_per_sec: u64::from(cores) * 1_000_000_000,
                    watts_milli: 50_000 * link_bytes_per_sec,
                    capacity_bytes: 100,
                    free_bytes: u64::from(id.0) * 10,
                    ..unknown_view()
                };
            }
            IndexStep::Down => node.presence = Presence::Down,
            IndexStep::Add(expected, cores, follows) => {
                let needs = Needs {
                    cores,
                    ..Needs::default()
                };
                node.add(label, Span(expected), needs, follows);
            }
            IndexStep::Start(index) => {
                if let Some(label) = node.outstanding.nth_key(index) {
                    node.start(label, now);
                }
            }
            IndexStep::Remove(index) => {
                if let Some(label) = node.outstanding.nth_key(index) {
                    node.remove(label);
                }
            }
            IndexStep::Pass(_) | IndexStep::Back(_) | IndexStep::Look(..) | IndexStep::Best(..) => {
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// After any random steps and any jumps of the clock, an index search returns the same node as a scan of all nodes.
        #[test]
        fn node_search_finds_the_same_as_a_scan(
            steps in proptest::collection::vec((0_u32..8, step()), 0..200),
        ) {
            let mut nodes = Nodes::default();
            let mut now = Time(1_000);
            for id in 0..8 {
                change(&mut nodes, NodeId(id), &IndexStep::Up(1, 0, true), now, LabelId(0));
            }
            for (label, (id, step)) in (1..).zip(steps) {
                match step {
                    IndexStep::Pass(span) => now = Time(now.0 + span),
                    IndexStep::Back(span) => now = Time(now.0 - span.min(now.0)),
                    IndexStep::Look(earliest, passed) => {
                        let (earliest, mut found) = (Span(earliest), Vec::new());
                        nodes.renew(now);
                        let pass = |id: NodeId| passed & (1 << id.0) != 0;
                        nodes.least(now, earliest, pass, &mut found);
                        let found: BTreeSet<NodeId> = found.into_iter().collect();
                        prop_assert_eq!(found, scan(&nodes, now, earliest, passed));
                    }
                    IndexStep::Best(number, passed) => {
                        let weights = weights(number);
                        nodes.renew(now);
                        let best = nodes.best(&weights, |id| passed & (1 << id.0) != 0);
                        prop_assert_eq!(best, scan_best(&nodes, &weights, passed));
                    }
                    step => change(&mut nodes, NodeId(id), &step, now, LabelId(label)),
                }
                nodes.check();
            }
        }
    }
}
