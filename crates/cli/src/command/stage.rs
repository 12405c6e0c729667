//! `tidemill stage`: copies files into the burst tier and out of it, and reserves space in the tier.

mod placed;
mod reservation;

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::stage::{StageOutPlan, Staged};
use reservation::Reserve;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill stage in /input --wait             wait until all files below it have a replica in the burst tier
  tidemill stage out /output --evict --wait   the other way, after the program has ended
  tidemill stage status /output               how much of it is in the burst tier, and how much only there
  tidemill stage reserve 100GB --path /run/42 --wait     space in the tier for new files there
  tidemill stage reservations
  tidemill stage release /run/42";

const IN_EXAMPLES: &str = "Examples:
  tidemill stage in /input --wait             wait until all files below it have a replica in the burst tier
  tidemill stage in /input --node 8           on that node of the tier
  tidemill --json stage in /input | jq .bytes

Without --node, the replicas are made on a node of the tier on this host, if it has one, else on the node with the most space.
`replicas` does not count them. They are evicted when space is needed, in the order of staging in. You need the right to read the files.";

const OUT_EXAMPLES: &str = "Examples:
  tidemill stage out /run/step-7.nc           begin, and print the remaining size
  tidemill stage out /run --wait              wait until all closed files below it are on nodes of the capacity tier
  tidemill stage out /run --evict --wait      and evict them from the burst tier
  tidemill stage out /run --evict --dry-run   print the size of the files that would be copied and evicted
  tidemill --json stage out /run | jq .bytes

The server stages files out some time after they were closed (--stage-out-after of `tidemill server run`). This command
stages them out at once, and continues after a restart of the server. A file that is written for the first time is not
staged out before it is closed.";

const STATUS_EXAMPLES: &str = "Examples:
  tidemill stage status /run/step-7.nc
  tidemill --json stage status /run | jq .only_in_tier.bytes";

/// Interval between two reports of progress, and longest pause between two requests.
const PERIOD: Duration = Duration::from_millis(500);
/// Shortest pause.
const SHORTEST: Duration = Duration::from_millis(25);

/// Stage files into the burst tier or out of it, and manage reservations of space there
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: StageCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StageCommand {
    /// Stage files in: copy stored files to the burst tier, for a program that will read them
    In(StageIn),
    /// Stage files out: copy them from the burst tier to nodes of the capacity tier, now
    Out(StageOut),
    /// Show how much of files is in the burst tier, and how much is stored only there
    #[command(after_help = STATUS_EXAMPLES)]
    Status {
        /// Files and directories. A directory stands for all files below it
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<OsString>,
    },
    /// Reserve space in the burst tier for new files below a directory
    Reserve(Reserve),
    /// End a reservation. Written files stay, and its unused space is free for everybody
    Release {
        /// Number of the reservation, or its directory for all your reservations there
        #[arg(value_name = "RESERVATION|DIRECTORY")]
        which: OsString,
    },
    /// List your reservations; as root, all reservations
    Reservations,
}

#[derive(Debug, clap::Args)]
#[command(after_help = IN_EXAMPLES)]
struct StageIn {
    /// Files and directories. A directory stands for all files below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Wait until all files are copied, and print the progress
    #[arg(long)]
    wait: bool,
    /// Node id [default: a node of the burst tier on this host, else the node with the most space]
    #[arg(long, value_name = "N")]
    node: Option<u32>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = OUT_EXAMPLES)]
struct StageOut {
    /// Files and directories. A directory stands for all files below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Wait until all files are copied, and print the progress
    #[arg(long)]
    wait: bool,
    /// Evict the bytes from the burst tier as soon as they are stored elsewhere and have no reader in the tier
    #[arg(long)]
    evict: bool,
    /// Print the size of the files that would be copied and evicted, and change nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        StageCommand::In(args) => {
            let stage_in = v1::StageIn {
                node: args.node.map_or(0, |node| node.saturating_add(1)),
                host: tidemill_client::host_id::id(),
            };
            let request = v1::StageRequest {
                stage_in: Some(stage_in),
                ..v1::StageRequest::default()
            };
            stage(context, (&args.paths, request), args.wait).await?;
        }
        StageCommand::Out(args) if args.dry_run => plan(&args, context).await?,
        StageCommand::Out(args) => {
            let request = v1::StageRequest {
                evict: args.evict,
                ..v1::StageRequest::default()
            };
            stage(context, (&args.paths, request), args.wait).await?;
        }
        StageCommand::Status { paths } => {
            let server = context.connect().await?;
            for path in paths {
                let path = files::path(path)?;
                context.output.step(&placed::look(&server, &path).await?)?;
            }
        }
        StageCommand::Reserve(args) => reservation::reserve(args, context).await?,
        StageCommand::Release { which } => reservation::release(&which, context).await?,
        StageCommand::Reservations => reservation::list(context).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the files that a stage-out would copy and evict.
async fn plan(args: &StageOut, context: &CommandContext) -> anyhow::Result<()> {
    let server = context.connect().await?;
    for path in &args.paths {
        let path = files::path(path)?;
        let placed = placed::look(&server, &path).await?;
        context
            .output
            .step(&StageOutPlan::new(&placed, args.evict))?;
    }
    Ok(())
}

/// Requests a stage-in or a stage-out for each path and prints the remaining work. With `wait`, repeats this until no work remains.
async fn stage(
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
            let staged = server.answer(server.places().stage(request.clone()).await)?;
            let done = !wait || staged.objects + staged.held == 0;
            let changed = before != Some(staged);
            if changed
                && (done || printed_at.is_none_or(|printed_at| printed_at.elapsed() >= PERIOD))
            {
                printed_at = Some(Instant::now());
                before = Some(staged);
                let stages_in = request.stage_in.is_some();
                context
                    .output
                    .step(&Staged::new(path.clone(), &staged, stages_in))?;
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
