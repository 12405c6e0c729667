//! Copies one file, and notes the version of the source in an attribute. A second run skips an unchanged file.

use super::incoming::{IncomingBytes, IncomingChunk};
use super::limit::TransferLimit;
use super::summary::FileOutcome;
use super::{ConnectedRemote, TransferArgs};
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::progress::Progress;
use anyhow::{Context as _, ensure};
use made::CreatedDirectories;
use serde::{Deserialize, Serialize};
use tidemill_client::transfer::{PutOptions, Transfer};
use tidemill_client::{Error, Server};
use tidemill_model::display::line;
use tidemill_model::id::NodeId;
use tidemill_remote::{FileReader, RemoteAddress, StoreFile, StoreWriter};
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};
use tokio::sync::mpsc;

/// Files transferred at the same time.
pub(in crate::command) const AT_ONCE: usize = 8;

/// Bytes of the cluster that are read at once.
const PIECE_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(in crate::command) struct RemoteTransfer {
    pub(in crate::command) server: Server,
    pub(in crate::command) opened: ConnectedRemote,
    transfer: Transfer,
    limit: TransferLimit,
    pub(in crate::command) progress: Progress,
    directories: CreatedDirectories,
    /// For stub files: the node with its files in the store, and their address.
    no_copy: Option<(NodeId, RemoteAddress)>,
    /// Whether nothing is copied, and outcomes are planned copies.
    pub(in crate::command) dry_run: bool,
}

/// Attribute `user.remote.NAME` of a file: the file and this object have the same content.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    path: String,
    tag: String,
    size: u64,
    /// Version of the file.
    object: u64,
}

impl Note {
    fn new(there: &StoreFile, object: u64) -> Self {
        Self {
            path: there.path.clone(),
            tag: there.tag.clone(),
            size: there.size,
            object,
        }
    }
}

/// Returns an online node with its files in a store, and their address.
pub(in crate::command) async fn holder(
    server: &Server,
    ours: &RemoteAddress,
) -> anyhow::Result<(NodeId, RemoteAddress)> {
    let status = server.answer(server.cluster().status(v1::StatusRequest::default()).await)?;
    let found = status.nodes.into_iter().find_map(|one| {
        let theirs = RemoteAddress::parse(&one.backend.filter(|_| one.up)?.uri).ok()?;
        ours.seen_from(&theirs, "")?;
        Some((NodeId(one.node), theirs))
    });
    found.with_context(|| {
        format!(
            "no online node has its files in {}: start a node with `tidemill node run --backend {}`, or copy without --no-copy",
            ours.uri(),
            ours.uri()
        )
    })
}

impl RemoteTransfer {
    pub(in crate::command) async fn new(
        context: &CommandContext,
        way: &TransferArgs,
        remote: &str,
    ) -> anyhow::Result<Self> {
        let server = context.connect().await?;
        Ok(Self {
            opened: way.keys.open(&server, remote).await?,
            transfer: Transfer::new(server.clone(), credentials()),
            limit: TransferLimit::new(way.limit_rate.map_or(0, |rate| rate.0)),
            progress: Progress::new(context, 0),
            directories: CreatedDirectories::default(),
            no_copy: None,
            dry_run: way.dry_run,
            server,
        })
    }

    /// Makes files in the cluster stub files: their bytes are not copied.
    pub(in crate::command) async fn without_copy(&mut self) -> anyhow::Result<()> {
        self.no_copy = Some(holder(&self.server, &self.opened.place).await?);
        Ok(())
    }

    /// Returns a path in the store as `NAME:PATH`.
    pub(in crate::command) fn remote(&self, path: &str) -> String {
        line(&format!("{}:{path}", self.opened.name))
    }

    fn attribute(&self) -> Vec<u8> {
        format!("user.remote.{}", self.opened.name).into_bytes()
    }

    async fn noted(&self, attr: &v1::Attr) -> Option<Note> {
        let get = v1::GetXattr {
            ino: attr.ino,
            name: self.attribute(),
        };
        match self.server.one(&credentials(), Op::GetXattr(get)).await {
            Ok(Answer::Bytes(bytes)) => serde_json::from_slice(&bytes.value).ok(),
            _ => None,
        }
    }

    /// Without the right to note the source version, the next run copies the file again.
    async fn note(&self, ino: u64, note: &Note) {
        let set = v1::SetXattr {
            ino,
            name: self.attribute(),
            value: serde_json::to_vec(note).unwrap_or_default(),
            ..v1::SetXattr::default()
        };
        if let Err(error) = self.server.one(&credentials(), Op::SetXattr(set)).await {
            tracing::debug!(ino, "not noted: {error}");
        }
    }

    async fn attr(&self, path: &files::ClusterPath) -> Result<v1::Attr, Error> {
        let entry = files::find(&self.server, path, true).await?;
        entry.attr.ok_or(Error::Answer("Resolve"))
    }

    /// Copies an object of the store to a path of the cluster.
    pub(in crate::command) async fn import(
        &self,
        object: &StoreFile,
        path: &files::ClusterPath,
    ) -> anyhow::Result<FileOutcome> {
        let transferred = self.imported(object, path).await;
        transferred.with_context(|| format!("can't copy {} to {path}", self.remote(&object.path)))
    }

    async fn imported(
        &self,
        object: &StoreFile,
        path: &files::ClusterPath,
    ) -> anyhow::Result<FileOutcome> {
        let is_missing = match self.attr(path).await {
            Ok(attr) => {
                ensure!(
                    attr.kind() != Kind::Directory,
                    "the path is a directory of the cluster"
                );
                if self.noted(&attr).await == Some(Note::new(object, attr.object)) {
                    return Ok(FileOutcome::Same);
                }
                false
            }
            Err(error) if error.is(rustix::io::Errno::NOENT) => true,
            Err(error) => return Err(error.into()),
        };
        if self.dry_run {
            return Ok(FileOutcome::Planned {
                from: self.remote(&object.path),
                to: path.to_string(),
                bytes: object.size,
            });
        }
        if is_missing {
            let (above, _) = path.split()?;
            self.directories.make(&self.server, &above).await?;
        }
        self.progress.now(path);
        if let Some((node, theirs)) = &self.no_copy {
            return self.make_stub(object, path, (*node, theirs)).await;
        }
        let reader = self.opened.remote.read(object).await?;
        let (sender, incoming) = IncomingBytes::new();
        let mode = 0o666 & !files::umask();
        let put = self
            .transfer
            .put_from(incoming, path, (mode, PutOptions::default()), |_| {});
        let (sent_all, put) = tokio::join!(self.send_file(reader, sender), put);
        // The error of the store explains more than an early end of its data.
        sent_all?;
        let (size, version) = put?;
        let attr = self.attr(path).await?;
        if attr.object == version {
            self.note(attr.ino, &Note::new(object, version)).await;
        }
        Ok(FileOutcome::Copied(size))
    }

    async fn make_stub(
        &self,
        object: &StoreFile,
        path: &files::ClusterPath,
        (node, theirs): (NodeId, &RemoteAddress),
    ) -> anyhow::Result<FileOutcome> {
        let there = self.opened.place.seen_from(theirs, &object.path);
        let there = there.context("the file is not in the node's part of the store")?;
        let mode = 0o666 & !files::umask();
        let (size, version) = self
            .transfer
            .make_stub(node, &there, (path.as_ref(), mode))
            .await?;
        let attr = self.attr(path).await?;
        if attr.object == version {
            self.note(attr.ino, &Note::new(object, version)).await;
        }
        Ok(FileOutcome::Copied(size))
    }

    async fn send_file(
        &self,
        mut reader: FileReader,
        sender: mpsc::Sender<IncomingChunk>,
    ) -> Result<(), tidemill_remote::Error> {
        while let Some(bytes) = reader.next().await? {
            self.limit.take(bytes.len()).await;
            self.progress.add(bytes.len() as u64);
            if sender.send(IncomingChunk::Bytes(bytes)).await.is_err() {
                // The upload has failed, and reports the reason.
                return Ok(());
            }
        }
        let _ = sender.send(IncomingChunk::End).await;
        Ok(())
    }

    /// Copies a file of the cluster to a path of the store.
    pub(in crate::command) async fn export(
        &self,
        path: &files::ClusterPath,
        to: &str,
    ) -> anyhow::Result<FileOutcome> {
        let transferred = self.exported(path, to).await;
        transferred.with_context(|| format!("can't copy {path} to {}", self.remote(to)))
    }

    async fn exported(&self, path: &files::ClusterPath, to: &str) -> anyhow::Result<FileOutcome> {
        let remote = &self.opened.remote;
        let attr = self.attr(path).await?;
        if let Some(note) = self.noted(&attr).await
            && note.path == to
            && note.object == attr.object
        {
            match remote.stat(to).await {
                Ok(there) if note == Note::new(&there, attr.object) => {
                    return Ok(FileOutcome::Same);
                }
                Err(error) if !error.is_missing() => return Err(error.into()),
                _ => {}
            }
        }
        if self.dry_run {
            return Ok(FileOutcome::Planned {
                from: path.to_string(),
                to: self.remote(to),
                bytes: attr.size,
            });
        }
        self.progress.now(path);
        let ranged = self.transfer.ranged(path).await?;
        let attr = self.attr(path).await?;
        ensure!(
            attr.version == ranged.version() && attr.version > 0,
            "the file is being written; try again later"
        );
        let mut writer = remote.write(to).await?;
        if let Err(error) = self.pour(&ranged, attr.size, writer.as_mut()).await {
            writer.abort().await;
            return Err(error);
        }
        let there = writer.finish().await?;
        ensure!(
            there.size == attr.size,
            "the store reports a size of {} bytes, expected {}: did another client write the file?",
            there.size,
            attr.size
        );
        self.note(attr.ino, &Note::new(&there, attr.object)).await;
        Ok(FileOutcome::Copied(attr.size))
    }

    async fn pour(
        &self,
        ranged: &tidemill_client::ranged::RangedFile<'_>,
        size: u64,
        writer: &mut dyn StoreWriter,
    ) -> anyhow::Result<()> {
        let mut done = 0;
        while done < size {
            let end = size.min(done + PIECE_BYTES);
            let bytes = ranged.read(done..end).await?;
            self.limit.take(bytes.len()).await;
            self.progress.add(bytes.len() as u64);
            writer.write(bytes).await?;
            done = end;
        }
        Ok(())
    }
}

/// Directories that are known to exist.
mod made {
    use crate::files;
    use std::collections::HashSet;
    use tidemill_client::Server;
    use tokio::sync::Mutex;

    #[derive(Debug, Default)]
    pub(super) struct CreatedDirectories(Mutex<HashSet<files::ClusterPath>>);

    impl CreatedDirectories {
        /// Makes a directory with its parents, each once.
        pub(super) async fn make(
            &self,
            server: &Server,
            path: &files::ClusterPath,
        ) -> anyhow::Result<()> {
            let mut known = self.0.lock().await;
            if path.as_ref() != b"/" && !known.contains(path) {
                files::make_directory(server, path, true).await?;
                known.insert(path.clone());
            }
            Ok(())
        }
    }
}
