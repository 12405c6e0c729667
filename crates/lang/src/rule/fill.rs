//! Expansion of rules: generates a job script from a rule and files by replacing its variables.
//!
//! The values are literal in the script. If the job replaces references in the task, the notation of the script escapes the values; the
//! names of files are escaped in inputs, which are patterns.

use super::{Rule, RuleProblem, VARIABLES, hook};
use crate::job::INSTANCE_NUMBERS;
use crate::script::{Position, ScriptValue, Setting, SettingGroup, ValueData};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::glob;
use tidemill_model::similar_names::nearest;
use tidemill_model::substitute::{self, Template, reference};

/// Reason for which a file can't be an input of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// The file does not match: the rule has changed since the file was found.
    #[error("{0} does not match the rule any more")]
    NoMatch(String),
}

/// Values of variables for one file.
type FileValues = Vec<(String, String)>;

/// Values of variables in one task, for each of its files.
#[derive(Clone, Debug)]
pub(super) struct FilledTask {
    task: String,
    /// Node on which the task must run.
    node: Option<u32>,
    files: Vec<FileValues>,
}

impl FilledTask {
    /// Returns example values, such as those of a file.
    pub(super) fn sample(rule: &Rule) -> Self {
        let names = rule.pattern.names();
        let mut values: Vec<_> = names
            .map(|name| (name.to_owned(), "1".to_owned()))
            .collect();
        let workdir = rule.workdir.trim_end_matches('/');
        values.extend(of_path(workdir, "sample/file.dat"));
        values.push(("batch".into(), "1".into()));
        Self {
            task: rule.name.clone(),
            node: None,
            files: vec![values],
        }
    }

    fn of(rule: &Rule, task: &str, (version, paths): (u64, &[&str])) -> Result<Self, FillError> {
        let workdir = rule.workdir.trim_end_matches('/');
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let below = rule.below(path);
            let found = below.and_then(|below| Some((below, rule.pattern.captures(below)?)));
            let (below, mut values) =
                found.ok_or_else(|| FillError::NoMatch((*path).to_owned()))?;
            values.extend(of_path(workdir, below));
            values.push(("batch".into(), version.to_string()));
            files.push(values);
        }
        Ok(Self {
            task: task.to_owned(),
            node: None,
            files,
        })
    }
}

/// Returns the values that every path has.
fn of_path(workdir: &str, below: &str) -> [(String, String); 5] {
    let (dir, name) = below.rsplit_once('/').unwrap_or(("", below));
    let stem = match name.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => name,
    };
    let dir = match dir {
        "" if workdir.is_empty() => "/".to_owned(),
        "" => workdir.to_owned(),
        dir => format!("{workdir}/{dir}"),
    };
    let [path, file, name_is, stem_is, dir_is, _] = VARIABLES;
    [
        (path, format!("{workdir}/{below}")),
        (file, below.to_owned()),
        (name_is, name.to_owned()),
        (stem_is, stem.to_owned()),
        (dir_is, dir),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

impl Rule {
    /// Returns the script of a job. Each task has a name with a number that no other task of the rule has, and its files, given by their
    /// full paths. Without `batch` each task has one file.
    ///
    /// # Errors
    /// If a file can't be an input of a task.
    pub fn script(
        &self,
        revision: u64,
        tasks: &[(String, u64, Vec<&str>)],
    ) -> Result<String, FillError> {
        self.script_on(revision, tasks, &BTreeMap::new())
    }

    /// Returns the script like [`Rule::script`], with some of the tasks, given by their numbers, bound to a node.
    ///
    /// # Errors
    /// As [`Rule::script`].
    pub fn script_on(
        &self,
        revision: u64,
        tasks: &[(String, u64, Vec<&str>)],
        nodes: &BTreeMap<u64, u32>,
    ) -> Result<String, FillError> {
        let fill = |(task, version, paths): &(String, u64, Vec<&str>)| {
            let fill = FilledTask::of(self, task, (*version, paths))?;
            let node = nodes.get(version).copied();
            Ok(FilledTask { node, ..fill })
        };
        let fills = tasks.iter().map(fill).collect::<Result<Vec<_>, _>>()?;
        let mut job = self.job_group(&fills);
        let named = job
            .settings
            .iter_mut()
            .find(|setting| setting.name == "name");
        if let Some(named) = named {
            named.value.data = ValueData::Text(format!("{}@{revision}", self.name));
        }
        Ok(job.to_string())
    }

    /// Returns the outputs of a task in the notation of a script.
    ///
    /// # Errors
    /// If a file can't be an input of the task.
    pub fn outputs(&self, version: u64, paths: &[&str]) -> Result<Vec<String>, FillError> {
        let fill = FilledTask::of(self, "", (version, paths))?;
        let group = task(&self.task, &fill, false);
        let outputs = group.get("output").map(|setting| &setting.value.data);
        let Some(ValueData::Array(outputs) | ValueData::List(outputs)) = outputs else {
            return Ok(Vec::new());
        };
        let texts = outputs.iter().filter_map(|value| match &value.data {
            ValueData::Text(text) => Some(text.clone()),
            _ => None,
        });
        Ok(texts.collect())
    }

    /// Returns the script of the job that reduces the results of a batch to one, if the rule is a hook with a reduce. `parts` are files,
    /// given by their full paths.
    #[must_use]
    pub fn reduce_script(&self, revision: u64, batch: u64, parts: &[String]) -> Option<String> {
        Some(self.reduce_group(revision, batch, parts)?.to_string())
    }

    /// Returns the name of the task of that job.
    #[must_use]
    pub fn reduce_name(&self, revision: u64, batch: u64) -> String {
        format!("{}@{revision}-batch-{batch}", self.name)
    }

    pub(super) fn reduce_group(
        &self,
        revision: u64,
        batch: u64,
        parts: &[String],
    ) -> Option<SettingGroup> {
        let name = self.reduce_name(revision, batch);
        let hook = self.hook.as_ref()?;
        let task = hook.reducing((name, &self.workdir), batch, parts)?;
        let mut job = self.job_of(vec![task]);
        let mut settings = job.settings.iter_mut();
        if let Some(named) = settings.find(|setting| setting.name == "name") {
            named.value.data = ValueData::Text(format!("{}@{revision}", self.name));
        }
        Some(job)
    }

    pub(super) fn job_group(&self, fills: &[FilledTask]) -> SettingGroup {
        let is_hook = self.hook.is_some();
        let tasks = fills.iter().map(|fill| task(&self.task, fill, is_hook));
        self.job_of(tasks.collect())
    }

    /// Returns a job with the rule's settings.
    fn job_of(&self, tasks: Vec<SettingGroup>) -> SettingGroup {
        let mut job = self.job.clone();
        let at = Position::START;
        let mut set = |name: &str, data: ValueData| {
            let value = ScriptValue { data, at };
            let name = name.to_owned();
            job.settings.push(Setting { name, at, value });
        };
        if self.job.get("replace").is_none() {
            // The next version of a file has the next version of its results.
            set("replace", ValueData::Boolean(true));
        }
        let tasks = tasks.into_iter().map(|task| ScriptValue {
            data: ValueData::Group(task),
            at: self.task.settings.first().map_or(at, |setting| setting.at),
        });
        set("tasks", ValueData::List(tasks.collect()));
        job
    }
}

/// Returns the task of a template. The kernel's arguments of a hook's task may contain the names of its inputs.
fn task(template: &SettingGroup, fill: &FilledTask, is_hook: bool) -> SettingGroup {
    let mut group = template.clone();
    let at = Position::START;
    let mut first = |name: &str, data: ValueData| {
        let value = ScriptValue { data, at };
        let name = name.to_owned();
        group.settings.insert(0, Setting { name, at, value });
    };
    if template.get("input").is_none() {
        let path = ScriptValue {
            data: ValueData::Text(reference("path")),
            at,
        };
        first("input", ValueData::Array(vec![path]));
    }
    if let Some(node) = fill.node {
        first("node", ValueData::Integer(node.into()));
    }
    first("name", ValueData::Text(fill.task.clone()));
    let parsed = template.get("per").is_some();
    for setting in group.settings.iter_mut().skip(1) {
        if setting.name != "kernel" {
            let notation = match setting.name.as_str() {
                _ if parsed => Notation::References,
                "args" => Notation::Arguments,
                _ => Notation::Plain,
            };
            let is_pattern = setting.name == "input";
            replace(&mut setting.value, &fill.files, (notation, is_pattern));
        } else if let (true, ValueData::Text(kernel)) = (is_hook, &mut setting.value.data) {
            let of = |values: &'_ FileValues| -> Option<String> {
                let found = values.iter().find(|(name, _)| name == "file");
                found.map(|(_, file)| file.clone())
            };
            let names: Vec<String> = fill.files.iter().filter_map(of).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            *kernel = hook::with_inputs(kernel, &names);
        }
    }
    group
}

/// Notation in which a job reads a text.
#[derive(Clone, Copy, Debug)]
enum Notation {
    /// The job replaces references in the text.
    References,
    /// Only a reference to all inputs is replaced.
    Arguments,
    /// The job reads the text as it is.
    Plain,
}

/// Replaces variables in a value. In a pattern, values match only themselves.
fn replace(
    value: &mut ScriptValue,
    files: &[FileValues],
    (notation, is_pattern): (Notation, bool),
) {
    match &mut value.data {
        ValueData::Text(text) => {
            let Some(values) = files.first() else { return };
            let known = |name: &str| {
                let (_, value) = values.iter().find(|(known, _)| known == name)?;
                Some(match is_pattern {
                    true => Cow::Owned(glob::escaped(value)),
                    false => Cow::Borrowed(value.as_str()),
                })
            };
            let filled = Template::parse(text).fill(known);
            *text = match notation {
                Notation::References => filled.written(),
                Notation::Arguments => filled.written_argument(),
                Notation::Plain => filled.to_string(),
            };
        }
        ValueData::Array(values) | ValueData::List(values) => {
            let mut all = Vec::with_capacity(values.len());
            for value in std::mem::take(values) {
                let own = |name: &String| {
                    let mut known = files.iter().flatten();
                    name != "batch" && known.any(|(known, _)| known == name)
                };
                let count = match mentions(&value).iter().any(own) {
                    true => files.len(),
                    false => 1,
                };
                let mut seen = BTreeSet::new();
                for values in files.iter().take(count) {
                    let mut copy = value.clone();
                    let values = std::slice::from_ref(values);
                    replace(&mut copy, values, (notation, is_pattern));
                    // A group with the same text for several files is listed once.
                    if count == 1 || seen.insert(copy.to_string()) {
                        all.push(copy);
                    }
                }
            }
            *values = all;
        }
        ValueData::Group(group) => {
            for setting in &mut group.settings {
                let is_pattern = is_pattern && setting.name == "file";
                replace(&mut setting.value, files, (notation, is_pattern));
            }
        }
        ValueData::Template(_)
        | ValueData::Boolean(_)
        | ValueData::Integer(_)
        | ValueData::Float(_) => {}
    }
}

/// Returns the names of variables in a value.
fn mentions(value: &ScriptValue) -> Vec<String> {
    match &value.data {
        ValueData::Text(text) => {
            let template = Template::parse(text);
            template.references().map(str::to_owned).collect()
        }
        ValueData::Array(values) | ValueData::List(values) => {
            values.iter().flat_map(mentions).collect()
        }
        ValueData::Group(group) => {
            let settings = group.settings.iter();
            let all = settings.flat_map(|setting| mentions(&setting.value));
            all.collect()
        }
        ValueData::Template(_)
        | ValueData::Boolean(_)
        | ValueData::Integer(_)
        | ValueData::Float(_) => Vec::new(),
    }
}

/// Returns the problems with the variables of a rule.
pub(super) fn check(rule: &Rule) -> Vec<(Position, RuleProblem)> {
    let names = VARIABLES.into_iter().chain(rule.pattern.names());
    let own: Vec<&str> = names.collect();
    let mut known = own.clone();
    if rule.task.get("per").is_some() {
        known.extend(INSTANCE_NUMBERS);
    }
    let mut found = Vec::new();
    let of_job = rule.job.settings.iter().map(|setting| {
        let why = "only the task is made for each file";
        (setting, Some(why))
    });
    let of_task = rule.task.settings.iter().map(|setting| {
        let why = "a kernel is the same for all files, and its text is split into words";
        (setting, (setting.name == "kernel").then_some(why))
    });
    for (setting, forbidden) in of_job.chain(of_task) {
        let (at, place) = (setting.value.at, &setting.name);
        for name in mentions(&setting.value) {
            let is_own = own.contains(&name.as_str());
            let why = match forbidden {
                // No variable is replaced here, so other names in braces are text.
                Some(_) if !is_own => continue,
                Some(why) => why,
                None if !known.contains(&name.as_str()) => {
                    if !is_inputs(setting, &name) {
                        found.push((at, unknown(&name, place, &known)));
                    }
                    continue;
                }
                None if rule.batch.is_none() || name == "batch" || !is_own => continue,
                None if !in_array(&setting.value) => {
                    "with \"batch\" there are several files: only items of the arrays \"input\" and \"args\" are repeated for each"
                }
                None if place == "output" => {
                    "with \"batch\" several files make one output; use {batch}, the unique number of the batch"
                }
                None => continue,
            };
            let place = place.clone();
            found.push((at, RuleProblem::Place { name, place, why }));
        }
    }
    found
}

/// Returns whether the job replaces the reference to all inputs in a setting.
fn is_inputs(setting: &Setting, name: &str) -> bool {
    let (ValueData::Array(values) | ValueData::List(values)) = &setting.value.data else {
        return name == substitute::INPUTS && setting.name == "reduce";
    };
    let is_whole = |value: &ScriptValue| match &value.data {
        ValueData::Text(text) => Template::parse(text).is_inputs(),
        _ => false,
    };
    name == substitute::INPUTS && setting.name == "args" && values.iter().any(is_whole)
}

fn unknown(name: &str, place: &str, known: &[&str]) -> RuleProblem {
    let all: Vec<String> = known.iter().map(|name| reference(name)).collect();
    RuleProblem::Variable {
        name: name.to_owned(),
        place: place.to_owned(),
        nearest: nearest(name, known).map(|name| reference(&name)),
        known: all.join(", "),
    }
}

fn in_array(value: &ScriptValue) -> bool {
    matches!(value.data, ValueData::Array(_) | ValueData::List(_))
}
