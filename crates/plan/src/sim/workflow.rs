//! Workflows: the input of a simulation, which consists of tasks with their run times and of the files between them with their sizes. This
//! module checks and orders workflows; it does no I/O.
//!
//! Every input format is converted to a workflow: job scripts ([`super::job`]), traces of real runs and WfCommons files
//! ([`super::wfformat`]).

use super::error::FileProblem;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::label::Kernel;
use tidemill_model::layout::{Layout, Part, Selection, StripedLayout};
use tidemill_model::resources::Needs;
use tidemill_model::time::Span;

/// Workflow: a job with all data that its simulation needs. Tasks and files are named by their indices.
///
/// Parsers check the workflows that they return. A caller that builds a workflow by hand must ensure three conditions: `maker` of every
/// file names the task that has the file as an output, no two tasks have the same output, and tasks do not depend on each other in a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workflow {
    /// Name of the job.
    pub name: String,
    /// Name of the policy that the job names.
    pub policy: Option<String>,
    /// Tasks of the job, in the order in which the dispatcher receives them.
    pub tasks: Vec<WorkflowTask>,
    /// Files that the tasks read and write.
    pub files: Vec<WorkflowFile>,
}

/// One task of a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowTask {
    /// Name of the task.
    pub name: String,
    /// Code of the task; the code of a native or stored kernel is also one of the inputs.
    pub kernel: Kernel,
    /// Indices of the files that the task reads.
    pub inputs: Vec<usize>,
    /// Selections of the inputs, in their order; an empty list selects all inputs completely.
    pub selections: Vec<Selection>,
    /// Indices of the files that the task writes.
    pub outputs: Vec<usize>,
    /// Time for which the task's kernel computes on a core of speed 1, without reading and writing files.
    pub compute: Span,
    /// Node on which the task must run, if the job names a node.
    pub node: Option<NodeId>,
    /// Resources that must be free on the node for the task to run. `compute` is the time with all its cores.
    pub needs: Needs,
    /// Cost of the cached result, if the task does not run.
    pub reused: Option<Reused>,
}

impl WorkflowTask {
    /// Returns the selection of the task's input with this index.
    #[must_use]
    pub fn selection(&self, input: usize) -> &Selection {
        self.selections.get(input).unwrap_or(&Selection::WHOLE)
    }
}

/// Cost of returning a cached result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reused {
    /// Core time of returning the cached result.
    pub time: Span,
    /// Size of outputs that are fetched, in bytes.
    pub transferred_bytes: u64,
}

/// One file of a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowFile {
    /// Name of the file.
    pub name: String,
    /// Size of the file, in bytes.
    pub size: u64,
    /// Task that writes the file, and the file's index among the task's outputs; `None` if the file exists before the job.
    pub maker: Option<(usize, usize)>,
    /// Recorded node of the file before the job.
    pub home: Option<NodeId>,
    /// Striping of the file; `None` if it is one object.
    pub striped: Option<StripedFile>,
}

/// Striping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripedFile {
    /// Size of a stripe, in bytes.
    pub unit: u64,
    /// Node and size in bytes of each part of the file.
    pub parts: Vec<(NodeId, u64)>,
}

impl WorkflowFile {
    /// Returns the layout of the file; its parts are objects numbered from `first`.
    #[must_use]
    pub fn layout(&self, object: ObjectId, first: u64) -> Layout {
        let Some(striped) = &self.striped else {
            let node = self.home.unwrap_or(NodeId(0));
            return Layout::Whole(Part::on(object, self.size, node));
        };
        let parts = (first..).zip(&striped.parts);
        let part = |(object, &(node, size))| Part::on(ObjectId(object), size, node);
        Layout::Striped(StripedLayout {
            unit: striped.unit,
            size: self.size,
            parts: parts.map(part).collect(),
        })
    }
}

/// Maximum compute time of all tasks together, in nanoseconds: 100 years.
const TIME_NS_MAX: u64 = 100 * 365 * 86_400 * 1_000_000_000;
/// Maximum size of all inputs and outputs of all tasks together, in bytes.
const BYTES_MAX: u64 = 1_000_000_000_000_000_000;

/// Fault in the graph of a workflow, and the task with the fault.
#[derive(Debug)]
pub(super) struct GraphFault {
    pub(super) task: usize,
    pub(super) problem: FileProblem,
}

impl Workflow {
    /// Records which task writes which file, and checks names, selections, sums and the order of tasks.
    pub(super) fn link(&mut self) -> Result<(), GraphFault> {
        self.check_names()?;
        self.check_selections()?;
        self.check_sums()?;
        for (index, task) in self.tasks.iter().enumerate() {
            for (number, &output) in task.outputs.iter().enumerate() {
                let file = &mut self.files[output];
                if let Some((other, _)) = file.maker.replace((index, number)) {
                    let problem = FileProblem::SameOutput {
                        task: task.name.clone(),
                        file: file.name.clone(),
                        other: self.tasks[other].name.clone(),
                    };
                    return Err(GraphFault {
                        task: index,
                        problem,
                    });
                }
            }
        }
        for (index, task) in self.tasks.iter().enumerate() {
            let own = |&&input: &&usize| self.files[input].maker.is_some_and(|(m, _)| m == index);
            if let Some(&input) = task.inputs.iter().find(own) {
                let problem = FileProblem::OwnOutput {
                    task: task.name.clone(),
                    file: self.files[input].name.clone(),
                };
                return Err(GraphFault {
                    task: index,
                    problem,
                });
            }
        }
        self.order().map(drop)
    }

    fn check_names(&self) -> Result<(), GraphFault> {
        let mut seen = BTreeSet::new();
        for (task, one) in self.tasks.iter().enumerate() {
            let fault = |problem| Err(GraphFault { task, problem });
            if one.name.trim().is_empty() {
                return fault(FileProblem::NoName(format!("task number {}", task + 1)));
            }
            if !seen.insert(one.name.as_str()) {
                return fault(FileProblem::TaskTwice(one.name.clone()));
            }
            let files = one.inputs.iter().chain(&one.outputs);
            let mut names = files.map(|&file| &self.files[file].name);
            if names.any(|name| name.trim().is_empty()) {
                let what = format!("a file of task `{}`", one.name);
                return fault(FileProblem::NoName(what));
            }
            if one.kernel.name().trim().is_empty() {
                return fault(FileProblem::NoName(format!(
                    "the kernel of task `{}`",
                    one.name
                )));
            }
        }
        Ok(())
    }

    /// Checks that tasks only read bytes that their input files have.
    fn check_selections(&self) -> Result<(), GraphFault> {
        for (number, task) in self.tasks.iter().enumerate() {
            for (index, &file) in task.inputs.iter().enumerate() {
                let (file, selection) = (&self.files[file], task.selection(index));
                let layout = file.layout(ObjectId::STATUS, 0);
                let wrong = match layout.check() {
                    Ok(()) if selection.is_whole() => None,
                    Ok(()) => layout.selected(selection).err().map(|it| it.to_string()),
                    Err(error) => Some(error.to_string()),
                };
                if let Some(why) = wrong {
                    let (task, file) = (task.name.clone(), file.name.clone());
                    let problem = FileProblem::Selected { task, file, why };
                    let task = number;
                    return Err(GraphFault { task, problem });
                }
            }
        }
        Ok(())
    }

    /// Checks that sums over the whole simulation fit into 64 bits.
    fn check_sums(&self) -> Result<(), GraphFault> {
        let (mut time, mut bytes) = (0_u64, 0_u64);
        for (task, one) in self.tasks.iter().enumerate() {
            time = time.saturating_add(one.compute.0);
            bytes = bytes.saturating_add(self.input_bytes(task));
            bytes = bytes.saturating_add(self.output_bytes(task));
            let (what, max) = if time > TIME_NS_MAX {
                ("the run times of all tasks", "100 years")
            } else if bytes > BYTES_MAX {
                ("the files that all tasks read and write", "1 EB")
            } else {
                continue;
            };
            let problem = FileProblem::Absurd { what, max };
            return Err(GraphFault { task, problem });
        }
        Ok(())
    }

    /// Returns the tasks whose outputs a task reads, in ascending order without duplicates.
    pub(super) fn dependencies(&self, task: usize) -> Vec<usize> {
        let inputs = self.tasks[task].inputs.iter();
        let makers = inputs.filter_map(|&input| Some(self.files[input].maker?.0));
        let mut makers: Vec<usize> = makers.collect();
        makers.sort_unstable();
        makers.dedup();
        makers
    }

    /// Returns all tasks in an order in which dependencies precede their dependents; otherwise the order is by index.
    pub(super) fn order(&self) -> Result<Vec<usize>, GraphFault> {
        let mut dependants = vec![Vec::new(); self.tasks.len()];
        let mut missing = vec![0; self.tasks.len()];
        for (task, missing) in missing.iter_mut().enumerate() {
            let makers = self.dependencies(task);
            *missing = makers.len();
            for maker in makers {
                dependants[maker].push(task);
            }
        }
        let free = (0..self.tasks.len()).filter(|&task| missing[task] == 0);
        let mut free: BinaryHeap<Reverse<usize>> = free.map(Reverse).collect();
        let mut order = Vec::with_capacity(self.tasks.len());
        while let Some(Reverse(task)) = free.pop() {
            order.push(task);
            for &dependant in &dependants[task] {
                missing[dependant] -= 1;
                if missing[dependant] == 0 {
                    free.push(Reverse(dependant));
                }
            }
        }
        if order.len() == self.tasks.len() {
            return Ok(order);
        }
        Err(self.circle(&missing))
    }

    /// Returns the fault of one cycle among the tasks with missing dependencies, from its first task on.
    fn circle(&self, missing: &[usize]) -> GraphFault {
        /// Maximum number of tasks of a cycle that the error shows.
        const SHOWN: usize = 20;
        let stuck = |task: &usize| missing[*task] > 0;
        let mut at = (0..self.tasks.len()).find(stuck).unwrap_or(0);
        let mut seen = vec![None; self.tasks.len()];
        let mut path = Vec::new();
        // Every task that is stuck depends on another one that is stuck, so following the dependencies returns to a seen task.
        while seen[at].is_none() {
            seen[at] = Some(path.len());
            path.push(at);
            at = self.dependencies(at).into_iter().find(stuck).unwrap_or(at);
        }
        let mut circle = path.split_off(seen[at].unwrap_or(0));
        let first = circle.iter().enumerate().min_by_key(|(_, task)| **task);
        let first = first.map_or(0, |(position, _)| position);
        circle.rotate_left(first);
        let name = |task: &usize| format!("`{}`", self.tasks[*task].name);
        let mut names: Vec<String> = circle.iter().take(SHOWN).map(name).collect();
        if circle.len() > SHOWN {
            names.push(format!("… {} more …", circle.len() - SHOWN));
        }
        names.push(name(&circle[0]));
        GraphFault {
            task: circle[0],
            problem: FileProblem::Cycle(names.join(" needs ")),
        }
    }

    /// Returns the same job with tasks before it that have no files; the dispatcher receives these tasks first.
    #[must_use]
    pub fn behind(mut self, others: Vec<WorkflowTask>) -> Self {
        for file in &mut self.files {
            if let Some((maker, _)) = &mut file.maker {
                *maker += others.len();
            }
        }
        self.tasks.splice(0..0, others);
        self
    }

    /// Returns the size of all bytes that a task reads from its inputs.
    #[must_use]
    pub fn input_bytes(&self, task: usize) -> u64 {
        let task = &self.tasks[task];
        let bytes = |(index, &file): (usize, &usize)| {
            let (file, selection) = (&self.files[file], task.selection(index));
            if selection.is_whole() {
                return file.size;
            }
            let layout = file.layout(ObjectId::STATUS, 0);
            // A selection beyond the file was reported when the workflow was read.
            layout.selected(selection).map_or(0, |one| one.length())
        };
        let bytes = task.inputs.iter().enumerate().map(bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the size of all outputs of a task, in bytes.
    #[must_use]
    pub fn output_bytes(&self, task: usize) -> u64 {
        let outputs = self.tasks[task].outputs.iter();
        outputs.fold(0, |sum, &output| {
            sum.saturating_add(self.files[output].size)
        })
    }
}
