//! The address and the keys of a node's backend.

use super::run::Args;
use crate::config;
use crate::format::ByteSize;
use anyhow::Context as _;
use std::path::Path;
use tidemill_node::backend::{BackendSettings, CACHE_BYTES_MAX_DEFAULT};
use tidemill_remote::{Keys, Remote, RemoteAddress};

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
    let opened = || {
        let opened = open(uri, keys.map(std::path::PathBuf::as_path));
        opened.with_context(|| format!("can't have files in {uri}"))
    };
    Ok(Some(BackendSettings {
        far: opened()?,
        scans: opened()?,
        address: RemoteAddress::parse(uri)?,
        packing: packing.unwrap_or_default(),
        cache_bytes_max: cache.map_or(CACHE_BYTES_MAX_DEFAULT, |ByteSize(bytes)| bytes),
    }))
}

/// Opens a store that can be written to.
pub(crate) fn open(uri: &str, keys: Option<&Path>) -> anyhow::Result<Remote> {
    let place = RemoteAddress::parse(uri)?;
    anyhow::ensure!(
        !place.is_plain_http(),
        "HTTP is read-only: give file:///DIRECTORY, s3://BUCKET/…, sftp://HOST/… or another writable store"
    );
    let keys = keys.map(Keys::read).transpose()?.unwrap_or_default();
    Ok(tidemill_remote::open(&place, &keys)?)
}
