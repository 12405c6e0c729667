//! `tidemill cluster backup`: copies the log of the server's database.

use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::messages::Backup;
use crate::progress::Progress;
use anyhow::Context as _;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_log::{FileName, names_in};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill cluster backup /backup                       for example every hour
  tidemill server recover --key cluster.key /backup     on a new host, without a node's copy
  tidemill server recover --until '2026-11-30 09:15:00' /backup /copies/node-0

A backup has names, versions, jobs, rules, tokens and lineage, but not the content of files,
which nodes store. It is encrypted with the cluster's key. Keep a copy of `cluster.key` in the
server's directory at another place; each node's node.db has the key, too. A later backup to the
same directory copies only changes, and the directory keeps the earlier states.";

/// Copy the log of the server's database to a directory, while the server runs (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Directory of the backup, which is created if it is missing
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    let at = || directory.display().to_string();
    std::fs::create_dir_all(directory).with_context(at)?;
    let known = names_in(directory).with_context(at)?;
    let known = known.iter().map(ToString::to_string).collect();
    let server = context.connect().await?;
    let request = v1::BackupRequest { known };
    let mut pieces = server.answer(server.cluster().backup(request).await)?;
    let progress = Progress::new(context, 0);
    let (mut files, mut bytes, mut time) = (0, 0, 0);
    let mut writing: Option<(FileName, File)> = None;
    while let Some(piece) = pieces
        .message()
        .await
        .map_err(|status| server.explain(status))?
    {
        let name: FileName = piece
            .name
            .parse()
            .map_err(|()| anyhow::anyhow!("the server sent a file with an unknown name"))?;
        let part = directory.join(format!("{name}.part"));
        let (_, mut file) = match writing.take().filter(|(known, _)| *known == name) {
            Some(one) => one,
            None => {
                let mut options = std::fs::OpenOptions::new();
                let options = options.write(true).create(true).truncate(true).mode(0o600);
                (name, options.open(&part).with_context(at)?)
            }
        };
        file.write_all(&piece.content).with_context(at)?;
        bytes += piece.content.len() as u64;
        progress.add(piece.content.len() as u64);
        time = piece.time_ns;
        if !piece.last {
            writing = Some((name, file));
            continue;
        }
        file.sync_all().with_context(at)?;
        std::fs::rename(&part, directory.join(name.to_string())).with_context(at)?;
        files += 1;
    }
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.with_context(at)?;
    let text = match files {
        0 => "nothing has changed since the last backup".into(),
        _ => format!(
            "{} ({}) copied, up to {}",
            format::count(files, "file"),
            format::bytes(bytes),
            format::time(time)
        ),
    };
    let time = format::Time(time);
    context.output.finish(&Message(
        text,
        Backup {
            files,
            bytes: format::Bytes(bytes),
            time,
        },
    ))
}
