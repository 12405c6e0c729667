//! The `tidemill` binary: all daemons of a cluster and all commands of its users.
//!
//! Each command has a file under `command/`. [`output::Output`] prints results, and [`config`] reads settings. `main` turns
//! errors into one line and an exit code.

mod args;
mod calibration;
mod command;
mod config;
mod context;
mod drawing;
mod exit;
mod files;
mod format;
mod output;
mod process;
mod progress;
mod reference;
mod trace;

use args::Cli;
use clap::FromArgMatches;
use config::ConfigFile;
use context::CommandContext;
pub(crate) use exit::FAILED;
use exit::{GONE, UNREACHABLE, USAGE};
use output::messages::Failure;
use output::{Message, Output, UnknownColumn};
use std::path::Path;
use std::process::ExitCode;
use tidemill_wire::condition;

/// State of a server that can't be reached.
const OFFLINE: &str = "server-offline";

/// State of a removed node.
const REMOVED: &str = condition::NODE_REMOVED.name;

fn main() -> ExitCode {
    // Nodes start this program again to run kernels; this check must be the first action.
    tidemill_sandbox::child::main_if_child();
    let matches = args::command_line().try_get_matches();
    let cli = match matches.and_then(|matches| parsed(&matches)) {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    // `cat` prints the bytes of files, not JSON.
    let json = cli.global.json && !matches!(cli.command, args::Command::Cat(_));
    match start(cli) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let (name, code) = state(&error);
            let error = message_of(&error);
            eprintln!("error: {}", tidemill_model::display::lines(&error));
            if json {
                tell_failure(&error, name);
            }
            ExitCode::from(code)
        }
    }
}

fn parsed(matches: &clap::ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    cli.global.given = args::given(matches);
    cli.global.command = args::command(matches);
    args::check_columns(&cli.global)?;
    Ok(cli)
}

/// Returns the state that made the command fail, by its name in `docs/troubleshooting.md`, and the exit code.
fn state(error: &anyhow::Error) -> (Option<&'static str>, u8) {
    let name = error.chain().find_map(|cause| {
        let client = cause.downcast_ref().and_then(of_client);
        let node = || cause.downcast_ref().and_then(of_node);
        let server = || cause.downcast_ref().and_then(of_server);
        client.or_else(node).or_else(server)
    });
    match name {
        Some(REMOVED) => (name, GONE),
        Some(OFFLINE) => (name, UNREACHABLE),
        None if error.is::<UnknownColumn>() => (name, USAGE),
        _ => (name, FAILED),
    }
}

fn of_client(error: &tidemill_client::Error) -> Option<&'static str> {
    use tidemill_client::Error;
    match error {
        Error::Unreachable { .. } => Some(OFFLINE),
        Error::Untrusted { .. } | Error::NoCa(_) => Some("server-untrusted"),
        Error::Version { .. } => Some("other-version"),
        Error::Refused(status) if status.code() == tonic::Code::Unauthenticated => {
            Some("token-refused")
        }
        _ => None,
    }
}

fn of_node(error: &tidemill_node::Error) -> Option<&'static str> {
    use tidemill_node::Error;
    match error {
        Error::InUse(_) => Some("directory-in-use"),
        Error::OtherNode { .. } | Error::OtherCluster { .. } => Some("other-directory"),
        Error::Listen { .. } => Some("port-taken"),
        Error::Db(_) => Some("database-broken"),
        Error::Removed { .. } => Some(REMOVED),
        _ => None,
    }
}

fn of_server(error: &tidemill_server::StartError) -> Option<&'static str> {
    use tidemill_server::StartError;
    match error {
        StartError::InUse(_) => Some("directory-in-use"),
        StartError::Listen { .. } => Some("port-taken"),
        StartError::Open(_) => Some("database-broken"),
        _ => None,
    }
}

/// Returns the text of an error with its causes, each cause once, and advice if the text has none.
fn message_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut advice = None;
    for cause in error.chain() {
        let printed = cause.to_string();
        if !text.contains(&printed) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&printed);
        }
        advice = advice.or_else(|| of_this_machine(cause));
    }
    if let Some(advice) = of_a_mount(&text) {
        return format!("{text}; {advice}");
    }
    match advice {
        Some(advice) if !text.contains(';') => format!("{text}; {advice}"),
        _ => text,
    }
}

/// Advises a user who named a missing file by its path below a mount of the cluster.
fn of_a_mount(text: &str) -> Option<String> {
    if !text.contains("no such file") {
        return None;
    }
    let mounts = tidemill_label::mounts();
    std::env::args_os().skip(1).find_map(|word| {
        let within = |mount| Some((mount, Path::new(&word).strip_prefix(mount).ok()?));
        let (mount, inside) = mounts.iter().find_map(within)?;
        let (mount, inside) = (mount.display(), inside.display());
        Some(format!(
            "{mount} is where a cluster is mounted; in that cluster the name is /{inside}"
        ))
    })
}

/// Advice for errors of the operating system, which do not say that a path is a local path. Errors of the cluster have their
/// own advice.
fn of_this_machine(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref::<std::io::Error>()?.kind() {
        std::io::ErrorKind::NotFound => {
            Some("that is a path of this machine; `tidemill ls` lists the files of the cluster")
        }
        std::io::ErrorKind::PermissionDenied => {
            Some("that is a path of this machine, and you may not use it: see its owner and mode")
        }
        _ => None,
    }
}

/// Prints help, the version, or the error of the command line.
fn misused(error: &clap::Error) -> ExitCode {
    // A closed terminal needs no action.
    let _ = error.print();
    // The command line could not be parsed, so this looks for the flag itself: a caller that gave `--json` reads only JSON.
    if error.use_stderr() && std::env::args_os().any(|arg| arg == "--json") {
        tell_failure(error.to_string().trim_end(), None);
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(FAILED))
}

/// Prints the failure as JSON: with `--json`, standard output is JSON after errors, too.
fn tell_failure(error: &str, state: Option<&'static str>) {
    let (json, error) = (true, error.to_owned());
    let output = Output {
        json,
        ..Output::default()
    };
    // A closed standard output needs no action.
    let _ = output.step(&Message(String::new(), Failure { error, state }));
}

fn start(cli: Cli) -> anyhow::Result<ExitCode> {
    let config = match ConfigFile::load(cli.global.config.as_deref()) {
        Ok(config) => config,
        // These commands report the errors of the file themselves.
        Err(_) if reads_config_itself(&cli.command) => ConfigFile::default(),
        Err(error) => return Err(error.into()),
    };
    let context = CommandContext::new(&cli.global, config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(command::run(cli.command, context));
    // A blocking read of standard input would keep the program from ending.
    runtime.shutdown_background();
    done
}

fn reads_config_itself(command: &args::Command) -> bool {
    match command {
        args::Command::Config(args) => args.is_check(),
        args::Command::Doctor(_) => true,
        _ => false,
    }
}

/// Whether the reader of the output has closed it, as in `tidemill ls | head`; that is no error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
