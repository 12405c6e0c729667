//! `tidemill cluster backup`: copies the log of the server's database.

use crate::command::node::backend;
use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::messages::Backup;
use crate::progress::Progress;
use anyhow::Context as _;
use bytes::Bytes;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_log::{FileName, names_in};
use tidemill_remote::{Error as StoreError, PathType, Remote, StoreFile, StoreWriter};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill cluster backup /backup                       for example every hour
  tidemill cluster backup --remote-keys keys s3://backups/tidemill
  tidemill server recover --key cluster.key /backup     on a new host, without a node's copy
  tidemill server recover --until '2026-11-30 09:15:00' /backup /copies/node-0

A backup has names, versions, jobs, rules, tokens and lineage, but not the content of files,
which nodes store. It is encrypted with the cluster's key. Keep a copy of `cluster.key` in the
server's directory at another place; each node's node.db has the key, too. A later backup to the
same place copies only changes, and the place keeps the earlier states.";

/// Number of entries in one request to a store.
const PAGE: usize = 1000;

/// Copy the log of the server's database to a directory or store, while the server runs (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// File with the keys of a store
    #[arg(long, value_name = "FILE")]
    remote_keys: Option<PathBuf>,
    /// Directory, which is created if it is missing, or address of a store, as for `tidemill remote add`
    #[arg(value_name = "DIRECTORY|URI")]
    to: String,
}

/// Place that has the files of a backup.
enum BackupPlace {
    Directory(PathBuf),
    Store(Remote),
}

/// File of a backup that is being written.
enum BackupFile {
    /// The file, its temporary path and its final path.
    Local(File, PathBuf, PathBuf),
    Stored(Box<dyn StoreWriter>),
}

/// Returns whether the name of a place is the address of a store.
pub(crate) fn is_store(place: &str) -> bool {
    place.contains("://")
}

/// Returns the files of the log in a store.
pub(crate) async fn files_in(store: &Remote) -> anyhow::Result<Vec<(FileName, StoreFile)>> {
    let mut pages = match store.entries("").await {
        Ok(pages) => pages,
        Err(StoreError::Missing(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut files = Vec::new();
    loop {
        let page = pages.next(PAGE).await?;
        if page.is_empty() {
            return Ok(files);
        }
        for entry in page {
            if let (Ok(name), PathType::File(file, _)) = (entry.name.parse(), entry.seen) {
                files.push((name, file));
            }
        }
    }
}

impl BackupPlace {
    fn open(to: &str, keys: Option<&Path>) -> anyhow::Result<Self> {
        if is_store(to) {
            return Ok(Self::Store(backend::open(to, keys)?));
        }
        anyhow::ensure!(keys.is_none(), "--remote-keys needs the address of a store");
        std::fs::create_dir_all(to)?;
        Ok(Self::Directory(to.into()))
    }

    async fn names(&self) -> anyhow::Result<Vec<FileName>> {
        Ok(match self {
            Self::Directory(directory) => names_in(directory)?.into_iter().collect(),
            Self::Store(store) => {
                let files = files_in(store).await?.into_iter();
                files.map(|(name, _)| name).collect()
            }
        })
    }

    async fn begin(&self, name: FileName) -> anyhow::Result<BackupFile> {
        Ok(match self {
            Self::Directory(directory) => {
                let part = directory.join(format!("{name}.part"));
                let mut options = std::fs::OpenOptions::new();
                let options = options.write(true).create(true).truncate(true).mode(0o600);
                let file = options.open(&part)?;
                BackupFile::Local(file, part, directory.join(name.to_string()))
            }
            Self::Store(store) => BackupFile::Stored(store.write(&name.to_string()).await?),
        })
    }

    /// Makes the names of finished files durable.
    fn sync(&self) -> std::io::Result<()> {
        match self {
            Self::Directory(directory) => File::open(directory)?.sync_all(),
            Self::Store(_) => Ok(()),
        }
    }
}

impl BackupFile {
    async fn write(&mut self, bytes: Bytes) -> anyhow::Result<()> {
        match self {
            Self::Local(file, ..) => file.write_all(&bytes)?,
            Self::Stored(writer) => writer.write(bytes).await?,
        }
        Ok(())
    }

    /// Removes an incomplete file.
    async fn abort(self) {
        match self {
            Self::Local(_, part, _) => _ = std::fs::remove_file(part),
            Self::Stored(writer) => writer.abort().await,
        }
    }

    async fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Local(file, part, path) => {
                file.sync_all()?;
                std::fs::rename(part, path)?;
            }
            Self::Stored(writer) => _ = writer.finish().await?,
        }
        Ok(())
    }
}

/// Copied files of a backup.
#[derive(Default)]
struct Copied {
    files: u64,
    bytes: u64,
    /// Moment of the last copied state, in nanoseconds since the epoch.
    time: i64,
    /// File that is incomplete.
    writing: Option<(FileName, BackupFile)>,
}

impl Copied {
    /// Writes the files that the server sends.
    async fn receive(
        &mut self,
        pieces: &mut tonic::Streaming<v1::LogPiece>,
        (server, place, progress): (&Server, &BackupPlace, &Progress),
    ) -> anyhow::Result<()> {
        while let Some(piece) = pieces
            .message()
            .await
            .map_err(|status| server.explain(status))?
        {
            let name: FileName = piece
                .name
                .parse()
                .map_err(|()| anyhow::anyhow!("the server sent a file with an unknown name"))?;
            if self
                .writing
                .as_ref()
                .is_none_or(|(known, _)| *known != name)
            {
                self.writing = Some((name, place.begin(name).await?));
            }
            let count = piece.content.len() as u64;
            if let Some((_, file)) = &mut self.writing {
                file.write(piece.content.into()).await?;
            }
            self.bytes += count;
            progress.add(count);
            self.time = piece.time_ns;
            if piece.last
                && let Some((_, file)) = self.writing.take()
            {
                file.finish().await?;
                self.files += 1;
            }
        }
        Ok(())
    }
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let at = || args.to.clone();
    let place = BackupPlace::open(&args.to, args.remote_keys.as_deref()).with_context(at)?;
    let known = place.names().await.with_context(at)?;
    let known = known.iter().map(ToString::to_string).collect();
    let server = context.connect().await?;
    let request = v1::BackupRequest { known };
    let mut pieces = server.answer(server.cluster().backup(request).await)?;
    let progress = Progress::new(context, 0);
    let mut copied = Copied::default();
    let received = copied
        .receive(&mut pieces, (&server, &place, &progress))
        .await;
    let left = copied.writing.take();
    if let Some((_, file)) = left {
        file.abort().await;
        received.with_context(at)?;
        anyhow::bail!("the server sent only a part of a file");
    }
    received.with_context(at)?;
    let Copied {
        files, bytes, time, ..
    } = copied;
    place.sync().with_context(at)?;
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
