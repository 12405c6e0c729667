//! `tidemill get`: copies files of the cluster to local ones.

use super::{cat, put};
use crate::context::CommandContext;
use crate::files;
use crate::format;
use crate::output::files::kind;
use crate::progress::Progress;
use anyhow::Context as _;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tidemill_client::Server;
use tidemill_client::transfer::Transfer;
use tidemill_wire::v1;
use tokio::task::JoinSet;

const EXAMPLES: &str = "Examples:
  tidemill get /mosaic.png .                    into a directory
  tidemill get /mosaic.png picture.png          under another name
  tidemill get -r /results .                    a directory with all files below it
  tidemill get /counts.txt - | sort             to standard output
  tidemill get --corrupt /raw/a.fits rest.fits  the rest of a file with corruption in every replica";

/// Files copied at the same time.
const AT_ONCE: usize = 8;

/// Copy files of the cluster to local files
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Paths in the cluster and, last, the local path; `-` is standard output
    #[arg(required = true, num_args = 2.., value_name = "PATH... LOCAL")]
    paths: Vec<OsString>,
    /// Copy directories with all files below them
    #[arg(long, short)]
    recursive: bool,
    /// Copy files with corruption in every replica, too. The corrupt bytes differ from the written bytes
    #[arg(long)]
    corrupt: bool,
}

/// A file to copy: path in the cluster, local path, mode, size.
struct Download {
    path: files::ClusterPath,
    local: PathBuf,
    mode: u32,
    size: u64,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let transfer = Arc::new(context.transfer().await?);
    let (sources, local) = args.paths.split_at(args.paths.len() - 1);
    anyhow::ensure!(
        !args.corrupt || local[0] != "-",
        "--corrupt needs a file to write to, not standard output"
    );
    if local[0] == "-" {
        for path in sources {
            cat::to_stdout(&transfer, &files::path(path)?, false).await?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = plan(&server, sources, Path::new(&local[0]), args.recursive).await?;
    let count = wanted.len() as u64;
    let total = wanted.iter().map(|file| file.size).sum();
    let progress = Arc::new(Progress::new(context, total));
    let (mut running, mut bytes) = (JoinSet::new(), 0);
    for file in wanted {
        if running.len() >= AT_ONCE
            && let Some(done) = running.join_next().await
        {
            bytes += done??;
        }
        let (transfer, progress) = (transfer.clone(), progress.clone());
        running.spawn(async move {
            let got = copy(&transfer, &file, args.corrupt, &progress).await;
            got.with_context(|| format!("can't get {} as {}", file.path, file.local.display()))
        });
    }
    while let Some(done) = running.join_next().await {
        bytes += done??;
    }
    progress.end();
    let text = format!(
        "{}, {} got",
        format::count(count, "file"),
        format::bytes(bytes)
    );
    put::tell(context, text, count, bytes)?;
    Ok(ExitCode::SUCCESS)
}

/// Lists the files to copy, making local directories and links on the way.
async fn plan(
    server: &Server,
    sources: &[OsString],
    local: &Path,
    recursive: bool,
) -> anyhow::Result<Vec<Download>> {
    let is_directory = local.is_dir();
    anyhow::ensure!(
        is_directory || sources.len() == 1,
        "not a directory: {}; make it first (`mkdir -p {}`)",
        local.display(),
        local.display()
    );
    let mut wanted = Vec::new();
    for source in sources {
        let path = files::path(source)?;
        let entry = files::resolve(server, &path, true).await?;
        let to = match path.split() {
            Ok((_, name)) if is_directory => local.join(OsStr::from_bytes(name)),
            _ => local.to_path_buf(),
        };
        let directory = kind(&entry) == v1::Kind::Directory;
        anyhow::ensure!(
            recursive || !directory,
            "is a directory: {path}; give -r to get it with everything in it"
        );
        collect(server, &path, &entry, to, &mut wanted).await?;
    }
    Ok(wanted)
}

async fn collect(
    server: &Server,
    path: &files::ClusterPath,
    entry: &v1::Entry,
    local: PathBuf,
    wanted: &mut Vec<Download>,
) -> anyhow::Result<()> {
    let at = || local.display().to_string();
    let attr = entry.attr.unwrap_or_default();
    match kind(entry) {
        v1::Kind::Directory => {
            std::fs::create_dir_all(&local).with_context(at)?;
            for below in files::list(server, attr.ino).await? {
                let path = path.join(&below.name);
                let local = local.join(OsStr::from_bytes(&below.name));
                Box::pin(collect(server, &path, &below, local, wanted)).await?;
            }
        }
        v1::Kind::Symlink => {
            let target = OsStr::from_bytes(&entry.target);
            std::os::unix::fs::symlink(target, &local).with_context(at)?;
        }
        v1::Kind::File => wanted.push(Download {
            path: path.clone(),
            local,
            mode: attr.mode,
            size: attr.size,
        }),
        other => anyhow::bail!(
            "not a file, directory or link: {path} ({other:?}); copy it through the mount"
        ),
    }
    Ok(())
}

/// Copies one file. A plain file appears under its name only when it is whole.
async fn copy(
    transfer: &Transfer,
    file: &Download,
    corrupt: bool,
    progress: &Progress,
) -> anyhow::Result<u64> {
    progress.now(&file.path);
    let add = |bytes| progress.add(bytes);
    if std::fs::metadata(&file.local).is_ok_and(|there| !there.is_file()) {
        return Ok(transfer.get(&file.path, &file.local, add).await?);
    }
    let mut part = std::ffi::OsString::from(".");
    part.push(
        file.local
            .file_name()
            .context("the local path has no name")?,
    );
    part.push(".part");
    let part = file.local.with_file_name(part);
    let got = match corrupt {
        true => transfer.get_corrupt(&file.path, &part, add).await,
        false => transfer.get(&file.path, &part, add).await,
    };
    let kept = match got {
        Ok(bytes) => std::fs::set_permissions(
            &part,
            std::fs::Permissions::from_mode(file.mode & 0o777 & !files::umask()),
        )
        .and_then(|()| std::fs::rename(&part, &file.local))
        .map(|()| bytes)
        .map_err(anyhow::Error::from),
        Err(error) => Err(error.into()),
    };
    if kept.is_err() {
        // The first error is reported.
        let _ = std::fs::remove_file(&part);
    }
    kept
}
