//! Helpers of tests that create, write and read files of a store.

use bytes::Bytes;
use tidemill_remote::{Error, Remote, StoreFile};

/// Returns `count` bytes without short repetitions.
pub(crate) fn noise(count: usize, mut state: u64) -> Vec<u8> {
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(count).collect()
}

pub(crate) async fn write(remote: &Remote, path: &str, content: &[u8]) -> Result<StoreFile, Error> {
    let mut writer = remote.write(path).await?;
    for piece in content.chunks(4 << 20) {
        if let Err(error) = writer.write(Bytes::copy_from_slice(piece)).await {
            writer.abort().await;
            return Err(error);
        }
    }
    writer.finish().await
}

pub(crate) async fn read(remote: &Remote, object: &StoreFile) -> Result<Vec<u8>, Error> {
    let mut reader = remote.read(object).await?;
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await? {
        all.extend_from_slice(&piece);
    }
    Ok(all)
}
