//! Parser of INI files that keeps the number of every line: sections, `key = value`, comments from `#` or `;` to the end of the line, white
//! space around everything. Values have no quotes and no escapes.

use super::error::{FileProblem, InputError};

/// Section of an INI file.
#[derive(Debug)]
pub(super) struct IniSection {
    /// Name of the section between the square brackets.
    pub(super) name: String,
    /// Line on which the section begins.
    pub(super) line: u32,
    /// Settings of the section in their order, each key once.
    pub(super) keys: Vec<IniSetting>,
}

/// Setting `name = value` of an INI file.
#[derive(Debug)]
pub(super) struct IniSetting {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) line: u32,
}

/// Parses the text of an INI file. `file` is the name used in errors.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<IniSection>, InputError> {
    let mut sections: Vec<IniSection> = Vec::new();
    for (line, full) in (1..).zip(text.lines()) {
        let error = |problem| InputError::new(file, line, problem);
        let content = full.split(['#', ';']).next().unwrap_or("").trim();
        if content.is_empty() {
            continue;
        }
        if let Some(rest) = content.strip_prefix('[') {
            let name = rest
                .strip_suffix(']')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .ok_or_else(|| error(FileProblem::NotIni(content.to_owned())))?;
            if let Some(first) = sections.iter().find(|section| section.name == name) {
                return Err(error(FileProblem::Twice {
                    what: format!("section [{name}]"),
                    first: first.line,
                }));
            }
            sections.push(IniSection {
                name: name.to_owned(),
                line,
                keys: Vec::new(),
            });
            continue;
        }
        let (name, value) = content
            .split_once('=')
            .ok_or_else(|| error(FileProblem::NotIni(content.to_owned())))?;
        let key = IniSetting {
            name: name.trim().to_owned(),
            value: value.trim().to_owned(),
            line,
        };
        let section = sections
            .last_mut()
            .ok_or_else(|| error(FileProblem::OutsideSection(key.name.clone())))?;
        if let Some(first) = section.keys.iter().find(|other| other.name == key.name) {
            return Err(error(FileProblem::Twice {
                what: format!("`{}`", key.name),
                first: first.line,
            }));
        }
        section.keys.push(key);
    }
    Ok(sections)
}
