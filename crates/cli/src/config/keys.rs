//! The keys of the configuration file: the flags whose environment variables begin with the name of a section.

use clap::{Arg, Command};

/// Sections whose keys are flags of one command, with the words of that command.
const SECTIONS: [(&str, &[&str]); 5] = [
    ("server", &["server", "run"]),
    ("node", &["node", "run"]),
    ("mount", &["mount"]),
    ("up", &["up"]),
    ("submit", &["submit"]),
];

/// Sections of keys that every command uses; the keys of the first section stand above all sections of the file.
const GLOBAL: [(&str, &[&str]); 2] = [("", &["dir", "tls"]), ("client", &["server", "token_file"])];

/// Key of the configuration file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    /// Section; empty: above all sections.
    pub(crate) section: &'static str,
    /// Words of the command of the flag; empty: every command.
    pub(crate) command: &'static [&'static str],
    /// The flag.
    pub(crate) arg: &'a Arg,
}

impl Key<'_> {
    /// Returns the name of the key in its section.
    pub(crate) fn name(&self) -> String {
        self.arg.get_id().as_str().replace('_', "-")
    }

    /// Returns the name of the environment variable.
    pub(crate) fn variable(&self) -> String {
        variable(self.arg)
    }
}

/// Returns the name of the environment variable of a flag; empty if there is none.
fn variable(arg: &Arg) -> String {
    let name = arg.get_env().map(|name| name.to_string_lossy());
    name.unwrap_or_default().into_owned()
}

/// Returns all keys, in the order of the help. The file also has `[server.nodes.N]`, whose keys are no flags.
pub(crate) fn keys(line: &Command) -> Vec<Key<'_>> {
    let mut keys = Vec::new();
    for (section, names) in GLOBAL {
        let known = |arg: &&Arg| names.contains(&arg.get_id().as_str());
        let found = line.get_arguments().filter(known);
        keys.extend(found.map(|arg| Key {
            section,
            command: &[],
            arg,
        }));
    }
    for (section, command) in SECTIONS {
        let found = command
            .iter()
            .try_fold(line, |found, word| found.find_subcommand(word));
        let prefix = format!("TIDEMILL_{}_", section.to_uppercase());
        let arguments = found.into_iter().flat_map(Command::get_arguments);
        let arguments = arguments.filter(|arg| variable(arg).starts_with(&prefix));
        keys.extend(arguments.map(|arg| Key {
            section,
            command,
            arg,
        }));
    }
    keys
}
