//! Job scripts for a simulation: reads a job script in its usual form, together with a file of costs for the additional data that the
//! simulation needs.
//!
//! Costs are TOML. `[files]` has sizes of files by their name in the script or their full path. `[kernels]` and `[tasks]` have run times
//! and sizes of outputs by the name of a kernel or task; the costs of a task take precedence over the costs of its kernel.
//! `docs/platform-files.md` describes every key.

use super::error::{FileProblem, InputError};
use super::quantity::{self, QuantityKind, whole};
use super::workflow::{GraphFault, Workflow, WorkflowFile, WorkflowTask};
use crate::suggestions;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_lang::job::{self, InputOrigin, Job, KernelKind};
use tidemill_lang::script::Position;
use tidemill_model::label::{Kernel, Pipeline, Stage};
use tidemill_model::similar_names::nearest;
use tidemill_model::time::Span;
use toml::Spanned;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CostTable {
    #[serde(default)]
    files: BTreeMap<Spanned<String>, Spanned<Amount>>,
    #[serde(default)]
    kernels: BTreeMap<Spanned<String>, RunCost>,
    #[serde(default)]
    tasks: BTreeMap<Spanned<String>, RunCost>,
}

/// Run time and output size of a kernel or task.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunCost {
    /// Time of every run, independent of the size of its input.
    time: Option<Spanned<Amount>>,
    /// Rate at which the kernel processes its input, in bytes per second.
    rate: Option<Spanned<Amount>>,
    /// Size of each output, in bytes.
    output: Option<Spanned<Amount>>,
    /// Size of all outputs together per byte of input.
    ratio: Option<Spanned<Amount>>,
}

/// Number in a costs file, with or without a unit.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Amount {
    Integer(i64),
    Float(f64),
    Text(String),
}

/// Parses a job script and its costs; `script_file` and `costs_file` are the names used in errors.
///
/// # Errors
/// A fault in the script or in the costs, or a missing cost, with its file and line.
pub fn parse(
    script_file: &str,
    script: &str,
    costs_file: &str,
    costs: &str,
) -> Result<Workflow, InputError> {
    let job = Job::parse(script_file, script.as_bytes()).map_err(|errors| {
        // The report names file and line of every error itself.
        InputError::new(script_file, 0, FileProblem::Script(errors.to_string()))
    })?;
    let read = toml::from_str(costs).map_err(|error| {
        let line = error.span().map_or(0, |span| line_of(costs, span.start));
        InputError::new(
            costs_file,
            line,
            FileProblem::Toml(suggestions::with_suggestion(error.message())),
        )
    })?;
    let reader = JobReader {
        job: &job,
        costs: read,
        costs_file,
        costs_text: costs,
    };
    reader.workflow()
}

fn line_of(text: &str, offset: usize) -> u32 {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    let breaks = before.iter().filter(|&&byte| byte == b'\n').count();
    u32::try_from(breaks + 1).unwrap_or(u32::MAX)
}

struct JobReader<'a> {
    job: &'a Job,
    costs: CostTable,
    costs_file: &'a str,
    costs_text: &'a str,
}

impl JobReader<'_> {
    fn workflow(&self) -> Result<Workflow, InputError> {
        self.check_names()?;
        let mut files = BTreeMap::new();
        let mut workflow = Workflow {
            name: self.job.name.clone(),
            policy: self.job.policy.clone(),
            tasks: Vec::new(),
            files: Vec::new(),
        };
        // Dependencies come before their dependents, so that the sizes of inputs are known when the sizes of outputs are computed.
        let mut tasks: BTreeMap<usize, WorkflowTask> = BTreeMap::new();
        for &index in &self.job.dag.order {
            let task = &self.job.tasks[index];
            let mut inputs = Vec::new();
            let selections = task.inputs.iter().map(|input| input.selection.clone());
            let selections = selections.collect();
            for input in &task.inputs {
                let size = || self.size_of_input(task, input);
                inputs.push(file(&mut workflow.files, &mut files, &input.path, size)?);
            }
            let data_bytes = bytes(&workflow.files, &task.inputs, &inputs);
            let kernel = self.kernel(task, &mut inputs, &mut workflow.files, &mut files)?;
            let mut outputs = Vec::new();
            for output in &task.outputs {
                let size = || self.size_of_output(task, output, data_bytes);
                outputs.push(file(&mut workflow.files, &mut files, &output.path, size)?);
            }
            let made = WorkflowTask {
                name: task.name.clone(),
                kernel,
                inputs,
                selections,
                outputs,
                compute: self.compute(task, data_bytes)?,
                node: task.node,
                needs: task.needs.clone(),
                reused: None,
            };
            tasks.insert(index, made);
        }
        workflow.tasks = tasks.into_values().collect();
        workflow.link().map_err(|GraphFault { task, problem }| {
            self.script_error(self.job.tasks[task].at, problem)
        })?;
        Ok(workflow)
    }

    /// Refuses costs of names that the job does not have, because such costs would have no effect: the name is misspelt. Kernels of other
    /// jobs are allowed, unless such a name resembles a kernel without costs.
    fn check_names(&self) -> Result<(), InputError> {
        let tasks = &self.job.tasks;
        let names = tasks.iter().map(|task| task.name.as_str()).collect();
        self.check_table("tasks", "task", &self.costs.tasks, &names, &names)?;
        let mut files = BTreeSet::new();
        let mut paths = BTreeSet::new();
        for task in tasks {
            let stages = task.stages.iter().map(|stage| &stage.kernel);
            let code = stages
                .chain([&task.kernel])
                .filter_map(|kernel| kernel.file.as_ref());
            for input in task.inputs.iter().chain(code) {
                files.insert(input.name.as_str());
                paths.insert(input.path.as_str());
            }
            for output in &task.outputs {
                files.insert(output.name.as_str());
                paths.insert(output.path.as_str());
            }
        }
        paths.extend(&files);
        self.check_table("files", "file", &self.costs.files, &paths, &files)?;
        let kernels = tasks.iter().map(|task| task.kernel.name.as_str());
        let kernels: BTreeSet<&str> = kernels.collect();
        let costs = self.costs.kernels.iter().filter(|(name, _)| {
            let given = |kernel: &&&str| !self.costs.kernels.contains_key(**kernel);
            let missing: Vec<&str> = kernels.iter().filter(given).copied().collect();
            nearest(name.get_ref(), &missing).is_some()
        });
        let meant = costs.map(|(name, _)| (name.clone(), ())).collect();
        self.check_table("kernels", "kernel", &meant, &kernels, &kernels)
    }

    fn check_table<T>(
        &self,
        table: &'static str,
        what: &'static str,
        given: &BTreeMap<Spanned<String>, T>,
        valid: &BTreeSet<&str>,
        shown: &BTreeSet<&str>,
    ) -> Result<(), InputError> {
        let mut names = given.keys();
        let Some(name) = names.find(|name| !valid.contains(name.get_ref().as_str())) else {
            return Ok(());
        };
        let left = shown.iter().filter(|name| !given.contains_key(**name));
        let problem = FileProblem::NotInJob {
            table,
            what,
            name: name.get_ref().clone(),
            known: left.map(ToString::to_string).collect(),
        };
        let line = line_of(self.costs_text, name.span().start);
        Err(InputError::new(self.costs_file, line, problem))
    }

    fn kernel(
        &self,
        task: &job::ScriptTask,
        inputs: &mut Vec<usize>,
        files: &mut Vec<WorkflowFile>,
        by_path: &mut BTreeMap<String, usize>,
    ) -> Result<Kernel, InputError> {
        let mut stages = Vec::with_capacity(task.stages.len());
        for stage in &task.stages {
            let kernel = self.single(task, &stage.kernel, inputs, files, by_path)?;
            let args = stage.args.clone();
            stages.push(Stage { kernel, args });
        }
        if stages.is_empty() {
            return self.single(task, &task.kernel, inputs, files, by_path);
        }
        let text = task.kernel.name.clone();
        Ok(Kernel::Pipeline(Box::new(Pipeline { text, stages })))
    }

    /// Adds a task of one kernel. The kernel's code counts as a file if the script lists it, the job writes it, or it has a size.
    fn single(
        &self,
        task: &job::ScriptTask,
        kernel: &job::KernelName,
        inputs: &mut Vec<usize>,
        files: &mut Vec<WorkflowFile>,
        by_path: &mut BTreeMap<String, usize>,
    ) -> Result<Kernel, InputError> {
        let name = kernel.name.clone();
        let kind = kernel.kind;
        let code = kernel.file.as_ref().filter(|code| {
            let made = matches!(code.source, InputOrigin::Task(..));
            kind.is_some() || made || self.given(&code.path, &code.name).is_some()
        });
        let Some(code) = code else {
            return Ok(if kind == Some(KernelKind::Builtin) {
                Kernel::Builtin(name)
            } else {
                Kernel::Program(name)
            });
        };
        let size = || self.size_of_input(task, code);
        let index = file(files, by_path, &code.path, size)?;
        if !inputs.contains(&index) {
            inputs.push(index);
        }
        let input = code.path.clone();
        let is = |of, ending| kind == Some(of) || (kind.is_none() && name.ends_with(ending));
        Ok(if is(KernelKind::Native, ".so") {
            Kernel::Native { input }
        } else if is(KernelKind::Wasm, ".wasm") {
            Kernel::Wasm { input }
        } else {
            Kernel::Stored { input }
        })
    }

    /// Returns the size that the costs give for a file, by its full path or by its name relative to the working directory.
    fn given(&self, path: &str, name: &str) -> Option<&Spanned<Amount>> {
        let files = &self.costs.files;
        files.get(path).or_else(|| files.get(name))
    }

    /// Returns a cost of a task, or else the cost of its kernel.
    fn cost<'a, T>(
        &'a self,
        task: &job::ScriptTask,
        get: impl Fn(&'a RunCost) -> Option<T>,
    ) -> Option<T> {
        let own = self.costs.tasks.get(task.name.as_str());
        let kernel = self.costs.kernels.get(task.kernel.name.as_str());
        own.into_iter().chain(kernel).find_map(get)
    }

    fn size_of_input(
        &self,
        task: &job::ScriptTask,
        input: &job::ScriptInput,
    ) -> Result<u64, InputError> {
        match self.given(&input.path, &input.name) {
            Some(size) => Ok(whole(self.amount(
                "a file's size",
                size,
                QuantityKind::Size,
            )?)),
            None => Err(self.no_size(task, &input.path, input.at)),
        }
    }

    fn size_of_output(
        &self,
        task: &job::ScriptTask,
        output: &job::ScriptOutput,
        data_bytes: u64,
    ) -> Result<u64, InputError> {
        if let Some(size) = self.given(&output.path, &output.name) {
            return Ok(whole(self.amount(
                "a file's size",
                size,
                QuantityKind::Size,
            )?));
        }
        if let Some(size) = self.cost(task, |cost| cost.output.as_ref()) {
            return Ok(whole(self.amount("output", size, QuantityKind::Size)?));
        }
        let Some(ratio) = self.cost(task, |cost| cost.ratio.as_ref()) else {
            return Err(self.no_size(task, &output.path, output.at));
        };
        let ratio = self.amount("ratio", ratio, QuantityKind::Factor)?;
        Ok(whole(ratio * float(data_bytes)) / task.outputs.len().max(1) as u64)
    }

    fn compute(&self, task: &job::ScriptTask, data_bytes: u64) -> Result<Span, InputError> {
        let time = self.cost(task, |cost| cost.time.as_ref());
        let rate = self.cost(task, |cost| cost.rate.as_ref());
        if time.is_none() && rate.is_none() {
            let problem = FileProblem::NoRunTime(task.name.clone());
            return Err(self.script_error(task.at, problem));
        }
        let mut ns = 0.0;
        if let Some(time) = time {
            ns += self.amount("time", time, QuantityKind::Duration)?;
        }
        if let Some(rate) = rate {
            let per_s = self.amount("rate", rate, QuantityKind::Bandwidth)?;
            if per_s <= 0.0 {
                let what = "rate".to_owned();
                return Err(self.costs_error(rate, FileProblem::Zero { what }));
            }
            ns += float(data_bytes) / per_s * 1e9;
        }
        Ok(Span(whole(ns)))
    }

    fn amount(
        &self,
        what: &str,
        amount: &Spanned<Amount>,
        kind: QuantityKind,
    ) -> Result<f64, InputError> {
        let text = match amount.get_ref() {
            Amount::Integer(number) => number.to_string(),
            Amount::Float(number) => number.to_string(),
            Amount::Text(text) => text.clone(),
        };
        quantity::read(what, &text, kind).map_err(|problem| self.costs_error(amount, problem))
    }

    fn no_size(&self, task: &job::ScriptTask, path: &str, at: Position) -> InputError {
        let (task, file) = (task.name.clone(), path.to_owned());
        self.script_error(at, FileProblem::NoSize { task, file })
    }

    fn script_error(&self, at: Position, problem: FileProblem) -> InputError {
        InputError::new(&self.job.file, at.line, problem)
    }

    fn costs_error(&self, at: &Spanned<Amount>, problem: FileProblem) -> InputError {
        let line = line_of(self.costs_text, at.span().start);
        InputError::new(self.costs_file, line, problem)
    }
}

/// Returns the index of a file, and adds the file with `size` if the file is new.
fn file(
    files: &mut Vec<WorkflowFile>,
    by_path: &mut BTreeMap<String, usize>,
    path: &str,
    size: impl FnOnce() -> Result<u64, InputError>,
) -> Result<usize, InputError> {
    if let Some(&known) = by_path.get(path) {
        return Ok(known);
    }
    files.push(WorkflowFile {
        name: path.to_owned(),
        size: size()?,
        maker: None,
        home: None,
        striped: None,
    });
    by_path.insert(path.to_owned(), files.len() - 1);
    Ok(files.len() - 1)
}

fn bytes(files: &[WorkflowFile], given: &[job::ScriptInput], inputs: &[usize]) -> u64 {
    let read = given.iter().zip(inputs);
    let sizes = read.map(|(given, &input)| given.selection.bytes_of(files[input].size));
    sizes.fold(0, u64::saturating_add)
}

#[expect(clippy::cast_precision_loss, reason = "sizes up to 2^53 are exact")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = r#"name = "two"; workdir = "/w"; tasks = (
  { name = "a"; kernel = "cut.sh"; input = [ "raw" ]; output = [ "x", "y" ]; },
  { name = "b"; kernel = "sum"; input = [ "x", "/w/y" ]; output = [ "total" ]; }
);"#;
    const COSTS: &str = r#"[files]
raw = "10 MB"
"/w/cut.sh" = 500
[kernels]
"cut.sh" = { rate = "5 MB/s", ratio = 0.5 }
sum = { time = "1 h", output = 8 }
[tasks.b]
time = 0.25
"#;

    fn read(script: &str, costs: &str) -> Result<Workflow, InputError> {
        parse("j.conf", script, "c.toml", costs)
    }

    #[test]
    fn job_costs_prefer_tasks_over_kernels_and_derive_sizes() {
        let workflow = read(SCRIPT, COSTS).unwrap();
        let [a, b] = &workflow.tasks[..] else {
            panic!("two tasks")
        };
        assert_eq!(a.compute, Span::from_secs(2));
        assert_eq!(b.compute, Span::from_millis(250));
        let sizes: Vec<(&str, u64)> = workflow
            .files
            .iter()
            .map(|file| (file.name.as_str(), file.size))
            .collect();
        let expected = [
            ("/w/raw", 10_000_000),
            ("/w/cut.sh", 500),
            ("/w/x", 2_500_000),
            ("/w/y", 2_500_000),
            ("/w/total", 8),
        ];
        assert_eq!(sizes, expected);
        let input = "/w/cut.sh".to_owned();
        assert_eq!(a.kernel, Kernel::Stored { input });
        assert_eq!(b.kernel, Kernel::Program("sum".to_owned()));
    }

    #[test]
    fn job_costs_errors_name_file_and_line() {
        for (from, to, expected) in [
            (
                "raw = \"10 MB\"\n",
                "",
                "j.conf:2: the size of file `/w/raw` of task `a`",
            ),
            (
                ", ratio = 0.5",
                "",
                "j.conf:2: the size of file `/w/x` of task `a`",
            ),
            (
                "rate = \"5 MB/s\", ",
                "",
                "j.conf:2: the run time of task `a` is not known",
            ),
            ("5 MB/s", "5 MB", "c.toml:5: rate can't be measured in `MB`"),
            ("5 MB/s", "0", "c.toml:5: rate must be more than 0"),
            (
                "10 MB",
                "-10 MB",
                "c.toml:2: a file's size can't be negative",
            ),
            (
                "time = 0.25",
                "times = 1",
                "c.toml:8: unknown field `times`",
            ),
            (
                "[tasks.b]",
                "[tasks.bb]",
                "c.toml:7: [tasks] has `bb`, and the job has no such task; did you mean `b`?",
            ),
            (
                "raw = ",
                "rav = ",
                "c.toml:2: [files] has `rav`, and the job has no such file; did you mean `raw`?",
            ),
            (
                "sum = ",
                "sums = ",
                "c.toml:6: [kernels] has `sums`, and the job has no such kernel; did you mean `sum`?",
            ),
            (
                "[kernels]",
                "[kernel]",
                "c.toml:4: unknown field `kernel`, expected one of `files`, `kernels`, `tasks`; did you",
            ),
            ("[files]", "[files", "c.toml:1: "),
        ] {
            let costs = COSTS.replacen(from, to, 1);
            assert_ne!(costs, COSTS, "nothing was replaced");
            let error = read(SCRIPT, &costs).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}\nexpected {expected}");
        }
        let others = COSTS.replace("[tasks.b]", "wordcount = { time = 1 }\n[tasks.b]");
        assert_eq!(read(SCRIPT, &others), read(SCRIPT, COSTS));
        let error = read("name = 1;", COSTS).unwrap_err().to_string();
        assert!(error.contains("j.conf:1:"), "{error}");
    }
}
