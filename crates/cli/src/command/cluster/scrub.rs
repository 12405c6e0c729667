//! `tidemill cluster scrub`: nodes read their objects and find corruption.

use crate::context::CommandContext;
use crate::files;
use crate::output::health::{ScrubRequest, ScrubResult};
use crate::output::list;
use crate::progress::Progress;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill cluster scrub                    all objects of all nodes, in the background
  tidemill cluster scrub --node 2 --wait
  tidemill cluster scrub --wait /raw        the files below a directory, with the findings
  tidemill --json cluster scrub --wait /raw | jq '.corrupt[].path'

Nodes compare objects with their hashes, made soon after the seal. A corrupt object is restored from
another replica, if one exists; `tidemill cluster health` lists objects that could not be restored.

Exit codes: 0 no corruption (or without --wait), 1 corruption was found, repaired or not, or not all objects could be read.";

/// Interval at which the command asks for the progress.
const PERIOD: Duration = Duration::from_millis(300);

/// Have nodes read their objects and compare them with the sealed content (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file, or a directory with all files below it [default: everything]
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
    /// Id of the node, to scrub it only
    #[arg(long, value_name = "ID")]
    node: Option<u32>,
    /// Wait until all objects are read, and report the findings
    #[arg(long)]
    wait: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let path = args.path.map(files::path).transpose()?;
    let server = context.connect().await?;
    let request = v1::ScrubRequest {
        path: path.unwrap_or_default().into_bytes(),
        node: args.node,
    };
    let asked = server.answer(server.health().scrub(request).await)?;
    if !args.wait {
        return context.output.finish(&ScrubRequest::from(&asked));
    }
    let reply = ended(&server, &asked, context).await?;
    let offline = asked.offline.clone();
    let corrupt = reply.scrubs.iter().map(|one| one.corrupt).sum::<u64>();
    context.output.show(&ScrubResult {
        scrubs: list(&reply.scrubs),
        offline,
        corrupt: list(&reply.corrupt),
    })?;
    let well = corrupt == 0 && asked.offline.is_empty();
    Ok(ExitCode::from(u8::from(!well)))
}

/// Waits until all online nodes have read the requested objects.
async fn ended(
    server: &Server,
    asked: &v1::ScrubReply,
    context: &CommandContext,
) -> anyhow::Result<v1::ScrubsReply> {
    let progress = Progress::new(context, 0);
    loop {
        let request = v1::ScrubsRequest {
            request: asked.request,
        };
        let reply = server.answer(server.health().scrubs(request).await)?;
        let objects: u64 = reply.scrubs.iter().map(|one| one.objects).sum();
        let text = format!("{objects} objects read");
        progress.now(&text);
        let up = |one: &&v1::NodeScrub| !asked.offline.contains(&one.node);
        if reply.scrubs.iter().filter(up).all(|one| one.ended > 0) {
            progress.end();
            return Ok(reply);
        }
        tokio::time::sleep(PERIOD).await;
    }
}
