//! Expansion of rules: generates a job script from a rule and files by replacing `${…}`.

use super::{Rule, RuleProblem, VARIABLES, hook};
use crate::script::{Position, ScriptValue, Setting, SettingGroup, ValueData};
use std::collections::{BTreeMap, BTreeSet};

/// Reason for which a file can't be an input of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// The file does not match: the rule has changed since the file was found.
    #[error("{0} does not match the rule any more")]
    NoMatch(String),
    /// Job scripts would interpret the name as a pattern.
    #[error("{0} can't be the input of a task: its name has a '*'; rename it")]
    Star(String),
}

/// Values of variables in one task, for each of its files.
#[derive(Clone, Debug)]
pub(super) struct FilledTask {
    task: String,
    /// Node on which the task must run.
    node: Option<u32>,
    files: Vec<Vec<(String, String)>>,
}

impl FilledTask {
    /// Returns example values, such as those of a file.
    pub(super) fn sample(rule: &Rule) -> Self {
        let groups = rule.pattern.groups();
        let mut values: Vec<_> = groups.map(|name| (name, "1".to_owned())).collect();
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
            if path.contains('*') {
                return Err(FillError::Star((*path).to_owned()));
            }
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
            data: ValueData::Text("${path}".into()),
            at,
        };
        first("input", ValueData::Array(vec![path]));
    }
    if let Some(node) = fill.node {
        first("node", ValueData::Integer(node.into()));
    }
    first("name", ValueData::Text(fill.task.clone()));
    for setting in group.settings.iter_mut().skip(1) {
        if setting.name != "kernel" {
            replace(&mut setting.value, &fill.files);
        } else if let (true, ValueData::Text(kernel)) = (is_hook, &mut setting.value.data) {
            let of = |values: &'_ Vec<(String, String)>| -> Option<String> {
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

fn replace(value: &mut ScriptValue, files: &[Vec<(String, String)>]) {
    match &mut value.data {
        ValueData::Text(text) => {
            if let Some(values) = files.first() {
                *text = filled(text, values);
            }
        }
        ValueData::Array(values) | ValueData::List(values) => {
            let mut all = Vec::with_capacity(values.len());
            for value in std::mem::take(values) {
                let per_file = mentions(&value).any(|name| name != "batch");
                let count = if per_file { files.len() } else { 1 };
                let mut seen = BTreeSet::new();
                for values in files.iter().take(count) {
                    let mut copy = value.clone();
                    replace(&mut copy, std::slice::from_ref(values));
                    // A group with the same text for several files is listed once.
                    if count == 1 || seen.insert(copy.to_string()) {
                        all.push(copy);
                    }
                }
            }
            *values = all;
        }
        ValueData::Group(group) => {
            let settings = group.settings.iter_mut();
            settings.for_each(|setting| replace(&mut setting.value, files));
        }
        ValueData::Boolean(_) | ValueData::Integer(_) | ValueData::Float(_) => {}
    }
}

/// Replaces `${…}` by values.
fn filled(text: &str, values: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, name, after)) = next(rest) {
        out.push_str(before);
        let value = values.iter().find(|(known, _)| known == name);
        out.push_str(value.map_or("", |(_, value)| value.as_str()));
        rest = after;
    }
    out + rest
}

/// Returns the text before the next `${…}`, its name, and the text after it.
pub(super) fn next(text: &str) -> Option<(&str, &str, &str)> {
    let (before, from) = text.split_once("${")?;
    let (name, after) = from.split_once('}')?;
    Some((before, name, after))
}

/// Returns the names of variables in a value.
fn mentions(value: &ScriptValue) -> Box<dyn Iterator<Item = &str> + '_> {
    match &value.data {
        ValueData::Text(text) => {
            let mut rest = text.as_str();
            Box::new(std::iter::from_fn(move || {
                let (_, name, after) = next(rest)?;
                rest = after;
                Some(name)
            }))
        }
        ValueData::Array(values) | ValueData::List(values) => {
            Box::new(values.iter().flat_map(mentions))
        }
        ValueData::Group(group) => {
            let settings = group.settings.iter();
            Box::new(settings.flat_map(|setting| mentions(&setting.value)))
        }
        ValueData::Boolean(_) | ValueData::Integer(_) | ValueData::Float(_) => {
            Box::new(std::iter::empty())
        }
    }
}

/// Returns the problems with the variables of a rule.
pub(super) fn check(rule: &Rule) -> Vec<(Position, RuleProblem)> {
    let known: Vec<String> = VARIABLES
        .iter()
        .map(|name| (*name).to_owned())
        .chain(rule.pattern.groups())
        .collect();
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
        for name in mentions(&setting.value) {
            let (name, place) = (name.to_owned(), setting.name.clone());
            if let Some(why) = forbidden {
                found.push((setting.value.at, RuleProblem::Place { name, place, why }));
            } else if !known.contains(&name) {
                let known = known.join(", ");
                found.push((setting.value.at, RuleProblem::Variable { name, known }));
            } else if rule.batch.is_some() && name != "batch" && !in_array(&setting.value) {
                let why = "with \"batch\" there are several files: only items of the arrays \"input\" and \"args\" are repeated for each";
                found.push((setting.value.at, RuleProblem::Place { name, place, why }));
            } else if rule.batch.is_some() && name != "batch" && setting.name == "output" {
                let why = "with \"batch\" several files make one output; use ${batch}, the unique number of the batch";
                found.push((setting.value.at, RuleProblem::Place { name, place, why }));
            }
        }
    }
    found
}

fn in_array(value: &ScriptValue) -> bool {
    matches!(value.data, ValueData::Array(_) | ValueData::List(_))
}
