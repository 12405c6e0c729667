//! Dependencies among tasks, found in two passes (AnalyzeThis §3.2): the first pass records the producer of each file, and the second pass
//! looks up every input. An input without a producer exists outside of the job. This module changes only the parsed job.

use super::error::Errors;
use super::path::above;
use super::read::within;
use super::{Dag, InputOrigin, JobProblem, Lifetime, ScriptInput, ScriptTask};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use tidemill_model::directory;
use tidemill_model::event::TaskRole;

/// Full path to (task, index among its outputs).
type Makers = BTreeMap<String, (usize, usize)>;

/// Determines the origin of every input and an order of tasks that respects the dependencies.
pub(super) fn detect(tasks: &mut [ScriptTask], errors: &mut Errors) -> Dag {
    let makers = first_pass(tasks, errors);
    second_pass(tasks, &makers, errors);
    order(tasks, errors)
}

/// Marks outputs that are to be stored in memory: outputs that other tasks of the job read and that are removed afterwards. Parts of a file
/// that task instances write are excluded, because the file may stay.
pub(super) fn mark_intermediates(tasks: &mut [ScriptTask]) {
    let intermediates: BTreeSet<(usize, usize)> = tasks
        .iter()
        .flat_map(|task| {
            let kernels = task.kernels().filter_map(|kernel| kernel.file.as_ref());
            task.inputs.iter().chain(kernels)
        })
        .filter_map(|input| match input.source {
            InputOrigin::Task(maker, number) => Some((maker, number)),
            InputOrigin::Outside => None,
        })
        .collect();
    for (maker, number) in intermediates {
        let task = &mut tasks[maker];
        let used = matches!(task.lifetime, Lifetime::Used | Lifetime::Intermediate);
        if let Some(output) = task.outputs.get_mut(number) {
            output.memory = used && !output.part && task.share == TaskRole::All;
        }
    }
}

fn first_pass(tasks: &[ScriptTask], errors: &mut Errors) -> Makers {
    let mut makers = Makers::new();
    for (index, task) in tasks.iter().enumerate() {
        let named = task.outputs.iter().enumerate();
        for (number, output) in named.filter(|(_, output)| !output.part) {
            if let Some(&(other, at)) = makers.get(&output.path) {
                // A path that is listed twice in one task is reported by the reader.
                if other != index {
                    let problem = JobProblem::SameOutput {
                        path: output.path.clone(),
                        other: tasks[other].name.clone(),
                        first: tasks[other].outputs[at].at,
                    };
                    errors.add(output.at, Some(&task.name), problem);
                }
            } else {
                makers.insert(output.path.clone(), (index, number));
            }
        }
    }
    for (path, &(index, number)) in &makers {
        let file = above(path).find(|directory| makers.contains_key(*directory));
        // Two conflicting paths in one task are reported by the reader.
        if let Some(file) = file.filter(|file| makers[*file].0 != index) {
            let problem = within(is_directory(tasks, makers[file]), file, path);
            let task = &tasks[index];
            errors.add(task.outputs[number].at, Some(&task.name), problem);
        }
    }
    makers
}

fn is_directory(tasks: &[ScriptTask], (task, output): (usize, usize)) -> bool {
    tasks[task].outputs[output].is_directory()
}

fn second_pass(tasks: &mut [ScriptTask], makers: &Makers, errors: &mut Errors) {
    let directories = makers
        .iter()
        .filter(|(_, maker)| is_directory(tasks, **maker));
    let directories: BTreeSet<&str> = directories.map(|(path, _)| path.as_str()).collect();
    for (index, task) in tasks.iter_mut().enumerate() {
        let name = task.name.clone();
        let found = |input: &&mut ScriptInput| input.source == InputOrigin::Outside;
        for input in task.inputs.iter_mut().filter(found) {
            match makers.get(&input.path) {
                Some(&(maker, _)) if maker == index => {
                    errors.add(
                        input.at,
                        Some(&name),
                        JobProblem::OwnOutput(input.path.clone()),
                    );
                }
                Some(&(maker, number)) => {
                    input.source = InputOrigin::Task(maker, number);
                    let path = &input.path;
                    if directory::is_directory(&input.name) != directories.contains(path.as_str()) {
                        let problem = JobProblem::FileOrDirectory(path.clone());
                        errors.add(input.at, Some(&name), problem);
                    }
                }
                None => outside(input, &name, (makers, &directories), errors),
            }
        }
        // A kernel that another task of the job writes. If the task itself writes this path, the names are only equal by chance.
        let stages = task.stages.iter_mut().map(|stage| &mut stage.kernel);
        for kernel in std::iter::once(&mut task.kernel).chain(stages) {
            if let Some(file) = &mut kernel.file
                && let Some(&(maker, number)) = makers.get(&file.path)
                && maker != index
                && !directories.contains(file.path.as_str())
            {
                file.source = InputOrigin::Task(maker, number);
            }
        }
    }
}

/// Checks that an input from outside does not conflict with the files that the job writes.
fn outside(
    input: &ScriptInput,
    task: &str,
    (makers, directories): (&Makers, &BTreeSet<&str>),
    errors: &mut Errors,
) {
    let file_above = above(&input.path).find(|directory| makers.contains_key(*directory));
    let prefix = format!("{}/", input.path);
    let below = makers.range(prefix.clone()..).next().map(|(path, _)| path);
    let below = below.filter(|path| path.starts_with(&prefix));
    let problem = match (file_above, below) {
        (Some(file), _) => within(directories.contains(file), file, &input.path),
        // Patterns of directories have been replaced before.
        (None, None) if directory::is_directory(&input.name) => {
            JobProblem::DirectoryPath(format!("{}/", input.path))
        }
        (None, Some(below)) => JobProblem::FileAndDirectory {
            file: input.path.clone(),
            below: below.clone(),
        },
        (None, None) => return,
    };
    errors.add(input.at, Some(task), problem);
}

fn order(tasks: &[ScriptTask], errors: &mut Errors) -> Dag {
    let mut dag = Dag {
        dependants: vec![Vec::new(); tasks.len()],
        ..Dag::default()
    };
    for (index, task) in tasks.iter().enumerate() {
        let kernels = task.kernels().filter_map(|kernel| kernel.file.as_ref());
        let files = task.inputs.iter().chain(kernels);
        let mut needed: Vec<usize> = files.filter_map(|file| file.maker()).collect();
        needed.sort_unstable();
        needed.dedup();
        for &maker in &needed {
            dag.dependants[maker].push(index);
        }
        dag.dependencies.push(needed);
    }
    let mut missing: Vec<usize> = dag.dependencies.iter().map(Vec::len).collect();
    let ready = missing.iter().enumerate().filter(|(_, count)| **count == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = ready.map(|(index, _)| Reverse(index)).collect();
    while let Some(Reverse(index)) = ready.pop() {
        dag.order.push(index);
        for &dependant in &dag.dependants[index] {
            missing[dependant] -= 1;
            if missing[dependant] == 0 {
                ready.push(Reverse(dependant));
            }
        }
    }
    if dag.order.len() < tasks.len() {
        report_cycle(tasks, &dag, &missing, errors);
    }
    dag
}

/// Reports one circle, from its first task in the script on.
fn report_cycle(tasks: &[ScriptTask], dag: &Dag, missing: &[usize], errors: &mut Errors) {
    /// Longer circles are cut in the error.
    const SHOWN: usize = 20;
    let stuck = |index: &usize| missing[*index] > 0;
    let Some(mut at) = (0..tasks.len()).find(stuck) else {
        return;
    };
    // Every task that is stuck depends on another one that is stuck, so following the dependencies returns to a seen task.
    let mut seen = BTreeMap::new();
    let mut path = Vec::new();
    while !seen.contains_key(&at) {
        seen.insert(at, path.len());
        path.push(at);
        let Some(next) = dag.dependencies[at].iter().copied().find(stuck) else {
            return;
        };
        at = next;
    }
    let mut circle = path.split_off(seen[&at]);
    let first = circle
        .iter()
        .enumerate()
        .min_by_key(|(_, task)| **task)
        .map_or(0, |(at, _)| at);
    circle.rotate_left(first);
    let name = |index: &usize| format!("\"{}\"", tasks[*index].name);
    let mut names: Vec<String> = circle.iter().take(SHOWN).map(name).collect();
    if circle.len() > SHOWN {
        names.push(format!("… {} more …", circle.len() - SHOWN));
    }
    names.push(name(&circle[0]));
    let task = &tasks[circle[0]];
    errors.add(
        task.at,
        Some(&task.name),
        JobProblem::Cycle(names.join(" needs ")),
    );
}

impl ScriptInput {
    /// Returns the task that writes the file.
    fn maker(&self) -> Option<usize> {
        match self.source {
            InputOrigin::Outside => None,
            InputOrigin::Task(task, _) => Some(task),
        }
    }
}
