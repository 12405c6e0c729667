//! `tidemill stage`: copies stored files into the burst tier, for a program that will read them, and reserves space in the tier
//! before a program writes to it.

use super::drain;
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::format::{self, ByteSize, TimeLength};
use crate::output::Printed;
use crate::output::reservation::{ReservationsView, reservation_json};
use anyhow::Context as _;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_core::display::line;
use tidemill_wire::v1;
use tonic::Code;

const EXAMPLES: &str = "Examples:
  tidemill stage /input --wait              wait until all files below it have a replica in the burst tier
  tidemill stage /input --node 8         on that node of the tier
  tidemill --json stage /input | jq .bytes
  tidemill drain /output --evict --wait     the other way, after the program has ended
  tidemill stage reserve 100GB --path /run/42 --wait   space in the tier for new files there
  tidemill stage list
  tidemill stage release /run/42

Without --node, the replicas are made on a node of the tier on this host, if it has one, else on the node with the most space.
`replicas` does not count them. They are evicted when space is needed, in the order of staging in. You need the right to read the files.";

const RESERVE_EXAMPLES: &str = "Examples:
  tidemill stage reserve 100GB --path /run/42            fail at once if space is missing
  tidemill stage reserve 100GB --path /run/42 --wait     wait until enough files have been staged out, or other reservations have ended
  tidemill stage reserve 1TB --path /run/42 --for 4h --node 8

New files of all users below the directory are written to that node, and use the reservation up. The reservation ends after --for, by
`tidemill stage release`, or with the directory. Other new files only begin in space that is not reserved. An open file counts as 16 MiB.";

/// How often a reservation is asked for again.
const PERIOD: Duration = Duration::from_secs(1);

/// Stage files in: copy stored files to the burst tier, near a program that will read them, or manage reservations of space there
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<StageCommand>,
    /// Files and directories. A directory stands for all files below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Wait until all files are copied, and print the progress
    #[arg(long)]
    wait: bool,
    /// Node id
    #[arg(long, value_name = "N")]
    node: Option<u32>,
}

#[derive(Debug, clap::Subcommand)]
enum StageCommand {
    /// Reserve space in the burst tier for new files below a directory
    Reserve(StageReserve),
    /// List your reservations; as root, all
    List,
    /// End a reservation. Written files stay, and its unused space is free for everybody
    Release {
        /// Its number, or its directory for all your reservations there
        #[arg(value_name = "RESERVATION|DIRECTORY")]
        which: OsString,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = RESERVE_EXAMPLES)]
struct StageReserve {
    /// Size, such as 100GB
    size: ByteSize,
    /// Directory, which you may write to
    #[arg(long, value_name = "DIRECTORY")]
    path: OsString,
    /// Maximum duration, such as 4h [default: 1d]
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<TimeLength>,
    /// Node id
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Wait until the space is free
    #[arg(long)]
    wait: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(command) => reservations(command, context).await?,
        None => {
            let stage_in = v1::StageIn {
                node: args.node.map_or(0, |node| node.saturating_add(1)),
                host: tidemill_client::host_id::id(),
            };
            let request = v1::StageRequest {
                stage_in: Some(stage_in),
                ..v1::StageRequest::default()
            };
            drain::ask(context, (&args.paths, request), args.wait).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn reservations(command: StageCommand, context: &CommandContext) -> anyhow::Result<()> {
    let server = context.connect().await?;
    match command {
        StageCommand::Reserve(args) => reserve(args, context, &server).await,
        StageCommand::List => {
            let request = v1::SpaceReservationsRequest {
                credentials: Some(credentials()),
            };
            let listed = server.places().reservations(request).await;
            let listed = listed.map_err(|status| server.explain(status))?;
            context
                .output
                .show(&ReservationsView(listed.into_inner().reservations))?;
            Ok(())
        }
        StageCommand::Release { which } => {
            let id = which.to_str().and_then(|id| id.parse().ok());
            let id = id.unwrap_or(0);
            let path = match id {
                0 => files::path(&which)?.into_bytes(),
                _ => Vec::new(),
            };
            let request = v1::ReleaseRequest {
                credentials: Some(credentials()),
                id,
                path,
            };
            let released = server.places().release(request).await;
            let released = released.map_err(|status| server.explain(status))?;
            for reservation in released.into_inner().reservations {
                let directory = line(&String::from_utf8_lossy(&reservation.directory));
                let text = format!("reservation {} for {directory} has ended", reservation.id);
                let printed = Printed::new(text, reservation_json(&reservation));
                context.output.step(&printed)?;
            }
            Ok(())
        }
    }
}

async fn reserve(
    args: StageReserve,
    context: &CommandContext,
    server: &Server,
) -> anyhow::Result<()> {
    let lasts = args
        .lasts
        .map(|TimeLength(lasts)| i64::try_from(lasts.as_nanos()));
    let ByteSize(bytes) = args.size;
    let request = v1::SpaceReservationRequest {
        credentials: Some(credentials()),
        path: files::path(&args.path)?.into_bytes(),
        bytes,
        node: args.node.map_or(0, |node| node.saturating_add(1)),
        host: tidemill_client::host_id::id(),
        for_ns: lasts.transpose().context("--for is too long")?.unwrap_or(0),
        wait: args.wait,
    };
    let mut waits = false;
    let reservation = loop {
        match server.places().reserve(request.clone()).await {
            Ok(reservation) => break reservation.into_inner(),
            Err(status) if args.wait && status.code() == Code::ResourceExhausted => {
                if !waits {
                    tracing::warn!("{}; it is waited for", status.message());
                    waits = true;
                }
                tokio::time::sleep(PERIOD).await;
            }
            Err(status) => return Err(server.explain(status).into()),
        }
    };
    let text = format!(
        "reservation {}: {} of node {} for new files below {} until {} (UTC)",
        reservation.id,
        format::bytes(reservation.bytes),
        reservation.node,
        line(&String::from_utf8_lossy(&reservation.directory)),
        format::time(reservation.until)
    );
    context
        .output
        .show(&Printed::new(text, reservation_json(&reservation)))?;
    Ok(())
}
