//! Task instances: expands each task with `per` before anything else is read (Active Storage §4). Such a task becomes one task for each part or
//! stripe of its first input, or for each input. With `layout = "same"`, one more task joins the outputs of the task instances. This module
//! changes only the parsed job.
//!
//! The expansion passes its results to the reader through settings that no script can contain: their names begin with a space.

use super::MAX_TASKS;
use super::error::JobProblem;
use super::expand::{Expander, PatternFault, fill_value, group_of, shown, text, values, wrong};
use super::mapper::{MapperProgram, PROGRAM};
use super::path;
use super::pipeline;
use crate::script::{Position, ScriptValue, Setting, SettingGroup, ValueData};
use std::borrow::Cow;
use tidemill_model::directory::is_directory;
use tidemill_model::event::TaskRole;
use tidemill_model::id::ObjectId;
use tidemill_model::layout::{Layout, RECORD_BYTES_MAX, Selection};
use tidemill_model::quantity;
use tidemill_model::substitute;

/// First argument of a built-in kernel that returns its partial result for the data of a task instance. The kernel with `MERGE` puts the partial
/// results together.
pub const PARTIAL: &str = " partial";
/// First argument of a built-in kernel that puts partial results together; see [`PARTIAL`].
pub const MERGE: &str = " merge";
/// Role of a task within the task of the script.
const SHARE: &str = " share";
/// Parts of the files that the outputs of a task are.
pub(super) const PART: &str = " part";
/// Version that an input must have.
pub(super) const VERSION: &str = " version";
/// Selection of an input, in the text form of [`Selection`].
pub(super) const SELECTION: &str = " selection";
/// Task that writes an input, and the index of the output of that task.
pub(super) const MADE_BY: [&str; 2] = [" task", " output"];
/// Names of the references to values of a task instance, in addition to those of its file.
pub(crate) const NUMBERS: [&str; 5] = ["part", "stripe", "chunk", "before", "after"];
/// Names of the references whose values differ between task instances.
const OWN: [&str; 5] = ["part", "stripe", "chunk", "name", "stem"];

/// Unit of data that gets its own task instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Per {
    File,
    Part,
    Stripe,
    Chunk,
}

/// Selection that a task instance of a mapped input reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedSelection {
    /// Number of the task instance: the number of the part that holds most of the selection, or of the chunk.
    pub number: usize,
    /// Bytes of the file, and the values that these bytes hold.
    pub selection: Selection,
}

/// Result of a mapper for a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapperResult {
    /// Selections of the task instances, in order.
    pub instances: Vec<MappedSelection>,
    /// Upper bound of their numbers, exclusive.
    pub count: usize,
    /// Whether the position of their values in the whole variable is unknown.
    pub unplaced: bool,
    /// Arguments that the kernel gets in addition to its own, so that it interprets the values as the file defines them.
    pub args: Vec<String>,
}

/// Variable that a task names, and the kernels that read the values of the variable.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
    /// Variable as the task writes it.
    pub mapper: &'a str,
    /// Whether each part has a task instance; otherwise each chunk has one.
    pub per_part: bool,
    /// Kernels through which the values pass in order, with their arguments. Empty if the kernels are not built in.
    pub kernels: &'a [Vec<String>],
}

/// Value of each reference.
pub(super) type InstanceValues = Vec<(&'static str, String)>;

/// Inputs of one task instance, and the values of references in its settings.
pub(super) struct NamedInstance {
    pub(super) inputs: Vec<ScriptValue>,
    pub(super) values: InstanceValues,
}

/// Version and layout of a file that the job does not write.
#[derive(Clone, Debug)]
pub struct ExternalInput {
    /// Object of the version.
    pub object: ObjectId,
    /// Location of its bytes.
    pub layout: Layout,
}

/// Form of the file of an input.
enum InputForm {
    /// File of the cluster.
    Made(ExternalInput),
    /// File that a task of the job writes: one object, or a striped file with this number of parts.
    ToCome(Option<usize>),
}

impl InputForm {
    fn parts(&self) -> Option<usize> {
        match self {
            Self::Made(ExternalInput {
                layout: Layout::Striped(striped),
                ..
            }) => Some(striped.parts.len()),
            Self::Made(_) => None,
            Self::ToCome(parts) => *parts,
        }
    }
}

/// Returns the role of a task that the expansion has set.
pub(super) fn share(task: &SettingGroup) -> TaskRole {
    match number(task, SHARE) {
        Some(1) => TaskRole::Instance,
        Some(2) => TaskRole::Join,
        Some(3) => TaskRole::Merge,
        _ => TaskRole::All,
    }
}

/// Returns the value of a setting of the expansion as a number.
pub(super) fn number(group: &SettingGroup, name: &str) -> Option<u64> {
    match group.get(name)?.value.data {
        ValueData::Integer(number) => Some(number.cast_unsigned()),
        _ => None,
    }
}

/// Returns the value of a setting of the expansion as the text of a selection.
pub(super) fn selection(group: &SettingGroup) -> Option<&str> {
    text(&group.get(SELECTION)?.value)
}

pub(super) fn number_setting(name: &str, number: u64, at: Position) -> Setting {
    setting(name, ValueData::Integer(number.cast_signed()), at)
}

pub(super) fn setting(name: &str, data: ValueData, at: Position) -> Setting {
    Setting {
        name: name.to_owned(),
        at,
        value: ScriptValue { data, at },
    }
}

pub(super) fn string_value(text: impl Into<String>, at: Position) -> ScriptValue {
    ScriptValue {
        data: ValueData::Text(text.into()),
        at,
    }
}

/// Returns the path of part `part` of a file that task instances write together.
pub(super) fn part_path(path: &str, part: u64) -> String {
    format!("{path}[{part}]")
}

/// Removes a setting from a task and returns it.
fn take(task: &mut SettingGroup, name: &str) -> Option<Setting> {
    let mut settings = task.settings.iter();
    let index = settings.position(|setting| setting.name == name)?;
    Some(task.settings.remove(index))
}

fn set(task: &mut SettingGroup, name: &str, data: ValueData, at: Position) {
    take(task, name);
    task.settings.push(setting(name, data, at));
}

/// Appends arguments to those of a task.
fn with_args(task: &mut SettingGroup, args: Vec<String>, at: Position) {
    if args.is_empty() {
        return;
    }
    let mut all = values(task, "args").to_vec();
    all.extend(args.into_iter().map(|word| string_value(word, at)));
    set(task, "args", ValueData::List(all), at);
}

fn choice(setting: &Setting, valid: &[&'static str]) -> Result<usize, PatternFault> {
    let kind = || Cow::Borrowed(setting.value.data.kind());
    let given = shown(&setting.value).unwrap_or_else(kind);
    let known = valid.iter().position(|one| *one == given);
    known.ok_or_else(|| {
        let name = if setting.name == "per" {
            "per"
        } else {
            "layout"
        };
        let problem = JobProblem::Choice {
            name,
            nearest: tidemill_model::similar_names::nearest(&given, valid),
            value: given.into_owned(),
            valid: valid.join(", "),
        };
        wrong(setting.value.at, problem)
    })
}

/// Returns the number of one of `count` task instances with leading zeros, so that sorting by name is sorting by number.
pub(super) fn padded(number: usize, count: usize) -> String {
    let digits = count.saturating_sub(1).to_string().len();
    format!("{number:0digits$}")
}

impl Expander<'_> {
    /// Adds a task, or its task instances.
    pub(super) fn add(
        &mut self,
        mut task: SettingGroup,
        at: Position,
        expanded: &mut Vec<ScriptValue>,
    ) -> Result<(), PatternFault> {
        let layout = take(&mut task, "layout");
        let same = layout.as_ref().map(|layout| choice(layout, &["same"]));
        let same = same.transpose()?.is_some();
        let needs = "it needs per = \"stripe-object\"";
        let no_parts = || wrong(at, JobProblem::SameLayout(needs));
        let seams = ["records", "halo"].map(|name| take(&mut task, name));
        let mapper = take(&mut task, "variable");
        let reduce = take(&mut task, "reduce");
        let Some(setting) = take(&mut task, "per") else {
            if let Some(setting) = seams.into_iter().chain([mapper, reduce]).flatten().next() {
                return Err(wrong(setting.at, JobProblem::OfInstances(setting.name)));
            }
            if same {
                return Err(no_parts());
            }
            return self.push(task, at, expanded);
        };
        let per = [Per::File, Per::Part, Per::Stripe, Per::Chunk];
        let per = per[choice(&setting, &["file", "stripe-object", "stripe", "chunk"])?];
        check_mapper(mapper.as_ref(), (per, setting.value.at), same, &seams)?;
        if same && per != Per::Part {
            return Err(no_parts());
        }
        let mut outputs = values(&task, "output").iter().filter_map(shown);
        if same && outputs.any(|output| is_directory(&output)) {
            return Err(wrong(at, JobProblem::SameLayout("not for directories")));
        }
        let Some(first) = values(&task, "input").first().cloned() else {
            return Err(wrong(setting.at, JobProblem::NothingPer));
        };
        let mut unplaced = false;
        let (all, parts) = match (per, &mapper) {
            (Per::File, _) => (Self::files(&task), None),
            (_, Some(mapper)) => (
                self.mapped(&mut task, &first, per, mapper, &mut unplaced)?,
                None,
            ),
            _ => self.pieces_of(&task, &first, per, &seams)?,
        };
        let count = expanded.len() + all.len() + 1;
        if count > MAX_TASKS {
            let (what, max) = ("tasks", MAX_TASKS);
            return Err(wrong(at, JobProblem::TooMany { what, count, max }));
        }
        let joined = parts.filter(|_| same);
        if let Some(reduce) = &reduce {
            return self.reduced((task, reduce), &all, same, at, expanded);
        }
        let merged = all.len() > 1 && !same && per != Per::File && self.merges(&task, &seams);
        if let Some(mapper) = mapper.filter(|_| merged && unplaced) {
            let what = "the number of a line in the file is only known after all lines before it are read, so task instances make no single \
                result: set \"reduce\", or give each its own output ({part}, {chunk})";
            return Err(wrong(mapper.value.at, JobProblem::Mapper(what.to_owned())));
        }
        if all.len() > 1 && joined.is_none() && !merged {
            Self::check_outputs(&task)?;
        }
        let (begin, is_part) = (expanded.len(), joined.is_some() || merged);
        for (index, one) in all.iter().enumerate() {
            let mut instance = Self::instance(&task, one, (index, all.len()), is_part);
            if merged {
                folds(&mut instance, PARTIAL, at);
            }
            self.push(instance, at, expanded)?;
        }
        match joined {
            Some(parts) => self.join(task, &first, (begin, parts), at, expanded),
            None if merged => self.merge(task, (begin, all.len()), at, expanded),
            None => Ok(()),
        }
    }

    /// Returns whether the instances of a task are a built-in kernel that can merge its results of pieces into one result.
    fn merges(&self, task: &SettingGroup, [_, halo]: &[Option<Setting>; 2]) -> bool {
        // Records that several task instances see would count once for each of them.
        if halo.is_some() {
            return false;
        }
        let ([_], [output]) = (values(task, "input"), values(task, "output")) else {
            return false;
        };
        let kernel = task.get("kernel").and_then(|kernel| shown(&kernel.value));
        let builtin = match &self.builtins(task)[..] {
            [one] if !kernel.is_some_and(|kernel| pipeline::is_pipeline(&kernel)) => one
                .split_first()
                .is_some_and(|(kernel, args)| self.files.folds(kernel, args)),
            _ => false,
        };
        builtin
            && task.get("stdin").is_none()
            && is_shared(output)
            && shown(output).is_some_and(|output| !is_directory(&output))
    }

    /// Returns the kernels of a task with their arguments, in the order of the pipeline. Returns an empty list if the task sets, or a file
    /// of that name shows, that the first kernel is not built in.
    fn builtins(&self, task: &SettingGroup) -> Vec<Vec<String>> {
        let value_of = |name: &str| shown(&task.get(name)?.value);
        let kernel = value_of("kernel").unwrap_or_default();
        let stages = match pipeline::is_pipeline(&kernel) {
            true => pipeline::split(&kernel).unwrap_or_default(),
            false => {
                let args = values(task, "args").iter().filter_map(shown);
                let words = std::iter::once(kernel).chain(args);
                vec![words.map(Cow::into_owned).collect()]
            }
        };
        let first = stages.first().and_then(|stage| stage.first());
        let named = path::file(&self.workdir, first.map_or("", String::as_str));
        let is_file = named.is_ok_and(|named| self.files.made_of(&named.path).is_some());
        match value_of("type").map_or(!is_file, |kind| kind == "builtin") {
            true => stages,
            false => Vec::new(),
        }
    }

    /// Refuses outputs of several task instances under one name, because the task instances would overwrite them.
    fn check_outputs(task: &SettingGroup) -> Result<(), PatternFault> {
        let mut outputs = values(task, "output").iter();
        match outputs.find(|value| is_shared(value)) {
            Some(value) => {
                let given = shown(value).unwrap_or_default().into_owned();
                Err(wrong(value.at, JobProblem::InstanceOutput(given)))
            }
            None => Ok(()),
        }
    }

    fn instance(
        task: &SettingGroup,
        one: &NamedInstance,
        (index, count): (usize, usize),
        is_part: bool,
    ) -> SettingGroup {
        let mut instance = task.clone();
        let at = one.inputs.first().map_or(Position::START, |input| input.at);
        set(
            &mut instance,
            "input",
            ValueData::List(one.inputs.clone()),
            at,
        );
        let known = |name: &str| {
            let found = one.values.iter().find(|(known, _)| *known == name)?;
            Some(Cow::Borrowed(found.1.as_str()))
        };
        for setting in &mut instance.settings {
            let is_shared = is_shared(&setting.value);
            fill_value(&mut setting.value, &known);
            if setting.name == "name"
                && is_shared
                && (count > 1 || is_part)
                && let Some(name) = shown(&setting.value)
            {
                let name = format!("{name}[{}]", padded(index, count));
                setting.value.data = ValueData::Text(name);
            }
        }
        instance.settings.push(number_setting(SHARE, 1, at));
        if is_part {
            instance
                .settings
                .push(number_setting(PART, index as u64, at));
            // The outputs of task instances have the lifetime of the task.
            set(
                &mut instance,
                "lifetime",
                ValueData::Text("keep".to_owned()),
                at,
            );
        }
        instance
    }

    /// Returns one task instance for each input.
    fn files(task: &SettingGroup) -> Vec<NamedInstance> {
        let one = |value: &ScriptValue| {
            let file = group_of(value).and_then(|group| shown(&group.get("file")?.value));
            let file = &*file.or_else(|| shown(value)).unwrap_or_default();
            let name = file.rsplit('/').next().unwrap_or(file).to_owned();
            let stem = name
                .rsplit_once('.')
                .map_or(name.as_str(), |(stem, _)| stem);
            let stem = if stem.is_empty() { &name } else { stem }.to_owned();
            NamedInstance {
                inputs: vec![value.clone()],
                values: vec![("name", name), ("stem", stem)],
            }
        };
        values(task, "input").iter().map(one).collect()
    }

    /// Returns one task instance for each part or stripe of the first input, with all other inputs. Also returns the number of parts of the
    /// first input if it is striped.
    fn pieces_of(
        &self,
        task: &SettingGroup,
        first: &ScriptValue,
        per: Per,
        [records, halo]: &[Option<Setting>; 2],
    ) -> Result<(Vec<NamedInstance>, Option<usize>), PatternFault> {
        let form = self.form(first)?;
        let halo = match halo {
            None => Halo::NONE,
            Some(setting) => halo_of(setting, per, records.as_ref())?,
        };
        // With a halo, the selection already consists of whole records.
        let records = records.as_ref().filter(|_| halo.count == 0);
        let parts = form.parts();
        let (word, count) = match (per, &form) {
            (Per::Stripe, InputForm::Made(made)) => ("stripe", stripes(&made.layout)),
            (Per::Stripe, InputForm::ToCome(Some(_))) => {
                return Err(wrong(first.at, JobProblem::StripesToCome));
            }
            (Per::Stripe, _) => ("stripe", 1),
            _ => ("part", parts.unwrap_or(1)),
        };
        let others = values(task, "input").iter().skip(1);
        let one = |index: usize| {
            let (mut input, halo_sizes) = selected(first, &form, (per, index, halo));
            if let (ValueData::Group(group), Some(records)) = (&mut input.data, records) {
                group.settings.push(records.clone());
            }
            let [before, after] = halo_sizes.map(|bytes| bytes.to_string());
            NamedInstance {
                inputs: std::iter::once(input)
                    .chain(others.clone().cloned())
                    .collect(),
                values: vec![
                    (word, padded(index, count)),
                    ("before", before),
                    ("after", after),
                ],
            }
        };
        Ok(((0..count).map(one).collect(), parts))
    }

    /// Returns the task instances that a mapper finds in the first input, each with all other inputs. Adds the mapper's arguments to the task.
    fn mapped(
        &mut self,
        task: &mut SettingGroup,
        first: &ScriptValue,
        per: Per,
        mapper: &Setting,
        unplaced: &mut bool,
    ) -> Result<Vec<NamedInstance>, PatternFault> {
        let problem = |what: &str| wrong(mapper.value.at, JobProblem::Mapper(what.to_owned()));
        let how = &*shown(&mapper.value).ok_or_else(|| problem(MAPPERS))?;
        let word = if per == Per::Part { "part" } else { "chunk" };
        let kernels = self.builtins(task);
        let name = kernels.first().and_then(|stage| stage.first());
        let is_own = task.get("type").is_none()
            && name.is_some_and(|name| self.files.has_own(name))
            && !self.merges(task, &[None, None]);
        let kernels = if is_own { Vec::new() } else { kernels };
        let mapping = Mapping {
            mapper: how,
            per_part: per == Per::Part,
            kernels: &kernels,
        };
        let found = self.mapped_directory(task, first, (&mapping, mapper.value.at), word)?;
        if let Some((all, args)) = found {
            with_args(task, args, mapper.value.at);
            return Ok(all);
        }
        let form = self.form(first)?;
        if group_of(first).is_some_and(|group| group.get("records").is_some()) {
            return Err(problem(
                "\"records\" are bytes, but a variable gives values",
            ));
        }
        let InputForm::Made(made) = &form else {
            return Err(problem(
                "it reads a header, so the file must exist when the job is submitted",
            ));
        };
        let (input, _) = selected(first, &form, (Per::File, 0, Halo::NONE));
        let file = group_of(&input).and_then(|group| text(&group.get("file")?.value));
        let named = path::file(&self.workdir, file.unwrap_or_default());
        let named = named.map_err(|problem| wrong(first.at, problem))?;
        let map = match how.strip_prefix(PROGRAM) {
            None => self.files.mapped(&named.path, made, &mapping),
            Some(words) => {
                let size = made.layout.size();
                let program = MapperProgram::of(task, words, (&named, size), mapper.value.at);
                program.and_then(|one| self.files.asked(&one, made, per == Per::Part))
            }
        };
        let map = map.map_err(|why| problem(&why))?;
        *unplaced = map.unplaced;
        let mut all = Vec::with_capacity(map.instances.len());
        for MappedSelection { number, selection } in &map.instances {
            let mut input = input.clone();
            let selection = selection.to_string();
            self.spend(selection.len(), first.at)?;
            if let ValueData::Group(group) = &mut input.data {
                group
                    .settings
                    .push(setting(SELECTION, ValueData::Text(selection), first.at));
            }
            let others = values(task, "input").iter().skip(1).cloned();
            all.push(NamedInstance {
                inputs: std::iter::once(input).chain(others).collect(),
                values: vec![(word, padded(*number, map.count))],
            });
        }
        with_args(task, map.args, mapper.value.at);
        Ok(all)
    }

    /// Returns the form of the file of an input.
    fn form(&self, input: &ScriptValue) -> Result<InputForm, PatternFault> {
        let group = group_of(input);
        let whole =
            group.is_none_or(|group| group.get("part").is_none() && group.get("bytes").is_none());
        let file = group.and_then(|group| text(&group.get("file")?.value));
        let given = file.or_else(|| text(input)).unwrap_or_default();
        let problem = || JobProblem::PerInput(given.to_owned());
        let named = path::file(&self.workdir, given).ok();
        let named = named
            .filter(|_| whole)
            .ok_or_else(|| wrong(input.at, problem()))?;
        if self.made.contains(&named.path) {
            return Ok(InputForm::ToCome(self.joined.get(&named.path).copied()));
        }
        let made = self.files.made_of(&named.path);
        let made = made.ok_or_else(|| wrong(input.at, problem()))?;
        match &made.layout {
            Layout::Extents(_) => Err(wrong(input.at, JobProblem::PerPieces(given.to_owned()))),
            Layout::Whole(_) | Layout::Striped(_) => Ok(InputForm::Made(made)),
        }
    }

    /// Adds the task that merges the results of task instances into one result.
    fn merge(
        &mut self,
        mut task: SettingGroup,
        (begin, count): (usize, usize),
        at: Position,
        expanded: &mut Vec<ScriptValue>,
    ) -> Result<(), PatternFault> {
        let output = values(&task, "output").first().and_then(shown);
        let given = output.unwrap_or_default().into_owned();
        let made = |part| made_by(&given, (begin, part), 0, at);
        let inputs = (0..count).map(made).collect();
        take(&mut task, "node");
        set(&mut task, "input", ValueData::List(inputs), at);
        folds(&mut task, MERGE, at);
        task.settings.push(number_setting(SHARE, 3, at));
        self.push(task, at, expanded)
    }

    /// Adds the task instances, and the task whose kernel makes one result from all their outputs.
    fn reduced(
        &mut self,
        (mut task, reduce): (SettingGroup, &Setting),
        all: &[NamedInstance],
        same: bool,
        at: Position,
        expanded: &mut Vec<ScriptValue>,
    ) -> Result<(), PatternFault> {
        let problem = |what| wrong(reduce.value.at, JobProblem::Reduce(what));
        let words = shown_with_mark(&reduce.value).and_then(|text| pipeline::split(&text).ok());
        let words = words.filter(|stages| stages.len() == 1);
        let words = words.and_then(|stages| stages.into_iter().next());
        let words = words.ok_or_else(|| {
            problem("give a kernel with its arguments, as in \"/usr/bin/sort -m {inputs}\"")
        })?;
        let outputs = values(&task, "output");
        let given = match outputs {
            [output] if is_shared(output) => shown(output).filter(|output| !is_directory(output)),
            _ => None,
        };
        let given = given.filter(|_| !same).map(Cow::into_owned);
        let given = given.ok_or_else(|| problem("it makes one output, a file without {part} and the like, and can't be combined with \"layout\""))?;
        let begin = expanded.len();
        for (index, one) in all.iter().enumerate() {
            let instance = Self::instance(&task, one, (index, all.len()), true);
            self.push(instance, at, expanded)?;
        }
        let parts = || (0..all.len()).map(|part| part_path(&given, part as u64));
        let mut words = words.into_iter();
        let kernel = words.next().unwrap_or_default();
        let args = words.flat_map(|word| match word == INPUTS_MARK {
            true => parts().collect(),
            false => vec![word],
        });
        let args: Vec<ScriptValue> = args.map(|word| string_value(word, at)).collect();
        self.spend(args.len() * size_of::<ScriptValue>(), at)?;
        let inputs = (0..all.len()).map(|part| made_by(&given, (begin, part), 0, at));
        set(&mut task, "input", ValueData::List(inputs.collect()), at);
        for name in ["stdin", "streaming", "node", "type"] {
            take(&mut task, name);
        }
        set(&mut task, "args", ValueData::List(args), at);
        set(
            &mut task,
            "kernel",
            ValueData::Text(kernel),
            reduce.value.at,
        );
        task.settings.push(number_setting(SHARE, 3, at));
        self.push(task, at, expanded)
    }

    /// Adds the task that joins the outputs of task instances: each output becomes a striped file.
    fn join(
        &mut self,
        mut task: SettingGroup,
        first: &ScriptValue,
        (begin, parts): (usize, usize),
        at: Position,
        expanded: &mut Vec<ScriptValue>,
    ) -> Result<(), PatternFault> {
        let outputs: Vec<ScriptValue> = values(&task, "output").to_vec();
        let mut inputs = vec![first.clone()];
        for (number, output) in outputs.iter().enumerate() {
            let given = shown(output).unwrap_or_default();
            let made = |part| made_by(&given, (begin, part), number, at);
            inputs.extend((0..parts).map(made));
            if let Ok(named) = path::file(&self.workdir, &given) {
                self.joined.insert(named.path, parts);
            }
        }
        for name in ["stdin", "stdout", "streaming", "node"] {
            take(&mut task, name);
        }
        set(&mut task, "input", ValueData::List(inputs), at);
        task.settings.push(number_setting(SHARE, 2, at));
        self.push(task, at, expanded)
    }
}

/// Returns whether a text is the same for all task instances.
fn is_shared(value: &ScriptValue) -> bool {
    match &value.data {
        ValueData::Template(template) => !template.references().any(|name| OWN.contains(&name)),
        _ => true,
    }
}

/// Word that stands for a reference to all inputs. No argument has a zero byte.
const INPUTS_MARK: &str = "\0";

/// Returns a text with [`INPUTS_MARK`] in place of references to all inputs.
fn shown_with_mark(value: &ScriptValue) -> Option<Cow<'_, str>> {
    let ValueData::Template(template) = &value.data else {
        return shown(value);
    };
    let mark = |name: &str| (name == substitute::INPUTS).then_some(Cow::Borrowed(INPUTS_MARK));
    Some(Cow::Owned(template.fill(mark).to_string()))
}

/// Makes a built-in kernel do a part of its work.
fn folds(task: &mut SettingGroup, what: &str, at: Position) {
    let mut args = values(task, "args").to_vec();
    args.insert(0, string_value(what, at));
    set(task, "args", ValueData::List(args), at);
    set(task, "type", ValueData::Text("builtin".to_owned()), at);
}

/// Returns an output of task `part`, counted from `begin`, as an input.
fn made_by(given: &str, (begin, part): (usize, usize), number: usize, at: Position) -> ScriptValue {
    let name = part_path(given, part as u64);
    let settings = vec![
        setting("file", ValueData::Text(name.clone()), at),
        setting("name", ValueData::Text(name), at),
        number_setting(MADE_BY[0], (begin + part) as u64, at),
        number_setting(MADE_BY[1], number as u64, at),
    ];
    let data = ValueData::Group(SettingGroup { settings });
    ScriptValue { data, at }
}

/// Returns the number of stripes of a file; one if the file is not striped.
fn stripes(layout: &Layout) -> usize {
    match layout {
        Layout::Striped(striped) => usize::try_from(striped.size.div_ceil(striped.unit))
            .unwrap_or(usize::MAX)
            .max(1),
        Layout::Whole(_) | Layout::Extents(_) => 1,
    }
}

/// Accepted forms of a mapper.
const MAPPERS: &str = "it is \"netcdf:VARIABLE\", \"hdf5:/GROUP/DATASET\", \"zarr:ARRAY\" (a zip file or a directory), \"fits:HDU\", \"columns:NAME=TYPE,…\", \"columns:csv,COLUMN\" or \"program:NAME ARGUMENTS\"";

/// Checks that a mapper fits the other settings of task instances.
fn check_mapper(
    mapper: Option<&Setting>,
    (per, at): (Per, Position),
    same: bool,
    seams: &[Option<Setting>; 2],
) -> Result<(), PatternFault> {
    let problem = |at, what: &str| Err(wrong(at, JobProblem::Mapper(what.to_owned())));
    match mapper {
        None if per == Per::Chunk => problem(
            at,
            "per = \"chunk\" needs a variable, which defines the chunks",
        ),
        None => Ok(()),
        Some(mapper) if !matches!(per, Per::Chunk | Per::Part) => problem(
            mapper.value.at,
            "it needs per = \"chunk\" or per = \"stripe-object\"",
        ),
        Some(mapper) if same || seams.iter().any(Option::is_some) => problem(
            mapper.value.at,
            "\"layout\", \"records\" and \"halo\" are for bytes, but a variable gives values",
        ),
        Some(_) => Ok(()),
    }
}

/// Records that a task instance sees in addition to its stripe: `count` records of `length` bytes on both sides.
#[derive(Clone, Copy, Debug)]
struct Halo {
    count: u64,
    length: u64,
}

impl Halo {
    const NONE: Self = Self {
        count: 0,
        length: 1,
    };

    /// Returns the bytes of the records that begin in `stripe`, together with the records of the halo, in a file of `size` bytes. Also
    /// returns the number of halo records before and after the stripe.
    fn around(self, stripe: std::ops::Range<u64>, size: u64) -> (std::ops::Range<u64>, [u64; 2]) {
        let first = stripe.start.div_ceil(self.length);
        let behind = stripe.end.div_ceil(self.length);
        let before = self.count.min(first);
        let after = self.count.min(size.div_ceil(self.length) - behind);
        let end = (behind + after).saturating_mul(self.length).min(size);
        ((first - before) * self.length..end, [before, after])
    }
}

/// Returns the number of bytes, or of records of a fixed length, that a task instance sees on both sides of its stripe.
fn halo_of(setting: &Setting, per: Per, records: Option<&Setting>) -> Result<Halo, PatternFault> {
    let count = match &setting.value.data {
        ValueData::Integer(count) => u64::try_from(*count).ok(),
        ValueData::Text(text) if records.is_none() => quantity::size(text).ok(),
        _ => None,
    };
    let length = match records.map(|records| &records.value.data) {
        None => Some(1),
        Some(ValueData::Integer(length)) => u64::try_from(*length).ok(),
        Some(_) => None,
    };
    let length = length.filter(|length| (1..=RECORD_BYTES_MAX).contains(length));
    let halo = count.zip(length).filter(|_| per == Per::Stripe);
    let halo = halo.map(|(count, length)| Halo { count, length });
    halo.ok_or_else(|| wrong(setting.value.at, JobProblem::Halo))
}

/// Returns one part or stripe of an input, and the number of halo bytes or records before and after the stripe.
fn selected(
    input: &ScriptValue,
    form: &InputForm,
    (per, index, halo): (Per, usize, Halo),
) -> (ScriptValue, [u64; 2]) {
    let mut halo_sizes = [0; 2];
    let at = input.at;
    let mut group = match &input.data {
        ValueData::Group(group) => group.clone(),
        _ => SettingGroup {
            settings: vec![setting("file", input.data.clone(), at)],
        },
    };
    let made = match form {
        InputForm::Made(made) => Some(made),
        InputForm::ToCome(_) => None,
    };
    if let Some(made) = made {
        group
            .settings
            .push(number_setting(VERSION, made.object.0, at));
    }
    match (per, made.map(|made| &made.layout)) {
        (Per::Stripe, Some(Layout::Striped(striped))) if striped.size > 0 => {
            let begin = index as u64 * striped.unit;
            let mut stripe = begin..(begin + striped.unit).min(striped.size);
            if halo.count > 0 {
                (stripe, halo_sizes) = halo.around(stripe, striped.size);
            }
            let (begin, last) = (stripe.start, stripe.end - 1);
            group.settings.push(setting(
                "bytes",
                string_value(format!("{begin}-{last}"), at).data,
                at,
            ));
        }
        (Per::Part, _) if form.parts().is_some() => {
            group
                .settings
                .push(number_setting("part", index as u64, at));
        }
        _ => {}
    }
    let data = ValueData::Group(group);
    (ScriptValue { data, at }, halo_sizes)
}
