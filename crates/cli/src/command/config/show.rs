//! `tidemill config show`: the value of every setting, and its origin.

use crate::args::Cli;
use crate::config::{self, keys::Key, keys::keys};
use crate::context::CommandContext;
use crate::output::config::{Configuration, Origin, Setting};
use clap::{Arg, CommandFactory};
use std::process::ExitCode;
use toml::Value;

const EXAMPLES: &str = "Examples:
  tidemill config show                     the settings that are set
  tidemill config show --all               all settings, with their defaults
  tidemill --json config show --all | jq '.settings[] | select(.origin == \"environment\")'

A flag takes precedence over the environment, the environment over the file, and the file over the default. Flags of the daemons
(`tidemill server run`, `tidemill node run`, `tidemill mount`) are not known here: see `ps`. A value that may contain a password is
not shown.";

/// Text in place of a value that may contain a password.
const HIDDEN: &str = "(not shown)";

/// Show each setting with its value and its origin: flag, environment, file or default
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Show settings with their default values, too
    #[arg(long, short)]
    all: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let path = config::located(context.global.config.as_deref());
    let table = match &path {
        Some(path) => config::read(path)?.parse::<toml::Table>()?,
        None => toml::Table::new(),
    };
    let sources = Sources {
        table: &table,
        given: &context.global.given,
        environment: &|name| std::env::var_os(name).map(|value| value.to_string_lossy().into()),
    };
    let mut settings = sources.all(&Cli::command(), context);
    let keep = args.all || context.global.json;
    settings.retain(|setting| keep || !matches!(setting.origin, Origin::Default));
    context
        .output
        .show(&Configuration::new(path.as_deref(), settings))?;
    Ok(ExitCode::SUCCESS)
}

/// Everything that can set a value.
struct Sources<'a> {
    table: &'a toml::Table,
    given: &'a [&'static str],
    environment: &'a dyn Fn(&str) -> Option<String>,
}

impl Sources<'_> {
    /// Returns all settings, in the order of the help.
    fn all(&self, line: &clap::Command, context: &CommandContext) -> Vec<Setting> {
        let flag = |key: &Key<'_>| match key.command {
            [] => flag_value(key.arg, context),
            _ => None,
        };
        let keys = keys(line);
        let settings = keys.iter().map(|key| self.setting(key, flag(key)));
        let mut settings: Vec<Setting> = settings.collect();
        settings.extend(self.commands_of_nodes());
        settings
    }

    fn setting(&self, of: &Key<'_>, flag: Option<String>) -> Setting {
        let (section, arg) = (of.section, of.arg);
        let (key, name) = (of.name(), of.variable());
        let in_file = match section {
            "" => self.table.get(&key),
            section => self.table.get(section).and_then(|keys| keys.get(&key)),
        };
        let flag = flag.filter(|_| self.given.contains(&arg.get_id().as_str()));
        let found = flag
            .map(|value| (value, Origin::Flag))
            .or_else(|| {
                Some((
                    (self.environment)(&name)?,
                    Origin::Environment(name.clone()),
                ))
            })
            .or_else(|| Some((plain(in_file?), Origin::File)));
        let is_set = found.is_some();
        let (value, origin) = found.unwrap_or_else(|| (default_of(arg), Origin::Default));
        let value = match is_set && arg.is_hide_env_values_set() {
            true => HIDDEN.to_owned(),
            false => value,
        };
        Setting {
            section: section.to_owned(),
            key,
            value,
            origin,
        }
    }

    /// Returns the commands for single nodes, which only the file can set.
    fn commands_of_nodes(&self) -> Vec<Setting> {
        let nodes = self.table.get("server").and_then(|keys| keys.get("nodes"));
        let nodes = nodes.and_then(Value::as_table).into_iter().flatten();
        let commands = nodes.flat_map(|(node, keys)| {
            let keys = keys.as_table().into_iter().flatten();
            keys.map(move |(key, value)| Setting {
                section: format!("server.nodes.{node}"),
                key: key.clone(),
                value: plain(value),
                origin: Origin::File,
            })
        });
        commands.collect()
    }
}

/// Returns the value of a global flag, which the environment may have set, too.
fn flag_value(arg: &Arg, context: &CommandContext) -> Option<String> {
    let global = &context.global;
    let path = |path: &std::path::PathBuf| path.display().to_string();
    match arg.get_id().as_str() {
        "server" => global.server.as_ref().map(ToString::to_string),
        "token_file" => global.token_file.as_ref().map(path),
        "dir" => global.dir.as_ref().map(path),
        "tls" => Some(if context.tls() { "on" } else { "off" }.to_owned()),
        _ => None,
    }
}

/// Returns the default that the help of a flag names.
fn default_of(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default = help.split_once("[default: ");
    let default = default.and_then(|(_, rest)| rest.split_once(']'));
    let default = default.map(|(default, _)| default.split_whitespace().collect::<Vec<_>>());
    default.unwrap_or_default().join(" ")
}

/// Returns a value of the file as people write it for a flag.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(file: &str, environment: &dyn Fn(&str) -> Option<String>) -> Vec<Setting> {
        let table: toml::Table = file.parse().unwrap();
        let sources = Sources {
            table: &table,
            given: &["dir"],
            environment,
        };
        let global = crate::args::Global {
            dir: Some("/flag".into()),
            ..Default::default()
        };
        let context = CommandContext::new(&global, crate::config::ConfigFile::default());
        sources.all(&Cli::command(), &context.unwrap())
    }

    fn found<'a>(all: &'a [Setting], section: &str, key: &str) -> (&'a str, &'a Origin) {
        let is_it = |one: &&Setting| one.section == section && one.key == key;
        let one = all
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("[{section}] {key}"));
        (&one.value, &one.origin)
    }

    #[test]
    fn setting_comes_from_flag_environment_file_and_default_in_this_order() {
        let file = "dir = \"/file\"\n[node]\ncores = 2\nlisten = \"1.2.3.4:5\"\ntask-dirs = [\"/a\", \"/b\"]\n\
                    [server.nodes.3]\nsuspend = \"true\"\n";
        let environment = |name: &str| (name == "TIDEMILL_NODE_CORES").then(|| "8".to_owned());
        let all = settings(file, &environment);
        assert_eq!(found(&all, "", "dir"), ("/flag", &Origin::Flag));
        let cores = Origin::Environment("TIDEMILL_NODE_CORES".into());
        assert_eq!(found(&all, "node", "cores"), ("8", &cores));
        assert_eq!(found(&all, "node", "listen"), ("1.2.3.4:5", &Origin::File));
        assert_eq!(found(&all, "node", "task-dirs"), ("/a,/b", &Origin::File));
        assert_eq!(
            found(&all, "server", "policy"),
            ("min-wait", &Origin::Default)
        );
        assert_eq!(found(&all, "mount", "attr-ttl"), ("60s", &Origin::Default));
        let own = found(&all, "server.nodes.3", "suspend");
        assert_eq!(own, ("true", &Origin::File));
    }

    #[test]
    fn password_of_queue_is_not_shown() {
        let file = "[server]\nqueue = \"nats://user:secret@host:4222\"\n";
        let all = settings(file, &|_| None);
        assert_eq!(found(&all, "server", "queue"), (HIDDEN, &Origin::File));
    }

    #[test]
    fn every_key_of_the_example_is_a_setting() {
        let example = include_str!("../../../../../examples/tidemill.toml");
        let all = settings("", &|_| None);
        let (mut section, mut keys) = (String::new(), 0);
        for line in example.lines() {
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|line| line.strip_suffix(']'))
            {
                section = name.to_owned();
            }
            let key = line.strip_prefix('#').filter(|line| !line.starts_with(' '));
            if let Some((key, _)) = key.and_then(|line| line.split_once(" = ")) {
                found(&all, &section, key);
                keys += 1;
            }
        }
        assert!(keys >= 24, "{keys}");
    }
}
