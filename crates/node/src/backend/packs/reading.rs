//! Reads of files whose chunks are in packs. The module hashes each chunk whenever it reads the chunk: a chunk with another hash is
//! corrupt. The module reads the external store and marks corrupt chunks in the database.

use super::super::reading::{BackendLocation, ExternalReader};
use super::super::{Backend, Error, StoreFile};
use super::format::{ChunkSpot, Frame, Hash};
use super::rows::{self, ChunkLocation, PackId};
use crate::db::DbError;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tidemill_client::blocks::{BLOCK_BYTES, BlockKey};
use tidemill_model::id::ObjectId;

/// Time for which the packer trusts the external store's answer that a pack exists.
pub(super) const BELIEVED: Duration = Duration::from_secs(60);
/// Time for which a check of several files trusts the external store's answer that a pack exists.
const JUST_NOW: Duration = Duration::from_secs(2);

/// Wanted bytes of a chunk, with the chunk's location.
#[derive(Debug)]
struct WantedBytes {
    hash: Hash,
    found: ChunkLocation,
    from: usize,
    to: usize,
}

/// Consecutive frames of a pack that are read in one request.
#[derive(Debug)]
struct FrameRun<'a> {
    pack: &'a StoreFile,
    frames: Vec<Frame>,
}

fn changed(pack: &StoreFile) -> Error {
    Error::Changed(pack.path.clone())
}

fn failed(error: &DbError) -> Error {
    Error::Other(error.to_string())
}

impl ExternalReader {
    /// Returns the chunks that contain the bytes of a file between `from` and `end`.
    fn wanted(
        &self,
        object: ObjectId,
        from: u64,
        end: u64,
    ) -> Result<Vec<(Hash, ChunkLocation, std::ops::Range<u64>)>, Error> {
        let read = |db: &rusqlite::Connection| {
            let mut found = Vec::new();
            for part in rows::parts(db, object, from, end)? {
                let mut at = part.at;
                for (hash, size) in part.chunks {
                    let behind = at + u64::from(size);
                    if at < end && behind > from {
                        let range = at.max(from) - at..behind.min(end) - at;
                        found.push((hash, rows::find(db, &hash)?, range));
                    }
                    at = behind;
                }
            }
            Ok(found)
        };
        let found = self.db.read(read).map_err(|error| failed(&error))?;
        let there = |(hash, found, range)| Some((hash, found?, range));
        let found: Option<Vec<_>> = found.into_iter().map(there).collect();
        let missing = || Error::Missing(object.to_string());
        let found = found.ok_or_else(missing)?;
        let bytes: u64 = found
            .iter()
            .map(|(_, _, range)| range.end - range.start)
            .sum();
        match bytes == end - from {
            true => Ok(found),
            false => Err(missing()),
        }
    }

    /// Reads bytes of a file. Packs may be rewritten during the read: if data is missing, the function locates the chunks once more.
    pub(in super::super) async fn packed(
        &self,
        object: ObjectId,
        from: u64,
        count: u64,
    ) -> Result<Bytes, Error> {
        let mut before: Option<(Vec<WantedBytes>, Error)> = None;
        loop {
            let found = self.wanted(object, from, from + count)?;
            let wanted: Vec<WantedBytes> = found.into_iter().map(WantedBytes::of).collect();
            if let Some((earlier, failure)) = before {
                let same = |(one, other): (&WantedBytes, &WantedBytes)| one.found == other.found;
                if earlier.iter().zip(&wanted).all(same) {
                    return Err(failure);
                }
            }
            match self.gather(&wanted).await {
                Err(failure) if failure.is_loss() => before = Some((wanted, failure)),
                ended => return ended,
            }
        }
    }

    async fn gather(&self, wanted: &[WantedBytes]) -> Result<Bytes, Error> {
        let mut bytes = BytesMut::new();
        let mut left = wanted;
        while let Some(first) = left.first() {
            let (run, taken) = run(left);
            let frames = self.frames(&run).await;
            let frames = frames.inspect_err(|failure| {
                if failure.is_missing() {
                    tracing::warn!(
                        pack = first.found.placed.path,
                        "a pack in the backend is missing"
                    );
                }
            })?;
            for one in &left[..taken] {
                let frame = run
                    .frames
                    .iter()
                    .position(|frame| *frame == one.found.spot.frame);
                let frame = frame.and_then(|index| frames.get(index)?.as_ref());
                let chunk = frame.and_then(|frame| one.found.spot.of(frame, &one.hash));
                let Some(chunk) = chunk else {
                    self.is_bad(one);
                    return Err(changed(&one.found.placed));
                };
                bytes.extend_from_slice(chunk.get(one.from..one.to).unwrap_or_default());
            }
            left = &left[taken..];
        }
        Ok(bytes.freeze())
    }

    fn is_bad(&self, wanted: &WantedBytes) {
        let (hash, at) = (wanted.hash, (wanted.found.pack, wanted.found.spot));
        let pack = &wanted.found.placed.path;
        tracing::warn!(
            pack,
            at = at.1.frame.at,
            "a pack in the backend is corrupt at this place"
        );
        // A later read of the chunk finds the corruption again.
        self.db
            .submit(false, move |db| rows::mark_bad(db, &hash, at), drop);
    }

    /// Reads frames of a pack and decompresses them; `None` for a frame if the pack has other bytes at its offset.
    async fn frames(&self, run: &FrameRun<'_>) -> Result<Vec<Option<Bytes>>, Error> {
        let opened = |frame: &Frame, bytes| frame.opened(bytes).ok();
        let (Some(first), Some(last)) = (run.frames.first(), run.frames.last()) else {
            return Ok(Vec::new());
        };
        if run.frames.len() == 1 {
            let key = BlockKey {
                store: 0,
                path: run.pack.path.as_str().into(),
                tag: run.pack.tag.as_str().into(),
                index: first.at,
            };
            let ask = async {
                let bytes = self
                    .range(run.pack, first.at, first.end() - first.at)
                    .await?;
                opened(first, bytes).ok_or_else(|| changed(run.pack))
            };
            return match self.frames.get(&key, ask).await {
                Ok(frame) => Ok(vec![Some(frame)]),
                // This error says nothing about the rest of the pack.
                Err(Error::Changed(_)) if self.is_same(run.pack).await? => Ok(vec![None]),
                Err(failure) => Err(failure),
            };
        }
        let all = self
            .range(run.pack, first.at, last.end() - first.at)
            .await?;
        let frame = |frame: &Frame| {
            let from = usize::try_from(frame.at - first.at).ok()?;
            let to = from.checked_add(frame.stored as usize)?;
            opened(frame, (to <= all.len()).then(|| all.slice(from..to))?)
        };
        Ok(run.frames.iter().map(frame).collect())
    }

    pub(super) async fn is_same(&self, pack: &StoreFile) -> Result<bool, Error> {
        match self.far.stat_surely(&pack.path).await {
            Ok(now) => Ok(now == *pack),
            Err(failure) if failure.is_loss() => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

impl WantedBytes {
    fn of((hash, found, range): (Hash, ChunkLocation, std::ops::Range<u64>)) -> Self {
        // A chunk always fits into memory.
        let at = |at| usize::try_from(at).unwrap_or(usize::MAX);
        Self {
            hash,
            found,
            from: at(range.start),
            to: at(range.end),
        }
    }
}

/// Returns the frames that can be fetched in one request, and the number of wanted chunks that these frames contain.
fn run(wanted: &[WantedBytes]) -> (FrameRun<'_>, usize) {
    let mut run = FrameRun {
        pack: &wanted[0].found.placed,
        frames: vec![wanted[0].found.spot.frame],
    };
    let mut taken = 1;
    for one in &wanted[1..] {
        let frame = one.found.spot.frame;
        let last = run.frames[run.frames.len() - 1];
        if one.found.placed != *run.pack || (frame != last && frame.at != last.end()) {
            break;
        }
        if frame != last {
            run.frames.push(frame);
        }
        taken += 1;
    }
    (run, taken)
}

impl Backend {
    /// Returns whether the external store holds a pack unchanged. Reuses answers that are up to `believed` old.
    pub(super) fn has_pack(
        &self,
        pack: PackId,
        placed: &StoreFile,
        believed: Duration,
    ) -> Result<bool, Error> {
        let asked = self.packs.asked.lock().get(&pack).copied();
        if let Some((when, there)) = asked
            && when.elapsed() < believed
        {
            return Ok(there);
        }
        let there = self.reach.wait(self.reach.is_same(placed))?;
        if !there {
            tracing::warn!(
                pack = placed.path,
                "a pack in the backend is missing or was replaced"
            );
        }
        self.packs
            .asked
            .lock()
            .insert(pack, (Instant::now(), there));
        Ok(there)
    }

    /// Checks that all packs of a file exist. If an earlier read of the file failed, the function reads the file; otherwise it only asks
    /// the external store whether the packs exist.
    pub(in super::super) fn has_packed(
        &self,
        object: ObjectId,
        there: &BackendLocation,
    ) -> Result<(), Error> {
        let suspect = self.reach.is_suspect(object);
        let size = there.placed.size;
        let mut from = 0;
        while from < size {
            let count = BLOCK_BYTES.min(size - from);
            if suspect {
                self.reach.wait(self.reach.packed(object, from, count))?;
            } else {
                self.has_chunks(object, from, from + count)?;
            }
            from += count;
        }
        Ok(())
    }

    fn has_chunks(&self, object: ObjectId, from: u64, end: u64) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        for (_, found, _) in self.reach.wanted(object, from, end)? {
            if found.bad {
                return Err(changed(&found.placed));
            }
            if seen.insert(found.pack) && !self.has_pack(found.pack, &found.placed, JUST_NOW)? {
                return Err(changed(&found.placed));
            }
        }
        Ok(())
    }

    /// Reads chunks of one pack, one after the other.
    pub(super) fn chunks(
        &self,
        pack: PackId,
        placed: &StoreFile,
        chunks: &[(Hash, ChunkSpot)],
    ) -> Result<Bytes, Error> {
        let wanted = |(hash, spot): &(Hash, ChunkSpot)| {
            let found = ChunkLocation {
                pack,
                placed: placed.clone(),
                spot: *spot,
                bad: false,
            };
            WantedBytes::of((*hash, found, 0..u64::from(spot.size)))
        };
        let wanted: Vec<WantedBytes> = chunks.iter().map(wanted).collect();
        self.reach.wait(self.reach.gather(&wanted))
    }
}
