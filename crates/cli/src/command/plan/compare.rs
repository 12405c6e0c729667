//! `tidemill plan compare`: the simulator's predictions next to measured values, task by task.

use super::job::trace;
use crate::context::CommandContext;
use crate::output::plan::Comparison;
use crate::trace::fetch;
use anyhow::Context as _;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_plan::sim::compare::compare;
use tidemill_plan::sim::trace::Trace;

const EXAMPLES: &str = "Examples:
  tidemill plan compare 3                        job 3 of this cluster, with the times of the same run
  tidemill plan compare 4 --times-of 3           job 4 predicted by the times of job 3, a run of the same job
  tidemill plan compare wa.json --times-of rr.json
  tidemill plan compare 3 --platform mine.ini    your description of this cluster instead of measurements";

/// Compare prediction and measurement of a job: makespan, bytes transferred, every task
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Job of this cluster that has ended well, by its id, or the file of a trace
    job: OsString,
    /// Another run of the same job, by id or file. Times of tasks and transfers are then from that run, and the prediction uses
    /// no measurement of this run
    #[arg(long, value_name = "JOB")]
    times_of: Option<OsString>,
    /// Description of the cluster of the run. Its nodes have the ids of the run's nodes, from 0
    #[arg(long, value_name = "FILE")]
    platform: Option<PathBuf>,
    /// Speed of the server cores relative to the nodes' cores, without --platform. A run whose policy did not use them
    /// contains no measurement of it
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = speed, conflicts_with = "platform")]
    server_core_speed: f64,
    /// Processors of the one machine that all nodes share, as in a cluster of `tidemill up`. The times should then be
    /// from a run that needed no more processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "platform")]
    processors: Option<u32>,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

pub(crate) async fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let measured = read(&args.job, context).await?;
    let expected = match &args.times_of {
        Some(name) => {
            let other = read(name, context).await?;
            let measured = measured.measured_in(&other);
            measured.with_context(|| format!("--times-of {}", name.display()))?
        }
        None => measured.clone(),
    };
    let expected = expected.with_server_core_speed(args.server_core_speed);
    let mut platform = match &args.platform {
        Some(path) => super::job::platform(path)?,
        None => expected.platform(),
    };
    platform.processors = args.processors.or(platform.processors);
    if let Some(server_cores) = &mut platform.server_cores {
        server_cores.core_speed = args.server_core_speed;
    }
    let comparison = compare(&measured, &expected.replay()?, &platform, args.seed)?;
    context.output.finish(&Comparison(comparison))
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text
        .parse()
        .ok()
        .filter(|speed: &f64| speed.is_finite() && *speed > 0.0);
    speed.ok_or_else(|| format!("`{text}` is not a number above 0"))
}

async fn read(job: &OsStr, context: &CommandContext) -> anyhow::Result<Trace> {
    if let Some(id) = job.to_str().and_then(|job| job.parse().ok()) {
        let server = context.connect().await?;
        return fetch(&server, id).await;
    }
    trace(Path::new(job))
}
