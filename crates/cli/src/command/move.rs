//! `tidemill move`: files lie on another node from then on.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::places::MovedView;
use std::ffi::OsString;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill move /raw/a.fits --node 2
  tidemill move /raw --node 2            all files below it
  tidemill move /big --node 0,1,4,5      spread evenly over these nodes
  tidemill move /raw --cancel               stop; files that have not moved yet stay

Files move in the background, by labels (`tidemill labels`), and continue after a restart of the server. Readers of the files
do not notice. If a file has several replicas, the first replica moves. Files that one of the nodes already has stay there.";

/// Move files of the cluster to other nodes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and directories. A directory stands for all files below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Target nodes: one node, or several. Files, and the parts of striped files, are spread over them
    #[arg(
        long,
        value_name = "NODE,…",
        value_delimiter = ',',
        required_unless_present = "cancel"
    )]
    node: Vec<u32>,
    /// Stop the move: files that have not moved yet stay
    #[arg(long, conflicts_with = "node")]
    cancel: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    for path in &args.paths {
        let path = files::path(path)?;
        let request = v1::MoveRequest {
            credentials: Some(credentials()),
            path: path.clone().into_bytes(),
            node: node(&args.node),
            cancel: args.cancel,
            nodes: args.node.clone(),
        };
        let moved = server.places().r#move(request).await;
        let moved = moved.map_err(|status| server.explain(status))?.into_inner();
        context.output.step(&MovedView {
            path,
            nodes: args.node.clone(),
            moved,
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The node, for servers that know of one only: of several none, which they refuse.
fn node(nodes: &[u32]) -> u32 {
    match nodes {
        [node] => *node,
        _ => u32::MAX,
    }
}
