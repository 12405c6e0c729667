//! `tidemill job export-trace`: the course of a job, for the simulator.

use crate::command::plan;
use crate::context::CommandContext;
use crate::trace;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill job export-trace 3 --output run.trace.json    for `tidemill plan run run.trace.json`
  tidemill job export-trace 3 | jq '.tasks | length'";

/// Write the course of a job (files, sizes, nodes, times, bytes transferred) as JSON for `tidemill plan`
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Id of the job
    job: u64,
    /// Output path on this machine [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let trace = trace::fetch(&server, args.job).await?;
    let json = serde_json::to_string_pretty(&trace)? + "\n";
    match &args.output {
        Some(path) => {
            plan::write(path, &json)?;
            let (path, tasks) = (path.display(), trace.tasks.len());
            context.note(format_args!("{path}: {tasks} tasks"));
        }
        None => std::io::stdout().write_all(json.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}
