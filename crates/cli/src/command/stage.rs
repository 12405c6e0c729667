//! `tidemill stage`: copies stored files into the burst tier, for a program that will read them, and promises room in the tier
//! before a program writes to it.

use super::drain;
use crate::context::{Context, credentials};
use crate::files;
use crate::format::{self, Length, Size};
use crate::output::Said;
use crate::output::promise::{PromisesView, promise_json};
use anyhow::Context as _;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_core::shown::line;
use tidemill_wire::v1;
use tonic::Code;

const EXAMPLES: &str = "Examples:
  tidemill stage /input --wait              wait until all files below it have a replica in the burst tier
  tidemill stage /input --node 8         on that node of the tier
  tidemill --json stage /input | jq .bytes
  tidemill drain /output --free --wait      the other way, after the program has ended
  tidemill stage reserve 100GB --path /run/42 --wait   room in the tier for new files there
  tidemill stage list
  tidemill stage release /run/42

Without --node, the replicas are made on a node of the tier on this host, if it has one, else on the node with the most room.
`replicas` does not count them. They are removed when room is needed, in the order of staging. You need the right to read the files.";

const RESERVE_EXAMPLES: &str = "Examples:
  tidemill stage reserve 100GB --path /run/42            fail at once if room is missing
  tidemill stage reserve 100GB --path /run/42 --wait     wait until enough files have drained, or other promises have ended
  tidemill stage reserve 1TB --path /run/42 --for 4h --node 8

New files of all users below the directory are written to that node, and use the promise up. The promise ends after --for, by
`tidemill stage release`, or with the directory. Other new files only begin in room that is not promised. An open file counts as 16 MiB.";

/// How often a promise is asked for again.
const PERIOD: Duration = Duration::from_secs(1);

/// Copy stored files to the burst tier, near a program that will read them, or manage promises of room there
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
    /// Promise room in the burst tier for new files below a directory
    Reserve(Reserve),
    /// List your promises; as root, all
    List,
    /// End a promise. Written files stay, and its unused room is free for everybody
    Release {
        /// Its number, or its directory for all your promises there
        #[arg(value_name = "PROMISE|DIRECTORY")]
        which: OsString,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = RESERVE_EXAMPLES)]
struct Reserve {
    /// Size, such as 100GB
    size: Size,
    /// Directory, which you may write to
    #[arg(long, value_name = "DIRECTORY")]
    path: OsString,
    /// Maximum duration, such as 4h [default: 1d]
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<Length>,
    /// Node id
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Wait until the room is free
    #[arg(long)]
    wait: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(command) => promises(command, context).await?,
        None => {
            let bring = v1::Bring {
                node: args.node.map_or(0, |node| node.saturating_add(1)),
                host: tidemill_client::host::id(),
            };
            let request = v1::StageRequest {
                bring: Some(bring),
                ..v1::StageRequest::default()
            };
            drain::ask(context, (&args.paths, request), args.wait).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn promises(command: StageCommand, context: &Context) -> anyhow::Result<()> {
    let server = context.connect().await?;
    match command {
        StageCommand::Reserve(args) => reserve(args, context, &server).await,
        StageCommand::List => {
            let request = v1::PromisesRequest {
                credentials: Some(credentials()),
            };
            let listed = server.places().promises(request).await;
            let listed = listed.map_err(|status| server.explain(status))?;
            context
                .output
                .show(&PromisesView(listed.into_inner().promises))?;
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
            for promise in released.into_inner().promises {
                let directory = line(&String::from_utf8_lossy(&promise.directory));
                let text = format!("promise {} for {directory} has ended", promise.id);
                let said = Said::new(text, promise_json(&promise));
                context.output.step(&said)?;
            }
            Ok(())
        }
    }
}

async fn reserve(args: Reserve, context: &Context, server: &Server) -> anyhow::Result<()> {
    let lasts = args
        .lasts
        .map(|Length(lasts)| i64::try_from(lasts.as_nanos()));
    let Size(bytes) = args.size;
    let request = v1::PromiseRequest {
        credentials: Some(credentials()),
        path: files::path(&args.path)?.into_bytes(),
        bytes,
        node: args.node.map_or(0, |node| node.saturating_add(1)),
        host: tidemill_client::host::id(),
        for_ns: lasts.transpose().context("--for is too long")?.unwrap_or(0),
        wait: args.wait,
    };
    let mut waits = false;
    let promise = loop {
        match server.places().reserve(request.clone()).await {
            Ok(promise) => break promise.into_inner(),
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
        "promise {}: {} of node {} for new files below {} until {} (UTC)",
        promise.id,
        format::bytes(promise.bytes),
        promise.node,
        line(&String::from_utf8_lossy(&promise.directory)),
        format::time(promise.until)
    );
    context
        .output
        .show(&Said::new(text, promise_json(&promise)))?;
    Ok(())
}
