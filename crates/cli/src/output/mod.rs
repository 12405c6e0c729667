//! Printing of results: one trait with a text and a JSON form. The output of a command is a [`View`], which has both forms and does not
//! know its destination.

pub(crate) mod apps;
pub(crate) mod atomic_file;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod energy;
pub(crate) mod explain;
pub(crate) mod files;
pub(crate) mod find;
pub(crate) mod health;
pub(crate) mod hook;
pub(crate) mod inspect;
pub(crate) mod job;
pub(crate) mod lineage;
pub(crate) mod node;
pub(crate) mod places;
pub(crate) mod plan;
pub(crate) mod prov;
pub(crate) mod reduce;
pub(crate) mod remote;
pub(crate) mod report;
pub(crate) mod reservation;
pub(crate) mod rule;
pub(crate) mod scrub;
pub(crate) mod stage;
pub(crate) mod stat;
pub(crate) mod token;
pub(crate) mod workspace;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use tidemill_core::display;

/// Output of a command.
pub(crate) trait View {
    /// Writes the text for people.
    fn text(&self, out: &mut dyn Write) -> io::Result<()>;
    /// Returns the value for programs: sizes in bytes, times in nanoseconds.
    fn json(&self) -> Value;
}

/// Destination of views.
pub(crate) trait Output: std::fmt::Debug + Send + Sync {
    /// Prints one view.
    ///
    /// # Errors
    /// If standard output can't be written.
    fn show(&self, view: &dyn View) -> io::Result<()>;

    /// Prints one step of a continuous output: one line in JSON.
    ///
    /// # Errors
    /// If standard output can't be written.
    fn step(&self, view: &dyn View) -> io::Result<()> {
        self.show(view)
    }
}

/// Chooses the destination by the flag `--json`.
pub(crate) fn choose(json: bool) -> Box<dyn Output> {
    if json {
        Box::new(Json)
    } else {
        Box::new(TextOutput)
    }
}

/// Destination for people. Names and messages may come from untrusted users: control sequences for the terminal are not printed.
#[derive(Debug)]
struct TextOutput;

impl Output for TextOutput {
    fn show(&self, view: &dyn View) -> io::Result<()> {
        let mut text = Vec::new();
        view.text(&mut text)?;
        let mut out = io::stdout().lock();
        out.write_all(display::lines(&String::from_utf8_lossy(&text)).as_bytes())?;
        out.flush()
    }
}

/// Destination for programs.
#[derive(Debug)]
struct Json;

impl Output for Json {
    fn show(&self, view: &dyn View) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", harmless(&format!("{:#}", view.json())))?;
        out.flush()
    }

    fn step(&self, view: &dyn View) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", harmless(&view.json().to_string()))?;
        out.flush()
    }
}

/// Escapes the control characters that JSON itself allows (from U+007F on); the value stays the same.
fn harmless(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c >= '\u{7f}' && c.is_control() {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// Returns a path or name of this machine in its JSON form: [`display::escaped`].
pub(crate) fn exact(path: impl AsRef<OsStr>) -> String {
    display::escaped(path.as_ref().as_bytes())
}

/// A sentence that reports an action, and the same as data.
#[derive(Debug)]
pub(crate) struct Printed {
    text: String,
    json: Value,
}

impl Printed {
    /// Makes both forms.
    pub(crate) fn new(text: impl Into<String>, json: Value) -> Self {
        Self {
            text: text.into(),
            json,
        }
    }
}

impl View for Printed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.text.is_empty() {
            return Ok(());
        }
        writeln!(out, "{}", self.text.trim_end_matches('\n'))
    }

    fn json(&self) -> Value {
        self.json.clone()
    }
}

/// Returns a table without borders; the columns in `right` are aligned to the right.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().copied());
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Writes a table without the trailing spaces of its last column.
pub(crate) fn write_table(out: &mut dyn Write, table: &Table) -> io::Result<()> {
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_json_keeps_value_and_escapes_control_characters() {
        let value = serde_json::json!({ "name": "a\u{9b}2J\x1b[1m\u{7f}ä" });
        for text in [format!("{value:#}"), value.to_string()] {
            let text = harmless(&text);
            assert!(!text.replace('\n', "").contains(char::is_control), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
