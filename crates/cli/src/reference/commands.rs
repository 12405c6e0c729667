//! The reference of commands: a page for each top-level command, and a page with all groups, flags of every command and exit codes.

use super::markdown::{ToDocs, code, table};
use crate::args::GROUPS;
use crate::exit::EXIT_CODES;
use clap::{Arg, Command};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Heading of options without a heading of their own.
const OPTIONS: &str = "Options";
/// Link to the table of exit codes from the page of a command.
const EXITS: &str =
    "The command uses the [exit codes of all commands](../commands.md#exit-codes).\n\n";

/// Returns the page of a top-level command of a built command line.
pub(super) fn page(command: &Command) -> String {
    let docs = ToDocs("../../");
    let mut out = String::new();
    section(&mut out, docs, command, "#");
    let notes = command.get_after_help().map(ToString::to_string);
    let has_codes = |text: &String| text.contains("Exit code");
    if !notes.as_ref().is_some_and(has_codes) {
        out.push_str(EXITS);
    }
    out.trim_end().to_owned() + "\n"
}

fn section(out: &mut String, docs: ToDocs, command: &Command, heading: &str) {
    let path = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let _ = write!(out, "{heading} {}\n\n", path);
    let about = command.get_long_about().or_else(|| command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = write!(out, "{}.\n\n", docs.prose(&about));
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage:").trim();
    let usage: Vec<&str> = usage.lines().map(str::trim).collect();
    let _ = write!(out, "```text\n{}\n```\n\n", usage.join("\n"));
    let below = format!("{heading}#");
    let subcommands: Vec<&Command> = shown(command).collect();
    if !subcommands.is_empty() {
        let row = |one: &&Command| {
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            let path = one.get_bin_name().unwrap_or_default();
            let anchor = path.replace(' ', "-");
            [format!("[{path}](#{anchor})"), docs.prose(&about)]
        };
        let rows: Vec<_> = subcommands.iter().map(row).collect();
        table(out, ["command", "purpose"], &rows);
    }
    for (title, args) in groups(command) {
        let _ = write!(out, "{below} {title}\n\n");
        for arg in args {
            option(out, docs, arg);
        }
        out.push('\n');
    }
    let notes = command.get_after_help().map(ToString::to_string);
    out.push_str(&docs.notes(&notes.unwrap_or_default(), &below));
    for subcommand in subcommands {
        section(out, docs, subcommand, &below);
    }
}

/// Returns the subcommands that the help shows.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    let subcommands = command.get_subcommands();
    subcommands.filter(|one| one.get_name() != "help" && !one.is_hide_set())
}

/// Returns the arguments that the help of the command shows, by their headings: arguments first, then options.
fn groups(command: &Command) -> Vec<(&str, Vec<&Arg>)> {
    let mut order: Vec<&str> = Vec::new();
    let mut found: BTreeMap<&str, Vec<&Arg>> = BTreeMap::new();
    for arg in command.get_arguments() {
        let of_all = arg.is_global_set() && command.get_name() != "tidemill";
        if of_all || arg.is_hide_set() || ["help", "version"].contains(&arg.get_id().as_str()) {
            continue;
        }
        let title = match arg.is_positional() {
            true => "Arguments",
            false => arg.get_help_heading().unwrap_or(OPTIONS),
        };
        if !order.contains(&title) {
            order.push(title);
        }
        found.entry(title).or_default().push(arg);
    }
    order.sort_by_key(|title| match *title {
        "Arguments" => 0,
        OPTIONS => 1,
        _ => 2,
    });
    let groups = order
        .into_iter()
        .filter_map(|title| found.remove(title).map(|args| (title, args)));
    groups.collect()
}

/// Writes the item of a flag or an argument.
fn option(out: &mut String, docs: ToDocs, arg: &Arg) {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (text, default) = split_default(&help);
    let short = arg.get_short().map(|short| format!("`-{short}`, "));
    let _ = write!(
        out,
        "- {}`{}`: {}.",
        short.unwrap_or_default(),
        signature(arg),
        docs.prose(text.trim_end_matches('.'))
    );
    if !arg.is_hide_possible_values_set() && arg.get_action().takes_values() {
        let values: Vec<String> = arg
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| {
                let help = value
                    .get_help()
                    .map(|help| format!(" ({})", docs.prose(&help.to_string())));
                format!("`{}`{}", value.get_name(), help.unwrap_or_default())
            })
            .collect();
        if !values.is_empty() && values != ["`true`", "`false`"] {
            let _ = write!(out, " Values: {}.", values.join(", "));
        }
    }
    let defaults = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy());
    let given = defaults.collect::<Vec<_>>().join(",");
    let takes = arg.get_action().takes_values();
    let default = default
        .map(|text| docs.prose(text))
        .or_else(|| (takes && !given.is_empty()).then(|| code(&given)));
    if let Some(default) = default {
        let _ = write!(out, " Default: {default}.");
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(out, " Environment: `{}`.", variable.to_string_lossy());
    }
    out.push('\n');
}

/// Returns a flag with its value, or the name of a positional argument.
fn signature(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ");
    match (arg.get_long(), arg.get_action().takes_values()) {
        (Some(long), true) => format!("--{long} {value}"),
        (Some(long), false) => format!("--{long}"),
        (None, _) if arg.is_positional() => value,
        (None, _) => format!("-{}", arg.get_short().unwrap_or_default()),
    }
}

/// Splits a help text into its description and the default at its end.
pub(super) fn split_default(help: &str) -> (&str, Option<&str>) {
    match help.split_once("[default: ") {
        Some((text, rest)) => (text.trim_end(), Some(rest.trim_end().trim_end_matches(']'))),
        None => (help, None),
    }
}

/// Returns the page of all commands.
pub(super) fn overview(line: &Command) -> String {
    let docs = ToDocs("../");
    let mut out = String::from("# Commands\n\n");
    for (group, names) in GROUPS {
        let _ = write!(out, "## {group}\n\n");
        let rows: Vec<_> = names
            .iter()
            .filter_map(|name| {
                let about = line.find_subcommand(name)?.get_about()?.to_string();
                Some([format!("[{name}](commands/{name}.md)"), docs.prose(&about)])
            })
            .collect();
        table(&mut out, ["command", "purpose"], &rows);
    }
    out.push_str("## Flags of every command\n\n");
    for (_, args) in groups(line) {
        for arg in args {
            option(&mut out, docs, arg);
        }
    }
    out.push_str("\nSizes are numbers of bytes, or text such as `500G` (powers of 1000) or `512Mi` (powers of 1024). Lengths of time have a unit: \
                  `30s`, `10m`, `2h`, `7d`.\n\n## Exit codes\n\n");
    let rows = EXIT_CODES.map(|(number, meaning)| [number.to_string(), docs.prose(meaning)]);
    table(&mut out, ["exit code", "meaning"], &rows);
    out.push_str("Some commands define their exit codes more precisely: see their pages. `tidemill exec` returns the exit code of the program.\n");
    out
}
