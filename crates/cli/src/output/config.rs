//! Settings and their origins.

use super::{View, exact, table, write_table};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;
use tidemill_core::display::line;

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Flag of this command.
    Flag,
    /// Environment variable, with its name.
    Environment(String),
    /// Configuration file.
    File,
    /// Built-in default, in the words of the help.
    Default,
}

impl Origin {
    /// Returns the name of the kind of origin.
    fn name(&self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment(_) => "environment",
            Self::File => "file",
            Self::Default => "default",
        }
    }
}

/// Key of the configuration with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Section of the file; empty for keys above all sections.
    pub(crate) section: String,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

/// Output of `tidemill config show`.
#[derive(Debug)]
pub(crate) struct ConfigView {
    /// Configuration file, if one was read.
    pub(crate) path: Option<PathBuf>,
    pub(crate) settings: Vec<Setting>,
}

impl View for ConfigView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.path {
            Some(path) => writeln!(out, "file  {}\n", line(&path.to_string_lossy()))?,
            None => writeln!(out, "file  (none)\n")?,
        }
        if self.settings.is_empty() {
            return writeln!(out, "(every setting has its default; see --all)");
        }
        let mut rows = table(&["SECTION", "KEY", "VALUE", "ORIGIN"], &[]);
        for setting in &self.settings {
            let section = match setting.section.as_str() {
                "" => "-",
                section => section,
            };
            let origin = match &setting.origin {
                Origin::Environment(name) => format!("environment ({name})"),
                origin => origin.name().to_owned(),
            };
            let value = line(&setting.value);
            rows.add_row([section, &setting.key, &value, &origin]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        let settings = self.settings.iter().map(|setting| {
            let from = match &setting.origin {
                Origin::Environment(name) => Some(name.clone()),
                Origin::File => self.path.as_ref().map(exact),
                Origin::Flag | Origin::Default => None,
            };
            json!({
                "section": setting.section,
                "key": setting.key,
                "value": setting.value,
                "origin": setting.origin.name(),
                "from": from,
            })
        });
        json!({
            "file": self.path.as_ref().map(exact),
            "settings": settings.collect::<Vec<_>>(),
        })
    }
}
