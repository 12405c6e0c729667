//! `tidemill node recover-files`: recovers files from the packs in the store of a lost node.

use super::backend;
use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::list;
use crate::output::messages::RecoveredFiles;
use crate::output::remote::RecoverableFiles;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_model::glob::Pattern;
use tidemill_node::backend::packs::{
    DIRECTORY,
    recovery::{Contents, Recovered},
};
use tidemill_remote::{ListedItem, Remote};

const EXAMPLES: &str = "Examples:
  tidemill node recover-files s3://bucket/run-7 --keys ~/run-7.keys      list the files
  tidemill node recover-files s3://bucket/run-7 --keys ~/run-7.keys 'run/*.nc' --into /scratch/back
  tidemill cp REMOTE:PATTERN /DIRECTORY                                        copy from the store into a cluster again

The command reads stores of nodes with `--backend-format`, and needs neither the node nor a cluster. It lists the newest version of
each name. Files that were removed or renamed lately may be listed under their old names. Files that are not in packs are in the store
under their names.";

/// Find the files in the packs of an external store, without the node that wrote them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address of the store, as for --backend
    #[arg(value_name = "URI")]
    uri: String,
    /// Glob that names of files must match, without their leading /
    #[arg(value_name = "PATTERN")]
    pattern: Option<String>,
    /// File with the keys of the store
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Local directory to copy the files to, under their names. Existing files stay as they are
    #[arg(long, value_name = "DIRECTORY")]
    into: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let remote = backend::open(&args.uri, args.keys.as_deref());
    let remote = remote.with_context(|| format!("can't look into {}", args.uri))?;
    let pattern = args.pattern.as_deref().map(Pattern::new).transpose();
    let pattern = pattern.context("bad pattern")?;
    let (contents, unreadable) = contents(&remote, context).await?;
    let mut files = newest(contents.files());
    files.retain(|file| {
        pattern
            .as_ref()
            .is_none_or(|pattern| pattern.matches(&file.name))
    });
    anyhow::ensure!(!files.is_empty(), "no such files in packs: {}", args.uri);
    let Some(into) = &args.into else {
        let lost = files.iter().any(|file| !file.whole);
        context.output.show(&RecoverableFiles(list(&files)))?;
        return Ok(exit(unreadable > 0 || lost));
    };
    let copied = copy(&contents, &remote, (&files, into), context).await?;
    Ok(exit(unreadable > 0 || !copied))
}

fn exit(failed: bool) -> ExitCode {
    match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Returns the records of all packs, and the number of packs without valid records.
async fn contents(remote: &Remote, context: &CommandContext) -> anyhow::Result<(Contents, u64)> {
    let (mut contents, mut unreadable) = (Contents::default(), 0);
    let mut listed = remote.list(DIRECTORY);
    while let Some(listed) = listed.next().await? {
        let ListedItem::Object(pack) = listed else {
            continue;
        };
        let path = pack.path.clone();
        if let Err(error) = contents.add(remote.as_ref(), pack).await {
            unreadable += 1;
            context.note(format!("skipped: {path}: {error}"));
        }
    }
    Ok((contents, unreadable))
}

/// Returns the newest complete version of each name, else the newest.
fn newest(files: Vec<Recovered>) -> Vec<Recovered> {
    let mut newest: Vec<Recovered> = Vec::new();
    for file in files {
        match newest.last_mut().filter(|last| last.name == file.name) {
            Some(last) if last.whole && !file.whole => {}
            Some(last) => *last = file,
            None => newest.push(file),
        }
    }
    newest
}

/// Copies files into a directory. Returns whether all files were copied.
async fn copy(
    contents: &Contents,
    remote: &Remote,
    (files, into): (&[Recovered], &Path),
    context: &CommandContext,
) -> anyhow::Result<bool> {
    std::fs::create_dir_all(into).with_context(|| into.display().to_string())?;
    let into = std::path::absolute(into)?;
    // Names in packs can't reach a path outside of this directory.
    let directory = backend::open(&format!("file://{}", into.display()), None)?;
    let (mut copied, mut bytes, mut same, mut failed) = (0_u64, 0, 0_u64, 0_u64);
    for file in files {
        if directory.stat(&file.name).await.is_ok() {
            same += 1;
            continue;
        }
        match copy_one(contents, remote, file, &directory).await {
            Ok(()) => {
                copied += 1;
                bytes += file.size;
            }
            Err(error) => {
                failed += 1;
                context.note(format!("{}: {error:#}", file.name));
            }
        }
    }
    let text = format!(
        "{}, {} copied; {same} as they were; {failed} failed",
        format::count(copied, "file"),
        format::bytes(bytes),
    );
    let bytes = format::Bytes(bytes);
    let recovered = RecoveredFiles {
        files: copied,
        bytes,
        same,
        failed,
    };
    context.output.show(&Message(text, recovered))?;
    Ok(failed == 0)
}

async fn copy_one(
    contents: &Contents,
    remote: &Remote,
    file: &Recovered,
    directory: &Remote,
) -> anyhow::Result<()> {
    let reading = contents.read(remote.clone(), file);
    let mut reading = reading.context("parts of the file are missing")?;
    let mut writer = directory.write(&file.name).await?;
    loop {
        let next = match reading.next().await {
            Ok(Some(next)) => writer.write(next).await.map_err(anyhow::Error::from),
            Ok(None) => break,
            Err(failure) => Err(anyhow::Error::msg(failure.reason())),
        };
        if let Err(error) = next {
            writer.abort().await;
            return Err(error);
        }
    }
    writer.finish().await?;
    Ok(())
}
