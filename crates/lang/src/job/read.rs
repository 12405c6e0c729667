//! Converts a tree of values to a job: defines the settings, their types and their defaults. This module does no I/O.

use super::error::{Errors, JobProblem};
use super::instances;
use super::path;
use super::pipeline;
use super::{
    DEFAULT_RETRIES, Dag, InputOrigin, Job, KernelKind, KernelName, Lifetime, MAX_ARG_BYTES,
    MAX_ARGS, MAX_KINDS, MAX_NAME_BYTES, MAX_OUTPUTS, MAX_RETRIES, MAX_TASKS, ScriptInput,
    ScriptOutput, ScriptTask, StageName,
};
use crate::script::{Position, ScriptValue, SettingGroup, ValueData};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tidemill_model::directory;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::label::Limits;
use tidemill_model::label::MAX_INPUTS;
use tidemill_model::layout::{Records, Selection, SelectionError, byte_ranges};
use tidemill_model::quantity;
use tidemill_model::resources::{self, AMOUNT_MAX, CORES_MAX, NAMES_MAX, Needs};
use tidemill_model::runtime_environment::{
    self, BYTES_MAX, DIRECTORIES_MAX, JOB_BYTES_MAX, LOOKS_MAX, RuntimeEnvironment,
};
use tidemill_model::similar_names::nearest;
use tidemill_model::time::Span;
use tidemill_sched::policy;

pub(super) const JOB_SETTINGS: [&str; 18] = [
    "name",
    "workdir",
    "tasks",
    "policy",
    "strict",
    "replace",
    "cache",
    "submission-id",
    "intermediate",
    "retries",
    "lifetime",
    "limits",
    "cores",
    "memory",
    "resources",
    "environment",
    "path",
    "directories",
];
pub(super) const TASK_SETTINGS: [&str; 28] = [
    "name",
    "foreach",
    "per",
    "layout",
    "variable",
    "reduce",
    "records",
    "halo",
    "access",
    "mpi",
    "kernel",
    "input",
    "output",
    "args",
    "type",
    "stdin",
    "stdout",
    "streaming",
    "node",
    "retries",
    "limits",
    "lifetime",
    "cores",
    "memory",
    "resources",
    "environment",
    "path",
    "directories",
];
/// Bytes of the inputs that a task may read: those that it has as files, which is the default, or all.
pub(super) const ACCESS: [&str; 2] = ["part", FULL];
pub(super) const FULL: &str = "full";
pub(super) const INPUT_SETTINGS: [&str; 5] = ["file", "part", "bytes", "records", "name"];
/// Tiers for a job's intermediate files.
pub(super) const TIERS: [&str; 2] = ["disk", "memory"];
pub(super) const LIMIT_SETTINGS: [&str; 3] = ["time", "memory", "output"];
pub(super) const KERNEL_KINDS: [&str; 5] = ["builtin", "native", "program", "stored", "wasm"];

/// Reads a job. Adds an error for each fault and continues with the rest.
pub(super) fn job(file: &str, group: &SettingGroup, errors: &mut Errors) -> Job {
    let fields = Fields {
        group,
        place: "a job",
        at: Position::START,
        task: None,
    };
    fields.check_names(&JOB_SETTINGS, errors);
    let name = fields.required_text("name", errors).map(|text| text.value);
    if let Some(name) = name.filter(|name| !is_name(name)) {
        fields.error(
            fields.place_of("name"),
            JobProblem::Name(name.to_owned()),
            errors,
        );
    }
    let workdir = fields.required_text("workdir", errors).and_then(|given| {
        path::workdir(given.value)
            .map_err(|e| fields.error(given.at, e, errors))
            .ok()
    });
    let submission_id = fields.text("submission-id", errors);
    if let Some(id) = submission_id.filter(|id| !is_name(id.value)) {
        fields.error(id.at, JobProblem::Name(id.value.to_owned()), errors);
    }
    let policy = fields.policy(errors).map(str::to_owned);
    let strict = fields.boolean("strict", errors).unwrap_or(false);
    let replace = fields.boolean("replace", errors).unwrap_or(false);
    let cache = fields.boolean("cache", errors).unwrap_or(true);
    let intermediate_memory = fields.choice("intermediate", &TIERS, errors) == Some("memory");
    // Intermediate files in memory are kept only while they are in use, unless a lifetime is set.
    let unstated = match intermediate_memory {
        true => Lifetime::Intermediate,
        false => Lifetime::default(),
    };
    let defaults = Defaults {
        workdir,
        retries: fields.retries(errors).unwrap_or(DEFAULT_RETRIES),
        usage: usage(&fields, &TaskResources::default(), errors),
        lifetime: lifetime(&fields, errors).unwrap_or(unstated),
        runtime_environment: runtime_environment(&fields, &RuntimeEnvironment::default(), errors),
    };
    let tasks = tasks(&fields, &defaults, errors);
    Job {
        file: file.to_owned(),
        name: name.unwrap_or_default().to_owned(),
        workdir: defaults.workdir.unwrap_or_default(),
        policy,
        strict,
        replace,
        cache,
        submission_id: submission_id.map(|id| id.value.to_owned()),
        intermediate_memory,
        tasks,
        dag: Dag::default(),
    }
}

/// Settings of the job that apply to all its tasks.
struct Defaults {
    /// Working directory; `None` if it is invalid, and files are then not checked.
    workdir: Option<String>,
    retries: u32,
    usage: TaskResources,
    lifetime: Lifetime,
    runtime_environment: RuntimeEnvironment,
}

/// Resources that a task needs to start, and its limits.
#[derive(Default)]
struct TaskResources {
    needs: Needs,
    limits: Limits,
}

fn is_name(name: &str) -> bool {
    let plain = !name.contains(|c: char| c == '/' || c.is_control());
    plain && !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME_BYTES
}

fn tasks(fields: &Fields<'_>, defaults: &Defaults, errors: &mut Errors) -> Vec<ScriptTask> {
    let (name, names) = (errors.names.setting("tasks"), errors.names);
    let expected = names.either("a table [[task]]", "a list of groups ( { … }, … )");
    let no_tasks = names.either("table [[task]]", "group { … } in \"tasks\"");
    let Some(value) = fields.get("tasks") else {
        fields.error(fields.at, JobProblem::NoTasks(no_tasks), errors);
        return Vec::new();
    };
    let ValueData::List(values) = &value.data else {
        fields.type_error(name, expected, value, errors);
        return Vec::new();
    };
    if values.is_empty() {
        fields.error(value.at, JobProblem::NoTasks(no_tasks), errors);
    }
    if values.len() > MAX_TASKS {
        let problem = JobProblem::TooMany {
            what: "tasks",
            count: values.len(),
            max: MAX_TASKS,
        };
        fields.error(value.at, problem, errors);
        return Vec::new();
    }
    let mut names: BTreeMap<&str, Position> = BTreeMap::new();
    let mut tasks: Vec<ScriptTask> = Vec::with_capacity(values.len());
    let mut bytes = 0;
    for value in values {
        let ValueData::Group(group) = &value.data else {
            fields.type_error(name, expected, value, errors);
            continue;
        };
        let name = group
            .get("name")
            .and_then(|setting| match &setting.value.data {
                ValueData::Text(name) => Some((name.as_str(), setting.value.at)),
                _ => None,
            });
        if let Some((name, at)) = name {
            match names.get(name) {
                Some(&first) => errors.add(at, Some(name), JobProblem::SameTask { first }),
                None => {
                    names.insert(name, at);
                }
            }
        }
        let name = name.map(|(name, _)| name);
        let fields = Fields {
            group,
            place: "a task",
            at: value.at,
            task: name,
        };
        let Some(task) = task(&fields, defaults, errors) else {
            continue;
        };
        // Checked for each task at once, because each task has its own copy of the job's settings.
        bytes += task.runtime_environment.bytes();
        if bytes > JOB_BYTES_MAX {
            let problem = JobProblem::TooMany {
                what: "bytes of variables and directories",
                count: bytes,
                max: JOB_BYTES_MAX,
            };
            errors.add(task.at, Some(&task.name), problem);
            return Vec::new();
        }
        tasks.push(task);
    }
    check_kinds(fields, value.at, &tasks, errors);
    tasks
}

/// Bounds the number of different searches: one search for a node per kind of task, and one search for a program per path.
fn check_kinds(fields: &Fields<'_>, at: Position, tasks: &[ScriptTask], errors: &mut Errors) {
    let mut kinds = BTreeSet::new();
    let mut looked = BTreeSet::new();
    for task in tasks {
        let RuntimeEnvironment {
            path, directories, ..
        } = &task.runtime_environment;
        kinds.insert((&task.needs, path, directories));
        if !path.is_empty() {
            looked.extend(task.kernels().map(|kernel| (path, &kernel.name)));
        }
    }
    let looks = looked.iter().map(|(path, _)| path.len()).sum();
    for (what, count, max) in [
        ("different things that tasks need", kinds.len(), MAX_KINDS),
        (
            "searches for programs in the directories of \"path\"",
            looks,
            LOOKS_MAX,
        ),
    ] {
        if count > max {
            fields.error(at, JobProblem::TooMany { what, count, max }, errors);
        }
    }
}

/// Returns `None` if the task lacks a setting that the graph needs; an error was added then.
fn task(fields: &Fields<'_>, defaults: &Defaults, errors: &mut Errors) -> Option<ScriptTask> {
    fields.check_names(&TASK_SETTINGS, errors);
    let name = fields.required_text("name", errors);
    if let Some(name) = name.filter(|name| !is_name(name.value)) {
        fields.error(name.at, JobProblem::Name(name.value.to_owned()), errors);
    }
    let workdir = defaults.workdir.as_deref();
    let kernel = kernel(fields, workdir, errors);
    let mut inputs = inputs(fields, workdir, errors);
    streaming(fields, workdir, &mut inputs, errors);
    let outputs = outputs(fields, workdir, errors);
    check_names_seen(fields, &inputs, &outputs, errors);
    let is_pipeline = kernel
        .as_ref()
        .is_some_and(|(_, stages)| !stages.is_empty());
    if is_pipeline && outputs.len() > 1 {
        let problem = JobProblem::PipelineOutputs(outputs.len());
        fields.error(fields.place_of("output"), problem, errors);
    }
    let stdout = stream(fields, workdir, ["stdout", "output"], errors, |path| {
        outputs
            .iter()
            .filter(|output| !output.is_directory())
            .find(|output| output.path == path || is_called(&output.name, workdir, path))
            .map(|output| output.name.clone())
    });
    let result = outputs.first().filter(|_| is_pipeline);
    let stdout = stdout.or_else(|| Some(result?.name.clone()));
    let (kernel, stages) = kernel?;
    let TaskResources { needs, limits } = usage(fields, &defaults.usage, errors);
    if let Some(why) = ranks_refuse(fields, (&kernel, is_pipeline), &inputs, &outputs) {
        let at = fields.place_of("mpi");
        fields.error(at, JobProblem::Ranks(why), errors);
    }
    let task = ScriptTask {
        name: name?.value.to_owned(),
        at: fields.at,
        args: args(fields, errors),
        stdin: stream(fields, workdir, ["stdin", "input"], errors, |path| {
            inputs
                .iter()
                .filter(|input| !directory::is_directory(&input.name))
                .find(|input| input.path == path || is_called(&input.name, workdir, path))
                .map(|input| input.name.clone())
        }),
        stdout,
        node: fields
            .number("node", i64::from(u32::MAX), errors)
            .map(NodeId),
        retries: fields.retries(errors).unwrap_or(defaults.retries),
        needs,
        limits,
        lifetime: lifetime(fields, errors).unwrap_or(defaults.lifetime),
        runtime_environment: runtime_environment(fields, &defaults.runtime_environment, errors),
        share: instances::share(fields.group),
        kernel,
        stages,
        inputs,
        outputs,
    };
    Some(task)
}

/// Returns a setting that a task with one process on each node can't have.
fn ranks_refuse(
    fields: &Fields<'_>,
    (kernel, is_pipeline): (&KernelName, bool),
    inputs: &[ScriptInput],
    outputs: &[ScriptOutput],
) -> Option<&'static str> {
    let given = fields.get("mpi")?;
    if !matches!(given.data, ValueData::Boolean(true)) {
        return None;
    }
    let other = |name: &'static str| fields.get(name).is_some();
    let is_directory = |name: &str| directory::is_directory(name);
    if is_pipeline || !(kernel.name.ends_with(".so") || kernel.kind == Some(KernelKind::Native)) {
        return Some("its kernel is a shared object, by itself, whose name ends in .so");
    }
    if other("stdin") || other("stdout") || other("access") || other("variable") || other("per") {
        return Some(
            "its kernel reads in_fd and writes out_fd: leave out stdin, stdout, access, variable and per",
        );
    }
    match (inputs, outputs) {
        ([], _) => Some("it needs an input"),
        (_, [one]) if !is_directory(&one.name) => None,
        _ => Some("it makes one output, which is a file"),
    }
}

/// Returns whether a path belongs to the file that the kernel sees as `name`.
fn is_called(name: &str, workdir: Option<&str>, path: &str) -> bool {
    let below = workdir.and_then(|workdir| path.strip_prefix(workdir.trim_end_matches('/')));
    below.and_then(|below| below.strip_prefix('/')) == Some(name)
}

/// Reads the kernel of a task, and its stages if it is a pipeline.
fn kernel(
    fields: &Fields<'_>,
    workdir: Option<&str>,
    errors: &mut Errors,
) -> Option<(KernelName, Vec<StageName>)> {
    let kind = fields
        .choice("type", &KERNEL_KINDS, errors)
        .map(|kind| match kind {
            "builtin" => KernelKind::Builtin,
            "native" => KernelKind::Native,
            "program" => KernelKind::Program,
            "wasm" => KernelKind::Wasm,
            _ => KernelKind::Stored,
        });
    let given = fields.required_text("kernel", errors)?;
    if kind.is_some() || !pipeline::is_pipeline(given.value) {
        let kernel = kernel_name(fields, given, kind, workdir, errors)?;
        return Some((kernel, Vec::new()));
    }
    if let Some(args) = fields.get("args") {
        let why = "write each kernel's arguments after its name";
        fields.error(args.at, JobProblem::PipelineSetting("args", why), errors);
    }
    let stages = match pipeline::split(given.value) {
        Ok(stages) => stages,
        Err(problem) => {
            fields.error(given.at, problem, errors);
            return None;
        }
    };
    let stages = stages.into_iter().map(|mut words| {
        let name = words.remove(0);
        let text = ScriptText {
            value: &name,
            at: given.at,
        };
        let kernel = kernel_name(fields, text, None, workdir, errors)?;
        let args = words;
        Some(StageName { kernel, args })
    });
    let stages = stages.collect::<Option<_>>()?;
    let whole = KernelName {
        name: given.value.to_owned(),
        kind: None,
        at: given.at,
        file: None,
    };
    Some((whole, stages))
}

fn kernel_name(
    fields: &Fields<'_>,
    given: ScriptText<'_>,
    kind: Option<KernelKind>,
    workdir: Option<&str>,
    errors: &mut Errors,
) -> Option<KernelName> {
    let name = given.value.to_owned();
    let wrong = |kind, reason| JobProblem::KernelName {
        name: name.clone(),
        kind,
        reason,
    };
    let problem = match kind {
        _ if name.is_empty() || name.contains('\0') => Some(JobProblem::EmptyPath),
        Some(KernelKind::Builtin) if name.contains('/') => {
            Some(wrong("builtin", "built-in kernels have plain names"))
        }
        Some(KernelKind::Program) if name.contains('/') && !name.starts_with('/') => Some(wrong(
            "program",
            "give the name of a program in PATH or an absolute path",
        )),
        _ => None,
    };
    if let Some(problem) = problem {
        fields.error(given.at, problem, errors);
        return None;
    }
    let stored = !matches!(kind, Some(KernelKind::Builtin | KernelKind::Program));
    let file = match workdir
        .filter(|_| stored)
        .map(|workdir| path::file(workdir, given.value))
    {
        None => None,
        Some(Ok(named)) => Some(input(named, given.at)),
        Some(Err(problem)) => {
            fields.error(given.at, problem, errors);
            return None;
        }
    };
    Some(KernelName {
        name,
        kind,
        at: given.at,
        file,
    })
}

fn input(named: path::NamedFile, at: Position) -> ScriptInput {
    ScriptInput {
        name: named.name,
        path: named.path,
        source: InputOrigin::Outside,
        selection: Selection::WHOLE,
        streaming: false,
        version: None,
        at,
    }
}

fn inputs(fields: &Fields<'_>, workdir: Option<&str>, errors: &mut Errors) -> Vec<ScriptInput> {
    const EXPECTED: &str = "an array of strings such as [ \"a.dat\", \"b.dat\" ]";
    let values = fields.list("input", ("inputs", MAX_INPUTS), EXPECTED, errors);
    let (Some(values), Some(workdir)) = (values, workdir) else {
        return Vec::new();
    };
    let mut inputs = Vec::with_capacity(values.len());
    for value in values {
        let named = match &value.data {
            ValueData::Text(text) => {
                path::file_or_directory(workdir, text).map(|it| input(it, value.at))
            }
            ValueData::Group(group) => {
                inputs.extend(selected(fields, (group, value.at), workdir, errors));
                continue;
            }
            _ => {
                fields.type_error("input", EXPECTED, value, errors);
                continue;
            }
        };
        match named {
            Ok(input) => inputs.push(input),
            Err(problem) => fields.error(value.at, problem, errors),
        }
    }
    inputs
}

/// Reads an input with a selection of bytes, or with another name for the kernel.
fn selected(
    fields: &Fields<'_>,
    (group, at): (&SettingGroup, Position),
    workdir: &str,
    errors: &mut Errors,
) -> Option<ScriptInput> {
    let fields = Fields {
        group,
        place: "an input",
        at,
        task: fields.task,
    };
    fields.check_names(&INPUT_SETTINGS, errors);
    let file = fields.required_text("file", errors)?;
    let mut found = match path::file(workdir, file.value) {
        Ok(named) => input(named, file.at),
        Err(problem) => {
            fields.error(file.at, problem, errors);
            return None;
        }
    };
    if let Some(name) = fields.text("name", errors) {
        let named = path::file(workdir, name.value);
        let named = named.ok().filter(|named| named.inside);
        let Some(named) = named.filter(|_| !name.value.starts_with('/')) else {
            fields.error(
                name.at,
                JobProblem::InputName(name.value.to_owned()),
                errors,
            );
            return None;
        };
        found.name = named.name;
    }
    found.version = instances::number(group, instances::VERSION).map(ObjectId);
    let [task, output] = instances::MADE_BY.map(|name| instances::number(group, name));
    if let Some((task, output)) = task.zip(output) {
        let index = |number| usize::try_from(number).unwrap_or(usize::MAX);
        found.source = InputOrigin::Task(index(task), index(output));
    }
    let part = fields.part(errors);
    let ranges = fields.byte_ranges(&found.path, errors);
    let selection = match ranges {
        _ if instances::selection(group).is_some() => {
            instances::selection(group).unwrap_or_default().parse()
        }
        Some(ranges) => Selection::ranges(part, &ranges),
        None => Ok(part.map_or(Selection::WHOLE, Selection::part)),
    };
    let selection = selection.and_then(|selection| {
        Ok(match fields.records(errors).transpose()? {
            None => selection,
            records => selection.of_records(records),
        })
    });
    match selection {
        Ok(selection) => found.selection = selection,
        Err(problem) => {
            let path = found.path.clone();
            let at = fields.place_of("bytes");
            fields.error(at, JobProblem::Selection { path, problem }, errors);
        }
    }
    Some(found)
}

fn outputs(fields: &Fields<'_>, workdir: Option<&str>, errors: &mut Errors) -> Vec<ScriptOutput> {
    let Some(value) = fields.required("output", errors) else {
        return Vec::new();
    };
    let Some(texts) = fields.texts("output", "outputs", MAX_OUTPUTS, errors) else {
        return Vec::new();
    };
    if texts.is_empty() {
        fields.error(value.at, JobProblem::NoOutputs, errors);
    }
    let Some(workdir) = workdir else {
        return Vec::new();
    };
    let mut outputs = Vec::with_capacity(texts.len());
    for text in texts {
        match path::file_or_directory(workdir, text.value) {
            Ok(named) if named.inside => {
                let part = instances::number(fields.group, instances::PART);
                outputs.push(ScriptOutput {
                    name: named.name,
                    path: match part {
                        Some(part) => instances::part_path(&named.path, part),
                        None => named.path,
                    },
                    part: part.is_some(),
                    memory: false,
                    at: text.at,
                });
            }
            Ok(named) => {
                let problem = JobProblem::OutputOutside {
                    path: named.path,
                    workdir: workdir.to_owned(),
                };
                fields.error(text.at, problem, errors);
            }
            Err(problem) => fields.error(text.at, problem, errors),
        }
    }
    outputs
}

/// Checks that all files of a task can be stored in one directory under the names that the kernel sees.
fn check_names_seen(
    fields: &Fields<'_>,
    inputs: &[ScriptInput],
    outputs: &[ScriptOutput],
    errors: &mut Errors,
) {
    let inputs = inputs
        .iter()
        .map(|input| (false, &input.name, &input.path, input.at));
    let outputs = outputs
        .iter()
        .map(|output| (true, &output.name, &output.path, output.at));
    let mut seen: BTreeMap<&str, (bool, &str)> = BTreeMap::new();
    let all: Vec<_> = inputs.chain(outputs).collect();
    for &(is_output, name, path, at) in &all {
        let plain = name.trim_end_matches('/');
        let problem = match seen.get(plain) {
            None => {
                seen.insert(plain, (is_output, path));
                continue;
            }
            Some(&(other, first)) if first == path && other == is_output => {
                JobProblem::Twice(path.clone())
            }
            // An input that is also an output: the search for dependencies reports it.
            Some(&(_, first)) if first == path => continue,
            Some(&(_, first)) => JobProblem::Collision {
                name: name.clone(),
                first: first.to_owned(),
                second: path.clone(),
            },
        };
        fields.error(at, problem, errors);
    }
    for &(_, name, _, at) in &all {
        let plain = name.trim_end_matches('/');
        if let Some(file) = path::above(plain).find(|directory| seen.contains_key(*directory)) {
            let mut files = all.iter().map(|(_, name, _, _)| name.as_str());
            let is_directory = files.any(|name| name.strip_suffix('/') == Some(file));
            let problem = within(is_directory, file, name);
            fields.error(at, problem, errors);
        }
    }
}

/// Returns the problem of a file below another file, or below a directory that a task writes as a whole.
pub(super) fn within(is_directory: bool, above: &str, below: &str) -> JobProblem {
    let below = below.to_owned();
    if is_directory {
        let directory = format!("{above}/");
        JobProblem::WithinDirectory { directory, below }
    } else {
        let file = above.to_owned();
        JobProblem::FileAndDirectory { file, below }
    }
}

/// Reads `streaming`: the inputs that are read forward.
fn streaming(
    fields: &Fields<'_>,
    workdir: Option<&str>,
    inputs: &mut [ScriptInput],
    errors: &mut Errors,
) {
    const SETTING: &str = "streaming";
    const EXPECTED: &str = "true, or an array of inputs such as [ \"a.dat\" ]";
    let Some(value) = fields.get(SETTING) else {
        return;
    };
    let names = match &value.data {
        ValueData::Boolean(all) => {
            inputs.iter_mut().for_each(|input| input.streaming = *all);
            return;
        }
        ValueData::Array(names) | ValueData::List(names) => names,
        _ => return fields.type_error(SETTING, EXPECTED, value, errors),
    };
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for (index, input) in inputs.iter().enumerate() {
        known.insert(input.path.clone(), index);
        if let Some(workdir) = workdir {
            let seen = format!("{}/{}", workdir.trim_end_matches('/'), input.name);
            known.entry(seen).or_insert(index);
        }
    }
    for value in names {
        let ValueData::Text(name) = &value.data else {
            fields.type_error(SETTING, EXPECTED, value, errors);
            continue;
        };
        let Some(workdir) = workdir else { continue };
        match path::file(workdir, name).map(|named| known.get(&named.path)) {
            Ok(Some(&index)) => inputs[index].streaming = true,
            Ok(None) => {
                let (setting, name, list) = (SETTING, name.clone(), "input");
                let problem = JobProblem::Stream {
                    setting,
                    name,
                    list,
                };
                fields.error(value.at, problem, errors);
            }
            Err(problem) => fields.error(value.at, problem, errors),
        }
    }
}

/// Reads `stdin` or `stdout`: the name that the kernel sees for a file that `find` knows by its path.
fn stream(
    fields: &Fields<'_>,
    workdir: Option<&str>,
    [setting, list]: [&'static str; 2],
    errors: &mut Errors,
    find: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let given = fields.text(setting, errors)?;
    let found = match path::file(workdir?, given.value) {
        Ok(named) => find(&named.path),
        Err(problem) => {
            fields.error(given.at, problem, errors);
            return None;
        }
    };
    if found.is_none() {
        let problem = JobProblem::Stream {
            setting,
            name: given.value.to_owned(),
            list,
        };
        fields.error(given.at, problem, errors);
    }
    found
}

fn args(fields: &Fields<'_>, errors: &mut Errors) -> Vec<String> {
    const EXPECTED: &str = "an array of strings such as [ \"-n\", \"3\" ]";
    let Some(value) = fields.get("args") else {
        return Vec::new();
    };
    let (ValueData::Array(values) | ValueData::List(values)) = &value.data else {
        fields.type_error("args", EXPECTED, value, errors);
        return Vec::new();
    };
    if values.len() > MAX_ARGS {
        let problem = JobProblem::TooMany {
            what: "arguments",
            count: values.len(),
            max: MAX_ARGS,
        };
        fields.error(value.at, problem, errors);
        return Vec::new();
    }
    let mut args = Vec::with_capacity(values.len());
    for value in values {
        match &value.data {
            ValueData::Text(text) if text.len() > MAX_ARG_BYTES || text.contains('\0') => {
                fields.error(value.at, JobProblem::Argument, errors);
            }
            ValueData::Text(text) => args.push(text.clone()),
            ValueData::Integer(number) => args.push(number.to_string()),
            _ => fields.type_error("args", EXPECTED, value, errors),
        }
    }
    args
}

/// Reads `cores`, `memory`, `resources` and `limits`, which override those of the job.
fn usage(fields: &Fields<'_>, over: &TaskResources, errors: &mut Errors) -> TaskResources {
    let mut needs = over.needs.clone();
    let mut bounds = over.limits;
    if let Some(cores) = fields.number("cores", i64::from(CORES_MAX), errors) {
        needs.cores = cores;
        bounds.cores = Some(cores);
    }
    if let Some(bytes) = fields.size("memory", errors) {
        needs.memory_bytes = bytes;
        bounds.memory_bytes = bytes;
    }
    named(fields, &mut needs.named, errors);
    let limits = limits(fields, bounds, errors);
    if limits.memory_bytes < needs.memory_bytes {
        let problem = JobProblem::MemoryLimit {
            limit: limits.memory_bytes,
            memory: needs.memory_bytes,
        };
        fields.error(fields.place_of("limits"), problem, errors);
    }
    TaskResources { needs, limits }
}

/// Reads the group `resources`: amounts by name. A group within it stands for names with a dot.
fn named(fields: &Fields<'_>, named: &mut BTreeMap<String, u64>, errors: &mut Errors) {
    const GROUP: &str = "a table such as { gpu = 1, licence = { x = 2 } }";
    let Some(value) = fields.get("resources") else {
        return;
    };
    let ValueData::Group(group) = &value.data else {
        fields.type_error("resources", GROUP, value, errors);
        return;
    };
    let mut given: BTreeMap<String, u64> = BTreeMap::new();
    let mut pending: Vec<(String, &SettingGroup)> = vec![(String::new(), group)];
    while let Some((above, group)) = pending.pop() {
        for setting in &group.settings {
            let name = format!("{above}{}", setting.name);
            match &setting.value.data {
                ValueData::Group(inner) => pending.push((format!("{name}."), inner)),
                _ if !resources::is_name(&name) => {
                    fields.error(setting.at, JobProblem::ResourceName(name), errors);
                }
                ValueData::Integer(amount) => match u64::try_from(*amount) {
                    Ok(amount) if amount <= AMOUNT_MAX => {
                        if given.insert(name.clone(), amount).is_some() {
                            fields.error(setting.at, JobProblem::Twice(name), errors);
                        }
                    }
                    _ => fields.error(
                        setting.value.at,
                        JobProblem::Amount {
                            name,
                            value: *amount,
                        },
                        errors,
                    ),
                },
                _ => fields.type_error(&name, "an integer", &setting.value, errors),
            }
        }
    }
    for (name, amount) in given {
        named.insert(name, amount);
    }
    // A task sets an amount of 0 to drop a resource that its job requests.
    named.retain(|_, amount| *amount > 0);
    if named.len() > NAMES_MAX {
        let problem = JobProblem::TooMany {
            what: "resources",
            count: named.len(),
            max: NAMES_MAX,
        };
        fields.error(value.at, problem, errors);
    }
}

fn limits(fields: &Fields<'_>, mut limits: Limits, errors: &mut Errors) -> Limits {
    let Some(value) = fields.get("limits") else {
        return limits;
    };
    let ValueData::Group(group) = &value.data else {
        fields.type_error("limits", "a table such as { time = \"5m\" }", value, errors);
        return limits;
    };
    let fields = Fields {
        group,
        place: "limits",
        at: value.at,
        task: fields.task,
    };
    fields.check_names(&LIMIT_SETTINGS, errors);
    if let Some(time) = fields.duration("time", errors) {
        limits.time = time;
    }
    if let Some(bytes) = fields.size("memory", errors) {
        limits.memory_bytes = bytes;
    }
    if let Some(bytes) = fields.size("output", errors) {
        limits.output_bytes = bytes;
    }
    limits
}

/// Reads `environment`, `path` and `directories`, which override those of the job.
fn runtime_environment(
    fields: &Fields<'_>,
    over: &RuntimeEnvironment,
    errors: &mut Errors,
) -> RuntimeEnvironment {
    let mut own = RuntimeEnvironment {
        environment: environment(fields, errors),
        path: host_directories(fields, "path", errors),
        directories: host_directories(fields, "directories", errors),
    };
    if fields.choice("access", &ACCESS, errors) == Some(FULL) {
        let name = runtime_environment::READS.to_owned();
        own.environment.insert(name, "1".to_owned());
    }
    if fields.boolean("mpi", errors) == Some(true) {
        let name = runtime_environment::RANKS.to_owned();
        own.environment.insert(name, "1".to_owned());
    }
    if own.is_empty() {
        return over.clone();
    }
    let all = own.over(over);
    let directories = all.shown().count();
    for (what, count, max) in [
        ("directories of the host", directories, DIRECTORIES_MAX),
        ("bytes of variables and directories", all.bytes(), BYTES_MAX),
    ] {
        if count > max {
            fields.error(fields.at, JobProblem::TooMany { what, count, max }, errors);
        }
    }
    all
}

fn environment(fields: &Fields<'_>, errors: &mut Errors) -> BTreeMap<String, String> {
    const GROUP: &str = "a table of strings such as { OMP_NUM_THREADS = \"4\" }";
    let mut variables = BTreeMap::new();
    let Some(value) = fields.get("environment") else {
        return variables;
    };
    let ValueData::Group(group) = &value.data else {
        fields.type_error("environment", GROUP, value, errors);
        return variables;
    };
    for setting in &group.settings {
        let name = setting.name.clone();
        if let Some(reason) = runtime_environment::refusal(&name) {
            fields.error(setting.at, JobProblem::Variable { name, reason }, errors);
            continue;
        }
        let text = match &setting.value.data {
            ValueData::Text(text) if text.contains('\0') => {
                fields.error(setting.value.at, JobProblem::Argument, errors);
                continue;
            }
            ValueData::Text(text) => text.clone(),
            ValueData::Integer(number) => number.to_string(),
            _ => {
                fields.type_error("environment", GROUP, &setting.value, errors);
                continue;
            }
        };
        variables.insert(name, text);
    }
    variables
}

/// Reads directories of the nodes' hosts.
fn host_directories(fields: &Fields<'_>, name: &'static str, errors: &mut Errors) -> Vec<String> {
    let texts = fields.texts(name, "directories of the host", DIRECTORIES_MAX, errors);
    let mut directories = Vec::new();
    for text in texts.unwrap_or_default() {
        match path::workdir(text.value) {
            Ok(path) if path != "/" && !path.contains(':') => directories.push(path),
            _ => {
                let path = text.value.to_owned();
                fields.error(text.at, JobProblem::HostDirectory { name, path }, errors);
            }
        }
    }
    directories
}

fn lifetime(fields: &Fields<'_>, errors: &mut Errors) -> Option<Lifetime> {
    const CHOICES: [&str; 2] = ["keep", "used"];
    let value = fields.get("lifetime")?;
    match &value.data {
        ValueData::Text(text) if text == "keep" => Some(Lifetime::Keep),
        ValueData::Text(text) if text == "used" => Some(Lifetime::Used),
        ValueData::Text(text) if !text.starts_with(|c: char| c.is_ascii_digit()) => {
            let valid = "keep, used, or a length of time such as \"2h\"".to_owned();
            let nearest = nearest(text, &CHOICES);
            let problem = JobProblem::Choice {
                name: "lifetime",
                value: text.clone(),
                nearest,
                valid,
            };
            fields.error(value.at, problem, errors);
            None
        }
        _ => fields.duration("lifetime", errors).map(Lifetime::After),
    }
}

/// Text of a script, and its position.
#[derive(Clone, Copy)]
struct ScriptText<'a> {
    value: &'a str,
    at: Position,
}

/// Settings of one group, and the place that errors about them name.
struct Fields<'a> {
    group: &'a SettingGroup,
    place: &'static str,
    at: Position,
    task: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn error(&self, at: Position, problem: JobProblem, errors: &mut Errors) {
        errors.add(at, self.task, problem);
    }

    fn type_error(
        &self,
        name: &str,
        expected: &'static str,
        value: &ScriptValue,
        errors: &mut Errors,
    ) {
        let problem = JobProblem::Type {
            name: name.to_owned(),
            expected,
            found: value.data.kind(),
        };
        self.error(value.at, problem, errors);
    }

    fn check_names(&self, valid: &[&str], errors: &mut Errors) {
        for setting in &self.group.settings {
            if setting.name == "container" {
                self.error(setting.at, JobProblem::Container, errors);
            } else if !valid.contains(&setting.name.as_str()) && !setting.name.starts_with(' ') {
                let valid = errors.names.valid(self.place, valid);
                let problem = JobProblem::UnknownSetting {
                    place: errors.names.place(self.place),
                    name: setting.name.clone(),
                    nearest: nearest(&setting.name, &valid),
                    valid: valid.join(", "),
                };
                self.error(setting.at, problem, errors);
            }
        }
    }

    fn get(&self, name: &str) -> Option<&'a ScriptValue> {
        self.group.get(name).map(|setting| &setting.value)
    }

    fn place_of(&self, name: &str) -> Position {
        self.get(name).map_or(self.at, |value| value.at)
    }

    fn required(&self, name: &'static str, errors: &mut Errors) -> Option<&'a ScriptValue> {
        let value = self.get(name);
        if value.is_none() {
            let problem = JobProblem::MissingSetting {
                place: errors.names.place(self.place),
                name,
            };
            self.error(self.at, problem, errors);
        }
        value
    }

    fn text(&self, name: &'static str, errors: &mut Errors) -> Option<ScriptText<'a>> {
        let value = self.get(name)?;
        if let ValueData::Text(text) = &value.data {
            return Some(ScriptText {
                value: text,
                at: value.at,
            });
        }
        self.type_error(name, "a string", value, errors);
        None
    }

    fn required_text(&self, name: &'static str, errors: &mut Errors) -> Option<ScriptText<'a>> {
        self.required(name, errors)?;
        self.text(name, errors)
    }

    fn texts(
        &self,
        name: &'static str,
        what: &'static str,
        max: usize,
        errors: &mut Errors,
    ) -> Option<Vec<ScriptText<'a>>> {
        const EXPECTED: &str = "an array of strings such as [ \"a.dat\", \"b.dat\" ]";
        let values = self.list(name, (what, max), EXPECTED, errors)?;
        let mut texts = Vec::with_capacity(values.len());
        for value in values {
            match &value.data {
                ValueData::Text(text) => texts.push(ScriptText {
                    value: text,
                    at: value.at,
                }),
                _ => self.type_error(name, EXPECTED, value, errors),
            }
        }
        Some(texts)
    }

    /// Returns the values of an array or list.
    fn list(
        &self,
        name: &'static str,
        (what, max): (&'static str, usize),
        expected: &'static str,
        errors: &mut Errors,
    ) -> Option<&'a [ScriptValue]> {
        let value = self.get(name)?;
        let (ValueData::Array(values) | ValueData::List(values)) = &value.data else {
            self.type_error(name, expected, value, errors);
            return None;
        };
        if values.len() > max {
            let problem = JobProblem::TooMany {
                what,
                count: values.len(),
                max,
            };
            self.error(value.at, problem, errors);
            return None;
        }
        Some(values)
    }

    /// Reads `part`: an integer, or a number that a `foreach` has inserted as text.
    fn part(&self, errors: &mut Errors) -> Option<u32> {
        let value = self.get("part")?;
        let ValueData::Text(text) = &value.data else {
            return self.number("part", i64::from(u32::MAX), errors);
        };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let part = text.parse().ok().filter(|_| digits);
        if part.is_none() {
            self.type_error("part", "the number of a part", value, errors);
        }
        part
    }

    /// Reads `records`: bytes of each record, `"lines"`, or the bytes with which each record ends.
    fn records(&self, errors: &mut Errors) -> Option<Result<Records, SelectionError>> {
        let value = self.get("records")?;
        match &value.data {
            ValueData::Integer(bytes) => {
                Some(Records::of_bytes(u64::try_from(*bytes).unwrap_or(0)))
            }
            ValueData::Text(text) if text == "lines" => Some(Records::until(b"\n")),
            ValueData::Text(text) => Some(Records::until(text.as_bytes())),
            _ => {
                let expected = "bytes of a record, \"lines\", or the text that ends a record";
                self.type_error("records", expected, value, errors);
                None
            }
        }
    }

    /// Reads `bytes`: ranges in one text or in several.
    fn byte_ranges(&self, path: &str, errors: &mut Errors) -> Option<Vec<Range<u64>>> {
        const EXPECTED: &str = "ranges such as \"0-4095\" or [ \"0-4095\", \"8192-8199\" ]";
        let value = self.get("bytes")?;
        let values = match &value.data {
            ValueData::Text(_) => std::slice::from_ref(value),
            ValueData::Array(values) | ValueData::List(values) => values.as_slice(),
            _ => {
                self.type_error("bytes", EXPECTED, value, errors);
                return None;
            }
        };
        let mut ranges = Vec::new();
        for value in values {
            let ValueData::Text(text) = &value.data else {
                self.type_error("bytes", EXPECTED, value, errors);
                return None;
            };
            match byte_ranges(text) {
                Ok(more) => ranges.extend(more),
                Err(problem) => {
                    let path = path.to_owned();
                    self.error(value.at, JobProblem::Selection { path, problem }, errors);
                    return None;
                }
            }
        }
        Some(ranges)
    }

    fn boolean(&self, name: &'static str, errors: &mut Errors) -> Option<bool> {
        let value = self.get(name)?;
        if let ValueData::Boolean(boolean) = value.data {
            return Some(boolean);
        }
        self.type_error(name, "true or false", value, errors);
        None
    }

    fn number(&self, name: &'static str, max: i64, errors: &mut Errors) -> Option<u32> {
        let value = self.get(name)?;
        let ValueData::Integer(number) = value.data else {
            self.type_error(name, "an integer", value, errors);
            return None;
        };
        let fits = u32::try_from(number).ok().filter(|_| number <= max);
        if fits.is_none() {
            self.error(
                value.at,
                JobProblem::Bounds {
                    name,
                    value: number,
                    max,
                },
                errors,
            );
        }
        fits
    }

    fn retries(&self, errors: &mut Errors) -> Option<u32> {
        self.number("retries", i64::from(MAX_RETRIES), errors)
    }

    fn choice(&self, name: &'static str, valid: &[&str], errors: &mut Errors) -> Option<&'a str> {
        let text = self.text(name, errors)?;
        if valid.contains(&text.value) {
            return Some(text.value);
        }
        let problem = JobProblem::Choice {
            name,
            value: text.value.to_owned(),
            nearest: nearest(text.value, valid),
            valid: valid.join(", "),
        };
        self.error(text.at, problem, errors);
        None
    }

    /// Reads the name of a policy, which may contain weights of its own.
    fn policy(&self, errors: &mut Errors) -> Option<&'a str> {
        let text = self.text("policy", errors)?;
        match policy::by_name(text.value, 0) {
            Ok(_) => Some(text.value),
            Err(policy::UnknownPolicy::Name(_)) => self.choice("policy", &policy::NAMES, errors),
            Err(error) => {
                self.error(text.at, JobProblem::Policy(error), errors);
                None
            }
        }
    }

    /// Returns the text of a setting that is a number with or without a unit.
    fn quantity(&self, name: &'static str) -> Option<(&'a ScriptValue, String)> {
        let value = self.get(name)?;
        Some((
            value,
            match &value.data {
                ValueData::Text(text) => text.clone(),
                ValueData::Integer(number) => number.to_string(),
                other => other.kind().to_owned(),
            },
        ))
    }

    fn duration(&self, name: &'static str, errors: &mut Errors) -> Option<Span> {
        let (value, text) = self.quantity(name)?;
        let span = quantity::duration(&text).ok().filter(|span| span.0 > 0);
        if span.is_none() {
            let problem = JobProblem::Duration {
                name: name.to_owned(),
                value: text,
            };
            self.error(value.at, problem, errors);
        }
        span
    }

    fn size(&self, name: &'static str, errors: &mut Errors) -> Option<u64> {
        let (value, text) = self.quantity(name)?;
        let bytes = quantity::size(&text).ok().filter(|bytes| *bytes > 0);
        if bytes.is_none() {
            let problem = JobProblem::Size {
                name: name.to_owned(),
                value: text,
            };
            self.error(value.at, problem, errors);
        }
        bytes
    }
}
