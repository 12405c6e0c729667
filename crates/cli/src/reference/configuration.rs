//! The reference of the configuration file.

use super::commands::split_default;
use super::markdown::{ToDocs, code, table};
use crate::config::keys::{Key, keys};
use clap::{Arg, Command};
use std::fmt::Write as _;

const HEAD: &str = "# Configuration\n
This page lists every key of the configuration file `tidemill.toml`. Tidemill reads the file of `--config` or `TIDEMILL_CONFIG`, otherwise
`~/.config/tidemill/tidemill.toml`, otherwise `/etc/tidemill.toml`. A flag takes precedence over the environment, the environment over the
file, and the file over the default. An unknown key is an error. `tidemill config show --all` prints the value and the origin of every key,
and `tidemill config check FILE` checks a file. `examples/tidemill.toml` has an example of every key.

Lengths of time are strings with a unit: `\"30s\"`, `\"10m\"`, `\"2h\"`, `\"7d\"`. Sizes are numbers of bytes, or strings such as `\"500G\"`
(powers of 1000) or `\"512Mi\"` (powers of 1024).\n\n";

const NODES: &str = "## `[server.nodes.N]`\n
A section `[server.nodes.N]` overrides two keys of `[server]` for node N. These keys have no flag and no environment variable.\n
| key | type | default | description |\n|---|---|---|---|
| `suspend` | string | `suspend` of `[server]` | Command to run after the node was suspended |
| `resume` | string | `resume` of `[server]` | Command that resumes the node |\n";

/// Types of keys by the name of the value in the help.
const TYPES: [(&str, &str); 35] = [
    ("C", "integer"),
    ("TIME|off", "length of time, or `\"off\"`"),
    ("URI", "string: URI"),
    ("URL", "string: URL"),
    ("WAY", "string"),
    ("journal|NATS", "string: address"),
    ("NATS", "string: address"),
    ("BOOL", "boolean"),
    ("COMMAND", "string: command of the shell"),
    ("COMMAND|rapl", "string: command of the shell"),
    ("DIR", "string: path"),
    ("DIRECTORIES", "array of strings: paths"),
    ("DIRECTORY", "string: path"),
    ("ENDPOINT", "string: address"),
    ("FILE", "string: path"),
    ("HOST:PORT", "string: address"),
    ("ID", "integer"),
    ("N", "integer"),
    ("NAME,…", "array of strings: names"),
    ("NAME=N,…", "string: resources"),
    ("NAME=VALUE", "array of strings: variables"),
    ("N[,now]", "integer or string"),
    ("ON|OFF", "string"),
    ("PATH", "string: path"),
    ("PERCENT", "integer: percent"),
    ("POLICY", "string: policy"),
    ("POWER", "string: power in W"),
    ("PRICE", "string: price of energy"),
    ("PRIORITY", "string"),
    ("ROLE", "string"),
    ("SIZE", "size"),
    ("SIZE|off", "size, or `\"off\"`"),
    ("STEPS", "string: format"),
    ("TIER", "string"),
    ("TIME", "length of time"),
];

/// Returns the page of a command line that is not built yet.
pub(super) fn page(line: &Command) -> String {
    let mut out = HEAD.to_owned();
    let keys = keys(line);
    let mut rest = keys.as_slice();
    while let Some(first) = rest.first() {
        let count = rest
            .iter()
            .take_while(|key| key.section == first.section)
            .count();
        section(&mut out, &rest[..count]);
        rest = &rest[count..];
    }
    out + NODES
}

fn section(out: &mut String, keys: &[Key<'_>]) {
    let Some(first) = keys.first() else { return };
    let command = match first.command {
        [] => "every command".to_owned(),
        words => format!("[`tidemill {}`](commands/{}.md)", words.join(" "), words[0]),
    };
    let _ = match first.section {
        "" => write!(
            out,
            "## Top of the file\n\nKeys above all sections are flags of {command}.\n\n"
        ),
        name => write!(
            out,
            "## `[{name}]`\n\nKeys of `[{name}]` are flags of {command}.\n\n"
        ),
    };
    let rows: Vec<_> = keys.iter().map(|key| row(key)).collect();
    table(
        out,
        [
            "key",
            "type",
            "default",
            "flag",
            "environment variable",
            "description",
        ],
        &rows,
    );
}

fn row(key: &Key<'_>) -> [String; 6] {
    let docs = ToDocs("../");
    let help = key
        .arg
        .get_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (text, default) = split_default(&help);
    let flag = format!("--{}", key.arg.get_long().unwrap_or_default());
    let kind = match (type_of(key.arg), text.contains("bytes per second")) {
        ("size", true) => "size: bytes per second".to_owned(),
        ("size", false) => "size: bytes".to_owned(),
        ("string", _) => values(key.arg),
        (kind, _) => kind.to_owned(),
    };
    let default = default.map_or_else(|| "none".to_owned(), |text| docs.prose(text));
    [
        code(&key.name()),
        kind,
        default,
        code(&flag),
        code(&key.variable()),
        docs.prose(text),
    ]
}

/// Returns the values of a key with a fixed set of values.
fn values(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    let quoted: Vec<String> = values
        .iter()
        .map(|value| format!("`\"{}\"`", value.get_name()))
        .collect();
    quoted.join(", ")
}

/// Returns the type of a key in the file; empty if the name of the value is unknown.
fn type_of(arg: &Arg) -> &'static str {
    let name = arg
        .get_value_names()
        .and_then(|names| names.first())
        .map(ToString::to_string);
    let known = TYPES
        .iter()
        .find(|(known, _)| Some(*known) == name.as_deref());
    known.map_or("", |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;
    use toml::Value;

    /// Whether the type of the reference describes this value of the example.
    fn describes(kind: &str, value: &Value) -> bool {
        match value {
            Value::Integer(_) => kind.starts_with("integer") || kind.starts_with("size"),
            Value::Boolean(_) => kind == "boolean",
            Value::Array(_) => kind.starts_with("array"),
            Value::String(_) => ["string", "size", "length of time"]
                .iter()
                .any(|start| kind.starts_with(start)),
            _ => false,
        }
    }

    #[test]
    fn every_key_has_the_type_of_its_example() {
        let example = include_str!("../../../../examples/tidemill.toml");
        let line = Cli::command();
        let mut section = String::new();
        let mut checked = 0;
        for text in example.lines() {
            if let Some(name) = text.strip_prefix('[') {
                section = name.trim_end_matches(']').to_owned();
            }
            let found = keys(&line).into_iter().find(|key| {
                let start = format!("#{} = ", key.name());
                key.section == section && text.starts_with(&start)
            });
            let Some(key) = found else { continue };
            let table: toml::Table = text[1..].parse().unwrap();
            let kind = type_of(key.arg);
            assert!(describes(kind, &table[&key.name()]), "{text}: {kind}");
            assert!(kind != "string" || !values(key.arg).is_empty(), "{text}");
            checked += 1;
        }
        assert_eq!(checked, keys(&line).len());
    }
}
