//! `tidemill migrate`: moves the bytes of files to other nodes, or rewrites files with the settings of their directories.

use super::put;
use crate::context::{CommandContext, credentials};
use crate::files::{self, ClusterPath};
use crate::format;
use crate::output::Message;
use crate::output::messages::PlannedRewrite;
use crate::output::places::Migration;
use crate::progress::Progress;
use anyhow::Context as _;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_wire::v1::{self, Kind};

const EXAMPLES: &str = "Examples:
  tidemill migrate /raw/a.fits --node 2
  tidemill migrate /raw --node 2           all files below /raw
  tidemill migrate /big --node 0,1,4,5     spread evenly over these nodes
  tidemill migrate /raw --node 2 --dry-run     show the number of files and bytes
  tidemill migrate /raw --cancel           stop; files that have not migrated yet stay
  tidemill migrate /big --rewrite          rewrite existing files in the stripes of `tidemill set /big stripe=1MiB`

With --node, files migrate in the background (`tidemill cluster tasks`), and continue after a restart of the server. Readers of the
files do not notice. If a file has several replicas, the first replica migrates. A file on one of the nodes stays there.

--rewrite writes each file now, with the same bytes, owner, mode, time and number of replicas, as a new version, in the stripes and the
tier that its directory is set to. Files that are being written are refused. With --node, too, the new versions migrate to the nodes.";

/// Migrate files of the cluster to other nodes, or rewrite them with the settings of their directories
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and directories. A directory stands for all files below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Target nodes: one node, or several. Files, and the parts of striped files, are spread over the nodes
    #[arg(
        long,
        value_name = "NODE,…",
        value_delimiter = ',',
        required_unless_present_any = ["cancel", "rewrite"]
    )]
    node: Vec<u32>,
    /// Rewrite the files with the settings of their directories (`tidemill set`)
    #[arg(long)]
    rewrite: bool,
    /// Stop the migration: files that have not migrated yet stay
    #[arg(long, conflicts_with_all = ["node", "rewrite", "dry_run"])]
    cancel: bool,
    /// Show the number of files and bytes, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let mut paths = Vec::new();
    for path in &args.paths {
        paths.push(files::path(path)?);
    }
    if args.rewrite {
        rewrite(&server, &paths, args.dry_run, context).await?;
    }
    if !args.cancel && args.node.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    for path in paths {
        let moved = match args.dry_run {
            true => planned(&server, &path, &args.node).await?,
            false => migrate(&server, &path, &args).await?,
        };
        context
            .output
            .step(&Migration::new(path, &args.node, &moved, args.dry_run))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn migrate(
    server: &Server,
    path: &ClusterPath,
    args: &Args,
) -> anyhow::Result<v1::MoveReply> {
    let request = v1::MoveRequest {
        credentials: Some(credentials()),
        path: path.clone().into_bytes(),
        node: node(&args.node),
        cancel: args.cancel,
        nodes: args.node.clone(),
    };
    Ok(server.answer(server.places().r#move(request).await)?)
}

/// Returns the only node. Several nodes are in another field of the request.
fn node(nodes: &[u32]) -> u32 {
    match nodes {
        [node] => *node,
        _ => u32::MAX,
    }
}

/// Returns the files that would migrate. Striped files count whole, also with parts on a target node.
async fn planned(
    server: &Server,
    path: &ClusterPath,
    nodes: &[u32],
) -> anyhow::Result<v1::MoveReply> {
    let mut reply = v1::MoveReply::default();
    for (_, attr) in below(server, path).await? {
        if attr.object == 0 {
            reply.unsealed += 1;
        } else if !attr.parts && nodes.contains(&attr.node) {
            reply.there += 1;
        } else {
            reply.files += 1;
            reply.bytes += attr.size;
        }
    }
    Ok(reply)
}

async fn rewrite(
    server: &Server,
    paths: &[ClusterPath],
    dry_run: bool,
    context: &CommandContext,
) -> anyhow::Result<()> {
    let mut wanted = Vec::new();
    for path in paths {
        wanted.extend(below(server, path).await?);
    }
    let mut bytes: u64 = wanted.iter().map(|(_, attr)| attr.size).sum();
    let count = wanted.len() as u64;
    let files = format::count(count, "file");
    if dry_run {
        let text = format!("{files}, {} would be rewritten", format::bytes(bytes));
        let (files, bytes) = (count, format::Bytes(bytes));
        let rewrite = PlannedRewrite {
            dry_run: true,
            files,
            bytes,
        };
        return context.output.step(&Message(text, rewrite));
    }
    let transfer = context.transfer().await?;
    let progress = Progress::new(context, bytes);
    bytes = 0;
    for (path, _) in wanted {
        progress.now(&path);
        let written = transfer.rewrite(&path, |bytes| progress.add(bytes)).await;
        bytes += written.with_context(|| format!("can't rewrite {path}"))?;
    }
    progress.end();
    let text = format!("{files}, {} rewritten", format::bytes(bytes));
    put::tell(context, text, count, bytes)?;
    Ok(())
}

/// Returns the file, or all files below the directory, each file once.
async fn below(
    server: &Server,
    path: &ClusterPath,
) -> anyhow::Result<Vec<(ClusterPath, v1::Attr)>> {
    let entry = files::resolve(server, path, true).await?;
    let (mut left, mut files) = (vec![(path.clone(), entry)], Vec::new());
    let mut seen = BTreeSet::new();
    while let Some((path, entry)) = left.pop() {
        let attr = entry.attr.unwrap_or_default();
        match attr.kind() {
            Kind::Directory => {
                let entries = files::list(server, attr.ino).await?.into_iter().rev();
                left.extend(entries.map(|one| (path.join(&one.name), one)));
            }
            Kind::File if seen.insert(attr.ino) => files.push((path, attr)),
            _ => {}
        }
    }
    Ok(files)
}
