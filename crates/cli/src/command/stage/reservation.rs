//! `tidemill stage reserve`, `release` and `reservations`: space of the burst tier for a program that will write to it.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::format::{self, ByteSize, TimeLength};
use crate::output::stage::{Reservation, Reservations};
use crate::output::{self, Message};
use anyhow::Context as _;
use std::ffi::{OsStr, OsString};
use std::time::Duration;
use tidemill_model::display::line;
use tidemill_wire::v1;
use tonic::Code;

const EXAMPLES: &str = "Examples:
  tidemill stage reserve 100GB --path /run/42            fail at once if space is missing
  tidemill stage reserve 100GB --path /run/42 --wait     wait until enough files have been staged out, or other reservations have ended
  tidemill stage reserve 1TB --path /run/42 --for 4h --node 8

New files of all users below the directory are written to that node, and use the reservation up. The reservation ends after --for, by
`tidemill stage release`, or with the directory. Other new files only begin in space that is not reserved. An open file counts as 16 MiB.";

/// Interval at which a reservation is requested again with `--wait`.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Reserve {
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

/// Prints the reservations of the caller; as root, all reservations.
pub(super) async fn list(context: &CommandContext) -> anyhow::Result<()> {
    let server = context.connect().await?;
    let request = v1::SpaceReservationsRequest {
        credentials: Some(credentials()),
    };
    let listed = server.answer(server.places().reservations(request).await)?;
    let reservations = output::list(&listed.reservations);
    context.output.show(&Reservations(reservations))?;
    Ok(())
}

/// Ends the reservation of this number, or all reservations of the caller for this directory.
pub(super) async fn release(which: &OsStr, context: &CommandContext) -> anyhow::Result<()> {
    let server = context.connect().await?;
    let id = which.to_str().and_then(|id| id.parse().ok());
    let id = id.unwrap_or(0);
    let path = match id {
        0 => files::path(which)?.into_bytes(),
        _ => Vec::new(),
    };
    let request = v1::ReleaseRequest {
        credentials: Some(credentials()),
        id,
        path,
    };
    let released = server.answer(server.places().release(request).await)?;
    for reservation in released.reservations {
        let directory = line(&String::from_utf8_lossy(&reservation.directory));
        let text = format!("reservation {} for {directory} has ended", reservation.id);
        context
            .output
            .step(&Message(text, Reservation::from(&reservation)))?;
    }
    Ok(())
}

/// Reserves space for new files below a directory.
pub(super) async fn reserve(args: Reserve, context: &CommandContext) -> anyhow::Result<()> {
    let server = context.connect().await?;
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
                    tracing::warn!("{}; waiting for free space", status.message());
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
        .show(&Message(text, Reservation::from(&reservation)))?;
    Ok(())
}
