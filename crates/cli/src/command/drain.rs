//! `tidemill drain`: copies files from the burst tier to nodes that store.

use crate::context::{Context, credentials};
use crate::files;
use crate::output::places::StagedView;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill drain /run/step-7.nc             begin, and print the remaining size
  tidemill drain /run --wait                wait until all closed files below it are on nodes that store
  tidemill drain /run --free --wait         and remove them from the burst tier
  tidemill --json drain /run | jq .bytes

Files drain by themselves some time after they were closed (--drain-after of `tidemill server`). This command drains them at once,
and continues after a restart of the server. A file that is written for the first time does not drain before it is closed.";

/// Interval between two reports of progress, and longest pause between two requests.
const PERIOD: Duration = Duration::from_millis(500);
/// Shortest pause.
const SHORTEST: Duration = Duration::from_millis(25);

/// Copy files from the burst tier to nodes that store, now
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and directories. A directory stands for all files below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Wait until all files are copied, and print the progress
    #[arg(long)]
    wait: bool,
    /// Remove the bytes from the burst tier as soon as they are stored elsewhere and have no reader in the tier
    #[arg(long)]
    free: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let request = v1::StageRequest {
        free: args.free,
        ..v1::StageRequest::default()
    };
    ask(context, (&args.paths, request), args.wait).await?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for something to be done with files and the burst tier, and says how far it is; again until it is done, if that is waited for.
pub(super) async fn ask(
    context: &Context,
    (paths, request): (&[OsString], v1::StageRequest),
    wait: bool,
) -> anyhow::Result<()> {
    let server = context.connect().await?;
    for path in paths {
        let path = files::path(path)?;
        let (mut before, started, mut told) = (None, Instant::now(), None::<Instant>);
        // The wait excludes files that are closed after the first request.
        let mut until = 0;
        loop {
            let request = v1::StageRequest {
                credentials: Some(credentials()),
                path: path.clone().into_bytes(),
                until,
                ..request.clone()
            };
            let begun = Instant::now();
            let staged = server.places().stage(request.clone()).await;
            let staged = staged
                .map_err(|status| server.explain(status))?
                .into_inner();
            let done = !wait || staged.objects + staged.held == 0;
            let news = before != Some(staged);
            if news && (done || told.is_none_or(|told| told.elapsed() >= PERIOD)) {
                told = Some(Instant::now());
                before = Some(staged);
                context.output.step(&StagedView {
                    path: path.clone(),
                    brings: request.bring.is_some(),
                    staged,
                })?;
            }
            if done {
                break;
            }
            until = staged.until;
            // A short drain is polled at short intervals.
            let pause = (started.elapsed() / 20).clamp(SHORTEST, PERIOD);
            tokio::time::sleep(pause.max(begun.elapsed() * 10)).await;
        }
    }
    Ok(())
}
