//! Classes of tasks: decides on which nodes a task can run at all. A node can run a task if it offers the resources that the task needs,
//! has the task's programs and is not being drained.
//!
//! Tasks with equal requirements form a class. The nodes that a class excludes are determined once. They are updated only when a node
//! connects, disconnects, changes its offers, or gains or loses a program. So this check costs nothing for most tasks, which need only one
//! core.

use super::nodes::Nodes;
use super::turns::Line;
use super::{Dispatcher, ReadyQueue, Turn};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::event::{Role, TaskState};
use tidemill_model::id::{NodeId, TaskId};
use tidemill_model::label::{Failure, FailureKind};
use tidemill_model::resources::{Needs, Offers, TaskRequirements};

/// First words of the message about a task that can run only on a node that is not available.
pub const ASIDE: [&str; 2] = [
    "it is pinned to node",
    "no node that is up can run it; it waits for node",
];

/// Number of a class, in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassNumber(u32);

impl ClassNumber {
    pub(super) const MIN: Self = Self(0);
    pub(super) const MAX: Self = Self(u32::MAX);
}

/// All classes that have tasks, and the programs that nodes have reported.
#[derive(Debug, Default)]
pub(super) struct Classes {
    numbers: BTreeMap<TaskRequirements, ClassNumber>,
    known: BTreeMap<ClassNumber, Class>,
    next: u32,
    /// Programs that online nodes have reported, with whether the program exists on the node.
    programs: BTreeMap<NodeId, BTreeMap<String, bool>>,
    /// Nodes that are being drained and get no tasks.
    emptied: BTreeSet<NodeId>,
    /// Counter of changes that may affect which nodes can run the tasks of a class.
    news: u64,
}

#[derive(Debug)]
struct Class {
    wants: TaskRequirements,
    tasks: usize,
    /// Online nodes that can't run tasks of the class, in order of ids, as of the value of `news`.
    barred: Vec<NodeId>,
    /// Whether any online storage node can run tasks of the class.
    open: bool,
    news: Option<u64>,
}

impl Classes {
    /// Adds a new task to its class and returns the number of the class.
    pub(super) fn enter(&mut self, wants: TaskRequirements) -> ClassNumber {
        let number = *self.numbers.entry(wants).or_insert_with_key(|wants| {
            let number = ClassNumber(self.next);
            self.next = self.next.wrapping_add(1);
            let class = Class {
                wants: wants.clone(),
                tasks: 0,
                barred: Vec::new(),
                open: false,
                news: None,
            };
            self.known.insert(number, class);
            number
        });
        if let Some(class) = self.known.get_mut(&number) {
            class.tasks += 1;
        }
        number
    }

    /// Removes a task from its class, and the class with its last task.
    pub(super) fn leave(&mut self, number: ClassNumber) {
        let Some(class) = self.known.get_mut(&number) else {
            return;
        };
        class.tasks -= 1;
        if class.tasks == 0
            && let Some(class) = self.known.remove(&number)
        {
            self.numbers.remove(&class.wants);
        }
    }

    /// Returns the programs that a node has reported as installed.
    pub(super) fn programs_on(&self, node: NodeId) -> Vec<String> {
        let known = self.programs.get(&node).into_iter().flatten();
        let has = known.filter(|(_, has)| **has);
        has.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn wants(&self, number: ClassNumber) -> Option<&TaskRequirements> {
        self.known.get(&number).map(|class| &class.wants)
    }

    /// Updates the nodes that a class excludes, if offers, programs or draining of nodes have changed.
    fn renew(&mut self, number: ClassNumber, nodes: &Nodes) {
        let (programs, emptied, news) = (&self.programs, &self.emptied, self.news);
        let Some(class) = self.known.get_mut(&number) else {
            return;
        };
        if class.news.replace(news) == Some(news) {
            return;
        }
        class.barred.clear();
        class.open = false;
        for (id, node) in nodes.iter().filter(|(_, node)| node.up()) {
            let open = !emptied.contains(&id);
            if !open || !can(&class.wants, &node.view.offers, programs.get(&id)) {
                class.barred.push(id);
            } else if node.view.role == Role::Store {
                class.open = true;
            }
        }
    }

    /// Returns the online nodes that can't run tasks of a class, in order of ids.
    pub(super) fn barred(&mut self, number: ClassNumber, nodes: &Nodes) -> &[NodeId] {
        self.renew(number, nodes);
        let class = self.known.get(&number);
        class.map_or(&[], |class| class.barred.as_slice())
    }

    /// Returns whether a class excludes a node, as of the last update.
    fn bars(&self, number: ClassNumber, node: NodeId) -> bool {
        let class = self.known.get(&number);
        class.is_some_and(|class| class.barred.binary_search(&node).is_ok())
    }
}

fn can(
    wants: &TaskRequirements,
    offers: &Offers,
    programs: Option<&BTreeMap<String, bool>>,
) -> bool {
    let has = |name: &String| programs.is_some_and(|known| known.get(name) == Some(&true));
    offers.lacks(&wants.needs).is_none() && wants.programs.iter().all(has)
}

impl Dispatcher {
    /// Returns the resources that a task needs; an unknown task needs one core.
    pub(super) fn needs(&self, id: TaskId) -> Needs {
        let task = self.tasks.get(&id);
        task.map_or_else(Needs::default, |task| task.spec.needs.clone())
    }

    /// Returns whether storage nodes are online and none of them can run tasks of a class. If no storage node is online, only that is
    /// reported.
    pub(super) fn has_nowhere(&mut self, class: ClassNumber) -> bool {
        self.classes.renew(class, &self.nodes);
        let open = self
            .classes
            .known
            .get(&class)
            .is_some_and(|class| class.open);
        !open && !self.nodes.stores().is_empty()
    }

    /// Returns whether an online node can't run tasks of a class.
    pub(super) fn is_barred(&mut self, class: ClassNumber, node: NodeId) -> bool {
        let barred = self.classes.barred(class, &self.nodes);
        barred.binary_search(&node).is_ok()
    }

    /// Returns whether a task of a class could run on an online node, for checks of invariants.
    pub(super) fn could_run(&self, class: ClassNumber, id: TaskId) -> bool {
        let pinned = self.task(id).spec.node;
        let up = self.nodes.iter().filter(|(_, node)| node.up());
        let mut mine = up.filter(|(node, known)| match pinned {
            Some(pinned) => *node == pinned,
            None => known.view.role == Role::Store,
        });
        mine.any(|(node, known)| {
            let wants = self.classes.wants(class);
            let programs = self.classes.programs.get(&node);
            let open = !self.classes.emptied.contains(&node);
            open && wants.is_some_and(|wants| can(wants, &known.view.offers, programs))
        })
    }

    /// Returns whether a suspended node could run tasks of a class, according to the node's offers. A program that the node has not
    /// reported may exist.
    pub(super) fn could_run_resumed(&self, class: ClassNumber, id: NodeId) -> bool {
        let Some((wants, node)) = self.classes.wants(class).zip(self.nodes.get(&id)) else {
            return false;
        };
        let known = self.classes.programs.get(&id);
        let lacks = |name: &String| known.is_some_and(|known| known.get(name) == Some(&false));
        let open = node.view.role == Role::Store && !self.classes.emptied.contains(&id);
        let fits = node.view.offers.lacks(&wants.needs).is_none();
        open && fits && !wants.programs.iter().any(lacks)
    }

    /// Returns the programs that tasks need and that online nodes have not reported, by node.
    #[must_use]
    pub fn unknown_programs(&self) -> Vec<(NodeId, Vec<String>)> {
        let classes = self.classes.known.values();
        let wanted: BTreeSet<&String> = classes.flat_map(|class| &class.wants.programs).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let up = self.nodes.iter().filter(|(_, node)| node.up());
        up.filter_map(|(id, _)| {
            let known = self.classes.programs.get(&id);
            let unknown = wanted
                .iter()
                .filter(|name| !known.is_some_and(|known| known.contains_key(**name)));
            let names: Vec<String> = unknown.map(|&name| name.clone()).collect();
            (!names.is_empty()).then_some((id, names))
        })
        .collect()
    }

    pub(super) fn on_programs(&mut self, node: NodeId, found: Vec<String>, missing: Vec<String>) {
        if !self.up(node) {
            return;
        }
        let known = self.classes.programs.entry(node).or_default();
        let mut changed = false;
        let found = found.into_iter().map(|name| (name, true));
        for (name, has) in found.chain(missing.into_iter().map(|name| (name, false))) {
            changed |= known.insert(name, has) != Some(has);
        }
        if changed {
            self.offers_changed(node);
        }
    }

    /// Records that the draining of a node has started or ended.
    pub(super) fn on_emptied(&mut self, node: NodeId, emptied: bool) {
        let changed = if emptied {
            self.classes.emptied.insert(node)
        } else {
            self.classes.emptied.remove(&node)
        };
        if changed {
            self.offers_changed(node);
        }
    }

    /// Forgets the reported programs of a node that has connected, because they may have changed since.
    pub(super) fn forget_programs(&mut self, node: NodeId) {
        self.classes.programs.remove(&node);
    }

    /// Handles a node that has connected, disconnected or changed its offers: places the tasks that wait for the node's resources again.
    pub(super) fn offers_changed(&mut self, id: NodeId) {
        self.classes.news += 1;
        let classes: BTreeSet<ClassNumber> = self
            .lines
            .keys()
            .filter_map(|line| match line {
                ReadyQueue::Any(class) | ReadyQueue::Barred(class) => Some(*class),
                ReadyQueue::Fresh | ReadyQueue::Pinned(_) | ReadyQueue::At(_) => None,
            })
            .collect();
        for class in classes {
            self.classes.renew(class, &self.nodes);
            let up = self.up(id);
            let can = up && !self.classes.bars(class, id);
            let open = self
                .classes
                .known
                .get(&class)
                .is_some_and(|class| class.open);
            if can {
                self.freshen(ReadyQueue::Barred(class), |_| true);
            }
            if !open {
                self.freshen(ReadyQueue::Any(class), |_| true);
            }
        }
        for line in [ReadyQueue::At(id), ReadyQueue::Pinned(id)] {
            let members = self.lines.get(&line).into_iter().flat_map(Line::iter);
            let classes: BTreeSet<ClassNumber> =
                members.map(|task| self.task(task).class).collect();
            let barring = classes
                .into_iter()
                .filter(|&class| self.is_barred(class, id));
            let barring: BTreeSet<ClassNumber> = barring.collect();
            if !barring.is_empty() {
                self.freshen(line, |class| barring.contains(&class));
            }
        }
        self.touch(id);
    }

    /// Schedules the tasks of a ready queue that `wanted` selects to be placed again.
    pub(super) fn freshen(&mut self, line: ReadyQueue, wanted: impl Fn(ClassNumber) -> bool) {
        let members = self.lines.get(&line).into_iter().flat_map(Line::iter);
        let members = members.filter(|&task| wanted(self.task(task).class));
        let members: Vec<TaskId> = members.collect();
        for task in members {
            self.join_line(ReadyQueue::Fresh, task);
        }
    }

    /// Puts aside a ready task that no online node can run, and reports this once per task.
    pub(super) fn put_aside(&mut self, id: TaskId, turn: &mut Turn<'_>) {
        let class = self.task(id).class;
        self.join_line(ReadyQueue::Barred(class), id);
        if std::mem::replace(&mut self.task_mut(id).aside, true) {
            return;
        }
        let pinned = self.task(id).spec.node;
        let wants = self.classes.wants(class).map(ToString::to_string);
        let wants = wants.unwrap_or_default();
        let message = match pinned {
            Some(node) if self.classes.emptied.contains(&node) => format!(
                "{} {node}, which is being drained; it waits until the drain is cancelled",
                ASIDE[0]
            ),
            Some(node) => format!("{} {node} with {wants}", ASIDE[1]),
            None => {
                format!("no node that is up can run it; it waits for a node with {wants}")
            }
        };
        self.tell(
            id,
            Failure {
                kind: FailureKind::Unfit,
                message,
            },
        );
        self.set_state(id, TaskState::Ready, turn);
    }
}
