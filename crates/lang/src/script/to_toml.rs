//! Printer of a tree of values as TOML, which parses back to the same tree. Empty and mixed arrays become lists, and the settings of a rule
//! follow those of its job.

use super::from_toml::EVENTS;
use super::{ScriptValue, Setting, SettingGroup, ValueData};
use std::fmt::{Display, Formatter, Result, Write};

impl SettingGroup {
    /// Returns a job or a rule as TOML: the tables `[job]` and `[[task]]`, or `[job]`, `[on]`, `[task]` and `[hook]`.
    #[must_use]
    pub fn to_toml(&self) -> String {
        Toml(self).to_string()
    }
}

/// A tree to print as TOML.
struct Toml<'a>(&'a SettingGroup);

/// Table in which a setting of the tree is printed.
enum Place<'a> {
    /// `[job]`
    Job,
    /// `[on]`, with this name.
    On(&'a str),
    /// `[task]` or `[hook]`
    Table(&'a SettingGroup),
    /// `[[task]]`
    Tasks(&'a [ScriptValue]),
}

impl<'a> Place<'a> {
    fn of(setting: &'a Setting, is_rule: bool) -> Self {
        match (setting.name.as_str(), &setting.value.data) {
            ("pattern", _) if is_rule => Self::On("files"),
            ("when", ValueData::Text(when)) if is_rule && event(when).is_some() => {
                Self::On("event")
            }
            (name @ ("regex" | "where" | "batch" | "depth"), _) if is_rule => Self::On(name),
            ("task" | "hook", ValueData::Group(group)) if is_rule => Self::Table(group),
            ("tasks", ValueData::List(tasks)) if !is_rule && are_groups(tasks) => {
                Self::Tasks(tasks)
            }
            _ => Self::Job,
        }
    }
}

fn are_groups(values: &[ScriptValue]) -> bool {
    let mut groups = values.iter();
    !values.is_empty() && groups.all(|value| matches!(value.data, ValueData::Group(_)))
}

/// Returns the event for a value of `when`.
fn event(when: &str) -> Option<&'static str> {
    let found = EVENTS.iter().find(|(_, known)| *known == when);
    found.map(|(event, _)| *event)
}

impl Display for Toml<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self(script) = self;
        let is_rule = script.get("pattern").is_some() || script.get("regex").is_some();
        let placed = script.settings.iter();
        let placed: Vec<_> = placed.map(|one| (one, Place::of(one, is_rule))).collect();
        f.write_str("[job]\n")?;
        for (setting, place) in &placed {
            if let Place::Job = place {
                entry(f, &setting.name, &setting.value)?;
            }
        }
        if is_rule {
            f.write_str("\n[on]\n")?;
        }
        for (setting, place) in &placed {
            match (place, &setting.value.data) {
                (Place::On("event"), ValueData::Text(when)) => {
                    let event = event(when).unwrap_or(when.as_str());
                    f.write_str("event = ")?;
                    quoted(f, event)?;
                    f.write_char('\n')?;
                }
                (Place::On(name), _) => entry(f, name, &setting.value)?,
                _ => {}
            }
        }
        for (setting, place) in &placed {
            match place {
                Place::Table(group) => {
                    writeln!(f, "\n[{}]", setting.name)?;
                    entries(f, group)?;
                }
                Place::Tasks(tasks) => tasks.iter().try_for_each(|task| table(f, task))?,
                Place::Job | Place::On(_) => {}
            }
        }
        Ok(())
    }
}

/// Prints one task of a job.
fn table(f: &mut Formatter<'_>, task: &ScriptValue) -> Result {
    f.write_str("\n[[task]]\n")?;
    match &task.data {
        ValueData::Group(group) => entries(f, group),
        _ => Ok(()),
    }
}

fn entries(f: &mut Formatter<'_>, group: &SettingGroup) -> Result {
    let mut settings = group.settings.iter();
    settings.try_for_each(|setting| entry(f, &setting.name, &setting.value))
}

fn entry(f: &mut Formatter<'_>, name: &str, printed: &ScriptValue) -> Result {
    key(f, name)?;
    f.write_str(" = ")?;
    value(f, printed)?;
    f.write_char('\n')
}

fn key(f: &mut Formatter<'_>, name: &str) -> Result {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !name.is_empty() && name.chars().all(plain) {
        true => f.write_str(name),
        false => basic(f, name),
    }
}

fn value(f: &mut Formatter<'_>, printed: &ScriptValue) -> Result {
    match &printed.data {
        ValueData::Boolean(boolean) => write!(f, "{boolean}"),
        ValueData::Integer(number) => write!(f, "{number}"),
        ValueData::Float(number) => write!(f, "{number:?}"),
        ValueData::Text(text) => quoted(f, text),
        ValueData::Template(template) => quoted(f, &template.written()),
        ValueData::Array(values) | ValueData::List(values) => {
            f.write_char('[')?;
            for (index, element) in values.iter().enumerate() {
                f.write_str(if index > 0 { ", " } else { "" })?;
                value(f, element)?;
            }
            f.write_char(']')
        }
        ValueData::Group(group) if group.settings.is_empty() => f.write_str("{}"),
        ValueData::Group(group) => {
            for (index, setting) in group.settings.iter().enumerate() {
                f.write_str(if index > 0 { ", " } else { "{ " })?;
                key(f, &setting.name)?;
                f.write_str(" = ")?;
                value(f, &setting.value)?;
            }
            f.write_str(" }")
        }
    }
}

/// Prints a text. Single quotes keep regular expressions readable, because they have no escapes.
fn quoted(f: &mut Formatter<'_>, text: &str) -> Result {
    let is_literal =
        text.contains(['"', '\\']) && !text.contains(|c: char| c == '\'' || c.is_control());
    match is_literal {
        true => write!(f, "'{text}'"),
        false => basic(f, text),
    }
}

fn basic(f: &mut Formatter<'_>, text: &str) -> Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}
