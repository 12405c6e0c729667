//! Placement of tasks, from Ready to Sent: decides the order in which tasks are considered, the state that the policy sees, and the tasks
//! that are sent together. Effects are actions of the dispatcher.
//!
//! A **mini DAG** (AnalyzeThis §3.1) grows from a placed task. A task that waits only for labels of the same node joins if the policy
//! would place it on that node as well; the policy sees the pending outputs as if they existed. The node starts such a task without
//! asking the server.

use super::class::ClassNumber;
use super::cost_view::{CostView, ViewLists};
use super::node::{NodeState, expected_run};
use super::run_times::KernelNumber;
use super::small_map::SmallMap;
use super::task::{DispatchedJob, DispatchedTask, SentLabel, Wave};
use super::{
    Dispatcher, EXPECTED_MAX, IDLE_ASKS_MAX, INSTANCES, LINE_ASKS_MAX, MINI_DAG_ASKS_MAX,
    MINI_DAG_DEPTH_MAX, MINI_DAG_LABELS_MAX, ReadyQueue, Turn, UNKNOWN_RUN,
};
use crate::policy::{Candidate, FullScan, PlacementRequest, PolicyChoice, Reason};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::directory;
use tidemill_model::event::{
    Action, Decision, Estimate, InputSpec, Origin, TaskRole, TaskSpec, TaskState,
};
use tidemill_model::id::{JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Analysis, Label, LabelInput, LabelOutput, Operation};
use tidemill_model::layout::Selection;
use tidemill_model::object::Placed;
use tidemill_model::time::{Span, Time};

/// Inputs of a task and their locations.
#[derive(Debug, Default)]
pub(super) struct TaskReads {
    /// Input objects of the task, sealed or still to be written.
    placed: Vec<Placed>,
    /// Number of inputs that are not the kernel's code, and the nodes that hold these inputs.
    data: usize,
    holders: Vec<NodeId>,
    /// Size of all inputs in bytes, and the size per node that holds inputs or should have replicas, in order of node ids.
    pub(super) bytes: u64,
    pub(super) local: Vec<(NodeId, u64)>,
}

impl TaskReads {
    /// Returns the same lists without entries, to reuse them for the next task.
    pub(super) fn emptied(mut self) -> Self {
        self.placed.clear();
        self.holders.clear();
        self.local.clear();
        Self {
            data: 0,
            bytes: 0,
            ..self
        }
    }

    /// Returns the size of the task's inputs on a node, in bytes.
    pub(super) fn held(&self, node: NodeId) -> u64 {
        let at = self.local.binary_search_by_key(&node, |(id, _)| *id);
        at.map_or(0, |at| self.local[at].1)
    }
}

/// Task of the mini DAG that is being sent.
#[derive(Clone, Copy)]
struct SubgraphTask {
    task: TaskId,
    /// Time at which the task is expected to end, from now.
    end: Span,
    /// Length of the longest chain of dependent tasks in the mini DAG up to this task.
    depth: usize,
}

/// Node chosen for a task.
pub(super) struct PlacementChoice {
    pub(super) choice: Option<PolicyChoice>,
    /// Candidate node with its costs; `None` if only the job script, and not the policy, would place the task on the node.
    pub(super) chosen: Option<Candidate>,
    pub(super) reads: TaskReads,
    pub(super) earliest: Span,
}

impl Dispatcher {
    /// Places ready tasks as long as nodes have capacity for them.
    pub(super) fn pump(&mut self, turn: &mut Turn<'_>) {
        let changed = !self.touched.is_empty();
        let mut full: BTreeSet<ClassNumber> = BTreeSet::new();
        let mut passed: BTreeMap<NodeId, usize> = BTreeMap::new();
        while let Some((line, id)) = self.next_ready(&full, &passed) {
            let user = self.owner_of(id);
            self.turns.on_turn(user);
            if !self.can_issue(id) {
                // Nodes that were marked as touched stay marked: the next event continues here.
                return;
            }
            if self.task(id).spec.share == TaskRole::Join {
                self.join(id, turn);
            } else if let Some(node) = self.task(id).spec.node {
                let has_space = self.nodes.get(&node).is_some_and(NodeState::has_space);
                let class = self.task(id).class;
                if has_space && self.is_barred(class, node) {
                    self.put_aside(id, turn);
                } else if has_space {
                    let answer = self.ask(id, Span::default(), None, turn.now);
                    self.send(id, answer, turn);
                } else {
                    self.join_line(ReadyQueue::Pinned(node), id);
                }
            } else if !self.place_first(line, id, turn) {
                match line {
                    // The first task of the line finds no capacity, so the later tasks of the line find none either.
                    ReadyQueue::Any(class) => {
                        full.insert(class);
                    }
                    ReadyQueue::At(node) => *passed.entry(node).or_default() += 1,
                    ReadyQueue::Fresh | ReadyQueue::Pinned(_) | ReadyQueue::Barred(_) => {}
                }
            }
        }
        self.touched.clear();
        if changed {
            self.feed_idle(turn);
        }
    }

    /// Places the first task of a ready queue, and the later tasks that its policy places together with it. Returns whether all were sent.
    fn place_first(&mut self, line: ReadyQueue, id: TaskId, turn: &mut Turn<'_>) -> bool {
        let batch = self.batch(line, id, turn);
        if batch.is_empty() {
            return self.place(id, turn);
        }
        self.place_together(&batch, turn)
    }

    /// Returns the ready task whose turn is next and for which something has changed. `full` contains the classes for which a request found
    /// no capacity; `passed` counts the failed requests per node.
    fn next_ready(
        &mut self,
        full: &BTreeSet<ClassNumber>,
        passed: &BTreeMap<NodeId, usize>,
    ) -> Option<(ReadyQueue, TaskId)> {
        let nodes = &self.nodes;
        self.touched
            .retain_keys(|id| nodes.get(&id).is_some_and(NodeState::has_space));
        let any = ReadyQueue::Any(ClassNumber::MIN)..=ReadyQueue::Any(ClassNumber::MAX);
        let any = self.lines.range(any).map(|(line, _)| *line);
        let open_any = any.filter(|line| {
            !self.touched.is_empty()
                && !matches!(line, ReadyQueue::Any(class) if full.contains(class))
        });
        let per_node = self.touched.keys().flat_map(|id| {
            let looked = passed.get(&id).copied().unwrap_or(0);
            let idle = || nodes.get(&id).is_some_and(|known| known.idle_cores() > 0);
            let at = (looked < LINE_ASKS_MAX || idle()).then_some(ReadyQueue::At(id));
            at.into_iter().chain([ReadyQueue::Pinned(id)])
        });
        std::iter::once(ReadyQueue::Fresh)
            .chain(open_any)
            .chain(per_node)
            .filter_map(|line| Some((self.lines.get(&line)?.first(&self.turns)?, line)))
            .min()
            .map(|((_, id), line)| (line, id))
    }

    /// Asks the policy for a node for a task, and sends the task or puts it in a ready queue. Returns whether the task was sent.
    fn place(&mut self, id: TaskId, turn: &mut Turn<'_>) -> bool {
        let answer = self.ask(id, Span::default(), None, turn.now);
        let news = self.news;
        self.task_mut(id).asked = news;
        self.carry_out(id, answer, turn)
    }

    /// Sends a task to its chosen node if the node has capacity, or puts the task in a ready queue. Returns whether the task was sent.
    pub(super) fn carry_out(
        &mut self,
        id: TaskId,
        answer: PlacementChoice,
        turn: &mut Turn<'_>,
    ) -> bool {
        // Tasks that were placed together may have taken the capacity since.
        let has_space = answer.chosen.is_some_and(|chosen| {
            let node = self.nodes.get(&chosen.estimate.node);
            chosen.has_space && node.is_some_and(NodeState::has_space)
        });
        if has_space {
            self.send(id, answer, turn);
            return true;
        }
        self.spare_reads = answer.reads.emptied();
        let class = self.task(id).class;
        match answer.choice {
            Some(choice) => self.join_line(ReadyQueue::At(choice.node), id),
            None if self.has_nowhere(class) => self.put_aside(id, turn),
            None => self.join_line(ReadyQueue::Any(class), id),
        }
        false
    }

    /// Asks the policy again for tasks that wait for full nodes while another node is idle, if anything has changed since the last request.
    /// Asks for a few tasks per event, the first of every ready queue.
    fn feed_idle(&mut self, turn: &mut Turn<'_>) {
        if self.idle.is_empty() {
            return;
        }
        let lines = self
            .lines
            .range(ReadyQueue::At(NodeId(0))..=ReadyQueue::At(NodeId(u32::MAX)));
        let heads: Vec<TaskId> = lines
            .filter(|(line, _)| !matches!(line, ReadyQueue::At(id) if self.idle.contains(id)))
            .filter_map(|(_, members)| Some(members.first(&self.turns)?.1))
            .filter(|&id| self.task(id).asked < self.news)
            .take(IDLE_ASKS_MAX)
            .collect();
        for id in heads {
            if !self.can_issue(id) {
                return;
            }
            self.place(id, turn);
        }
        self.touched.clear();
    }

    /// Returns whether enough ids are left for a task's label and outputs.
    pub(super) fn can_issue(&mut self, id: TaskId) -> bool {
        let outputs = self.task(id).spec.outputs.iter();
        let ids = outputs.map(|output| directory::ids(&output.name)).sum();
        self.ids.ready(ids)
    }

    /// Asks the policy of a task's job for a node, unless the job script names a node. `along` is the node whose outstanding labels the
    /// task would follow, and `earliest` is the time until the last of these labels should have ended.
    pub(super) fn ask(
        &mut self,
        id: TaskId,
        earliest: Span,
        along: Option<NodeId>,
        now: Time,
    ) -> PlacementChoice {
        let mut reads = std::mem::take(&mut self.spare_reads);
        self.read(id, along, &mut reads);
        let task = self
            .tasks
            .get(&id)
            .expect("a task that is asked for is known");
        let job = self.jobs.get(&task.job);
        let spare = std::mem::take(&mut self.spare);
        let times = (earliest, now);
        let barred = self.classes.barred(task.class, &self.nodes);
        let beside = along.filter(|&node| fits_beside(task, self.nodes.get(&node)));
        let mut cost_view = CostView::new(
            &mut self.nodes,
            &self.learned,
            (task, barred),
            &reads,
            times,
            spare,
        );
        let choice = if let Some(node) = task.spec.node {
            let reason = Reason::Pinned;
            Some(PolicyChoice { node, reason })
        } else if let Some(node) = beside {
            let reason = Reason::Beside;
            Some(PolicyChoice { node, reason })
        } else {
            // A task that is considered ahead of its time belongs to no wave yet.
            let request = request(id, task, job.filter(|_| along.is_none()), &reads);
            let policy = job.and_then(|job| self.policies.get(policy_of(task, job)));
            let choice = policy.and_then(|policy| policy.place(&request, &mut cost_view));
            debug_assert_eq!(
                choice,
                policy
                    .and_then(|policy| policy.place(&request, &mut FullScan::of(cost_view.all()))),
                "{policy:?} was not shown the node that it would have chosen"
            );
            choice
        };
        let chosen = choice.and_then(|choice| cost_view.candidate(choice.node));
        self.spare = cost_view.into_lists();
        PlacementChoice {
            choice,
            chosen,
            reads,
            earliest,
        }
    }

    /// Determines the inputs of a task with their locations and adds them to the empty list `reads`.
    pub(super) fn read(&self, id: TaskId, along: Option<NodeId>, reads: &mut TaskReads) {
        let task = self.task(id);
        let spec = &task.spec;
        for (index, input) in spec.inputs.iter().enumerate() {
            let ready = task.ready_inputs.get(index).copied();
            let sealed = || Some(self.nearest(self.input(id, index)?, &input.selection));
            let flying = || self.flying(input.origin, along?);
            let Some(placed) = ready.or_else(sealed).or_else(flying) else {
                continue;
            };
            let data = !spec.kernel.is_in(&input.name);
            reads.data += usize::from(data);
            if let Some(parts) = self.replicas.selected(placed.object, &input.selection) {
                self.read_parts(placed, (&input.selection, &parts), data, reads);
                continue;
            }
            let bytes = input.selection.bytes_of(placed.size);
            reads.bytes = reads.bytes.saturating_add(bytes);
            if data {
                reads.holders.push(placed.node);
            }
            let replicas = self.replicas.of(placed.object);
            let replicas = replicas.filter(|&copied| copied != placed.node);
            let holding = std::iter::once(placed.node).chain(replicas);
            reads.local.extend(holding.map(|node| (node, bytes)));
            reads.placed.push(placed);
        }
        reads.holders.sort_unstable();
        reads.holders.dedup();
        reads.local.sort_unstable();
        reads.local.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(next.1);
            }
            same
        });
    }

    /// Adds an input that consists of several objects, like [`Self::read`], with the size of the input in each of these objects.
    fn read_parts(
        &self,
        placed: Placed,
        (selection, parts): (&Selection, &[(Placed, u64)]),
        data: bool,
        reads: &mut TaskReads,
    ) {
        let all = match selection.is_whole() {
            true => placed.size,
            false => parts.iter().map(|(_, bytes)| bytes).sum(),
        };
        reads.bytes = reads.bytes.saturating_add(all);
        // Nodes that have assembled the parts hold the whole input.
        let whole: BTreeSet<NodeId> = self.replicas.of(placed.object).collect();
        reads.local.extend(whole.iter().map(|&node| (node, all)));
        for &(part, bytes) in parts {
            let part = self.nearest(part, &Selection::WHOLE);
            // For inputs that are assembled from several parts, only replicas that are kept permanently count.
            let fetched = self.replicas.of(part.object);
            let fetched = fetched.filter(|_| selection.of_part().is_some());
            let replicas = self.replicas.lasting(part.object).chain(fetched);
            let replicas = replicas.filter(|&node| node != part.node);
            let replicas: BTreeSet<NodeId> = replicas.collect();
            let holding = std::iter::once(part.node).chain(replicas);
            let holding = holding.filter(|node| !whole.contains(node));
            reads.local.extend(holding.map(|node| (node, bytes)));
            if data {
                reads.holders.push(part.node);
            }
        }
        reads.placed.push(placed);
    }

    /// Sends a task, and the tasks that follow it on the same node as a mini DAG.
    fn send(&mut self, first: TaskId, mut answer: PlacementChoice, turn: &mut Turn<'_>) {
        let Some(choice) = answer.choice else {
            return;
        };
        let node = choice.node;
        let end = self.issue(first, choice, &mut answer, false, turn);
        self.spare_reads = answer.reads.emptied();
        let mut sent = vec![SubgraphTask {
            task: first,
            end,
            depth: 1,
        }];
        let (mut at, mut asks) = (0, 0);
        while let Some(&SubgraphTask {
            task: id, depth, ..
        }) = sent.get(at)
        {
            at += 1;
            if depth >= MINI_DAG_DEPTH_MAX {
                continue;
            }
            let mut dependents = 0..;
            while let Some(next) = self.next_dependent(id, &mut dependents) {
                let has_space = self.nodes.get(&node).is_some_and(NodeState::has_space);
                if sent.len() >= MINI_DAG_LABELS_MAX || asks >= MINI_DAG_ASKS_MAX || !has_space {
                    return;
                }
                if !self.can_issue(next) {
                    return;
                }
                let class = self.task(next).class;
                if self.is_barred(class, node) {
                    continue;
                }
                let Some(earliest) = self.can_follow(next, node, &sent) else {
                    continue;
                };
                asks += 1;
                let mut answer = self.ask(next, earliest, Some(node), turn.now);
                if let Some(choice) = answer.choice.filter(|choice| choice.node == node) {
                    let end = self.issue(next, choice, &mut answer, true, turn);
                    sent.push(SubgraphTask {
                        task: next,
                        end,
                        depth: depth + 1,
                    });
                }
                self.spare_reads = answer.reads.emptied();
            }
        }
    }

    /// Returns the costs of a task on each node, for the explanation of the task's placement.
    fn estimates(&mut self, id: TaskId, answer: &PlacementChoice, now: Time) -> Vec<Estimate> {
        if !self.explains {
            return Vec::new();
        }
        let task = self.tasks.get(&id).expect("a task that is placed is known");
        let times = (answer.earliest, now);
        let barred = self.classes.barred(task.class, &self.nodes);
        let (nodes, learned) = (&mut self.nodes, &self.learned);
        let spare = ViewLists::default();
        let seen = (task, barred);
        let mut cost_view = CostView::new(nodes, learned, seen, &answer.reads, times, spare);
        cost_view.all().iter().map(|one| one.estimate).collect()
    }

    /// Returns the time at which the labels that a waiting task depends on should have ended. Returns `None` unless all these labels are on
    /// `node` and nothing else blocks the task.
    fn can_follow(&self, id: TaskId, node: NodeId, sent: &[SubgraphTask]) -> Option<Span> {
        let task = self.task(id);
        let pinned_here = task.spec.node.is_none_or(|pinned| pinned == node);
        let waits = task.state == TaskState::Waiting && task.awaited == 0 && !task.stranded;
        if !waits || !pinned_here || task.spec.share == TaskRole::Join || task.avoid.contains(&node)
        {
            return None;
        }
        for maker in task.missing.keys() {
            let label = self.task(maker).current?;
            self.labels
                .get(&label)
                .filter(|issued| issued.node == node)?;
        }
        // The content of a directory is known only when the directory exists, and a label can name it only then.
        if task
            .spec
            .inputs
            .iter()
            .any(|input| directory::is_directory(&input.name))
        {
            return None;
        }
        let mut inputs = task.spec.inputs.iter().enumerate();
        let offline = inputs.any(|(index, input)| {
            let sealed = self.input(id, index);
            sealed.is_some_and(|placed| !self.reachable(placed, &input.selection))
        });
        if offline {
            return None;
        }
        let makers = sent
            .iter()
            .filter(|link| task.missing.contains_key(link.task));
        let ends = makers.map(|link| link.end);
        Some(ends.max().unwrap_or_default())
    }

    /// Makes a label for a task and adds the label to a node. Returns the expected end of the label.
    fn issue(
        &mut self,
        id: TaskId,
        choice: PolicyChoice,
        answer: &mut PlacementChoice,
        chained: bool,
        turn: &mut Turn<'_>,
    ) -> Span {
        let node = choice.node;
        let estimates = self.estimates(id, answer, turn.now);
        let label = self.ids.label();
        let outputs = &self
            .tasks
            .get(&id)
            .expect("a task that is placed is known")
            .spec
            .outputs;
        let ids = outputs.iter().map(|output| directory::ids(&output.name));
        let objects = ids.map(|count| self.ids.objects(count)).collect();
        let user = self.owner_of(id);
        self.turns.on_sent(user);
        let task = self.task_mut(id);
        task.current = Some(label);
        task.tries += 1;
        task.missing = SmallMap::default();
        let job = task.job;
        let inputs = if chained {
            std::mem::take(&mut answer.reads.placed)
        } else {
            std::mem::take(&mut task.ready_inputs)
        };
        for (index, &placed) in inputs.iter().enumerate() {
            self.note_fetched(id, index, placed, node);
        }
        let issued = SentLabel {
            task: id,
            job,
            node,
            objects,
            inputs,
            output_bytes: answer.reads.bytes,
            chained,
            revoked: false,
            held: None,
        };
        self.labels.insert(label, issued);
        let cost = answer.chosen;
        let wait = cost.map_or(Span::default(), |one| Span(one.estimate.wait_ns));
        let expected = cost.map_or(UNKNOWN_RUN, |one| cost_of(&one.estimate));
        let needs = self.needs(id);
        self.node_mut(node).add(label, expected, needs, chained);
        self.count_idle(node);
        self.set_state(id, TaskState::Sent, turn);
        let policy = self.commit((job, id), &choice);
        if self.explains {
            turn.out.push(Action::Decided(Box::new(Decision {
                task: id,
                label,
                node,
                at: turn.now,
                policy: policy.unwrap_or_else(|| unasked(&choice).to_owned()),
                reason: choice.reason.to_string(),
                chained,
                estimates,
            })));
        }
        if let Some(built) = self.build(label) {
            // Most events send one label.
            let labels = self
                .outbox
                .get_or_insert_with(node, || Vec::with_capacity(1));
            labels.push(built);
        }
        wait + expected
    }

    /// Records that a node will fetch an input of a task, if the node does not have the input. Ranges of bytes are not recorded, because
    /// tasks that read the same range are rare.
    fn note_fetched(&mut self, id: TaskId, index: usize, placed: Placed, node: NodeId) {
        if placed.object == ObjectId::STATUS {
            return;
        }
        let selection = self.selection(id, index);
        let fetched = match self.replicas.selected(placed.object, selection) {
            _ if selection.byte_ranges().is_some() => return,
            Some(_) if selection.is_whole() => Some(placed),
            Some(parts) => {
                let mut parts = parts.into_iter().map(|(part, _)| part);
                parts.next().filter(|part| part.node != node)
            }
            None => Some(placed).filter(|placed| placed.node != node),
        };
        if let Some(fetched) = fetched {
            self.replicas.note(node, fetched.object, fetched.size);
        }
    }

    /// Reports to the policy that its choice was carried out. Returns the policy's name for the explanation; `None` without a policy.
    pub(super) fn commit(
        &mut self,
        (job, id): (JobId, TaskId),
        choice: &PolicyChoice,
    ) -> Option<String> {
        if matches!(choice.reason, Reason::Pinned | Reason::Beside) {
            return None;
        }
        let name = policy_of(self.tasks.get(&id)?, self.jobs.get(&job)?);
        self.policies.get_mut(name)?.chosen(choice);
        self.explains.then(|| name.to_owned())
    }

    /// Returns the expected time of an outstanding label on its node.
    pub(super) fn expected_of(&self, label: LabelId) -> Span {
        let Some(issued) = self.labels.get(&label) else {
            return UNKNOWN_RUN;
        };
        let Some(task) = self.tasks.get(&issued.task) else {
            return UNKNOWN_RUN;
        };
        let read = task.spec.inputs.iter().zip(&issued.inputs);
        let read = read.map(|(input, &placed)| self.bytes_of(placed, &input.selection));
        let bytes = read.fold(0, u64::saturating_add);
        let runs = self.learned.of(task.kernel);
        let known = runs.by_node.get(&issued.node);
        known
            .and_then(|(_, mean)| Some(mean.as_ref()?.scaled(bytes)))
            .or_else(|| expected_run(&runs.pooled, bytes))
            .unwrap_or(UNKNOWN_RUN)
            .min(EXPECTED_MAX)
    }

    /// Updates the expected times of a kernel's labels that were sent when the run time of the kernel was unknown.
    pub(super) fn expect_again(&mut self, kernel: KernelNumber) {
        let guessed = self.labels.iter().filter(|(_, issued)| {
            let task = self.tasks.get(&issued.task);
            task.is_some_and(|task| task.kernel == kernel)
        });
        let guessed: Vec<_> = guessed.map(|(&label, one)| (label, one.node)).collect();
        for (label, node) in guessed {
            let expected = self.expected_of(label);
            self.node_mut(node).expect(label, expected);
            self.touch(node);
        }
    }

    /// Returns a live label in the form that its node gets.
    pub(super) fn build(&self, id: LabelId) -> Option<Label> {
        let issued = self.labels.get(&id)?;
        let task = self
            .tasks
            .get(&issued.task)
            .filter(|task| task.current == Some(id))?;
        let spec = &task.spec;
        let mut after = Vec::new();
        for (input, used) in spec.inputs.iter().zip(&issued.inputs) {
            let flying = self.flying(input.origin, issued.node);
            if let Origin::Task(maker, _) = input.origin
                && flying.is_some_and(|flying| flying.object == used.object)
                && let Some(label) = self.task(maker).current
                && !after.contains(&label)
            {
                after.push(label);
            }
        }
        let inputs = spec
            .inputs
            .iter()
            .zip(&issued.inputs)
            .map(|(input, used)| LabelInput {
                name: input.name.clone(),
                object: used.object,
                node: used.node,
                size: used.size,
                selection: input.selection.clone(),
            });
        let outputs = spec
            .outputs
            .iter()
            .zip(&issued.objects)
            .map(|(output, &object)| LabelOutput {
                name: output.name.clone(),
                object,
                inode: output.inode,
                path: output.path.clone(),
                memory: output.memory,
            });
        let analysis = Analysis {
            task: issued.task,
            job: issued.job,
            name: spec.name.clone(),
            kernel: spec.kernel.clone(),
            args: spec.args.clone(),
            inputs: inputs.collect(),
            outputs: outputs.collect(),
            stdin: spec.stdin.clone(),
            stdout: spec.stdout.clone(),
            streaming: streaming(spec),
            needs: spec.needs.clone(),
            limits: spec.limits,
            runtime_environment: spec.runtime_environment.clone(),
        };
        let owner = self.jobs.get(&issued.job)?.owner;
        Some(Label {
            id,
            owner,
            after,
            operation: Operation::Analyse(Box::new(analysis)),
        })
    }
}

/// Returns the text that an explanation shows instead of a policy's name if no policy was asked.
fn unasked(choice: &PolicyChoice) -> &'static str {
    match choice.reason {
        Reason::Beside => "streaming",
        _ => "pinned",
    }
}

/// Returns whether a task can begin on the node of the tasks that write its streamed inputs, while they run.
fn fits_beside(task: &DispatchedTask, node: Option<&NodeState>) -> bool {
    let streams = |input: &InputSpec| match input.origin {
        Origin::Task(maker, _) => input.streaming && task.missing.contains_key(maker),
        _ => false,
    };
    task.spec.inputs.iter().any(streams)
        && node.is_some_and(|node| node.has_space_for(task.spec.needs.cores))
}

/// Returns the indices of a task's inputs that may be streamed while they are written.
fn streaming(spec: &TaskSpec) -> Vec<u32> {
    let inputs = (0..).zip(&spec.inputs);
    let some = inputs.filter(|(_, input)| input.streaming && !spec.kernel.is_in(&input.name));
    some.map(|(index, _)| index).collect()
}

/// Returns the placement request that a policy sees for a task. Pass no job for a task that belongs to no wave yet.
pub(super) fn request<'a>(
    id: TaskId,
    task: &'a DispatchedTask,
    job: Option<&DispatchedJob>,
    reads: &TaskReads,
) -> PlacementRequest<'a> {
    let wave = job.and_then(|job| job.waves.get(&task.kernel)).copied();
    let wave = wave.unwrap_or(Wave { left: 1, size: 1 });
    PlacementRequest {
        job: task.job,
        task: id,
        kernel: task.spec.kernel.name(),
        inputs: reads.data,
        holders: reads.holders.len(),
        input_bytes: reads.bytes,
        wave_left: wave.left,
        wave_size: wave.size,
    }
}

/// Returns the policy that places a task. Task instances are placed on the nodes that store their bytes, whatever policy the job names.
pub(super) fn policy_of<'a>(task: &DispatchedTask, job: &'a DispatchedJob) -> &'a str {
    match task.spec.share {
        TaskRole::Instance => INSTANCES,
        TaskRole::All | TaskRole::Join | TaskRole::Merge => &job.policy,
    }
}

/// Returns the time for which a label occupies its node.
fn cost_of(estimate: &Estimate) -> Span {
    let run = if estimate.run_ns == 0 {
        UNKNOWN_RUN
    } else {
        Span(estimate.run_ns)
    };
    (Span(estimate.transfer_ns) + run).min(EXPECTED_MAX)
}
