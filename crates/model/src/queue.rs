//! The order of a node's labels. In each lane labels run first come, first served. A label runs only after the labels that it follows, and
//! when all its resources are free (see [`crate::resources`]). A label with a streamed input may start when the label that writes the input
//! runs. This module does no I/O.
//!
//! Users take turns in the lanes of kernels: the next kernel belongs to the user with the fewest running kernels. Among users with equally
//! many running kernels, the kernel that arrived first is chosen.
//!
//! The queue is not persistent: a node journals a label before it adds the label, and adds the journaled labels again when it starts.

use crate::id::LabelId;
use crate::label::Lane;
use crate::resources::{Needs, Offers, ResourceLedger, first_to_start};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// Maximum number of labels that may wait or run at once; further labels are refused.
pub const LABELS_MAX: usize = 1_000_000;

/// Maximum number of acknowledged labels that are remembered, for labels that follow them and arrive late.
const FORGOTTEN_MAX: usize = 10_000;

/// Queue of a node's labels.
#[derive(Debug)]
pub struct NodeQueue {
    labels: BTreeMap<LabelId, QueueEntry>,
    /// Ready labels by lane, user and arrival.
    ready: BTreeMap<QueuePosition, LabelId>,
    /// Number of running kernels by user; a user without running kernels has no entry.
    turns: BTreeMap<u32, u64>,
    /// Resources that running labels have taken.
    ledger: ResourceLedger,
    /// Arrival numbers of labels in `ready` that need more than cores.
    choosy: BTreeSet<u64>,
    forgotten: VecDeque<LabelId>,
    running: usize,
    waiting: usize,
}

/// Lane of a label, its user and its position in the order of arrival. Labels in lanes without kernels have the user 0.
type QueuePosition = (Lane, u32, u64);

/// Returns whether users take turns in a lane.
fn has_turns(lane: Lane) -> bool {
    matches!(lane, Lane::Kernel | Lane::Light)
}

#[derive(Debug)]
struct QueueEntry {
    place: QueuePosition,
    state: EntryState,
    /// Resources that the label takes while it runs; `None` if no counted resource is taken.
    needs: Option<Needs>,
    /// Labels that must succeed before this label does.
    missing: BTreeSet<LabelId>,
    /// Labels of `missing` that stream an input to this label: it may start as soon as they run.
    streaming: BTreeSet<LabelId>,
    /// Labels that wait for this label.
    dependants: Vec<LabelId>,
    acknowledged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    Waiting,
    Ready,
    Running,
    Done,
    Failed,
}

/// Result of adding a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// [`NodeQueue::take`] will return the label.
    Queued,
    /// The label is known already.
    Known,
    /// A label that the added label follows has failed; so the added label counts as failed, too.
    DependencyFailed(LabelId),
}

/// Result of aborting a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// The label is not known, so it will never run unless it is added.
    Unknown,
    /// The label ended already.
    Nothing,
    /// The label runs: the executor has to stop it.
    Running,
    /// The label was still waiting and will never run; neither will the labels in the list, which follow it.
    Removed(Vec<LabelId>),
}

impl NodeQueue {
    /// Returns an empty queue for a node with these offers.
    #[must_use]
    pub fn new(offers: Offers) -> Self {
        Self {
            labels: BTreeMap::new(),
            ready: BTreeMap::new(),
            turns: BTreeMap::new(),
            ledger: ResourceLedger::new(offers),
            choosy: BTreeSet::new(),
            forgotten: VecDeque::new(),
            running: 0,
            waiting: 0,
        }
    }

    /// Returns the resources of the node that labels can take.
    #[must_use]
    pub fn offers(&self) -> &Offers {
        self.ledger.offers()
    }

    /// Adds a label. `place` is the label's lane and position in the order of arrival. `needs` are the resources that the label takes while
    /// it runs, at most those of the node. An unknown label in `after` has succeeded and been forgotten long ago.
    pub fn add(
        &mut self,
        label: LabelId,
        place: (Lane, u64),
        needs: Option<&Needs>,
        after: &[LabelId],
    ) -> Added {
        self.add_streaming(label, place, needs, (after, &[]))
    }

    /// Adds a label like [`Self::add`]; some of the labels that it follows stream inputs to it. The label may start as soon as these labels
    /// run, if its own resources are free as well. The executor must let the label succeed only after these labels have succeeded.
    pub fn add_streaming(
        &mut self,
        label: LabelId,
        place: (Lane, u64),
        needs: Option<&Needs>,
        relatives: (&[LabelId], &[LabelId]),
    ) -> Added {
        self.add_of(label, (place, 0), needs, relatives)
    }

    /// Adds a label of a user like [`Self::add_streaming`].
    pub fn add_of(
        &mut self,
        label: LabelId,
        ((lane, arrival), user): ((Lane, u64), u32),
        needs: Option<&Needs>,
        (after, streaming): (&[LabelId], &[LabelId]),
    ) -> Added {
        let place = (lane, if has_turns(lane) { user } else { 0 }, arrival);
        if self.labels.contains_key(&label) {
            return Added::Known;
        }
        let mut missing = BTreeSet::new();
        let mut failed = None;
        for &before in after {
            match self.labels.get(&before).map(|entry| entry.state) {
                None | Some(EntryState::Done) => {}
                Some(EntryState::Failed) => failed = Some(before),
                Some(_) => {
                    missing.insert(before);
                }
            }
        }
        let streaming = streaming.iter().copied().filter(|id| missing.contains(id));
        let streaming: BTreeSet<LabelId> = streaming.collect();
        let state = match failed {
            Some(_) => EntryState::Failed,
            None if self.may_start(&missing, &streaming) => EntryState::Ready,
            None => EntryState::Waiting,
        };
        match state {
            EntryState::Ready => self.make_ready(place, label, needs),
            EntryState::Waiting => self.waiting += 1,
            _ => missing.clear(),
        }
        for before in &missing {
            if let Some(entry) = self.labels.get_mut(before) {
                entry.dependants.push(label);
            }
        }
        let entry = QueueEntry {
            place,
            state,
            needs: needs.cloned(),
            missing,
            streaming,
            dependants: Vec::new(),
            acknowledged: false,
        };
        self.labels.insert(label, entry);
        failed.map_or(Added::Queued, Added::DependencyFailed)
    }

    /// Records a label that ended before a restart of the node.
    pub fn add_ended(&mut self, label: LabelId, succeeded: bool) {
        let state = if succeeded {
            EntryState::Done
        } else {
            EntryState::Failed
        };
        let entry = QueueEntry {
            // [`NodeQueue::take`] will never return this label.
            place: (Lane::Kernel, 0, 0),
            state,
            needs: None,
            missing: BTreeSet::new(),
            streaming: BTreeSet::new(),
            dependants: Vec::new(),
            acknowledged: false,
        };
        self.labels.insert(label, entry);
    }

    /// Returns whether a label of a lane could run now.
    #[must_use]
    pub fn is_ready(&self, lane: Lane) -> bool {
        self.first(lane).is_some()
    }

    /// Returns whether a label can start while the labels in `missing` have not ended; those in `streaming` stream inputs to it.
    fn may_start(&self, missing: &BTreeSet<LabelId>, streaming: &BTreeSet<LabelId>) -> bool {
        missing.iter().all(|before| {
            let runs = |entry: &QueueEntry| entry.state == EntryState::Running;
            streaming.contains(before) && self.labels.get(before).is_some_and(runs)
        })
    }

    fn make_ready(&mut self, place: QueuePosition, label: LabelId, needs: Option<&Needs>) {
        self.ready.insert(place, label);
        if needs.is_some_and(|needs| !needs.only_cores()) {
            self.choosy.insert(place.2);
        }
    }

    fn unmake_ready(&mut self, place: QueuePosition) -> Option<LabelId> {
        self.choosy.remove(&place.2);
        self.ready.remove(&place)
    }

    /// Returns the users with ready labels in a lane.
    fn users(&self, lane: Lane) -> impl Iterator<Item = u32> {
        let mut from = Some(0);
        std::iter::from_fn(move || {
            let rest = (lane, from?, 0)..=(lane, u32::MAX, u64::MAX);
            let (&(_, user, _), _) = self.ready.range(rest).next()?;
            from = user.checked_add(1);
            Some(user)
        })
    }

    fn runs(&self, user: u32) -> u64 {
        self.turns.get(&user).copied().unwrap_or(0)
    }

    /// Returns the ready labels of a user. Leaves out a label whose streamed inputs are still being written and whose resources are not
    /// free: such a label can wait, and delays no other label.
    fn ready_of(
        &self,
        lane: Lane,
        user: u32,
    ) -> impl Iterator<Item = (QueuePosition, &QueueEntry)> {
        let ready = self.ready.range((lane, user, 0)..=(lane, user, u64::MAX));
        let ready = ready.filter_map(|(&place, label)| Some((place, self.labels.get(label)?)));
        ready.filter(|(_, entry)| entry.missing.is_empty() || self.has_space(entry))
    }

    fn has_space(&self, entry: &QueueEntry) -> bool {
        let needs = entry.needs.as_ref();
        needs.is_none_or(|needs| self.ledger.has(needs))
    }

    /// Returns the ready kernels of all users, with a core or without, in the order of their turns: the second kernel of a user follows the
    /// first kernels of users with equally many running kernels.
    fn by_turn(&self) -> impl Iterator<Item = (QueuePosition, &Needs)> {
        let of_user = |user: u32| {
            let [mut light, mut kernels] = [Lane::Light, Lane::Kernel].map(|lane| {
                let ready = self.ready_of(lane, user);
                let needy = ready.filter_map(|(place, entry)| Some((place, entry.needs.as_ref()?)));
                needy.peekable()
            });
            std::iter::from_fn(move || match (light.peek(), kernels.peek()) {
                (Some((one, _)), Some((other, _))) if one.2 > other.2 => kernels.next(),
                (Some(_), _) => light.next(),
                (None, _) => kernels.next(),
            })
        };
        let users: BTreeSet<u32> = [Lane::Light, Lane::Kernel]
            .into_iter()
            .flat_map(|lane| self.users(lane))
            .collect();
        let mut all: Vec<_> = users.iter().map(|&user| of_user(user).peekable()).collect();
        let mut heads = BinaryHeap::with_capacity(all.len());
        for (index, (one, &user)) in all.iter_mut().zip(&users).enumerate() {
            if let Some((place, _)) = one.peek() {
                heads.push(Reverse((self.runs(user), place.2, index)));
            }
        }
        std::iter::from_fn(move || {
            let Reverse((turn, _, index)) = heads.pop()?;
            let one = all.get_mut(index)?;
            let next = one.next();
            if let Some((place, _)) = one.peek() {
                heads.push(Reverse((turn + 1, place.2, index)));
            }
            next
        })
    }

    /// Returns the next label of a lane that can start.
    fn first(&self, lane: Lane) -> Option<QueuePosition> {
        if self.choosy.is_empty() || !has_turns(lane) {
            // No label waits for a resource of another lane, and the first label of a lane blocks the other ones of the lane.
            let firsts = self
                .users(lane)
                .filter_map(|user| self.ready_of(lane, user).next());
            let (place, entry) = firsts.min_by_key(|(place, _)| (self.runs(place.1), place.2))?;
            return self.has_space(entry).then_some(place);
        }
        let has_light = lane == Lane::Light;
        first_to_start(&self.ledger, self.by_turn(), has_light, |place| {
            place.0 == lane
        })
    }

    /// Returns the next label of a lane to run. The label counts as running from now on.
    pub fn take(&mut self, lane: Lane) -> Option<LabelId> {
        let place = self.first(lane)?;
        let label = self.unmake_ready(place)?;
        if let Some(entry) = self.labels.get_mut(&label) {
            entry.state = EntryState::Running;
            let taken = entry
                .needs
                .as_ref()
                .is_none_or(|needs| self.ledger.take(needs));
            debug_assert!(taken, "a label starts only when all it needs is free");
        }
        if has_turns(lane) {
            *self.turns.entry(place.1).or_default() += 1;
        }
        self.running += 1;
        // The label may stream outputs to other labels.
        self.look_at_dependants(label);
        Some(label)
    }

    /// Records the end of a running label. Returns the labels that can't run any more because this label failed.
    pub fn end(&mut self, label: LabelId, succeeded: bool) -> Vec<LabelId> {
        let (lane, user, _) = match self.labels.get_mut(&label) {
            Some(entry) if entry.state == EntryState::Running => {
                debug_assert!(
                    !succeeded || entry.missing.is_empty(),
                    "a label that streams an input to another one ends before it"
                );
                entry.place
            }
            _ => return Vec::new(),
        };
        if has_turns(lane)
            && let Some(runs) = self.turns.get_mut(&user)
        {
            *runs -= 1;
            if *runs == 0 {
                self.turns.remove(&user);
            }
        }
        self.running -= 1;
        if let Some(needs) = self
            .labels
            .get(&label)
            .and_then(|entry| entry.needs.as_ref())
        {
            self.ledger.give_back(needs);
        }
        if succeeded {
            self.release(label);
            return Vec::new();
        }
        self.fail(label)
    }

    /// Returns whether a running label streams an output to a label that is ready because of the stream.
    #[must_use]
    pub fn streams(&self, label: LabelId) -> bool {
        let entry = self.labels.get(&label);
        let mut dependants = entry.into_iter().flat_map(|entry| &entry.dependants);
        dependants.any(|dependant| {
            let entry = self.labels.get(dependant);
            entry.is_some_and(|entry| entry.state == EntryState::Ready)
        })
    }

    /// Returns the running labels whose streamed input came from a failed label: these labels have to fail, too.
    #[must_use]
    pub fn streamed_in_vain(&self, label: LabelId) -> Vec<LabelId> {
        let failed = self.labels.get(&label);
        let failed = failed.filter(|entry| entry.state == EntryState::Failed);
        failed.map_or_else(Vec::new, |entry| entry.dependants.clone())
    }

    /// Aborts a label, whether it waits or runs.
    pub fn abort(&mut self, label: LabelId) -> Aborted {
        match self.labels.get(&label).map(|entry| entry.state) {
            Some(EntryState::Waiting | EntryState::Ready) => Aborted::Removed(self.fail(label)),
            Some(EntryState::Running) => Aborted::Running,
            Some(EntryState::Done | EntryState::Failed) => Aborted::Nothing,
            None => Aborted::Unknown,
        }
    }

    /// Aborts a label that has not begun and returns the labels that follow it. Returns `None` if the label is not known, runs or has
    /// ended.
    pub fn reschedule(&mut self, label: LabelId) -> Option<Vec<LabelId>> {
        match self.labels.get(&label)?.state {
            EntryState::Waiting | EntryState::Ready => Some(self.fail(label)),
            EntryState::Running | EntryState::Done | EntryState::Failed => None,
        }
    }

    /// Forgets an ended label whose outcome the server has; a bounded number of such labels stays known.
    pub fn acknowledge(&mut self, label: LabelId) {
        match self.labels.get_mut(&label) {
            Some(entry) if matches!(entry.state, EntryState::Done | EntryState::Failed) => {
                if std::mem::replace(&mut entry.acknowledged, true) {
                    return;
                }
            }
            _ => return,
        }
        self.forgotten.push_back(label);
        if self.forgotten.len() > FORGOTTEN_MAX
            && let Some(oldest) = self.forgotten.pop_front()
        {
            self.labels.remove(&oldest);
        }
    }

    /// Returns the number of labels that wait for their turn or for another label.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.ready.len() + self.waiting
    }

    /// Returns the number of running labels.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running
    }

    fn release(&mut self, label: LabelId) {
        let Some(entry) = self.labels.get_mut(&label) else {
            return;
        };
        entry.state = EntryState::Done;
        for &dependant in &entry.dependants.clone() {
            if let Some(entry) = self.labels.get_mut(&dependant) {
                entry.missing.remove(&label);
                entry.streaming.remove(&label);
            }
        }
        self.look_at_dependants(label);
        if let Some(entry) = self.labels.get_mut(&label) {
            entry.dependants.clear();
        }
    }

    /// Makes labels ready that can start now because a label that they follow has changed its state.
    fn look_at_dependants(&mut self, label: LabelId) {
        let dependants = self.labels.get(&label);
        let dependants = dependants.map_or_else(Vec::new, |entry| entry.dependants.clone());
        for dependant in dependants {
            let Some(entry) = self.labels.get(&dependant) else {
                continue;
            };
            if entry.state != EntryState::Waiting
                || !self.may_start(&entry.missing, &entry.streaming)
            {
                continue;
            }
            let (place, needs) = (entry.place, entry.needs.clone());
            self.waiting -= 1;
            self.make_ready(place, dependant, needs.as_ref());
            if let Some(entry) = self.labels.get_mut(&dependant) {
                entry.state = EntryState::Ready;
            }
        }
    }

    /// Marks a label and all labels that follow it as failed, and returns the labels that follow it. Running labels are left to the
    /// executor, with all labels that follow them.
    fn fail(&mut self, label: LabelId) -> Vec<LabelId> {
        let mut failed = Vec::new();
        let mut next = vec![label];
        while let Some(id) = next.pop() {
            let Some(entry) = self.labels.get_mut(&id) else {
                continue;
            };
            match entry.state {
                EntryState::Done | EntryState::Failed => continue,
                EntryState::Waiting => self.waiting -= 1,
                EntryState::Ready => {
                    let place = entry.place;
                    self.unmake_ready(place);
                }
                EntryState::Running => {}
            }
            let Some(entry) = self.labels.get_mut(&id) else {
                continue;
            };
            entry.state = EntryState::Failed;
            entry.missing.clear();
            entry.streaming.clear();
            let dependants = std::mem::take(&mut entry.dependants);
            let (streamed, others): (Vec<_>, Vec<_>) =
                dependants.into_iter().partition(|dependant| {
                    let entry = self.labels.get(dependant);
                    entry.is_some_and(|entry| entry.state == EntryState::Running)
                });
            next.extend(others);
            if let Some(entry) = self.labels.get_mut(&id) {
                entry.dependants = streamed;
            }
            if id != label {
                failed.push(id);
            }
        }
        failed.sort_unstable();
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::{needs, offers};
    use proptest::prelude::*;

    fn id(n: u64) -> LabelId {
        LabelId(n)
    }

    fn queue() -> NodeQueue {
        NodeQueue::new(Offers::of_cores(1))
    }

    fn kernel(seq: u64) -> (Lane, u64) {
        (Lane::Kernel, seq)
    }

    #[test]
    fn queue_removal_does_not_wait_for_kernels() {
        let mut queue = queue();
        queue.add(id(1), kernel(1), None, &[]);
        queue.add(id(2), (Lane::Remove, 2), None, &[]);
        queue.add(id(3), (Lane::Remove, 3), None, &[id(1)]);
        assert!(queue.is_ready(Lane::Kernel) && queue.is_ready(Lane::Remove));
        assert!(!queue.is_ready(Lane::Copy));
        assert_eq!(queue.take(Lane::Remove), Some(id(2)));
        assert_eq!(queue.take(Lane::Remove), None, "3 comes after 1");
        assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
        queue.end(id(1), true);
        assert_eq!(queue.take(Lane::Remove), Some(id(3)));
    }

    #[test]
    fn queue_runs_labels_in_order_after_their_dependencies() {
        let mut queue = queue();
        assert_eq!(queue.add(id(1), kernel(1), None, &[]), Added::Queued);
        assert_eq!(queue.add(id(2), kernel(2), None, &[id(1)]), Added::Queued);
        assert_eq!(queue.add(id(3), kernel(3), None, &[]), Added::Queued);
        assert_eq!(queue.add(id(3), kernel(4), None, &[]), Added::Known);
        assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
        assert!(queue.end(id(1), true).is_empty());
        // Label 2 arrived before label 3, and nothing holds it back any more.
        assert_eq!(queue.take(Lane::Kernel), Some(id(2)));
        assert_eq!(queue.take(Lane::Kernel), Some(id(3)));
        assert_eq!(queue.take(Lane::Kernel), None);
        assert_eq!((queue.running(), queue.queued()), (2, 0));
    }

    fn lane_of(needs: &Needs) -> Lane {
        if needs.cores == 0 {
            Lane::Light
        } else {
            Lane::Kernel
        }
    }

    #[test]
    fn queue_never_lets_small_labels_starve_a_large_one() {
        let mut queue = NodeQueue::new(Offers::of_cores(4));
        for n in 0..4 {
            queue.add(id(n), kernel(n), Some(&needs(1, 0, 0)), &[]);
            assert_eq!(queue.take(Lane::Kernel), Some(id(n)));
        }
        queue.add(id(4), kernel(4), Some(&needs(4, 0, 0)), &[]);
        for n in 5..50 {
            queue.add(id(n), kernel(n), Some(&needs(1, 0, 0)), &[]);
        }
        queue.add(id(50), (Lane::Light, 50), Some(&needs(0, 0, 0)), &[]);
        assert_eq!(queue.take(Lane::Light), Some(id(50)), "it takes no core");
        for n in 0..4 {
            assert_eq!(queue.take(Lane::Kernel), None, "after {n} have ended");
            queue.end(id(n), true);
        }
        assert_eq!(queue.take(Lane::Kernel), Some(id(4)));
        assert_eq!(queue.take(Lane::Kernel), None);
        assert_eq!(queue.abort(id(4)), Aborted::Running);
        queue.end(id(4), false);
        assert_eq!(
            queue.take(Lane::Kernel),
            Some(id(5)),
            "its resources are free again"
        );
    }

    #[test]
    fn queue_gives_next_turn_to_user_with_fewer_running() {
        for choosy in [false, true] {
            let mut queue = NodeQueue::new(offers(2, 1_000_000, 1));
            let of = needs(1, u64::from(choosy), 0);
            let none: (&[LabelId], &[LabelId]) = (&[], &[]);
            for n in 0..1000 {
                queue.add_of(id(n), (kernel(n), 7), Some(&of), none);
            }
            assert_eq!(queue.take(Lane::Kernel), Some(id(0)));
            assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
            queue.add_of(id(1000), (kernel(1000), 8), Some(&of), none);
            queue.add_of(id(1001), (kernel(1001), 8), Some(&of), none);
            assert_eq!(queue.take(Lane::Kernel), None, "no core is free");
            queue.end(id(0), true);
            assert_eq!(queue.take(Lane::Kernel), Some(id(1000)));
            queue.end(id(1), false);
            assert_eq!(queue.take(Lane::Kernel), Some(id(2)), "7 has none now");
            queue.end(id(2), true);
            queue.end(id(1000), true);
            // Both users have equally many running kernels: the kernel that arrived first is first.
            assert_eq!(queue.take(Lane::Kernel), Some(id(3)));
            assert_eq!(queue.take(Lane::Kernel), Some(id(1001)));
            queue.end(id(1001), true);
            assert_eq!(queue.take(Lane::Kernel), Some(id(4)), "nobody else waits");
        }
    }

    #[test]
    fn queue_never_starves_large_label_of_another_user() {
        let mut queue = NodeQueue::new(offers(2, 10, 1));
        let none: (&[LabelId], &[LabelId]) = (&[], &[]);
        let (small, large) = (needs(1, 1, 0), needs(2, 1, 0));
        queue.add_of(id(0), (kernel(0), 7), Some(&small), none);
        assert_eq!(queue.take(Lane::Kernel), Some(id(0)));
        queue.add_of(id(1), (kernel(1), 7), Some(&large), none);
        for n in 2..50 {
            let user = 8 + u32::try_from(n).unwrap();
            queue.add_of(id(n), (kernel(n), user), Some(&small), none);
        }
        assert_eq!(queue.take(Lane::Kernel), Some(id(2)), "7 has its turn");
        queue.end(id(0), true);
        assert_eq!(queue.take(Lane::Kernel), None, "both cores are kept");
        queue.end(id(2), true);
        assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
    }

    #[test]
    fn queue_failure_fails_all_dependent_labels() {
        let mut queue = queue();
        queue.add(id(1), kernel(1), None, &[]);
        queue.add(id(2), kernel(2), None, &[id(1)]);
        queue.add(id(3), kernel(3), None, &[id(2)]);
        queue.add(id(4), kernel(4), None, &[]);
        queue.take(Lane::Kernel);
        assert_eq!(queue.end(id(1), false), [id(2), id(3)]);
        assert_eq!(
            queue.add(id(5), kernel(5), None, &[id(3)]),
            Added::DependencyFailed(id(3))
        );
        queue.acknowledge(id(1));
        assert_eq!(
            queue.add(id(6), kernel(6), None, &[id(1)]),
            Added::DependencyFailed(id(1))
        );
        assert_eq!(queue.take(Lane::Kernel), Some(id(4)));
        assert_eq!(queue.take(Lane::Kernel), None);
    }

    #[test]
    fn queue_aborts_a_label_in_every_state() {
        let mut queue = queue();
        queue.add(id(1), kernel(1), None, &[]);
        queue.add(id(2), kernel(2), None, &[]);
        queue.add(id(3), kernel(3), None, &[id(2)]);
        assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
        assert_eq!(queue.abort(id(1)), Aborted::Running);
        assert_eq!(queue.abort(id(2)), Aborted::Removed(vec![id(3)]));
        assert_eq!(queue.abort(id(2)), Aborted::Nothing);
        assert_eq!(queue.abort(id(9)), Aborted::Unknown);
        assert_eq!(queue.reschedule(id(1)), None, "it runs");
        assert_eq!(
            (queue.reschedule(id(2)), queue.reschedule(id(9))),
            (None, None)
        );
        assert_eq!(queue.take(Lane::Kernel), None);
        assert_eq!((queue.running(), queue.queued()), (1, 0));
    }

    #[test]
    fn streaming_label_starts_with_its_producer_and_fails_with_it() {
        let mut queue = NodeQueue::new(Offers::of_cores(2));
        let one = needs(1, 0, 0);
        let streaming = |queue: &mut NodeQueue, n: u64, by: u64| {
            let by = [id(by)];
            queue.add_streaming(id(n), kernel(n), Some(&needs(1, 0, 0)), (&by, &by))
        };
        queue.add(id(1), kernel(1), Some(&one), &[]);
        streaming(&mut queue, 2, 1);
        streaming(&mut queue, 3, 2);
        queue.add(id(4), kernel(4), Some(&one), &[id(2)]);
        assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
        assert!(queue.streams(id(1)) && !queue.streams(id(2)));
        assert_eq!(queue.take(Lane::Kernel), Some(id(2)), "beside it");
        assert_eq!(queue.take(Lane::Kernel), None, "3 finds no core, 4 waits");
        assert_eq!(
            queue.end(id(1), false),
            [],
            "2 runs, and the others wait for it"
        );
        assert_eq!(queue.streamed_in_vain(id(1)), [id(2)]);
        assert_eq!(queue.streamed_in_vain(id(2)), []);
        assert_eq!(queue.end(id(2), false), [id(3), id(4)]);
        assert_eq!((queue.running(), queue.queued()), (0, 0));
        assert!(queue.ledger.is_whole());
        // The label is ready when the label that streams its input runs, or has ended.
        queue.add(id(5), kernel(5), Some(&one), &[]);
        assert_eq!(queue.take(Lane::Kernel), Some(id(5)));
        streaming(&mut queue, 6, 5);
        assert_eq!(queue.take(Lane::Kernel), Some(id(6)));
        queue.end(id(5), true);
        assert_eq!(queue.streamed_in_vain(id(5)), []);
        queue.end(id(6), true);
        streaming(&mut queue, 7, 5);
        assert_eq!(queue.take(Lane::Kernel), Some(id(7)));
        assert_eq!(streaming(&mut queue, 8, 2), Added::DependencyFailed(id(2)));
    }

    #[test]
    fn streaming_label_without_free_core_blocks_nobody() {
        for choosy in [false, true] {
            let mut queue = NodeQueue::new(offers(2, 10, 1));
            let of = |cores| needs(cores, u64::from(choosy), 0);
            queue.add(id(1), kernel(1), Some(&of(1)), &[]);
            let by = [id(1)];
            queue.add_streaming(id(2), kernel(2), Some(&of(2)), (&by, &by));
            queue.add(id(3), kernel(3), Some(&of(1)), &[]);
            assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
            assert_eq!(queue.take(Lane::Kernel), Some(id(3)));
            assert_eq!(queue.take(Lane::Kernel), None);
            queue.end(id(1), true);
            queue.add(id(4), kernel(4), Some(&of(1)), &[]);
            assert_eq!(queue.take(Lane::Kernel), None, "it has its turn");
            queue.end(id(3), true);
            assert_eq!(queue.take(Lane::Kernel), Some(id(2)));
        }
    }

    proptest! {
        /// For any order of events: each label is taken at most once, and never before its dependencies have succeeded or stream to it. In
        /// the end each label has run or has failed with one of its dependencies.
        #[test]
        fn queue_runs_each_label_once_and_after_its_dependencies(
            after in proptest::collection::vec(proptest::collection::vec(0usize..40, 0..4), 1..40),
            fates in proptest::collection::vec(any::<bool>(), 40),
            streams in proptest::collection::vec(any::<bool>(), 40),
            cores in 1usize..4,
        ) {
            let mut queue = queue();
            for (n, before) in after.iter().enumerate() {
                let before: Vec<LabelId> =
                    before.iter().filter(|&&b| b < n).map(|&b| id(b as u64)).collect();
                let streaming: Vec<LabelId> = before.iter().copied().filter(|b| streams[usize::try_from(b.0).unwrap()]).collect();
                let added = queue.add_streaming(id(n as u64), kernel(n as u64), None, (&before, &streaming));
                prop_assert_eq!(added, Added::Queued);
            }
            let mut ended = BTreeMap::new();
            let mut vain = BTreeSet::new();
            let mut running: VecDeque<LabelId> = VecDeque::new();
            loop {
                while running.len() < cores {
                    let Some(label) = queue.take(Lane::Kernel) else { break };
                    let n = usize::try_from(label.0).unwrap();
                    for &before in after[n].iter().filter(|&&before| before < n) {
                        let streaming = streams[before] && running.contains(&id(before as u64));
                        prop_assert!(streaming || ended.get(&id(before as u64)) == Some(&true));
                    }
                    prop_assert!(!ended.contains_key(&label));
                    running.push_back(label);
                }
                prop_assert_eq!(queue.running(), running.len());
                let Some(label) = running.pop_front() else { break };
                let n = usize::try_from(label.0).unwrap();
                let fate = fates[n] && !vain.contains(&label);
                if fate && after[n].iter().any(|&before| before < n && running.contains(&id(before as u64))) {
                    // Its input is still being written.
                    running.push_back(label);
                    continue;
                }
                prop_assert!(ended.insert(label, fate).is_none());
                for lost in queue.end(label, fate) {
                    prop_assert!(ended.insert(lost, false).is_none());
                }
                let streamed = queue.streamed_in_vain(label);
                prop_assert!(streamed.iter().all(|streamed| running.contains(streamed)));
                vain.extend(streamed);
            }
            prop_assert_eq!(ended.len(), after.len());
            prop_assert_eq!(queue.queued(), 0);
        }

        /// For any needs and ends of labels: the labels never take more resources than the node has, all resources are free in the end, no
        /// label is left over, and the oldest ready label never loses a resource that it needs to a younger label.
        #[test]
        fn queue_never_overdraws_resources_and_starves_no_label(
            all in proptest::collection::vec((0_u32..4, 0_u64..11, 0_u64..2), 1..60),
            steps in proptest::collection::vec((0_u8..8, 0_usize..1000), 0..300),
        ) {
            let mut queue = NodeQueue::new(offers(3, 10, 1));
            let all: Vec<Needs> = all.into_iter().map(|(c, m, g)| needs(c, m, g)).collect();
            let mut running: Vec<usize> = Vec::new();
            let mut waiting: BTreeSet<usize> = BTreeSet::new();
            let mut next = 0;
            let rest = std::iter::repeat_n((0, 0), all.len());
            let rest = rest.chain(std::iter::repeat_n((5, 0), 2 * all.len()));
            for (step, index) in steps.into_iter().chain(rest) {
                match step {
                    0..=2 if next < all.len() => {
                        let place = (lane_of(&all[next]), next as u64);
                        queue.add(id(next as u64), place, Some(&all[next]), &[]);
                        waiting.insert(next);
                        next += 1;
                    }
                    3 if !waiting.is_empty() => {
                        let some = *waiting.iter().nth(index % waiting.len()).unwrap();
                        waiting.remove(&some);
                        prop_assert_eq!(queue.abort(id(some as u64)), Aborted::Removed(vec![]));
                    }
                    _ if !running.is_empty() => {
                        let ended = running.swap_remove(index % running.len());
                        queue.end(id(ended as u64), step % 2 == 0);
                    }
                    _ => {}
                }
                for lane in [Lane::Kernel, Lane::Light, Lane::Kernel] {
                    let oldest = waiting.first().copied();
                    let before = queue.ledger.clone();
                    let Some(label) = queue.take(lane) else { continue };
                    let label = usize::try_from(label.0).unwrap();
                    prop_assert!(waiting.remove(&label) && before.has(&all[label]));
                    if let Some(oldest) = oldest.filter(|&oldest| oldest != label) {
                        let kept = queue.ledger.has(&all[oldest]) || !before.has(&all[oldest]);
                        prop_assert!(kept, "{} took what {} waits for", label, oldest);
                    }
                    running.push(label);
                }
                let sum = |of: fn(&Needs) -> u64| running.iter().map(|&one| of(&all[one])).sum::<u64>();
                prop_assert!(sum(|one| one.cores.into()) <= 3);
                prop_assert!(sum(|one| one.memory_bytes) <= 10);
                prop_assert!(sum(|one| one.named.get("gpu").copied().unwrap_or(0)) <= 1);
            }
            prop_assert!(running.is_empty() && waiting.is_empty() && next == all.len());
            prop_assert!(queue.ledger.is_whole());
            prop_assert_eq!((queue.running(), queue.queued()), (0, 0));
        }
    }
}
