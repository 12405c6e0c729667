//! Settings and their origins.

use super::table::{Text, columns};
use super::{Report, exact, records};
use std::path::Path;
use tidemill_model::display::line;

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

/// Key of the configuration with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Section of the file; empty for keys above all sections.
    pub(crate) section: String,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

records! {
    /// Settings, and the configuration file if one was read.
    Configuration { file: Option<String>, settings: Vec<ShownSetting> }

    /// Setting.
    ShownSetting {
        /// Section of the file; empty for keys above all sections.
        section: String,
        key: String, value: String,
        /// `flag`, `environment`, `file` or `default`.
        origin: &'static str,
        /// Environment variable or file with the value.
        from: Option<String>,
    }
}

impl Configuration {
    /// Makes the result from the settings and the path of the configuration file.
    pub(crate) fn new(path: Option<&Path>, settings: Vec<Setting>) -> Self {
        let shown = |setting: Setting| {
            let (origin, from) = match setting.origin {
                Origin::Flag => ("flag", None),
                Origin::Environment(name) => ("environment", Some(name)),
                Origin::File => ("file", path.map(exact)),
                Origin::Default => ("default", None),
            };
            let Setting {
                section,
                key,
                value,
                ..
            } = setting;
            ShownSetting {
                section,
                key,
                value,
                origin,
                from,
            }
        };
        Self {
            file: path.map(exact),
            settings: settings.into_iter().map(shown).collect(),
        }
    }
}

columns! { one: ShownSetting {
    left "SECTION" => if one.section.is_empty() { "-" } else { &one.section },
    left "KEY" => one.key,
    left "VALUE" => one.value,
    left "ORIGIN" => match (one.origin, &one.from) {
        ("environment", Some(name)) => format!("environment ({name})"),
        (origin, _) => origin.to_owned(),
    },
} }

impl Report for Configuration {
    fn text(&self, out: &mut Text) {
        let file = self
            .file
            .as_deref()
            .map_or_else(|| "(none)".to_owned(), line);
        writeln!(out, "file  {file}\n");
        match self.settings.is_empty() {
            true => writeln!(out, "(every setting has its default; see --all)"),
            false => out.table(&self.settings),
        }
    }
}
