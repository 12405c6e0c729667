//! The order of an element's labels: in each lane first come, first served, but none before those it comes after.
//!
//! What it holds is kept by others: an element journals a label before it is added, and adds what was journaled
//! again when it starts.

use crate::id::LabelId;
use crate::label::Lane;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Labels that may wait or run at once; what comes beyond is refused.
pub const LABELS_MAX: usize = 1_000_000;

/// Ended and acknowledged labels that are remembered, for labels that come after them and arrive late.
const FORGOTTEN_MAX: usize = 10_000;

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    labels: BTreeMap<LabelId, Entry>,
    /// By lane and arrival.
    ready: BTreeMap<(Lane, u64), LabelId>,
    forgotten: VecDeque<LabelId>,
    running: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Entry {
    /// Its lane and its place in the order of arrival.
    place: (Lane, u64),
    state: State,
    /// Labels that must end well before.
    missing: BTreeSet<LabelId>,
    /// Labels that wait for this one.
    dependants: Vec<LabelId>,
    acknowledged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Running,
    Done,
    Failed,
}

/// What adding a label led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It will be given out by [`Queue::take`].
    Queued,
    /// It is known already.
    Known,
    /// A label that it comes after failed; it is taken as failed too.
    DependencyFailed(LabelId),
}

/// What aborting a label led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// It is not known, so it will never run unless it is added.
    Unknown,
    /// It ended already.
    Nothing,
    /// It runs: whoever runs it has to end it.
    Running,
    /// It had not begun and now never will; nor will these, which come after it.
    Removed(Vec<LabelId>),
}

impl Queue {
    /// Adds a label. `place` is its lane and its place in the order of arrival. What it comes `after` and is not known
    /// has ended well and been forgotten long ago.
    pub fn add(&mut self, label: LabelId, place: (Lane, u64), after: &[LabelId]) -> Added {
        if self.labels.contains_key(&label) {
            return Added::Known;
        }
        let mut missing = BTreeSet::new();
        let mut failed = None;
        for &before in after {
            match self.labels.get(&before).map(|entry| entry.state) {
                None | Some(State::Done) => {}
                Some(State::Failed) => failed = Some(before),
                Some(_) => {
                    missing.insert(before);
                }
            }
        }
        let state = match (failed, missing.is_empty()) {
            (Some(_), _) => State::Failed,
            (None, true) => State::Ready,
            (None, false) => State::Waiting,
        };
        match state {
            State::Ready => {
                self.ready.insert(place, label);
            }
            State::Waiting => {
                self.waiting += 1;
                for before in &missing {
                    if let Some(entry) = self.labels.get_mut(before) {
                        entry.dependants.push(label);
                    }
                }
            }
            _ => missing.clear(),
        }
        let entry = Entry {
            place,
            state,
            missing,
            dependants: Vec::new(),
            acknowledged: false,
        };
        self.labels.insert(label, entry);
        failed.map_or(Added::Queued, Added::DependencyFailed)
    }

    /// Notes a label that ended before a restart.
    pub fn add_ended(&mut self, label: LabelId, succeeded: bool) {
        let state = if succeeded {
            State::Done
        } else {
            State::Failed
        };
        let entry = Entry {
            // It will never be given out.
            place: (Lane::Kernel, 0),
            state,
            missing: BTreeSet::new(),
            dependants: Vec::new(),
            acknowledged: false,
        };
        self.labels.insert(label, entry);
    }

    /// Whether a label of a lane could be run now.
    #[must_use]
    pub fn is_ready(&self, lane: Lane) -> bool {
        self.first(lane).is_some()
    }

    fn first(&self, lane: Lane) -> Option<(Lane, u64)> {
        let mut ready = self.ready.range((lane, 0)..=(lane, u64::MAX));
        ready.next().map(|(&place, _)| place)
    }

    /// The next label of a lane to run, which counts as running from now on.
    pub fn take(&mut self, lane: Lane) -> Option<LabelId> {
        let place = self.first(lane)?;
        let label = self.ready.remove(&place)?;
        if let Some(entry) = self.labels.get_mut(&label) {
            entry.state = State::Running;
        }
        self.running += 1;
        Some(label)
    }

    /// Notes how a running label ended. Gives the labels that can't run any more because of it.
    pub fn end(&mut self, label: LabelId, succeeded: bool) -> Vec<LabelId> {
        match self.labels.get_mut(&label) {
            Some(entry) if entry.state == State::Running => {}
            _ => return Vec::new(),
        }
        self.running -= 1;
        if succeeded {
            self.release(label);
            return Vec::new();
        }
        self.fail(label)
    }

    /// Gives up a label.
    pub fn abort(&mut self, label: LabelId) -> Aborted {
        match self.labels.get(&label).map(|entry| entry.state) {
            Some(State::Waiting | State::Ready) => Aborted::Removed(self.fail(label)),
            Some(State::Running) => Aborted::Running,
            Some(State::Done | State::Failed) => Aborted::Nothing,
            None => Aborted::Unknown,
        }
    }

    /// Gives up a label that has not begun; those that come after it. `None`: it is not known, runs or has ended.
    pub fn recall(&mut self, label: LabelId) -> Option<Vec<LabelId>> {
        match self.labels.get(&label)?.state {
            State::Waiting | State::Ready => Some(self.fail(label)),
            State::Running | State::Done | State::Failed => None,
        }
    }

    /// Forgets an ended label whose outcome the server has; a bounded number stays known.
    pub fn acknowledge(&mut self, label: LabelId) {
        match self.labels.get_mut(&label) {
            Some(entry) if matches!(entry.state, State::Done | State::Failed) => {
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

    /// Labels that wait for their turn or for another label.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.ready.len() + self.waiting
    }

    /// Labels that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running
    }

    fn release(&mut self, label: LabelId) {
        let Some(entry) = self.labels.get_mut(&label) else {
            return;
        };
        entry.state = State::Done;
        for dependant in std::mem::take(&mut entry.dependants) {
            let Some(entry) = self.labels.get_mut(&dependant) else {
                continue;
            };
            entry.missing.remove(&label);
            if entry.missing.is_empty() && entry.state == State::Waiting {
                entry.state = State::Ready;
                self.waiting -= 1;
                self.ready.insert(entry.place, dependant);
            }
        }
    }

    /// Marks a label and all that come after it as failed; gives the latter.
    fn fail(&mut self, label: LabelId) -> Vec<LabelId> {
        let mut failed = Vec::new();
        let mut next = vec![label];
        while let Some(id) = next.pop() {
            let Some(entry) = self.labels.get_mut(&id) else {
                continue;
            };
            match entry.state {
                State::Done | State::Failed => continue,
                State::Waiting => self.waiting -= 1,
                State::Ready => {
                    self.ready.remove(&entry.place);
                }
                State::Running => {}
            }
            entry.state = State::Failed;
            entry.missing.clear();
            next.append(&mut entry.dependants);
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
    use proptest::prelude::*;

    fn id(n: u64) -> LabelId {
        LabelId(n)
    }

    fn kernel(seq: u64) -> (Lane, u64) {
        (Lane::Kernel, seq)
    }

    #[test]
    fn a_removal_does_not_wait_for_kernels() {
        let mut queue = Queue::default();
        queue.add(id(1), kernel(1), &[]);
        queue.add(id(2), (Lane::Remove, 2), &[]);
        queue.add(id(3), (Lane::Remove, 3), &[id(1)]);
        assert!(queue.is_ready(Lane::Kernel) && queue.is_ready(Lane::Remove));
        assert!(!queue.is_ready(Lane::Copy));
        assert_eq!(queue.take(Lane::Remove), Some(id(2)));
        assert_eq!(queue.take(Lane::Remove), None, "3 comes after 1");
        assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
        queue.end(id(1), true);
        assert_eq!(queue.take(Lane::Remove), Some(id(3)));
    }

    #[test]
    fn labels_run_in_order_and_after_those_they_wait_for() {
        let mut queue = Queue::default();
        assert_eq!(queue.add(id(1), kernel(1), &[]), Added::Queued);
        assert_eq!(queue.add(id(2), kernel(2), &[id(1)]), Added::Queued);
        assert_eq!(queue.add(id(3), kernel(3), &[]), Added::Queued);
        assert_eq!(queue.add(id(3), kernel(4), &[]), Added::Known);
        assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
        assert!(queue.end(id(1), true).is_empty());
        // 2 came before 3, and nothing holds it back any more.
        assert_eq!(queue.take(Lane::Kernel), Some(id(2)));
        assert_eq!(queue.take(Lane::Kernel), Some(id(3)));
        assert_eq!(queue.take(Lane::Kernel), None);
        assert_eq!((queue.running(), queue.queued()), (2, 0));
    }

    #[test]
    fn a_failure_takes_along_all_that_come_after() {
        let mut queue = Queue::default();
        queue.add(id(1), kernel(1), &[]);
        queue.add(id(2), kernel(2), &[id(1)]);
        queue.add(id(3), kernel(3), &[id(2)]);
        queue.add(id(4), kernel(4), &[]);
        queue.take(Lane::Kernel);
        assert_eq!(queue.end(id(1), false), [id(2), id(3)]);
        assert_eq!(
            queue.add(id(5), kernel(5), &[id(3)]),
            Added::DependencyFailed(id(3))
        );
        queue.acknowledge(id(1));
        assert_eq!(
            queue.add(id(6), kernel(6), &[id(1)]),
            Added::DependencyFailed(id(1))
        );
        assert_eq!(queue.take(Lane::Kernel), Some(id(4)));
        assert_eq!(queue.take(Lane::Kernel), None);
    }

    #[test]
    fn a_label_can_be_given_up_in_every_state() {
        let mut queue = Queue::default();
        queue.add(id(1), kernel(1), &[]);
        queue.add(id(2), kernel(2), &[]);
        queue.add(id(3), kernel(3), &[id(2)]);
        assert_eq!(queue.take(Lane::Kernel), Some(id(1)));
        assert_eq!(queue.abort(id(1)), Aborted::Running);
        assert_eq!(queue.abort(id(2)), Aborted::Removed(vec![id(3)]));
        assert_eq!(queue.abort(id(2)), Aborted::Nothing);
        assert_eq!(queue.abort(id(9)), Aborted::Unknown);
        assert_eq!(queue.recall(id(1)), None, "it runs");
        assert_eq!((queue.recall(id(2)), queue.recall(id(9))), (None, None));
        assert_eq!(queue.take(Lane::Kernel), None);
        assert_eq!((queue.running(), queue.queued()), (1, 0));
    }

    proptest! {
        /// Whatever happens in whatever order: each label is given out at most once, never before those it
        /// comes after have ended well, and in the end each was run or failed along with one it came after.
        #[test]
        fn none_is_lost_run_twice_or_run_too_early(
            after in proptest::collection::vec(proptest::collection::vec(0usize..40, 0..4), 1..40),
            fates in proptest::collection::vec(any::<bool>(), 40),
            cores in 1usize..4,
        ) {
            let mut queue = Queue::default();
            for (n, before) in after.iter().enumerate() {
                let before: Vec<LabelId> =
                    before.iter().filter(|&&b| b < n).map(|&b| id(b as u64)).collect();
                prop_assert_eq!(queue.add(id(n as u64), kernel(n as u64), &before), Added::Queued);
            }
            let mut ended = BTreeMap::new();
            let mut running = VecDeque::new();
            loop {
                while running.len() < cores {
                    let Some(label) = queue.take(Lane::Kernel) else { break };
                    let n = usize::try_from(label.0).unwrap();
                    for &before in after[n].iter().filter(|&&before| before < n) {
                        prop_assert_eq!(ended.get(&id(before as u64)), Some(&true));
                    }
                    prop_assert!(!ended.contains_key(&label));
                    running.push_back(label);
                }
                prop_assert_eq!(queue.running(), running.len());
                let Some(label) = running.pop_front() else { break };
                let fate = fates[usize::try_from(label.0).unwrap()];
                prop_assert!(ended.insert(label, fate).is_none());
                for lost in queue.end(label, fate) {
                    prop_assert!(ended.insert(lost, false).is_none());
                }
            }
            prop_assert_eq!(ended.len(), after.len());
            prop_assert_eq!(queue.queued(), 0);
        }
    }
}
