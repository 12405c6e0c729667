//! `tidemill rm`: removes files and directories of the cluster.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::Message;
use crate::output::files::{kind, kind_name, name};
use crate::output::messages::PlannedRemoval;
use std::ffi::OsString;
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_wire::v1::{self, name_op::Op};

const EXAMPLES: &str = "Examples:
  tidemill rm /raw/a.fits
  tidemill rm -r /scratch           with everything in it
  tidemill rm -r --dry-run /scratch    show the paths, and remove nothing";

/// Maximum number of removals sent at once.
const BATCH: usize = 1000;

/// Remove files of the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Paths in the cluster
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Remove directories with all files below them
    #[arg(long, short)]
    recursive: bool,
    /// Ignore missing paths
    #[arg(long, short)]
    force: bool,
    /// Show the paths that the command would remove, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    for path in &args.paths {
        let path = files::path(path)?;
        let found = match files::resolve(&server, &path, false).await {
            Err(error) if args.force && error.is(rustix::io::Errno::NOENT) => continue,
            found => found?,
        };
        let (parent, name) = path.split()?;
        let directory = kind(&found) == v1::Kind::Directory;
        if directory {
            anyhow::ensure!(
                args.recursive,
                "is a directory: {path}; give -r to remove it with everything in it"
            );
        }
        let ino = found.attr.map_or(0, |attr| attr.ino);
        if args.dry_run {
            planned(&server, &path, &found, context).await?;
            continue;
        }
        if directory {
            empty(&server, ino).await?;
        }
        let unlink = v1::Unlink {
            parent: files::inode(&server, parent).await?,
            name: name.to_vec(),
            directory,
            time: 0,
        };
        server.one(&credentials(), Op::Unlink(unlink)).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the paths that would be removed, deepest first.
async fn planned(
    server: &Server,
    path: &files::ClusterPath,
    entry: &v1::Entry,
    context: &CommandContext,
) -> anyhow::Result<()> {
    if kind(entry) == v1::Kind::Directory {
        let ino = entry.attr.map_or(0, |attr| attr.ino);
        for below in files::list(server, ino).await? {
            Box::pin(planned(server, &path.join(&below.name), &below, context)).await?;
        }
    }
    let (text, path) = (format!("would remove {path}"), path.clone());
    let removal = PlannedRemoval {
        dry_run: true,
        path,
        kind: kind_name(entry),
    };
    context.output.step(&Message(text, removal))?;
    Ok(())
}

/// Removes everything in a directory, deepest first.
///
/// # Errors
/// If something in it may not be removed.
pub(crate) async fn empty(server: &Server, ino: u64) -> anyhow::Result<()> {
    let entries = files::list(server, ino).await?;
    for entry in entries
        .iter()
        .filter(|entry| kind(entry) == v1::Kind::Directory)
    {
        let below = entry.attr.as_ref().map_or(0, |attr| attr.ino);
        Box::pin(empty(server, below)).await?;
    }
    for batch in entries.chunks(BATCH) {
        let unlink = |entry: &v1::Entry| v1::NameOp {
            op: Some(Op::Unlink(v1::Unlink {
                parent: ino,
                name: entry.name.clone(),
                directory: kind(entry) == v1::Kind::Directory,
                time: 0,
            })),
        };
        let request = v1::NameRequest {
            credentials: Some(credentials()),
            ops: batch.iter().map(unlink).collect(),
            ..v1::NameRequest::default()
        };
        let answers = server.apply(request).await?;
        for (entry, answer) in batch.iter().zip(answers) {
            if let v1::name_result::Result::Error(error) = answer {
                let error = tidemill_client::Error::from(error);
                return Err(
                    anyhow::Error::new(error).context(format!("can't remove {}", name(entry)))
                );
            }
        }
    }
    Ok(())
}
