//! The command line: global flags and the list of commands. Each command's own flags are in its file.

use crate::command;
use crate::config::TlsMode;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use tidemill_client::Endpoint;

const START: &str = "Start here:
  tidemill up                        a server, four nodes and a mount on this machine
  cp *.fits ~/.local/share/tidemill/mnt/     copy data in (as root: /var/lib/tidemill/mnt)
  tidemill submit --watch job.conf   work on it where it is stored
  tidemill lineage /mosaic.fits      show the origin of a file
  tidemill down                      stop everything

Exit codes: 0 done, 1 failed, 2 wrong usage.
Every flag can also be set in tidemill.toml and, where [env: …] is shown, by environment.";

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("TIDEMILL_COMMIT"),
    ", features: ",
    env!("TIDEMILL_FEATURES"),
    ")"
);

const GLOBAL: &str = "Flags of every command (--server, --json, --quiet and more): tidemill --help";

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
    /// Print results only: no progress, no notes
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Log actions to standard error; twice: log more
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(command::up::Args),
    Down(command::down::Args),
    Status(command::status::Args),
    Health(command::health::Args),
    Check(command::check::Args),
    Scrub(command::scrub::Args),
    Put(command::put::Args),
    Get(command::get::Args),
    Cat(command::cat::Args),
    Ls(command::ls::Args),
    Layout(command::layout::Args),
    Variables(command::variables::Args),
    Find(command::find::Args),
    Reduce(command::reduce::Args),
    Stripe(command::stripe::Args),
    Mkdir(command::mkdir::Args),
    Mv(command::mv::Args),
    Move(command::r#move::Args),
    Drain(command::drain::Args),
    Stage(command::stage::Args),
    Rebalance(command::rebalance::Args),
    Labels(command::labels::Args),
    Apps(command::apps::Args),
    Rm(command::rm::Args),
    Submit(command::submit::Args),
    Hook(command::hook::Args),
    Rule(command::rule::Args),
    Jobs(command::jobs::Args),
    Watch(command::watch::Args),
    Logs(command::logs::Args),
    Cancel(command::cancel::Args),
    Explain(command::explain::Args),
    Report(command::report::Args),
    Lineage(command::lineage::Args),
    Kernel(command::kernel::Args),
    Plan(command::plan::Args),
    Bench(command::bench::Args),
    Server(command::server::Args),
    Node(command::node::Args),
    Mount(command::mount::Args),
    Preload(command::preload::Args),
    Agent(command::agent::Args),
    Rebuild(command::rebuild::Args),
    Token(command::token::Args),
    Workspace(command::workspace::Args),
    Remote(command::remote::Args),
    Import(command::remote::import::Args),
    Export(command::remote::export::Args),
    Sync(command::remote::sync::Args),
    Channel(command::channel::Args),
    Completions(command::completions::Args),
    Man(command::man::Args),
}

/// Returns the command line for people: only one help shows the flags of every command.
pub(crate) fn command_line() -> clap::Command {
    let flags = Global::augment_args(clap::Command::new("tidemill"))
        .disable_help_flag(true)
        .help_template("{options}")
        .render_help();
    let whole = format!("Flags of every command:\n{flags}\n\n{START}");
    with_help_once(Cli::command()).after_help(whole)
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
    fn every_command_has_description_and_example() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name} has no description");
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
