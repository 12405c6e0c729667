//! `tidemill drain`: copies files from the burst tier to nodes of the capacity tier.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::places::StagedView;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill drain /run/step-7.nc             begin, and print the remaining size
  tidemill drain /run --wait                wait until all closed files below it are on nodes of the capacity tier
  tidemill drain /run --evict --wait        and evict them from the burst tier
  tidemill --json drain /run | jq .bytes

Files are staged out by themselves some time after they were closed (--stage-out-after of `tidemill server`). This command stages them out at once,
and continues after a restart of the server. A file that is written for the first time is not staged out before it is closed.";

/// Interval between two reports of progress, and longest pause between two requests.
const PERIOD: Duration = Duration::from_millis(500);
/// Shortest pause.
const SHORTEST: Duration = Duration::from_millis(25);

/// Stage files out: copy them from the burst tier to nodes of the capacity tier, now
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and directories. A directory stands for all files below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Wait until all files are copied, and print the progress
    #[arg(long)]
    wait: bool,
    /// Evict the bytes from the burst tier as soon as they are stored elsewhere and have no reader in the tier
    #[arg(long)]
    evict: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let request = v1::StageRequest {
        evict: args.evict,
        ..v1::StageRequest::default()
    };
    ask(context, (&args.paths, request), args.wait).await?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for something to be done with files and the burst tier, and says how far it is; again until it is done, if that is waited for.
pub(super) async fn ask(
    context: &CommandContext,
    (paths, request): (&[OsString], v1::StageRequest),
    wait: bool,
) -> anyhow::Result<()> {
    let server = context.connect().await?;
    for path in paths {
        let path = files::path(path)?;
        let (mut before, started, mut printed_at) = (None, Instant::now(), None::<Instant>);
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
            if news && (done || printed_at.is_none_or(|printed_at| printed_at.elapsed() >= PERIOD))
            {
                printed_at = Some(Instant::now());
                before = Some(staged);
                context.output.step(&StagedView {
                    path: path.clone(),
                    stages_in: request.stage_in.is_some(),
                    staged,
                })?;
            }
            if done {
                break;
            }
            until = staged.until;
            // A short stage-out is polled at short intervals.
            let pause = (started.elapsed() / 20).clamp(SHORTEST, PERIOD);
            tokio::time::sleep(pause.max(begun.elapsed() * 10)).await;
        }
    }
    Ok(())
}
