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
use clap::Parser;
use context::Context;
use std::process::ExitCode;

/// It was carried out, but what it was about failed (a job, a check).
pub(crate) const FAILED: u8 = 1;

fn main() -> ExitCode {
    // Elements start this program again to run kernels; that must come before anything else happens.
    tidemill_kernel::child::main_if_child();
    let cli = Cli::parse();
    match start(cli) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let error = format!("{error:#}");
            eprintln!("error: {}", tidemill_core::shown::lines(&error));
            ExitCode::from(FAILED)
        }
    }
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
