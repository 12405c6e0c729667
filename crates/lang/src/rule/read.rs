//! Parser of rules: converts a rule's text to a rule and reports all errors.

use super::fill::{self, FilledTask};
use super::{
    BATCH_IN_TIME, DEFAULT_DEPTH, FileGrouping, Hook, MAX_BATCH, MAX_DEPTH, MAX_NAME_BYTES,
    MAX_RULE_BYTES, Rule, RuleConditions, RuleError, RuleErrors, RuleProblem, VARIABLES, advice,
    xml,
};
use crate::job::{
    DirectoryLookup, DirectoryMap, ExternalInput, INSTANCE_NUMBERS, Job, ListedName,
    MappedSelection, MapperResult, Mapping,
};
use crate::script::{
    self, ErrorNames, Position, ScriptValue, Setting, SettingGroup, TextForm, ValueData,
};
use tidemill_model::glob::{Pattern, PatternError};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{Layout, Part, Selection};
use tidemill_model::quantity;

/// Settings of a rule that its jobs do not have.
pub(crate) const OWN: [&str; 7] = [
    "pattern", "regex", "where", "when", "batch", "depth", "task",
];
/// Settings of a rule's batches.
pub(crate) const BATCH_SETTINGS: [&str; 2] = ["files", "after"];

impl Rule {
    /// Reads a rule in TOML, in libconfig, or in the XML of the paper; [`TextForm`] tells them apart.
    ///
    /// `file` is the name used in errors.
    ///
    /// # Errors
    /// All errors in the rule itself, or in the task that it generates.
    pub fn read(file: &str, text: &str) -> Result<Self, RuleErrors> {
        Self::read_of(file, text, None)
    }

    /// Reads the settings of a rule without a check of their names and values.
    ///
    /// `file` is the name used in errors.
    ///
    /// # Errors
    /// The first position at which the text is not in its form.
    pub fn settings(file: &str, text: &str) -> Result<SettingGroup, RuleErrors> {
        settings(file, text).map_err(|(at, problem)| {
            let file = file.to_owned();
            RuleErrors::Rule(vec![RuleError { file, at, problem }])
        })
    }

    /// Reads the rule of a directory. The directory is its `workdir`, and `name` is its name if the rule sets none.
    ///
    /// # Errors
    /// As [`Rule::read`], and if the rule sets a `workdir`.
    pub fn read_of_directory(
        file: &str,
        text: &str,
        directory: &str,
        name: &str,
    ) -> Result<Self, RuleErrors> {
        Self::read_of(file, text, Some((directory, name)))
    }

    fn read_of(
        file: &str,
        text: &str,
        directory: Option<(&str, &str)>,
    ) -> Result<Self, RuleErrors> {
        let names = ErrorNames::of_rule(text);
        let mut reader = RuleReader {
            file,
            names,
            errors: Vec::new(),
        };
        let group = reader.group(text);
        let rule = group.and_then(|mut group| {
            if let Some((directory, name)) = directory {
                reader.of_directory(&mut group, directory, name);
            }
            let (hook, group) = reader.hook(group)?;
            let rule = reader.rule(&group)?;
            Some(Rule { hook, ..rule })
        });
        let Some(rule) = rule.filter(|_| reader.errors.is_empty()) else {
            reader.errors.sort_by_key(|error| error.at);
            return Err(RuleErrors::Rule(reader.errors));
        };
        rule.checked((file, names))
    }

    /// Checks the rule's job for an example file, as any job is checked.
    fn checked(mut self, named: (&str, ErrorNames)) -> Result<Self, RuleErrors> {
        let sample = FilledTask::sample(&self);
        let job = Job::of_group(named, self.job_group(&[sample]), &CompleteCluster)?;
        self.workdir = job.workdir;
        if let Some(group) = self.reduce_group(1, 1, &["/part".to_owned()]) {
            Job::of_group(named, group, &CompleteCluster)?;
        }
        Ok(self)
    }
}

/// A cluster in which every file exists and is complete.
#[derive(Debug)]
pub(super) struct CompleteCluster;

impl DirectoryLookup for CompleteCluster {
    fn list(&self, _: &str) -> Vec<ListedName> {
        Vec::new()
    }

    fn made_of(&self, _: &str) -> Option<ExternalInput> {
        let object = ObjectId(1);
        let layout = Layout::Whole(Part::on(object, 1, NodeId(0)));
        Some(ExternalInput { object, layout })
    }

    fn mapped(&self, _: &str, _: &ExternalInput, _: &Mapping<'_>) -> Result<MapperResult, String> {
        let selection = Selection::WHOLE;
        let instances = vec![MappedSelection {
            number: 0,
            selection,
        }];
        Ok(MapperResult {
            instances,
            count: 1,
            ..MapperResult::default()
        })
    }

    fn mapped_directory(&self, _: &str, _: &Mapping<'_>) -> Result<Option<DirectoryMap>, String> {
        Ok(None)
    }

    /// The properties of a kernel are only known on the nodes that run it.
    fn folds(&self, _: &str, _: &[String]) -> bool {
        true
    }
}

/// Reads the settings of a rule from its text.
fn settings(file: &str, text: &str) -> Result<SettingGroup, (Position, RuleProblem)> {
    if text.len() > MAX_RULE_BYTES {
        return Err((Position::START, RuleProblem::Length(text.len())));
    }
    match TextForm::of(text) {
        // Sections are no rule; the error of the XML parser names the element that it expects.
        TextForm::Xml | TextForm::Sections => {
            xml::read(text).map_err(|(at, what)| (at, RuleProblem::Xml(what)))
        }
        TextForm::Libconfig | TextForm::Toml => script::parse(file, text.as_bytes())
            .map_err(|error| (error.at, RuleProblem::Script(error.problem))),
    }
}

struct RuleReader<'a> {
    file: &'a str,
    /// Names of tables and settings in errors.
    names: ErrorNames,
    errors: Vec<RuleError>,
}

impl RuleReader<'_> {
    fn error(&mut self, at: Position, problem: RuleProblem) {
        self.errors.push(RuleError {
            file: self.file.to_owned(),
            at,
            problem,
        });
    }

    fn group(&mut self, text: &str) -> Option<SettingGroup> {
        let found = settings(self.file, text);
        found.map_err(|(at, problem)| self.error(at, problem)).ok()
    }

    /// Adds settings that the rule of a directory does not set itself.
    fn of_directory(&mut self, group: &mut SettingGroup, directory: &str, name: &str) {
        if let Some(given) = group.get("workdir") {
            let advice = "the directory with the attribute is its working directory: leave it out";
            self.unknown(given.at, "the rule of a directory", "workdir", advice);
        }
        for (setting, text) in [("workdir", directory), ("name", name)] {
            if group.get(setting).is_none() {
                let (at, data) = (Position::START, ValueData::Text(text.to_owned()));
                let (name, value) = (setting.to_owned(), ScriptValue { data, at });
                group.settings.push(Setting { name, at, value });
            }
        }
    }

    fn type_error(&mut self, name: &'static str, expected: &'static str, value: &ScriptValue) {
        let name = self.names.setting(name).to_owned();
        let found = value.data.kind();
        self.error(
            value.at,
            RuleProblem::Type {
                name,
                expected,
                found,
            },
        );
    }

    fn text<'a>(
        &mut self,
        group: &'a SettingGroup,
        name: &'static str,
    ) -> Option<(&'a str, Position)> {
        let value = &group.get(name)?.value;
        if let ValueData::Text(text) = &value.data {
            return Some((text, value.at));
        }
        self.type_error(name, "a string", value);
        None
    }

    fn rule(&mut self, group: &SettingGroup) -> Option<Rule> {
        let name = self.name(group);
        let workdir = self.workdir(group);
        let pattern = self.pattern(group, workdir.as_deref());
        let conditions = self.conditions(group);
        let streaming = self.streaming(group, &conditions);
        let batch = self.batch(group);
        let depth = self.depth(group);
        let task = self.task(group);
        let settings = group.settings.iter();
        let own = |setting: &&Setting| !OWN.contains(&setting.name.as_str());
        let job = SettingGroup {
            settings: settings.filter(own).cloned().collect(),
        };
        let rule = Rule {
            name: name?,
            workdir: workdir?,
            pattern: pattern?,
            conditions,
            streaming,
            batch,
            hook: None,
            depth,
            job,
            task: task?,
        };
        for (at, problem) in fill::check(&rule) {
            self.error(at, problem);
        }
        Some(rule)
    }

    /// Generates the task of a rule that is a hook.
    fn hook(&mut self, group: SettingGroup) -> Option<(Option<Hook>, SettingGroup)> {
        match super::hook::expanded(&group) {
            Ok(None) => Some((None, group)),
            Ok(Some((hook, group))) => Some((Some(hook), group)),
            Err(wrong) => {
                for (at, problem) in wrong {
                    self.error(at, problem);
                }
                None
            }
        }
    }

    /// Returns whether the rule reads streaming files. Refuses conditions that are unknown while a file is being written.
    fn streaming(&mut self, group: &SettingGroup, conditions: &RuleConditions) -> bool {
        let when = self.text(group, "when");
        match when {
            Some(("streaming", _)) => {}
            Some(("sealed", _)) | None => return false,
            Some((when, at)) => {
                self.error(at, RuleProblem::When(when.to_owned()));
                return false;
            }
        }
        let of = |name: &str, within: &str| {
            let setting = group.get(within)?;
            match &setting.value.data {
                ValueData::Group(settings) => Some(settings.get(name)?.at),
                _ => None,
            }
        };
        let sealed = self.names.either(
            "only for closed files: leave it out, or leave out event = \"writing\"",
            "only for sealed versions: leave it out, or leave out when = \"streaming\"",
        );
        if let Some(setting) = group.get("batch") {
            let (name, what) = ("batch", sealed.to_owned());
            self.error(setting.at, RuleProblem::Value { name, what });
        }
        if let (Some((at, condition)), Some(setting)) =
            (conditions.sealed_only(), group.get("where"))
        {
            let (name, what) = ("where", format!("a condition on {condition} is {sealed}"));
            let at = within(setting.value.at, at);
            self.error(at, RuleProblem::Value { name, what });
        }
        for (name, advice) in [
            ("node", "it runs where the file is written"),
            (
                "per",
                "a file that is still being written has no stripes yet",
            ),
        ] {
            if let Some(at) = of(name, "task") {
                let place = self.names.either(
                    "[task] of a rule with event = \"writing\"",
                    "the task of a rule with when = \"streaming\"",
                );
                self.unknown(at, place, name, advice);
            }
        }
        true
    }

    fn unknown(
        &mut self,
        at: Position,
        place: &'static str,
        name: &str,
        advice: impl Into<String>,
    ) {
        let (name, advice) = (name.to_owned(), advice.into());
        self.error(
            at,
            RuleProblem::Unknown {
                place,
                name,
                advice,
            },
        );
    }

    fn missing(&mut self, name: &'static str, example: &'static str) {
        let name = format!("setting \"{}\"", self.names.setting(name));
        self.error(Position::START, RuleProblem::Missing(name, example));
    }

    fn name(&mut self, group: &SettingGroup) -> Option<String> {
        if group.get("name").is_none() {
            self.missing("name", "it identifies the rule, as in name = \"monthly\"");
        }
        let (name, at) = self.text(group, "name")?;
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
        let good = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(plain);
        if !good || name.starts_with(['.', '-']) || name.chars().all(|c| c.is_ascii_digit()) {
            self.error(at, RuleProblem::Name(name.to_owned()));
            return None;
        }
        Some(name.to_owned())
    }

    fn workdir(&mut self, group: &SettingGroup) -> Option<String> {
        if group.get("workdir").is_none() {
            let what =
                "the directory to which all names are relative, as in workdir = \"/climate\"";
            self.missing("workdir", what);
        }
        let (workdir, at) = self.text(group, "workdir")?;
        if !workdir.starts_with('/') {
            let name = "workdir";
            let what = format!("{workdir:?} is not absolute: write \"/{workdir}\"");
            self.error(at, RuleProblem::Value { name, what });
            return None;
        }
        Some(format!("/{}", workdir.trim_matches('/')))
    }

    fn pattern(&mut self, group: &SettingGroup, workdir: Option<&str>) -> Option<Pattern> {
        if let (Some(_), Some(regex)) = (group.get("pattern"), group.get("regex")) {
            let pattern = self.names.setting("pattern");
            self.error(regex.at, RuleProblem::BothPatterns(pattern));
            return None;
        }
        if let Some((text, at)) = self.text(group, "regex") {
            return self.compiled(at, 1, Pattern::of_regex(text));
        }
        if group.get("pattern").is_none() && group.get("regex").is_none() {
            self.missing(
                "pattern",
                "the files to which the rule applies, as in \"run-{n}/*.nc\"",
            );
        }
        let (text, at) = self.text(group, "pattern")?;
        let below = match text.strip_prefix('/') {
            None => text,
            Some(absolute) => {
                let workdir = workdir?.trim_start_matches('/');
                let below = absolute.strip_prefix(workdir);
                let below = below.filter(|below| workdir.is_empty() || below.starts_with('/'));
                let Some(below) = below else {
                    self.error(at, RuleProblem::Outside(format!("/{workdir}")));
                    return None;
                };
                below.trim_start_matches('/')
            }
        };
        // The position is after the quotation mark and the removed prefix of the pattern.
        let before = text.chars().count() - below.chars().count() + 1;
        self.compiled(at, before, Pattern::with_names(below))
    }

    /// Checks a pattern that begins `before` characters after a position.
    fn compiled(
        &mut self,
        at: Position,
        before: usize,
        found: Result<Pattern, PatternError>,
    ) -> Option<Pattern> {
        let found = found.and_then(|pattern| {
            let is_reserved =
                |name: &&str| VARIABLES.contains(name) || INSTANCE_NUMBERS.contains(name);
            let reserved = pattern.names().find(is_reserved).map(str::to_owned);
            match reserved {
                None => Ok(pattern),
                Some(name) => {
                    let what = format!("the name {name:?} is reserved; choose another name");
                    Err(PatternError { at: 0, what })
                }
            }
        });
        let error = match found {
            Ok(pattern) => return Some(pattern),
            Err(error) => error,
        };
        let before = u32::try_from(before + error.at).unwrap_or(u32::MAX);
        let column = at.column.saturating_add(before);
        self.error(Position { column, ..at }, RuleProblem::Pattern(error.what));
        None
    }

    fn depth(&mut self, group: &SettingGroup) -> u32 {
        let Some(setting) = group.get("depth") else {
            return DEFAULT_DEPTH;
        };
        let given = match setting.value.data {
            ValueData::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        };
        let depth = given.filter(|depth| (1..=MAX_DEPTH).contains(depth));
        depth.unwrap_or_else(|| {
            let given = &setting.value;
            let what = format!("{given} is not a number from 1 to {MAX_DEPTH}");
            self.error(
                setting.value.at,
                RuleProblem::Value {
                    name: "depth",
                    what,
                },
            );
            DEFAULT_DEPTH
        })
    }

    fn task(&mut self, group: &SettingGroup) -> Option<SettingGroup> {
        let Some(setting) = group.get("task") else {
            let task = self.names.either("table [task]", "setting \"task\"");
            let what =
                "the task to run, as in { kernel = \"wordcount\", output = [\"{stem}.txt\"] }";
            self.error(Position::START, RuleProblem::Missing(task.to_owned(), what));
            return None;
        };
        let ValueData::Group(task) = &setting.value.data else {
            self.type_error("task", "a table", &setting.value);
            return None;
        };
        let each = "its name comes from the rule and the version, and it runs once for each file that matches";
        for name in ["name", "foreach"] {
            if let Some(given) = task.get(name) {
                let place = self.names.either("[task] of a rule", "the task of a rule");
                self.unknown(given.at, place, name, each);
            }
        }
        if let Some(tasks) = group.get("tasks") {
            self.unknown(tasks.at, "a rule", "tasks", "it has one \"task\"");
        }
        Some(task.clone())
    }

    fn batch(&mut self, group: &SettingGroup) -> Option<FileGrouping> {
        let value = &group.get("batch")?.value;
        let (mut files, mut after) = (None, None);
        match &value.data {
            ValueData::Group(settings) => {
                for setting in &settings.settings {
                    match setting.name.as_str() {
                        "files" => files = Some(&setting.value),
                        "after" => after = Some(&setting.value),
                        name => {
                            let advice = advice(name, &BATCH_SETTINGS);
                            self.unknown(setting.at, "\"batch\"", name, advice);
                        }
                    }
                }
            }
            ValueData::Integer(_) => files = Some(value),
            ValueData::Text(_) => after = Some(value),
            _ => {
                let expected = "a number of files, a time such as \"5s\", or a table { files = 100, after = \"5s\" }";
                self.type_error("batch", expected, value);
                return None;
            }
        }
        let count = files.map(|value| self.batch_files(value));
        let after = after.map(|value| self.batch_after(value));
        Some(FileGrouping {
            files: count.unwrap_or(Some(BATCH_IN_TIME))?,
            after: match after {
                Some(after) => Some(after?),
                None => None,
            },
        })
    }

    fn batch_files(&mut self, value: &ScriptValue) -> Option<u32> {
        let given = match value.data {
            ValueData::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        };
        let files = given.filter(|files| (1..=MAX_BATCH).contains(files));
        if files.is_none() {
            let what = format!("{value} is no number of files: a task has 1 to {MAX_BATCH} files");
            self.error(
                value.at,
                RuleProblem::Value {
                    name: "batch",
                    what,
                },
            );
        }
        files
    }

    fn batch_after(&mut self, value: &ScriptValue) -> Option<tidemill_model::time::Span> {
        let given = match &value.data {
            ValueData::Text(text) => quantity::duration(text).ok(),
            _ => None,
        };
        if given.is_none() {
            let what =
                format!("{value} is no time: a time is a number with s, m, h or d, as in \"5s\"");
            self.error(
                value.at,
                RuleProblem::Value {
                    name: "batch",
                    what,
                },
            );
        }
        given
    }

    fn conditions(&mut self, group: &SettingGroup) -> RuleConditions {
        let none = RuleConditions::default();
        let Some(setting) = group.get("where") else {
            return none;
        };
        let ValueData::Text(text) = &setting.value.data else {
            let expected =
                "a condition in quotes, such as \"size >= 1MB and user.project = 'tide*'\"";
            self.type_error("where", expected, &setting.value);
            return none;
        };
        let found = RuleConditions::read(text);
        found.unwrap_or_else(|error| {
            let at = within(setting.value.at, error.at);
            self.error(at, error.into());
            none
        })
    }
}

/// Returns the position of a character of a text after the text's quotation mark.
fn within(at: Position, before: usize) -> Position {
    let before = u32::try_from(before + 1).unwrap_or(u32::MAX);
    let column = at.column.saturating_add(before);
    Position { column, ..at }
}
