//! Parser of TOML: converts a text with the tables `[job]`, `[[task]]`, `[on]` and `[hook]` to the tree that libconfig has for the same job
//! or rule.
//!
//! | TOML | tree |
//! |---|---|
//! | settings of `[job]` | settings |
//! | `[[task]]`, or one `[task]` | `tasks = ( { … }, … )`; in a rule `task = { … }` |
//! | `[on]` with `files` and `event` | `pattern` and `when`; its other settings keep their names |
//! | `args = { op = "mean", n = 3 }` of a task | `args = [ "op=mean", "n=3" ]` |
//! | `[hook]` | `hook = { … }` |
//!
//! `[on]` makes the text a rule. Arrays of plain values of one type become arrays, and all other arrays become lists.

use super::Positions;
use super::parse::is_name;
use super::{
    MAX_DEPTH, Position, ScriptProblem, ScriptValue, Setting, SettingGroup, ValueData, is_array,
};
use std::collections::BTreeMap;
use tidemill_model::similar_names::nearest;
use toml::Spanned;
use toml::de::{DeArray, DeFloat, DeInteger, DeString, DeTable, DeValue};

/// Tables of a text.
pub(crate) const TABLES: [&str; 4] = ["job", "task", "on", "hook"];
/// Settings of `[on]`.
pub(crate) const ON_SETTINGS: [&str; 6] = ["files", "regex", "event", "where", "batch", "depth"];
/// Setting of a task that may be a table of arguments.
const ARGS: &str = "args";
/// Events of `[on]`, with the values of `when` in the tree.
pub(crate) const EVENTS: [(&str, &str); 2] = [("closed", "sealed"), ("writing", "streaming")];
/// Number of brackets and dots around a value beyond which the text is not given to the TOML parser: the parser recurses for each.
const MAX_NESTED: usize = 2 * MAX_DEPTH as usize;

/// Problem and its position.
type TomlFault = (Position, ScriptProblem);
/// Key and value of a table.
type TomlEntry<'t, 'i> = (&'t Spanned<DeString<'i>>, &'t Spanned<DeValue<'i>>);

/// Parses a whole text in TOML.
///
/// # Errors
/// The first position at which `text` is not TOML, or not in the form of jobs and rules.
pub(super) fn parse(text: &str) -> Result<SettingGroup, TomlFault> {
    let positions = Positions::new(text);
    if let Some(offset) = too_deep(text) {
        return Err((positions.at(offset), ScriptProblem::Depth));
    }
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let problem = ScriptProblem::Toml(error.message().to_owned());
        (positions.at(offset.min(text.len())), problem)
    })?;
    TomlReader { positions }.script(table.get_ref())
}

struct TomlReader<'s> {
    positions: Positions<'s>,
}

impl TomlReader<'_> {
    fn script(&self, table: &DeTable<'_>) -> Result<SettingGroup, TomlFault> {
        let entries = sorted(table);
        let is_rule = entries.iter().any(|(key, _)| &**key.get_ref() == "on");
        let mut script = SettingGroup::default();
        for (key, value) in entries {
            let at = self.positions.at(key.span().start);
            let name: &str = key.get_ref();
            let given = value.get_ref();
            match (name, given) {
                ("job", DeValue::Table(job)) => {
                    script.settings.extend(self.settings(job, 0)?.settings);
                }
                ("on", DeValue::Table(on)) => script.settings.extend(self.on(at, on)?),
                ("task", DeValue::Array(_) | DeValue::Table(_)) => {
                    let tasks = self.tasks(value)?;
                    script.settings.push(task(at, tasks, is_rule)?);
                }
                ("hook", DeValue::Table(_)) => script.settings.push(Setting {
                    name: name.to_owned(),
                    at,
                    value: self.value(value, 0)?,
                }),
                _ => return Err((at, no_table(name, given))),
            }
        }
        check_names(&script)?;
        Ok(script)
    }

    /// Returns `[task]`, or all tables `[[task]]`.
    fn tasks(&self, value: &Spanned<DeValue<'_>>) -> Result<ScriptValue, TomlFault> {
        let at = self.positions.at(value.span().start);
        let data = match value.get_ref() {
            // As deep as a table in a list, because it becomes the only task of a list.
            DeValue::Table(task) => ValueData::Group(self.entries(task, 2, true)?),
            DeValue::Array(tasks) => {
                let tasks = tasks.iter().map(|task| match task.get_ref() {
                    DeValue::Table(_) => self.tasks(task),
                    _ => self.value(task, 1),
                });
                ValueData::List(tasks.collect::<Result<_, _>>()?)
            }
            _ => return self.value(value, 0),
        };
        Ok(ScriptValue { data, at })
    }

    /// Returns a table of arguments as an array of texts.
    fn args(&self, table: &DeTable<'_>) -> Result<ValueData, TomlFault> {
        let mut args = Vec::with_capacity(table.len());
        for (key, value) in sorted(table) {
            let at = self.positions.at(key.span().start);
            let name: &str = key.get_ref();
            let in_name =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
            if name.is_empty() || !name.chars().all(in_name) {
                return Err((at, ScriptProblem::ArgumentName(name.to_owned())));
            }
            let value = self.value(value, 0)?;
            let text = match &value.data {
                ValueData::Text(text) => text.clone(),
                ValueData::Integer(number) => number.to_string(),
                ValueData::Float(number) => number.to_string(),
                ValueData::Boolean(boolean) => boolean.to_string(),
                other => {
                    let (name, found) = (name.to_owned(), other.kind());
                    return Err((value.at, ScriptProblem::ArgumentType { name, found }));
                }
            };
            let data = ValueData::Text(format!("{name}={text}"));
            args.push(ScriptValue { data, at });
        }
        Ok(ValueData::Array(args))
    }

    /// Returns the settings of a table, in the order of the text.
    fn settings(&self, table: &DeTable<'_>, depth: u32) -> Result<SettingGroup, TomlFault> {
        self.entries(table, depth, false)
    }

    /// Returns the settings of a table; the table of a task may have a table of arguments.
    fn entries(
        &self,
        table: &DeTable<'_>,
        depth: u32,
        is_task: bool,
    ) -> Result<SettingGroup, TomlFault> {
        let mut settings = Vec::with_capacity(table.len());
        for (key, value) in sorted(table) {
            let at = self.positions.at(key.span().start);
            let name = key.get_ref().to_string();
            // Names of other forms could not be printed as libconfig, and some of them have a meaning of their own.
            if !is_name(&name) {
                return Err((at, ScriptProblem::Name(name)));
            }
            let value = match value.get_ref() {
                DeValue::Table(args) if is_task && name == ARGS => ScriptValue {
                    data: self.args(args)?,
                    at: self.positions.at(value.span().start),
                },
                _ => self.value(value, depth)?,
            };
            settings.push(Setting { name, at, value });
        }
        Ok(SettingGroup { settings })
    }

    /// Returns a value within `depth` groups, lists and arrays.
    fn value(&self, value: &Spanned<DeValue<'_>>, depth: u32) -> Result<ScriptValue, TomlFault> {
        let at = self.positions.at(value.span().start);
        let fault = |problem| (at, problem);
        let data = match value.get_ref() {
            DeValue::Boolean(boolean) => ValueData::Boolean(*boolean),
            DeValue::Integer(number) => integer(number).map_err(fault)?,
            DeValue::Float(number) => float(number).map_err(fault)?,
            DeValue::String(text) => ValueData::Text(text.to_string()),
            DeValue::Datetime(_) => return Err(fault(ScriptProblem::Date)),
            DeValue::Array(_) | DeValue::Table(_) if depth == MAX_DEPTH => {
                return Err(fault(ScriptProblem::Depth));
            }
            DeValue::Array(values) => self.array(values, depth + 1)?,
            DeValue::Table(table) => ValueData::Group(self.settings(table, depth + 1)?),
        };
        Ok(ScriptValue { data, at })
    }

    fn array(&self, values: &DeArray<'_>, depth: u32) -> Result<ValueData, TomlFault> {
        let values = values.iter().map(|value| self.value(value, depth));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        Ok(match is_array(&values) {
            true => ValueData::Array(values),
            false => ValueData::List(values),
        })
    }

    /// Returns the settings of `[on]` with their names in the tree.
    fn on(&self, at: Position, table: &DeTable<'_>) -> Result<Vec<Setting>, TomlFault> {
        let mut settings = self.settings(table, 0)?.settings;
        for setting in &mut settings {
            let name = match setting.name.as_str() {
                "files" => "pattern",
                "event" => {
                    event(&mut setting.value)?;
                    "when"
                }
                name if ON_SETTINGS.contains(&name) => continue,
                name => {
                    let problem = ScriptProblem::OnSetting {
                        name: name.to_owned(),
                        nearest: nearest(name, &ON_SETTINGS),
                        valid: ON_SETTINGS.join(", "),
                    };
                    return Err((setting.at, problem));
                }
            };
            setting.name = name.to_owned();
        }
        let selects = |setting: &Setting| matches!(setting.name.as_str(), "pattern" | "regex");
        match settings.iter().any(selects) {
            true => Ok(settings),
            false => Err((at, ScriptProblem::OnFiles)),
        }
    }
}

/// Returns the entries of a table in the order of the text.
fn sorted<'t, 'i>(table: &'t DeTable<'i>) -> Vec<TomlEntry<'t, 'i>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Returns the setting for `[task]` or `[[task]]`: the task of a rule, or the tasks of a job.
fn task(at: Position, value: ScriptValue, is_rule: bool) -> Result<Setting, TomlFault> {
    let start = value.at;
    let (name, value) = match (value.data, is_rule) {
        (ValueData::List(tasks), true) => {
            if let Some(second) = tasks.get(1) {
                return Err((second.at, ScriptProblem::RuleTasks));
            }
            let data = ValueData::List(Vec::new());
            let none = ScriptValue { data, at: start };
            ("task", tasks.into_iter().next().unwrap_or(none))
        }
        (data @ ValueData::Group(_), false) => {
            let only = ScriptValue { data, at: start };
            let data = ValueData::List(vec![only]);
            ("tasks", ScriptValue { data, at: start })
        }
        (data, true) => ("task", ScriptValue { data, at: start }),
        (data, false) => ("tasks", ScriptValue { data, at: start }),
    };
    let name = name.to_owned();
    Ok(Setting { name, at, value })
}

/// Replaces an event by the value of `when`. The reader of rules refuses values that are no text.
fn event(value: &mut ScriptValue) -> Result<(), TomlFault> {
    if let ValueData::Text(given) = &mut value.data {
        let known = EVENTS.iter().find(|(event, _)| *event == given.as_str());
        let Some((_, when)) = known else {
            return Err((value.at, ScriptProblem::Event(given.clone())));
        };
        *given = (*when).to_owned();
    }
    Ok(())
}

/// Returns the problem of a table or setting outside of the known tables.
fn no_table(name: &str, given: &DeValue<'_>) -> ScriptProblem {
    let known = TABLES.iter().find(|table| **table == name);
    match known {
        Some(&name) => ScriptProblem::TableType {
            name,
            found: given.type_str(),
        },
        None => ScriptProblem::Table {
            name: name.to_owned(),
            nearest: nearest(name, &TABLES),
            valid: TABLES.join(", "),
        },
    }
}

/// Refuses a setting that two tables set.
fn check_names(script: &SettingGroup) -> Result<(), TomlFault> {
    let mut seen = BTreeMap::new();
    for setting in &script.settings {
        if let Some(first) = seen.insert(setting.name.as_str(), setting.at) {
            let name = setting.name.clone();
            return Err((setting.at, ScriptProblem::Twice { name, first }));
        }
    }
    Ok(())
}

fn integer(number: &DeInteger<'_>) -> Result<ValueData, ScriptProblem> {
    let value = i64::from_str_radix(number.as_str(), number.radix());
    let value = value.map_err(|_| ScriptProblem::Range(number.to_string()))?;
    Ok(ValueData::Integer(value))
}

fn float(number: &DeFloat<'_>) -> Result<ValueData, ScriptProblem> {
    let word = number.as_str();
    match word.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(ValueData::Float(value)),
        Ok(_) if word.ends_with(|c: char| c.is_ascii_digit()) => {
            Err(ScriptProblem::Range(word.to_owned()))
        }
        _ => Err(ScriptProblem::Number(word.to_owned())),
    }
}

/// Returns the offset of the first bracket or dot that nests a value too deeply, without recursion. Strings and comments are skipped.
fn too_deep(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    // For the text outside of brackets and within each open bracket: the closing bracket, and the dots of the present key.
    let mut open = vec![(0, 0_usize)];
    let mut nested = 0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let outside = open.len() == 1;
        let (close, dots) = open.last_mut()?;
        match byte {
            b'#' => {
                at = line_end(bytes, at);
                continue;
            }
            b'"' | b'\'' => {
                at = string_end(bytes, at);
                continue;
            }
            b'[' | b'{' => {
                open.push((if byte == b'[' { b']' } else { b'}' }, 0));
                nested += 1;
            }
            // Other closing brackets are errors, after which the TOML parser may still be within the open bracket.
            _ if !outside && byte == *close => {
                nested -= 1 + *dots;
                open.pop();
            }
            b'.' => {
                *dots += 1;
                nested += 1;
            }
            b',' | b'\n' if byte == b',' || outside => nested -= std::mem::take(dots),
            _ => {}
        }
        if nested > MAX_NESTED {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Returns the offset of the end of a line.
fn line_end(bytes: &[u8], start: usize) -> usize {
    let rest = bytes[start..].iter();
    start + rest.take_while(|byte| **byte != b'\n').count()
}

/// Returns the offset after the string that begins at `start`; a string in one line ends with its line.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let quote = bytes[start];
    let ends = [quote; 3];
    let is_long = bytes[start..].starts_with(&ends);
    let mut at = start + if is_long { ends.len() } else { 1 };
    while let Some(&byte) = bytes.get(at) {
        if byte == b'\\' && quote == b'"' {
            let escapes = matches!(bytes.get(at + 1), Some(b'"' | b'\\'));
            at += if escapes { 2 } else { 1 };
        } else if is_long && bytes[at..].starts_with(&ends) {
            // The string itself may end with one or two quotation marks.
            let more = bytes[at + ends.len()..].iter().take(2);
            return at + ends.len() + more.take_while(|byte| **byte == quote).count();
        } else if !is_long && byte == quote {
            return at + 1;
        } else if !is_long && byte == b'\n' {
            return at;
        } else {
            at += 1;
        }
    }
    bytes.len()
}
