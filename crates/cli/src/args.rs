//! The command line: global flags and the list of commands. Each command's own flags are in its file.

use crate::command;
use crate::config::TlsMode;
use crate::output::{registry, table};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, Parser, Subcommand};
use std::fmt::Write as _;
use std::path::PathBuf;
use tidemill_client::Endpoint;

const START: &str = "Start here:
  tidemill up                        a server, four nodes and a mount on this machine
  cp *.fits ~/.local/share/tidemill/mnt/     copy data in (as root: /var/lib/tidemill/mnt)
  tidemill submit --watch job.toml   work on it where it is stored
  tidemill lineage show /mosaic.fits     show the origin of a file
  tidemill down                      stop everything

Settings of daemons can also be set in tidemill.toml and by the environment: `tidemill config show --all`.";

/// Version of this program, with its commit and its features.
pub(crate) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("TIDEMILL_COMMIT"),
    ", features: ",
    env!("TIDEMILL_FEATURES"),
    ")"
);

const GLOBAL: &str = "Flags of every command (--server, --json, --quiet and more): tidemill --help";

/// Groups of commands in the main help, with the names of their commands. Each command is in one group.
pub(crate) const GROUPS: [(&str, &[&str]); 6] = [
    ("Start", &["up", "down", "status", "doctor"]),
    (
        "Files",
        &[
            "ls", "cat", "get", "put", "rm", "mv", "mkdir", "cp", "sync", "stat", "set", "migrate",
            "find", "inspect", "reduce",
        ],
    ),
    (
        "Work",
        &[
            "submit", "job", "rule", "kernel", "lineage", "events", "exec",
        ],
    ),
    ("Shared space", &["workspace", "stage"]),
    (
        "Administration",
        &[
            "remote", "node", "cluster", "token", "config", "server", "mount", "async",
        ],
    ),
    ("Planning", &["plan", "completions", "man"]),
];

/// Columns before the description of a command in the main help.
const DESCRIPTION_AT: usize = 14;

/// Longest line of the list of commands, in columns.
const COLUMNS_MAX: usize = 100;

/// A storage system that runs your analysis where the data already is.
#[derive(Debug, Parser)]
#[command(name = "tidemill", version = VERSION, after_help = START, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Global {
    /// Address of the server: unix:PATH or https://HOST:PORT [default: the cluster of `tidemill up`]
    #[arg(long, global = true, value_name = "ENDPOINT", env = "TIDEMILL_SERVER")]
    pub(crate) server: Option<Endpoint>,
    /// File with your token, or a copy of `token` in the server's directory, for a server reached by https:// [default:
    /// ~/.config/tidemill/token, else DIR/server/token]
    #[arg(long, global = true, value_name = "FILE", env = "TIDEMILL_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Encryption of connections to other hosts [default: on]
    #[arg(
        long,
        global = true,
        value_name = "ON|OFF",
        env = "TIDEMILL_TLS",
        hide_possible_values = true
    )]
    pub(crate) tls: Option<TlsMode>,
    /// Directory of the cluster that `tidemill up` makes [default: ~/.local/share/tidemill; as root
    /// /var/lib/tidemill]
    #[arg(long, global = true, value_name = "DIR", env = "TIDEMILL_DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration file [default: ~/.config/tidemill/tidemill.toml, else /etc/tidemill.toml]
    #[arg(long, global = true, value_name = "FILE", env = "TIDEMILL_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON: sizes in bytes, times in nanoseconds (points in time since 1970)
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Columns of tables, by their headers in lower case, in this order [default: all columns]
    #[arg(long, global = true, value_name = "A,B…", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// Print results only: no progress, no notes
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Log actions to standard error; twice: log more
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Names of the global flags on the command line. Values from the environment are not among them.
    #[arg(skip)]
    pub(crate) given: Vec<&'static str>,
    /// Command, such as `job list`.
    #[arg(skip)]
    pub(crate) command: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(command::up::Args),
    Down(command::down::Args),
    Status(command::status::Args),
    Doctor(command::doctor::Args),
    Ls(command::ls::Args),
    Cat(command::cat::Args),
    Get(command::get::Args),
    Put(command::put::Args),
    Rm(command::rm::Args),
    Mv(command::mv::Args),
    Mkdir(command::mkdir::Args),
    Cp(command::cp::Args),
    Sync(command::sync::Args),
    Stat(command::stat::Args),
    Set(command::set::Args),
    Migrate(command::migrate::Args),
    Find(command::find::Args),
    Inspect(command::inspect::Args),
    Reduce(command::reduce::Args),
    Submit(command::submit::Args),
    Job(command::job::Args),
    Rule(command::rule::Args),
    Kernel(command::kernel::Args),
    Lineage(command::lineage::Args),
    Events(command::events::Args),
    Exec(command::exec::Args),
    Workspace(command::workspace::Args),
    Stage(command::stage::Args),
    Remote(command::remote::Args),
    Node(command::node::Args),
    Cluster(command::cluster::Args),
    Token(command::token::Args),
    Config(command::config::Args),
    Server(command::server::Args),
    Mount(command::mount::Args),
    Async(command::r#async::Args),
    Plan(command::plan::Args),
    Completions(command::completions::Args),
    Man(command::man::Args),
}

/// Returns the command, such as `job list`.
pub(crate) fn command(matches: &ArgMatches) -> String {
    let (mut words, mut level) = (Vec::new(), matches);
    while let Some((name, below)) = level.subcommand() {
        words.push(name);
        level = below;
    }
    words.join(" ")
}

/// Checks the columns against the tables of the command, before the command does anything.
///
/// # Errors
/// If no table of the command has one of the columns, or `--json` is given, too.
pub(crate) fn check_columns(global: &Global) -> Result<(), clap::Error> {
    let fault = |kind, text: &str| Err(command_line().error(kind, text));
    if global.columns.is_empty() {
        return Ok(());
    }
    if global.json {
        let text = "the argument '--columns <A,B…>' cannot be used with '--json'";
        return fault(ErrorKind::ArgumentConflict, text);
    }
    match table::check(&global.columns, &registry::titles(&global.command)) {
        Ok(()) => Ok(()),
        Err(error) => fault(ErrorKind::ValueValidation, &error.to_string()),
    }
}

/// Returns the names of the global flags that the command line gives; values from the environment do not count.
pub(crate) fn given(matches: &ArgMatches) -> Vec<&'static str> {
    let mut names = vec!["server", "token_file", "tls", "dir", "config"];
    names.retain(|name| matches.value_source(name) == Some(ValueSource::CommandLine));
    names
}

/// Returns the command line for people: only one help shows the flags of every command.
pub(crate) fn command_line() -> clap::Command {
    let flags = Global::augment_args(clap::Command::new("tidemill"))
        .disable_help_flag(true)
        .help_template("{options}")
        .render_help();
    let exits = crate::exit::help();
    let whole = format!("Flags of every command:\n{flags}\n\n{exits}\n{START}");
    let line = with_help_once(Cli::command()).after_help(whole);
    let template = main_help(&line);
    line.help_template(template)
}

/// Returns the template of the main help. Clap has no headings for subcommands, so the list of commands is part of the template.
fn main_help(line: &clap::Command) -> String {
    let header = line.get_styles().get_header();
    let literal = line.get_styles().get_literal();
    let mut template = String::from("{about-with-newline}\n{usage-heading} {usage}\n\n");
    for (group, names) in GROUPS {
        let _ = writeln!(template, "{header}{group}:{header:#}");
        for name in names {
            let about = line.find_subcommand(name).and_then(|one| one.get_about());
            // A brace would begin a field of the template.
            let about = about.map(|about| about.to_string().replace(['{', '}'], "|"));
            let about = folded(&about.unwrap_or_default());
            let space = " ".repeat(DESCRIPTION_AT.saturating_sub(2 + name.len()));
            let _ = writeln!(template, "  {literal}{name}{literal:#}{space}{about}");
        }
        template.push('\n');
    }
    let _ = write!(
        template,
        "{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    template
}

/// Breaks a description into lines that begin at the column of descriptions.
fn folded(text: &str) -> String {
    let (mut out, mut column) = (String::new(), DESCRIPTION_AT);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > DESCRIPTION_AT {
            if column + 1 + length > COLUMNS_MAX {
                let _ = write!(out, "\n{}", " ".repeat(DESCRIPTION_AT));
                column = DESCRIPTION_AT;
            } else {
                out.push(' ');
                column += 1;
            }
        }
        out.push_str(word);
        column += length;
    }
    out
}

fn with_help_once(command: clap::Command) -> clap::Command {
    let examples = command.get_after_help().map(ToString::to_string);
    let shown = examples.map_or_else(|| GLOBAL.into(), |text| format!("{text}\n\n{GLOBAL}"));
    command
        .after_help(shown)
        .mut_args(|arg| {
            let hidden = arg.is_hide_set() || arg.is_global_set();
            arg.hide(hidden)
        })
        .mut_subcommands(with_help_once)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn command_line_passes_debug_assert() {
        command_line().debug_assert();
    }

    #[test]
    fn global_flags_are_listed_once_in_main_help() {
        let mut line = command_line();
        let whole = line.render_help().to_string();
        let shown = |text: &str| text.matches("--token-file <FILE>").count();
        assert_eq!(shown(&whole), 1, "{whole}");
        line.build();
        let commands = line.get_subcommands();
        for command in commands.filter(|command| command.get_name() != "help") {
            let help = command.clone().render_long_help().to_string();
            assert_eq!(shown(&help), 0, "{help}");
            assert_eq!(help.matches(GLOBAL).count(), 1, "{help}");
        }
    }

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let line = Cli::command();
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for name in GROUPS.iter().flat_map(|(_, names)| names.iter().copied()) {
            *groups.entry(name).or_default() += 1;
        }
        let commands: Vec<&str> = line
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        for name in &commands {
            assert_eq!(groups.remove(name), Some(1), "{name}");
        }
        assert!(groups.is_empty(), "no such commands: {groups:?}");
    }

    #[test]
    fn main_help_lists_commands_under_six_headings() {
        let help = command_line().render_help().to_string();
        let mut rest = help.as_str();
        for (group, names) in GROUPS {
            let heading = format!("\n{group}:\n");
            let (_, after) = rest
                .split_once(&heading)
                .unwrap_or_else(|| panic!("{help}"));
            for name in names {
                let shown = after
                    .lines()
                    .take_while(|line| !line.is_empty())
                    .any(|line| line.starts_with(&format!("  {name} ")));
                assert!(shown, "{name} is not below {group}: {help}");
            }
            rest = after;
        }
        assert!(rest.contains("\nOptions:\n") && rest.contains("--version"));
    }

    #[test]
    fn folded_breaks_at_words() {
        let text = "word ".repeat(40);
        let lines = folded(&text);
        assert_eq!(lines.matches("word").count(), 40);
        for (index, line) in lines.lines().enumerate() {
            let at = if index == 0 { DESCRIPTION_AT } else { 0 };
            assert!(at + line.len() <= COLUMNS_MAX, "{line}");
        }
    }

    #[test]
    fn daemon_flags_are_only_in_the_help_of_run() {
        let mut line = command_line();
        line.build();
        for (name, flag) in [("node", "--kernels-memory"), ("server", "--tls-names")] {
            let command = line.find_subcommand(name).unwrap();
            let help = command.clone().render_long_help().to_string();
            assert!(!help.contains(flag), "{help}");
            let run = command.find_subcommand("run").unwrap();
            let help = run.clone().render_long_help().to_string();
            assert!(help.contains(flag), "{help}");
            for heading in ["Storage:", "Network:", "Kernels:", "Power:"] {
                assert!(help.contains(heading), "{heading} {help}");
            }
            assert!(!help.contains("--pid-file"), "{help}");
        }
    }

    #[test]
    fn given_names_flags_but_no_environment() {
        let matches = command_line()
            .try_get_matches_from(["tidemill", "config", "show", "--dir", "/a"])
            .unwrap();
        assert!(given(&matches).contains(&"dir"));
        assert!(!given(&matches).contains(&"config"));
    }

    #[test]
    fn every_command_has_description_and_example() {
        fn check(command: &clap::Command, path: &str) {
            let name = command.get_name();
            let path = format!("{path} {name}");
            assert!(command.get_about().is_some(), "{path} has no description");
            for command in command.get_subcommands() {
                check(command, &path);
            }
        }
        for command in Cli::command().get_subcommands() {
            check(command, "tidemill");
            let name = command.get_name();
            let examples = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                examples.contains(&format!("tidemill {name}")),
                "{name} shows no example"
            );
        }
    }
}
