//! Parser of WfCommons WfFormat files, schemas 1.4 and 1.5 (and 1.6, which adds summaries only).
//!
//! Since 1.5, a file has a list of tasks and files (`specification`) apart from the measurements (`execution`); in 1.4, tasks contain their
//! files and run times. Dependencies result from files and from `parents` and `children`. A dependency without a file gets a separate empty
//! file, so that the dispatcher, which knows dependencies by files only, sees it. Run times are those of the measured machine and contain
//! its reading and writing. A task needs the number of cores in its `coreCount`; without `coreCount` it needs one core.

use super::error::{FileProblem, InputError};
use super::json::{JsonKeys, JsonReader};
use super::quantity;
use super::workflow::{GraphFault, Workflow, WorkflowFile, WorkflowTask};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::label::Kernel;
use tidemill_model::resources::{CORES_MAX, Needs};

const KNOWN: &str = "1.4, 1.5 and 1.6";

const INSTANCE: JsonKeys = JsonKeys {
    place: "the workflow's file",
    read: &["name", "schemaVersion", "workflow"],
    others: &["description", "createdAt", "author", "runtimeSystem"],
};
const SPLIT: JsonKeys = JsonKeys {
    place: "`workflow`",
    read: &["specification", "execution"],
    others: &[],
};
const SPECIFICATION: JsonKeys = JsonKeys {
    place: "`specification`",
    read: &["tasks", "files"],
    others: &[],
};
const EXECUTION: JsonKeys = JsonKeys {
    place: "`execution`",
    read: &["tasks"],
    others: &["makespanInSeconds", "executedAt", "machines"],
};
const SPECIFIED_TASK: JsonKeys = JsonKeys {
    place: "a task",
    read: &[
        "name",
        "id",
        "parents",
        "children",
        "inputFiles",
        "outputFiles",
    ],
    others: &["type", "category"],
};
const SIZED_FILE: JsonKeys = JsonKeys {
    place: "a file",
    read: &["id", "sizeInBytes"],
    others: &[],
};
const EXECUTED_TASK: JsonKeys = JsonKeys {
    place: "a task",
    read: &["id", "runtimeInSeconds", "command"],
    others: MEASURED,
};
/// Keys of a task's measurements that the simulation ignores.
const MEASURED: &[&str] = &[
    "executedAt",
    "coreCount",
    "cores",
    "avgCPU",
    "readBytes",
    "writtenBytes",
    "memoryInBytes",
    "memory",
    "energyInKWh",
    "energy",
    "avgPowerInW",
    "avgPower",
    "priority",
    "machines",
    "machine",
    "type",
    "category",
];
const WHOLE: JsonKeys = JsonKeys {
    place: "`workflow`",
    read: &["tasks"],
    others: &["makespanInSeconds", "makespan", "executedAt", "machines"],
};
const WHOLE_TASK: JsonKeys = JsonKeys {
    place: "a task",
    read: &[
        "name",
        "id",
        "runtimeInSeconds",
        "command",
        "parents",
        "children",
        "files",
    ],
    others: MEASURED,
};

#[derive(Deserialize)]
struct Instance<'a> {
    name: String,
    #[serde(rename = "schemaVersion")]
    schema_version: String,
    #[serde(borrow)]
    workflow: &'a RawValue,
}

/// The object `workflow` of WfFormat 1.5.
#[derive(Deserialize)]
struct Split<'a> {
    #[serde(borrow)]
    specification: &'a RawValue,
    #[serde(borrow)]
    execution: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Specification<'a> {
    #[serde(borrow)]
    tasks: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    files: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Execution<'a> {
    #[serde(borrow)]
    tasks: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecifiedTask {
    name: String,
    id: String,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    children: Vec<String>,
    #[serde(default)]
    input_files: Vec<String>,
    #[serde(default)]
    output_files: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SizedFile {
    id: String,
    size_in_bytes: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecutedTask {
    id: String,
    runtime_in_seconds: f64,
    command: Option<TaskCommand>,
    core_count: Option<f64>,
}

#[derive(Deserialize)]
struct TaskCommand {
    program: Option<String>,
}

/// The object `workflow` of WfFormat 1.4.
#[derive(Deserialize)]
struct WorkflowSection<'a> {
    #[serde(borrow)]
    tasks: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WholeTask {
    name: String,
    id: Option<String>,
    runtime_in_seconds: Option<f64>,
    command: Option<TaskCommand>,
    core_count: Option<f64>,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    children: Vec<String>,
    #[serde(default)]
    files: Vec<WholeFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WholeFile {
    link: FileLink,
    name: String,
    size_in_bytes: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileLink {
    Input,
    Output,
}

/// Task of either WfFormat version.
struct Draft {
    line: u32,
    id: String,
    name: String,
    kernel: String,
    seconds: Option<f64>,
    cores: Option<f64>,
    parents: Vec<String>,
    children: Vec<String>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

/// Parses a WfFormat file. `file` is the name used in errors.
///
/// # Errors
/// The first fault, with its line: text that is not JSON or not WfFormat, tasks and files that are named but missing, missing sizes and run
/// times, and tasks that depend on each other in a cycle.
pub fn parse(file: &str, text: &str) -> Result<Workflow, InputError> {
    let reader = JsonReader { file, text };
    let whole: &RawValue = serde_json::from_str(text).map_err(|e| reader.json(0, &e))?;
    reader.check_keys(whole, INSTANCE)?;
    let instance: Instance<'_> = serde_json::from_str(text).map_err(|e| reader.json(0, &e))?;
    if instance.name.trim().is_empty() {
        return Err(reader.error(0, FileProblem::NoName("the workflow".to_owned())));
    }
    let (drafts, files) = match instance.schema_version.as_str() {
        "1.4" => {
            reader.check_keys(instance.workflow, WHOLE)?;
            reader.whole(reader.sub(instance.workflow)?)?
        }
        "1.5" | "1.6" => {
            reader.check_keys(instance.workflow, SPLIT)?;
            let split: Split<'_> = reader.sub(instance.workflow)?;
            reader.check_keys(split.specification, SPECIFICATION)?;
            let specification = reader.sub(split.specification)?;
            let execution = match split.execution {
                Some(execution) => {
                    reader.check_keys(execution, EXECUTION)?;
                    Some(reader.sub(execution)?)
                }
                None => None,
            };
            reader.split(specification, execution)?
        }
        _ => {
            let problem = FileProblem::Version {
                format: "WfFormat",
                found: instance.schema_version,
                known: KNOWN,
            };
            return Err(InputError::new(file, 0, problem));
        }
    };
    reader.workflow(instance.name, drafts, files)
}

/// Files of the workflow by name while they are collected.
#[derive(Default)]
struct FileIndex {
    list: Vec<WorkflowFile>,
    index: BTreeMap<String, usize>,
}

impl FileIndex {
    fn add(&mut self, name: &str, size: u64) -> usize {
        if let Some(&known) = self.index.get(name) {
            return known;
        }
        let index = self.list.len();
        self.index.insert(name.to_owned(), index);
        self.list.push(WorkflowFile {
            name: name.to_owned(),
            size,
            maker: None,
            home: None,
            striped: None,
        });
        index
    }
}

impl<'a> JsonReader<'a> {
    fn size(&self, line: u32, name: &str, bytes: i64) -> Result<u64, InputError> {
        if name.trim().is_empty() {
            return Err(self.error(line, FileProblem::NoName("a file".to_owned())));
        }
        u64::try_from(bytes).map_err(|_| {
            let what = format!("the size of file `{name}`");
            let text = bytes.to_string();
            self.error(line, FileProblem::Negative { what, text })
        })
    }

    /// Returns the files of a WfFormat 1.5 workflow; each must be listed once.
    fn sized(&self, parts: &[&'a RawValue]) -> Result<FileIndex, InputError> {
        let mut files = FileIndex::default();
        let mut lines = BTreeMap::new();
        for (line, one) in self.list::<SizedFile>(parts, SIZED_FILE)? {
            let size = self.size(line, &one.id, one.size_in_bytes)?;
            if let Some(first) = lines.insert(one.id.clone(), line) {
                let file = one.id;
                return Err(self.error(line, FileProblem::SameFile { file, first }));
            }
            files.add(&one.id, size);
        }
        Ok(files)
    }

    /// Returns the measurements of the tasks of a WfFormat 1.5 workflow, by the tasks' ids.
    fn executed(
        &self,
        execution: Option<Execution<'a>>,
    ) -> Result<BTreeMap<String, (u32, ExecutedTask)>, InputError> {
        let mut executed: BTreeMap<String, (u32, ExecutedTask)> = BTreeMap::new();
        let parts = execution.map_or_else(Vec::new, |execution| execution.tasks);
        for (line, task) in self.list::<ExecutedTask>(&parts, EXECUTED_TASK)? {
            let id = task.id.clone();
            if let Some((first, _)) = executed.insert(id, (line, task)) {
                let task = executed.into_values().find(|(at, _)| *at == line);
                let task = task.map_or_else(String::new, |(_, task)| task.id);
                return Err(self.error(line, FileProblem::SameTask { task, first }));
            }
        }
        Ok(executed)
    }

    fn split(
        &self,
        specification: Specification<'a>,
        execution: Option<Execution<'a>>,
    ) -> Result<(Vec<Draft>, FileIndex), InputError> {
        let files = self.sized(&specification.files)?;
        let mut executed = self.executed(execution)?;
        let mut drafts = Vec::with_capacity(specification.tasks.len());
        for (line, task) in self.list::<SpecifiedTask>(&specification.tasks, SPECIFIED_TASK)? {
            let find = |name: &String| {
                files.index.get(name).copied().ok_or_else(|| {
                    let (task, file) = (task.id.clone(), name.clone());
                    self.error(line, FileProblem::DanglingFile { task, file })
                })
            };
            let inputs = task
                .input_files
                .iter()
                .map(find)
                .collect::<Result<_, _>>()?;
            let outputs = task
                .output_files
                .iter()
                .map(find)
                .collect::<Result<_, _>>()?;
            let ran = executed.remove(&task.id).map(|(_, ran)| ran);
            let seconds = ran.as_ref().map(|ran| ran.runtime_in_seconds);
            let cores = ran.as_ref().and_then(|ran| ran.core_count);
            drafts.push(Draft {
                line,
                cores,
                kernel: kernel(&task.name, ran.and_then(|ran| ran.command)),
                id: task.id,
                name: task.name,
                seconds,
                parents: task.parents,
                children: task.children,
                inputs,
                outputs,
            });
        }
        if let Some((id, (line, _))) = executed.into_iter().next() {
            let task = "execution".to_owned();
            return Err(self.error(line, FileProblem::DanglingTask { task, other: id }));
        }
        Ok((drafts, files))
    }

    fn whole(&self, whole: WorkflowSection<'a>) -> Result<(Vec<Draft>, FileIndex), InputError> {
        let mut files = FileIndex::default();
        let mut lines = BTreeMap::new();
        let mut drafts = Vec::with_capacity(whole.tasks.len());
        for (line, task) in self.list::<WholeTask>(&whole.tasks, WHOLE_TASK)? {
            let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
            for one in &task.files {
                let size = self.size(line, &one.name, one.size_in_bytes)?;
                let index = files.add(&one.name, size);
                let first = *lines.entry(index).or_insert(line);
                let other = files.list[index].size;
                if size != other {
                    let file = one.name.clone();
                    let problem = FileProblem::TwoSizes {
                        file,
                        size,
                        other,
                        first,
                    };
                    return Err(self.error(line, problem));
                }
                match one.link {
                    FileLink::Input => inputs.push(index),
                    FileLink::Output => outputs.push(index),
                }
            }
            drafts.push(Draft {
                line,
                kernel: kernel(&task.name, task.command),
                id: task.id.unwrap_or_else(|| task.name.clone()),
                name: task.name,
                cores: task.core_count,
                seconds: task.runtime_in_seconds,
                parents: task.parents,
                children: task.children,
                inputs,
                outputs,
            });
        }
        Ok((drafts, files))
    }

    fn workflow(
        &self,
        name: String,
        mut drafts: Vec<Draft>,
        mut files: FileIndex,
    ) -> Result<Workflow, InputError> {
        if drafts.is_empty() {
            return Err(self.error(0, FileProblem::NoTasks));
        }
        self.join_parents(&mut drafts, &mut files)?;
        let lines: Vec<u32> = drafts.iter().map(|draft| draft.line).collect();
        let mut tasks = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let seconds = draft
                .seconds
                .ok_or_else(|| self.error(draft.line, FileProblem::NoRunTime(draft.id.clone())))?;
            let compute = quantity::seconds(seconds).ok_or_else(|| {
                let what = format!("the run time of task `{}`", draft.id);
                let text = seconds.to_string();
                self.error(draft.line, FileProblem::Number { what, text })
            })?;
            let needs = self.needs(&draft)?;
            tasks.push(WorkflowTask {
                needs,
                name: draft.id,
                kernel: Kernel::Program(draft.kernel),
                inputs: unique(draft.inputs),
                selections: Vec::new(),
                outputs: unique(draft.outputs),
                compute,
                node: None,
                reused: None,
            });
        }
        let mut workflow = Workflow {
            name,
            policy: None,
            tasks,
            files: files.list,
        };
        match workflow.link() {
            Ok(()) => Ok(workflow),
            Err(GraphFault { task, problem }) => Err(self.error(lines[task], problem)),
        }
    }

    /// Returns the resources that a task needs: its `coreCount` in whole cores.
    fn needs(&self, draft: &Draft) -> Result<Needs, InputError> {
        let Some(count) = draft.cores else {
            return Ok(Needs::default());
        };
        let what = || format!("coreCount of task `{}`", draft.id);
        if !(0.0..=f64::from(CORES_MAX)).contains(&count) {
            let problem = match count < 0.0 {
                true => FileProblem::Negative {
                    what: what(),
                    text: count.to_string(),
                },
                false => FileProblem::TooMany {
                    what: what(),
                    max: CORES_MAX.into(),
                },
            };
            return Err(self.error(draft.line, problem));
        }
        let cores = u32::try_from(quantity::whole(count.ceil())).unwrap_or(CORES_MAX);
        Ok(Needs {
            cores,
            ..Needs::default()
        })
    }

    /// Adds an empty file for each task with dependents that no file connects with it.
    fn join_parents(&self, drafts: &mut [Draft], files: &mut FileIndex) -> Result<(), InputError> {
        let mut by_id: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, draft) in drafts.iter().enumerate() {
            if let Some(first) = by_id.insert(&draft.id, index) {
                let first = drafts[first].line;
                let task = draft.id.clone();
                return Err(self.error(draft.line, FileProblem::SameTask { task, first }));
            }
        }
        // Files of 1.4 name parents by name or by id.
        let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, draft) in drafts.iter().enumerate() {
            by_name.entry(&draft.name).or_insert(index);
        }
        let mut edges = BTreeSet::new();
        for (index, draft) in drafts.iter().enumerate() {
            let find = |other: &String| {
                let found = by_id
                    .get(other.as_str())
                    .or_else(|| by_name.get(other.as_str()));
                found.copied().ok_or_else(|| {
                    let (task, other) = (draft.id.clone(), other.clone());
                    self.error(draft.line, FileProblem::DanglingTask { task, other })
                })
            };
            for parent in &draft.parents {
                edges.insert((find(parent)?, index));
            }
            for child in &draft.children {
                edges.insert((index, find(child)?));
            }
        }
        let mut made = BTreeMap::new();
        for (index, draft) in drafts.iter().enumerate() {
            made.extend(draft.outputs.iter().map(|&output| (output, index)));
        }
        let mut carried = BTreeSet::new();
        for (index, draft) in drafts.iter().enumerate() {
            let makers = draft.inputs.iter().filter_map(|input| made.get(input));
            carried.extend(makers.map(|&maker| (maker, index)));
        }
        for (parent, child) in edges.difference(&carried).copied() {
            let done = files.add(&format!("{} has ended", drafts[parent].id), 0);
            if !drafts[parent].outputs.contains(&done) {
                drafts[parent].outputs.push(done);
            }
            drafts[child].inputs.push(done);
        }
        Ok(())
    }
}

/// Returns the name under which run times of a task are learned: its program, or the task's name without its number.
fn kernel(name: &str, command: Option<TaskCommand>) -> String {
    let program = command.and_then(|command| command.program);
    // Some recorders store a whole script in this field.
    let program = program.filter(|program| !program.trim().is_empty() && !program.contains('\n'));
    program.unwrap_or_else(|| {
        let stem = name
            .trim_end_matches(|c: char| c.is_ascii_digit())
            .trim_end_matches("_ID")
            .trim_end_matches('_');
        // A name that consists only of a number is kept.
        if stem.is_empty() { name } else { stem }.to_owned()
    })
}

/// Removes repeated files from a list; keeps the first occurrence of each.
fn unique(mut files: Vec<usize>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    files.retain(|&file| seen.insert(file));
    files
}

#[cfg(test)]
mod tests;
