//! `tidemill put`: copies local files into the cluster.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::format;
use crate::output::Message;
use crate::output::files::kind;
use crate::output::messages::FileCount;
use crate::progress::Progress;
use anyhow::Context as _;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tidemill_client::Server;
use tidemill_client::transfer::{PutOptions, Transfer};
use tidemill_model::id::NodeId;
use tidemill_model::layout::Stripes;
use tidemill_model::replicas;
use tidemill_wire::v1::{self, name_op::Op};
use tokio::task::JoinSet;

const EXAMPLES: &str = "Examples:
  tidemill put a.fits b.fits /raw/              into a directory
  tidemill put a.fits /raw/first.fits           under another name
  tidemill put -r survey /                      a directory with all files below it, as /survey
  tidemill put --node 2 a.fits /raw/         to one node
  tidemill put --replicas 2 a.fits /raw/        with a replica on another host, made afterwards
  tidemill put --replicas 2,now a.fits /raw/    the same; wait for the replica
  tidemill put --stripe 1MiB,4 big /raw/        1 MiB to each of 4 nodes in turn
  make-data | tidemill put - /raw/data          from standard input";

/// Files copied at the same time.
const AT_ONCE: usize = 8;

/// Copy local files into the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Local files and, last, the path in the cluster; `-` is standard input
    #[arg(required = true, num_args = 2.., value_name = "LOCAL... PATH")]
    paths: Vec<PathBuf>,
    /// Copy directories with all files below them
    #[arg(long, short)]
    recursive: bool,
    /// Id of the node for the files [default: the directory's, else by inode]
    #[arg(long, short, value_name = "ID")]
    node: Option<u32>,
    /// Number of nodes with a replica, on other hosts first, 1 to 8; with `,now` the command waits for the replicas [default: as the
    /// directory says]
    #[arg(long, value_name = "N[,now]")]
    replicas: Option<replicas::WantedReplicas>,
    /// Size of a stripe and number of nodes [default: as the directory says; without WIDTH: all nodes]
    #[arg(long, value_name = "UNIT[,WIDTH]", conflicts_with = "node")]
    stripe: Option<Stripes>,
}

/// An entry to be made in the cluster.
#[derive(Debug, PartialEq, Eq)]
enum PutStep {
    Directory(files::ClusterPath),
    Link(files::ClusterPath, PathBuf),
    File(PathBuf, files::ClusterPath, u64),
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let (sources, target) = args.paths.split_at(args.paths.len() - 1);
    let steps = plan(&server, sources, target[0].as_os_str(), args.recursive).await?;
    let total = steps
        .iter()
        .map(|step| {
            if let PutStep::File(.., size) = step {
                *size
            } else {
                0
            }
        })
        .sum();
    let copy = Arc::new(FileUpload {
        transfer: Transfer::new(server.clone(), credentials()),
        wanted: PutOptions {
            node: args.node.map(NodeId),
            replicas: args.replicas,
            stripes: args.stripe,
        },
        progress: Progress::new(context, total),
    });
    let mut running: JoinSet<anyhow::Result<u64>> = JoinSet::new();
    let (mut count, mut bytes) = (0_u64, 0);
    for step in steps {
        match step {
            PutStep::Directory(path) => files::make_directory(&server, &path, true).await?,
            PutStep::Link(path, target) => make_link(&server, &path, &target).await?,
            PutStep::File(local, path, _) => {
                if running.len() >= AT_ONCE
                    && let Some(done) = running.join_next().await
                {
                    bytes += done??;
                }
                count += 1;
                let copy = copy.clone();
                running.spawn(async move { copy.file(&local, &path).await });
            }
        }
    }
    while let Some(done) = running.join_next().await {
        bytes += done??;
    }
    copy.progress.end();
    let text = format!(
        "{}, {} put",
        format::count(count, "file"),
        format::bytes(bytes)
    );
    tell(context, text, count, bytes)?;
    Ok(ExitCode::SUCCESS)
}

/// Reports the copied files: a note for people, since scripts want silence, a result for programs.
///
/// # Errors
/// If standard output can't be written.
pub(crate) fn tell(
    context: &CommandContext,
    text: String,
    files: u64,
    bytes: u64,
) -> anyhow::Result<()> {
    if context.output.json {
        let bytes = format::Bytes(bytes);
        return context
            .output
            .show(&Message(text, FileCount { files, bytes }));
    }
    context.note(text);
    Ok(())
}

struct FileUpload {
    transfer: Transfer,
    wanted: PutOptions,
    progress: Progress,
}

impl FileUpload {
    async fn file(&self, local: &Path, path: &files::ClusterPath) -> anyhow::Result<u64> {
        self.progress.now(local.display());
        let progress = |bytes| self.progress.add(bytes);
        let put = self.transfer.put(local, path, self.wanted, progress).await;
        put.with_context(|| format!("can't put {} as {path}", local.display()))
    }
}

/// Returns everything to be made, directories before their entries.
async fn plan(
    server: &Server,
    sources: &[PathBuf],
    target: &OsStr,
    recursive: bool,
) -> anyhow::Result<Vec<PutStep>> {
    let path = files::path(target)?;
    let found = files::find(server, &path, true).await;
    let is_directory = found.is_ok_and(|entry| kind(&entry) == v1::Kind::Directory);
    anyhow::ensure!(
        is_directory || (sources.len() == 1 && !target.as_bytes().ends_with(b"/")),
        "not a directory: {path}; make it first (`tidemill mkdir -p {path}`)"
    );
    let mut steps = Vec::new();
    for source in sources {
        if source.as_os_str() == "-" {
            anyhow::ensure!(
                !is_directory,
                "no name for standard input: {path} is a directory; give the full path of a file"
            );
            steps.push(PutStep::File("/dev/stdin".into(), path.clone(), 0));
            continue;
        }
        let metadata = std::fs::metadata(source).with_context(|| source.display().to_string())?;
        anyhow::ensure!(
            recursive || !metadata.is_dir(),
            "is a directory: {}; give -r to put it with everything in it",
            source.display()
        );
        let path = if is_directory {
            path.join(own_name(source)?.as_bytes())
        } else {
            path.clone()
        };
        if metadata.is_dir() {
            walk(source, &path, &mut steps)?;
        } else {
            steps.push(PutStep::File(source.clone(), path, metadata.len()));
        }
    }
    Ok(steps)
}

/// The last component of a local path, also of `.` and `a/..`.
fn own_name(source: &Path) -> anyhow::Result<OsString> {
    let full = std::fs::canonicalize(source).with_context(|| source.display().to_string())?;
    let name = source.file_name().or_else(|| full.file_name());
    let name =
        name.with_context(|| format!("no name: {}; give the path of a file", source.display()))?;
    Ok(name.to_owned())
}

fn walk(
    directory: &Path,
    path: &files::ClusterPath,
    steps: &mut Vec<PutStep>,
) -> anyhow::Result<()> {
    let at = || directory.display().to_string();
    steps.push(PutStep::Directory(path.clone()));
    let mut entries = std::fs::read_dir(directory)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(at)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (local, kind) = (entry.path(), entry.file_type().with_context(at)?);
        let path = path.join(entry.file_name().as_bytes());
        if kind.is_dir() {
            walk(&local, &path, steps)?;
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&local).with_context(|| local.display().to_string())?;
            steps.push(PutStep::Link(path, target));
        } else if kind.is_file() {
            let size = entry.metadata().with_context(at)?.len();
            steps.push(PutStep::File(local, path, size));
        } else {
            anyhow::bail!(
                "not a file, directory or link: {}; move it elsewhere or copy through the mount",
                local.display()
            );
        }
    }
    Ok(())
}

async fn make_link(
    server: &Server,
    path: &files::ClusterPath,
    target: &Path,
) -> anyhow::Result<()> {
    let (ino, _) = server.reserve(1, 0).await?;
    let me = credentials();
    let create = v1::Create {
        name: path.clone().into_bytes(),
        kind: v1::Kind::Symlink.into(),
        mode: 0o777,
        ino: ino.0,
        target: target.as_os_str().as_bytes().to_vec(),
        uid: me.uid,
        gid: me.gid,
        ..v1::Create::default()
    };
    server.one(&me, Op::Create(create)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walk_lists_directories_before_contents_and_keeps_links() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("data");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::write(root.join("sub/a"), "four").unwrap();
        std::os::unix::fs::symlink("sub/a", root.join("z")).unwrap();
        let mut steps = Vec::new();
        let path = |text| files::path(text).unwrap();
        walk(&root, &path("/data"), &mut steps).unwrap();
        let expected = [
            PutStep::Directory(path("/data")),
            PutStep::Directory(path("/data/sub")),
            PutStep::File(root.join("sub/a"), path("/data/sub/a"), 4),
            PutStep::Link(path("/data/z"), "sub/a".into()),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn own_name_of_dot_is_current_directory_name() {
        let here = own_name(Path::new(".")).unwrap();
        assert_eq!(
            std::env::current_dir()
                .unwrap()
                .file_name()
                .unwrap()
                .to_str(),
            here.to_str()
        );
    }
}
