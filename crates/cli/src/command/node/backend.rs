//! The backend of a node, by `tidemill-remote`.

use super::run::Args;
use crate::config;
use crate::format::ByteSize;
use anyhow::Context as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;
use tidemill_node::backend::{
    BackendBytes, BackendFailure, BackendFile, BackendFuture, BackendOverwrite, BackendSettings,
    CACHE_BYTES_MAX_DEFAULT, Far,
};
use tidemill_remote::{Error, Keys, Remote, RemoteAddress, StoreFile};

/// Largest file that is written at once, from memory.
const WHOLE_BYTES_MAX: u64 = 32 << 20;

/// Returns the backend of a node, if flags or the configuration name one.
pub(super) fn place(
    args: &Args,
    file: &config::NodeSection,
) -> anyhow::Result<Option<BackendSettings>> {
    let uri = args.backend.as_ref().or(file.backend.as_ref());
    let keys = args.backend_keys.as_ref().or(file.backend_keys.as_ref());
    let cache = args.backend_cache.or(file.backend_cache);
    let packing = args.backend_format.or(file.backend_format);
    let Some(uri) = uri else {
        anyhow::ensure!(
            keys.is_none() && cache.is_none() && packing.is_none(),
            "--backend-keys, --backend-format and --backend-cache go with --backend"
        );
        return Ok(None);
    };
    anyhow::ensure!(
        !uri.starts_with("hdfs://"),
        "a node can't have its files at hdfs://: give webhdfs://HOST:9870/DIRECTORY instead"
    );
    let opened = open(uri, keys.map(std::path::PathBuf::as_path));
    let remote = opened.with_context(|| format!("can't have files in {uri}"))?;
    Ok(Some(BackendSettings {
        far: Arc::new(Backend::new(remote)),
        uri: uri.clone(),
        packing: packing.unwrap_or_default(),
        cache_bytes_max: cache.map_or(CACHE_BYTES_MAX_DEFAULT, |ByteSize(bytes)| bytes),
    }))
}

/// Returns another connection to the store, for scans.
pub(super) fn remote(
    args: &Args,
    file: &config::NodeSection,
) -> anyhow::Result<Option<(Remote, RemoteAddress)>> {
    let uri = args.backend.as_ref().or(file.backend.as_ref());
    let keys = args.backend_keys.as_ref().or(file.backend_keys.as_ref());
    uri.map(|uri| {
        let place = RemoteAddress::parse(uri)?;
        Ok((open(uri, keys.map(std::path::PathBuf::as_path))?, place))
    })
    .transpose()
}

/// Opens a store that can be written to.
pub(crate) fn open(uri: &str, keys: Option<&Path>) -> anyhow::Result<Remote> {
    let place = RemoteAddress::parse(uri)?;
    anyhow::ensure!(
        !place.is_plain_http(),
        "HTTP is read-only: give file:///DIRECTORY, s3://BUCKET/…, sftp://HOST/… or another writable store"
    );
    let keys = keys.map(Keys::read).transpose()?.unwrap_or_default();
    Ok(Remote::open(&place, &keys)?)
}

/// A store, and whether it has reported that it does not support conditional writes.
#[derive(Debug)]
pub(super) struct Backend(Remote, AtomicBool);

impl Backend {
    pub(super) fn new(remote: Remote) -> Self {
        Self(remote, AtomicBool::default())
    }
}

/// Reason why a file was not written.
enum Unwritten {
    /// The store refused it.
    Far(Error),
    /// Its bytes could not be read on this node.
    Near(BackendFailure),
}

impl From<Error> for Unwritten {
    fn from(error: Error) -> Self {
        Self::Far(error)
    }
}

/// Returns whether the store answers that it does not support conditional writes.
fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Store { reason, .. } if reason.contains("NotImplemented"))
}

fn failure(error: &Error) -> BackendFailure {
    match error {
        Error::Missing(_) => BackendFailure::Missing,
        Error::Changed(_) | Error::NoFile { .. } => BackendFailure::Changed,
        error => BackendFailure::Other(error.to_string()),
    }
}

pub(super) fn placed(object: StoreFile) -> BackendFile {
    BackendFile {
        path: object.path,
        size: object.size,
        tag: object.tag,
        checked: object.checked_by_store,
    }
}

fn object(of: &BackendFile) -> StoreFile {
    StoreFile {
        path: of.path.clone(),
        size: of.size,
        tag: of.tag.clone(),
        checked_by_store: of.checked,
    }
}

impl Backend {
    async fn written(
        &self,
        path: &str,
        size: u64,
        mut pieces: BackendBytes<'_>,
        over: tidemill_remote::Overwrite,
    ) -> Result<StoreFile, Unwritten> {
        let mut next = || {
            let piece = pieces();
            piece.map_err(|error| Unwritten::Near(BackendFailure::Other(error.to_string())))
        };
        if size <= WHOLE_BYTES_MAX {
            let mut all = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
            while let Some(piece) = next()? {
                all.extend_from_slice(&piece);
            }
            return Ok(self.0.put(path, all.into(), over).await?);
        }
        let mut writer = self.0.write_over(path, over).await?;
        loop {
            let piece = match next() {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(why) => {
                    writer.abort().await;
                    return Err(why);
                }
            };
            if let Err(error) = writer.write(piece).await {
                writer.abort().await;
                return Err(error.into());
            }
        }
        Ok(writer.finish().await?)
    }
}

impl Far for Backend {
    fn stat<'a>(&'a self, path: &'a str) -> BackendFuture<'a, BackendFile> {
        Box::pin(async move {
            let found = self.0.stat(path).await;
            found.map(placed).map_err(|error| failure(&error))
        })
    }

    fn read<'a>(
        &'a self,
        of: &'a BackendFile,
        from: u64,
        count: u64,
    ) -> BackendFuture<'a, bytes::Bytes> {
        Box::pin(async move {
            let read = self.0.read_at(&object(of), from, count).await;
            read.map_err(|error| failure(&error))
        })
    }

    fn write<'a>(
        &'a self,
        path: &'a str,
        size: u64,
        pieces: BackendBytes<'a>,
        over: BackendOverwrite,
    ) -> BackendFuture<'a, BackendFile> {
        Box::pin(async move {
            let over = match over {
                _ if self.1.load(Ordering::Relaxed) => tidemill_remote::Overwrite::Anything,
                BackendOverwrite::Anything => tidemill_remote::Overwrite::Anything,
                BackendOverwrite::Nothing => tidemill_remote::Overwrite::Nothing,
                BackendOverwrite::This(placed) => tidemill_remote::Overwrite::This(object(&placed)),
            };
            let conditional = !matches!(over, tidemill_remote::Overwrite::Anything);
            let written = self.written(path, size, pieces, over).await;
            let written = written.map_err(|unwritten| match unwritten {
                Unwritten::Far(error) => {
                    // The retry has no condition.
                    let unknown = conditional && is_unknown(&error);
                    self.1.fetch_or(unknown, Ordering::Relaxed);
                    failure(&error)
                }
                Unwritten::Near(why) => why,
            })?;
            match written.size == size {
                true => Ok(placed(written)),
                false => Err(BackendFailure::Changed),
            }
        })
    }

    fn also<'a>(&'a self, path: &'a str, other: &'a str) -> BackendFuture<'a, BackendFile> {
        Box::pin(async move {
            let made = self.0.also(path, other).await;
            made.map(placed).map_err(|error| failure(&error))
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> BackendFuture<'a, ()> {
        Box::pin(async move {
            match self.0.remove(path).await {
                Err(error) if !error.is_missing() => Err(failure(&error)),
                _ => Ok(()),
            }
        })
    }

    fn leaves(&self, size: u64) -> bool {
        size > WHOLE_BYTES_MAX && self.0.leaves()
    }

    fn abandon<'a>(&'a self, path: &'a str, since: SystemTime) -> BackendFuture<'a, ()> {
        Box::pin(async move {
            let abandoned = self.0.abandon(path, since).await;
            abandoned.map_err(|error| failure(&error))
        })
    }

    fn renew(&self) {
        self.0.renew();
    }
}
