//! Tasks and inputs that stand for several: replaces `foreach`, wildcards in the last part of an input, and a directory as an input by their
//! values at submission, before anything else is read. This module changes only the parsed job and lists files through [`DirectoryLookup`].
//!
//! The texts of a task with `foreach` or `per` become templates first. So every text that is not a template is literal from then on, whether
//! it was written, filled in or found: no later step looks for references in it.
//!
//! A pattern matches the files that [`DirectoryLookup`] lists and the outputs of earlier tasks of the script.

use super::MAX_TASKS;
use super::error::{Errors, JobProblem};
use super::instances::{ExternalInput, MapperResult, Mapping};
use super::mapped::DirectoryMap;
use super::mapper::MapperProgram;
use super::path::{self, NamedFile};
use super::read::within;
use crate::script::{Position, ScriptValue, SettingGroup, ValueData};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tidemill_model::directory;
use tidemill_model::glob::{self, Pattern};
use tidemill_model::substitute::{self, Template};

/// Maximum size of the text in the tasks of a job with patterns after replacement, in bytes: twice the longest script.
const MAX_EXPANDED_BYTES: usize = 2 * crate::script::MAX_SCRIPT_BYTES;
/// Maximum number of names that are compared with the patterns of a job.
const MAX_COMPARED: usize = 20_000_000;

/// Directories of the cluster as a job's owner may list them.
pub trait DirectoryLookup {
    /// Returns the names in a directory, given by its full path. Returns an empty list if the directory can't be listed.
    fn list(&self, directory: &str) -> Vec<ListedName>;
    /// Returns the sealed version and the layout of a file. Returns `None` unless the job's owner may read the file and nobody writes it.
    fn made_of(&self, path: &str) -> Option<ExternalInput>;
    /// Returns the selections that a mapper finds in a file: one for each part, or for each chunk.
    ///
    /// # Errors
    /// The reason for which the mapper finds nothing, for the job's owner.
    fn mapped(
        &self,
        path: &str,
        made: &ExternalInput,
        mapping: &Mapping<'_>,
    ) -> Result<MapperResult, String>;
    /// Returns the files whose bytes a mapper finds in a directory, for each part or for each chunk. Returns `None` if the path is no directory.
    ///
    /// # Errors
    /// The reason for which the mapper finds nothing, for the job's owner.
    fn mapped_directory(
        &self,
        path: &str,
        mapping: &Mapping<'_>,
    ) -> Result<Option<DirectoryMap>, String>;
    /// Returns the same as [`mapped`](Self::mapped), as reported by a program of the job's owner.
    ///
    /// # Errors
    /// The reason for which the program reports nothing, for the job's owner.
    fn asked(
        &self,
        program: &MapperProgram,
        _made: &ExternalInput,
        _per_part: bool,
    ) -> Result<MapperResult, String> {
        Err(format!(
            "\"{}\" is a program, and this command runs no program for a map",
            program.words
        ))
    }
    /// Returns whether a built-in kernel can merge its results of pieces of its input.
    fn folds(&self, kernel: &str, args: &[String]) -> bool;
    /// Returns whether the job's owner has a kernel of this name, which takes precedence over a built-in one.
    fn has_own(&self, _kernel: &str) -> bool {
        false
    }
}

/// Name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedName {
    /// The name; bytes that are not UTF-8 are replaced by U+FFFD.
    pub name: String,
    /// Whether the name belongs to a directory.
    pub is_directory: bool,
    /// Whether the name is UTF-8.
    pub is_text: bool,
}

/// A cluster without files.
#[derive(Clone, Copy, Debug)]
pub struct NoFiles;

impl DirectoryLookup for NoFiles {
    fn list(&self, _: &str) -> Vec<ListedName> {
        Vec::new()
    }

    fn made_of(&self, _: &str) -> Option<ExternalInput> {
        None
    }

    fn mapped(&self, _: &str, _: &ExternalInput, _: &Mapping<'_>) -> Result<MapperResult, String> {
        Err("this command has no files".to_owned())
    }

    fn mapped_directory(&self, _: &str, _: &Mapping<'_>) -> Result<Option<DirectoryMap>, String> {
        Ok(None)
    }

    fn folds(&self, _: &str, _: &[String]) -> bool {
        false
    }
}

/// Replaces all patterns in a script.
pub(super) fn expand(group: &mut SettingGroup, files: &dyn DirectoryLookup, errors: &mut Errors) {
    let workdir = group
        .get("workdir")
        .and_then(|setting| text(&setting.value));
    // A fault in the setting is reported when the setting is read.
    let Some(workdir) = workdir.and_then(|given| path::workdir(given).ok()) else {
        return;
    };
    let mut settings = group.settings.iter_mut();
    let tasks = settings.find(|setting| setting.name == "tasks");
    let Some(ValueData::List(tasks)) = tasks.map(|setting| &mut setting.value.data) else {
        return;
    };
    if !tasks.iter().any(has_pattern) {
        return;
    }
    let mut expander = Expander {
        workdir,
        files,
        listed: BTreeMap::new(),
        made: BTreeSet::new(),
        made_directories: BTreeSet::new(),
        joined: BTreeMap::new(),
        bytes_left: MAX_EXPANDED_BYTES,
        compares_left: MAX_COMPARED,
    };
    let mut expanded = Vec::with_capacity(tasks.len());
    for value in std::mem::take(tasks) {
        let name = group_of(&value).and_then(|task| text(&task.get("name")?.value));
        let name = name.map(str::to_owned);
        if let Err(PatternFault { at, problem }) = expander.task(value, &mut expanded) {
            let is_last = matches!(problem, JobProblem::TooMuch | JobProblem::TooMany { .. });
            errors.add(at, name.as_deref(), problem);
            if is_last {
                break;
            }
        }
    }
    *tasks = expanded;
}

/// Fault in a pattern, and its position.
pub(super) struct PatternFault {
    at: Position,
    problem: JobProblem,
}

pub(super) fn wrong(at: Position, problem: JobProblem) -> PatternFault {
    PatternFault { at, problem }
}

pub(super) fn text(value: &ScriptValue) -> Option<&str> {
    match &value.data {
        ValueData::Text(text) => Some(text),
        _ => None,
    }
}

pub(super) fn group_of(value: &ScriptValue) -> Option<&SettingGroup> {
    match &value.data {
        ValueData::Group(group) => Some(group),
        _ => None,
    }
}

/// Returns a text, or a template with references as they are written.
pub(super) fn shown(value: &ScriptValue) -> Option<Cow<'_, str>> {
    match &value.data {
        ValueData::Text(text) => Some(Cow::Borrowed(text)),
        ValueData::Template(template) => Some(Cow::Owned(template.to_string())),
        _ => None,
    }
}

/// Returns a template as a value: text, if it has no references.
pub(super) fn value_of(template: Template) -> ValueData {
    match template.as_literal() {
        Some(text) => ValueData::Text(text.to_owned()),
        None => ValueData::Template(template),
    }
}

/// Changes each text and template of a value.
fn each_text(value: &mut ScriptValue, change: &mut impl FnMut(&mut ValueData)) {
    match &mut value.data {
        ValueData::Text(_) | ValueData::Template(_) => change(&mut value.data),
        ValueData::Array(values) | ValueData::List(values) => {
            values.iter_mut().for_each(|value| each_text(value, change));
        }
        ValueData::Group(group) => {
            let settings = group.settings.iter_mut();
            settings.for_each(|setting| each_text(&mut setting.value, change));
        }
        ValueData::Boolean(_) | ValueData::Integer(_) | ValueData::Float(_) => {}
    }
}

/// Parses the references of a task.
fn parse_references(task: &mut SettingGroup) {
    for setting in &mut task.settings {
        each_text(&mut setting.value, &mut |data| {
            if let ValueData::Text(text) = data {
                *data = value_of(Template::parse(text));
            }
        });
    }
}

/// Replaces references by values.
pub(super) fn fill_value<'v>(
    value: &mut ScriptValue,
    known: &impl Fn(&str) -> Option<Cow<'v, str>>,
) {
    each_text(value, &mut |data| {
        if let ValueData::Template(template) = data {
            *data = value_of(template.fill(known));
        }
    });
}

/// Returns the values of an array or list setting.
pub(super) fn values<'a>(group: &'a SettingGroup, name: &str) -> &'a [ScriptValue] {
    match group.get(name).map(|setting| &setting.value.data) {
        Some(ValueData::Array(values) | ValueData::List(values)) => values,
        _ => &[],
    }
}

/// Returns the values of an array or list setting for changes; see [`values`].
fn values_mut<'a>(group: &'a mut SettingGroup, name: &str) -> Option<&'a mut Vec<ScriptValue>> {
    let mut settings = group.settings.iter_mut();
    let setting = settings.find(|setting| setting.name == name)?;
    match &mut setting.value.data {
        ValueData::Array(values) | ValueData::List(values) => Some(values),
        _ => None,
    }
}

fn has_pattern(value: &ScriptValue) -> bool {
    let Some(task) = group_of(value) else {
        return false;
    };
    let file = |value| text(&group_of(value)?.get("file")?.value);
    let inputs = values(task, "input").iter();
    let mut inputs = inputs.filter_map(|input| text(input).or_else(|| file(input)));
    let mut args = values(task, "args").iter().filter_map(text);
    let inputs_of_all = substitute::reference(substitute::INPUTS);
    let expands = [
        "foreach", "per", "layout", "variable", "reduce", "records", "halo",
    ];
    expands.iter().any(|name| task.get(name).is_some())
        || inputs.any(|input| glob::is_special(input) || input.ends_with('/'))
        || args.any(|arg| arg.contains(&inputs_of_all))
}

/// Names and their values in one task.
type Binding = Vec<(String, String)>;

pub(super) struct Expander<'a> {
    pub(super) workdir: String,
    pub(super) files: &'a dyn DirectoryLookup,
    listed: BTreeMap<String, Rc<Vec<ListedName>>>,
    /// Full paths of the outputs of the tasks so far, and of those outputs that are directories.
    pub(super) made: BTreeSet<String>,
    pub(super) made_directories: BTreeSet<String>,
    /// Number of parts of each output that task instances write together.
    pub(super) joined: BTreeMap<String, usize>,
    bytes_left: usize,
    compares_left: usize,
}

impl Expander<'_> {
    /// Adds the tasks for which one task of the script stands.
    fn task(
        &mut self,
        value: ScriptValue,
        expanded: &mut Vec<ScriptValue>,
    ) -> Result<(), PatternFault> {
        let ValueData::Group(mut template) = value.data else {
            expanded.push(value);
            return Ok(());
        };
        let foreach = template
            .settings
            .iter()
            .position(|setting| setting.name == "foreach");
        let foreach = foreach.map(|index| template.settings.remove(index));
        let parsed = foreach.is_some() || template.get("per").is_some();
        if parsed {
            parse_references(&mut template);
        }
        let bindings = match &foreach {
            None => vec![Binding::new()],
            Some(foreach) => self.bindings(&foreach.value)?,
        };
        let count = expanded.len() + bindings.len();
        if count > MAX_TASKS {
            let what = "tasks";
            let max = MAX_TASKS;
            return Err(wrong(value.at, JobProblem::TooMany { what, count, max }));
        }
        if let (Some(name), Some(binding)) = (template.get("name"), bindings.get(1))
            && let Some(plain) = shown(&name.value)
        {
            let mut filled = name.value.clone();
            fill_value(&mut filled, &|name| value_in(binding, name));
            if shown(&filled).as_ref() == Some(&plain) {
                let problem = JobProblem::ForeachName(plain.into_owned(), binding[0].0.clone());
                return Err(wrong(name.value.at, problem));
            }
        }
        for binding in &bindings {
            let mut task = template.clone();
            for setting in &mut task.settings {
                let is_pattern = setting.name == "input";
                self.substitute(&mut setting.value, binding, is_pattern)?;
            }
            self.inputs(&mut task, parsed)?;
            self.add(task, value.at, expanded)?;
        }
        Ok(())
    }

    /// Adds a task to the expanded ones.
    pub(super) fn push(
        &mut self,
        mut task: SettingGroup,
        at: Position,
        expanded: &mut Vec<ScriptValue>,
    ) -> Result<(), PatternFault> {
        self.spend(task.settings.len() * size_of::<ScriptValue>(), at)?;
        // References without a value stay as they are written.
        for setting in &mut task.settings {
            each_text(&mut setting.value, &mut |data| {
                if let ValueData::Template(template) = data {
                    *data = ValueData::Text(template.to_string());
                }
            });
        }
        for named in self.named(&task, "output") {
            if directory::is_directory(&named.name) {
                self.made_directories.insert(named.path);
            } else {
                self.made.insert(named.path);
            }
        }
        let data = ValueData::Group(task);
        expanded.push(ScriptValue { data, at });
        Ok(())
    }

    /// Returns the files and directories that a task lists. Skips faulty ones, whose faults are reported when they are read.
    fn named(&self, task: &SettingGroup, list: &str) -> Vec<NamedFile> {
        let file = |value: &ScriptValue| match group_of(value) {
            None => path::file_or_directory(&self.workdir, text(value)?).ok(),
            Some(group) => self.selected(group),
        };
        values(task, list).iter().filter_map(file).collect()
    }

    /// Returns an input with a selection of its bytes.
    fn selected(&self, group: &SettingGroup) -> Option<NamedFile> {
        let given = |name: &str| text(&group.get(name)?.value);
        let file = path::file(&self.workdir, given("file")?).ok()?;
        let called = given("name").and_then(|name| path::file(&self.workdir, name).ok());
        let name = called.map_or_else(|| file.name.clone(), |called| called.name);
        Some(NamedFile { name, ..file })
    }

    pub(super) fn spend(&mut self, bytes: usize, at: Position) -> Result<(), PatternFault> {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.ok_or_else(|| wrong(at, JobProblem::TooMuch))?;
        Ok(())
    }

    /// Replaces the names of `foreach`. Values in a pattern match only themselves.
    fn substitute(
        &mut self,
        value: &mut ScriptValue,
        binding: &Binding,
        is_pattern: bool,
    ) -> Result<(), PatternFault> {
        self.spend(size_of::<ScriptValue>(), value.at)?;
        match &mut value.data {
            ValueData::Text(text) => self.spend(text.len(), value.at),
            ValueData::Template(_) => {
                fill_value(value, &|name| {
                    let value = value_in(binding, name)?;
                    Some(match is_pattern {
                        true => Cow::Owned(glob::escaped(&value)),
                        false => value,
                    })
                });
                let length = shown(value).map_or(0, |text| text.len());
                self.spend(length, value.at)
            }
            ValueData::Array(values) | ValueData::List(values) => values
                .iter_mut()
                .try_for_each(|value| self.substitute(value, binding, is_pattern)),
            ValueData::Group(group) => group.settings.iter_mut().try_for_each(|setting| {
                let is_pattern = is_pattern && setting.name == "file";
                self.substitute(&mut setting.value, binding, is_pattern)
            }),
            ValueData::Boolean(_) | ValueData::Integer(_) | ValueData::Float(_) => Ok(()),
        }
    }

    /// Replaces each input that stands for several inputs, and the argument that stands for all of them. `parsed` tells whether the
    /// references of the task were parsed.
    fn inputs(&mut self, task: &mut SettingGroup, parsed: bool) -> Result<(), PatternFault> {
        let own = self.named(task, "output").into_iter();
        let own: BTreeSet<String> = own.map(|named| named.path).collect();
        let mapped = task.get("variable").is_some();
        if let Some(inputs) = values_mut(task, "input") {
            let plain = inputs.iter().filter_map(text).filter_map(glob::literal);
            let mut seen: BTreeSet<String> = plain.filter(|given| !given.ends_with('/')).collect();
            for mut value in std::mem::take(inputs) {
                let at = value.at;
                let found = match text(&value).map(|given| (given, glob::literal(given))) {
                    Some((given, None)) => self.matching(given, at)?,
                    // A directory that a mapper reads is not replaced by the files in it.
                    Some((_, Some(plain)))
                        if plain.len() > 1
                            && plain.ends_with('/')
                            && !(mapped && inputs.is_empty()) =>
                    {
                        self.below(&plain, at)?
                    }
                    _ => {
                        literal_input(&mut value)?;
                        inputs.push(value);
                        continue;
                    }
                };
                for (written, path) in found {
                    let is_own = own.contains(&path) || path::above(&path).any(|f| own.contains(f));
                    if !is_own && seen.insert(written.clone()) {
                        self.spend(written.len() + size_of::<ScriptValue>(), at)?;
                        let data = ValueData::Text(written);
                        inputs.push(ScriptValue { data, at });
                    }
                }
            }
        }
        self.arguments(task, parsed)
    }

    fn arguments(&mut self, task: &mut SettingGroup, parsed: bool) -> Result<(), PatternFault> {
        let named = self.named(task, "input").into_iter();
        let plain = |name: &str| name.trim_end_matches('/').to_owned();
        let names: Vec<String> = named.map(|named| plain(&named.name)).collect();
        let Some(args) = values_mut(task, "args") else {
            return Ok(());
        };
        for mut value in std::mem::take(args) {
            let is_inputs = match &value.data {
                ValueData::Template(template) => template.is_inputs(),
                ValueData::Text(text) if !parsed => {
                    let template = Template::of_argument(text);
                    let is_inputs = template.is_inputs();
                    value.data = value_of(template);
                    is_inputs
                }
                _ => false,
            };
            if !is_inputs {
                args.push(value);
                continue;
            }
            for name in &names {
                self.spend(name.len() + size_of::<ScriptValue>(), value.at)?;
                let data = ValueData::Text(name.clone());
                args.push(ScriptValue { data, at: value.at });
            }
        }
        Ok(())
    }

    /// Returns, for each task of a `foreach`, the names and their values.
    fn bindings(&mut self, value: &ScriptValue) -> Result<Vec<Binding>, PatternFault> {
        match &value.data {
            ValueData::Text(given) => self.captures(given, value.at),
            ValueData::Group(group) => product(group, value.at),
            other => {
                let problem = JobProblem::Type {
                    name: "foreach".to_owned(),
                    expected: "a pattern such as \"raw/{x}.fits\" or a table such as { i = \"1..9\" }",
                    found: other.kind(),
                };
                Err(wrong(value.at, problem))
            }
        }
    }

    fn captures(&mut self, given: &str, at: Position) -> Result<Vec<Binding>, PatternFault> {
        let (plain, is_directory) = plain(given);
        let last = plain.rsplit('/').next().unwrap_or(plain);
        let prefix = &plain[..plain.len() - last.len()];
        let pattern = named_pattern(given, last, at)?;
        let is_named = Pattern::with_names(prefix);
        if is_named.is_ok_and(|prefix| prefix.names().next().is_some()) {
            let reason = "names may stand in its last part only";
            return Err(no_pattern(given, reason, at));
        }
        if pattern.names().next().is_none() {
            let reason = "it needs a name in braces, such as {x}";
            return Err(no_pattern(given, reason, at));
        }
        let prefix = &literal_prefix(given, prefix, at)?;
        let (names, others) = self.names_in(prefix, is_directory, at)?;
        let mut others = others.iter();
        only_text((given, at), others.find(|name| pattern.matches(name)))?;
        let bindings = names.iter().filter_map(|name| pattern.captures(name));
        let bindings: Vec<Binding> = bindings.collect();
        if bindings.is_empty() {
            return Err(wrong(at, JobProblem::NoMatch(given.to_owned())));
        }
        Ok(bindings)
    }

    /// Returns the files that match a pattern: in the notation of the script, and as full paths.
    fn matching(
        &mut self,
        given: &str,
        at: Position,
    ) -> Result<Vec<(String, String)>, PatternFault> {
        let (plain, is_directory) = plain(given);
        let last = plain.rsplit('/').next().unwrap_or(plain);
        let prefix = &literal_prefix(given, &plain[..plain.len() - last.len()], at)?;
        if last == "**" {
            let reason = "\"**\" is not for inputs; a directory with a slash at its end stands for all files below it";
            return Err(no_pattern(given, reason, at));
        }
        let pattern = Pattern::new(last).map_err(|error| no_pattern(given, error.what, at))?;
        let (names, others) = self.names_in(prefix, is_directory, at)?;
        let mut others = others.iter();
        only_text((given, at), others.find(|name| pattern.matches(name)))?;
        let directory = self.directory(prefix, at)?;
        let fitting = names.iter().filter(|name| pattern.matches(name));
        let mut found = Vec::new();
        for name in fitting {
            if is_directory {
                found.extend(self.below(&format!("{prefix}{name}/"), at)?);
            } else {
                found.push((format!("{prefix}{name}"), format!("{directory}/{name}")));
            }
        }
        if found.is_empty() {
            return Err(wrong(at, JobProblem::NoMatch(given.to_owned())));
        }
        Ok(found)
    }

    /// Returns all files below a directory, in the form of [`Self::matching`].
    fn below(&mut self, given: &str, at: Position) -> Result<Vec<(String, String)>, PatternFault> {
        let top = self.directory(given, at)?;
        if self.made_directories.contains(&top) {
            // The content of a directory that a task writes is known only after the task.
            return Ok(vec![(given.to_owned(), top)]);
        }
        self.not_within(&top, given, at)?;
        let mut paths = BTreeSet::new();
        let mut directories = vec![top.clone()];
        while let Some(directory) = directories.pop() {
            let listed = self.list(&directory, at)?;
            let other = listed.iter().find(|one| !one.is_text);
            only_text((given, at), other.map(|one| &one.name))?;
            for ListedName {
                name, is_directory, ..
            } in listed.iter()
            {
                let path = format!("{directory}/{name}");
                if !*is_directory {
                    paths.insert(path);
                } else if !self.made_directories.contains(&path) {
                    directories.push(path);
                }
            }
        }
        let start = format!("{top}/");
        let below = |path: &&String| path.starts_with(&start);
        let made = self.made.range(start.clone()..).take_while(below);
        paths.extend(made.cloned());
        let written = |path: &str| format!("{given}{}", &path[start.len()..]);
        let files = paths.into_iter().map(|path| (written(&path), path));
        let directories = self
            .made_directories
            .range(start.clone()..)
            .take_while(below);
        let directories = directories.map(|path| (format!("{}/", written(path)), path.clone()));
        let found: Vec<_> = files.chain(directories).collect();
        if found.is_empty() {
            return Err(wrong(at, JobProblem::NoMatch(given.to_owned())));
        }
        Ok(found)
    }

    /// Returns the full path of the directory that a script writes as `prefix`, which has a slash at the end or is empty. The path of the root
    /// is empty.
    fn directory(&self, prefix: &str, at: Position) -> Result<String, PatternFault> {
        let within = path::file(&self.workdir, &format!("{prefix}x"));
        let mut path = within.map_err(|problem| wrong(at, problem))?.path;
        path.truncate(path.len() - "/x".len());
        Ok(path)
    }

    fn list(&mut self, directory: &str, at: Position) -> Result<Rc<Vec<ListedName>>, PatternFault> {
        let listed = self.listed.entry(directory.to_owned());
        let names = listed.or_insert_with(|| Rc::new(self.files.list(directory)));
        let names = names.clone();
        let left = self.compares_left.checked_sub(names.len() + 1);
        self.compares_left = left.ok_or_else(|| wrong(at, JobProblem::TooMuch))?;
        Ok(names)
    }

    /// Refuses a path in a directory that a task writes as a whole.
    fn not_within(&self, directory: &str, given: &str, at: Position) -> Result<(), PatternFault> {
        let mut directories = std::iter::once(directory).chain(path::above(directory));
        match directories.find(|directory| self.made_directories.contains(*directory)) {
            Some(whole) => Err(wrong(at, within(true, whole, given))),
            None => Ok(()),
        }
    }

    /// Returns the names of the files, or of the directories, in a directory, in order. The names include outputs that tasks will write. Also
    /// returns the names that are not UTF-8.
    fn names_in(
        &mut self,
        prefix: &str,
        directories: bool,
        at: Position,
    ) -> Result<(BTreeSet<String>, Vec<String>), PatternFault> {
        let directory = self.directory(prefix, at)?;
        self.not_within(&directory, prefix, at)?;
        let listed = self.list(&directory, at)?;
        let listed = listed.iter().filter(|one| one.is_directory == directories);
        let (texts, others): (Vec<&ListedName>, Vec<&ListedName>) =
            listed.partition(|one| one.is_text);
        let mut names: BTreeSet<String> = texts.iter().map(|one| one.name.clone()).collect();
        let others = others.iter().map(|one| one.name.clone()).collect();
        let start = format!("{directory}/");
        let made = if directories {
            &self.made_directories
        } else {
            &self.made
        };
        let made = made.range(start.clone()..);
        let made = made.map_while(|path| path.strip_prefix(&start));
        names.extend(made.filter(|name| !name.contains('/')).map(str::to_owned));
        let left = self.compares_left.checked_sub(names.len());
        self.compares_left = left.ok_or_else(|| wrong(at, JobProblem::TooMuch))?;
        Ok((names, others))
    }
}

/// Refuses a pattern that matches a file whose name is not UTF-8: a script can't name it.
fn only_text((given, at): (&str, Position), other: Option<&String>) -> Result<(), PatternFault> {
    match other {
        Some(name) => Err(wrong(
            at,
            JobProblem::NotText {
                pattern: given.to_owned(),
                name: name.clone(),
            },
        )),
        None => Ok(()),
    }
}

/// Returns a pattern without the slash at its end, and whether it has one.
fn plain(given: &str) -> (&str, bool) {
    let plain = given.trim_end_matches('/');
    (plain, plain.len() < given.len())
}

fn no_pattern(given: &str, reason: impl Into<String>, at: Position) -> PatternFault {
    let (text, reason) = (given.to_owned(), reason.into());
    wrong(at, JobProblem::Pattern { text, reason })
}

/// Compiles the last part of the pattern of a `foreach`.
fn named_pattern(given: &str, last: &str, at: Position) -> Result<Pattern, PatternFault> {
    Pattern::with_names(last).map_err(|error| no_pattern(given, error.what, at))
}

/// Returns the directories before the last part of a pattern, which has no wildcards there.
fn literal_prefix(given: &str, prefix: &str, at: Position) -> Result<String, PatternFault> {
    let plain = glob::literal(prefix);
    plain.ok_or_else(|| no_pattern(given, "wildcards may stand in its last part only", at))
}

/// Replaces an input without wildcards by the name that it stands for.
fn literal_input(value: &mut ScriptValue) -> Result<(), PatternFault> {
    let at = value.at;
    let plain = |text: &str| {
        let plain = glob::literal(text);
        plain.ok_or_else(|| wrong(at, JobProblem::SelectedPattern(text.to_owned())))
    };
    match &mut value.data {
        ValueData::Text(text) => *text = plain(text)?,
        ValueData::Template(template) => *template = template.try_map(plain)?,
        ValueData::Group(group) => {
            let mut settings = group.settings.iter_mut();
            if let Some(file) = settings.find(|setting| setting.name == "file") {
                literal_input(&mut file.value)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the value of a name.
fn value_in<'b>(binding: &'b Binding, name: &str) -> Option<Cow<'b, str>> {
    let found = binding.iter().find(|(known, _)| known == name)?;
    Some(Cow::Borrowed(&found.1))
}

/// Returns all combinations of the values of a `foreach` group; the last name changes fastest.
fn product(group: &SettingGroup, at: Position) -> Result<Vec<Binding>, PatternFault> {
    let mut all = vec![Binding::new()];
    for setting in &group.settings {
        if !substitute::is_name(&setting.name) {
            let reason = "a name has letters, digits, '_' and '-' only";
            return Err(no_pattern(&setting.name, reason, setting.at));
        }
        let values = choices(&setting.value)?;
        let count = all.len().saturating_mul(values.len());
        if count > MAX_TASKS {
            let (what, max) = ("tasks", MAX_TASKS);
            return Err(wrong(at, JobProblem::TooMany { what, count, max }));
        }
        let extended = all.iter().flat_map(|binding| {
            values.iter().map(|value| {
                let mut binding = binding.clone();
                binding.push((setting.name.clone(), value.clone()));
                binding
            })
        });
        all = extended.collect();
    }
    if group.settings.is_empty() || all.is_empty() {
        return Err(no_pattern("{ }", "it creates no task", at));
    }
    Ok(all)
}

/// Returns the values of one name: those of a list, or the numbers of a range. The numbers have leading zeros if the first number of the range has
/// some.
fn choices(value: &ScriptValue) -> Result<Vec<String>, PatternFault> {
    const EXPECTED: &str = "a range such as \"1..100\" or an array of strings or integers";
    let mistake = |found| {
        let name = "foreach".to_owned();
        let expected = EXPECTED;
        wrong(
            value.at,
            JobProblem::Type {
                name,
                expected,
                found,
            },
        )
    };
    match &value.data {
        ValueData::Text(range) => {
            let ends = range.split_once("..").and_then(|(first, last)| {
                let numbers: (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                Some((first, numbers))
            });
            let Some((written, (first, last))) = ends else {
                return Err(mistake("another string"));
            };
            let count = usize::try_from(last.saturating_sub(first)).unwrap_or(usize::MAX);
            if count >= MAX_TASKS {
                let (what, max) = ("tasks", MAX_TASKS);
                return Err(wrong(value.at, JobProblem::TooMany { what, count, max }));
            }
            let width = if written.starts_with('0') {
                written.len()
            } else {
                0
            };
            Ok((first..=last)
                .map(|number| format!("{number:0width$}"))
                .collect())
        }
        ValueData::Array(values) | ValueData::List(values) => values
            .iter()
            .map(|value| match &value.data {
                ValueData::Text(text) => Ok(text.clone()),
                ValueData::Integer(number) => Ok(number.to_string()),
                other => Err(mistake(other.kind())),
            })
            .collect(),
        other => Err(mistake(other.kind())),
    }
}
