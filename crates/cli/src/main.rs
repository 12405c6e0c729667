//! The `tidemill` binary: every part of an array and everything that people do with one.
//!
//! One file a command under `command/`. What is printed goes through [`output::Output`]; what is set goes
//! through [`config`]. Errors end here, as one line and an exit code.

mod args;
mod calibration;
mod command;
mod config;
mod context;
mod files;
mod format;
mod output;
mod process;
mod progress;
mod trace;

use args::Cli;
use clap::FromArgMatches;
use context::Context;
use std::path::Path;
use std::process::ExitCode;
use tidemill_wire::condition;

/// It was carried out, but what it was about failed (a job, a check).
pub(crate) const FAILED: u8 = 1;

/// The element was taken out of the array: starting it again is of no use.
const GONE: u8 = 3;

/// The state of such an element.
const REMOVED: &str = condition::ELEMENT_REMOVED.name;

fn main() -> ExitCode {
    // Elements start this program again to run kernels; that must come before anything else happens.
    tidemill_kernel::child::main_if_child();
    let matches = args::command_line().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    // What `cat` prints are the bytes of files.
    let json = cli.global.json && !matches!(cli.command, args::Command::Cat(_));
    match start(cli) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let (name, code) = state(&error);
            let error = told(&error);
            eprintln!("error: {}", tidemill_core::shown::lines(&error));
            if json {
                tell_failure(&error, name);
            }
            ExitCode::from(code)
        }
    }
}

/// The state that made the command or the process fail, as `docs/operating.md` names it, and the exit code.
fn state(error: &anyhow::Error) -> (Option<&'static str>, u8) {
    let name = error.chain().find_map(|cause| {
        let client = cause.downcast_ref().and_then(of_client);
        let element = || cause.downcast_ref().and_then(of_element);
        let server = || cause.downcast_ref().and_then(of_server);
        client.or_else(element).or_else(server)
    });
    match name {
        Some(REMOVED) => (name, GONE),
        _ => (name, FAILED),
    }
}

fn of_client(error: &tidemill_client::Error) -> Option<&'static str> {
    use tidemill_client::Error;
    match error {
        Error::Unreachable { .. } => Some("server-away"),
        Error::Untrusted { .. } | Error::NoAuthority(_) => Some("server-untrusted"),
        Error::Version { .. } => Some("other-version"),
        Error::Refused(status) if status.code() == tonic::Code::Unauthenticated => {
            Some("token-refused")
        }
        _ => None,
    }
}

fn of_element(error: &tidemill_element::Error) -> Option<&'static str> {
    use tidemill_element::Error;
    match error {
        Error::InUse(_) => Some("folder-in-use"),
        Error::OtherElement { .. } | Error::OtherArray { .. } => Some("other-folder"),
        Error::Listen { .. } => Some("port-taken"),
        Error::Db(_) => Some("database-broken"),
        Error::Removed { .. } => Some(REMOVED),
        _ => None,
    }
}

fn of_server(error: &tidemill_server::StartError) -> Option<&'static str> {
    use tidemill_server::StartError;
    match error {
        StartError::InUse(_) => Some("folder-in-use"),
        StartError::Listen { .. } => Some("port-taken"),
        StartError::Open(_) => Some("database-broken"),
        _ => None,
    }
}

/// The error with its causes, each said once, and what can be done where the cause itself doesn't say.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut advice = None;
    for cause in error.chain() {
        let said = cause.to_string();
        if !text.contains(&said) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&said);
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

/// What is not there may have been called by where the array is mounted.
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
            "{mount} is where an array is mounted; in that array the name is /{inside}"
        ))
    })
}

/// What the system says of a path has no hint that it is one of this machine; what the array says tells itself what to do.
fn of_this_machine(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref::<std::io::Error>()?.kind() {
        std::io::ErrorKind::NotFound => {
            Some("that is a path of this machine; `tidemill ls` lists the files of the array")
        }
        std::io::ErrorKind::PermissionDenied => {
            Some("that is a path of this machine, and you may not use it: see its owner and mode")
        }
        _ => None,
    }
}

/// Help, the version, or what is wrong with the command line.
fn misused(error: &clap::Error) -> ExitCode {
    // Nothing to do about a terminal that is gone.
    let _ = error.print();
    // What is said could not be read, so the flag is not known; but who gave it reads nothing else.
    if error.use_stderr() && std::env::args_os().any(|arg| arg == "--json") {
        tell_failure(error.to_string().trim_end(), None);
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(FAILED))
}

/// With `--json`, standard output is JSON however it ends.
fn tell_failure(error: &str, state: Option<&str>) {
    let mut said = serde_json::json!({ "error": error });
    if let Some(state) = state {
        said["state"] = state.into();
    }
    let said = output::Said::new("", said);
    // The same: who reads it is gone.
    let _ = output::choose(true).step(&said);
}

fn start(cli: Cli) -> anyhow::Result<ExitCode> {
    let context = Context::new(&cli.global)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(command::run(cli.command, context));
    // A blocking read of standard input would keep the program from ending.
    runtime.shutdown_background();
    done
}

/// Whether the reader of our output went away (`tidemill ls | head`), which is its right.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
