//! Forms of a text: one place tells them apart, for jobs, rules and hooks.

use super::{MAX_SCRIPT_BYTES, Position, ScriptError, ScriptProblem, SettingGroup};
use super::{Positions, from_toml, parse::libconfig};

/// Form of a text with a job, a rule or hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextForm {
    /// libconfig.
    Libconfig,
    /// TOML with the tables `[job]`, `[[task]]`, `[on]` and `[hook]`.
    Toml,
    /// XML document with a rule.
    Xml,
    /// Sections with hooks, as in `.tidemill/hooks`.
    Sections,
}

/// Names of tables and settings in errors: those of the form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorNames {
    /// Whether the text is TOML.
    is_toml: bool,
    /// Whether the text is a rule.
    is_rule: bool,
}

impl ErrorNames {
    /// Returns the names of a job.
    #[must_use]
    pub fn of_job(text: &[u8]) -> Self {
        let form = std::str::from_utf8(text).map(TextForm::of);
        Self {
            is_toml: form == Ok(TextForm::Toml),
            is_rule: false,
        }
    }

    /// Returns the names of a rule.
    #[must_use]
    pub fn of_rule(text: &str) -> Self {
        Self {
            is_toml: TextForm::of(text) == TextForm::Toml,
            is_rule: true,
        }
    }

    /// Returns the name for a place of the tree.
    pub(crate) fn place(self, place: &'static str) -> &'static str {
        match place {
            "a job" if self.is_toml => "[job]",
            "a task" if self.is_toml && self.is_rule => "[task]",
            "a task" if self.is_toml => "[[task]]",
            place => place,
        }
    }

    /// Returns the name for a setting of the tree.
    pub(crate) fn setting(self, name: &'static str) -> &'static str {
        match name {
            "pattern" if self.is_toml => "files",
            "when" if self.is_toml => "event",
            "tasks" if self.is_toml => "task",
            name => name,
        }
    }

    /// Returns the settings that a place of the tree may have.
    pub(crate) fn valid<'v>(self, place: &str, settings: &[&'v str]) -> Vec<&'v str> {
        let is_valid = |name: &&str| match (place, *name) {
            ("a job", "tasks") => !self.is_toml,
            ("a task", "name" | "foreach") => !self.is_rule,
            _ => true,
        };
        settings.iter().copied().filter(is_valid).collect()
    }

    /// Returns the text that fits the form.
    pub(crate) fn either(self, toml: &'static str, libconfig: &'static str) -> &'static str {
        if self.is_toml { toml } else { libconfig }
    }
}

impl TextForm {
    /// Returns the form of a text. Its first line tells the form; empty lines and lines that begin with `#` do not count.
    ///
    /// A text whose first line is the header of a table is TOML: a setting of libconfig begins with a name.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let lines = text.trim_start_matches('\u{feff}').lines();
        let mut lines = lines.map(str::trim_start);
        let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
        match first.unwrap_or_default() {
            line if is_table(line) => Self::Toml,
            line if is_xml(line) => Self::Xml,
            line if line.starts_with('<') => Self::Sections,
            _ => Self::Libconfig,
        }
    }
}

/// Returns whether a line is the header of a table, and not the begin of a JSON array.
fn is_table(line: &str) -> bool {
    let name = line.trim_start_matches(['[', ' ', '\t']);
    line.starts_with('[') && name.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// Returns whether a line is the first line of an XML document with a rule.
fn is_xml(line: &str) -> bool {
    let rule = line.strip_prefix("<rule");
    let element = rule.is_some_and(|rest| {
        rest.is_empty() || rest.starts_with("/>") || rest.starts_with([' ', '\t', '>'])
    });
    element || line.starts_with("<?xml") || line.starts_with("<!--")
}

/// Parses a whole text, libconfig or TOML.
///
/// `file` is the name used in errors.
///
/// # Errors
/// The first position at which `text` is not in its form.
pub fn parse(file: &str, text: &[u8]) -> Result<SettingGroup, ScriptError> {
    let error = |(at, problem)| ScriptError {
        file: file.to_owned(),
        at,
        problem,
    };
    if text.len() > MAX_SCRIPT_BYTES {
        let problem = ScriptProblem::Length(text.len());
        return Err(error((Position::START, problem)));
    }
    let text = std::str::from_utf8(text).map_err(|e| {
        let valid = std::str::from_utf8(&text[..e.valid_up_to()]).unwrap_or_default();
        let at = Positions::new(valid).at(valid.len());
        error((at, ScriptProblem::Encoding))
    })?;
    // Some editors put a byte order mark before the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed = match TextForm::of(text) {
        TextForm::Toml => from_toml::parse(text),
        TextForm::Libconfig | TextForm::Xml | TextForm::Sections => libconfig(text),
    };
    parsed.map_err(error)
}

#[cfg(test)]
mod tests {
    use super::TextForm;

    #[test]
    fn first_line_tells_form_of_text() {
        let cases = [
            ("", TextForm::Libconfig),
            ("name = \"a\";\n[job]", TextForm::Libconfig),
            ("/* [job] */", TextForm::Libconfig),
            ("# a job\n\n  [job]\nname = 'a'", TextForm::Toml),
            ("\u{feff}[[task]]\r\n", TextForm::Toml),
            ("[{ \"a\": 1 }]", TextForm::Libconfig),
            ("<rule name=\"a\">", TextForm::Xml),
            ("<rule\n name=\"a\">", TextForm::Xml),
            ("<?xml version=\"1.0\"?>\n<rule/>", TextForm::Xml),
            ("<!-- a rule -->", TextForm::Xml),
            ("</run/*.dat>\n op: map", TextForm::Sections),
            ("# hooks\n<rules/*.dat>", TextForm::Sections),
        ];
        for (text, form) in cases {
            assert_eq!(TextForm::of(text), form, "{text:?}");
        }
    }
}
