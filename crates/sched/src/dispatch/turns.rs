//! Order of ready tasks: the users take turns, and the tasks of a user follow each other first come, first served by (job, task).
//!
//! Each task that is sent is one turn of its owner. The next turn is that of the user with the fewest turns. After a time without
//! ready tasks, a user continues with as many turns as the user who is served then, and neither catches up nor waits (start-time fair queueing with
//! equal weights). A large backlog of one user therefore delays nobody else's tasks by more than one turn of each user.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use tidemill_model::id::{JobId, TaskId};

/// Number of users whose turns are kept although they may have no ready task.
const USERS_KEPT: usize = 64;

/// Number of a user.
pub(super) type User = u32;

/// Number of turns of each user.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Number of turns of the user who was served last, before that turn.
    served: u64,
    of: BTreeMap<User, u64>,
}

impl Turns {
    fn next(&self, user: User) -> u64 {
        let own = self.of.get(&user).copied();
        own.unwrap_or(0).max(self.served)
    }

    /// Records that the next turn is this user's.
    pub(super) fn on_turn(&mut self, user: User) {
        self.served = self.next(user);
    }

    /// Records that a task of a user is sent.
    pub(super) fn on_sent(&mut self, user: User) {
        let next = self.next(user) + 1;
        if self.of.len() >= USERS_KEPT {
            let served = self.served;
            self.of.retain(|_, turns| *turns > served);
        }
        self.of.insert(user, next);
    }
}

/// Ready tasks that wait in one queue.
#[derive(Debug, Default)]
pub(super) struct Line {
    tasks: BTreeMap<User, BTreeSet<(JobId, TaskId)>>,
}

impl Line {
    pub(super) fn insert(&mut self, user: User, job: JobId, task: TaskId) {
        self.tasks.entry(user).or_default().insert((job, task));
    }

    pub(super) fn remove(&mut self, user: User, job: JobId, task: TaskId) {
        if let Some(tasks) = self.tasks.get_mut(&user) {
            tasks.remove(&(job, task));
            if tasks.is_empty() {
                self.tasks.remove(&user);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.values().map(BTreeSet::len).sum()
    }

    /// Returns all tasks, by user.
    pub(super) fn iter(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.tasks.values().flatten().map(|&(_, task)| task)
    }

    /// Returns the task whose turn is next, with its place in the order of all lines.
    pub(super) fn first(&self, turns: &Turns) -> Option<((u64, JobId), TaskId)> {
        let firsts = self.tasks.iter().filter_map(|(&user, tasks)| {
            let &(job, task) = tasks.first()?;
            Some(((turns.next(user), job), task))
        });
        firsts.min()
    }

    /// Returns all tasks in the order in which they are served if nothing else is sent.
    pub(super) fn in_turn(&self, turns: &Turns) -> impl Iterator<Item = TaskId> + '_ {
        let users = self.tasks.iter().filter_map(|(&user, tasks)| {
            let mut tasks = tasks.iter();
            let first = *tasks.next()?;
            Some((Reverse((turns.next(user), first)), tasks))
        });
        let mut queues = Vec::new();
        let mut heap = BinaryHeap::new();
        for (first, tasks) in users {
            heap.push((first, queues.len()));
            queues.push(tasks);
        }
        std::iter::from_fn(move || {
            let (Reverse((turn, (_, task))), user) = heap.pop()?;
            if let Some(&next) = queues[user].next() {
                heap.push((Reverse((turn + 1, next)), user));
            }
            Some(task)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(tasks: &[(User, u64, u64)]) -> Line {
        let mut line = Line::default();
        for &(user, job, task) in tasks {
            line.insert(user, JobId(job), TaskId(task));
        }
        line
    }

    /// Sends all tasks of a line, one after the other.
    fn drain(line: &mut Line, turns: &mut Turns, owner: impl Fn(TaskId) -> User) -> Vec<u64> {
        std::iter::from_fn(|| {
            let ((_, job), task) = line.first(turns)?;
            turns.on_turn(owner(task));
            turns.on_sent(owner(task));
            line.remove(owner(task), job, task);
            Some(task.0)
        })
        .collect()
    }

    #[test]
    fn users_take_turns_and_tasks_of_user_keep_their_order() {
        let all = [
            (1, 1, 1),
            (1, 1, 2),
            (1, 2, 6),
            (1, 3, 5),
            (2, 4, 7),
            (2, 4, 8),
            (3, 5, 9),
        ];
        let owner = |task| all.iter().find(|one| TaskId(one.2) == task).unwrap().0;
        let mut turns = Turns::default();
        let expected = [1, 7, 9, 2, 8, 6, 5];
        let in_turn: Vec<u64> = line(&all).in_turn(&turns).map(|task| task.0).collect();
        assert_eq!(in_turn, expected);
        assert_eq!(drain(&mut line(&all), &mut turns, owner), expected);
    }

    #[test]
    fn user_who_arrives_late_neither_catches_up_nor_waits() {
        let mut turns = Turns::default();
        let mut only = line(&(0..1000).map(|task| (1, 1, task)).collect::<Vec<_>>());
        drain(&mut only, &mut turns, |_| 1);
        let all: Vec<_> = (0..100)
            .map(|task| (1, 1, task))
            .chain((100..110).map(|task| (2, 2, task)))
            .collect();
        let owner = |task: TaskId| if task.0 < 100 { 1 } else { 2 };
        let order = drain(&mut line(&all), &mut turns, owner);
        let last = order.iter().rposition(|&task| task >= 100).unwrap();
        assert!((18..=20).contains(&last), "{order:?}");
        assert!(order[..20].iter().filter(|&&task| task < 100).count() >= 9);
    }

    #[test]
    fn turns_are_kept_for_few_users() {
        let mut turns = Turns::default();
        for user in 1..10_000 {
            for user in [user, 0] {
                turns.on_turn(user);
                turns.on_sent(user);
            }
        }
        assert!(turns.of.len() <= USERS_KEPT + 1, "{}", turns.of.len());
    }
}
