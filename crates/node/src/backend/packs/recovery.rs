//! Recovery of the files of an external store whose node is lost. Packs list their content, so the recovery needs no other data. The module
//! only reads the external store.

use super::super::{Error, Remote, RemoteStore, StoreFile};
use super::format::{self, ChunkSpot, Directory, Hash, ManifestPart};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

/// Reason why a pack can't be read.
#[derive(Debug, thiserror::Error)]
pub enum PackUnreadable {
    /// The external store does not return the pack.
    #[error("{}", .0.reason())]
    Far(#[from] Error),
    /// The file is not a pack, or is a corrupt pack.
    #[error("{0}")]
    Malformed(#[from] format::Malformed),
}

/// Content of the packs of an external store.
#[derive(Debug, Default)]
pub struct Contents {
    packs: Vec<StoreFile>,
    /// Packs and locations of each chunk. A chunk with a bad location was written again to another pack.
    chunks: HashMap<Hash, Vec<(usize, ChunkSpot)>>,
    /// Parts of manifests by version and time of the write, and by their offset in the file. A write may have started several times.
    versions: BTreeMap<(u64, u64), BTreeMap<u64, ManifestPart>>,
}

/// Version of a file that was found in packs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Number of the version.
    pub object: u64,
    /// Name of the file, relative to the root of the external store.
    pub name: String,
    /// Length of the file in bytes.
    pub size: u64,
    /// Time of the version's write in nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether the packs contain all bytes of the version.
    pub whole: bool,
}

/// Reader of a version's bytes, from the first to the last.
#[derive(Debug)]
pub struct VersionReader<'a> {
    contents: &'a Contents,
    far: Remote,
    parts: Vec<&'a ManifestPart>,
    /// Index of the part and of the chunk to read next.
    next: (usize, usize),
    hasher: blake3::Hasher,
    /// Last frame that was read, with its pack.
    frame: Option<(usize, format::Frame, Bytes)>,
}

impl Contents {
    /// Adds the content that a pack lists.
    ///
    /// # Errors
    /// The pack can't be read or is invalid: nothing is then added.
    pub async fn add(
        &mut self,
        far: &dyn RemoteStore,
        placed: StoreFile,
    ) -> Result<(), PackUnreadable> {
        let short = PackUnreadable::Malformed(format::Malformed("it is too short"));
        let from = placed.size.checked_sub(format::TAIL_BYTES as u64);
        let from = from.ok_or(short)?;
        let tail = far
            .read_at(&placed, from, format::TAIL_BYTES as u64)
            .await?;
        let tail = format::PackTail::read(&tail, placed.size)?;
        let directory = far
            .read_at(&placed, tail.at, u64::from(tail.stored))
            .await?;
        let Directory { chunks, parts } = tail.directory(&directory)?;
        let pack = self.packs.len();
        self.packs.push(placed);
        for (hash, spot) in chunks {
            self.chunks.entry(hash).or_default().push((pack, spot));
        }
        for part in parts {
            let version = self.versions.entry((part.object, part.time)).or_default();
            version.insert(part.at, part);
        }
        Ok(())
    }

    /// Returns all versions of files, sorted by name and then by time, the newest last. Recently removed files may be among them.
    #[must_use]
    pub fn files(&self) -> Vec<Recovered> {
        let mut files: Vec<Recovered> = self
            .versions
            .keys()
            .filter_map(|version| self.file(*version))
            .collect();
        files.sort_by(|one, other| (&one.name, one.time_ns).cmp(&(&other.name, other.time_ns)));
        files
    }

    fn file(&self, version: (u64, u64)) -> Option<Recovered> {
        let first = self.versions.get(&version)?.values().next()?;
        Some(Recovered {
            object: first.object,
            name: first.name.clone(),
            size: first.size,
            time_ns: first.time,
            whole: self.parts(version).is_some(),
        })
    }

    /// Returns the parts of a version, if they cover the file without a gap and the packs have all of their chunks.
    fn parts(&self, version: (u64, u64)) -> Option<Vec<&ManifestPart>> {
        let parts: Vec<&ManifestPart> = self.versions.get(&version)?.values().collect();
        let first = parts.first()?;
        let mut at = 0;
        for part in &parts {
            let same = (&part.name, part.size) == (&first.name, first.size);
            let there = |(hash, size): &(Hash, u32)| {
                let found = self.chunks.get(hash);
                let same = |(_, spot): &(usize, ChunkSpot)| spot.size == *size;
                found.is_some_and(|found| found.iter().any(same))
            };
            if part.at != at || !same || !part.chunks.iter().all(there) {
                return None;
            }
            at = part.end();
        }
        (at == first.size).then_some(parts)
    }

    /// Starts to read a version; returns `None` if the version is not complete.
    #[must_use]
    pub fn read(&self, far: Remote, file: &Recovered) -> Option<VersionReader<'_>> {
        Some(VersionReader {
            contents: self,
            far,
            parts: self.parts((file.object, file.time_ns))?,
            next: (0, 0),
            hasher: blake3::Hasher::new(),
            frame: None,
        })
    }
}

impl VersionReader<'_> {
    /// Returns the next bytes of the version; `None` at the end, if the hash of the whole file is right.
    ///
    /// # Errors
    /// The external store does not return the bytes, or they differ from the written bytes.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(part) = self.parts.get(self.next.0) {
            let Some((hash, _)) = part.chunks.get(self.next.1) else {
                self.next = (self.next.0 + 1, 0);
                continue;
            };
            let chunk = self.chunk(hash).await?;
            self.hasher.update(&chunk);
            self.next.1 += 1;
            return Ok(Some(chunk));
        }
        // The hash of the whole file was known when the last part was written.
        let hash = self.parts.last().map(|part| part.hash);
        let path = self
            .parts
            .last()
            .map_or_else(String::new, |part| part.name.clone());
        match hash == Some(self.hasher.finalize().into()) {
            true => Ok(None),
            false => Err(Error::Changed(path)),
        }
    }

    /// Returns a chunk from any location at which the chunk is intact.
    async fn chunk(&mut self, hash: &Hash) -> Result<Bytes, Error> {
        let contents = self.contents;
        let mut failure = Error::Missing("a chunk".into());
        for (pack, spot) in contents.chunks.get(hash).into_iter().flatten() {
            match self.frame_of(*pack, spot.frame).await {
                Ok(frame) => match spot.of(&frame, hash) {
                    Some(chunk) => return Ok(chunk),
                    None => failure = Error::Changed("a chunk".into()),
                },
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    async fn frame_of(&mut self, pack: usize, frame: format::Frame) -> Result<Bytes, Error> {
        if let Some((of, was, bytes)) = &self.frame
            && (*of, *was) == (pack, frame)
        {
            return Ok(bytes.clone());
        }
        let placed = &self.contents.packs[pack];
        let bytes = self
            .far
            .read_at(placed, frame.at, frame.end() - frame.at)
            .await?;
        let bytes = frame.opened(bytes)?;
        self.frame = Some((pack, frame, bytes.clone()));
        Ok(bytes)
    }
}
